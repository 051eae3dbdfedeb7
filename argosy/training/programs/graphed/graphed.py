"""The program of captured steps: a whole step is captured in a CUDA graph once, and replayed on samples at the same addresses.

Contract. A step runs eagerly a few times before it is captured, and capturing executes nothing; all executed steps are training
steps. The first replayed step is repeated eagerly from the same state, and if the results differ, it is never replayed again. Inputs
from the host lie in static memory: samples are copied there, `StaticInputs` copies optimizer values, and `DeviceDraws` places the random
states of several members; a graph of a single member draws from the state of torch's default generator. Steps run eagerly if batches
are shorter, or if some member has no batch.

An error has moved no weights: after `undo` another program makes the step.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from argosy.stream.blocks import Block
from argosy.training.device.clock import divide_time
from argosy.training.device.equivalence import have_diverged
from argosy.training.device.recorders import Recorder, forked, make_recorder
from argosy.training.member.live import LiveMember
from argosy.training.member.randomness import Mark
from argosy.training.optim.parameter_buffer import restorer
from argosy.training.programs.fused.forward import PackInputs
from argosy.training.programs.fused.several import ProgramOfSeveral
from argosy.training.programs.graphed.capturable import as_whole
from argosy.training.programs.graphed.captured import Captured
from argosy.training.programs.graphed.evaluation import Evaluation
from argosy.training.programs.graphed.static_inputs import StaticInputs
from argosy.training.programs.graphed.whole import StepKernel, Whole
from argosy.training.programs.program import MemberFaults, Program, collecting

__all__ = ["Graphed", "run_concurrently"]

WARM_UP = 3
"""Whole steps before one is captured: by then libraries have chosen their kernels and allocated their work space."""
MAX_DISTANCE = 0.1
"""Allowed distance between a replayed and an eager step, as a share of the step. Sums in varying order, and optimizers that divide by
almost zero, add random differences; a wrong replay is much farther off."""


class Graphed:
    """A `argosy.training.programs.program.Program` that captures the steps of a `Solo`, `Fused` or `Grouped` program."""

    def __init__(self, program: Program, whole: Whole, recorder: Recorder) -> None:
        self._program = program
        self._whole = whole
        self._recorder = recorder
        self.members: tuple[LiveMember, ...] = program.members
        self._scheduled = [live for live in self.members if live.has_batch_schedule]
        self._static_inputs = StaticInputs(whole.kernels, whole.weights)
        self._warm = 0
        self._captured: Captured[Tensor] = Captured(recorder, program.members[0].backend)
        self._moves: Tensor | None = None
        """Increments of the members' random offsets by the captured step, if it draws from them (`DeviceDraws`)."""
        self._evaluation: Evaluation | None = None
        if isinstance(program, ProgramOfSeveral):
            self._evaluation = Evaluation(program, recorder, list(whole.buffers.values()))
        self._totals: Tensor | None = None
        """Loss sums ``[members]`` of the step begun, if it is made as a whole."""
        self._apart = False
        """Whether this program's work is issued on its own stream."""
        self._draws = False
        """Whether the captured step draws random numbers."""

    @classmethod
    def of(cls, program: Program) -> "Graphed":
        """Wrap a program that has no `why_not_captured`."""
        return cls(program, as_whole(program), make_recorder(program.members[0].backend))

    @property
    def replays(self) -> bool:
        """Whether a whole step is captured, so that steps are replayed."""
        return self._captured.replays

    @property
    def memory_bytes(self) -> int:
        """Device memory that captured steps and passes hold."""
        of_evaluation = 0 if self._evaluation is None else self._evaluation.captured.memory_bytes
        return self._captured.memory_bytes + of_evaluation

    @property
    def shares_draws(self) -> bool:
        """Whether its replays share the memory of their random state with those of other programs, so that they must not run at once."""
        return self._draws and not self._recorder.draws_apart

    @contextlib.contextmanager
    def active(self, *, keep: bool = False) -> Iterator[None]:
        """Implement `Program.active`."""
        try:
            with self._recorder.own() if self._apart else contextlib.nullcontext(), self._program.active(keep=keep):
                try:
                    yield
                finally:
                    self._static_inputs.invalidate()
                    self._whole.made.record()
                    for live in self.members:
                        live.train.fetch()  # before leaving the stream on which the steps were summed
        finally:
            self.join()  # after a step, members may be undone, saved or timed, while other programs step on their streams

    def cut(self, block: Block) -> Iterator[Any]:
        """Cut as the wrapped program does."""
        return self._program.cut(block)

    def begin(self, batch: Any) -> None:
        """Begin the step, or make it as a whole, which updates the weights immediately."""
        data, self._totals = self._whole.begin_whole(batch) if self._whole.kernels else None, None
        if data is None:
            self._static_inputs.invalidate()
            self._whole.made.record()
            # Its optimizers step themselves, so settings and step counts move without `note_step`.
            self._program.begin(batch)
            return
        self._static_inputs.set_numbers()
        if self._whole.draws is not None:
            self._whole.draws.place()
        self._totals = self._step(data)

    def finish(self) -> int:
        """Implement `Program.finish`."""
        if self._totals is None:
            return self._program.finish()
        for kernel in self._whole.kernels:
            kernel.note_step()
        # A schedule that is stepped after every batch may change settings, so that the next numbers are computed anew.
        if not self._scheduled:
            self._static_inputs.note_step()
        if self._whole.draws is not None:
            self._whole.draws.advance()
        samples = self._whole.finish_whole(self._totals)
        self._move_schedules()
        return samples

    def undo(self) -> None:
        """Undo a step whose `begin` has raised."""
        self._whole.undo()

    def evaluate(self, block: Block) -> Iterator[None]:
        """Evaluate as the wrapped program does."""
        return self._program.evaluate(block)

    def release(self) -> None:
        """Implement `Program.release`."""
        self.join()
        self._captured.close()
        if self._evaluation is not None:
            self._evaluation.close()
        self._recorder.close()
        self._whole.release()

    # ---- concurrent programs

    def fork(self) -> None:
        """Issue this program's work on its own stream, after all work issued so far."""
        self._recorder.fork()
        self._apart = True

    def join(self) -> None:
        """Issue this program's work on the common stream again, which waits for the work issued since `fork`."""
        if self._apart:
            self._apart = False
            self._recorder.join()

    # ---- a whole step

    def _step(self, data: PackInputs) -> Tensor:
        """Make a whole step; returns loss sums ``[members]``, which later steps do not overwrite."""
        usual = data.samples == self.members[0].member.batch_size
        if usual and self._warm < WARM_UP:
            self._warm += 1
            with forked(self._recorder):
                return self._run_eagerly(data, watched=True)
        if usual and not self.replays:
            return self._capture(data)
        totals = self._captured.replay(data)
        if totals is None:
            return self._run_eagerly(data)
        if self._whole.draws is not None and self._moves is not None:
            self._whole.draws.moves = self._moves
        return totals.clone()

    def _run_eagerly(self, data: PackInputs, *, watched: bool = False) -> Tensor:
        """Run the step eagerly. An error restores the buffers, and also weights and states if kernels may fail halfway."""
        halfway = any(kernel.allocates for kernel in self._whole.kernels)
        restore = restorer(self._moving() if halfway else list(self._whole.buffers.values()))
        try:
            return self._operators(data, watched=watched)
        except BaseException:
            restore()
            raise

    def _operators(self, data: PackInputs, *, watched: bool = False) -> Tensor:
        if self._whole.draws is not None:
            self._whole.draws.begin()
        with self._watched() if watched else contextlib.nullcontext():
            totals, gradients = self._whole.whole_gradients(data, self._recorder.in_branches)
        kernels: Sequence[StepKernel] = self._whole.kernels
        with torch.no_grad():
            for kernel, numbers in zip(kernels, self._static_inputs.of_kernels, strict=True):
                kernel.move(gradients[kernel.rows], numbers, self._recorder.in_branches)
        return totals

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """Raise for effects inside that a replay would omit; in the last warm-up also for calls that a captured step may not contain."""
        check = self._whole.watch()
        with self._recorder.strict() if self._warm == WARM_UP else contextlib.nullcontext():
            yield
        check()

    def _capture(self, data: PackInputs) -> Tensor:
        random, draws = self.members[0].randomness, self._whole.draws
        mark = random.here()

        def rewind() -> None:
            # Numbers are set only after the recording, which must not depend on the values that it was made with, as for samples.
            self._static_inputs.set_numbers()
            random.set_generators(mark)

        self._static_inputs.forget()
        totals = self._captured.capture(self._operators, data, self._moving(), rewind=rewind, agree=_agree)
        self._moves = None if draws is None else draws.moves
        self._draws = _moved(mark, random.here())
        return totals

    def _moving(self) -> Sequence[Tensor]:
        """Return all tensors that a step moves on the device, each ``[members of a kernel, …]``."""
        states = [matrix for kernel in self._whole.kernels for matrix in kernel.moved]
        return [self._whole.weights, *self._whole.buffers.values(), *states]

    # ---- on the host

    def _move_schedules(self) -> None:
        faults: dict[str, BaseException] = {}
        for live in self._scheduled:
            with collecting(faults, live.member.name):
                live.step_batch_schedule()
        if faults:
            raise MemberFaults(faults)


