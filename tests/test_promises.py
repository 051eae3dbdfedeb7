"""Tests that the page of promises names tests and benchmarks that exist."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_what_checks_a_promise_is_there() -> None:
    named = re.findall(
        r"`((?:tests|benchmarks)/[\w/]+\.py)(?:::(\w+))?`", (ROOT / "docs" / "internals" / "promises.md").read_text()
    )
    assert named
    for file, function in named:
        assert (ROOT / file).is_file(), file
        if function:
            body = ast.parse((ROOT / file).read_text()).body
            assert function in {node.name for node in body if isinstance(node, ast.FunctionDef)}, f"{file}::{function}"
