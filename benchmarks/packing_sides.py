"""The sides of `packing.py`: ways of stepping the same members. Each side has its own members, with equal initial weights."""

import itertools
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from packing_networks import Workload
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Adam, Optimizer

from argosy import Member
from argosy.protocol.packs import Packed
from argosy.protocol.trainer import SectionReport
from argosy.stream.blocks import Block, Layout, Place
from argosy.stream.heartbeat import Heartbeat
from argosy.stream.schedule import Orders
from argosy.training.choice.fusion_group import FusionGroup, Kind
from argosy.training.device.devices import open_backend
from argosy.training.member.building import build_member
from argosy.training.member.files import Files
from argosy.training.member.live import LiveMember
from argosy.training.programs.fused.compiled import Compilation
from argosy.training.programs.fused.fused import Fused
from argosy.training.programs.graphed import graphed
from argosy.training.programs.program import Program
from argosy.training.programs.solo import Solo
from argosy.training.trainer.assigned import AssignedMember
from argosy.training.trainer.program_choice import ProgramChoice
from argosy.training.trainer.program_instances import ProgramInstance

__all__ = [
    "Apart",
    "Chosen",
    "Compiled",
    "Graphed",
    "Loop",
    "Programs",
    "Side",
    "Task",
    "captured",
    "compiled",
    "captured_one_after_another",
    "fused",
    "one_after_another",
]


class Task:
    """Members of a workload on a device, and their samples."""

    def __init__(self, workload: Workload, size: int, device: str, dtype: torch.dtype) -> None:
        rows = workload.steps * workload.batch
        generator = torch.Generator().manual_seed(0)
        self._arrays = torch.randn(rows, workload.inputs, generator=generator, dtype=dtype), torch.arange(rows) % 10
        self.device = device
        self._backend = open_backend(device)
        self.batch = workload.batch
        self.orders = Orders(0, {"train": rows})
        self.members = [
            Member(
                f"m{number}",
                model=partial(workload.model, number, dtype),
                optimizer=partial(Adam, lr=1e-3 * (number % 16 + 1)),
                batch_size=workload.batch,
            )
            for number in range(size)
        ]

    def lives(self) -> list[LiveMember]:
        """Return all members at their beginning."""
        return [
            build_member(member, self._backend, study_seed=0, objective="train_loss", mode="min", exact=False)
            for member in self.members
        ]

    def block(self, epoch: int) -> Block:
        """Return all samples in the order of the epoch."""
        order = self.orders.epoch("train", epoch)
        layout, rows = Layout.of(tuple(array[0] for array in self._arrays)), len(order)
        place = Place(leg=0, split="train", epoch=epoch, section=0, start=0, rows=rows, last=True)
        found = layout.block(place, np.zeros(layout.block_bytes(rows), np.uint8))
        found.indices[:], found.sound[:] = order, True
        leaves = tuple(array[torch.from_numpy(order)].to(self._backend.device) for array in self._arrays)
        return found.with_copies(leaves)


class Side(Protocol):
    """A way of stepping all members of a task."""

    @property
    def models(self) -> Sequence[nn.Module]:
        """The members' networks, in the order of their names."""
        ...

    def prepare(self, epoch: int) -> None:
        """Do what is no part of the steps."""
        ...

    def run(self, block: Block) -> None:
        """Take all steps of all members on a block."""
        ...


class Programs:
    """Argosy's programs as a trainer runs them: they cut batches, keep losses and digests, and move positions."""

    def __init__(self, task: Task, programs: Sequence[Program]) -> None:
        self._task = task
        self._programs = programs

    @property
    def models(self) -> Sequence[nn.Module]:
        """See `Side.models`."""
        lives = [one for program in self._programs for one in program.members]
        return [one.model for one in sorted(lives, key=lambda one: int(one.member.name[1:]))]

    def prepare(self, epoch: int) -> None:
        """See `Side.prepare`."""
        for program in self._programs:
            for one in program.members:
                one.begin_epoch(self._task.orders, epoch)

    def run(self, block: Block) -> None:
        """See `Side.run`."""
        for program in self._programs:
            with program.active():
                for batch in program.cut(block):
                    program.begin(batch)
                    program.finish()


class Apart(Programs):
    """Each member's steps captured, and replayed on a stream of its own beside the others'."""

    def __init__(self, task: Task) -> None:
        super().__init__(task, _captured_alone(task))

    def run(self, block: Block) -> None:
        """See `Side.run`."""
        with graphed.run_concurrently(self._programs):
            super().run(block)


def one_after_another(task: Task) -> Programs:
    """Return each member alone."""
    return Programs(task, [Solo(one) for one in task.lives()])


def captured_one_after_another(task: Task) -> Programs:
    """Return each member alone, with captured steps."""
    return Programs(task, _captured_alone(task))


def fused(task: Task) -> Programs:
    """Return one program for each architecture."""
    return Programs(task, _alike(task))


def captured(task: Task) -> Programs:
    """Return one program for each architecture, with captured steps."""
    return Programs(task, [graphed.Graphed.of(program) for program in _alike(task)])


def compiled(task: Task) -> Programs:
    """Return one program for each architecture, with a pass compiled by torch."""
    return Programs(task, _alike(task, compile=True))