def run_concurrently(
    programs: Sequence[Program], follow: Callable[[], object] = lambda: None
) -> contextlib.AbstractContextManager[None]:
    """Run the steps of these programs concurrently inside, if all are replayed and at most one `shares_draws`.

    Then `follow` is called first. It lets members follow the stream into another epoch, which begins with work on weights and averages on the
    common stream, for which the programs' own streams must wait.
    """
    apart = [program for program in programs if isinstance(program, Graphed) and program.replays]
    if len(apart) < max(len(programs), 2) or sum(program.shares_draws for program in apart) > 1:
        return contextlib.nullcontext()
    follow()
    return _concurrently(apart)


@contextlib.contextmanager
def _concurrently(apart: Sequence[Graphed]) -> Iterator[None]:
    with divide_time([live.clock for program in apart for live in program.members]):
        for program in apart:
            program.fork()
        try:
            yield
        finally:
            for program in apart:
                program.join()


def _agree(eager: Sequence[Tensor], replayed: Sequence[Tensor], before: Sequence[Tensor]) -> bool:
    starts = [torch.zeros_like(eager[0]), *before]  # loss sums come first
    ends = zip(eager, replayed, starts, strict=True)
    return not any(have_diverged(plain, replay, start, MAX_DISTANCE) for plain, replay, start in ends)


def _moved(one: Mark, other: Mark) -> bool:
    """Return whether torch's random states, the host's or the device's, differ."""
    states = zip(one[:2], other[:2], strict=True)
    return any(state is not None and not torch.equal(state, later) for state, later in states)
