"""The program of several members of one architecture: one vectorised forward pass, one backward pass, one optimizer step.

Only the forward pass is vectorised over the members (`torch.vmap`); autograd is the ordinary one, outside of it. The members'
losses are added up, never averaged, so each gets its own gradient. Weights lie in a `ParameterBuffer`; fused optimizers (`kernels`)
step them, and an optimizer without a kernel steps its member's views, along gradients that are views too.

A turn is one lockstep step of the members. Those that have no batch in it, or one of another length than the others, step one after
another, as they do alone: their own modules hold views of the common memory. So do all of them on batches of a length for which the
common pass would round otherwise than each of them alone (`BatchLengths`).
"""

import contextlib
import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, TypeVar

import torch
from torch import Tensor

from argosy.stream.batches import Batch
from argosy.stream.blocks import Block
from argosy.stream.trees import map_leaves
from argosy.training.device.clock import timed
from argosy.training.device.heap import large_outside
from argosy.training.member.foreseen import Foreseen
from argosy.training.member.live import BatchLengths, LiveMember
from argosy.training.member.precision import LossScales
from argosy.training.member.randomness import Mark, Randomness
from argosy.training.member.running_average import Statistics, counting
from argosy.training.member.tally import totals_of
from argosy.training.member.validation import Validation
from argosy.training.optim.kernels import Kernel, kind_of
from argosy.training.optim.parameter_buffer import ParameterBuffer
from argosy.training.programs.fused.average_buffer import AverageBuffer
from argosy.training.programs.fused.compiled import Compilation
from argosy.training.programs.fused.derivation import Derivation
from argosy.training.programs.fused.forward import Forward, PackInputs
from argosy.training.programs.fused.made import Made
from argosy.training.programs.fused.steps import FusedSteps, Part
from argosy.training.programs.fused.turns import Turn, length_of, own, shared, turns
from argosy.training.programs.program import OwnFaults
from argosy.training.programs.solo import Solo

__all__ = ["Fused"]

There = TypeVar("There")


