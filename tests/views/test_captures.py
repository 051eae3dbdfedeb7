"""Tests what people see, letter by letter. After an intended change delete the file: the next run of its test writes it, and fails once."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import studies
import voyages
from test_endings import searched
from test_screen import drawn, seen

import argosy
from argosy.protocol.events import Event, MemberEnded, MemberRested, Proposed, RunStarted, SearchBegan
from argosy.protocol.feeder import FeederProgress
from argosy.protocol.trainer import Progress
from argosy.tuning.hyperband import Hyperband
from argosy.views.drawing import format_screen_line

FOLDER = Path(__file__).parent / "captures"
REASON = 'Traceback (most recent call last):\n  File "nets.py", line 12, in forward\n    return x.view(3)\nRuntimeError: shape [3] is invalid'
WRONG = {
    1: ("failed", REASON),
    3: ("diverged", "its training loss is not a number after 9 steps"),
    4: ("failed", REASON),
}
SIZES = [(80, 24), (200, 50)]


def timeline(study: argosy.Study, *, end: bool) -> Iterator[tuple[float, Event]]:
    """Return the events of a run of six epochs (or of four, if it goes on) in which three members fail."""
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
    """Assert that the text equals the captured one of that name."""
    path = FOLDER / f"{name}.txt"
    if not path.exists():
        path.write_text(f"{text}\n")
        pytest.fail(f"{path} was written; read it, and run the test again")
    assert text == path.read_text().removesuffix("\n")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to the folder in which a person types commands, since shown paths are relative to it, and return the run's directory."""
    monkeypatch.chdir(tmp_path)
    return Path("runs/study")


@pytest.mark.tampers
@pytest.mark.parametrize("count", [5, 100])
@pytest.mark.parametrize(("width", "height"), SIZES)
def test_the_end_of_a_run(here: Path, count: int, width: int, height: int) -> None:
    study = voyages.asked(count, epochs=6)
    voyages.leave(here, study, timeline(study, end=True))
    ending = argosy.load(here).ending(again="argosy run study.py", fixed="argosy run study.py --retry-failed")
    text = ending.text(width, height)
    assert text.startswith("Best: ")
    lines = sum(-(-len(line) // width) for line in text.splitlines())
    assert lines < height, "the line of the best member is still visible above the prompt"
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
    busy = {"waiting_seconds": 1.0, "busy_seconds": 9.0, "rows": 500}
    heard: list[tuple[float, str, Any]] = [
        (
            at,
            "cpu:0",
            Progress(samples=dict.fromkeys(trains, rows), losses=dict.fromkeys(trains, 0.25), gauge=busy),
        )
        for at, rows in ((42.0, 10), (44.0, 100))
    ]
    heard.append((44.0, "feeder-0", FeederProgress(gauge={**voyages.FEEDER, "to_train": {"mean": 0.94}})))
    lines = drawn(seen(study, timeline(study, end=False), more=heard, now=45.0), width, height)
    assert len(lines) < height
    assert max(map(len, lines)) <= width
    captured(f"live-{count}-{width}x{height}", "\n".join(line.rstrip() for line in lines))


def searched_by(hyperband: Hyperband, names: Sequence[str], *, epochs: int) -> Iterator[tuple[float, Event]]:
    """Return the events of a search whose trial 4 fails in its first epoch; an epoch takes 10 s."""
    terms = {
        "objective": "val_loss",
        "mode": "min",
        "scheduler": "hyperband",
        "eta": 3,
        "brackets": "together",
        "max_epochs": 9,
        "n_trials": len(names),
    }
    yield 0.0, SearchBegan(terms=terms)
    for trial, name in enumerate(names):
        parameters = {"lr": 0.1 / (trial + 1), "hidden": 8 << trial % 4, "activation": ("relu", "gelu")[trial % 2]}
        yield 0.0, Proposed(trial=trial, member=name, parameters={**parameters, "layers": 2}, in_step=True)
    yield 0.1, RunStarted(host="here", pid=1, versions={}, settings={}, lengths={"train": voyages.LENGTH, "val": 41})
    for trial, name in enumerate(names):
        yield 0.2, voyages.started(name, voyages.DEVICES[trial % 4], 0)
    yield 5.0, MemberEnded(member=names[4], status="failed", reason=REASON)
    hyperband.fail(4)
    racing = [trial for trial in range(len(names)) if trial != 4]
    for epoch in range(epochs):
        training = [trial for trial in racing if hyperband.budget(trial) > epoch]
        for trial in training:
            value = 1 / (2 + epoch + trial % 7)
            yield 10.0 * epoch + 9, voyages.ended(names[trial], voyages.DEVICES[trial % 4], epoch, value=value)
            hyperband.tell(trial, epoch + 1, value)
        for trial in racing:
            if why := hyperband.out(trial):
                yield 10.0 * epoch + 9.5, MemberEnded(member=names[trial], status="done", reason=why)
            elif trial in training and hyperband.budget(trial) == epoch + 1:
                yield 10.0 * epoch + 9.5, MemberRested(member=names[trial], reason="waits for others")
        racing = [trial for trial in racing if not hyperband.out(trial)]


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_the_live_view_of_a_search(width: int, height: int) -> None:
    names = [f"mlp-{trial}" for trial in range(17)]
    study = studies.study(voyages.LENGTH, fleet=[studies.member(name) for name in names], epochs=9)
    events = [*searched_by(Hyperband(most=9, eta=3, trials=17), names, epochs=4)]
    screen = seen(study, events, now=45.0, expected=lambda: 26.0)
    lines = drawn(screen, width, height)
    assert len(lines) < height
    assert max(map(len, lines)) <= width
    told = "62% of all epochs (43 of 69), about 27 s left; 17 of 17 trials: 5 training, 11 pruned, 1 failed; best val_loss 0.09091 (mlp-6)"
    assert format_screen_line(screen) == told
    captured(f"live-search-{width}x{height}", "\n".join(line.rstrip() for line in lines))


@pytest.mark.tampers
def test_the_end_of_a_search(here: Path) -> None:
    study = voyages.asked(14, epochs=6)
    voyages.leave(here, study, timeline(study, end=True))
    search = searched(argosy.load(here))
    captured("end-search-80", search.ending(again="argosy tune search.py").text(80, 24))
    paused = replace(search, run=replace(search.run, status="paused"))
    assert "\nResume:          argosy tune search.py\n" in paused.ending(again="argosy tune search.py").text(80, 24)
