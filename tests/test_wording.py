"""Tests of the wording of labels, tables and figures for people."""

import doctest

import pytest
import studies
from hypothesis import given
from hypothesis import strategies as st

from argosy.disk.json_values import without_infinities
from argosy.errors import wording
from argosy.errors.wording import (
    cause_of,
    differing_parameters,
    format_parameters,
    html_table,
    shorten_names,
    text_table,
)


def test_the_examples_hold() -> None:
    found = doctest.testmod(wording)
    assert (found.failed, found.attempted) == (0, 12)


def test_members_are_told_by_what_differs() -> None:
    fleet = [studies.member("a", hidden=8, lr=0.1), studies.member("b", hidden=16, lr=0.1)]
    parameters = {member.name: member.hyperparameters for member in fleet}
    names = differing_parameters(parameters)
    assert names == ("model.hidden",)
    assert [format_parameters(found, names) for found in parameters.values()] == ["hidden=8", "hidden=16"]
    # Names with the same last part are shown in full.
    both = {"model.lr": 1, "optimizer.lr": 0.123456}
    assert format_parameters(both, tuple(both)) == "model.lr=1 optimizer.lr=0.1235"


def test_names_are_cut_where_they_are_alike() -> None:
    names = [f"network-lr=0.1-hidden={hidden}" for hidden in (8, 16, 128)]
    assert list(shorten_names(names, 12).values()) == ["…hidden=8", "…hidden=16", "…hidden=128"]
    assert list(shorten_names(names, 6).values()) == ["…8", "…16", "…128"]
    assert list(shorten_names(["short", "other"], 12).values()) == ["short", "other"]
    long = ["abcdefghijklmnopqrstuvwxyz", "zyxwvutsrqponmlkjihgfedcba"]
    assert {len(name) for name in shorten_names(long, 12).values()} == {12}


def test_members_of_a_grid_have_labels_of_their_own() -> None:
    grid = [
        f"mlp-lr={lr}-hidden={hidden}-batch_size={size}"
        for lr in (0.1, 0.01, 0.001)
        for hidden in (16, 256)
        for size in (32, 64)
    ]
    assert list(shorten_names(grid, 24).values())[:3] == ["…0.1-16-32", "…0.1-16-64", "…0.1-256-32"]
    assert len({*shorten_names(grid, 12).values()}) == len({*shorten_names(grid, 8).values()}) == len(grid)


@given(st.lists(st.text("ab1-=. ", max_size=40), unique=True), st.integers(12, 40))
def test_labels_fit_and_are_unlike_in_whatever_order_members_come(names: list[str], width: int) -> None:
    labels = shorten_names(names, width)
    assert [*labels] == names
    assert len({*labels.values()}) == len(names)
    assert all(len(label) <= width for label in labels.values())
    assert shorten_names(names[::-1], width) == labels


def test_the_error_of_several_lines_is_told() -> None:
    """The second line says which, as after 'Error(s) in loading state_dict'; the last one may be a part or a note."""
    trace = 'Traceback (most recent call last):\n  File "net.py", line 3, in build\n    load()\n'
    assert cause_of(f"{trace}AssertionError: Not equal:\n64\n32\nraised by metric 'f1'") == (
        "AssertionError: Not equal: 64 (net.py:3)"
    )
    torchs = "RuntimeError: Error(s) in loading state_dict for Net:\n\tsize mismatch for a\n\tsize mismatch for b"
    assert cause_of(trace + torchs) == f"{torchs.replace(chr(10) + chr(9), ' ').rpartition(' size')[0]} (net.py:3)"
    assert [cause_of(text) for text in ("", " \n", "RuntimeError:")] == ["", "", "RuntimeError:"]


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("AssertionError: \nNot equal to tolerance\n\nx and y", "AssertionError: Not equal to tolerance"),  # NumPy's
        ("AssertionError: Not equal:\n64\n32", "AssertionError: Not equal: 64"),
        ("sample 4 raised ValueError: no:\n  wide\nFix the dataset.", "sample 4 raised ValueError: no: wide"),
        (
            'sample 4 raised ValueError: no:\n  File "data.py", line 8, in get\n    x()\nFix the dataset.',
            "sample 4 raised ValueError: no: (data.py:8)",
        ),
        (
            "member 'a': its rule raised:\nTraceback (most recent call last):\n  File \"a.py\", line 8, in rule\n    x()\nKeyError: 3\nFix.",
            "KeyError: 3 (a.py:8)",
        ),
    ],
)
def test_an_error_whose_first_line_ends_in_a_colon_is_not_taken_for_what_precedes_one(reason: str, cause: str) -> None:
    assert cause_of(reason) == cause


def test_a_table_is_escaped() -> None:
    assert html_table(["<a>"], [["<b>"], [0.123456]]) == (
        "<table><thead><tr><th>&lt;a&gt;</th></tr></thead><tbody><tr><td>&lt;b&gt;</td></tr>"
        '<tr><td style="text-align:right">0.1235</td></tr></tbody></table>'
    )


def test_json_has_no_nan() -> None:
    assert without_infinities({"a": [float("nan"), 1.0], "b": (float("inf"), "x"), "c": 3}) == {
        "a": [None, 1.0],
        "b": [None, "x"],
        "c": 3,
    }


@given(
    st.lists(st.text("ab=-.1", min_size=1, max_size=60), min_size=1, max_size=12, unique=True),
    st.lists(st.floats(allow_nan=False), min_size=1, max_size=9),
    st.integers(30, 200),
)
def test_a_table_fits_its_room_and_tells_names_apart(names: list[str], values: list[float], width: int) -> None:
    columns = ["configuration", *(f"metric{number}" for number in range(len(values)))]
    head, *lines = text_table(columns, [[name, *values] for name in names], width)
    assert max(map(len, (head, *lines))) <= width
    shown = len(head.split()) - 1
    first = [line.rsplit(None, shown)[0] if shown else line for line in lines]
    assert len({*first}) == len(names)
