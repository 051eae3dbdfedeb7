"""Tests that a search whose trainer and then driver are killed ends like one that ran undisturbed."""

import json
from pathlib import Path

import evidence
import forked
import living
import pytest
from searches import outcome, tune

import argosy
from argosy.running.control.driver import Driver
from argosy.running.control.losses import RecoveryWay
from argosy.running.watch.phase import Phase

SEARCH = """
import os, signal, time
from functools import partial
from pathlib import Path
import numpy as np
from optuna.distributions import FloatDistribution
from torch import nn
from torch.optim import SGD
import argosy

FOLDER = Path({folder!r})
x = np.random.RandomState(0).randn(200, 6).astype(np.float32)
data = argosy.Data(arrays=(x, np.arange(200) % 10), val_arrays=(x, np.arange(200) % 10))

def accuracy(outputs, targets):
    with (FOLDER / "strikes").open("ab") as strikes:
        strikes.write(b".")
        strikes.flush()
        count = strikes.tell()
    if count == 10:
        os.kill(os.getpid(), signal.SIGKILL)
    if count == 25:
        while not (FOLDER / "driver").exists():
            time.sleep(0.01)
        os.kill(int((FOLDER / "driver").read_text()), signal.SIGKILL)
    return argosy.accuracy(outputs, targets)

def build(parameters):
    return argosy.Member("net", model=partial(nn.Linear, 6, 10), optimizer=partial(SGD, lr=parameters["lr"]), batch_size=8,
        eval_batch_size=200, metrics={{"accuracy": accuracy}})

search = argosy.Search(build=build, space={{"lr": FloatDistribution(0.001, 1.0, log=True)}}, data=data, max_epochs=6,
    scheduler={scheduler!r}, n_trials=6, eta=2)
"""


@pytest.mark.parametrize("scheduler", ["asha", "pbt"])
def test_whatever_is_killed_the_same_command_ends_with_the_same_table(tmp_path: Path, scheduler: str) -> None:
    (tmp_path / "search.py").write_text(SEARCH.format(folder=str(tmp_path), scheduler=scheduler))
    words = ["tune", "search.py", "--devices", "cpu:2", "--numerics", "exact", "--json", "--verbose", "--dir"]
    with (tmp_path / "said").open("w") as said:
        driver = forked.started(tmp_path, [*words, "killed"], out=said.fileno(), err=said.fileno())
        (tmp_path / "there").write_text(str(driver.pid))
        (tmp_path / "there").rename(tmp_path / "driver")
        assert driver.wait() == -9, (tmp_path / "said").read_text()
    tables = []
    for name, launcher in (("killed", "processes"), ("whole", "processes" if scheduler == "pbt" else "inline")):
        found = forked.command(tmp_path, [*words, name, "--launcher", launcher])
        assert found.returncode == 0, found.stderr
        tables.append(json.loads(found.stdout)["trials"])
    assert tables[0] == tables[1]
    assert len(tables[0]) == (6 if scheduler == "asha" else 6 + 5 * 3)
    # All clones of a generation are begun before it trains, so that nothing is prepared beyond its end and thrown away.
    assert argosy.load(tmp_path / "whole").preparations == 1.0
    assert '"WorkerLost"' in (tmp_path / "killed" / "journal.jsonl").read_text()


@pytest.mark.parametrize("scheduler", ["hyperband", "asha"])
def test_trials_that_fall_behind_are_compared_as_usual_and_train_the_same_epochs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheduler: str
) -> None:
    terms = {"scheduler": scheduler, "n_trials": 9, "numerics": "exact"}
    whole = tune(tmp_path / "whole", **terms)
    lost: list[str] = []

    def act(driver: Driver) -> None:
        if not lost and driver.run.phase is Phase.TRAINING and len(driver.legs.devices) == 2 and driver.state.fed:
            lost.append(driver.legs.devices[0])
            living.lose(driver, lost[0])

    living.way_on(monkeypatch, lambda: RecoveryWay.APART)
    living.at_every_round(monkeypatch, act)
    assert outcome(tune(tmp_path / "run", **terms)) == outcome(whole)
    assert evidence.event_lines(tmp_path / "run", "WorkerLost")
    assert evidence.event_lines(tmp_path / "run", "MemberRested")
