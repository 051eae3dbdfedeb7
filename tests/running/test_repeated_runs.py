"""Tests that the same command gives the same bits: timed choices are reused from the machine's cache or from a named run."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import evidence
import packs
import pytest
import splits
import torch
from torch import nn
from torch.optim import SGD

import argosy
from argosy.cli.cache import cache as delete
from argosy.running.directory.versions import versions
from argosy.training.choice.fusion_group import ALONE, FusionGroup, ProgramCandidate


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of cached choices of a machine whose cache is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "argosy" / "choices"


def times(monkeypatch: pytest.MonkeyPatch, *, together: bool) -> None:
    """Replace measured times so that one program of all members is faster, or that separate programs are."""

    def note(fusion_group: FusionGroup, seconds: float, samples: int, need: int | None = None) -> None:
        if samples:
            faster = (fusion_group.now.size > 1) == together
            fusion_group.tries[fusion_group.now] = [1.0 if faster else 9.0]

    monkeypatch.setattr(FusionGroup, "note", note)


def small() -> nn.Module:
    """Return a network whose matrix products are so small that a program of several members rounds differently."""
    return nn.Sequential(nn.Linear(16, 4), nn.Tanh(), nn.Linear(4, 4))


def study(*names: str) -> argosy.Study:
    train, val = packs.samples(torch.float32, 160)
    members = [
        packs.member(
            name, model=small, batch_size=4, dtype=torch.float32, optimizer=partial(SGD, lr=0.02 * (number + 1))
        )
        for number, name in enumerate(names or ("a", "b", "c"))
    ]
    data = argosy.Data(arrays=train, val_arrays=val)
    return argosy.Study(data=data, members=members, stop=argosy.MaxEpochs(3))


def train(directory: Path, what: argosy.Study, **settings: Any) -> dict[str, Any]:
    """Train the study and return its results."""
    settings = {"launcher": "inline", "devices": "cpu:1", **settings}
    argosy.train(what, directory=directory, quiet=True, **settings)
    return evidence.results(directory)


def chosen(directory: Path) -> list[tuple[list[int], bool]]:
    """Return each choice of programs in order: their sizes, and whether it was settled."""
    return [(list(map(len, e["programs"])), e["settled"]) for e in evidence.event_lines(directory, "Packed")]


def test_a_machine_takes_the_programs_of_its_first_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times(monkeypatch, together=True)
    first = train(tmp_path / "first", study())
    times(monkeypatch, together=False)
    second, third = (train(tmp_path / name, study()) for name in ("second", "third"))
    assert chosen(tmp_path / "first") == chosen(tmp_path / "second") == chosen(tmp_path / "third") == [([3], True)]
    assert first == second == third
    delete(clear=True)
    assert train(tmp_path / "anew", study()) != second
    assert chosen(tmp_path / "anew")[-1] == ([1, 1, 1], True)


def test_devices_that_choose_differently_choose_so_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices that start together measure before either has a choice to reuse, and costs may be close to each other."""
    noted = list[FusionGroup]()

    def note(group: FusionGroup, seconds: float, samples: int, need: int | None = None) -> None:
        noted.append(group)
        faster = (group.now.size > 1) == (group is noted[0])
        group.tries[group.now] = [1.0 if faster else 9.0]

    monkeypatch.setattr(FusionGroup, "note", note)
    what = study("a", "b", "c", "d")
    first, second, third = (train(tmp_path / name, what, devices="cpu:2") for name in ("first", "second", "third"))
    assert sorted(chosen(tmp_path / "first")) == sorted(chosen(tmp_path / "third")) == [([1, 1], True), ([2], True)]
    assert first == second == third


def test_another_machine_takes_the_programs_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    times(monkeypatch, together=True)
    for name in ("first", "second"):
        train(tmp_path / name, study())
    shutil.rmtree(cache)
    times(monkeypatch, together=False)
    assert train(tmp_path / "like", study(), like=str(tmp_path / "second")) == evidence.results(tmp_path / "second")
    assert train(tmp_path / "chain", study(), like=str(tmp_path / "like")) == evidence.results(tmp_path / "second")
    assert chosen(tmp_path / "like") == chosen(tmp_path / "chain") == [([3], True)]
    assert not cache.exists()  # a choice taken from another run is not cached as this machine's own


