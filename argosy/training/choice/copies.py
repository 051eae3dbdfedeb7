"""Copies of members on which programs are tried, and their batches, cut from a copy of a block that may be longer than the block."""

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from argosy.stream.batches import InOrderCutter
from argosy.stream.blocks import Block, same_bits, select_rows
from argosy.stream.order import Selection
from argosy.stream.padding import batch_form, lengths_of, make_batch
from argosy.training.device.equivalence import nudge
from argosy.training.member.copied import optimizers_of
from argosy.training.member.live import LiveMember
from argosy.training.member.precision import autocast_dtype

__all__ = ["ShownBatch", "restart_cutters", "widen_floats", "fill_block", "copy_for_trial", "hide_step_warning"]


@contextlib.contextmanager
def hide_step_warning() -> Iterator[None]:
    """Hide the warning of a copy's schedule inside; the schedule cannot know that the copy's optimizer has stepped before it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Seems like `optimizer.step")
        yield


def copy_for_trial(live: LiveMember, *, double: bool = False, nudged: bool = False) -> LiveMember:
    """Return a copy of a member; with `double` in float64, with `nudged` with its weights moved by an ulp."""
    copied = live.trial()
    if double:
        _make_double(copied)
    if nudged:
        nudge(copied.model.parameters(), autocast_dtype(copied.member))
    return copied


def _make_double(live: LiveMember) -> None:
    live.model.double()
    if live.average is not None:
        live.average.double()
    states = [state for one in optimizers_of(live.optimizer) for state in one.state.values()]
    # MADGRAD keeps its step count beside the states of weights.
    for state in [state for state in states if isinstance(state, dict)]:
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and value.is_floating_point() and value.dim():
                state[name] = value.double()


def widen_floats(leaf: torch.Tensor) -> torch.Tensor:
    """Return floating-point tensors in float64, others unchanged."""
    return leaf.double() if leaf.is_floating_point() else leaf


def restart_cutters(copies: Sequence[LiveMember], block: Block, length: int, *, apart: bool) -> None:
    """Let each copy cut batches of this length from the start of the block; with `apart`, each copy cuts different batches."""
    order = np.arange(block.place.rows, dtype=np.int64)
    for number, copy in enumerate(copies):
        seen = np.roll(order, -number)[:-1].tolist() if apart else None
        selection = Selection.of(seen, len(order))
        cut = partial(InOrderCutter, selection=selection, order=order, batch_size=length, drop_last=False)
        copy.cutter, copy.val_cutter = cut(), cut()
        copy.begin_validation()


def fill_block(
    block: Block, rows: int, *, apart: bool = False, double: bool = False, different: int | None = None
) -> Block:
    """Return a copy of the sound rows of a block, or of the first `different` ones, repeated or cut to `rows` rows.

    With `apart`, there is one row more, and whichever is left out, rows of varying length are padded to one length.
    """
    sound = block.sound.nonzero()[0][:different]
    form = batch_form(block.tree) if apart else None
    if form is not None:
        lengths = np.stack([*lengths_of(block.leaves, form).values()])[:, sound]
        longest = int(lengths.sum(0).argmax())
        sound = np.concatenate((sound[[longest, longest]], sound[(lengths <= lengths[:, [longest]]).all(0)]))
    rows += apart
    sound = np.resize(sound, rows)
    index = torch.from_numpy(sound)
    leaves = tuple(select_rows(leaf, index.to(leaf.device)) for leaf in block.leaves)
    leaves = tuple(map(widen_floats, leaves)) if double else leaves
    place, labels = replace(block.place, start=0, rows=rows), None if block.labels is None else block.labels[sound]
    return Block(place, block.tree, leaves, block.indices[sound], block.sound[sound], labels)


class ShownBatch:
    """A private batch of `rows` samples: the first sound rows of a block, repeated if there are too few."""

    def __init__(self, block: Block, rows: int, *, different: int | None = None) -> None:
        self._again = partial(fill_block, block, rows, different=different)
        self._shown = self._again()
        self.data = make_batch(self._shown.leaves, block.tree)
        self.rows = rows

    @property
    def was_written(self) -> bool:
        """Whether the batch was written into, also by writes that torch does not count: through `.data` or NumPy."""
        return self._shown.touched or not same_bits(self._shown.leaves, self._again().leaves)
