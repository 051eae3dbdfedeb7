"""Tests of the diagnosis of bottlenecks by the rule of SC'18: the bottleneck is the stage between a full and an empty queue."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim import Adam

import argosy
from argosy.results.diagnosis import Diagnosis, diagnose
from argosy.stream.gauges import MAX_POINTS, QueueGauge


def feeder(*, prepare: float = 0.0, exchange: float = 0.0, train: float = 0.0, **rest: Any) -> dict[str, Any]:
    """Return a feeder's gauge in which the queues have these mean fills."""
    queues = {"to_prepare": prepare, "to_exchange": exchange, "to_train": train}
    counted = {
        "cores": 2,
        "loaders": 2,
        "prepared": 1000,
        "delivered": 2000,
        "exchanged_bytes": 10**7,
        "seconds": 10.0,
        "busy_seconds": 5.0,
        "filling_seconds": 8.0,
        "preparation_cpu_seconds": 4.0,
    }
    return {**counted, **rest, **{name: {"mean": fill} for name, fill in queues.items()}}


TRAINER = {"rows": 3000, "busy_seconds": 2.0, "waiting_seconds": 0.0}


def of(*gauges: dict[str, Any]) -> Diagnosis:
    named = [(f"node{number}/feeder-0", gauge) for number, gauge in enumerate(gauges)]
    found = diagnose([*named, ("node0/cpu:0", TRAINER), ("node1/cpu:0", {**TRAINER, "busy_seconds": 3.0})])
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("fills", "stage"),
    [
        ({"prepare": 0.9}, "preparation"),
        ({"prepare": 0.9, "exchange": 0.9}, "exchange"),
        ({"prepare": 0.9, "exchange": 0.9, "train": 0.9}, "training"),
        ({"train": 0.9}, "training"),
        ({"exchange": 0.9}, "exchange"),
    ],
)
def test_the_bottleneck_is_the_last_stage_behind_a_full_queue(fills: dict[str, float], stage: str) -> None:
    # All stages have about the same rate, so only the queues decide: 1000 samples/s.
    even = {"busy_seconds": 2.0, "filling_seconds": 2.0}
    found = of(feeder(**fills, **even), feeder(**fills, **even))
    assert (found.stage, found.verdict.split(":")[0]) == (stage, stage)
    before, behind = {
        "preparation": ("prepare", "exchange"),
        "exchange": ("exchange", "train"),
        "training": ("train", ""),
    }[stage]
    assert found.queue_before == pytest.approx(fills[before])
    assert found.queue_behind == (pytest.approx(fills.get(behind, 0.0)) if behind else None)


def test_on_one_node_training_is_behind_preparation() -> None:
    alone = feeder(prepare=0.9, train=0.1, exchanged_bytes=0)
    found = diagnose([("feeder-0", alone), ("cpu:0", TRAINER)])
    assert found is not None
    assert (found.stage, found.queue_before, found.queue_behind) == ("preparation", 0.9, 0.1)


def test_the_faster_stage_is_not_accused_by_a_queue_that_never_fills() -> None:
    quick = feeder(prepared=393_000, delivered=393_000, busy_seconds=1.0, exchanged_bytes=0)
    found = diagnose([("feeder-0", quick), ("cpu:0", {**TRAINER, "rows": 25_000, "busy_seconds": 1.0})])
    assert found is not None
    assert found.stage == "training"
    assert found.verdict.startswith("training: members take 25,000 samples/s each, preparation could deliver 393,000")


def test_too_early_to_tell() -> None:
    for early in ({"seconds": 0.3}, {"prepared": 0, "busy_seconds": 0.0}, {"busy_seconds": 0.0}):
        assert diagnose([("feeder-0", feeder(**early)), ("cpu:0", TRAINER)]) is None


