"""How much time each pair of members saves by sharing a device (Liu et al., Understanding and optimizing packed neural network
training for hyper-parameter tuning, 2020).

Everything runs in this process. A member alone prepares a block and steps on it; a pair prepares the block once for both. Two members
that can be one program are stepped as one, even if that is slower.
"""

import itertools
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from argosy.settings import Settings
from argosy.stream.blocks import Block, Place
from argosy.stream.opening import open_sources
from argosy.stream.schedule import Orders, choose_block_size
from argosy.study import Member, Study
from argosy.training.choice.admission import admit
from argosy.training.device.copies import DeviceCopies
from argosy.training.device.devices import Backend, open_backend
from argosy.training.device.process_state import preserve_process_state
from argosy.training.member.building import build_member
from argosy.training.member.live import LiveMember
from argosy.training.programs.fused.fused import Fused
from argosy.training.programs.program import Program
from argosy.training.programs.solo import Solo

__all__ = ["Pair", "measure_pairs"]

ROUNDS = 7
"""Rounds of timing: in each, one member, the other, and both train on a block. The first round is a warm-up."""
BATCHES = 4
"""A block holds at least this many batches of the member with the largest ones."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """Times of two members on one device; a member with a copy of itself is a pair too."""

    members: tuple[str, str]
    fused: bool
    """Whether one program stepped both; otherwise they took turns."""
    alone_seconds: tuple[float, float]
    """T_i: time of each member alone, including preparation."""
    together_seconds: float
    """T_pack: time of both, with samples prepared once."""

    @property
    def improvement(self) -> float:
        """IMP = (sum of T_i - T_pack) / sum of T_i; negative if the pair is slower than one member after the other."""
        return 1.0 - self.together_seconds / sum(self.alone_seconds)


def measure_pairs(study: Study, members: Sequence[str], device: str, settings: Settings) -> tuple[Pair, ...]:
    """Time all pairs of members on one device, including each with a copy of itself; errors of members propagate."""
    with preserve_process_state():
        torch.set_num_threads(settings.threads)
        bench = _Bench(study, open_backend(device), exact=settings.numerics == "exact")
        named = [study.member(name) for name in members]
        return tuple(bench.pair(one, other) for one, other in itertools.combinations_with_replacement(named, 2))


class _Bench:
    """Data and a device on which members are timed."""

    def __init__(self, study: Study, backend: Backend, *, exact: bool) -> None:
        self._study = study
        self._exact = exact
        self._backend = backend
        self._copies = DeviceCopies(backend, study.data.on_device)
        self._source = open_sources(study.data, seed=study.seed)["train"]
        self._orders = Orders(study.seed, {"train": self._source.length}, shards=self._source.facts.shards)
        largest = max(member.batch_size for member in study.members)
        self._rows = min(self._source.length, max(choose_block_size(self._source.layout), BATCHES * largest))
        self._epochs = itertools.count()

    def pair(self, one: Member, other: Member) -> Pair:
        """Time two members."""
        two = one, replace(other, name=f"{other.name}-again")  # because both may be the same member
        alone = [Solo(self._built(member)) for member in two]
        together, fused = self._together([self._built(member) for member in two])
        rounds = [(self._seconds(alone[:1]), self._seconds(alone[1:]), self._seconds(together)) for _ in range(ROUNDS)]
        first, second, both = (statistics.median(seconds) for seconds in zip(*rounds[1:], strict=True))
        return Pair(members=(one.name, other.name), fused=fused, alone_seconds=(first, second), together_seconds=both)

    def _built(self, member: Member) -> LiveMember:
        terms = self._study.terms
        return build_member(
            member, self._backend, study_seed=terms.seed, objective=terms.objective, mode=terms.mode, exact=self._exact
        )

    def _together(self, lives: Sequence[LiveMember]) -> tuple[Sequence[Program], bool]:
        """Return the programs that step both members, and whether it is a single one."""
        if admit(lives, self._block(next(self._epochs))).packs:
            return [Fused.of(lives)], True
        return [Solo(live) for live in lives], False

    def _seconds(self, programs: Sequence[Program]) -> float:
        """Return the seconds from the preparation of a block to the last step on it."""
        epoch = next(self._epochs)
        for program in programs:
            for live in program.members:
                live.begin_epoch(self._orders, epoch)
        self._backend.synchronize()
        began = time.perf_counter()
        block = self._block(epoch)
        for program in programs:
            with program.active():
                for batch in program.cut(block):
                    program.begin(batch)
                    program.finish()
        self._backend.synchronize()
        return time.perf_counter() - began

    def _block(self, epoch: int) -> Block:
        """Return the first samples of an epoch, on the device."""
        place = Place(leg=0, split="train", epoch=epoch, section=0, start=0, rows=self._rows, last=False)
        memory = self._source.layout.memory(self._rows)
        self._source.fill(self._source.layout.block(place, memory), 0, self._orders.block(place))
        self._copies.release_done()
        return self._copies.start(self._source.layout.block(place, memory))
