"""Tests the views that people meet: lines without a terminal, a bar in scripts and notebooks, and notices that stay."""

import io
import os
import select
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import studies
import voyages
from rich.console import Console, RenderableType

import argosy
from argosy.protocol.events import Event, MemberEnded, WorkerLost
from argosy.protocol.trainer import Progress
from argosy.results.diagnosis import Diagnosis
from argosy.results.fold import RunState
from argosy.running.launch.launcher import Job
from argosy.running.watch.phase import Phase
from argosy.settings import Settings
from argosy.views import terminal
from argosy.views.bar import Notebook, draw_bar, progress_bar
from argosy.views.drawing import draw
from argosy.views.screen import Screen
from argosy.views.terminal import Terminal

PAIR = [studies.member("one"), studies.member("two", hidden=8)]


class Tty(io.StringIO):
    """A text buffer that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def begun(view: Any, study: argosy.Study, directory: Path) -> RunState:
    """Let the view begin a run, and return the run's empty state."""
    state = RunState()
    view.begin(Job(study=study, settings=Settings(), directory=directory, lock=-1), state)
    return state


def tell(view: Any, state: RunState, *events: Event) -> None:
    """Apply the events to the state and show them to the view, as journaled events are."""
    for event in events:
        state.apply(event)
        view.handle("", event)


def test_the_screen_has_added_members_and_the_last_known_losses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "LINE_SECONDS", -1.0)
    console = Console(file=io.StringIO(), width=120)
    view = Terminal(console)
    state = begun(view, studies.study(fleet=PAIR, epochs=2), tmp_path)
    gauge = {"waiting_seconds": 0.0, "busy_seconds": 1.0}
    view.handle("cpu:0", Progress(samples={"one": 1}, losses={"one": 2.5}, gauge=gauge))
    view.handle("cpu:1", Progress(samples={"one": 1}, losses={"one": 1.25, "two": 0.75}, gauge=gauge))
    view.handle("cpu:1", Progress(samples={"one": 2}, losses={}, gauge=gauge))
    for name in ("one", "two"):
        state.member(name).status = "done"
        for epoch in range(2):
            state.member(name).end_section(voyages.ended(name, "cpu:0", epoch, value=0.5))
    view.tick(Phase.TRAINING)
    view.study(studies.study(fleet=[*PAIR, studies.member("late")], epochs=2))
    state.member("late").status = "training"
    view.tick(Phase.TRAINING)
    state.member("two").sections.pop()
    view.tick(Phase.TRAINING)
    lines = console.file.getvalue().splitlines()
    assert [line.split()[0] for line in lines] == ["100%", "67%", "60%"], (
        "members that ended count the epochs that they trained"
    )
    console.print(terminal.draw(view.screen(Phase.TRAINING), 120, 30))
    shown = console.file.getvalue()
    assert "late" in shown
    assert "1.25" in shown
    assert "0.75" in shown
    assert " 2.5 " not in shown, "the rate on the device where it trained before must not be shown"
    assert "nan" not in shown


def test_without_a_terminal_ten_lines_are_followed_by_one_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    console = Console(file=io.StringIO(), width=160)
    view, study = Terminal(console), voyages.asked(100, epochs=5)
    state = begun(view, study, tmp_path)
    for phase in (Phase.OPENING, Phase.MEASURING, Phase.TRAINING):
        view.tick(phase)
    assert [line.split(",")[0] for line in console.file.getvalue().splitlines()] == [
        "Opening the data",
        "Measuring members",
        "Training",
    ]
    tell(view, state, *(event for _, event in voyages.scheduler(study, epochs=2, end=False)))
    for second in range(1, 600):
        now[0] = float(second)
        view.tick(Phase.TRAINING)
    lines = console.file.getvalue().splitlines()
    assert len(lines) == 10 + (600 - 70) // 61
    assert all(line.startswith("40% of all epochs (200 of 500)") for line in lines[3:])


@pytest.mark.parametrize(
    ("file", "environment", "drawn"),
    [
        (Tty, {"TERM": "xterm"}, True),
        (Tty, {"TERM": "dumb"}, False),
        (io.StringIO, {"TERM": "xterm", "FORCE_COLOR": "1"}, False),
    ],
)
def test_a_screen_is_drawn_only_where_it_can_be_drawn_anew(
    tmp_path: Path, file: type[io.StringIO], environment: dict[str, str], drawn: bool
) -> None:
    console = Console(file=file(), width=100, _environ=environment)
    view, study = Terminal(console), voyages.asked(4, epochs=10)
    state = begun(view, study, tmp_path)
    tell(view, state, *(event for _, event in voyages.scheduler(study, epochs=4, end=False)))
    view.tick(Phase.TRAINING)
    view.end()
    text = console.file.getvalue()
    assert ("\x1b[" in text) is drawn
    assert ("40%, 16 of 40 epochs" if drawn else "40% of all epochs (16 of 40)") in text