FILL = st.floats(0, 1)
NODE = st.fixed_dictionaries(
    {
        "prepare": FILL,
        "exchange": FILL,
        "train": FILL,
        "prepared": st.integers(1, 10**6),
        "delivered": st.integers(1, 10**6),
        "exchanged_bytes": st.sampled_from([0, 10**7]),
        "busy_seconds": st.floats(0.01, 100),
        "filling_seconds": st.floats(0.01, 100),
    }
)


@given(st.lists(NODE, min_size=1, max_size=3), st.integers(1, 10**6))
def test_a_stage_that_is_clearly_faster_than_another_is_never_accused(nodes: list[dict[str, Any]], rows: int) -> None:
    named = [(f"node{number}/feeder-0", feeder(**node)) for number, node in enumerate(nodes)]
    found = diagnose([*named, ("node0/cpu:0", {**TRAINER, "rows": rows})])
    assert found is not None
    rates = {"preparation": found.preparing_rate, "training": found.taking_rate}
    accused = {**rates, "exchange": found.peak_rate}[found.stage]
    assert accused <= 1.2 * min(rates.values()) * (1 + 1e-9)


def test_one_slow_node_is_named_though_the_blocks_of_the_others_wait_for_it() -> None:
    found = of(feeder(exchange=0.9), feeder(prepare=0.9, busy_seconds=10.0))
    assert (found.stage, found.node) == ("preparation", "node1")
    assert "node1 is slow, with 100 samples/s against 200 of the others" in found.verdict


def test_rates_are_those_of_sc18() -> None:
    found = of(feeder(prepare=0.9), feeder(prepare=0.9, filling_seconds=10.0))
    assert found.preparing_rate == 400.0  # r_p of both nodes together: each prepares 1000 samples in 5 s
    assert found.taking_rate == 1000.0  # r_c of the slower device
    assert found.peak_rate == 200.0  # peak(n) of the node that received least
    assert "250 samples/s per core on 4 cores, 400 samples/s in all, members could take 1,000" in found.verdict


def test_advice_names_loader_workers_only_where_cores_are_left() -> None:
    assert "--loader-workers" in of(feeder(prepare=0.9, loaders=1), feeder(prepare=0.9, loaders=1)).verdict
    assert "--loader-workers" not in of(feeder(prepare=0.9), feeder(prepare=0.9)).verdict


def test_nothing_flowed_nothing_said() -> None:
    assert diagnose([]) is None
    assert diagnose([("feeder-0", feeder(delivered=0)), ("cpu:0", TRAINER)]) is None


def test_a_queue_keeps_its_whole_history_in_bounded_space() -> None:
    queue = QueueGauge()
    for number in range(100_000):
        queue.note(float(number >= 50_000), 0.1)
    assert len(queue.history) < MAX_POINTS
    assert queue.mean == pytest.approx(0.5)
    assert len(queue.history) * queue.step_seconds == pytest.approx(10_000, rel=0.05)
    assert (queue.history[0], queue.history[-1]) == (0.0, 1.0)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))


@pytest.mark.parametrize("block_size", [16, None], ids=["batches of two blocks", "one block"])
def test_a_trainer_counts_each_sample_of_the_stream_that_its_members_step_on_once(
    tmp_path: Path, block_size: int | None
) -> None:
    """A trainer counts each sample of the stream once, however many members use it and however it is cut into batches.

    Members of one architecture step through a block in several passes, of which the last makes no step. Batches span two blocks of 16.
    """
    x, y = torch.randn(500, 6, generator=torch.Generator().manual_seed(0)), torch.arange(500) % 4
    member = argosy.Member("m", model=mlp, optimizer=partial(Adam, lr=0.01), batch_size=32)
    study = argosy.Study(
        data=argosy.Data(arrays=(x, y), val_arrays=(x[:80], y[:80])),
        members=argosy.replicate(member, seeds=3),
        stop=argosy.MaxEpochs(2),
    )
    report = argosy.train(study, directory=tmp_path, launcher="inline", devices="cpu:1", block_size=block_size)
    assert report.gauges["cpu:0"]["rows"] == 2 * (500 + 80)
