"""Which members of a device are stepped by one program, and by which kind of it: admitted on a real block, chosen by the steps of
training itself.

Contract. Units change only here, and only between two turns, where all whose program changes are saved first; what follows
is emitted before its first step, after those files. So the journal knows of each file what stepped the member from there on,
and a member that comes aboard again is stepped as it was.
"""

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence

from argosy.errors.traces import reason_of
from argosy.protocol.events import Event
from argosy.protocol.packs import FellBack, Packed, StepsAlone
from argosy.protocol.trainer import SectionReport
from argosy.stream.blocks import Block
from argosy.stream.pulse import Pulse
from argosy.training.choice.fused_admission import admit
from argosy.training.choice.kin import ALONE, Kin, Kind, ProgramCandidate, divided
from argosy.training.device.devices import out_of_memory
from argosy.training.member.live import LiveMember
from argosy.training.programs.fused.compiled import Compilation
from argosy.training.programs.fused.fingerprint import Fingerprint
from argosy.training.programs.graphed.graphed import refusal
from argosy.training.trainer.aboard import Aboard
from argosy.training.trainer.units import Unit

__all__ = ["Fusion", "weight_bytes"]

PAIRS = 2
"""That are tried at least: if none of them was faster as one program, those to come are not tried. In a short trial that is dear."""
TWO = ProgramCandidate(2)


