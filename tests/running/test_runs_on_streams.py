"""A stream killed three times within one epoch, gone on with on other workers, devices and nodes: as if nothing had been."""

import time
from pathlib import Path

import evidence
import forked

import argosy
from argosy.protocol.events import Fed, Saved
from argosy.results.fold import RunState
from argosy.running.directory.audit import audit
from argosy.running.directory.journal import read_journal

SCRIPT = """
import sys, argosy, studies, torch
from torch.utils.data import IterableDataset

class Numbers(IterableDataset):
    def __init__(self, path):
        self.path = path

    def __iter__(self):
        for line in open(self.path):
            yield torch.full((12,), float(line) / 300), int(line) % 10

directory, path, launcher, devices, workers, nodes = sys.argv[1:]
fleet = [studies.member("a", augment=studies.dawdle, batch_size=5), studies.member("b", augment=studies.dawdle, batch_size=8)]
study = argosy.Study(data=argosy.Data(train=Numbers(path), val=Numbers(path)), members=fleet, stop=argosy.MaxEpochs(2), seed=5)
argosy.train(study, directory=directory, launcher=launcher, devices=devices, loader_workers=int(workers), nodes=int(nodes),
             numerics="exact", checkpoint_seconds=0.0)
"""
PLACES = [("cpu:2", 2, 1), ("cpu:1", 1, 1), ("cpu:1", 3, 2)]
"""Devices of each node, loader workers and nodes of the runs that are killed."""


def begun(
    directory: Path, path: Path, devices: str, workers: int, nodes: int, launcher: str = "processes"
) -> forked.Forked:
    words = [str(directory), str(path), launcher, devices, str(workers), str(nodes)]
    return forked.script(SCRIPT, *words, err=2)


def saved(directory: Path) -> int:
    journal = directory / "journal.jsonl"
    return sum(isinstance(event, Saved) for event in read_journal(directory)) if journal.exists() else 0


def test_three_kills_in_one_epoch_and_none_of_them_can_be_told(tmp_path: Path) -> None:
    path = tmp_path / "numbers.txt"
    path.write_text("".join(f"{n}\n" for n in range(300)))
    assert begun(tmp_path / "whole", path, "cpu:1", 0, 1, "inline").wait() == 0
    run = tmp_path / "run"
    for place in PLACES:
        before, process = saved(run), begun(run, path, *place)
        while saved(run) < before + 8 and process.poll() is None:
            time.sleep(0.02)
        assert process.poll() is None, "it was over before it was killed"
        process.kill()
        process.wait()
    sections = [member.sections for member in RunState.of(read_journal(run)).members.values()]
    assert not any(sections), "the kills were to be within the first epoch"
    assert begun(run, path, "cpu:2", 2, 1).wait() == 0
    assert evidence.results(run) == evidence.results(tmp_path / "whole")
    assert audit(run) == []
    # Nothing was prepared: a stream is read once, whoever goes on with it.
    assert sum(event.samples for event in read_journal(run) if isinstance(event, Fed)) == 0
    assert argosy.load(run).keeping["train"] == "read by an earlier run"
