"""The places where the package makes its errors, and which of them were come by."""

import ast
import contextlib
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import argosy
from argosy import errors

__all__ = ["Made", "Site", "all_sites", "site_of", "watched"]

PACKAGE = Path(argosy.__file__).parent
WORDED = (contextlib.__file__, str(PACKAGE / "errors" / "optional.py"))
"""Files whose errors are those of the places that call them."""


@dataclass(frozen=True, order=True, slots=True)
class Site:
    """A call of an error's class. Lines come and go above it: it is told by its function, and its number there."""

    file: str
    function: str
    error: str
    number: int
    """Among the function's calls of that class, from 1 on."""


@dataclass(frozen=True, slots=True)
class Made:
    """An error, and the line of the package that made it."""

    error: errors.ArgosyError
    file: str
    line: int


@contextlib.contextmanager
def watched() -> Iterator[list[Made]]:
    """All errors that are made meanwhile, raised at once or not, in this process."""
    made: list[Made] = []

    def noting(error: errors.ArgosyError, *arguments: Any) -> None:
        frame = sys._getframe(1)
        while frame.f_code.co_filename in WORDED and frame.f_back is not None:
            frame = frame.f_back
        made.append(Made(error, frame.f_code.co_filename, frame.f_lineno))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(errors.ArgosyError, "__init__", noting)
        yield made


def site_of(made: Made) -> Site | None:
    """Where an error was made; None where that was not in the package."""
    found = (site for site, (file, lines) in all_sites().items() if file == made.file and made.line in lines)
    return next(found, None)


@cache
def all_sites() -> dict[Site, tuple[str, range]]:
    """Every place, with its file and its lines."""
    trees = {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}
    names = _error_names(trees.values())
    return {site: (str(path), lines) for path, tree in trees.items() for site, lines in _sites(path, tree, names)}


def _error_names(trees: Any) -> set[str]:
    """The tree of `argosy.errors`, and what other files derive from it."""
    names, found = set(errors.__all__), 0
    while len(names) > found:
        found = len(names)
        for tree in trees:
            names |= {
                node.name
                for node in ast.walk(tree)
                if isinstance(node, ast.ClassDef) and names & {_last_name(base) for base in node.bases}
            }
    return names


def _sites(path: Path, tree: ast.Module, names: set[str]) -> Iterator[tuple[Site, range]]:
    calls = [(node, "") for node in ast.iter_child_nodes(tree)]
    counts: Counter[tuple[str, str]] = Counter()
    while calls:
        node, function = calls.pop(0)
        if isinstance(node, ast.Call) and (error := _error_of(node)) in names:
            counts[function, error] += 1
            site = Site(str(path.relative_to(PACKAGE.parent)), function, error, counts[function, error])
            yield site, range(node.lineno, (node.end_lineno or node.lineno) + 1)
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            function = f"{function}.{node.name}".lstrip(".")
        # Depth first, so that the places of a function are numbered as they are read.
        calls[:0] = [(child, function) for child in ast.iter_child_nodes(node)]


def _error_of(call: ast.Call) -> str:
    """The name of the class of the error that a call makes, or words where a package is missing."""
    return _last_name(call.args[0] if _last_name(call.func) == "optional" else call.func)


def _last_name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