@pytest.mark.parametrize("programs", [[["a"], ["b"], ["c"]], [["a", "b", "c"]]])
def test_a_choice_that_no_stopwatch_made_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, programs: list[list[str]]
) -> None:
    times(monkeypatch, together=True)
    train(tmp_path / "run", study())
    path = tmp_path / "run" / "journal.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    made_up = [line | {"programs": programs} if line["event"] == "Packed" else line for line in lines]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in made_up))
    times(monkeypatch, together=len(programs) > 1)  # times favor the opposite choice
    train(tmp_path / "like", study(), like=str(tmp_path / "run"))
    assert chosen(tmp_path / "like") == [([*map(len, programs)], True)]


def test_a_run_that_continues_with_other_numerics_is_told(tmp_path: Path) -> None:
    train(tmp_path, study("a"), numerics="exact")
    told = r"^numerics is '{}', but the run last trained with '{}', .* set numerics='{}'\.$"
    with pytest.warns(UserWarning, match=told.format("equivalent", "exact", "exact")):
        train(tmp_path, replace(study("a"), stop=argosy.MaxEpochs(4)))
    with pytest.warns(UserWarning, match=told.format("exact", "equivalent", "equivalent")):
        train(tmp_path, replace(study("a"), stop=argosy.MaxEpochs(5)), numerics="exact")
    train(tmp_path, replace(study("a"), stop=argosy.MaxEpochs(5)))  # has nothing to continue, so it does not warn


def test_a_run_that_continues_with_another_torch_is_told(tmp_path: Path) -> None:
    train(tmp_path, study("a"))
    path = tmp_path / "journal.jsonl"
    path.write_text(path.read_text().replace(f'"torch": "{versions()["torch"]}"', '"torch": "2.9.1"'))
    with pytest.warns(UserWarning, match=r"^torch is .*, but the run last trained with torch 2\.9\.1, .* install that"):
        train(tmp_path, replace(study("a"), stop=argosy.MaxEpochs(4)))
    train(tmp_path, replace(study("a"), stop=argosy.MaxEpochs(5)))


def test_members_that_the_run_does_not_have_are_chosen_for_as_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    times(monkeypatch, together=True)
    train(tmp_path / "run", study("a", "b", "c"))
    shutil.rmtree(cache)
    with pytest.warns(
        UserWarning, match=r"has none of this study's members, so everything is measured as without it\."
    ):
        train(tmp_path / "like", study("x", "y", "z"), like=str(tmp_path / "run"))
    assert chosen(tmp_path / "like") == [([3], True)]


def test_split_members_have_the_shares_of_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    def split(name: str, first: float, **how: Any) -> dict[str, Any]:
        """Return the results of a run whose policy wants the share `first` of member "wide" on the first device."""

        def wanted(member: str, asked: int) -> Mapping[int, float]:
            return {0: first, 1: 1.0 - first} if member == "wide" else {1: 1.0}

        splits.train(tmp_path / name, monkeypatch, wanted, splits.study("wide", "middle"), devices="cpu:2", **how)
        return evidence.results(tmp_path / name)

    first, second = split("first", 0.3), split("second", 0.6)
    shutil.rmtree(cache)
    like = split("like", 0.6, like=str(tmp_path / "second"))
    assert first == second == like
    assert split("anew", 0.6) != first
    shares = [evidence.event_lines(tmp_path / name, "Split")[0]["shares"][0] for name in ("first", "like", "anew")]
    assert shares == [0.3, 0.3, 0.6]


@pytest.mark.parametrize(
    ("before", "count", "wanted"),
    [
        ({4: (4, "plain")}, 4, (4, "plain")),
        ({4: (4, "plain")}, 7, (7, "plain")),
        ({4: (4, "plain")}, 8, None),
        ({4: (4, "plain")}, 2, None),
        ({4: (1, "plain"), 6: (6, "plain")}, 5, (1, "plain")),
        ({12: (6, "plain")}, 10, (6, "plain")),
        ({1: (1, "graphed")}, 1, (1, "graphed")),
        ({3: (3, "graphed")}, 3, None),
    ],
)
def test_a_choice_counts_for_about_as_many_members(before: dict[int, Any], count: int, wanted: Any) -> None:
    group = FusionGroup(
        kinds=("plain", "graphed"), chosen={known: ProgramCandidate(*one) for known, one in before.items()}
    )
    if count == 3:
        group.refuse("graphed", "it reads a value")
    assert group.next(count) == (ALONE if wanted is None else wanted)
    assert group.needs_measuring(count) == (wanted is None)