def test_a_job_in_the_background_draws_no_screen_over_the_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "LINE_SECONDS", -1.0)
    ours, theirs = os.openpty()
    with os.fdopen(ours, "rb", buffering=0) as master, os.fdopen(theirs, "w") as file:

        def shown() -> bytes:
            text = b""
            while select.select([master], [], [], 0.05)[0]:
                text += master.read(4096)
            return text

        view = Terminal(Console(file=file, _environ={"TERM": "xterm"}))
        begun(view, voyages.asked(4, epochs=10), tmp_path)
        view.tick(Phase.TRAINING)
        assert b"\x1b[?25h" in shown(), "a shell that stops this job needs its cursor"
        with monkeypatch.context() as background:
            background.setattr(os, "tcgetpgrp", lambda _: 0)
            view.tick(Phase.TRAINING)
            assert shown() == b"Training, under 1 s so far.\r\n", "nothing of the shell is erased"
        view.tick(Phase.TRAINING)
        assert b"\x1b[?25l" in shown(), "the screen is back in the foreground"
        view.end()


@pytest.mark.parametrize("columns", [1, 2, 3, 4])
def test_a_terminal_without_room_for_words_does_not_end_its_screen(tmp_path: Path, columns: int) -> None:
    def drawing(screen: Screen, width: int, height: int) -> RenderableType:
        rates = {"preparing_rate": 40.0, "taking_rate": 80.0, "peak_rate": 90.0, "queue_before": 0.9}
        limit = Diagnosis(stage="preparation", node="", queue_behind=0.1, verdict="preparation: 40 samples/s", **rates)
        return draw(replace(screen, bottleneck=limit), width, height)

    console = Console(file=Tty(), width=columns, _environ={"TERM": "xterm"})
    view = Terminal(console, drawing)
    begun(view, voyages.asked(4, epochs=10), tmp_path)
    view.tick(Phase.TRAINING)
    view.end()


def test_only_the_first_few_failures_are_shown_at_once(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=200)
    view, study = Terminal(console), voyages.asked(20, epochs=5)
    state = begun(view, study, tmp_path)
    for name in study.names:
        reason = "Traceback:\n  line 1\n  line 2\nValueError: too :x: wide [bold]"
        tell(view, state, MemberEnded(member=name, status="failed", reason=reason))
        tell(view, state, WorkerLost(worker="cpu:1", detail="killed"))
    text = console.file.getvalue()
    assert text.count("failed: ValueError: too :x: wide [bold]") == 3
    assert text.count("cpu:1 is lost: killed; its members continue from their checkpoints") == 3
    assert str(tmp_path / "members" / next(iter(study.names)) / "log.txt") in text.replace("\n", "")


def test_a_bar_is_one_line(tmp_path: Path) -> None:
    console = Console(file=Tty(), width=100, force_terminal=True, color_system=None)
    view, study = Terminal(console, draw_bar), voyages.asked(4, epochs=10)
    state = begun(view, study, tmp_path)
    tell(view, state, *(event for _, event in voyages.scheduler(study, epochs=4, end=False)))
    view.tick(Phase.TRAINING)
    view.end()
    assert "40% of all epochs (16 of 40)" in console.file.getvalue()
    console = Console(file=io.StringIO(), width=100)
    console.print(draw_bar(view.screen(Phase.TRAINING), 100, 24))
    assert len(console.file.getvalue().splitlines()) == 1


def test_a_notebook_has_one_output_that_changes(tmp_path: Path) -> None:
    shown = list[str]()

    def display(html: str) -> Any:
        shown.append(html)
        return shown.append

    view, study = Notebook(display), voyages.asked(4, epochs=10)
    state = begun(view, study, tmp_path)
    tell(view, state, *(event for _, event in voyages.scheduler(study, epochs=4, end=False)))
    tell(view, state, MemberEnded(member=next(iter(study.names)), status="failed", reason="ValueError: <b>"))
    view.tick(Phase.TRAINING)
    view.end()
    assert shown[0] == ""
    assert '<progress max="1" value="0.4' in shown[1]
    assert "failed: ValueError: &lt;b&gt;" in shown[-1]
    assert " left; " in shown[1]
    assert "</progress> Over: 47% of all epochs (16 of 34); 4 members: " in shown[-1]


@pytest.mark.parametrize(("shell", "notebook"), [({"kernel": 1}, True), ({}, False)])
def test_a_bar_is_the_output_of_a_cell_wherever_the_shell_has_a_kernel(
    monkeypatch: pytest.MonkeyPatch, shell: dict[str, int], notebook: bool
) -> None:
    ipython = SimpleNamespace(get_ipython=lambda: SimpleNamespace(**shell))
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    assert isinstance(progress_bar(), Notebook) is notebook


def test_progress_and_a_view_are_one_too_many(tmp_path: Path) -> None:
    with pytest.raises(argosy.ArgosyError, match="Remove one of them"):
        argosy.train(studies.study(fleet=PAIR), directory=tmp_path, progress=True, view=Terminal(Console()))


def test_a_run_with_progress_says_where_it_is_on_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "LINE_SECONDS", 0.05)  # shorter than a section takes
    monkeypatch.setattr(terminal, "FIRST_LINES", 10_000)
    slow = studies.member("slow", augment=studies.dawdle, batch_size=4)
    study = studies.study(90, fleet=[*PAIR, slow], epochs=2)
    argosy.train(study, directory=tmp_path / "run", launcher="inline", devices="cpu:1", progress=True, quiet=True)
    told = capsys.readouterr()
    assert told.out == ""
    assert " of all epochs" in told.err
