"""The equivalence check of programs of several: members may be one program if together they get the results that they get alone.

Copies of the members make steps and evaluations on real batches, each alone and all together. On a CPU the results of most networks
are equal to the bit, on batches of each length that the members will see. Then the program makes batches of those lengths as one, and
no result shows whether a member was fused. Otherwise one step and one evaluation are compared up to rounding, in float64 if the
members' code allows it, which separates rounding from real differences. The check finds silent errors of vectorised code: buffers that
a module reassigns, draws from Python's and NumPy's generators, state that a module keeps in attributes.
"""

import itertools
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from argosy.errors.wording import format_bytes
from argosy.stream.batches import Cutter
from argosy.stream.blocks import Block
from argosy.stream.padding import batch_form
from argosy.training.choice.copies import copy_for_trial, fill_block, restart_cutters
from argosy.training.device.attempts import Attempt, attempt
from argosy.training.device.equivalence import DOUBLE, ComparedPair, difference, gradient_pairs, rounding_share
from argosy.training.member.live import BatchLengths, LiveMember
from argosy.training.programs.fused.fingerprint import watch_behaviour
from argosy.training.programs.fused.fused import Fused
from argosy.training.programs.fused.grouped import Grouped
from argosy.training.programs.fused.several import ProgramOfSeveral
from argosy.training.programs.program import Program, UnfitProgram
from argosy.training.programs.solo import Solo

__all__ = ["CheckOutcome", "have_own_batches", "check_together"]

NUMBERS, STEPS = 8000, 16
"""Weight updates to compare per member when bits are to be equal, and the most steps for that: a small network may agree by chance."""
SAMPLES = 16
"""Fewest samples to compare of each other batch length: losses and gradients of a few may agree by chance."""
MAX_BYTES = 256 * 2**20
"""Most memory for those samples. Members alone and together each get a copy of them, and training has no other use for so many."""
Comparison = Literal["bits", "float64", "float32"]
"""How results are compared, the strictest first: to the bit, or up to rounding in one of these types."""


def have_own_batches(lives: Sequence[LiveMember]) -> tuple[bool, bool]:
    """Return whether the members' batches differ, in training and in validation, because of subsets or augmentations."""
    augments = any(live.member.augment is not None for live in lives)
    train = augments or _differ([(live.cutter, live.member.subset) for live in lives])
    return train, _differ([(live.val_cutter, live.member.val_subset) for live in lives])


def _differ(cut: Sequence[tuple[Cutter | None, Sequence[int] | None]]) -> bool:
    """Return whether some members cut other batches; while a member has no cutter, any subset counts as different."""
    first = cut[0][0]
    return any(
        subset is not None if first is None or cutter is None else not first.cuts_alike(cutter)
        for cutter, subset in cut
    )


