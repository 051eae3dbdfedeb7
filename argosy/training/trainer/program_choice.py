"""Program choice: which members of a device are stepped by one program, and by which kind, depending on costs measured in training steps.

Contract. Instances change only here, and only between two steps. Members that change programs are saved first if their results show
which one stepped them, and the new programs are reported after these files and before their first step. The journal therefore shows for
each such file which program stepped the member from there on, and a member that is assigned again is stepped as before.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field

from argosy.protocol.events import Event
from argosy.protocol.packs import FellBack, Packed, StepsAlone
from argosy.protocol.trainer import SectionReport
from argosy.stream.blocks import Block
from argosy.stream.heartbeat import Heartbeat
from argosy.training.choice.admission import PassedChecks, admit
from argosy.training.choice.copies import hide_step_warning
from argosy.training.choice.fusion_group import ALONE, FusionGroup, Kind, ProgramCandidate, divide_evenly
from argosy.training.choice.rehearsal import needs_copies, rehearse
from argosy.training.device.attempts import attempt
from argosy.training.device.devices import memory_left
from argosy.training.member.live import LiveMember
from argosy.training.programs.fused.compiled import Compilation
from argosy.training.programs.graphed.capturable import why_not_captured
from argosy.training.trainer.assigned import AssignedMember
from argosy.training.trainer.program_instances import ProgramInstance, Round

__all__ = ["ProgramChoice", "weight_bytes"]

MIN_PAIRS = 2
"""Least number of pairs of members to measure. If none was faster as one program, no more are measured, which would cost a short trial much."""
TWO = ProgramCandidate(2)


@dataclass(eq=False)
class ProgramChoice:
    """Chooses programs for one trainer's `instances`."""

    _device: str
    _instances: list[ProgramInstance]
    _emit: Callable[[SectionReport], None]
    _save: Callable[[Collection[str]], list[Event]]
    _heartbeat: Heartbeat
    _check_device: Callable[[str], None]
    """Raises if the device is unusable; an error is then no reason to refuse a program."""
    _: KW_ONLY
    allowed: bool
    kinds: Sequence[Kind] = ("plain",)
    """Kinds of programs that this device may use, simplest first."""
    _newcomers: bool = field(default=False, init=False)
    """Whether a member was assigned since the last `form_groups`."""
    _waits: bool = field(default=False, init=False)
    """Whether a group waits for a block on which copies of its members are measured."""
    _admitted: PassedChecks = field(default_factory=dict, init=False)
    _compilations: dict[FusionGroup, Compilation] = field(default_factory=dict, init=False)
    """Compiled passes, of groups that may be compiled."""
    _pairs: dict[FusionGroup, bool] = field(default_factory=dict, init=False)
    """Whether one program was faster, for groups that were measured in pairs."""
    _alone: dict[str, str] = field(default_factory=dict, init=False)
    """Reported reasons why members do not share a program."""
    _fallen: set[FellBack] = field(default_factory=set, init=False)
    """Reports of programs that were given up."""

    def note_assigned(self) -> None:
        """Note that a member was assigned."""
        self._newcomers = self.allowed

    # ---- which members are a fusion group

    def form_groups(self, block: Block) -> None:
        """Find assigned members that can share a program, if there are new ones; called before the steps of a training block.

        Also choose programs for groups that wait to be measured on copies. A block without sound samples (the end of an epoch whose
        steps are all made) cannot be used for either.
        """
        if not (self._newcomers or self._waits) or not block.sound.any():
            return
        if self._newcomers:
            self._newcomers = False
            self._form(block)
        self.settle(block)

    def _form(self, block: Block) -> None:
        """Form fusion groups, position by position, and report why the other members are alone."""
        by_position: dict[tuple[int, int], list[ProgramInstance]] = {}
        for instance in self._instances:
            if instance.shard is None:
                by_position.setdefault(instance.assignment[0].stream_position, []).append(instance)
        reasons: dict[str, str] = {}
        for instances in by_position.values():
            names = ", ".join(repr(instance.names[0]) for instance in instances)
            with self._heartbeat.busy(f"checking which of {names} can be one program", opaque=True):
                reasons |= self._admit(instances, block)
        before, self._alone = self._alone, reasons
        fresh = {name: reason for name, reason in reasons.items() if before.get(name) != reason}
        if fresh and len(self._instances) > 1:
            self._emit(SectionReport(events=(StepsAlone(device=self._device, reasons=fresh),)))

    def _admit(self, instances: Sequence[ProgramInstance], block: Block) -> Mapping[str, str]:
        """Form fusion groups of members at one position of the stream; returns the reasons why other members step alone."""
        lives = [assigned.live for assigned in _assigned(instances)]
        with hide_step_warning():
            compiles = "compiled" in self.kinds
            pairs = compiles or len(self._pairs) < MIN_PAIRS or any(self._pairs.values())
            before = _earlier_groups(instances)
            admission = admit(lives, block, self._admitted, single=compiles, pairs=pairs, before=before)
        self._check_device("its members were tried as one program")
        for names, lengths in (*admission.packs.items(), *admission.grouped.items()):
            members = [instance for instance in instances if instance.names[0] in names]
            alike = names in admission.packs
            known = next((instance.fusion_group for instance in members if instance.fusion_group is not None), None)
            bytes_each = max(weight_bytes(instance.assignment[0].live) for instance in members)
            fusion_group = known or FusionGroup(alike=alike, weight_bytes=bytes_each, lengths=lengths)
            if not alike:
                fusion_group.lengths = lengths
            self._join(fusion_group, members, self._kinds_of(members, alike=alike))
        for instance in [instance for instance in instances if instance.fusion_group is None]:
            kinds = self._kinds_of([instance], alike=False)
            if len(kinds) > 1:
                self._join(FusionGroup(), [instance], kinds)
        for names, reason in admission.failed.items():
            self._report_fallback(names, "fused", reason)
        return admission.alone

    def _join(self, fusion_group: FusionGroup, instances: Sequence[ProgramInstance], kinds: Sequence[Kind]) -> None:
        """Let instances join a group, whose programs may now be of these kinds; a new group gets the journaled programs."""
        is_new = not self._of(fusion_group)
        fusion_group.kinds = kinds
        for instance in instances:
            instance.fusion_group = fusion_group
        self._adopt_choices(fusion_group)
        if is_new:
            self._restore_programs(fusion_group, instances)

    def _report_fallback(self, names: Sequence[str], kind: str, reason: str) -> None:
        """Report that a faster program of these members was given up; each reason is reported once."""
        event = FellBack(device=self._device, members=tuple(sorted(names)), kind=kind, reason=reason)
        if event not in self._fallen:
            self._fallen.add(event)
            self._emit(SectionReport(events=(event,)))

    def _kinds_of(self, instances: Sequence[ProgramInstance], *, alike: bool) -> Sequence[Kind]:
        """Return the kinds of programs that may step the members of these instances; `alike` if the members passed the check together."""
        may_be: dict[Kind, bool] = {"plain": True, "compiled": alike}
        if "graphed" in self.kinds:
            may_be["graphed"] = all(map(_may_be_captured, instances))
        return [kind for kind in self.kinds if may_be[kind]]

    def _compilation(self, fusion_group: FusionGroup | None) -> Compilation | None:
        if fusion_group is None or fusion_group.now.kind != "compiled":
            return None
        return self._compilations.setdefault(fusion_group, Compilation())

    def _adopt_choices(self, fusion_group: FusionGroup) -> None:
        """Give the group the choices of earlier runs for its members; if they differ, that of the first member by name is used."""
        members = sorted(_assigned(self._of(fusion_group)), key=lambda one: one.name)
        kinds: Sequence[Kind] = fusion_group.kinds if fusion_group.alike else ("grouped",)
        # For different members stepped alone, it is unknown whether their steps were captured.
        alone = fusion_group.alike or tuple(fusion_group.kinds) == (ALONE.kind,)
        fusion_group.chosen = {
            choice.members: ProgramCandidate(choice.size, kind) if choice.size > 1 or kind != "grouped" else ALONE
            for assigned in reversed(members)
            for choice in assigned.chosen
            for kind in kinds
            if kind == choice.kind and (choice.size > 1 or alone)
        }

    def _restore_programs(self, fusion_group: FusionGroup, instances: Sequence[ProgramInstance]) -> None:
        """Restore the journaled programs, if they are the same for all of these members."""
        assignment = _assigned(instances)
        packed = assignment[0].packed
        if packed is None or any(assigned.packed != packed for assigned in assignment):
            return
        by_name = {assigned.name: assigned for assigned in assignment}
        parts = [part for names in packed.programs if (part := [by_name[name] for name in names if name in by_name])]
        kinds: Sequence[Kind] = fusion_group.kinds if fusion_group.alike else (*fusion_group.kinds, "grouped")
        fusion_group.refused = {kind: packed.refused[kind] for kind in kinds if kind in packed.refused}
        same = next((kind for kind in kinds if kind == packed.kind), None)
        fusion_group.now = ProgramCandidate(max(map(len, parts)), same or "plain")
        fusion_group.settled_for = sum(map(len, packed.programs)) if packed.settled and same else 0
        if packed.reason:
            fusion_group.fits, fusion_group.reason = fusion_group.now.size, packed.reason
        self._regroup(fusion_group, instances, parts)

    # ---- how they are stepped

    def settle(self, block: Block | None = None) -> None:
        """End rounds and change programs; called after all instances have had their turn at a block.

        Groups that must be measured on copies wait for a call with a `block` of training samples, before its steps.
        """
        self._waits = False
        groups = (instance.fusion_group for instance in self._instances if instance.fusion_group is not None)
        for fusion_group in dict.fromkeys(groups):
            instances, compilation = self._of(fusion_group), self._compilation(fusion_group)
            if compilation is not None and compilation.refused:
                names = [name for instance in instances for name in instance.names]
                self._report_fallback(names, "compiled", compilation.refused)
                fusion_group.refuse("compiled", compilation.refused)
            count = sum(len(instance.assignment) for instance in instances)
            rounds = [instance.round for instance in instances if instance.round is not None]
            if fusion_group.needs_choice(count) and not (rounds and all(one.steps_left for one in rounds)):
                if rounds:
                    seconds, samples = sum(one.seconds for one in rounds), sum(one.samples for one in rounds)
                    needs = [one.need for one in rounds if one.need is not None]
                    fusion_group.note(seconds, samples, max(needs, default=None))
                self._next_candidate(fusion_group, count, block)

    def handle_error(self, instance: ProgramInstance, error: str, *, memory: bool) -> None:
        """Handle an error in a step of several members, after the step was undone; `settle` then chooses another program for them."""
        assert instance.fusion_group is not None
        instance.broke = True
        self._refuse(instance.fusion_group, len(instance.assignment), error, memory=memory)

    def _refuse(self, fusion_group: FusionGroup, size: int, error: str, *, memory: bool) -> None:
        """Rule out the present kind of program. Of plain programs, rule out all sizes above 1, or above half of `size` if memory ran out."""
        if not memory:
            names = [name for instance in self._of(fusion_group) for name in instance.names]
            self._report_fallback(names, "fused" if fusion_group.now.kind == "plain" else fusion_group.now.kind, error)
        if fusion_group.now.kind == "plain":
            fusion_group.restrict(max(size // 2, 1) if memory else 1, f"{size} in a program: {error}")
        else:
            fusion_group.refuse(fusion_group.now.kind, error)
        for instance in self._of(fusion_group):
            instance.round = None

    def failed(self, name: str) -> None:
        """Allow fused programs again, because the member that failed alone may have caused the error of its group's program."""
        fusion_group = next((instance.fusion_group for instance in self._instances if name in instance.names), None)
        if fusion_group is not None and fusion_group.fits == 1:
            fusion_group.restrict(FusionGroup().fits, "")

    def _of(self, fusion_group: FusionGroup) -> list[ProgramInstance]:
        return [instance for instance in self._instances if instance.fusion_group is fusion_group]

    def _next_candidate(self, fusion_group: FusionGroup, count: int, block: Block | None) -> None:
        """Switch to the next candidate, for timing or permanently."""
        fusion_group.estimate_fit(count, self._room(fusion_group))
        instances = self._of(fusion_group)
        lives = [assigned.live for assigned in _assigned(instances)]
        if fusion_group.is_undecided(count) and needs_copies(fusion_group, lives):
            if block is not None:
                self._rehearse(fusion_group, lives, block)
            elif not any(instance.broke for instance in instances):  # a broken instance needs another program at once
                self._waits = True
                return
        wanted, events = fusion_group.next(count), list[Event]()
        present = [(len(instance.assignment), instance.kind) for instance in self._of(fusion_group)]
        changes = present != [(len(part), wanted.kind) for part in divide_evenly(range(count), wanted.size)]
        if changes:
            events = self._change(fusion_group, wanted)
        else:
            fusion_group.switch_to(wanted)
        instances, measures = self._of(fusion_group), fusion_group.now != wanted or fusion_group.needs_measuring(count)
        for instance in instances:
            instance.round = Round() if measures and fusion_group.now == wanted else None
        if not measures:
            fusion_group.settled_for = count
            if {ALONE, TWO} <= fusion_group.costs.keys():
                self._pairs[fusion_group] = fusion_group.costs[TWO] < fusion_group.costs[ALONE]
        if changes or (not measures and (fusion_group.costs or fusion_group.chosen)):
            packed = self._make_packed(fusion_group, instances, settled=not measures)
            self._emit(SectionReport(events=(*events, packed)))

    def _rehearse(self, fusion_group: FusionGroup, lives: Sequence[LiveMember], block: Block) -> None:
        """Measure the group's candidates on copies; candidates that raise are ruled out."""
        names = ", ".join(repr(live.member.name) for live in lives)
        while fusion_group.is_undecided(len(lives)):
            with (
                self._heartbeat.busy(f"measuring programs of copies of {names}", opaque=True),
                attempt(lambda error: self._check_device(f"a program of copies raised: {error!r}")) as tried,
            ):
                rehearse(fusion_group, lives, block)
            if not tried.error:
                return
            if fusion_group.now == ALONE:
                fusion_group.restrict(1, "")  # the member's own step will raise it
            else:
                self._refuse(fusion_group, fusion_group.now.size, tried.error, memory=tried.memory)

    def _room(self, fusion_group: FusionGroup) -> int | None:
        """Return the bytes left on the device for this group's tensors; None if the device does not count them.

        Memory held by captured steps of other groups is not available; that of the group's own is freed when its programs change.
        """
        backend = self._of(fusion_group)[0].assignment[0].live.backend
        in_use = backend.memory_in_use()
        if in_use is None:
            return None
        kept = sum(instance.kept_bytes for instance in self._instances if instance.fusion_group is not fusion_group)
        return memory_left(backend, in_use + kept)

    def _make_packed(self, fusion_group: FusionGroup, instances: Sequence[ProgramInstance], *, settled: bool) -> Packed:
        known = sorted(fusion_group.costs.items())
        return Packed(
            device=self._device,
            programs=tuple(instance.names for instance in instances),
            settled=settled,
            seconds_per_sample=tuple((size, seconds) for (size, kind), seconds in known if kind == "plain"),
            step_bytes=tuple(
                (size, need)
                for (size, kind), need in sorted(fusion_group.needs.items())
                if kind == fusion_group.now.kind
            ),
            reason=fusion_group.reason,
            kind=fusion_group.now.kind,
            seconds_by_kind=tuple((kind, size, seconds) for (size, kind), seconds in known if kind != "plain"),
            refused=dict(fusion_group.refused),
            exact=fusion_group.now == ALONE
            or (fusion_group.now.kind in ("plain", "grouped") and fusion_group.lengths is not None),
            shows=fusion_group.shows,
            unlike=not fusion_group.alike,
        )

    def _change(self, fusion_group: FusionGroup, wanted: ProgramCandidate) -> list[Event]:
        """Put the group's members into other programs, and save them first if that shows in their results."""
        begun = [assigned.name for assigned in _assigned(self._of(fusion_group)) if assigned.samples]
        events = self._save(begun) if fusion_group.shows else []
        instances = self._of(fusion_group)  # without members whose saving failed
        # Rounding depends on a member's row, and must not depend on the order of assignment.
        assignment = sorted(_assigned(instances), key=lambda one: one.name)
        fusion_group.switch_to(wanted)
        fusion_group.forget_rounds()
        if assignment:
            self._regroup(fusion_group, instances, divide_evenly(assignment, wanted.size))
        return events

    def remove_members(self, names: Collection[str]) -> None:
        """Remove members from their instances; the other members of a program continue without them."""
        for instance in [instance for instance in self._instances if not set(names).isdisjoint(instance.names)]:
            remaining = [assigned for assigned in instance.assignment if assigned.name not in names]
            self._regroup(instance.fusion_group, [instance], [remaining] if remaining else [])

    def _regroup(
        self,
        fusion_group: FusionGroup | None,
        instances: Sequence[ProgramInstance],
        parts: Sequence[Sequence[AssignedMember]],
    ) -> None:
        """Replace instances by new ones of these parts, or by one per member if a program cannot be made."""
        # Old programs are released before new ones are made: they give members' tensors memory of their own again.
        at = self._instances.index(instances[0])
        for instance in instances:
            instance.program.release()
            self._instances.remove(instance)
        created = list[ProgramInstance]()
        with attempt(lambda error: self._check_device(f"a program could not be made: {error!r}")) as tried:
            for part in parts:
                created.append(ProgramInstance.of(part, fusion_group, self._compilation(fusion_group)))
        if fusion_group is not None and tried.error:
            for instance in created:
                instance.program.release()
            self._refuse(fusion_group, max(map(len, parts)), tried.error, memory=tried.memory)
            fusion_group.switch_to(ALONE)
            created = [ProgramInstance.of([assigned], fusion_group) for part in parts for assigned in part]
        self._instances[at:at] = created


def _assigned(instances: Sequence[ProgramInstance]) -> list[AssignedMember]:
    """Return the members of these instances, in their order."""
    return [assigned for instance in instances for assigned in instance.assignment]


def _may_be_captured(instance: ProgramInstance) -> bool:
    return "graphed" in instance.fusion_group.kinds if instance.fusion_group else not why_not_captured(instance.program)


def _earlier_groups(instances: Sequence[ProgramInstance]) -> Mapping[str, bool]:
    """Return the members that were in a fusion group before, here or according to the journal, and whether it was of different ones."""
    is_unlike = {}
    for instance in instances:
        for assigned in instance.assignment:
            if instance.fusion_group is not None:
                is_unlike[assigned.name] = not instance.fusion_group.alike
            elif assigned.packed is not None:
                is_unlike[assigned.name] = assigned.packed.unlike
    return is_unlike


def weight_bytes(live: LiveMember) -> int:
    """Return the bytes of trained weights."""
    return sum(weight.numel() * weight.itemsize for weight in live.model.parameters() if weight.requires_grad)
