"""A trainer hears the driver and the feeder over different connections: whose word comes first is chance."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import studies

from argosy.commands import Journaled, Leg, Measure, Measured, StartMember, Train
from argosy.events import Saved
from argosy.settings import Settings
from argosy.stream.blocks import ALIGNMENT, Block
from argosy.stream.schedule import Orders, places
from argosy.stream.sources import open_sources
from argosy.study import Study
from argosy.training.devices import backend_of
from argosy.training.trainer import Trainer

LENGTH, ROWS = 96, 32


def stream(study: Study, number: int) -> Iterator[Block]:
    """The blocks of a leg of one epoch."""
    sources = open_sources(study.data, seed=study.seed)
    lengths = {split: source.length for split, source in sources.items()}
    orders = Orders(study.seed, lengths)
    for place in places(Leg(number=number, epoch=0, position=0, until=1), lengths, ROWS):
        source = sources[place.split]
        memory = np.empty(source.layout.block_bytes(place.rows) + ALIGNMENT, np.uint8)
        memory = memory[-memory.ctypes.data % ALIGNMENT :]
        source.fill(source.layout.block(place, memory), 0, orders.block(place))
        yield source.layout.block(place, memory)


@pytest.fixture
def said() -> list[Any]:
    """What the trainer tells the driver."""
    return []


@pytest.fixture
def trainer(tmp_path: Path, said: list[Any]) -> Trainer:
    """One that has begun to measure on leg 1, of which no block has come."""
    study = studies.study(LENGTH, fleet=[studies.member("even", batch_size=32), studies.member("odd", batch_size=33)])
    trainer = Trainer(study, Settings(), tmp_path, name="cpu:0", backend=backend_of("cpu:0"), emit=said.append)
    trainer.know({split: source.length for split, source in open_sources(study.data, seed=study.seed).items()})
    trainer.obey(measure(trainer, 1))
    return trainer


def measure(trainer: Trainer, leg: int) -> Measure:
    return Measure(leg=leg, members=tuple(member.name for member in trainer.study.members), accumulate={})


def train(trainer: Trainer, leg: int) -> Train:
    starts = (
        StartMember(member=member.name, stream_epoch=0, checkpoint=None, best=None, accumulate=1, notes=())
        for member in trainer.study.members
    )
    return Train(leg=leg, members=tuple(starts))


def samples_after(trainer: Trainer, blocks: Iterator[Block]) -> set[int]:
    """How many samples each member has trained on when the training blocks are through."""
    for block in blocks:
        if block.place.split == "train":
            assert trainer.ready
            trainer.take(block)
    return set(trainer.samples.values())


def test_a_block_that_comes_before_the_word_to_measure_on_it_is_kept(trainer: Trainer, said: list[Any]) -> None:
    blocks = stream(trainer.study, 2)
    trainer.take(next(blocks))
    assert not said, "it was measured on, though leg 1 was to be measured on"
    assert not trainer.ready
    trainer.obey(measure(trainer, 2))
    assert all(isinstance(message, Measured) for message in said)
    assert len(said) == len(trainer.study.members)
    assert not trainer.ready
    trainer.obey(train(trainer, 2))
    assert samples_after(trainer, blocks) == {LENGTH}


def test_a_block_that_comes_before_the_word_to_train_on_it_is_kept(trainer: Trainer) -> None:
    trainer.obey(Train(leg=1, members=()))
    assert trainer.ready
    blocks = stream(trainer.study, 2)
    trainer.take(next(blocks))
    trainer.obey(train(trainer, 2))
    assert samples_after(trainer, blocks) == {LENGTH}


def test_a_journaled_checkpoint_stays_until_a_newer_one_is_journaled(tmp_path: Path, said: list[Any]) -> None:
    """The driver may have died, or be slow, while trainers go on saving: what it has journaled must be there."""
    study = studies.study(LENGTH, fleet=[studies.member("even", batch_size=32)])
    settings = Settings(checkpoint_seconds=1e-9)
    trainer = Trainer(study, settings, tmp_path, name="cpu:0", backend=backend_of("cpu:0"), emit=said.append)
    trainer.know({split: source.length for split, source in open_sources(study.data, seed=study.seed).items()})
    trainer.obey(train(trainer, 1))

    def files() -> list[str]:
        return sorted(path.name for path in (tmp_path / "members" / "even").glob("e*.pt"))

    blocks = list(stream(study, 1))
    trainer.take(blocks[0])
    saved = [message.checkpoint.file for message in said if isinstance(message, Saved)]
    trainer.obey(Journaled(member="even", file=saved[0]))
    for block in blocks[1:-1]:
        trainer.take(block)
    saved = list(dict.fromkeys(message.checkpoint.file for message in said if isinstance(message, Saved)))
    assert len(saved) >= 3
    assert files() == sorted(saved)
    trainer.obey(Journaled(member="even", file=saved[-1]))
    assert files() == sorted([saved[0], saved[-1]])


def test_blocks_of_an_earlier_leg_are_dropped(trainer: Trainer, said: list[Any]) -> None:
    trainer.obey(measure(trainer, 2))
    trainer.take(next(stream(trainer.study, 1)))
    assert trainer.ready
    assert not said
    trainer.obey(train(trainer, 2))
    assert samples_after(trainer, stream(trainer.study, 2)) == {LENGTH}
