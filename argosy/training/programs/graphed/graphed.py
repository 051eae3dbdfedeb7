"""The program of members whose steps a device makes as a whole: recorded once, and replayed on samples that lie where those lay.

Contract. A step that is recorded has been made some times before in the same way, and recording makes none; all of them are
steps of training. The first replay is made twice, the second time plainly from where the first began, and what differs is never
replayed again. What a step takes of the host lies in memory that stays: samples are copied there, numbers of
optimizers by `StaticInputs`, random numbers are torch's concern, which lets a recording draw from where the default generator
stands. Where batches are shorter, or not all members have one, steps are made plainly.

What raises here has moved no weights: with `undo` the step was never begun, and another program makes it.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from argosy.stream.blocks import Block
from argosy.stream.trees import flatten, unflatten
from argosy.training.device.recorders import Recorder, Recording, Uncaptured, recorder_of, records
from argosy.training.member.live import LiveMember
from argosy.training.member.randomness import Mark
from argosy.training.programs.fused.forward import PackInputs
from argosy.training.programs.fused.turns import Turn
from argosy.training.programs.graphed.static_inputs import StaticInputs
from argosy.training.programs.graphed.whole import Whole, obstacle_to, whole_of
from argosy.training.programs.program import OwnFaults, Program

__all__ = ["Graphed", "refusal", "together"]

WARM_UP = 3
"""Whole steps before one is recorded: by then libraries have chosen their kernels and taken their work space."""
ALIKE = 0.1
"""By how much a replayed step may miss where a plain one leads, as a share of the way: what sums in another order each time, and an
optimizer that divides by what is almost nothing, move a weight at random; a replay gone wrong leads elsewhere."""


def refusal(program: Program[Any]) -> str | None:
    """Why the steps of a program cannot be captured; None where it may be tried."""
    if not records(program.members[0].backend):
        return "its device captures no steps"
    return obstacle_to(program)


class Graphed:
    """See `argosy.training.programs.program.Program`; around a `Solo` or a `Fused`."""

    def __init__(self, program: Program[Any], whole: Whole, recorder: Recorder) -> None:
        self._program = program
        self._whole = whole
        self._recorder = recorder
        self._lives = program.members
        self._scheduled = [
            live for live in self._lives if live.schedule is not None and live.member.schedule_per == "step"
        ]
        self._static_inputs = StaticInputs(whole.kernels, whole.parameter_buffer.weights)
        self._warm = 0
        self._replayed: Replayed | None = None
        self._turn: Turn | None = None
        """Made as a whole, and not finished."""
        self._totals = torch.empty(0)
        """Of that turn: sums of the losses ``[members]``."""
        self._apart = False
        """Whether its work goes to a stream of its own."""
        self._draws = False
        """Whether a recorded step draws random numbers."""

    @classmethod
    def of(cls, program: Program[Any]) -> "Graphed":
        """Around a program that has no `refusal`."""
        return cls(program, whole_of(program), recorder_of(program.members[0].backend))

    @property
    def members(self) -> tuple[LiveMember, ...]:
        """See `Program.members`."""
        return self._lives

    @property
    def replays(self) -> bool:
        """Whether its whole steps are recorded."""
        return self._replayed is not None

    @property
    def memory_bytes(self) -> int:
        """Of the device's, which a recorded step keeps for itself."""
        return 0 if self._replayed is None else self._replayed.recording.memory_bytes

    @property
    def shares_draws(self) -> bool:
        """Whether its replays draw random numbers by memory that those of other programs use as well."""
        return self._draws and not self._recorder.draws_apart

    @contextlib.contextmanager
    def active(self, *, keep: bool = False) -> Iterator[None]:
        """See `Program.active`."""
        with self._recorder.own() if self._apart else contextlib.nullcontext(), self._program.active(keep=keep):
            try:
                yield
            finally:
                self._whole.made.tell()
                for live in self._lives:
                    live.train.fetch()  # here, where it waits for the steps that sum

    def cut(self, block: Block) -> Iterator[Any]:
        """See `Program.cut`."""
        return self._program.cut(block)

    def begin(self, batch: Any) -> None:
        """See `Program.begin`; weights that move as a whole move here."""
        turn = self._whole.turn(batch) if self._whole.kernels else None
        self._whole.remember()
        if turn is None:
            self._whole.made.tell()
            self._program.begin(batch)
            return
        data = self._whole.inputs(turn)
        self._static_inputs.turn()
        self._totals = self._step(data)
        self._turn = turn

    def finish(self) -> int:
        """See `Program.finish`."""
        turn, self._turn = self._turn, None
        if turn is None:
            samples = self._program.finish()
            self._whole.forget()
            return samples
        for kernel in self._whole.kernels:
            kernel.note_step()
        samples = self._whole.made.add(turn, self._totals)
        self._whole.forget()
        self._move_schedules()
        return samples

    def undo(self) -> None:
        """Let the step whose beginning has raised not have been."""
        self._turn = None
        self._whole.undo()

    def evaluate(self, block: Block) -> Iterator[None]:
        """See `Program.evaluate`."""
        return self._program.evaluate(block)

    def release(self) -> None:
        """See `Program.release`."""
        self.join()
        if self._replayed is not None:
            self._close(self._replayed)
            self._replayed = None
        self._recorder.close()
        self._whole.release()

    # ---- beside others

    def fork(self) -> None:
        """Let its work go to a stream of its own, behind all that was asked for."""
        self._recorder.fork()
        self._apart = True

    def join(self) -> None:
        """Let its work go where all the others' does, which waits for it."""
        if self._apart:
            self._apart = False
            self._recorder.join()

    # ---- a whole step

    def _step(self, data: PackInputs) -> Tensor:
        """Sums of the losses ``[members]``, which stay."""
        usual = data.samples == self._lives[0].member.batch_size
        if usual and self._warm < WARM_UP:
            self._warm += 1
            return self._warmed_up(data)
        if usual and self._replayed is None:
            return self._recorded(data)
        if self._replayed is not None and self._replayed.takes(data):
            return self._replayed.step(data).clone()
        return self._plainly(data)

    def _plainly(self, data: PackInputs, *, watched: bool = False) -> Tensor:
        """Operator by operator. Buffers move before all that may raise is through."""
        buffers = list(self._whole.parameter_buffer.buffers.values())
        before = [buffer.clone() for buffer in buffers]
        try:
            return self._operators(data, watched=watched)
        except BaseException:
            _put(before, buffers)
            raise

    def _operators(self, data: PackInputs, *, watched: bool = False) -> Tensor:
        with self._watched() if watched else contextlib.nullcontext():
            totals, gradients = self._whole.gradients(data)
        with torch.no_grad():
            for kernel, numbers in zip(self._whole.kernels, self._static_inputs.of_kernels, strict=True):
                kernel.move(gradients[kernel.rows], numbers)
        return totals

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """Inside, gradients raise for what would be left out of a recorded step, the last time also for what may not be in one."""
        look = self._whole.look()
        with self._recorder.strict() if self._warm == WARM_UP else contextlib.nullcontext():
            yield
        look()

    def _warmed_up(self, data: PackInputs) -> Tensor:
        self._recorder.fork()
        try:
            with self._recorder.own():
                return self._plainly(data, watched=True)
        finally:
            self._recorder.join()

    def _recorded(self, data: PackInputs) -> Tensor:
        """A step by which it is seen that replays lead where plain steps do."""
        random = self._lives[0].randomness
        mark, moving = random.here(), self._moving()
        before = [tensor.clone() for tensor in moving]
        replayed = self._record(data)
        try:
            random.stand_at(mark)
            replayed_totals = replayed.step(data).clone()
            there = [replayed_totals, *(tensor.clone() for tensor in moving)]
            _put(before, moving)
            random.stand_at(mark)
            totals = self._operators(data)
            _check(there, [totals, *moving], [torch.zeros_like(totals), *before])
        except BaseException:
            _put(before, moving)
            self._close(replayed)
            raise
        self._replayed, self._draws = replayed, _moved(mark, random.here())
        return totals

    def _close(self, replayed: "Replayed") -> None:
        self._lives[0].backend.synchronize()
        replayed.recording.close()

    def _record(self, data: PackInputs) -> "Replayed":
        (leaves, structure), device = flatten(data.tree), self._whole.parameter_buffer.weights.device
        if not all(isinstance(leaf, Tensor) and leaf.device == device for leaf in leaves):
            raise Uncaptured("its batches hold more than tensors of the device")
        lying = [torch.zeros_like(leaf) for leaf in leaves]
        at_rest = PackInputs(unflatten(lying, structure), data.samples, data.apart)
        # Recorded with nothing in its place: what a step takes from elsewhere shows where it is replayed with something.
        self._static_inputs.forget()
        recording, totals = self._recorder.record(lambda: self._operators(at_rest))
        self._static_inputs.turn()
        return Replayed(recording, lying, at_rest, totals)

    def _moving(self) -> Sequence[Tensor]:
        """All that a step moves on the device, each ``[members of a kernel, …]``."""
        parameter_buffer = self._whole.parameter_buffer
        states = [matrix for kernel in self._whole.kernels for matrix in kernel.moved]
        return [parameter_buffer.weights, *parameter_buffer.buffers.values(), *states]

    # ---- the host's part

    def _move_schedules(self) -> None:
        faults: dict[str, Exception] = {}
        for live in self._scheduled:
            try:
                live.schedule.step()
            except Exception as error:  # boundary between a member's code and ours
                faults[live.member.name] = error
        if faults:
            raise OwnFaults(faults)


