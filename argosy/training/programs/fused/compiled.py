"""Forward and backward pass of members of one architecture, compiled by torch once for all of them.

The pass of all members is traced operator by operator on a real batch, and the trace is compiled instead of the Python code. So the
compiled code depends on no member's objects, and shapes alone decide whether it applies. When members leave, the others keep the
code and free places compute unused results, as long as at least half of the places are used. Batches of another length run eagerly.
On the first batch the result is checked against the eager one, which is used there.

Torch keeps compiled code on disk (``TORCHINDUCTOR_CACHE_DIR``), so later processes do not compile it again.
"""

import functools
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel

from argosy.stream.trees import flatten
from argosy.training.device.attempts import attempt
from argosy.training.device.equivalence import DOUBLE, ComparedPair, difference, largest_value, nudge, rounding_share
from argosy.training.optim.parameter_buffer import ParameterBuffer
from argosy.training.programs.fused.forward import Forward, PackInputs

__all__ = ["Compilation", "Derived", "Pass"]

Derived = tuple[Tensor, Sequence[Tensor | None]]
"""Losses ``[members, …]``, and gradients of the parameter buffer's pieces ``[members, *shape]``; None for weights that losses do not use."""
Results = tuple[Tensor, Sequence[Tensor], Sequence[Tensor]]
"""Losses and gradients as in `Derived`, with all weights in use, and buffers after the pass ``[members, *shape]``."""
THREADS = "TORCHINDUCTOR_COMPILE_THREADS"


@dataclass(frozen=True, kw_only=True, slots=True)
class Pass:
    """The inputs of a forward and backward pass."""

    forward: Forward
    parameter_buffer: ParameterBuffer
    data: PackInputs
    factors: Tensor
    """Factor of each member's mean loss ``[members]``."""

    def inputs(self, places: int) -> list[Tensor]:
        """Return all tensors of the pass for a number of `places`; free places get the first member's tensors."""
        parameter_buffer, count = self.parameter_buffer, len(self.factors)
        weights, leaves = [parameter_buffer.weights, *parameter_buffer.fixed.values()], [*flatten(self.data.tree)[0]]
        stacked = [*weights, *parameter_buffer.buffers.values()]
        own = [self.factors, *leaves] if self.data.apart else [self.factors]
        if count < places:
            filled = torch.arange(places, device=self.factors.device)
            filled[count:].zero_()
            stacked, own = [tensor[filled] for tensor in stacked], [tensor[filled] for tensor in own]
        return [tensor.contiguous() for tensor in (*stacked, *own, *(() if self.data.apart else leaves))]

    def derive_one(self, *given: Tensor) -> tuple[Tensor, ...]:
        """Compute one member's gradients ``[columns]``, losses and new buffers from its tensors."""
        fixed, buffers = [*self.parameter_buffer.fixed], [*self.parameter_buffer.buffers]
        pieces = self.parameter_buffer.pieces
        row, rest = given[0], given[1:]
        held = dict(zip(fixed, rest, strict=False))
        before = dict(zip(buffers, rest[len(fixed) :], strict=False))
        factor, *leaves = rest[len(fixed) + len(buffers) :]

        def objective(row: Tensor) -> tuple[Tensor, Any]:
            parts = torch.split(row, [piece.stop - piece.start for piece in pieces])
            own = {piece.name: part.view(piece.shape) for piece, part in zip(pieces, parts, strict=True)}
            moving = {name: buffer.clone() for name, buffer in before.items()}
            losses, after = self.forward.losses_of_one(own | held | moving, buffers, leaves, self.data)
            return losses.mean() * factor, (losses, after)

        gradients, (_, (losses, after)) = grad_and_value(objective, has_aux=True)(row)
        return gradients, losses, *after

    def compiled(self, inputs: Sequence[Tensor]) -> Callable[..., Sequence[Tensor]]:
        """Compile this pass for tensors of these shapes. Raises any error of torch."""
        leaves = len(flatten(self.data.tree)[0])
        places: list[int | None] = [0] * len(inputs)
        if not self.data.apart:
            places[len(inputs) - leaves :] = [None] * leaves
        os.environ.setdefault(THREADS, "1")  # else torch starts processes on import and never ends them
        with warnings.catch_warnings(action="ignore"):  # torch's own
            from torch import _inductor  # takes seconds, so only when something is compiled

            # As in `PerMemberDraws`: torch's fast attention kernels are not vectorised over members.
            with self.forward.autocast(cached=False), sdpa_kernel(SDPBackend.MATH):
                graph = make_fx(vmap(self.derive_one, in_dims=tuple(places), randomness="error"))(*inputs)
            how = {"config_patches": {"compile_threads": 1}}
            function: Callable[..., Sequence[Tensor]] = _inductor.standalone_compile(
                graph, list(inputs), dynamic_shapes="from_example_inputs", options=how
            )
        return function