class Fusion:
    """Of one trainer, whose units these are."""

    def __init__(
        self,
        device: str,
        units: list[Unit],
        emit: Callable[[SectionReport], None],
        save: Callable[[Collection[str]], list[Event]],
        pulse: Pulse,
        *,
        allowed: bool,
        kinds: Sequence[Kind] = ("plain",),
    ) -> None:
        self._device = device
        self._allowed = allowed
        self._kinds = kinds
        """That programs may be of here, simplest first."""
        self._units = units
        self._emit = emit
        self._save = save
        self._pulse = pulse
        self._newcomers = False
        """Whether somebody came aboard since the last look."""
        self._admitted: set[Fingerprint] = set()
        self._compilations: dict[Kin, Compilation] = {}
        """Of those that may be compiled."""
        self._pairs: dict[Kin, bool] = {}
        """Of kin that were tried in twos, whether one program was faster."""
        self._alone: dict[str, str] = {}
        """Why members are no program with others, as it was told."""
        self._fallen: set[FellBack] = set()
        """What was given up, as it was told."""

    def boarded(self) -> None:
        """Somebody came aboard."""
        self._newcomers = self._allowed

    # ---- who is kin

    def look(self, block: Block) -> None:
        """Before the steps of a training block: find out who of those aboard can be one program, if there are new ones.

        A block without any sample, as at the end of an epoch of which all steps were made before, says nothing of them.
        """
        if not self._newcomers or not block.sound.any():
            return
        self._newcomers = False
        there: dict[tuple[int, int], list[Unit]] = {}
        for unit in self._units:
            if unit.shard is None:
                there.setdefault(unit.assignment[0].stands, []).append(unit)
        reasons: dict[str, str] = {}
        for units in there.values():
            names = ", ".join(repr(unit.names[0]) for unit in units)
            with self._pulse.busy(f"trying as one program those alike of {names}", opaque=True):
                reasons |= self._admit(units, block)
        told, self._alone = self._alone, reasons
        fresh = {name: reason for name, reason in reasons.items() if told.get(name) != reason}
        if fresh and len(self._units) > 1:
            self._emit(SectionReport(events=(StepsAlone(device=self._device, reasons=fresh),)))
        self.settle()

    def _admit(self, units: Sequence[Unit], block: Block) -> Mapping[str, str]:
        """Let members at one place of the stream be kin where they can; returns for the others why not."""
        lives = [aboard.live for unit in units for aboard in unit.assignment]
        with warnings.catch_warnings():
            # Of a twin's schedule, which cannot know that the twin's optimizer steps before it.
            warnings.filterwarnings("ignore", "Seems like `optimizer.step")
            compiles = "compiled" in self._kinds
            pairs = compiles or len(self._pairs) < PAIRS or any(self._pairs.values())
            admission = admit(lives, block, self._admitted, single=compiles, pairs=pairs)
        for names in admission.packs:
            members = [unit for unit in units if unit.names[0] in names]
            known = next((unit.kin for unit in members if unit.kin is not None), None)
            kin = known or Kin(weight_bytes=weight_bytes(members[0].assignment[0].live))
            kin.kinds = self._kinds_of(members[0], alike=True)
            for unit in members:
                unit.kin = kin
            if known is None:
                self._as_before(kin, members)
        for unit in [unit for unit in units if unit.kin is None]:
            kinds = self._kinds_of(unit, alike=False)
            if len(kinds) > 1:
                unit.kin = Kin(kinds=kinds)
                self._as_before(unit.kin, [unit])
        for names, reason in admission.failed.items():
            self._tell(names, "fused", reason)
        return admission.alone

    def _tell(self, names: Sequence[str], kind: str, reason: str) -> None:
        """Journal that a faster program of these members was given up, once for each reason."""
        event = FellBack(device=self._device, members=tuple(sorted(names)), kind=kind, reason=reason)
        if event not in self._fallen:
            self._fallen.add(event)
            self._emit(SectionReport(events=(event,)))

    def _kinds_of(self, unit: Unit, *, alike: bool) -> Sequence[Kind]:
        """Of programs that may step its members, which may be `alike` others: seen to get from common code what they get alone."""
        may_be: dict[Kind, bool] = {"plain": True, "compiled": alike}
        if "graphed" in self._kinds:
            capturable = unit.assignment[0].live.loss_scale is None  # whose steps look at what has overflowed
            may_be["graphed"] = capturable and ("graphed" in unit.kin.kinds if unit.kin else not refusal(unit.program))
        return [kind for kind in self._kinds if may_be[kind]]

    def _compilation(self, kin: Kin | None) -> Compilation | None:
        if kin is None or kin.now.kind != "compiled":
            return None
        return self._compilations.setdefault(kin, Compilation())

    def _as_before(self, kin: Kin, units: Sequence[Unit]) -> None:
        """Let programs step these as the journal has it, where it has that of all of them together."""
        assignment = [aboard for unit in units for aboard in unit.assignment]
        told = assignment[0].packed
        if told is None or any(aboard.packed != told for aboard in assignment):
            return
        by_name = {aboard.name: aboard for aboard in assignment}
        parts = [part for names in told.programs if (part := [by_name[name] for name in names if name in by_name])]
        kin.refused = {kind: told.refused[kind] for kind in kin.kinds if kind in told.refused}
        same = next((kind for kind in kin.kinds if kind == told.kind), None)
        kin.now = ProgramCandidate(max(map(len, parts)), same or "plain")
        kin.settled_for = sum(map(len, told.programs)) if told.settled and same else 0
        if told.reason:
            kin.fits, kin.reason = kin.now.size, told.reason
        self._regroup(kin, units, parts)

    # ---- how they are stepped

    def settle(self) -> None:
        """When all units have had their turn at a block: rounds end, and members change programs."""
        for kin in dict.fromkeys(unit.kin for unit in self._units if unit.kin is not None):
            units, compilation = self._of(kin), self._compilation(kin)
            if compilation is not None and compilation.refused:
                self._tell([name for unit in units for name in unit.names], "compiled", compilation.refused)
                kin.refuse("compiled", compilation.refused)
            count = sum(len(unit.assignment) for unit in units)
            under_way = [unit for unit in units if unit.turns is not None]
            if kin.asks(count) and not (under_way and all(unit.turns for unit in under_way)):
                if under_way:
                    seconds, samples = (
                        sum(unit.seconds for unit in under_way),
                        sum(unit.in_round for unit in under_way),
                    )
                    needs = [unit.need for unit in under_way if unit.need is not None]
                    kin.note(seconds, samples, max(needs, default=None))
                self._go_on(kin, count)

    def broke(self, unit: Unit, error: str, *, memory: bool) -> None:
        """A step of several members has raised, and is undone: `settle` finds others to step them."""
        assert unit.kin is not None
        unit.broke = True
        self._refuse(unit.kin, len(unit.assignment), error, memory=memory)

    def _refuse(self, kin: Kin, size: int, error: str, *, memory: bool) -> None:
        """No such programs of a kin: plain ones, then of fewer members, or none where it was not for want of memory."""
        if not memory:
            names = [name for unit in self._of(kin) for name in unit.names]
            self._tell(names, "fused" if kin.now.kind == "plain" else kin.now.kind, error)
        if kin.now.kind == "plain":
            kin.restrict(max(size // 2, 1) if memory else 1, f"{size} in a program: {error}")
        else:
            kin.refuse(kin.now.kind, error)
        for unit in self._of(kin):
            unit.begin_round(measures=False)

    def failed(self, name: str) -> None:
        """A member failed by itself: what it had raised together with its kin may have been that."""
        kin = next((unit.kin for unit in self._units if name in unit.names), None)
        if kin is not None and kin.fits == 1:
            kin.restrict(Kin().fits, "")

    def _of(self, kin: Kin) -> list[Unit]:
        return [unit for unit in self._units if unit.kin is kin]

    def _go_on(self, kin: Kin, count: int) -> None:
        """With what is next, for a round or for good."""
        kin.foresee(count, self._room(kin))
        wanted, events = kin.next(count), list[Event]()
        present = [(len(unit.assignment), unit.kind) for unit in self._of(kin)]
        changes = present != [(len(part), wanted.kind) for part in divided(range(count), wanted.size)]
        if changes:
            events = self._change(kin, wanted)
        else:
            kin.go_on_with(wanted)
        units, measures = self._of(kin), kin.now != wanted or kin.measures(count)
        for unit in units:
            unit.begin_round(measures=measures and kin.now == wanted)
        if not measures:
            kin.settled_for = count
            if {ALONE, TWO} <= kin.costs.keys():
                self._pairs[kin] = kin.costs[TWO] < kin.costs[ALONE]
        if changes or (kin.costs and not measures):
            self._emit(SectionReport(events=(*events, self._packed(kin, units, settled=not measures))))

    def _room(self, kin: Kin) -> int | None:
        """Bytes that tensors of these may still take on their device; None where nobody counts them.

        What others' captured steps keep is theirs; what their own do is given back where they change programs.
        """
        backend = self._of(kin)[0].assignment[0].live.backend
        in_use = backend.memory_in_use()
        if in_use is None:
            return None
        kind, _, number = backend.name.partition(":")
        kept = sum(unit.kept_bytes for unit in self._units if unit.kin is not kin)
        return backend.hardware(kind)[int(number)].memory_bytes - backend.foreign_memory() - in_use - kept

    def _packed(self, kin: Kin, units: Sequence[Unit], *, settled: bool) -> Packed:
        known = sorted(kin.costs.items())
        return Packed(
            device=self._device,
            programs=tuple(unit.names for unit in units),
            settled=settled,
            seconds_per_sample=tuple((size, seconds) for (size, kind), seconds in known if kind == "plain"),
            step_bytes=tuple((size, need) for (size, kind), need in sorted(kin.needs.items()) if kind == kin.now.kind),
            reason=kin.reason,
            kind=kin.now.kind,
            seconds_by_kind=tuple((kind, size, seconds) for (size, kind), seconds in known if kind != "plain"),
            refused=dict(kin.refused),
        )

    def _change(self, kin: Kin, wanted: ProgramCandidate) -> list[Event]:
        """Save the members, and let other programs step them."""
        events = self._save([aboard.name for unit in self._of(kin) for aboard in unit.assignment if aboard.samples])
        units = self._of(kin)  # without those that have failed at that
        # What rounding does depends on a member's row: not on who came aboard first.
        assignment = sorted((aboard for unit in units for aboard in unit.assignment), key=lambda aboard: aboard.name)
        kin.go_on_with(wanted)
        kin.forget_rounds()
        if assignment:
            self._regroup(kin, units, divided(assignment, wanted.size))
        return events

    def let_go(self, names: Collection[str]) -> None:
        """These members leave; those that are left of a program close up."""
        for unit in [unit for unit in self._units if not set(names).isdisjoint(unit.names)]:
            left = [aboard for aboard in unit.assignment if aboard.name not in names]
            self._regroup(unit.kin, [unit], [left] if left else [])

    def _regroup(self, kin: Kin | None, units: Sequence[Unit], parts: Sequence[Sequence[Aboard]]) -> None:
        """Put units of these parts in the place of others; of one member each where that cannot be."""
        at = self._units.index(units[0])
        for unit in units:
            unit.program.release()
            self._units.remove(unit)
        made, error = list[Unit](), None
        try:
            for part in parts:
                made.append(Unit.of(part, kin, self._compilation(kin)))
        except Exception as raised:  # boundary between members' code and ours
            memory, error = out_of_memory(raised), reason_of(raised)
        if kin is not None and error is not None:
            for unit in made:
                unit.program.release()
            self._refuse(kin, max(map(len, parts)), error, memory=memory)
            kin.go_on_with(ALONE)
            made = [Unit.of([aboard], kin) for part in parts for aboard in part]
        self._units[at:at] = made


def weight_bytes(live: LiveMember) -> int:
    """Of what a member trains."""
    return sum(weight.numel() * weight.itemsize for weight in live.model.parameters() if weight.requires_grad)
