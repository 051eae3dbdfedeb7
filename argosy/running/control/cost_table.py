"""Costs of members and of all-reduces: which have to be measured, which are known, and the resulting profiles."""

import functools
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch.nn.modules.loss import _Loss

from argosy.cluster import Cluster
from argosy.profiles import Profile, largest_measured_group
from argosy.protocol.events import Cloned, SectionEnded
from argosy.protocol.packs import Packed
from argosy.protocol.trainer import Measure, Measured, SumsTimed, TimeSums
from argosy.results.fold import MemberState, RunState
from argosy.running.control.costs import Link, ObservedRates, even_out, fusion_digest, profile_of
from argosy.settings import Settings
from argosy.study import FACTORIES, Member, Study

__all__ = ["AllReduceTiming", "CostTable"]

MOST_RANKS = 4
"""Largest number of devices that is measured; costs of larger groups are extrapolated (FLEET's Equation 5)."""
WORTH_A_CORRECTION = 0.1
"""Relative difference at which plans switch to the observed rate of members; smaller differences are noise."""


@dataclass(eq=False, kw_only=True)
class CostTable:
    """Measures each kind of work once: one member stands for all that do the same."""

    device_kind: str
    node_devices: int | None = None
    """Devices per node, if members are measured as in FLEET."""
    groups: int = 1
    """Number of devices of the largest group that is measured."""
    link: Link | None = None
    """Cost of an all-reduce between devices; without it no member is split."""
    unsplit: str = ""
    """Why no member is split, although there are several devices."""
    observed: ObservedRates = field(default_factory=ObservedRates)
    samples_per_epoch: int | None = field(default=None, init=False)
    """Samples per stream epoch; None until the data are open."""
    measured: dict[str, Measured] = field(default_factory=dict, init=False)
    missing: set[str] = field(default_factory=set, init=False)
    """Members whose costs are unknown."""
    revision: int = field(default=0, init=False)
    """Increases whenever profiles may have changed."""
    _asked: dict[str, str] = field(default_factory=dict, init=False)
    """Missing members that are being measured, with their devices."""
    _suspects: set[str] = field(default_factory=set, init=False)
    """New members whose trainer was lost before it had measured them."""
    _large: set[object] = field(default_factory=set, init=False)
    """Kinds of work for which no device had enough memory beside training members."""
    _works: dict[str, object] = field(default_factory=dict, init=False)
    _parts: dict[str, tuple[float, int]] = field(default_factory=dict, init=False)
    """By member of a program: its share of the program's seconds per sample, and of the bytes of a step."""
    _profiles: dict[object, Profile] = field(default_factory=dict, init=False)
    """Cache of the profiles of all known kinds of work; cleared when another member becomes known."""
    _trained: dict[object, tuple[int, float]] = field(default_factory=dict, init=False)
    """Samples and seconds trained in this run, by kind of work."""
    _rates: dict[object, float] = field(default_factory=dict, init=False)
    """Rates that plans use instead of the measured ones, by kind of work."""

    @classmethod
    def of(cls, settings: Settings, cluster: Cluster, *, side_by_side: bool) -> "CostTable":
        """Return what a run measures of its members: shards too, if there are devices to split them over."""
        devices, exact, unsplit = len(cluster.devices), settings.numerics == "exact", ""
        if devices > 1 and exact:
            unsplit = "numerics is 'exact', and sums over devices round differently"
        elif devices > 1 and not side_by_side:
            unsplit = "this launcher steps its devices one after another"
        groups = 1 if unsplit else min(devices, MOST_RANKS)
        observed = ObservedRates(exact=exact)
        return cls(device_kind=cluster.devices[0].kind, groups=groups, unsplit=unsplit, observed=observed)

    @property
    def shapes(self) -> dict[str, str]:
        """Digests of the parameters' names and shapes, by member."""
        return {name: costs.parameter_shapes for name, costs in self.measured.items()}

    def request_costs(self, members: Iterable[Member]) -> None:
        """Request the costs of members; some may be known from equal members."""
        for member in members:
            self._works[member.name] = _work_key(member)
            if member.name not in self.measured:
                self.missing.add(member.name)
        for name in list(self.measured):
            if not self.missing:
                break  # of thousands of trials alike the first stands for those that join
            self._copy_to_equal_work(name)

    def copy_costs(self, cloned: Cloned) -> None:
        """Let a clone have the costs of its source if only numbers of the optimizer differ, which cost nothing.

        Numbers of a loss or an augmentation may decide whether it draws random numbers, so such a clone is measured.
        """
        if cloned.source in self.measured and all(name.startswith("optimizer.") for name in cloned.changes):
            self.measured[cloned.member] = replace(self.measured[cloned.source], member=cloned.member)
            self._profiles.clear()

    def forget(self, member: str) -> None:
        """Stop asking for a member's costs."""
        self.missing.discard(member)
        self._asked.pop(member, None)
        self._suspects.discard(member)

    def remove(self, names: Iterable[str]) -> None:
        """Remove members that could not join; a later member with one of their names is a different one."""
        for name in names:
            self.forget(name)
            self._works.pop(name, None)
            self.measured.pop(name, None)
        self._clear_profiles()

    def keep_requests_on(self, devices: Collection[str]) -> None:
        """Note that only these devices keep measuring; the others get no data to measure on, or are told to stop."""
        self._asked = {name: device for name, device in self._asked.items() if device in devices}

    def handle_lost_trainer(self, device: str, newcomers: Collection[str]) -> str | None:
        """Handle the loss of a trainer that a newcomer may have caused; return the newcomer if it certainly did.

        From now on its newcomers are measured one at a time; the one whose trainer is lost again is the cause.
        """
        names = [name for name, asked in self._asked.items() if asked == device and name in self.missing]
        for name in names:
            del self._asked[name]
        if len(names) == 1 and names[0] in self._suspects:
            return names[0]
        self._suspects.update(name for name in names if name in newcomers)
        return None

    def note_too_large(self, member: str) -> None:
        """Note that a member did not fit beside training members: its kind is measured when none trains."""
        self._large.add(self._works[member])
        self._asked.pop(member, None)

    def handle(self, measured: Measured) -> None:
        """Handle a trainer's measurement."""
        self.measured[measured.member] = measured
        self._clear_profiles()
        self.forget(measured.member)
        self._copy_to_equal_work(measured.member)

    def crowded(self, member: str, memory_bytes: int) -> None:
        """Note that a member ran out of memory beside others: it needs a device of its own."""
        self.measured[member] = replace(self.measured[member], memory_bytes=memory_bytes)
        # Other members of its kind did not run out of memory, and no longer stand for it.
        self._works[member] = (self._works[member], member)
        self._clear_profiles()

    def note_program_costs(self, packed: Packed) -> None:
        """Note the measured costs of a program of several members; plans charge each member its share."""
        seconds, needs = packed.seconds.get((packed.kind, packed.size)), dict(packed.step_bytes)
        for names in packed.programs:
            for name in names:
                self._parts.pop(name, None)
                if packed.settled and (len(names) > 1 or packed.kind != "plain") and seconds is not None:
                    self._parts[name] = seconds, needs.get(packed.size, 0)
        self._clear_profiles()

    def _copy_to_equal_work(self, name: str) -> None:
        work = self._works.get(name)
        for other in [other for other in sorted(self.missing) if work is not None and self._works[other] == work]:
            self.measured[other] = replace(self.measured[name], member=other)
            self._clear_profiles()
            self.missing.discard(other)

    def representatives(self, *, beside: bool) -> list[str]:
        """Return the members to measure next: one of each kind of work with missing costs; with `beside`, those that may fit beside training members.

        A suspect is measured alone to show whether it causes the loss of its trainer.
        """
        pending = [name for name in self._asked if name in self.missing]
        first = {self._works[name]: name for name in pending}
        for name, work in self._works.items():
            if name in self.missing and not (beside and work in self._large):
                first.setdefault(work, name)
        wanted = [name for name in first.values() if name not in self._asked]
        sound = [name for name in wanted if name not in self._suspects]
        return sound or ([] if pending else wanted[:1])

    def commands(
        self, devices: Sequence[str], assignment: int | None, accumulate: Callable[[str], int]
    ) -> dict[str, Measure]:
        """Return what each device measures; a device without members still has to release the block of an earlier assignment."""
        wanted, shares = self.representatives(beside=assignment is None), {}
        for number, device in enumerate(devices):
            share = tuple(wanted[number :: len(devices)])
            self._asked |= dict.fromkeys(share, device)
            micro = {name: accumulate(name) for name in share}
            thorough = self.node_devices is not None
            shares[device] = Measure(
                assignment=assignment, members=share, accumulate=micro, thorough=thorough, groups=self.groups
            )
        return shares

    def request_groups(self, names: Sequence[str]) -> bool:
        """Return whether groups of up to M_t devices have to be measured, now that the rates on one device are known (FLEET §6.1)."""
        if self.node_devices is None or self.groups > 1 or not names:
            return False
        rates = [self.measured[name].samples_per_second for name in names]
        self.groups = largest_measured_group(rates, node_devices=self.node_devices)
        self.measured.clear()
        self.missing |= set(names)
        self.keep_requests_on(())
        return True

    # ---- profiles

    def _clear_profiles(self) -> None:
        self._profiles.clear()
        self.revision += 1

    def profiles(self, names: Iterable[str], study: Study) -> list[Profile]:
        """Return the known profiles of these members; rates are in samples of the stream, of which a subset uses only some."""
        if not self._profiles:
            first = self.first_of_each_work(study)
            evened = even_out([self.profile(member) for member in first.values()], first.values(), self.measured)
            self._profiles = dict(zip(first, evened, strict=True))
        return [self._for_plans(name, study.member(name)) for name in names if self._works.get(name) in self._profiles]

    def _for_plans(self, name: str, member: Member) -> Profile:
        """Return a member's profile at the costs of its program, the observed rate of its kind of work, and the pace of the stream."""
        work = self._works[name]
        known = self._profiles[work]
        profile = known if known.member == name else replace(known, member=name)
        if name in self._parts:
            seconds, needs = self._parts[name]
            rates = (1.0 / seconds, *profile.samples_per_second[1:])
            profile = replace(profile, samples_per_second=rates, program_bytes=needs)
        if work in self._rates:
            profile = profile.observed(self._rates[work], weight=1.0)
        if member.subset is not None and self.samples_per_epoch is not None:
            steps_on = len(member.subset) / self.samples_per_epoch
            profile = profile.observed(profile.rate(1) / steps_on, weight=1.0)
        return profile

    def update_rate(self, ended: SectionEnded, state: MemberState) -> None:
        """Update the rate of a member's kind of work after a section, validation included."""
        if not _is_timed_alone(state):
            return
        work = self._works.get(ended.member)
        samples, seconds = self._trained.get(work, (0, 0.0))
        samples, seconds = samples + ended.samples, seconds + ended.seconds
        if samples and seconds:
            self._trained[work] = samples, seconds
            rate = samples / seconds
            before = self._rates.get(work, self._profiles[work].rate(1) if work in self._profiles else rate)
            if abs(rate / before - 1.0) > WORTH_A_CORRECTION:
                self._rates[work] = rate
                self.revision += 1

    def first_of_each_work(self, study: Study) -> dict[object, Member]:
        """Return the first known member of each kind of work, which stands for the others."""
        firsts: dict[object, Member] = {}
        for member in study.members:
            if member.name in self.measured:
                firsts.setdefault(self._works[member.name], member)
        return firsts

    def remember(self, state: RunState, study: Study) -> None:
        """Keep the observed rates for the plans of later runs."""
        for member in self.first_of_each_work(study).values():
            result = state.member(member.name)
            if result.sections and _is_timed_alone(result):
                self.observed.remember(self.profile(member), member, self.measured[member.name], result.sections[-1])

    def profile(self, member: Member) -> Profile:
        """Return the profile of one member, at the rate that runs have observed."""
        measured = self.measured[member.name]
        profile = profile_of(
            measured,
            batch_size=member.batch_size,
            device_kind=self.device_kind,
            node_devices=self.node_devices or 4,
            link=self.link,
        )
        return replace(self.observed.refresh(profile, member, measured), alike=fusion_digest(member, measured))

    def note_divided(self, member: str) -> None:
        """Note that the batches of a member will be divided, about which it may have been measured to be unusual."""
        measured = self.measured.get(member)
        if measured is not None and measured.if_divided not in ("", *measured.notes):
            self.measured[member] = replace(measured, notes=(*measured.notes, measured.if_divided))

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on unusual members."""
        unusual = [f"{name}: {note}" for name, measured in self.measured.items() for note in measured.notes]
        whole = [f"{name}: not split, because {m.whole}" for name, m in self.measured.items() if m.whole]
        return (*unusual, *whole, *([f"no member is split: {self.unsplit}"] if self.unsplit else []))

    @property
    def may_split(self) -> bool:
        """Whether some member may be split, so that the cost of an all-reduce matters."""
        return any(m.shard_seconds and not m.whole for m in self.measured.values())

    def set_link(self, link: Link) -> None:
        """Set the cost of an all-reduce."""
        self.link = link
        self._clear_profiles()


class AllReduceTiming:
    """Lets trainers time all-reduces over their group."""

    def __init__(self) -> None:
        self._asked: tuple[str, ...] = ()
        self._found: dict[str, SumsTimed] = {}
        self.over: bool = False
        """Whether timing is finished."""

    def commands(self, devices: Sequence[str], rendezvous: Callable[[], str]) -> dict[str, TimeSums]:
        """Return commands for the first of these devices; none while an earlier request is pending."""
        if self._asked:
            return {}
        self._asked, self._found = tuple(devices)[:MOST_RANKS], {}
        size, where = len(self._asked), rendezvous()
        return {device: TimeSums(rendezvous=where, rank=rank, size=size) for rank, device in enumerate(self._asked)}

    def forget(self) -> None:
        """Discard a request, because a trainer that was asked is lost."""
        self._asked, self._found = (), {}

    def handle(self, device: str, timed: SumsTimed) -> Link | None:
        """Handle an answer; return the result if it was the last one, else None. None also if timing failed."""
        if device not in self._asked:
            return None
        self._found[device] = timed
        if len(self._found) < len(self._asked):
            return None
        self.over = True
        short = max(answer.short_seconds for answer in self._found.values())
        long = max(answer.long_seconds for answer in self._found.values())
        return Link.measured(len(self._asked), short, long) if long < math.inf else None


def _work_key(member: Member) -> object:
    """Return what decides the work of a member's steps; equal for members that do the same work."""
    factories = [getattr(member, name) for name in FACTORIES]
    sizes = (member.batch_size, member.accumulate, member.precision, member.clip_grad_norm is None, member.average)
    rows = member.batch_size if member.subset is None else min(member.batch_size, len(member.subset))
    # Metrics and validations cost little, but measuring a member also tries them, on a batch of a size that it will see.
    size, subset = member.eval_batch_size or member.batch_size, member.val_subset
    validated = size if subset is None else (size, len(subset) > size, len(subset) % size > 0)
    return (*map(_factory_key, (*factories, *member.metrics.values())), *sizes, rows, validated)


