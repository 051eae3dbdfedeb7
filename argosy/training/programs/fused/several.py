"""The base class of programs of several members: they make locksteps, as one pass or one member after another.

A lockstep is one step of all members, each in its row. It is one pass if all have batches of one length, and if at that length the
common pass rounds as each member alone (`BatchLengths`). Otherwise members step one after another, as they do alone: their own
modules hold views of the common memory.
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cached_property, partial
from operator import itemgetter
from typing import Any, TypeVar

import torch
from torch import Tensor

from argosy.stream.batches import Batch
from argosy.stream.blocks import Block
from argosy.stream.trees import map_leaves, rebuilt
from argosy.training.device.clock import time_on_device
from argosy.training.device.heap import outside_heap
from argosy.training.device.recorders import InBranches, Uncaptured, run_in_turn
from argosy.training.member.foreseen import PendingLabels
from argosy.training.member.live import BatchLengths, LiveMember
from argosy.training.member.randomness import Mark
from argosy.training.member.validation import Validation
from argosy.training.optim.parameter_buffer import restorer
from argosy.training.programs.fused.average_buffer import AverageBuffer
from argosy.training.programs.fused.device_draws import DeviceDraws, States
from argosy.training.programs.fused.draws import has_dropout
from argosy.training.programs.fused.forward import PackInputs
from argosy.training.programs.fused.lockstep import Lockstep, common_length, locksteps, share_cutters
from argosy.training.programs.fused.recorded import UnrecordedSteps, UnrecordedValidation
from argosy.training.programs.program import MemberFaults, collecting
from argosy.training.programs.solo import Solo

__all__ = ["ProgramOfSeveral", "not_none"]

Value = TypeVar("Value")


class ProgramOfSeveral(ABC):
    """A `argosy.training.programs.program.Program` of several members; subclasses compute the common pass.

    It can also be stepped as a whole (`argosy.training.programs.graphed.whole`), with what subclasses add.
    """

    def __init__(self, lives: Sequence[LiveMember], lengths: BatchLengths | None) -> None:
        self.members: tuple[LiveMember, ...] = tuple(lives)
        """By row."""
        self._lengths = lengths
        """Batch lengths that are made as one pass; None for any length."""
        self._augment = any(live.member.augment for live in lives)
        self._augmenting = [live for live in lives if live.augment_keeps_state]
        self._states: States = States(live.randomness for live in lives)
        """Random states that the members draw from."""
        self.made: UnrecordedSteps = UnrecordedSteps(self.members)
        """Finished locksteps that had a batch for each member."""
        self._validated = UnrecordedValidation(lives[0].backend)
        self.evaluation: Callable[[PackInputs], tuple[Tensor, Any]] | None = None
        """Replacement of `evaluated` that replays a captured pass (`argosy.training.programs.graphed.evaluation`)."""
        self._begins = not lives[0].steps
        """Whether the very first lockstep is still to come."""
        self._lockstep: Lockstep = ()
        """The lockstep begun and not finished."""
        self._passed: Any = None
        """What `_differentiated` has returned for that lockstep; None if it is not one pass."""
        self._undoing: list[Callable[[], object]] = []
        """Functions that undo what that lockstep has changed."""
        self._solos = [Solo(live) for live in lives]
        self._foreseen = PendingLabels(self.members)
        self._shares: dict[tuple[torch.Size, torch.dtype, float], Tensor] = {}
        self._parts: Sequence[float] = [1 / len(self.members)] * len(self.members)
        """Each member's share of the program's time."""
        self._averages: AverageBuffer | None = None
        """Averages of the members' weights, if they have any."""
        self._faults: dict[str, BaseException] = {}
        """Errors raised by the code of single members in the current lockstep."""

    # ---- for subclasses

    @property
    @abstractmethod
    def buffers(self) -> Mapping[str, Tensor]:
        """The networks' buffers, each ``[members, …]``."""

    @abstractmethod
    def gradients(self, row: int) -> dict[str, Tensor]:
        """Return a member's gradients by weight, in the lockstep begun as one pass. Idle weights have none."""

    @abstractmethod
    def _train(self, mode: bool) -> None:
        """Switch to training or evaluation."""

    @abstractmethod
    def _samples(self, lockstep: Lockstep) -> PackInputs:
        """Return the samples of a training lockstep, augmented and checked; updates the statistics of averages with them."""

    @abstractmethod
    def _differentiated(self, data: PackInputs, in_branches: InBranches = run_in_turn) -> Any:
        """Run the forward and backward pass of all members; returns what `_finish_as_one` and `_for_kernels` need."""

    @abstractmethod
    def _finish_as_one(self, passed: Any) -> Tensor:
        """Step all members along their gradients; returns their loss sums, float64 ``[members]``."""

    @abstractmethod
    def _for_kernels(self, passed: Any) -> tuple[Tensor, Tensor]:
        """Return the results of `whole_gradients`."""

    @abstractmethod
    def evaluated(self, data: PackInputs, in_branches: InBranches = run_in_turn) -> tuple[Tensor, Any]:
        """Compute losses ``[members, …]`` and outputs in evaluation, with the trained weights; later passes do not overwrite them."""

    @abstractmethod
    def _evaluate(self, lockstep: Lockstep) -> None:
        """Evaluate the members on a lockstep, with `_found`."""

    @abstractmethod
    def _outside(self, row: int) -> contextlib.AbstractContextManager[None]:
        """Give a member's trained weights memory of their own inside, so that products round as they do alone."""

    @abstractmethod
    def _dissolve(self) -> None:
        """Give the members' tensors memory of their own again, and drop all other state."""

    # ---- the program

    @contextlib.contextmanager
    def active(self, *, keep: bool = False) -> Iterator[None]:
        """Implement `Program.active`."""
        with time_on_device([live.clock for live in self.members], self._parts):
            if keep:
                self._states = States(live.validating for live in self.members)
            try:
                with torch.set_grad_enabled(not keep):
                    yield
            finally:
                self.made.record()
                self._validated.record()
                self._states = States(live.randomness for live in self.members)

    def cut(self, block: Block) -> Iterator[Lockstep]:
        """Implement `Program.cut`: yield locksteps."""
        self._train(True)
        cutters = share_cutters([not_none(live.cutter) for live in self.members])
        for live, cutter in zip(self.members, cutters, strict=True):
            live.best.keep()
            live.cutter = cutter
        self._foreseen.note(block, cutters, augment=True)
        return locksteps(cutters, block)

    def begin(self, batch: Lockstep) -> None:
        """Implement `Program.begin`."""
        self._begin(batch)
        with outside_heap(when=self._begins):
            if self._as_one(batch, train=True):
                data = self._samples(batch)
                # A forward pass changes buffers, such as running statistics.
                self._undoing.append(restorer([*self.buffers.values()]))
                self._passed = self._differentiated(data)
            else:
                self._check_labels()

    def undo(self) -> None:
        """Undo a lockstep that has raised, for another try."""
        for undo in self._undoing:
            undo()
        self._forget()

    def finish(self) -> int:
        """Implement `Program.finish`."""
        with outside_heap(when=self._begins):
            samples = self._finish_apart() if self._passed is None else self._made(self._finish_as_one(self._passed))
        self._forget()
        self._begins = False
        self._tell_faults()
        return samples

    def evaluate(self, block: Block) -> Iterator[None]:
        """Implement `Program.evaluate` in locksteps. Raises MemberFaults."""
        self._train(False)
        cutters = share_cutters([not_none(live.val_cutter) for live in self.members])
        for live, cutter in zip(self.members, cutters, strict=True):
            live.val_cutter = cutter
        self._foreseen.note(block, cutters, augment=False)
        for lockstep in locksteps(cutters, block):
            if self._as_one(lockstep, train=False):
                self._evaluate(lockstep)
            else:
                self._check_labels()
                self._validated.record()
                # After `record`: members add these batches themselves, and sums keep the order of the sequence.
                for row, own_batch in self._with_batch(lockstep):
                    with self._own(row), self._states[row].active(), self._outside(row):
                        self.members[row].model.eval()
                        self._solos[row].validate(own_batch)
            for row, (cutter, batch) in enumerate(zip(cutters, lockstep, strict=True)):
                if batch is not None:
                    cutter.commit(batch)
                    if cutter.done:
                        self._validated.record()
                        with self._own(row):
                            self.members[row].end_validation()
            self._tell_faults()
            yield

    def release(self) -> None:
        """Implement `Program.release`."""
        for live in self.members:
            # Members share cutters while they are one program.
            live.cutter, live.val_cutter = deepcopy(live.cutter), deepcopy(live.val_cutter)
        self._forget()
        self._dissolve()

    # ---- a lockstep that is made as a whole

    @cached_property
    def draws(self) -> DeviceDraws | None:
        """Draws on the device inside `whole_gradients`; None if nothing is drawn."""
        drops = any(has_dropout(live.model) for live in self.members)
        return DeviceDraws.of([live.randomness for live in self.members]) if drops else None

    def begin_whole(self, batch: Lockstep) -> PackInputs | None:
        """Return the members' samples, augmented and checked; updates the statistics of averages with them.

        Returns None for batches that are not stepped as a whole: those of several lengths.
        """
        if common_length(batch) is None:
            return None
        self._begin(batch)
        return self._samples(batch)

    def whole_gradients(self, data: PackInputs, in_branches: InBranches) -> tuple[Tensor, Tensor]:
        """Compute loss sums, float64 ``[members]``, and clipped gradients ``[rows, columns]``; independent work runs `in_branches`.

        Raises Uncaptured if kernels cannot step along the gradients.
        """
        self._states.on_device = self.draws
        try:
            return self._for_kernels(self._differentiated(data, in_branches))
        finally:
            self._states.on_device = None

    def finish_whole(self, totals: Tensor) -> int:
        """Update the averages and commit, after all members have stepped; returns the number of samples."""
        samples = self._made(totals)
        self._forget()
        return samples

    def watch(self) -> Callable[[], None]:
        """Start to watch for effects that a replay would omit; returns a function that raises Uncaptured if there were any.

        Only random states are watched: the equivalence check has excluded other effects.
        """
        before = self.marks()

        def check() -> None:
            # Each member draws from its own state, which the host copies into the generator; a replay does not repeat that.
            if self.drew_since(before):
                raise Uncaptured("its members draw random numbers, each from its own state")

        return check

    # ---- a lockstep

    def marks(self) -> Sequence[Mark]:
        """Return snapshots of the random states that members currently draw from."""
        return [state.mark() for state in self._states]

    def go_back(self, marks: Sequence[Mark]) -> None:
        """Restore snapshots of these states."""
        for state, mark in zip(self._states, marks, strict=True):
            state.go_back(mark)

    def drew_since(self, marks: Sequence[Mark]) -> bool:
        """Return whether one of these states was drawn from on the host since the snapshots."""
        return any(one[0] is not other[0] for one, other in zip(marks, self.marks(), strict=True))

    def inputs(self, lockstep: Lockstep, *, augment: bool = True) -> PackInputs:
        """Return the samples of a lockstep. Raises MemberFaults for labels without an output."""
        self._check_labels()
        batches = [not_none(batch) for batch in lockstep]
        first = batches[0]
        if augment and self._augment:
            return PackInputs.of([self._augmented(row, own.data) for row, own in enumerate(batches)], first.rows)
        if all(batch is first for batch in batches):
            return PackInputs(first.data, first.rows, apart=False)
        return PackInputs.of([batch.data for batch in batches], first.rows)

    def _begin(self, batch: Lockstep) -> None:
        restorers = [live.called_restorer() for live in self._augmenting]
        self._lockstep, self._passed, self._undoing = batch, None, [partial(self.go_back, self.marks()), *restorers]

    def _found(self, data: PackInputs) -> tuple[Tensor, Any]:
        """Return what `evaluated` or its replacement, `evaluation`, computes."""
        return self.evaluated(data) if self.evaluation is None else self.evaluation(data)

    def _share(self, losses: Tensor, share: float = 1.0) -> Tensor:
        """Return the gradient of the members' mean losses ``[members, …]``, each times this share of the batch. Cached."""
        key = losses.shape, losses.dtype, share
        if key not in self._shares:
            self._shares[key] = torch.full_like(losses, share * len(losses) / losses.numel())
        return self._shares[key]

    def _augmented(self, row: int, data: Any) -> Any:
        augment = self.members[row].member.augment
        if augment is None:
            return data
        with self._states[row].active():
            return augment(rebuilt(data))

    def _as_one(self, lockstep: Lockstep, *, train: bool) -> bool:
        """Return whether a lockstep is made in one pass."""
        length, allowed = common_length(lockstep), self._lengths
        if length is None or allowed is None:
            return length is not None
        apart = (train and self._augment) or any(batch is not lockstep[0] for batch in lockstep)
        lengths, tried_apart = (allowed.train, allowed.apart[0]) if train else (allowed.val, allowed.apart[1])
        return apart == tried_apart and length in lengths

    def _made(self, totals: Tensor) -> int:
        """Record the lockstep begun, with its loss sums, after a step of all members; returns its number of samples."""
        if self._averages is not None:
            self._averages.step()
        return self.made.add(self._lockstep, totals)

    def _forget(self) -> None:
        """Drop what is kept of the lockstep begun."""
        self._lockstep, self._passed, self._undoing = (), None, []

    def _finish_apart(self) -> int:
        """Step each member that has a batch alone; returns the number of samples."""
        self.made.record()
        # `record` comes first, so that losses are summed in the order of the sequence.
        samples = 0
        for row, batch in self._with_batch(self._lockstep):
            with self._own(row), self._states[row].active(), self._outside(row):
                samples += self._step_apart(row, batch)
        return samples

    def _step_apart(self, row: int, batch: Batch) -> int:
        """Make a member's step as it does alone; returns its number of samples."""
        self._solos[row].begin(batch)
        return self._solos[row].finish()

    def _with_batch(self, lockstep: Lockstep) -> Iterator[tuple[int, Batch]]:
        """Yield the rows that have a batch, with it."""
        for row, batch in enumerate(lockstep):
            if batch is not None:
                yield row, batch

    def _check_labels(self) -> None:
        """Raise MemberFaults for labels without an output."""
        self._faults |= self._foreseen.errors()
        self._tell_faults()

    def _tell_faults(self) -> None:
        """Raise the errors of single members, after all others have made their lockstep."""
        if self._faults:
            faults, self._faults = self._faults, {}
            raise MemberFaults(faults)

    def _validate(
        self, lockstep: Lockstep, rows: Iterable[int], values: tuple[Tensor, Any], into: Sequence[Validation]
    ) -> None:
        """Add a lockstep's losses and outputs to the validations of the members in some rows."""
        losses, output = values
        rows = list(rows)
        several, batches = tuple(into[row] for row in rows), [not_none(lockstep[row]) for row in rows]
        if len(rows) == len(losses) and self._validated.add(several, batches, losses, output):
            return
        self._validated.record()
        for row, batch in zip(rows, batches, strict=True):
            own, target = (None, None) if output is None else (map_leaves(itemgetter(row), output), batch.data[1])
            # Without metrics, none of the member's own code runs, so nothing can be drawn.
            drawing = self._states[row].active() if self.members[row].member.metrics else contextlib.nullcontext()
            with self._own(row), drawing:
                into[row].add(batch.rows, batch.digest, losses[row], own, target)

    def _own(self, row: int) -> contextlib.AbstractContextManager[None]:
        """Record an error raised inside as this member's fault."""
        return collecting(self._faults, self.members[row].member.name)


def not_none(value: Value | None) -> Value:
    """Return a value that is not None."""
    assert value is not None
    return value
