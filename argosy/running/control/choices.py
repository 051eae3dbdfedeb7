"""Reuses choices that earlier runs made by measured times, so that the same command gives the same bits.

Measured times decide which program steps members whose bits depend on it, and which devices share a member. Earlier answers to the same
question are reused: from this run's own journal, else from the run that `Settings.like` names, else from this machine's cache. If none
of them has an answer, it is measured and kept. Everything else that a policy is asked follows from the journal.
"""

import contextlib
import hashlib
import json
import platform
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch.backends.cpu import get_cpu_capability

from argosy.cluster import Cluster
from argosy.disk.cached import Cached, choices_folder
from argosy.disk.files import user_path
from argosy.errors import PlanError, StudyError
from argosy.errors.warned import warn_caller
from argosy.planning import Policy, Situation
from argosy.plans import Flotilla, Placement, Plan
from argosy.profiles import Profile
from argosy.protocol.events import PolicyAnswered
from argosy.protocol.packs import Chosen, Packed
from argosy.results.fold import RunState
from argosy.running.directory.journal import read_journal
from argosy.running.directory.versions import versions
from argosy.settings import Settings
from argosy.version import __version__

__all__ = ["Choices", "warn_of_other_bits"]

DECIDING = ("threads", "numerics", "packing", "compile")
"""Settings on which choices and bits depend."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptPrograms:
    """Programs chosen on this machine for one kind of members."""

    chosen: tuple[Chosen, ...]


class Choices:
    """Choices of earlier runs that are available to one run."""

    def __init__(
        self, settings: Settings, cluster: Cluster, own: RunState, like: RunState | None, work_of: Callable[[str], str]
    ) -> None:
        self._work_of = work_of
        """Returns a digest of what decides the time of a member's steps."""
        self.policy: str = settings.policy
        self._pending: list[PolicyAnswered] = []
        """Answers that are not in the journal yet."""
        self._like_name = settings.like
        self._own = own
        self._like = like
        self._like_programs: dict[str, dict[tuple[int, bool], Chosen]] = {}
        """By member, then by number of members on its device and whether bits were kept."""
        for packed in () if like is None else like.packed:
            for name in chain.from_iterable(packed.programs) if packed.settled else ():
                self._like_programs.setdefault(name, {})[packed.chosen.members, packed.unlike] = packed.chosen
        folder = choices_folder()
        self._programs = Cached(folder=folder, kind=KeptPrograms)
        self._answers = Cached(folder=folder, kind=PolicyAnswered)
        kinds = sorted({device.kind for device in cluster.devices})
        deciding = [getattr(settings, name) for name in DECIDING]
        self._machine = [_processor(), torch.__version__, __version__, kinds, deciding]

    @classmethod
    def of(cls, settings: Settings, cluster: Cluster, own: RunState, work_of: Callable[[str], str]) -> "Choices":
        """Read the journal of the run that the settings name; raises StudyError if these settings cannot reproduce its bits."""
        if settings.like is None:
            return cls(settings, cluster, own, None, work_of)
        like = RunState.of(read_journal(user_path(settings.like)))
        for name, earlier in _differences(settings, like):
            raise StudyError(
                f"{name} is {getattr(settings, name)!r}, but the run {settings.like}, whose choices like= reuses, had "
                f"{earlier!r}, and its steps round differently. Set {name}={earlier!r}, or omit like=."
            )
        return cls(settings, cluster, own, like, work_of)

    def warn_if_none_is_known(self, names: Collection[str]) -> None:
        """Warn if the run to be reproduced has none of these members, as when it is another study's."""
        if self._like is not None and names and self._like.members.keys().isdisjoint(names):
            warn_caller(
                f"the run {self._like_name}, whose choices like= reuses, has none of this study's members, so everything is measured "
                "as without it. Name a run of this study, or omit like=."
            )

    # ---- programs

    def programs(self, member: str, device: str) -> tuple[Chosen, ...]:
        """Return the earlier choices for a member; of those for one number of members, this device's own is the last.

        Devices that start at the same time measure at the same time, and may choose differently.
        """
        if member in self._like_programs:
            return tuple(self._like_programs[member].values())
        kept = self._kept_programs(self._key(self._work_of(member)))
        return tuple(sorted(kept, key=lambda one: (one.device == device, one.device)))

    def _kept_programs(self, key: str) -> tuple[Chosen, ...]:
        kept = self._programs.load(key)
        return () if kept is None else kept.chosen

    def keep_programs(self, packed: Packed) -> None:
        """Keep a choice for later runs, if it affects bits and does not come from the run to be reproduced."""
        if not packed.settled or not packed.shows:
            return
        chosen, names = packed.chosen, chain.from_iterable(packed.programs)
        for key in {self._key(self._work_of(name)) for name in names if name not in self._like_programs}:
            before = self._kept_programs(key)
            if chosen not in before:
                same = chosen.device, chosen.members, packed.unlike
                others = [one for one in before if (one.device, one.members, one.kind == "grouped") != same]
                self._programs.save(key, KeptPrograms(chosen=(*others, chosen)))

    # ---- the policy

    def wrap_policy(self, policy: Policy) -> Policy:
        """Return the policy, wrapped to repeat earlier answers to the same questions."""
        return RepeatingPolicy(policy, self)

    def answer(self, question: str, members: Iterable[str]) -> PolicyAnswered | None:
        """Return the earlier answer to this question about these members; None if there is none."""
        for state in (self._own, self._like):
            if state is not None and question in state.policy_answers:
                return state.policy_answers[question]
        return self._answers.load(self._key(question, *map(self._work_of, members)))

    def note(self, answered: PolicyAnswered, members: Iterable[str]) -> None:
        """Note an answer for the journal, and keep it for later runs unless it comes from the run to be reproduced."""
        if answered.question in self._own.policy_answers or answered in self._pending:
            return
        self._pending.append(answered)
        if self._like is None or answered.question not in self._like.policy_answers:
            self._answers.save(self._key(answered.question, *map(self._work_of, members)), answered)

    def take_answers(self) -> list[PolicyAnswered]:
        """Return new answers for the journal, each once."""
        taken, self._pending = self._pending, []
        return taken

    def _key(self, *words: str) -> str:
        return Cached.key(*words, *self._machine)


