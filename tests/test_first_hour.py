"""Tests of a new user's first hour from an empty folder: the demo, then the tutorial, whose files and commands run unchanged.

Installation is not tested here, because the environment of the tests is an installation (`make test`).
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import browser
import forked
import pytest

from argosy.results.fold import RunState
from argosy.running.directory.journal import read_journal

ROOT = Path(__file__).parents[1]
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()
FILES = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", TUTORIAL, flags=re.DOTALL))
COMMANDS = [line.split()[1:] for line in TUTORIAL.splitlines() if line.startswith("argosy ")]
PATIENCE_SECONDS = 120


def done(folder: Path, words: list[str]) -> str:
    """Run a command, assert that it succeeds, and return its output."""
    found = forked.command(folder, words)
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


def epochs_of(directory: Path) -> dict[str, float]:
    """Return how many epochs each member has trained."""
    if not (directory / "journal.jsonl").exists():
        return {}
    return {name: found.epochs for name, found in RunState.of(read_journal(directory)).members.items()}


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[[list[str]], forked.Forked]]:
    """Return a function that starts a command with its output in a file."""
    begun = []

    def start(words: list[str]) -> forked.Forked:
        with (tmp_path / "said.txt").open("ab") as said:
            begun.append(forked.started(tmp_path, words, out=said.fileno(), err=said.fileno()))
        return begun[-1]

    yield start
    for run in begun:
        run.kill()


def wait_for(run: forked.Forked, directory: Path, member: str, epochs: float) -> None:
    """Wait until a member is in the journal with this many epochs."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while epochs_of(directory).get(member, -1) < epochs:
        assert run.poll() is None, (directory.parents[1] / "said.txt").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def ctrl_c(run: forked.Forked) -> None:
    """Interrupt a run as a person does, and assert its exit code."""
    run.send_signal(signal.SIGINT)
    assert run.wait(PATIENCE_SECONDS) == 130


def opened_by(folder: Path, words: list[str]) -> Path:
    """Return the page that a command opens in a browser, for which a script stands."""
    reader, address = folder / "reader", folder / "address.txt"
    reader.write_text(f'#!/bin/sh\nprintf %s "$1" > {address}\n')
    reader.chmod(0o755)
    found = forked.command(folder, words, first=lambda: os.environ.update(BROWSER=f"{reader} %s"))
    assert found.returncode == 0, found.stdout + found.stderr
    return Path(address.read_text().removeprefix("file://"))


def assert_page(page: Path, folder: Path, members: list[str]) -> None:
    """Assert that the page has the run's members, and no errors, if there is a browser."""
    assert page == folder / "runs" / "digits" / "report.html"
    if browser.CHROMIUM is None:
        return
    with browser.opened(folder / "profile") as chromium:
        chromium.open(page)
        chromium.wait("document.querySelector('#curves .curve')")
        rows = chromium.ask("[...document.querySelectorAll('#table tbody button')].map(button => button.title)")
        assert sorted(rows) == sorted(members)
        assert chromium.errors == []


def script(folder: Path, name: str) -> str:
    """Run a script in a fresh process and return its output."""
    return subprocess.run([sys.executable, name], cwd=folder, capture_output=True, text=True, check=True).stdout


def test_a_new_user_gets_from_an_empty_folder_to_an_ensemble(
    tmp_path: Path, begin: Callable[[list[str]], forked.Forked]
) -> None:
    demo = begin(["demo", "--dir", "runs/demo"])
    wait_for(demo, tmp_path / "runs" / "demo", "mlp-64", 0)
    ctrl_c(demo)

    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (run, add, stop, look), directory = COMMANDS, tmp_path / "runs" / "digits"
    # So many epochs that there is time to interrupt the run.
    (tmp_path / "study.py").write_text(FILES["study.py"].replace("MaxEpochs(10)", "MaxEpochs(100_000)"))
    first = begin(run)
    wait_for(first, directory, "cnn-8", 1)
    ctrl_c(first)
    before = epochs_of(directory)["cnn-8"]

    again = begin(run)
    wait_for(again, directory, "cnn-8", before + 1)
    done(tmp_path, add)
    done(tmp_path, stop)
    wait_for(again, directory, "cnn-32", 1)
    ctrl_c(again)

    report = json.loads(done(tmp_path, ["report", "runs/digits", "--json"]))
    status = {row["member"]: row["status"] for row in report["members"]}
    assert status == {
        **dict.fromkeys(["mlp-32", "mlp-128", "cnn-8", "cnn-16", "cnn-32"], "paused"),
        "mlp-slow": "stopped",
    }
    assert_page(opened_by(tmp_path, look), tmp_path, list(status))
    best, ensemble = (float(line.split()[1]) for line in script(tmp_path, "after.py").splitlines())
    assert min(best, ensemble) > 0.5
    assert script(tmp_path, "predict.py") == "torch.Size([1, 10])\n"


def test_the_first_thing_to_see_is_the_study_of_the_tutorial() -> None:
    assert (ROOT / "README.md").read_text().partition("```python\n# study.py\n")[2].startswith(FILES["study.py"])
