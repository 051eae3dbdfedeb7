"""Members that only count: a step computes their one weight from its previous value and the place of the batch in the stream.

The weight thus proves which batches were stepped on and in which order, and that none was missed or came twice. `weight_after`
computes the expected weight from a list of stream epochs, without a trainer.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar, cast

from argosy.stream.blocks import Place
from argosy.stream.order import Digest
from argosy.study import Member
from argosy.training.member.best import Best, BestWeights

__all__ = ["Counted", "CountingBlock", "CountingMember", "loss_after", "weight_after"]

MASK = 2**61 - 1
"""The largest weight; files and journals hold all weights up to it exactly."""


def stepped(weight: int, epoch: int, start: int, rows: int) -> int:
    """Return the weight after a step on the batch of `rows` rows that begins at an element of a stream epoch."""
    return (
        (weight ^ (epoch * 1_000_003 + start * 101 + rows)) * 6_364_136_223_846_793_005 + 1_442_695_040_888_963_407
    ) & MASK


def weight_after(epochs: Sequence[int], length: int, batch: int, position: int) -> int:
    """Return the weight of a member that has trained on these stream epochs, on the last one only up to a position."""
    weight = 0
    for number, epoch in enumerate(epochs, start=1):
        stop = position if number == len(epochs) else length
        for start in range(0, stop, batch):
            weight = stepped(weight, epoch, start, min(batch, stop - start))
    return weight


def loss_after(weight: int, epoch: float) -> float:
    """Return a loss that depends on the weight and tends to fall from section to section."""
    return (1.0 + weight % 997 / 997) / (1.0 + epoch)


class NoNetwork:
    """The network of every member; only its size is ever asked for."""

    parameters = staticmethod(tuple)


class CountingBlock:
    """A block of the stream without samples."""

    leaves: ClassVar[tuple[()]] = ()
    marks: ClassVar[tuple[()]] = ()
    touched: ClassVar[bool] = False
    sound: ClassVar[Any] = SimpleNamespace(any=lambda: True)

    def __init__(self, place: Place) -> None:
        self.place = place

    def private(self) -> "CountingBlock":
        """See `argosy.stream.blocks.Block.private`."""
        return self

    def class_numbers(self) -> None:
        """See `argosy.stream.blocks.Block.class_numbers`."""


@dataclass
class Counts:
    """Replaces a tally and a validation."""

    rows: int = 0
    weight: int = 0

    @property
    def digest(self) -> Digest:
        """The digest of the steps."""
        return Digest(self.rows, self.weight, 0)

    def mean_by_now(self, name: str) -> float:
        """See `argosy.training.member.tally.Tally.mean_by_now`."""
        return math.nan


@dataclass(slots=True)
class CountedWeights:
    """Replaces `argosy.training.member.weights.NetworkWeights`: the one weight."""

    weight: int = 0

    def read(self, *, averaged: bool = False) -> Any:
        """Return the weight."""
        return self.weight

    def copied(self, *, averaged: bool) -> Any:
        """Return the weight."""
        return self.weight

    def late(self, weights: Any) -> list[str]:
        """Return no names, as there are no buffers."""
        return []


@dataclass(slots=True)
class CountingMember:
    """A member that only counts, with what a trainer uses of `argosy.training.member.live.LiveMember`."""

    member: Member
    backend: Any
    spend: Callable[[float], None]
    """Lets virtual time pass."""
    row_seconds: float
    """Virtual seconds that a step takes per row."""
    length: int
    lengths: dict[str, int]
    trips: Callable[["CountingMember"], None] = lambda live: None
    """Called before each step, to raise what the script wants."""
    weights: CountedWeights = field(default_factory=CountedWeights)
    best: BestWeights = field(init=False)
    epoch: int = 0
    section: int = 0
    steps: int = 0
    seconds: float = 0.0
    samples: int = 0
    position: int = 0
    carried: int = 0
    again: int = 0
    stream_epoch: int = -1
    private: bool = False
    diverged: bool = False
    answers: None = None
    """A member that only counts has no answers to validation samples."""
    val_cutter: Any = None
    loss_scale: Any = None
    schedule: Any = None
    model: Any = NoNetwork
    train: Counts = field(default_factory=Counts)
    val: Counts = field(default_factory=Counts)
    randomness: Any = field(default_factory=lambda: SimpleNamespace(uses_others=False))
    optimizer: Any = field(default_factory=lambda: SimpleNamespace(param_groups=[]))
    _loaded: int = 0
    """Elements of the next batch that were gathered when the member was saved; kept until its epoch begins."""

    def __post_init__(self) -> None:
        self.best = BestWeights(cast(Any, self.weights))

    def begin_epoch(self, orders: Any, stream_epoch: int, position: int = 0) -> None:
        """See `LiveMember.begin_epoch`."""
        self.stream_epoch, self.position = stream_epoch, position
        self.carried, self._loaded = self._loaded, 0
        self.begin_section()

    def begin_section(self) -> None:
        """See `LiveMember.begin_section`."""
        self.val, self.val_cutter = Counts(), "val" in self.lengths or None

    # ---- what a program calls

    def cut(self, place: Place) -> Iterator[tuple[int, int]]:
        """Yield the batches that a block completes, as the start and the rows of each."""
        stop = place.start + place.rows
        if place.start > self.position + self.carried:
            raise AssertionError(
                f"{self.member.name} stands at {self.position}+{self.carried} of epoch {place.epoch}, and is given a block from "
                f"{place.start} on: samples are missed"
            )
        while (rows := min(self.member.batch_size, self.length - self.position)) > 0 and self.position + rows <= stop:
            yield self.position, rows
        self.carried = max(self.carried, stop - self.position, 0)

    def step(self, start: int, rows: int) -> None:
        """Step on a batch."""
        self.trips(self)
        self.spend(rows * self.row_seconds)
        self.commit(start, rows)

    def evaluate(self, block: CountingBlock) -> Iterator[None]:
        """Evaluate a block of validation samples."""
        stop = block.place.start + block.place.rows
        if self.val.rows < stop:  # else it was evaluated before a command interrupted the block
            self.spend(block.place.rows * self.row_seconds / 3)
            self.val.rows = stop
            yield

    def commit(self, start: int, rows: int) -> None:
        """Note that a batch was stepped on."""
        self.best.keep()
        self.weights.weight = stepped(self.weights.weight, self.stream_epoch, start, rows)
        self.position, self.carried, self.steps = start + rows, 0, self.steps + 1
        self.samples += rows
        self.seconds += rows * self.row_seconds
        self.train.rows += rows
        self.train.weight = self.weights.weight

    # ---- the end of a section

    def end_section(self, sections: int) -> dict[str, float]:
        """See `LiveMember.end_section`."""
        self.backend.synchronize()  # raises after an assertion, as reading a loss does
        loss = loss_after(self.weights.weight, self.epoch + (self.section + 1) / sections)
        metrics = {"train_loss": loss, "lr": 0.1}
        if self.val_cutter is not None:
            metrics["val_loss"] = loss
        self.best.offer(Best(self.epoch, self.section, loss), "min")
        ends_epoch = self.section + 1 == sections
        self.section, self.seconds, self.samples, self.val_cutter = self.section + 1, 0.0, 0, None
        if ends_epoch:
            self.epoch, self.section, self.train, self.position, self.carried = self.epoch + 1, 0, Counts(), 0, 0
        return metrics

    # ---- files

    def forget_source(self) -> None:
        """See `LiveMember.forget_source`."""
        self.best.load(None)

    def state_dict(self, *, carried: bool = False) -> dict[str, Any]:
        """See `LiveMember.state_dict`."""
        self.backend.synchronize()
        best = self.best.section
        return {
            "weight": self.weights.weight,
            "epoch": self.epoch,
            "section": self.section,
            "position": self.position,
            "carried": self.carried if carried else 0,
            "steps": self.steps,
            "samples": self.samples,
            "seconds": self.seconds,
            "train": [self.train.rows, self.train.weight],
            "best": best and [best.epoch, best.section, best.value],
        }

    def load_state_dict(self, state: dict[str, Any]) -> int:
        """See `LiveMember.load_state_dict`."""
        self.weights.weight, self.epoch, self.section, self.steps = (
            state[name] for name in ("weight", "epoch", "section", "steps")
        )
        self.samples, self.seconds, self.train = state["samples"], state["seconds"], Counts(*state["train"])
        self.best.load(None if state["best"] is None else Best(*state["best"]))
        self._loaded = state["carried"]
        return int(state["position"])


class Counted:
    """The `solo` program of a counting member."""

    def __init__(self, live: CountingMember) -> None:
        self.live = live
        self._batch: tuple[int, int] | None = None

    @property
    def members(self) -> tuple[CountingMember, ...]:
        """See `Program.members`."""
        return (self.live,)

    def active(self, *, keep: bool = False) -> AbstractContextManager[None]:
        """See `Program.active`."""
        return nullcontext()

    def cut(self, block: CountingBlock) -> Iterator[tuple[int, int]]:
        """See `Program.cut`."""
        return self.live.cut(block.place)

    def begin(self, batch: tuple[int, int]) -> None:
        """See `Program.begin`."""
        self._batch = batch

    def finish(self) -> int:
        """See `Program.finish`."""
        assert self._batch is not None
        self.live.step(*self._batch)
        return self._batch[1]

    def evaluate(self, block: CountingBlock) -> Iterator[None]:
        """See `Program.evaluate`."""
        return self.live.evaluate(block)

    def release(self) -> None:
        """See `Program.release`."""