def _differences(settings: Settings, run: RunState) -> Iterator[tuple[str, Any]]:
    """Return the name and the earlier value of each deciding setting that the last driver of a run had otherwise."""
    earlier = {} if run.started is None else run.started.settings
    return ((name, earlier[name]) for name in DECIDING if name in earlier and earlier[name] != getattr(settings, name))


def warn_of_other_bits(settings: Settings, state: RunState) -> None:
    """Warn if these settings, or other versions of packages, change the bits of a run that has begun."""
    before, here = {} if state.started is None else state.started.versions, versions()
    for name in ("torch", "numpy"):
        if before.get(name, here[name]) != here[name]:
            warn_caller(
                f"{name} is {here[name]}, but the run last trained with {name} {before[name]}, which may round differently. To "
                "continue it bit for bit, install that version."
            )
    for name, earlier in _differences(settings, state):
        warn_caller(
            f"{name} is {getattr(settings, name)!r}, but the run last trained with {earlier!r}, and its steps round differently. To "
            f"continue it bit for bit, set {name}={earlier!r}."
        )


class RepeatingPolicy:
    """A policy that repeats earlier answers to the same questions, if they are still possible."""

    def __init__(self, policy: Policy, choices: Choices) -> None:
        self._policy = policy
        self._choices = choices

    def launch(self, situation: Situation) -> tuple[Flotilla, ...]:
        """See `Policy.launch`."""
        question, members = self._question(situation), [profile.member for profile in situation.waiting]
        known = self._choices.answer(question, members)
        if known is not None:
            with contextlib.suppress(PlanError):  # its memory may no longer be available
                launched = _flotillas(known, situation.waiting)
                Plan.of(self._choices.policy, launched, situation.waiting, situation.free)
                self._choices.note(known, members)
                return launched
        flotillas = self._policy.launch(situation)
        answered = PolicyAnswered(question=question, flotillas=tuple(map(_placed, flotillas)))
        self._choices.note(answered, members)
        return flotillas

    def keeps(self, situation: Situation, started: Flotilla, live: tuple[Profile, ...]) -> bool:
        """See `Policy.keeps`."""
        question = self._question(situation, started, live)
        members = [profile.member for profile in (*situation.waiting, *live)]
        known = self._choices.answer(question, members)
        keeps = self._policy.keeps(situation, started, live) if known is None else known.keeps
        self._choices.note(PolicyAnswered(question=question, keeps=keeps), members)
        return keeps

    def _question(self, situation: Situation, started: Flotilla | None = None, live: Sequence[Profile] = ()) -> str:
        """Return a digest of the question without measured times; with `started`, of whether that flotilla continues."""
        words = [
            self._choices.policy,
            [[profile.member for profile in profiles] for profiles in (situation.waiting, live)],
            [[device.name for device in devices] for devices in (situation.free, situation.devices)],
            [None if flotilla is None else _placed(flotilla) for flotilla in (started, *situation.running)],
            [sorted(of.items()) for of in (situation.epochs_done, situation.epochs_left, situation.epochs_certain)],
            sorted(situation.homes.items()),
            situation.samples_per_epoch,
            situation.preparation_samples_per_second is None,
        ]
        return hashlib.sha256(json.dumps(words).encode()).hexdigest()[:32]


def _flotillas(answered: PolicyAnswered, profiles: Iterable[Profile]) -> tuple[Flotilla, ...]:
    """Return the flotillas of an answer, with the costs of these profiles."""
    known = {profile.member: profile for profile in profiles}
    return tuple(
        Flotilla(
            placements=tuple(
                Placement(member=name, devices=devices, shares=shares, seconds_per_sample=1.0).priced(known[name])
                for name, devices, shares in placements
            )
        )
        for placements in answered.flotillas
    )


def _placed(flotilla: Flotilla) -> tuple[tuple[str, tuple[str, ...], tuple[float, ...]], ...]:
    return tuple((p.member, p.devices, p.shares) for p in flotilla.placements)


def _processor() -> str:
    """Return the processor's name and the instruction set that torch's kernels use."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    name = next((line for line in lines if line.startswith("model name")), platform.machine())
    return f"{name} {get_cpu_capability()}"