def _factory_key(factory: Any) -> object:
    """Return a key that is equal for factories that build the same except for a learning rate, which costs nothing."""
    if isinstance(factory, functools.partial):
        bound = sorted(factory.keywords.items())
        if not all(
            isinstance(value, bool | int | float | str | None) for value in (*factory.args, *factory.keywords.values())
        ):
            return id(factory)
        bound = [(name, None if name == "lr" else value) for name, value in bound]
        return (_factory_key(factory.func), factory.args, tuple(bound))
    if isinstance(factory, _Loss) and type(factory).__module__ == _Loss.__module__ and not factory.state_dict():
        numbers = {name: value for name, value in vars(factory).items() if not name.startswith("_")}
        return (type(factory), repr(sorted(numbers.items())))
    code = getattr(factory, "__code__", None)
    if code is None or factory.__closure__ or factory.__defaults__ or factory.__kwdefaults__:
        return id(factory)
    # The same names in another module, and methods of another object, may compute something else.
    return (id(factory.__globals__), id(getattr(factory, "__self__", None)), code)


def _is_timed_alone(state: MemberState) -> bool:
    """Return whether a member's time covers exactly its own steps; that of a split member covers one of its shards."""
    packed = state.packed
    return state.split is None and (packed is None or (packed.size == 1 and packed.kind == "plain"))
