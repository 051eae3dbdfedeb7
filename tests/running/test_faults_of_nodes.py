"""Tests that all nodes of a run continue, with the results of a run without faults, after processes of one node are killed or stopped."""

import signal
import time
from pathlib import Path

import evidence
import family
import pytest
from family import HANG_SECONDS, SCRIPT, TWO_NODES, Run, repeats_at_most_one_interval, unsure

from argosy.running.launch import processes

SHARED, LOCAL, AUTO = (TWO_NODES.format(sharing=sharing) for sharing in ("all-shared", "local", "auto"))
EXCHANGES = {"node0/feeder-0/exchange", "node1/feeder-0/exchange"}
"""Both exchange processes: if one dies, its peer breaks too, and either loss may be reported first."""


@pytest.fixture(scope="module")
def faultless(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """Return the results of the same study on one node, without faults."""
    return family.faultless(tmp_path_factory.mktemp("faultless"))


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up stopped processes after one second, so that the tests are short."""
    monkeypatch.setattr(processes, "STOPPED_SECONDS", 1.0)


def check(run: Run, faultless: dict[str, object]) -> list[str]:
    """Check what must hold at the end of every run, and return the workers that it lost."""
    assert run.end() == 0, run.errors
    assert run.left() == []
    assert evidence.results(run.directory) == faultless
    assert repeats_at_most_one_interval(run.directory)
    assert not (run.directory / "rendezvous").exists()
    return [line["worker"] for line in run.lines() if line["event"] == "WorkerLost"]


@pytest.mark.parametrize(
    ("node", "number"), [("node0", signal.SIGKILL), ("node1", signal.SIGKILL), ("node1", signal.SIGSTOP)]
)
def test_a_lost_feeder_is_replaced_and_named(
    tmp_path: Path, faultless: dict[str, object], node: str, number: signal.Signals
) -> None:
    run = Run.halted(tmp_path, "SectionEnded", 2, unsure(2), settings=SHARED)
    (victim,) = run.role("feeder", node)
    hurt = time.time()
    victim.send_signal(number)
    run.go_on()
    lost = check(run, faultless)
    assert f"{node}/feeder-0" in lost
    assert set(lost) <= {f"{node}/feeder-0", *EXCHANGES}
    (told,) = [line["at"] for line in run.lines() if line.get("worker") == f"{node}/feeder-0" and "detail" in line]
    # A death is seen at once, a stop after `STOPPED_SECONDS`; only a live process without progress gets `hang_seconds`.
    assert told - hurt < HANG_SECONDS / 2


@pytest.mark.parametrize(("node", "number"), [("node1", signal.SIGKILL), ("node0", signal.SIGSTOP)])
def test_a_lost_exchange_is_replaced(
    tmp_path: Path, faultless: dict[str, object], node: str, number: signal.Signals
) -> None:
    run = Run.halted(tmp_path, "SectionEnded", 2, unsure(2), settings=SHARED)
    talking = [peer.laddr.ip for exchange in run.role("exchange") for peer in exchange.net_connections("inet")]
    assert set(talking) == {"127.0.0.1"}, "processes on other hosts could connect to these"
    (victim,) = run.role("exchange", node)
    victim.send_signal(number)
    run.go_on()
    lost = check(run, faultless)
    # The loss is counted once, whichever end reports it.
    assert len(lost) == 1
    assert set(lost) <= EXCHANGES


@pytest.mark.parametrize("settings", [SHARED, LOCAL], ids=["all-shared", "local"])
def test_a_lost_trainer_is_replaced_and_named(tmp_path: Path, faultless: dict[str, object], settings: str) -> None:
    run = Run.halted(tmp_path, "SectionEnded", 2, unsure(2), settings=settings)
    (victim,) = run.role("trainer", "node1")
    victim.kill()
    run.go_on()
    assert check(run, faultless) == ["node1/cpu:0"]


def test_a_loader_worker_is_replaced_without_a_word(tmp_path: Path, faultless: dict[str, object]) -> None:
    run = Run.halted(tmp_path, "SectionEnded", 2, unsure(2), settings=SHARED)
    (victim,) = run.role("loader", "node1")
    victim.kill()
    run.go_on()
    assert check(run, faultless) == []


KILLED_EXCHANGE = """
import os, signal, sys
from pathlib import Path
from argosy.stream import exchange

measure, killed = exchange._measure, Path(sys.argv[1] + ".killed")

def dies_once(team, *candidate):
    if team.rank == 1 and not killed.exists():
        killed.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return measure(team, *candidate)

exchange._measure = dies_once
"""


def test_a_exchange_that_is_killed_while_it_measures_costs_nothing_but_time(
    tmp_path: Path, faultless: dict[str, object]
) -> None:
    run = Run(tmp_path, KILLED_EXCHANGE + SCRIPT, settings=AUTO)
    run.go_on()
    lost = check(run, faultless)
    assert len(lost) == 1
    assert set(lost) <= EXCHANGES
    assert [line["event"] for line in run.lines()].count("SharingChosen") == 1


def test_the_same_command_after_a_kill_of_the_driver_ends_with_the_same_results(
    tmp_path: Path, faultless: dict[str, object]
) -> None:
    killed = []
    for epochs in (1, 5, 9):
        run = Run.halted(tmp_path, "SectionEnded", epochs, settings=SHARED)
        run.process.kill()
        run.process.wait()
        killed.append(run)
    run.go_on()
    assert check(Run(tmp_path, settings=SHARED), faultless) == []
    assert [run.left() for run in killed] == [[], [], []]


def test_a_node_whose_feeders_do_not_live_is_given_up(tmp_path: Path, faultless: dict[str, object]) -> None:
    run = Run(tmp_path, settings=SHARED)
    run.wait_for("PlanMade")
    while run.process.poll() is None and "node1" not in [line.get("worker") for line in run.lines()]:
        for feeder in run.role("feeder", "node1"):
            run.signal(feeder, signal.SIGKILL)
        time.sleep(0.02)
    lost = check(run, faultless)
    assert [worker for worker in lost if worker not in EXCHANGES][-1] == "node1"
    assert lost.index("node1") >= 3
    ended = [line for line in run.lines() if line["event"] == "SectionEnded"]
    assert {line["device"] for line in ended[-4:]} == {"node0/cpu:0"}