class Replayed:
    """A recorded step, and where it finds its samples and leaves its losses."""

    def __init__(self, recording: Recording, lying: Sequence[Tensor], data: PackInputs, totals: Tensor) -> None:
        self.recording = recording
        self._lying = lying
        self._data = data
        """Keeps its memory."""
        self._totals = totals

    def takes(self, data: PackInputs) -> bool:
        """Whether it was recorded on samples like these."""
        leaves = flatten(data.tree)[0]
        return (data.samples, data.apart, len(leaves)) == (
            self._data.samples,
            self._data.apart,
            len(self._lying),
        ) and all(
            (leaf.shape, leaf.dtype) == (own.shape, own.dtype) for leaf, own in zip(leaves, self._lying, strict=True)
        )

    def step(self, data: PackInputs) -> Tensor:
        """Make it; sums of the losses ``[members]``, until the next one."""
        for own, leaf in zip(self._lying, flatten(data.tree)[0], strict=True):
            own.copy_(leaf)
        self.recording.replay()
        return self._totals


@contextlib.contextmanager
def together(programs: Sequence[Program[Any]]) -> Iterator[None]:
    """Inside, the steps of these programs are side by side on their device, if all are replayed and no two share their draws."""
    apart = [program for program in programs if isinstance(program, Graphed) and program.replays]
    if len(apart) < max(len(programs), 2) or sum(program.shares_draws for program in apart) > 1:
        apart = []
    for program in apart:
        program.fork()
    try:
        yield
    finally:
        for program in apart:
            program.join()


def _moved(one: Mark, other: Mark) -> bool:
    """Whether torch's random states stand elsewhere, the host's or the device's."""
    states = zip(one[:2], other[:2], strict=True)
    return any(state is not None and not torch.equal(state, later) for state, later in states)


def _put(values: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
    with torch.no_grad():
        for tensor, value in zip(tensors, values, strict=True):
            tensor.copy_(value)


def _check(there: Sequence[Tensor], plainly: Sequence[Tensor], before: Sequence[Tensor]) -> None:
    """Raise Uncaptured where a replay has led elsewhere than a plain step, from the same place."""
    for replayed, plain, start in zip(there, plainly, before, strict=True):
        if bool((_distance(plain, replayed) > ALIKE * _distance(plain, start)).any()):
            raise Uncaptured("replayed, its step leads elsewhere")


def _distance(one: Tensor, other: Tensor) -> Tensor:
    """How far each member's parts are from each other."""
    apart = (one.double() - other.double()).reshape(len(one), one[0].numel())
    lengths: Tensor = torch.linalg.vector_norm(apart, dim=1)
    return lengths
