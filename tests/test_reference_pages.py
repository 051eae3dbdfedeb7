"""Tests that the reference for users is generated from the present docstrings, is complete, and agrees with ``help()``."""

import ast
import inspect
import pydoc
from typing import Any, get_args, get_type_hints

import pages
import pytest

import argosy
from argosy.described import described_fields
from argosy.settings import Settings
from argosy.stopping import MaxEpochs, MaxSamples, MaxSeconds, MaxSteps, Plateau, Target

AVERAGES = (argosy.EMA, argosy.SWA, argosy.LastK)
DESCRIBED = (argosy.Data, argosy.Member, argosy.Study, argosy.Ragged, argosy.Search, Settings, *AVERAGES)
RULES = (MaxEpochs, MaxSteps, MaxSamples, MaxSeconds, Plateau, Target)


def test_pages_are_those_that_the_docstrings_make() -> None:
    found = {file.name: file.read_text() for file in pages.FOLDER.iterdir()}
    assert found == pages.pages(), "run PYTHONPATH=tests python -m pages"


def test_every_public_name_is_on_a_page_and_shown_by_dir() -> None:
    named = {name.partition(".")[2] for name in pages.NAMES if name.count(".") == 1} | {"ArgosyError"}
    assert named == {*argosy.__all__, "Classifier", "Regressor"}
    assert dir(argosy) == sorted([*argosy.__all__, "Classifier", "Regressor", "__version__", "data", "errors"])
    assert all(hasattr(argosy, name) for name in dir(argosy))


def test_type_checkers_and_editors_see_every_public_name() -> None:
    blocks = (node for node in ast.parse(inspect.getsource(argosy)).body if isinstance(node, ast.If))
    block = next(block for block in blocks if ast.unparse(block.test) == "TYPE_CHECKING")
    seen = {alias.asname for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen == {*dir(argosy), "Ray"} - {"__version__"}


def test_type_checkers_accept_arrays_and_tensors_for_indices_and_labels() -> None:
    for function, names in ((argosy.Member, ("subset", "val_subset")), (argosy.kfold, ("stratify", "groups"))):
        hints = get_type_hints(inspect.unwrap(function))
        assert all(Any in get_args(hints[name]) for name in names)


def words(text: str) -> str:
    """Return a text with single spaces, and without the lines that `help` draws beside it."""
    return " ".join(text.replace("|", " ").split())


@pytest.mark.parametrize("kind", (*DESCRIBED, *RULES), ids=lambda kind: kind.__name__)
def test_every_field_says_what_it_is_on_the_page(kind: type) -> None:
    assert described_fields(kind) and all(len(field.text.split()) >= 2 for field in described_fields(kind))


@pytest.mark.parametrize("kind", DESCRIBED, ids=lambda kind: kind.__name__)
def test_every_field_says_what_it_is_in_help(kind: type) -> None:
    told = words(pydoc.render_doc(kind))
    for field in described_fields(kind):
        assert words(f"{field.name}: {field.type}") in told
        assert words(field.text) in told


def test_help_for_training_tells_each_setting() -> None:
    told = words(pydoc.render_doc(argosy.train))
    assert all(
        words(f"{field.name}: {field.type}") in told and words(field.text) in told
        for field in described_fields(Settings)
    )
