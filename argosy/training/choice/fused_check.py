"""The equivalence check of fused programs: members of one fingerprint are fused if together they get the results that they get alone.

Copies of the members make a step and an evaluation on a real batch, each alone and all together, in float64 where their code
allows it, which tells rounding from real differences. This finds silent errors of vectorised code: buffers that a module assigns
anew, draws from Python's and NumPy's generators, state that a module keeps in attributes.
"""

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from argosy.errors.traces import reason_of
from argosy.stream.batches import Cutter
from argosy.stream.blocks import Block
from argosy.stream.order import Selection
from argosy.training.device.devices import out_of_memory
from argosy.training.member.agreement import agree, largest
from argosy.training.member.live import LiveMember
from argosy.training.programs.fused.fingerprint import Fingerprint, attributes, obstacle
from argosy.training.programs.fused.fused import Fused
from argosy.training.programs.solo import Solo

__all__ = ["Admission", "admit"]

TRIED = 4
"""Members of a pack that are checked: all share one forward pass, and copies take memory."""
DOUBLE, SINGLE = 1e-9, 1e-3
"""Allowed differences, as a share of the tensor's largest number: in float64, and in other dtypes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Admission:
    """Result of the equivalence check."""

    packs: tuple[tuple[str, ...], ...]
    """Members that may be fused; single ones where `single` was given."""
    alone: Mapping[str, str]
    """The other members, each with the reason."""
    failed: Mapping[tuple[str, ...], str]
    """Members that were checked together and failed, with the error or the difference."""


def admit(
    lives: Sequence[LiveMember],
    block: Block,
    admitted: set[Fingerprint] | None = None,
    *,
    single: bool = False,
    pairs: bool = True,
) -> Admission:
    """Check members that are alike on a block of training samples; the members stay unchanged.

    Fingerprints in `admitted` are not checked again, and those that pass are added to it. With `single`, a member without a like is
    checked too; without `pairs`, two members with single-pass optimizers are not.
    """
    admitted = set() if admitted is None else admitted
    alike: dict[Fingerprint, list[LiveMember]] = {}
    packs, reasons, failed = [], {}, {}
    for live in lives:
        try:
            reason = obstacle(live)
            if reason is None:
                alike.setdefault(Fingerprint.of(live), []).append(live)
        except Exception as error:
            # Boundary between a member's code and ours: its objects may not be comparable.
            reason = f"it cannot be compared with others: {reason_of(error)}"
        if reason is not None:
            reasons[live.member.name] = reason
    for fingerprint, pack in alike.items():
        names = tuple(live.member.name for live in pack)
        lonely = _lonely(fingerprint, alike) if len(pack) == 1 else None
        if lonely is not None:
            reasons[names[0]] = lonely
            if not single:
                continue
        spared = not pairs and len(pack) == 2 and fingerprint not in admitted and all(live.one_pass for live in pack)
        if spared:
            reasons |= dict.fromkeys(names, "others in twos were no faster as one program on this device")
            continue
        attempt = None if fingerprint in admitted else _attempted(pack[:TRIED], block)
        if attempt is None or attempt.reason is None:
            packs.append(names)
            admitted.add(fingerprint)
            continue
        if lonely is None:
            reasons |= dict.fromkeys(names, attempt.reason)
        if attempt.failed:
            failed[names] = attempt.reason
    return Admission(packs=tuple(packs), alone=reasons, failed=failed)


def _lonely(fingerprint: Fingerprint, alike: Mapping[Fingerprint, Sequence[LiveMember]]) -> str:
    for other, lives in alike.items():
        if other != fingerprint:
            return f"no other member does the same as it: {lives[0].member.name!r} differs in {fingerprint.difference(other)}"
    return "there is no other member that could be fused with it"


@dataclass(frozen=True, slots=True)
class FusedTrial:
    """A copy of a member after a step and an evaluation."""

    live: LiveMember
    gradients: Mapping[str, Tensor]


def _attempted(lives: Sequence[LiveMember], block: Block) -> "Attempt":
    """Check these members as one program. Where memory runs out, fewer of them are checked, down to two."""
    double, block = True, _filled(block, lives)
    while True:
        attempt = _attempt(lives, block, double=double)
        if attempt.crowded and len(lives) > 2:
            lives = lives[: len(lives) // 2]
        elif double and (attempt.crowded or attempt.alone):
            double = False
        else:
            return attempt


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """Outcome of one check of copies alone and together."""

    reason: str | None
    """Why they may not be one program."""
    alone: bool = False
    """Whether a copy raised alone."""
    failed: bool = False
    """Whether their program raised, other than for memory, or gave other results."""
    crowded: bool = False
    """Whether memory ran out."""

    @classmethod
    def of(cls, what: str, error: Exception, count: int, *, alone: bool = False) -> "Attempt":
        """Return the attempt that an error ended."""
        line, crowded = reason_of(error), out_of_memory(error)
        reason = f"there is no memory to try {count} side by side: {line}" if crowded else f"{what} raises {line}"
        return cls(reason=reason, alone=alone, failed=not alone and not crowded, crowded=crowded)


def _attempt(lives: Sequence[LiveMember], block: Block, *, double: bool) -> Attempt:
    try:
        alone = [_alone(twin, _given(block, double=double)) for twin in _twins(lives, block, double=double)]
    except UnfitProgram as unfit:
        return Attempt(reason=str(unfit))
    except Exception as error:  # boundary between a member's code and ours: it may insist on its own types
        return Attempt.of("its own step", error, len(lives), alone=True)
    try:
        together = _together(_twins(lives, block, double=double), _given(block, double=double))
        pairs = zip(alone, together, strict=True)
        found = (words for pair in pairs for words in _differences(*pair, DOUBLE if double else SINGLE))
        reason = next(found, None)
        return Attempt(reason=reason, failed=reason is not None)
    except Exception as error:  # the same boundary
        return Attempt.of("as one program it", error, len(lives))


# ---- copies


def _twins(lives: Sequence[LiveMember], block: Block, *, double: bool) -> list[LiveMember]:
    """Return copies of the members at the start of the block, with different batches where members have subsets."""
    twins = [live.trial() for live in lives]
    in_subsets = _in_subsets(lives)
    order = np.arange(block.place.rows, dtype=np.int64)
    for number, twin in enumerate(twins):
        if double:
            _make_double(twin)
        seen = np.roll(order, -number)[:-1].tolist() if in_subsets else None
        cutter = functools.partial(Cutter, selection=Selection.of(seen, len(order)), order=order, drop_last=False)
        member = twin.member
        twin.cutter = cutter(batch_size=member.batch_size)
        twin.val_cutter = cutter(batch_size=member.eval_batch_size or member.batch_size)
    return twins


def _in_subsets(lives: Sequence[LiveMember]) -> bool:
    """Whether a member has a subset, so that batches differ."""
    return any(live.member.subset is not None for live in lives)


def _filled(block: Block, lives: Sequence[LiveMember]) -> Block:
    """Return the sound rows of a block, repeated where it is shorter than a batch, so that batches have their usual size."""
    live, sound = lives[0], block.sound.nonzero()[0]
    least = max(live.member.batch_size, live.val_rows) + _in_subsets(lives)  # each copy then has one less
    rows = torch.from_numpy(np.resize(sound, max(least, len(sound))))
    leaves = tuple(leaf.index_select(0, rows.to(leaf.device)) for leaf in block.leaves)
    place, labels = replace(block.place, start=0, rows=len(rows)), None if block.labels is None else block.labels[rows]
    return Block(place, block.tree, leaves, block.indices[rows], block.sound[rows], labels)


def _make_double(live: LiveMember) -> None:
    live.model.double()
    for state in live.optimizer.state.values():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.is_floating_point() and value.dim():
                state[name] = value.double()


def _given(block: Block, *, double: bool) -> Block:
    """Return a copy of the block for a check."""
    leaves = (leaf.double() if double and leaf.is_floating_point() else leaf.clone() for leaf in block.leaves)
    return replace(block, leaves=tuple(leaves))


# ---- trials


class UnfitProgram(Exception):  # noqa: N818
    """A member that, by its behaviour alone, cannot be fused."""


def _alone(twin: LiveMember, block: Block) -> FusedTrial:
    solo, before = Solo(twin), attributes(twin.model)
    twin.model.train()
    gradients = {}
    with solo.active():
        for batch in itertools.islice(solo.cut(block), 1):
            solo.begin(batch)
            gradients = {name: p.grad.clone() for name, p in twin.model.named_parameters() if p.grad is not None}
            solo.finish()
    with solo.active(keep=True):
        next(solo.evaluate(block))
    if block.touched:
        raise UnfitProgram("it writes into its input")
    twin.model.train()
    changed = [where for where, value in attributes(twin.model).items() if before.get(where) != value]
    if changed:
        raise UnfitProgram(f"a step changes {changed[0]}, which is no buffer")
    return FusedTrial(twin, gradients)


def _together(twins: Sequence[LiveMember], block: Block) -> list[FusedTrial]:
    """Run the copies as one program."""
    fused = Fused.of(twins)
    gradients: dict[int, Mapping[str, Tensor]] = {}
    with fused.active():
        for turn in itertools.islice(fused.cut(block), 1):
            fused.begin(turn)
            for row, live in enumerate(fused.members):
                gradients[id(live)] = {name: gradient.clone() for name, gradient in fused.gradients(row).items()}
            fused.finish()
    with fused.active(keep=True):
        next(fused.evaluate(block))
    return [FusedTrial(twin, gradients[id(twin)]) for twin in twins]


# ---- what differs


def _differences(alone: FusedTrial, fused: FusedTrial, tolerance: float) -> Iterator[str]:
    """Yield a description of each difference; the first ones are closer to the cause."""
    mine, theirs = alone.live, fused.live
    if not torch.equal(mine.randomness.torch_state, theirs.randomness.torch_state):
        yield "as one program it draws other random numbers"
    if not mine.randomness.others_equal(theirs.randomness):
        yield "its steps draw from numpy or random, which would draw once for all members"
    if alone.gradients.keys() != fused.gradients.keys():
        names = ", ".join(sorted(alone.gradients.keys() ^ fused.gradients.keys()))
        yield f"as one program other weights get a gradient: {names}"
        return
    buffers, found_buffers = dict(mine.model.named_buffers()), dict(theirs.model.named_buffers())
    if buffers.keys() != found_buffers.keys():
        yield f"as one program other buffers are filled: {', '.join(sorted(buffers.keys() ^ found_buffers.keys()))}"
        return
    size = max(map(largest, alone.gradients.values()), default=0.0)
    pairs = [(f"the gradient of {n!r}", g, fused.gradients[n], size) for n, g in alone.gradients.items()]
    pairs += [(f"the buffer {n!r}", b, found_buffers[n], 0.0) for n, b in buffers.items()]
    trained, validated = (mine.train.sums, theirs.train.sums), (mine.val.values(), theirs.val.values())
    for split, (one, other) in (("training", trained), ("validation", validated)):
        pairs += [(f"the {split} {n}", torch.tensor(v), torch.tensor(other[n]), 0.0) for n, v in one.items()]
    for what, number, found, scale in pairs:
        if not agree(number, found, within=tolerance * max(scale, largest(number), 1e-3)):
            yield f"as one program {what} is another than alone"
