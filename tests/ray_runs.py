"""A run on a Ray cluster, driven by ``argosy run``, whose members train slowly until a file exists, so that even a slow cluster has time."""

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
"""Runs argosy with Python's handler of SIGINT, because background processes of a shell ignore it."""


class RayRun:
    """A run of members of different widths, which train slowly until the file `hurry` exists."""

    def __init__(self, folder: Path, address: str, *, members: int, epochs: int, checkpoint_seconds: float) -> None:
        self.folder, self.directory, self.hurry = folder, folder / "run", folder / "hurry"
        self.study = folder / "study.py"
        self.study.write_text(STUDY.format(hurry=str(self.hurry), members=members, epochs=epochs))
        self._words = ["run", str(self.study), "--dir", str(self.directory), "--launcher", "ray", "--address", address]
        self._words += ["--numerics", "exact", "--loader-workers", "1", "--json"]
        self._words += ["--checkpoint-seconds", str(checkpoint_seconds)]
        self.driver = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        """Start another driver and return its process."""
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
        """The standard error of all drivers so far."""
        return (self.folder / "said").read_text()

    def lines(self, event: str) -> list[dict[str, Any]]:
        """Return the journal's complete lines of one kind so far."""
        path = self.directory / "journal.jsonl"
        text = path.read_bytes() if path.exists() else b""
        found = [json.loads(line) for line in text.split(b"\n")[:-1]]
        return [line for line in found if line["event"] == event]

    def faultless(self) -> dict[str, Any]:
        """Return the results of the study, trained in one process without any fault."""
        alone = self.folder / "alone"
        argosy.train(load_study(self.study), directory=alone, launcher="inline", devices="cpu:1", numerics="exact")
        return evidence.results(alone)
