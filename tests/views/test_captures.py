"""What people see, letter by letter. After a change that is meant, delete the file: the next run of its test writes it, and fails once."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import studies
import voyages
from test_endings import searched
from test_screen import drawn, seen

import argosy
from argosy.protocol.events import Event, MemberEnded
from argosy.protocol.feeder import Flowing
from argosy.protocol.trainer import Progress

FOLDER = Path(__file__).parent / "captures"
REASON = 'Traceback (most recent call last):\n  File "nets.py", line 12, in forward\n    return x.view(3)\nRuntimeError: shape [3] is invalid'
WRONG = {
    1: ("failed", REASON),
    3: ("diverged", "its training loss is not a number after 9 steps"),
    4: ("failed", REASON),
}
SIZES = [(80, 24), (200, 50)]


def timeline(study: argosy.Study, *, end: bool) -> Iterator[tuple[float, Event]]:
    """A run of six epochs in which three members fail; after four of them, one that goes on."""
    names = list(study.names)
    wrong = {names[number]: ended for number, ended in WRONG.items()}
    for seconds, event in voyages.scheduler(study, epochs=6 if end else 4, end=end):
        if not (isinstance(event, MemberEnded) and event.member in wrong):
            yield seconds, event
        if isinstance(event, MemberEnded) and event.member == names[-1]:
            yield from ((seconds, MemberEnded(member=n, status=s, reason=why)) for n, (s, why) in wrong.items())
    if not end:
        yield from ((41.0, MemberEnded(member=n, status=s, reason=why)) for n, (s, why) in wrong.items())


def captured(name: str, text: str) -> None:
    """Compare with the text of that name."""
    path = FOLDER / f"{name}.txt"
    if not path.exists():
        path.write_text(f"{text}\n")
        pytest.fail(f"{path} was written; read it, and run the test again")
    assert text == path.read_text().removesuffix("\n")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a person who types commands: paths are relative to it."""
    monkeypatch.chdir(tmp_path)
    return Path("runs/study")


@pytest.mark.tampers
@pytest.mark.parametrize("count", [5, 100])
@pytest.mark.parametrize(("width", "height"), SIZES)
def test_the_end_of_a_run(here: Path, count: int, width: int, height: int) -> None:
    study = voyages.asked(count, epochs=6)
    voyages.leave(here, study, timeline(study, end=True))
    ending = argosy.load(here).ending(again="argosy run study.py", mended="argosy run study.py --retry-failed")
    text = ending.text(width, height)
    assert text.startswith("Best: ")
    lines = sum(-(-len(line) // width) for line in text.splitlines())
    assert lines < height, "the best is still there when the prompt is"
    captured(f"end-{count}-{width}", text)


@pytest.mark.tampers
@pytest.mark.parametrize("width", [80, 200])
def test_the_end_of_a_run_of_folds(here: Path, width: int) -> None:
    fleet = [
        *argosy.replicate(studies.member("small"), seeds=3),
        *argosy.replicate(studies.member("large", hidden=32), seeds=3),
        studies.member("once"),
    ]
    study = studies.study(voyages.LENGTH, fleet=fleet, epochs=6)
    voyages.leave(here, study, voyages.scheduler(study, epochs=6))
    captured(f"end-seeds-{width}", argosy.load(here).ending().text(width, 24))


@pytest.mark.parametrize("count", [5, 100])
@pytest.mark.parametrize(("width", "height"), SIZES)
def test_the_live_view(count: int, width: int, height: int) -> None:
    study = voyages.asked(count, epochs=6)
    trains = [name for number, name in enumerate(study.names) if number not in WRONG]
    busy = {"waiting_seconds": 1.0, "busy_seconds": 9.0, "samples": 1, "rows": 500, "training_seconds": 9.0}
    heard: list[tuple[float, str, Any]] = [
        (
            at,
            "cpu:0",
            Progress(blocks=1, samples=dict.fromkeys(trains, rows), losses=dict.fromkeys(trains, 0.25), gauge=busy),
        )
        for at, rows in ((42.0, 10), (44.0, 100))
    ]
    heard.append((44.0, "feeder-0", Flowing(gauge={**voyages.FEEDER, "to_train": {"mean": 0.94}})))
    lines = drawn(seen(study, timeline(study, end=False), more=heard, now=45.0), width, height)
    assert len(lines) < height
    assert max(map(len, lines)) <= width
    captured(f"live-{count}-{width}x{height}", "\n".join(line.rstrip() for line in lines))


@pytest.mark.tampers
def test_the_end_of_a_search(here: Path) -> None:
    study = voyages.asked(14, epochs=6)
    voyages.leave(here, study, timeline(study, end=True))
    search = searched(argosy.load(here))
    captured("end-search-80", search.ending(again="argosy tune search.py").text(80, 24))
    paused = replace(search, run=replace(search.run, status="paused"))
    assert "\nGo on:           argosy tune search.py\n" in paused.ending(again="argosy tune search.py").text(80, 24)