class Compilation:
    """Compiled passes for members of one architecture on one device."""

    def __init__(self) -> None:
        self.refused: str = ""
        """Why compiled code is not used, or empty."""
        self._made: dict[int, tuple[Callable[..., Sequence[Tensor]], Any]] = {}
        """Compiled code and the form of the passes it applies to, by number of places."""

    @torch.no_grad()
    def derive(self, of: Pass, plainly: Callable[[], Derived], *, usual: bool) -> Derived:
        """Compute losses and gradients of a pass, and update its buffers: by compiled code if it applies, else `plainly`.

        Only a pass on a batch of the `usual` length causes compilation.
        """
        count = len(of.factors)
        places = min((places for places in self._made if count <= places < 2 * count), default=count)
        if self.refused or (places not in self._made and not usual):
            return self._plain(plainly)
        inputs = of.inputs(places)
        form = (of.data.apart, [(tensor.shape, tensor.dtype) for tensor in inputs])
        if places not in self._made:
            return self._verify(of, inputs, form, plainly)
        run, made_for = self._made[places]
        if made_for != form:
            return self._plain(plainly)
        gradients, losses, *buffers = (tensor[:count] for tensor in run(*inputs))
        for name, after in zip(of.parameter_buffer.buffers, buffers, strict=True):
            of.parameter_buffer.buffers[name].copy_(after)
        return losses, [piece.over(gradients) for piece in of.parameter_buffer.pieces]

    def _verify(self, of: Pass, inputs: Sequence[Tensor], form: Any, plainly: Callable[[], Derived]) -> Derived:
        """Run eagerly, and keep the compiled code if its result matches."""
        inputs = [tensor.clone() for tensor in inputs]  # the eager pass updates buffers
        losses, gradients = self._plain(plainly)
        idle = [
            piece.name for piece, results in zip(of.parameter_buffer.pieces, gradients, strict=True) if results is None
        ]
        if idle:
            self.refused = f"the weight {idle[0]!r} does not affect its loss, which compiled code cannot report"
            return losses, gradients
        with attempt() as tried:
            run = of.compiled(inputs)
            results, share = _unstacked(of, run(*inputs)), DOUBLE
            if losses.dtype != torch.float64:
                nudge(inputs[:1], of.forward.compute_dtype)
                share = rounding_share(_pairs(of, results, _unstacked(of, run(*inputs))), flatten(of.data.tree)[0])
            there = [one for one in gradients if one is not None]
            known = losses.detach(), there, [*of.parameter_buffer.buffers.values()]
            what = difference(_pairs(of, known, results), share)
            self.refused = f"compiled, {what} different" if what else ""
        if tried.error:
            self.refused = f"it cannot be compiled: {tried.error}"
        if not self.refused:
            self._made[len(of.factors)] = run, form
        return losses, gradients

    def _plain(self, plainly: Callable[[], Derived]) -> Derived:
        with torch.enable_grad():
            return plainly()


def _unstacked(of: Pass, results: Sequence[Tensor]) -> Results:
    """Return the results of compiled code, by weights and buffers."""
    columns, losses, *buffers = results
    return losses, [piece.over(columns) for piece in of.parameter_buffer.pieces], buffers


def _pairs(of: Pass, one: Results, other: Results) -> list[ComparedPair]:
    """Return two results of a pass as pairs to compare."""
    (losses, gradients, buffers), (losses_found, gradients_found, buffers_found) = one, other
    pieces = [piece.name for piece in of.parameter_buffer.pieces]
    size = functools.cache(functools.partial(largest_value, *gradients))
    pairs = [ComparedPair.of("its losses are", losses, losses_found)]
    for name, gradient, second in zip(pieces, gradients, gradients_found, strict=True):
        pairs.append(ComparedPair(f"the gradient of {name!r} is", gradient, second, size))
    for name, buffer, second in zip(of.parameter_buffer.buffers, buffers, buffers_found, strict=True):
        pairs.append(ComparedPair.of(f"the buffer {name!r} is", buffer, second))
    return pairs