def check_together(
    lives: Sequence[LiveMember], block: Block, *, alike: bool, apart: tuple[bool, bool]
) -> "CheckOutcome":
    """Check these members as one program, first for equal bits. If memory runs out, fewer members of one architecture are checked, at least two."""
    compared = SAMPLES * sum(leaf[:1].nbytes for leaf in block.leaves)
    # If batches are padded to their longest sample, the bits at one padded length say nothing about another.
    exact = lives[0].backend.device.type == "cpu" and batch_form(block.tree) is None
    if exact and compared > MAX_BYTES:
        most = f"{SAMPLES} of them, which would be compared, take {format_bytes(compared)}, more than {format_bytes(MAX_BYTES)}"
        return CheckOutcome(reason=f"its samples are large: {most}")
    by: Comparison = "bits" if exact else "float64"
    while True:
        try:
            # Metrics may warn about training samples, which they never see otherwise; what steps warn about, real ones warn about too.
            with warnings.catch_warnings(action="ignore"):
                outcome = _compare_steps(lives, block, alike=alike, apart=apart, by=by)
        except UnfitProgram as unfit:
            outcome = CheckOutcome(reason=str(unfit))
        # Of members with different architectures each layer has to be checked, so none are left out.
        if outcome.crowded and len(lives) > 2 and alike:
            lives = lives[: len(lives) // 2]
        elif outcome.reason is None or outcome.raised or by == "float32":
            return outcome
        elif by == "bits":
            by = "float64"
        # The members' code may insist on float32, which also takes half of the memory.
        elif outcome.crowded or outcome.alone:
            by = "float32"
        else:
            return outcome


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckOutcome:
    """The outcome of one check of copies alone and together."""

    reason: str | None
    """Why the members may not be one program; None if they may."""
    alone: bool = False
    """Whether a copy raised alone."""
    failed: bool = False
    """Whether the common program raised an error other than out of memory, or gave other results."""
    raised: bool = False
    """Whether the common program raised an error other than out of memory."""
    crowded: bool = False
    """Whether memory ran out."""
    lengths: BatchLengths | None = None
    """Batch lengths with equal bits, if the check was exact."""

    @classmethod
    def of(cls, what: str, tried: Attempt, count: int, *, alone: bool = False) -> "CheckOutcome":
        """Return the outcome of an attempt that an error ended."""
        began = f"there is not enough memory to try {count} side by side:" if tried.memory else f"{what} raises"
        failed = not alone and not tried.memory
        return cls(reason=f"{began} {tried.error}", alone=alone, failed=failed, raised=failed, crowded=tried.memory)


def _compare_steps(
    lives: Sequence[LiveMember], block: Block, *, alike: bool, apart: tuple[bool, bool], by: Comparison
) -> CheckOutcome:
    """Make steps with copies, alone and together, until one differs; bits are compared on all batch lengths."""
    usual, exact, double = lives[0].usual_batch, by == "bits", by == "float64"
    equal: dict[bool, set[int]] = {True: set(), False: set()}
    share = 0.0 if exact else DOUBLE
    with attempt() as tried:  # a member's code may insist on its own types
        alone, together = (_copies(lives, double=double) for _ in range(2))
        solos = [Solo(copied) for copied in alone]
    if tried.error:
        return CheckOutcome.of("its own step", tried, len(lives), alone=True)
    with attempt() as tried:
        fused = Fused.of(together) if alike else Grouped.of(together)
    if tried.error:
        return CheckOutcome.of("as one program it", tried, len(lives))
    # The layers of different MLPs are plain and have no other effects.
    behaviours = [watch_behaviour(copied, layers=alike) for copied in alone]
    for train, length in _planned_steps(lives, usual, exact=exact):
        own = apart[0] if train else apart[1]
        batches = -(-SAMPLES // length) if exact and not (train and length == usual) else 1
        # One block for each side: a copy may write into its input.
        blocks = [fill_block(block, length * batches, apart=own, double=double) for _ in range(2)]
        with attempt(_raise_if_unfit) as tried:
            for copies in (alone, together):
                restart_cutters(copies, blocks[0], length, apart=own)
            mine = [_run(solo, blocks[0], train=train)[0] for solo in solos]
            _check_behaviour(alone, behaviours, blocks[0])
        if tried.error:
            return CheckOutcome.of("its own step", tried, len(lives), alone=True)
        with attempt(_raise_if_unfit) as tried:
            by_copy = {id(trial.live): trial for trial in _run(fused, blocks[1], train=train)}
            pairs = [(one, by_copy[id(copied)]) for one, copied in zip(mine, together, strict=True)]
            if train and by == "float32":
                share = _tolerance(lives, mine, fill_block(block, length, apart=own), length, apart=own)
            reason = next((words for one, other in pairs for words in _differences(one, other, share)), None)
        if tried.error:
            return CheckOutcome.of("as one program it", tried, len(lives))
        if reason is None:
            equal[train].add(length)
        elif not exact or (train and length == usual):
            return CheckOutcome(reason=reason, failed=True)
        elif train:
            break  # the copies are no longer equal
    lengths = BatchLengths(frozenset(equal[True]), frozenset(equal[False]), apart)
    return CheckOutcome(reason=None, lengths=lengths if exact else None)


def _raise_if_unfit(error: BaseException) -> None:
    if isinstance(error, UnfitProgram):
        raise error


def _planned_steps(lives: Sequence[LiveMember], usual: int, *, exact: bool) -> list[tuple[bool, int]]:
    """Return the steps and evaluations to compare, in order: whether each trains, and the length of its batch."""
    wanted = BatchLengths.of(lives)
    evaluated = [(False, length) for length in sorted(wanted.val, reverse=True)]
    if not exact:
        return [(True, usual), *evaluated[:1]]
    least = min(sum(weight.numel() for weight in live.model.parameters()) for live in lives)
    # Later steps also compare the state and rounding that the first step leaves.
    again = [(True, usual)] * min(max(1, NUMBERS // max(least, 1)), STEPS)
    return [(True, usual), *evaluated, *again, *((True, length) for length in sorted(wanted.train - {usual}))]


# ---- trials


def _copies(lives: Sequence[LiveMember], *, double: bool = False, nudged: bool = False) -> list[LiveMember]:
    return [copy_for_trial(live, double=double, nudged=nudged) for live in lives]


@dataclass(frozen=True, slots=True)
class FusedTrial:
    """A copy of a member after a step or an evaluation."""

    live: LiveMember
    gradients: Mapping[str, Tensor]


def _run(program: Program, block: Block, *, train: bool) -> list[FusedTrial]:
    """Step or evaluate copies on a block; returns them with the gradients of their last step, in the program's order."""
    if not train:
        with program.active(keep=True):
            deque(program.evaluate(block), maxlen=0)
        return [FusedTrial(live, {}) for live in program.members]
    gradients: list[Mapping[str, Tensor]] = []
    for live in program.members:
        live.model.train()
    with program.active():
        for batch in program.cut(block):
            program.begin(batch)
            gradients = [_gradients(program, row) for row in range(len(program.members))]
            program.finish()
    return [FusedTrial(live, own) for live, own in zip(program.members, gradients, strict=True)]


def _gradients(program: Program, row: int) -> Mapping[str, Tensor]:
    """Return copies of a member's gradients by weight, in the step begun."""
    if isinstance(program, ProgramOfSeveral):
        return {name: gradient.clone() for name, gradient in program.gradients(row).items()}
    weights = program.members[row].model.named_parameters()
    return {name: weight.grad.clone() for name, weight in weights if weight.grad is not None}


def _check_behaviour(copies: Sequence[LiveMember], behaviours: Sequence[Callable[[], str]], block: Block) -> None:
    """Raise UnfitProgram if copies wrote into their input or changed attributes."""
    if block.touched:
        raise UnfitProgram("it writes into its input")
    for copied, behaviour in zip(copies, behaviours, strict=True):
        copied.model.train()
        if changed := behaviour():
            raise UnfitProgram(f"a step changes {changed}, which is not a buffer")


# ---- differences


def _tolerance(
    lives: Sequence[LiveMember], mine: Sequence[FusedTrial], block: Block, length: int, *, apart: bool
) -> float:
    """Return the relative tolerance for `mine`, from the results of copies whose weights are an ulp away."""
    copies = _copies(lives, nudged=True)
    restart_cutters(copies, block, length, apart=apart)
    moved = [_run(Solo(copied), block, train=True)[0] for copied in copies]
    pairs = (pair for one, other in zip(mine, moved, strict=True) for pair in _result_pairs(one, other))
    return rounding_share(pairs, block.leaves)


def _result_pairs(one: FusedTrial, other: FusedTrial) -> Iterator[ComparedPair]:
    """Yield the gradients and buffers of two copies, which have the same names, as pairs to compare."""
    yield from gradient_pairs(one.gradients, other.gradients)
    other_buffers = dict(other.live.model.named_buffers())
    yield from (ComparedPair.of(f"the buffer {n!r}", b, other_buffers[n]) for n, b in one.live.model.named_buffers())


def _differences(alone: FusedTrial, fused: FusedTrial, share: float) -> Iterator[str]:
    """Yield a description of each difference, those closest to the cause first."""
    mine, theirs = alone.live, fused.live
    if not torch.equal(mine.randomness.torch_state, theirs.randomness.torch_state):
        yield "as one program, it draws different random numbers"
    if not mine.randomness.others_equal(theirs.randomness):
        yield "its steps draw from numpy or random, so all members would get the same numbers"
    if alone.gradients.keys() != fused.gradients.keys():
        names = ", ".join(sorted(alone.gradients.keys() ^ fused.gradients.keys()))
        yield f"as one program, different weights get a gradient: {names}"
        return
    filled_now = {name for name, _ in mine.model.named_buffers()} ^ {name for name, _ in theirs.model.named_buffers()}
    if filled_now:
        yield f"as one program, different buffers are filled: {', '.join(sorted(filled_now))}"
        return
    values: list[tuple[str, Tensor, Tensor]] = []
    # As float32, most sums that differ in a sample's last bit are equal.
    wide = partial(torch.tensor, dtype=torch.float64)
    if not share:
        weights = dict(theirs.model.named_parameters())
        values += [(f"the weight {n!r}", w.detach(), weights[n]) for n, w in mine.model.named_parameters()]
        averages = [[] if live.averaged is None else live.averaged.values for live in (mine, theirs)]
        values += [("an averaged weight", value, other_value) for value, other_value in zip(*averages, strict=True)]
    trained, validated = (mine.train.sums, theirs.train.sums), (mine.val.values(), theirs.val.values())
    for split, (one, other) in (("training", trained), ("validation", validated)):
        values += [(f"the {split} {n}", wide(v), wide(other[n])) for n, v in one.items()]
    what = difference([*_result_pairs(alone, fused), *itertools.starmap(ComparedPair.of, values)], share)
    if what is not None:
        yield f"as one program, {what} differs from that of the member alone"
