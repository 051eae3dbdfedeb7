"""Tests that planning only decides: it uses no torch, no clock, no files, and imports optional packages only when they are needed."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import argosy.planning

FOLDER = Path(argosy.planning.__file__).parent
OUTSIDE = {"os", "pathlib", "time", "datetime", "subprocess", "socket", "threading", "multiprocessing", "torch"}


def imported(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.name)
def test_no_decision_looks_outside(path: Path) -> None:
    assert not imported(path) & OUTSIDE


def test_planning_is_instant_to_import() -> None:
    heavy = ("torch", "numpy", "highspy", "plotly", "matplotlib", "pandas")
    code = f"import sys, argosy.cli.simulated; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
