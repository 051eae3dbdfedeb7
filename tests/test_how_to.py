"""Tests that the files of the how-to page run unchanged."""

import re
from pathlib import Path

import forked
import pytest

from argosy.results.fold import RunState
from argosy.running.directory.journal import read_journal

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "how-to.md").read_text()
FILES = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, flags=re.DOTALL))


@pytest.mark.parametrize("name", sorted(FILES))
def test_its_files_run(tmp_path: Path, name: str) -> None:
    pytest.importorskip("sklearn")
    verb = "tune" if name == "search.py" else "run"
    if verb == "tune":
        pytest.importorskip("optuna")
    (tmp_path / name).write_text(FILES[name])
    words = [verb, name, "--dir", "runs/x", "--devices", "cpu:1", "--launcher", "inline"]
    found = forked.command(tmp_path, words)
    assert found.returncode == 0, found.stdout + found.stderr
    members = RunState.of(read_journal(tmp_path / "runs" / "x")).members.values()
    assert members
    assert {member.status for member in members} <= {"done", "stopped"}
