"""Which members are one program: those of one fingerprint that are seen to get from it what they get alone.

Twins of the members make a step and an evaluation on a real batch, once each by itself and once together, in float64 where
their code allows it: there what differs by rounding is far from what differs. What vectorised code gets wrong without a word
is found so: buffers that a module assigns anew, draws of Python's and NumPy's generators, what a module notes for itself.
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
"""Members of a pack that are tried: one forward pass serves all, and twins take memory."""
DOUBLE, SINGLE = 1e-9, 1e-3
"""Allowed differences, as a share of the largest number beside it: of float64, and of other types."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Admission:
    """What may be one program."""

    packs: tuple[tuple[str, ...], ...]
    """Members that may be fused; one by itself where that was asked for."""
    alone: Mapping[str, str]
    """The others, and for each the reason."""
    failed: Mapping[tuple[str, ...], str]
    """Those of the others that were tried as one program, and what it raised or did otherwise than each by itself."""


def admit(
    lives: Sequence[LiveMember],
    block: Block,
    admitted: set[Fingerprint] | None = None,
    *,
    single: bool = False,
    pairs: bool = True,
) -> Admission:
    """Try those of these members that are alike on a block of training samples; they stay as they are.

    What is `admitted` is not tried again, and what passes is added to it. With `single`, whom nobody is like is tried too; without
    `pairs`, two are not whose optimizers take one pass.
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
            # Boundary between a member's code and ours: what it holds may not let itself be compared.
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
    """A twin after a step and an evaluation."""

    live: LiveMember
    gradients: Mapping[str, Tensor]


def _attempted(lives: Sequence[LiveMember], block: Block) -> "Attempt":
    """Try these members as one program. Where memory ends, fewer of them are tried, down to two."""
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
    """What came of twins alone and together."""

    reason: str | None
    """Why they are not to be one program."""
    alone: bool = False
    """Whether one has raised by itself."""
    failed: bool = False
    """Whether their program raised, though memory was left, or did otherwise than each of them."""
    crowded: bool = False
    """Whether memory has run out."""

    @classmethod
    def of(cls, what: str, error: Exception, count: int, *, alone: bool = False) -> "Attempt":
        """One of so many twins that has raised."""
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


# ---- twins


def _twins(lives: Sequence[LiveMember], block: Block, *, double: bool) -> list[LiveMember]:
    """Copies that stand before the block, each with batches of its own where the members have such."""
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
    """Whether some have one, so that batches differ."""
    return any(live.member.subset is not None for live in lives)


def _filled(block: Block, lives: Sequence[LiveMember]) -> Block:
    """The sound rows of a block. Of one that is shorter than a batch some come again: no batch has another size than later ones."""
    live, sound = lives[0], block.sound.nonzero()[0]
    least = max(live.member.batch_size, live.val_rows) + _in_subsets(lives)  # each twin has one less then
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
    """A copy of the block, for a trial."""
    leaves = (leaf.double() if double and leaf.is_floating_point() else leaf.clone() for leaf in block.leaves)
    return replace(block, leaves=tuple(leaves))


# ---- trials


class UnfitProgram(Exception):  # noqa: N818
    """What a member does alone already speaks against its being fused."""


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
    """By the order of the twins."""
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
    """Words for each thing that is not the same; the first ones are nearer to the cause."""
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
