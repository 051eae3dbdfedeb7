"""Runs one study of `conversation.py` in a process of its own: reads instructions from a JSON file and writes its figures to another."""

import json
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import torch
from small_study import Gauge, member, run, study

from argosy.protocol.events import Event, MemberRested, MemberStarted
from argosy.results.fold import RunState
from argosy.running.control.verdicts import GO_ON, Fate, Verdict
from argosy.running.launch.launcher import Workers
from argosy.settings import Settings
from argosy.study import Study

__all__ = ["Turns"]


class Turns:
    """A judge who lets `width` members train at a time: each rests after a section, and those that have trained least continue."""

    def __init__(self, width: int) -> None:
        self.width = width
        self._newest = (-1, -1)
        """The last section of the stream that a member has ended."""
        self._through: set[str] = set()
        """The members that have ended it."""
        self._asked: object = None
        """The state on which `called` has already answered."""

    def verdict(self, member: str, state: RunState, study: Study) -> Verdict:
        """See `Judge.verdict`."""
        trained = state.member(member)
        if not trained.sections:
            return GO_ON
        last = trained.sections[-1]
        if (last.stream_epoch, last.section) > self._newest:
            self._newest, self._through = (last.stream_epoch, last.section), set()
        if trained.status == "training":
            self._through.add(member)
        return Verdict(Fate.REST, "others have their turn")

    def called(self, resting: Collection[str], state: RunState, study: Study) -> Sequence[str]:
        """Call as many members as leave at the coming barrier, or are missing."""
        asked = (len(resting), self._newest, len(self._through))
        if not resting or asked == self._asked:
            return ()
        self._asked = asked
        over = sum(one.status in ("done", "stopped", "failed", "diverged") for one in state.members.values())
        leaving = sum(name not in resting and state.member(name).status == "training" for name in self._through)
        free = self.width - (len(study.members) - over - len(resting) - leaving)
        if free <= 0:
            return ()
        return sorted(resting, key=lambda name: (len(state.members[name].sections), name))[:free]


class Addition:
    """Records the driver's work from before it can see the first command until the last added member trains."""

    def __init__(self, directory: Path, names: Collection[str]) -> None:
        self.directory = directory
        self.missing = set(names)
        self.workers: Any = None
        self.begun = self.ended = (0.0, 0.0, 0)
        """Unix time, CPU seconds of this process, workers that were started."""
        self._told = False

    def opened(self, workers: Workers) -> None:
        """Keep the pool whose processes count."""
        self.workers = workers

    def poll(self) -> None:
        """Record the moment before a command is there; the round that ends here may have answered it, so the end of the one before counts."""
        self._told = self._told or any(self.directory.glob("commands/*.json"))
        if not self._told:
            self.begun = self._here()

    def handle(self, event: Event) -> None:
        """Record when the last added member starts."""
        if isinstance(event, MemberStarted) and event.member in self.missing:
            self.missing.discard(event.member)
            self.ended = self._here()

    def figures(self) -> dict[str, float]:
        """Return the differences between the two moments."""
        seconds, driver_seconds, restarted = (b - a for a, b in zip(self.begun, self.ended, strict=True))
        return {"seconds": seconds, "driver_seconds": driver_seconds, "restarted": restarted}

    def _here(self) -> tuple[float, float, int]:
        return time.time(), time.process_time(), self.workers.started


def main() -> None:
    told = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    directory, width, added = Path(told["directory"]), told["width"], told["added"]
    names = told["names"]
    asked = study(
        [member(name) for name in names], samples=told["samples"], val=told["val"], epochs=told["epochs"], sections=1
    )
    addition = Addition(directory, added)
    gauge = Gauge(count=len(names) + len(added), act=addition.handle, poll=addition.poll if added else lambda: None)
    run(
        asked,
        Settings(devices=told["devices"], numerics="exact"),
        directory,
        view=gauge,
        judges=[Turns(width)] if width else [],
        at_rest=[MemberRested(member=name, reason="its turn comes later") for name in names[width:]] if width else [],
        opened=addition.opened,
    )
    found = gauge.figures()
    if added and not addition.missing:
        found["added"] = addition.figures()
    Path(sys.argv[2]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