class Fused:
    """The `argosy.training.programs.program.Program` of several like members, by row."""

    def __init__(
        self,
        lives: Sequence[LiveMember],
        forward: Forward,
        parameter_buffer: ParameterBuffer,
        kernels: Sequence[Kernel],
        compilation: Compilation | None,
        lengths: BatchLengths | None,
    ) -> None:
        self._lives = tuple(lives)
        self._lengths = lengths
        self._forward = forward
        self._parameter_buffer = parameter_buffer
        self._scales = LossScales.of([live.loss_scale for live in lives], lives[0].backend.device)
        self._compilation = compilation
        self._derivation = Derivation(lives, forward, parameter_buffer, self._scales, compilation)
        self._steps = FusedSteps(lives, parameter_buffer, kernels, self._scales)
        self._averages = AverageBuffer.of(lives, parameter_buffer)
        self._augment = any(live.member.augment for live in lives)
        self._states: Sequence[Randomness] = [live.randomness for live in lives]
        """Random states that the members draw from."""
        self.made: Made = Made(self._lives)
        """Finished turns with a batch for each member."""
        self._begins = not lives[0].steps
        """Whether the very first turn is still to come."""
        self._turn: Turn = ()
        """The turn begun and not finished."""
        self._part: Part | None = None
        """Gradients of that turn; None where the members step one after another."""
        self._solos = [Solo(live) for live in lives]
        self._before: tuple[Sequence[Mark], dict[str, Tensor]] | None = None
        """Random states and buffers before that turn."""
        self._statistics: Statistics | None = None
        """Statistics of the averages before that turn, where they are computed."""
        self._foreseen = Foreseen(self._lives)
        self._faults: dict[str, Exception] = {}
        """Errors raised by the code of single members in the current turn."""

    @classmethod
    def of(
        cls, lives: Sequence[LiveMember], compilation: Compilation | None = None, lengths: BatchLengths | None = None
    ) -> "Fused":
        """Make the program of members that passed the equivalence check, or of one; with a `compilation`, their pass is compiled.

        Members step as one on batches of these `lengths`; of any length without.
        """
        # An operator that torch runs for one member after another is slower, but the user need not care.
        warnings.filterwarnings("ignore", message="There is a performance drop because we have not yet implemented")
        kinds: dict[Any, list[LiveMember]] = {}
        for live in lives:
            kinds.setdefault(kind_of(live.optimizer), []).append(live)
        ordered = [live for alike in kinds.values() for live in alike]
        models = [live.model for live in ordered]
        forward = Forward.of(models, ordered[0].member, ordered[0].backend.device)
        parameter_buffer = ParameterBuffer.of(models, [live.optimizer for live in ordered])
        kernels, first = [], 0
        for alike in kinds.values():
            kernels.append(Kernel.of([live.optimizer for live in alike], parameter_buffer, first))
            first += len(alike)
        found = [kernel for kernel in kernels if kernel is not None]
        return cls(ordered, forward, parameter_buffer, found, compilation, lengths)

    @property
    def members(self) -> tuple[LiveMember, ...]:
        """The members, by row."""
        return self._lives

    @property
    def parameter_buffer(self) -> ParameterBuffer:
        """The members' weights and buffers."""
        return self._parameter_buffer

    @property
    def kernels(self) -> Sequence[Kernel]:
        """`FusedSteps.kernels`."""
        return self._steps.kernels

    @contextlib.contextmanager
    def active(self, *, keep: bool = False) -> Iterator[None]:
        """Implement `Program.active`; members share the time evenly."""
        with timed([live.clock for live in self._lives]):
            if keep:
                self._states = [live.randomness.aside() for live in self._lives]
            try:
                with torch.set_grad_enabled(not keep):
                    yield
            finally:
                self.made.tell()
                self._states = [live.randomness for live in self._lives]

    def cut(self, block: Block) -> Iterator[Turn]:
        """Implement `Program.cut`, in turns."""
        self._forward.train(True)
        cutters = shared([_there(live.cutter) for live in self._lives])
        for live, cutter in zip(self._lives, cutters, strict=True):
            live.keep_best()
            live.cutter = cutter
        self._foreseen.note(block, cutters, augment=True)
        return turns(cutters, block)

    def begin(self, batch: Turn) -> None:
        """Implement `Program.begin`."""
        self._turn = batch
        buffers = {name: buffer.clone() for name, buffer in self._parameter_buffer.buffers.items()}
        self._before = [live.randomness.mark() for live in self._lives], buffers
        with large_outside() if self._begins else contextlib.nullcontext():
            if self._as_one(batch, train=True):
                data = self.inputs(batch)
                self.recompute(data)
                self._part = self._differentiated(data)
            else:
                self._check_labels()

    def undo(self) -> None:
        """Undo a turn after its `begin` raised, for another try."""
        if self._before is not None:
            marks, buffers = self._before
            for live, mark in zip(self._lives, marks, strict=True):
                live.randomness.go_back(mark)
            for name, buffer in buffers.items():
                self._parameter_buffer.buffers[name].copy_(buffer)
        if self._statistics is not None and self._averages is not None:
            self._averages.go_back(self._statistics)
        self._turn, self._part, self._before, self._statistics = (), None, None, None

    def gradients(self, row: int) -> dict[str, Tensor]:
        """Return the gradients of a member in the turn begun, which is made as one, by weight; idle weights have none."""
        assert self._part is not None
        gradients, idle = self._part.gradients[row], self._part.idle
        return {piece.name: piece.of(gradients) for piece in self._parameter_buffer.pieces if piece.name not in idle}

    def finish(self) -> int:
        """Implement `Program.finish`."""
        with large_outside() if self._begins else contextlib.nullcontext():
            if self._part is None:
                samples = self._finish_apart()
            else:
                self._steps.prepare(self._part)
                self._faults |= self._steps.make(self._part)
                self.follow()
                samples = self.made.add(self._turn, self._part.totals)
        self._turn, self._part, self._before, self._begins = (), None, None, False
        self._tell_faults()
        return samples

    def recompute(self, data: PackInputs) -> None:
        """Pass a training batch through averaged weights that need it for their statistics."""
        averages = [live.average for live in self._lives if live.average is not None and live.average.recomputes]
        if self._averages is None or not averages:
            return
        self._statistics = self._averages.statistics()
        if len({average.batches for average in averages}) > 1:  # a broken batch, or an interruption, of some
            for row, solo in enumerate(self._solos):
                own = map_leaves(itemgetter(row), data.tree) if data.apart else data.tree
                with self._own(row), self._states[row].active(keep=True):
                    solo.recompute(own, data.samples)
            return
        drawn = [state.mark() for state in self._states]
        for part in data.pieces(self._lives[0].member.accumulate):
            with torch.no_grad(), counting(self._forward.norms, averages[0].batches):
                self._forward.values(
                    self._averages.named, self._averages.buffers, part, self._states, lambda output: None
                )
            for average in averages:
                average.batches += 1
        for state, mark in zip(self._states, drawn, strict=True):
            state.go_back(mark)  # raw weights are trained as they would be without averages

    def follow(self) -> None:
        """Bring the averages up to date after a step of all members."""
        self._statistics = None
        if self._averages is not None:
            self._averages.step()

    def _finish_apart(self) -> int:
        """Make the step of each member that has a batch by itself; returns their number of samples."""
        self.made.tell()
        samples = 0
        for row, batch in self._apart(self._turn):
            with self._own(row), self._states[row].active(), self._parameter_buffer.outside(row):
                self._solos[row].begin(batch)
                self._steps.note_idle(row)
                samples += self._solos[row].finish()
        return samples

    def _as_one(self, turn: Turn, *, train: bool) -> bool:
        """Whether the members make a turn in one pass."""
        length, allowed = length_of(turn), self._lengths
        if length is None or allowed is None:
            return length is not None
        apart = (train and self._augment) or any(batch is not turn[0] for batch in turn)
        lengths, tried_apart = (allowed.train, allowed.apart[0]) if train else (allowed.val, allowed.apart[1])
        return apart == tried_apart and length in lengths

    def _apart(self, turn: Turn) -> Iterator[tuple[int, Batch]]:
        """Yield the rows with a batch."""
        for row, batch in enumerate(turn):
            if batch is not None:
                yield row, batch

    def _check_labels(self) -> None:
        """Raise OwnFaults for labels without an output."""
        self._faults |= self._foreseen.errors()
        self._tell_faults()

    def _tell_faults(self) -> None:
        """Raise the errors of single members, once all others have made their turn."""
        if self._faults:
            faults, self._faults = self._faults, {}
            raise OwnFaults(faults)

    def evaluate(self, block: Block) -> Iterator[None]:
        """Evaluate by turns; raises OwnFaults."""
        self._forward.train(False)
        cutters = shared([_there(live.val_cutter) for live in self._lives])
        for live, cutter in zip(self._lives, cutters, strict=True):
            live.val_cutter = cutter
        self._foreseen.note(block, cutters, augment=False)
        for turn in turns(cutters, block):
            if self._as_one(turn, train=False):
                self._evaluate(turn)
            else:
                self._check_labels()
                for row, own_batch in self._apart(turn):
                    with self._own(row), self._states[row].active(), self._parameter_buffer.outside(row):
                        self._lives[row].model.eval()
                        self._solos[row].validate(own_batch)
            for row, (cutter, batch) in enumerate(zip(cutters, turn, strict=True)):
                if batch is not None:
                    cutter.commit(batch)
                    if cutter.done:
                        self._end_validation(row)
            self._tell_faults()
            yield

    def _evaluate(self, turn: Turn) -> None:
        """Evaluate the members in one pass, and in another one with their averages."""
        data, there = self.inputs(turn, augment=False), range(len(self._lives))
        self._validate(turn, there, self._values(data), [live.val for live in self._lives])
        averaged = [row for row in there if self._lives[row].averaged is not None]
        if self._averages is None or not averaged:
            return
        drawn = [state.mark() for state in self._states]
        named, buffers = self._averages.named, self._averages.buffers
        found = self._forward.values(named, buffers, data, self._states, lambda output: None)
        self._validate(turn, averaged, found, [live.average_val for live in self._lives])
        for state, mark in zip(self._states, drawn, strict=True):
            state.go_back(mark)  # raw weights are validated as they would be without averages

    def _validate(self, turn: Turn, rows: Iterable[int], found: tuple[Tensor, Any], into: Sequence[Validation]) -> None:
        """Add a turn's losses and outputs to the validations of the members in some rows."""
        losses, output = found
        for row in rows:
            own = None if output is None else map_leaves(itemgetter(row), output)
            self._add(row, _there(turn[row]), losses[row], own, into[row])

    def _add(self, row: int, batch: Batch, losses: Tensor, output: Any, into: Validation) -> None:
        """Add a batch to a member's validation."""
        live, target = self._lives[row], batch.data[1] if output is not None else None
        # Without metrics no code of the member runs that might draw.
        drawing = self._states[row].active() if live.member.metrics else contextlib.nullcontext()
        with self._own(row), drawing:
            into.add(batch.rows, batch.digest, losses, output, target)

    def _end_validation(self, row: int) -> None:
        with self._own(row):
            self._lives[row].end_validation()

    @contextlib.contextmanager
    def _own(self, row: int) -> Iterator[None]:
        """Record an error raised inside as this member's fault."""
        try:
            yield
        except Exception as error:  # boundary between a member's code and ours
            self._faults[self._lives[row].member.name] = error

    def release(self) -> None:
        """Implement `Program.release`."""
        for name in ("cutter", "val_cutter"):
            cutters = [getattr(live, name) for live in self._lives]
            for live, cutter in zip(self._lives, own(cutters), strict=True):
                setattr(live, name, cutter)
        self._turn, self._part, self._before = (), None, None
        self._foreseen.clear()
        self._derivation.release()
        self._steps.release()
        if self._averages is not None:
            self._averages.dissolve()
        self._parameter_buffer.dissolve()

    # ---- a turn

    def whole(self, data: PackInputs) -> Part:
        """Compute losses and clipped gradients of all members, outside of a turn."""
        part = self._differentiated(data)
        self._steps.prepare(part)
        return part

    def _differentiated(self, data: PackInputs) -> Part:
        """Compute losses and gradients of the members, over all micro-batches of a batch."""
        buffer, members = self._parameter_buffer, len(self._lives)
        leaves = [buffer.named[piece.name] for piece in buffer.pieces]
        gradients: Tensor | None = None
        idle = {piece.name for piece in buffer.pieces}
        totals = []
        for part in data.pieces(self._lives[0].member.accumulate):
            values, plain = partial(self._losses, part), self._foreseen.pending
            losses, found = self._derivation.of(part, part.samples / data.samples, values, leaves, plain=plain)
            if gradients is None and all(gradient is not None and gradient.is_contiguous() for gradient in found):
                gradients = torch.cat([gradient.view(members, -1) for gradient in found if gradient is not None], 1)
                idle.clear()
            else:
                if gradients is None:
                    gradients = buffer.weights.new_empty(buffer.weights.shape)
                self._gather(found, gradients, idle)
            totals.append(totals_of(losses.detach(), part.samples))
        assert gradients is not None
        for piece in buffer.pieces if idle else ():
            if piece.name in idle:
                piece.over(gradients).zero_()
        return Part(sum(totals[1:], totals[0]), gradients, frozenset(idle))

    def _gather(self, found: Sequence[Tensor | None], gradients: Tensor, idle: set[str]) -> None:
        """Add gradients to those of earlier micro-batches; `idle` names the weights that had none yet."""
        for piece, gradient in zip(self._parameter_buffer.pieces, found, strict=True):
            if gradient is None:
                continue
            if piece.name in idle:
                idle.remove(piece.name)
                piece.over(gradients).copy_(gradient)
            else:
                piece.over(gradients).add_(gradient)

    def inputs(self, turn: Turn, *, augment: bool = True) -> PackInputs:
        """Return the samples of a turn. Raises OwnFaults for labels without an output."""
        self._check_labels()
        batches = [_there(batch) for batch in turn]
        first = batches[0]
        if augment and self._augment:
            return PackInputs.of([self._augmented(row, own.data) for row, own in enumerate(batches)], first.rows)
        if all(batch is first for batch in batches):
            return PackInputs(first.data, first.rows, apart=False)
        return PackInputs.of([batch.data for batch in batches], first.rows)

    def _augmented(self, row: int, data: Any) -> Any:
        augment = self._lives[row].member.augment
        if augment is None:
            return data
        with self._states[row].active():
            return augment(data)

    def _values(self, data: PackInputs) -> tuple[Tensor, Any]:
        buffer = self._parameter_buffer
        return self._forward.values(buffer.named, buffer.buffers, data, self._states, self._foreseen.look)

    def _losses(self, data: PackInputs) -> Tensor:
        return self._values(data)[0]


def _there(value: There | None) -> There:
    assert value is not None
    return value
