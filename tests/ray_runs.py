"""A run on a Ray cluster that takes its time until it may hurry: there is as much to do as a slow cluster takes to do something else.

It is driven by one ``argosy run`` after another, in a folder of its own.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import evidence
import raylets

import argosy
from argosy.running.directory.studyfile import load_study

__all__ = ["RayRun"]

STUDY = """
import pathlib, time
import studies

def dawdle(batch):
    if not pathlib.Path({hurry!r}).exists():
        time.sleep(0.1)
    return batch

fleet = [studies.member(f"m{{number}}", hidden=8 + number, augment=dawdle) for number in range({members})]
study = studies.study(90, fleet=fleet, stop=studies.Unsure({epochs}, sections=4))
"""
INTERRUPTIBLE = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from argosy.cli.app import main; main()"
)
"""Whatever the shell of the tests has, which ignores SIGINT in the background."""


class RayRun:
    """Of members with hidden layers of unlike widths, for so many epochs of 4 sections."""

    def __init__(self, folder: Path, address: str, *, members: int, epochs: int, checkpoint_seconds: float) -> None:
        self.folder, self.directory, self.hurry = folder, folder / "run", folder / "hurry"
        self.study = folder / "study.py"
        self.study.write_text(STUDY.format(hurry=str(self.hurry), members=members, epochs=epochs))
        self._words = ["run", str(self.study), "--dir", str(self.directory), "--launcher", "ray", "--address", address]
        self._words += ["--numerics", "exact", "--loader-workers", "1", "--json"]
        self._words += ["--checkpoint-seconds", str(checkpoint_seconds)]
        self.driver = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        """Another driver, which is the run's from here on."""
        tests = str(Path(__file__).parent)
        path = {"PYTHONPATH": os.pathsep.join([tests, os.environ.get("PYTHONPATH", "")])}
        with (self.folder / "out").open("wb") as out, (self.folder / "said").open("ab") as said:
            self.driver = subprocess.Popen(
                [sys.executable, "-c", INTERRUPTIBLE, *self._words],
                cwd=self.folder,
                stdout=out,
                stderr=said,
                env=os.environ | path | raylets.QUIET,
            )
        return self.driver

    @property
    def said(self) -> str:
        """By all drivers, to a person."""
        return (self.folder / "said").read_text()

    def lines(self, event: str) -> list[dict[str, Any]]:
        """What is journaled so far of one kind, whole lines alone."""
        path = self.directory / "journal.jsonl"
        text = path.read_bytes() if path.exists() else b""
        found = [json.loads(line) for line in text.split(b"\n")[:-1]]
        return [line for line in found if line["event"] == event]

    def faultless(self) -> dict[str, Any]:
        """What comes out of the study in one process that nothing happens to."""
        alone = self.folder / "alone"
        argosy.train(load_study(self.study), directory=alone, launcher="inline", devices="cpu:1", numerics="exact")
        return evidence.results(alone)
