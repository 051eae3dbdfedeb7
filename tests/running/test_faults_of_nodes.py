"""What belongs to one node of several is killed and stopped for real; all nodes go on, with the faultless results."""

import signal
import time
from pathlib import Path

import evidence
import pytest
import studies
from family import Run, repeats_at_most_one_interval

import argosy

NODES = """
import sys, argosy, studies
study = studies.study({{length}}, fleet=[*studies.members(), studies.member("slow", augment=studies.dawdle)], epochs={{epochs}})
argosy.train(study, directory=sys.argv[1], devices="cpu:1", nodes=2, sharing="{sharing}", block_size=32, loader_workers=1,
             checkpoint_seconds=0.05, numerics="exact", hang_seconds={{hang_seconds}})
"""
SHARED, LOCAL, AUTO = (NODES.format(sharing=sharing) for sharing in ("all-shared", "local", "auto"))
COURIERS = {"node0/feeder-0/courier", "node1/feeder-0/courier"}
"""Where a courier dies, the one at the other end breaks, and either may be heard first."""


@pytest.fixture(scope="module")
def faultless(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """Results of the same study on one node."""
    directory = tmp_path_factory.mktemp("faultless")
    fleet = [*studies.members(), studies.member("slow", augment=studies.dawdle)]
    study = studies.study(400, fleet=fleet, epochs=3)
    argosy.train(study, directory=directory, launcher="inline", numerics="exact")
    return evidence.results(directory)


def check(run: Run, faultless: dict[str, object]) -> list[str]:
    """What every run must be like in the end; returns the workers that it lost."""
    assert run.end() == 0, run.errors
    assert run.left() == []
    assert evidence.results(run.directory) == faultless
    assert repeats_at_most_one_interval(run.directory)
    return [line["worker"] for line in run.lines() if line["event"] == "WorkerLost"]


@pytest.mark.parametrize(
    ("node", "number"), [("node0", signal.SIGKILL), ("node1", signal.SIGKILL), ("node1", signal.SIGSTOP)]
)
def test_a_lost_feeder_is_replaced_and_named(
    tmp_path: Path, faultless: dict[str, object], node: str, number: signal.Signals
) -> None:
    run = Run(tmp_path, SHARED)
    run.wait_for("EpochEnded", 2)
    (victim,) = run.role("feeder", node)
    hurt = time.time()
    victim.send_signal(number)
    lost = check(run, faultless)
    assert f"{node}/feeder-0" in lost
    assert set(lost) <= {f"{node}/feeder-0", *COURIERS}
    (told,) = [line["at"] for line in run.lines() if line.get("worker") == f"{node}/feeder-0" and "detail" in line]
    # A stopped process may be about to go on: it is given 5 s.
    assert told - hurt < (5 if number == signal.SIGKILL else 10)


@pytest.mark.parametrize(("node", "number"), [("node1", signal.SIGKILL), ("node0", signal.SIGSTOP)])
def test_a_lost_courier_is_replaced(
    tmp_path: Path, faultless: dict[str, object], node: str, number: signal.Signals
) -> None:
    run = Run(tmp_path, SHARED)
    run.wait_for("EpochEnded", 2)
    (victim,) = run.role("courier", node)
    victim.send_signal(number)
    lost = check(run, faultless)
    # Counted once, whoever hears of it.
    assert len(lost) == 1
    assert set(lost) <= COURIERS


@pytest.mark.parametrize("script", [SHARED, LOCAL], ids=["all-shared", "local"])
def test_a_lost_trainer_is_replaced_and_named(tmp_path: Path, faultless: dict[str, object], script: str) -> None:
    run = Run(tmp_path, script)
    run.wait_for("EpochEnded", 2)
    (victim,) = run.role("trainer", "node1")
    victim.kill()
    assert check(run, faultless) == ["node1/cpu:0"]


def test_a_loader_worker_is_replaced_without_a_word(tmp_path: Path, faultless: dict[str, object]) -> None:
    run = Run(tmp_path, SHARED)
    run.wait_for("EpochEnded", 2)
    (victim,) = run.role("loader", "node1")
    victim.kill()
    assert check(run, faultless) == []


def test_a_courier_that_is_killed_while_it_measures_costs_nothing_but_time(
    tmp_path: Path, faultless: dict[str, object]
) -> None:
    run = Run(tmp_path, AUTO)
    run.wait_for("RunStarted")
    while not (found := run.role("courier", "node1")):
        time.sleep(0.001)
    found[0].kill()
    lost = check(run, faultless)
    assert len(lost) == 1
    assert set(lost) <= COURIERS
    assert [line["event"] for line in run.lines()].count("SharingChosen") == 1


def test_the_same_command_after_a_kill_of_the_driver_ends_with_the_same_results(
    tmp_path: Path, faultless: dict[str, object]
) -> None:
    killed = []
    for epochs in (1, 5, 9):
        run = Run(tmp_path, SHARED)
        run.wait_for("EpochEnded", epochs)
        run.look()
        run.process.kill()
        run.process.wait()
        killed.append(run)
    assert check(Run(tmp_path, SHARED), faultless) == []
    assert [run.left() for run in killed] == [[], [], []]
