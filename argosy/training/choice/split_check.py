"""The equivalence check of splitting: one copy of a member runs the backward pass of a real batch whole, another in two shares.

It runs in float64 if the member's code allows that, which separates rounding from real differences. The check finds what would
silently differ in shares: a loss that is no mean over samples, random numbers, statistics over a batch.
"""

import copy
import functools
import itertools
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils._python_dispatch import TorchDispatchMode

from argosy.stream.trees import flatten, map_leaves
from argosy.study import is_torchs, own_loss
from argosy.training.choice.copies import copy_for_trial, widen_floats
from argosy.training.device.attempts import attempt
from argosy.training.device.equivalence import DOUBLE, ComparedPair, difference, gradient_pairs, rounding_share
from argosy.training.member.copied import may_thaw, moded_optimizers_of
from argosy.training.member.live import LiveMember
from argosy.training.member.randomness import Randomness
from argosy.training.programs.fused.fingerprint import has_hooks, token, watch_behaviour
from argosy.training.programs.solo import Solo

__all__ = ["NO_SHARE", "why_not_split"]

NO_SHARE = "on a share of a batch, its step raises"
"""Prefix of the reason of a member that cannot step on a share of its batch at all."""
READS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default, torch.ops.aten.allclose.default)
BRANCHES = (torch.ops.higher_order.cond, torch.ops.higher_order.while_loop)