def _alike(task: Task, *, compile: bool = False) -> Sequence[Fused]:
    kinds: dict[str, list[LiveMember]] = {}
    for one in task.lives():
        kinds.setdefault(str(one.model), []).append(one)
    return [Fused.of(alike, Compilation() if compile else None) for alike in kinds.values()]


def _captured_alone(task: Task) -> Sequence[Program]:
    return [graphed.Graphed.of(Solo(one)) for one in task.lives()]


class Chosen:
    """The programs chosen as a trainer does it, by timing steps that count."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._instances = [ProgramInstance.of([self._assigned(one)]) for one in task.lives()]
        self.packed: list[Packed] = []
        """The choices so far."""
        heartbeat = Heartbeat.private()
        kinds: tuple[Kind, ...] = ("plain", "graphed")
        self._fusion = ProgramChoice(
            *("cpu:0", self._instances, self._note, lambda names: [], heartbeat, lambda since: None),
            allowed=True,
            kinds=kinds,
        )
        self._fusion.note_assigned()

    @property
    def models(self) -> Sequence[nn.Module]:
        """See `Side.models`."""
        lives = [assigned.live for instance in self._instances for assigned in instance.assignment]
        return [one.model for one in sorted(lives, key=lambda one: int(one.member.name[1:]))]

    @property
    def settled(self) -> bool:
        """Whether all programs are chosen."""
        return all(
            instance.fusion_group is None or not instance.fusion_group.needs_choice(self._count(instance.fusion_group))
            for instance in self._instances
        )

    def prepare(self, epoch: int) -> None:
        """See `Side.prepare`."""
        for instance in self._instances:
            for assigned in instance.assignment:
                assigned.live.begin_epoch(self._task.orders, epoch)

    def run(self, block: Block) -> None:
        """See `Side.run`."""
        self._fusion.form_groups(block)
        through = False
        while not through:
            stepped = [self._step(instance, block) for instance in list(self._instances)]
            through = all(stepped)
            self._fusion.settle()

    def _step(self, instance: ProgramInstance, block: Block) -> bool:
        try:
            return instance.step(block, _never)
        except Exception as error:  # as in a trainer: other programs step what a common one cannot
            if not instance.together:
                raise
            instance.undo()
            self._fusion.handle_error(instance, str(error), memory=False)
            return False

    def _assigned(self, live: LiveMember) -> AssignedMember:
        files = Files(Path(tempfile.gettempdir()), None)  # nothing is saved
        return AssignedMember(live, files, self._task.orders, 1, stream_epoch=0, next_section=0, earlier=0, leads=True)

    def _count(self, fusion_group: FusionGroup) -> int:
        return sum(len(instance.assignment) for instance in self._instances if instance.fusion_group is fusion_group)

    def _note(self, report: SectionReport) -> None:
        self.packed += [event for event in report.events if isinstance(event, Packed)]


def _never() -> bool:
    return False


class Loop:
    """A hand-written loop, with batches cut beforehand; it keeps nothing of a step."""

    def __init__(self, task: Task, **how: Any) -> None:
        lives = task.lives()
        self._batch = task.batch
        self.models = [one.model for one in lives]
        self._pairs = [(one.model, self._optimizer(one, how)) for one in lives]

    def prepare(self, epoch: int) -> None:
        """See `Side.prepare`."""

    def run(self, block: Block) -> None:
        """See `Side.run`."""
        batches = list(zip(*(leaf.split(self._batch) for leaf in block.leaves), strict=True))
        for (model, optimizer), (x, y) in itertools.product(self._pairs, batches):
            optimizer.zero_grad(set_to_none=True)
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()

    def _optimizer(self, one: LiveMember, how: dict[str, Any]) -> Optimizer:
        return Adam(one.model.parameters(), lr=one.optimizer.param_groups[0]["lr"], **how)


class Compiled(Loop):
    """The loop with torch.compile for each network's forward and backward pass."""

    def __init__(self, task: Task) -> None:
        super().__init__(task, fused=True)
        self._pairs = [(torch.compile(model), optimizer) for model, optimizer in self._pairs]


class Graphed(Loop):
    """The loop with each member's whole step captured as a CUDA graph, and replayed."""

    def __init__(self, task: Task) -> None:
        super().__init__(task, fused=True, capturable=True)
        block = task.block(0)
        self._inputs = tuple(leaf[: task.batch].clone() for leaf in block.leaves)
        self._steps = [self._captured(model, optimizer) for model, optimizer in self._pairs]

    def run(self, block: Block) -> None:
        """See `Side.run`: a batch is copied once for all members."""
        for batch in zip(*(leaf.split(self._batch) for leaf in block.leaves), strict=True):
            for into, leaf in zip(self._inputs, batch, strict=True):
                into.copy_(leaf)
            for step in self._steps:
                step()

    def _captured(self, model: nn.Module, optimizer: Optimizer) -> Callable[[], None]:
        """Capture the step after three warm-up steps, which change the weights: this side takes no part in comparisons of weights."""

        def step(inputs: Tensor, target: Tensor) -> None:
            optimizer.zero_grad(set_to_none=True)
            functional.cross_entropy(model(inputs), target).backward()
            optimizer.step()

        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                step(*self._inputs)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step(*self._inputs)
        return graph.replay
