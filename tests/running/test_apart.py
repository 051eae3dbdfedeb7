"""Tests that a slow or stuck view in its own thread does not disturb the run, and that it sees a state that matches its events."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import evidence
import pytest
import studies
import voyages

import argosy
from argosy.protocol.events import Event, SectionEnded
from argosy.protocol.trainer import Progress
from argosy.results.fold import RunState
from argosy.running.launch.launcher import Job
from argosy.running.watch import apart
from argosy.running.watch.apart import ThreadedView
from argosy.running.watch.phase import Phase
from argosy.running.watch.view import Silent
from argosy.settings import Settings

PAIR = [studies.member("one"), studies.member("two", hidden=8)]


class Stuck(Silent):
    """A view whose `tick` blocks until the barrier is set, like output to a stopped terminal."""

    def __init__(self) -> None:
        self.barrier = threading.Event()
        self.inside = threading.Event()
        self.heard: list[Any] = []

    def tick(self, phase: Phase) -> None:
        self.inside.set()
        self.barrier.wait()

    def handle(self, worker: str, message: Any) -> None:
        self.heard.append(message)


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    """Yield a stuck view, and release it after the test."""
    view = Stuck()
    yield view
    view.barrier.set()


def train(directory: Path, view: Any) -> argosy.Report:
    """Train two members in this process and return the report."""
    study = studies.study(90, fleet=PAIR, epochs=3)
    return argosy.train(study, directory=directory, launcher="inline", devices="cpu:1", view=view)


def test_a_view_that_never_comes_back_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stuck: Stuck
) -> None:
    monkeypatch.setattr(apart, "FAREWELL_SECONDS", 0.25)
    assert train(tmp_path / "stuck", stuck).status == "done"
    assert stuck.inside.is_set()
    assert not stuck.barrier.is_set(), "the view returned before the end"
    train(tmp_path / "alone", None)
    assert evidence.results(tmp_path / "stuck") == evidence.results(tmp_path / "alone")


def test_what_workers_say_again_and_again_a_slow_view_hears_once(tmp_path: Path, stuck: Stuck) -> None:
    view = ThreadedView(stuck)
    view.begin(Job(study=studies.study(fleet=PAIR), settings=Settings(), directory=tmp_path, lock=-1), RunState())
    while not stuck.inside.wait(0.05):
        view.tick(Phase.OPENING)
    events = [voyages.ended("one", "cpu:0", epoch, value=0.5) for epoch in range(5)]
    for number in range(1000):
        view.handle("cpu:0", Progress(samples={"one": number}, losses={}, gauge={}))
        if number % 200 == 0:
            view.handle("", events[number // 200])
        view.tick(Phase.TRAINING)
    stuck.barrier.set()
    view.end()
    said = [message.samples["one"] for message in stuck.heard if isinstance(message, Progress)]
    assert len(said) <= 2
    assert said[-1] == 999
    assert [message for message in stuck.heard if isinstance(message, Event)] == events


def test_a_view_sees_the_fold_of_what_it_has_heard(tmp_path: Path) -> None:
    class Folds(Silent):
        def begin(self, job: Job, state: RunState) -> None:
            self.state, self.behind = state, list[bool]()

        def handle(self, worker: str, message: Any) -> None:
            if isinstance(message, SectionEnded):
                self.behind.append(message in self.state.member(message.member).sections)

    view = Folds()
    train(tmp_path, view)
    assert view.behind == [True] * 6
    assert {name: member.status for name, member in view.state.members.items()} == {"one": "done", "two": "done"}
    assert view.state.ended is not None
    study = studies.study(90, fleet=PAIR, epochs=4)
    argosy.train(study, directory=tmp_path, launcher="inline", devices="cpu:1", view=view)
    assert [len(member.sections) for member in view.state.members.values()] == [4, 4]