def why_not_split(live: LiveMember, data: Any, rows: int, *, distinct: int | None = None) -> str:
    """Return why a member must stay on one device; empty if it may be split.

    `data` is a private copy of `rows` samples: `distinct` ones, repeated in turn, or all different. The member stays unchanged.
    """
    if live.member.optimizers is not None:
        return "its own step moves the weights, so each share would use only its own gradients"
    if isinstance(live.schedule, ReduceLROnPlateau):
        return "its schedule watches a metric, which only its first device would know"
    if own := may_thaw(live.optimizer, live.schedule):
        return f"{own} is not from torch, so it could unfreeze weights, whose gradients would not be summed"
    if any(isinstance(module, _BatchNorm) for module in live.model.modules()):
        return "its BatchNorm would see the statistics of a share"
    if any(map(has_hooks, live.model.parameters())):
        return "its weights have hooks, which would see the gradient of a share"
    if any(weight.is_complex() for weight in live.model.parameters()):
        return "its weights are complex, and devices sum real gradients"
    if rows < 2:
        return "its batch has one sample"
    if _weighs_classes(live.member.loss):
        return "its loss has weights of classes, so it is not a mean over samples"
    reason = ""
    share = -(-rows // 3)  # halves would hide a step that gives all shares the same weight
    if share > 1 and share % (distinct or rows) == 0:
        share -= 1  # shares of the same samples would hide statistics over a batch
    for double in (True, False):
        inputs = map_leaves(widen_floats, data) if double else data
        with attempt() as tried:  # a member's code may insist on its own types
            whole = _run_backward(live, inputs, (0, rows), double=double)
            moved = None if double else _run_backward(live, inputs, (0, rows), double=False, nudged=True)
        if tried.error:
            reason = f"its step raises {tried.error}"
            continue
        with attempt() as tried:
            shared = _run_backward(live, inputs, (0, share, rows), double=double)
        if tried.error:
            return f"{NO_SHARE} {tried.error}"
        return next(_differences(live, whole, shared, moved, flatten(inputs)[0]), "")
    return reason


@dataclass(frozen=True, kw_only=True, slots=True)
class BackwardResult:
    """What a copy of a member has after a backward pass."""

    randomness: Randomness
    """State after the pass. The copy itself is dropped, because its weights may be many."""
    gradients: Mapping[str, Tensor]
    loss: Tensor
    changed: str
    """A buffer, weight or attribute that the pass changed, or empty."""
    read: bool
    """Whether it read a value of a tensor, as `if` and `item()` do."""
    one_number: bool
    """Whether its loss or step returned one number for a batch, not one per sample."""


class _Reads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes whether a value of a tensor is read while it is active, other than by torch's own layers, which treat samples alike.

    Weights and buffers of `model` may be read: each share has the same.
    """

    any = False
    supports_higher_order_operators = True  # such as flex_attention

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let functions compile inside: with `fullgraph=True` they raise if they may not, and so does flex_attention."""
        return True

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._own = {_memory_of(tensor) for tensor in (*model.parameters(), *model.buffers())}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in BRANCHES:
            self.any = True
        elif func in READS and _memory_of(args[0]) not in self._own:
            callers = (frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_stack(sys._getframe(1)))
            caller = next((name for name in callers if not name.startswith(("torch._", "torch.utils."))), "torch.")
            self.any |= not caller.startswith(("torch.", "argosy."))
        return func(*args, **kwargs or {})


def _run_backward(
    live: LiveMember, data: Any, bounds: tuple[int, ...], *, double: bool, nudged: bool = False
) -> BackwardResult:
    """Run a copy's backward pass on the parts of a batch between consecutive `bounds`, which are rows."""
    copied = copy_for_trial(live, double=double, nudged=nudged)
    solo, behaviour = Solo(copied), watch_behaviour(copied)
    buffers = {n: (copy.deepcopy(b), 0) if _is_dense(b) else (b, b._version) for n, b in copied.model.named_buffers()}
    augment, data = token(copied.member.augment), map_leaves(torch.clone, data)
    moded = moded_optimizers_of(copied.optimizer)
    for optimizer in moded:
        optimizer.train()  # which moves the weights, before the pass
    weights = {name: _place_of(weight) for name, weight in copied.model.named_parameters()}
    # Writes through `.data` are not counted. Weights that are not trained are those of the member also in a mode of its optimizer's.
    values = {n: w for n, w in live.model.named_parameters() if not (moded and w.requires_grad)}
    losses = []
    with solo.active(), _Reads(copied.model) as reads:
        solo.drop_gradients()
        for start, stop in itertools.pairwise(bounds):
            part = map_leaves(itemgetter(slice(start, stop)), data)
            losses.append(solo.gradients(part, stop - start, of=bounds[-1]))
    gradients = {name: p.grad for name, p in copied.model.named_parameters() if p.grad is not None}
    moved = (
        f"the buffer {n!r}" for n, b in copied.model.named_buffers() if not _is_kept(b, *buffers.get(n, (None, 0)))
    )
    written = (
        f"the weight {n!r}"
        for n, p in copied.model.named_parameters()
        if weights.get(n) != _place_of(p) or (n in values and not torch.equal(p, values[n].to(p.dtype)))
    )
    changed = next(moved, "") or next(written, "") or behaviour()
    if token(copied.member.augment) != augment:
        changed = "its augmentation"
    return BackwardResult(
        randomness=copied.randomness,
        gradients=gradients,
        loss=torch.cat(losses).double().mean(),
        changed=changed,
        read=reads.any,
        one_number=solo.one_number,
    )


def _differences(
    live: LiveMember,
    whole: BackwardResult,
    shared: BackwardResult,
    moved: BackwardResult | None,
    samples: Sequence[Tensor],
) -> Iterator[str]:
    """Yield each reason against a split, those closest to the cause first. `moved`, with weights an ulp away, is None in float64."""
    drawn, before = whole.randomness, live.randomness
    if not torch.equal(drawn.torch_state, before.torch_state) or not _equal(drawn.device_state, before.device_state):
        yield "its step draws random numbers, and each rank would draw its own"
    if not drawn.others_equal(before):
        yield "its step draws from numpy or random, and each rank would draw its own"
    if whole.changed:
        yield f"a step changes {whole.changed}, and each rank would change its own"
    if any(gradient.is_sparse for gradient in whole.gradients.values()):
        yield "its gradients are sparse"
        return
    if whole.gradients.keys() != shared.gradients.keys():
        names = ", ".join(sorted(whole.gradients.keys() ^ shared.gradients.keys()))
        yield f"when split, different weights get a gradient: {names}"
        return
    pairs = [gradient_pairs(whole.gradients, other.gradients) for other in (shared, moved) if other is not None]
    share = DOUBLE if moved is None else rounding_share(pairs[1], samples)
    what = difference(pairs[0], share)
    if what is not None:
        yield f"when split, {what} differs from that of the whole batch: its loss is not a mean over samples"
    if difference([ComparedPair.of("", whole.loss, shared.loss)], share) is not None:
        yield "when split, its loss differs from that of the whole batch"
    if whole.read:
        yield "its step reads values of a batch (if, item()), and may go another way for a share of a later batch"
    if whole.one_number and (live.member.step is not None or not is_torchs(live.member.loss)):
        yield (
            f"its {'loss' if live.member.step is None else 'step'} returns one number for a batch, which may be no mean over samples for "
            "later batches. Return one loss per sample, for example by reduction='none'"
        )


def _weighs_classes(loss: Any) -> bool:
    """Return whether a loss is divided by the weights of the targets in a batch. The batch of the check may have targets of equal weights."""
    loss = own_loss(loss)
    if isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss):
        return loss.weight is not None and loss.reduction == "mean"
    if not isinstance(loss, functools.partial) or loss.func not in (functional.cross_entropy, functional.nll_loss):
        return False
    return loss.keywords.get("weight") is not None and loss.keywords.get("reduction", "mean") == "mean"


def _memory_of(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata) if _is_dense(tensor) else id(tensor)


def _place_of(weight: Tensor) -> tuple[int, int, int]:
    return id(weight), weight.data_ptr(), weight._version


def _equal(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None or not (_is_dense(one) and _is_dense(other)):
        return one is other
    return torch.equal(one, other)


def _is_kept(buffer: Tensor, before: Tensor | None, version: int) -> bool:
    """Return whether a pass has left a buffer as it was; torch cannot compare sparse ones, so each write to them counts."""
    return _equal(before, buffer) and (_is_dense(buffer) or buffer._version == version)


def _is_dense(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided
