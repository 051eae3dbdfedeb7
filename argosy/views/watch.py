"""The common part of the views of a terminal and a notebook: collects what happens, and makes a screen of it when one is due."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from argosy.results.fold import RunState
from argosy.running.launch.launcher import Job
from argosy.running.watch.phase import Phase
from argosy.study import Member, Study
from argosy.views.news import News
from argosy.views.notices import Notices
from argosy.views.screen import Screen, ScreenContext, screen_of

__all__ = ["Watching"]

REFRESH_SECONDS = 0.25
SHARE = 0.05
"""Share of the time that may be spent on screens; large ones are made less often."""


class Watching:
    """Base of these views: watches one run. A view says what it does at the beginning, with notices, at a tick and at the end."""

    def __init__(self) -> None:
        self.news: News = News()
        self.notices: Notices = Notices()
        self._expected: Callable[[], float] | None = None
        self._next = 0.0
        self._shown = 0.0
        """Share of the last screen. In a search it never decreases; in a run it does when members are added."""
        self._described: dict[str, tuple[Member, Mapping[str, Any]]] = {}
        """Hyper-parameters of members; cached because finding them is slow, and a study may have thousands."""

    def watch(self, job: Job, state: RunState) -> None:
        """Begin to watch."""
        self.state = state
        self.asked: Study = job.study
        self.directory: Path = job.directory
        self.began: float = time.monotonic()
        self.done_before = sum(member.own_epochs for member in state.members.values())

    def study(self, study: Study) -> None:
        """Implement `View.study`."""
        self.asked = study

    def expect(self, epochs: Callable[[], float]) -> None:
        """Implement `View.expect`."""
        self._expected = epochs

    def take_notices(self, worker: str, message: Any) -> list[tuple[str, str]]:
        """Take a message as `View.handle` does, and return (text, style) of its notices."""
        self.news.handle(worker, message, time.monotonic())
        return self.notices.of(message, self.directory)

    def refresh(self, phase: Phase, show: Callable[[Screen], None]) -> None:
        """Show a screen if one is due."""
        began = time.monotonic()
        if began < self._next:
            return
        show(self.screen(phase))
        now = time.monotonic()
        self._next = now + max(REFRESH_SECONDS, (now - began) / SHARE)

    def screen(self, phase: Phase) -> Screen:
        """Return the screen of the run's current state."""
        question = ScreenContext(
            study=self.asked,
            parameters=self._parameters(),
            directory=self.directory,
            began=self.began,
            done_before=self.done_before,
            expected=self._expected,
            shown=0.0 if self._expected is None else self._shown,
        )
        screen = screen_of(question, self.state, self.news, phase=phase.value, now=time.monotonic())
        self._shown = screen.share
        return screen

    def _parameters(self) -> dict[str, Mapping[str, Any]]:
        for member in self.asked.members:
            if member.name not in self._described or self._described[member.name][0] is not member:
                self._described[member.name] = member, member.hyperparameters
        return {name: self._described[name][1] for name in self.asked.names}
