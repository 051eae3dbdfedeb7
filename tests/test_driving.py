"""What a program that drives Argosy meets: quick commands, the guide, JSON and its schemas, queries and hooks."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import forked
import pytest

STUDY = """
from functools import partial
import torch
from torch import nn
import argosy

class Net(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, hidden), nn.ReLU(), nn.Linear(hidden, 3))
    def forward(self, x):
        return self.layers(x)

class Broken(Net):
    def forward(self, x):
        raise RuntimeError("no such layer")

x = torch.randn(150, 6, generator=torch.Generator().manual_seed(0))
y = x[:, :3].argmax(1)
member = partial(argosy.Member, optimizer=partial(torch.optim.SGD, lr=0.1), batch_size=10, metrics={"accuracy": argosy.accuracy})
study = argosy.Study(
    data=argosy.Data(arrays=(x[:100], y[:100]), val_arrays=(x[100:], y[100:])),
    members=[
        *argosy.replicate(member("wide", model=partial(Net, hidden=16)), seeds=3),
        *argosy.replicate(member("thin", model=partial(Net, hidden=2)), seeds=3),
        member("broken", model=partial(Broken, hidden=2)),
        member("wild", model=partial(Net, hidden=4), optimizer=partial(torch.optim.SGD, lr=1e30)),
    ],
    stop=argosy.MaxEpochs(3),
)
"""
SLOW = (
    "torch",
    "numpy",
    "rich.console",
    "psutil",
    "sqlite3",
    "argosy.planning",
    "argosy.stream",
    "argosy.tuning.search",
)
"""Modules that take a part of a third of a second to import, and are of no use to a command that reads a run."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a study file, and its run in ``runs/study``."""
    folder = tmp_path_factory.mktemp("driving")
    (folder / "study.py").write_text(STUDY)
    argosy(folder, "run", "study.py", "--launcher", "inline", "--devices", "cpu:1", code=1)
    return folder


def argosy(folder: Path, *words: str, code: int = 0) -> str:
    """Run the command in a folder, check its exit code, and return what it printed."""
    found = forked.command(folder, words)
    assert found.returncode == code, found.stdout + found.stderr
    return found.stdout


def told(folder: Path, *words: str, code: int = 0) -> Any:
    return json.loads(argosy(folder, *words, "--json", code=code))


@pytest.mark.parametrize("words", ["status runs/study", "report runs/study", "report runs/study --json", "runs"])
def test_commands_that_only_read_import_nothing_slow(folder: Path, words: str) -> None:
    program = (
        "import atexit, sys; from argosy.cli.app import main; "
        f"atexit.register(lambda: print([name for name in {SLOW} if name in sys.modules], file=sys.stderr)); main()"
    )
    done = subprocess.run([sys.executable, "-c", program, *words.split()], cwd=folder, capture_output=True, text=True)
    assert (done.returncode, done.stderr.strip()) == (0, "[]")


JSON = {
    "status": "status runs/study",
    "report": "report runs/study",
    "everything": "report runs/study --verbose",
    "a page": "report runs/study --html",
    "curves": "report runs/study --csv",
    "runs": "runs",
    "audit": "audit runs/study",
    "compare": "compare runs/study wide thin",
    "query": "query runs/study SELECT * FROM events",
    "tables": "query runs/study --schema",
    "simulate": "simulate runs/study",
    "cache": "cache",
    "doctor": "doctor",
}


@pytest.mark.parametrize("name", JSON)
def test_what_is_printed_is_as_its_schema_says(folder: Path, name: str) -> None:
    """The check itself is in `forked.command`, so that it is one of every command of all tests."""
    words = JSON[name].split(maxsplit=2) if name == "query" else JSON[name].split()
    assert told(folder, *words)["schema"] == 1
