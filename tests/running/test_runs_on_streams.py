"""Tests that a run on a stream killed three times within an epoch and resumed on other workers, devices and nodes equals a whole run."""

import time
from pathlib import Path

import evidence
import forked
import pytest

import argosy
from argosy.protocol.events import DataOpened, Fed, Saved
from argosy.results.fold import RunState
from argosy.running.directory.audit import audit
from argosy.running.directory.journal import read_journal

SCRIPT = """
import argosy, os, studies, sys, torch
from torch.utils.data import IterableDataset, get_worker_info

def line(words):
    return torch.full((12,), float(words) / 300), int(words) % 10

class Numbers(IterableDataset):
    def __init__(self, path):
        self.path = path

    def __iter__(self):
        for words in open(self.path):
            yield line(words)

def read(path, row):
    with open("reads.txt", "a", buffering=1) as reads:
        for number, words in list(enumerate(open(path)))[row:]:
            reads.write(f"{path} {number}\\n")
            yield line(words)

class Placed(IterableDataset):
    # Says how far it was read, as the streams of Hugging Face do.
    num_shards, row, first = 6, 0, 0

    def __iter__(self):
        shard = get_worker_info().id
        self.row, self.first = self.first, 0
        for sample in read(f"shards/{shard}", self.row):
            self.row += 1
            yield sample

    def state_dict(self):
        return {"row": self.row}

    def load_state_dict(self, state):
        self.first = state["row"]
        print(f"on from row {self.first}", file=open("reads.txt", "a"))

directory, path, keep, launcher, devices, workers, nodes = sys.argv[1:]
if keep == "keep":
    data = argosy.Data(train=Numbers(path), val=Numbers(path))
elif keep == "placed":
    data = argosy.Data(train=Placed(), val=Numbers(path), keep=False)
else:
    shards = argosy.data.from_shards(sorted(os.listdir("shards")), read=lambda name, row: read(f"shards/{name}", row))
    data = argosy.Data(train=shards, val=shards, keep=False)
fleet = [studies.member("a", augment=studies.dawdle, batch_size=5), studies.member("b", augment=studies.dawdle, batch_size=8)]
study = argosy.Study(data=data, members=fleet, stop=argosy.MaxEpochs(2), seed=5)
argosy.train(study, directory=directory, launcher=launcher, devices=devices, loader_workers=int(workers), nodes=int(nodes),
             numerics="exact", checkpoint_seconds=0.0, block_size=16)
"""
PLACES = [("cpu:2", 2, 1), ("cpu:1", 1, 1), ("cpu:1", 3, 2)]
"""Devices per node, loader workers and nodes of the killed runs."""


def begun(
    directory: Path, path: Path, keep: str, devices: str, workers: int, nodes: int, launcher: str = "processes"
) -> forked.Forked:
    words = [str(directory), str(path), keep, launcher, devices, str(workers), str(nodes)]
    return forked.script(SCRIPT, *words, err=2)


def saved(directory: Path) -> int:
    journal = directory / "journal.jsonl"
    return sum(isinstance(event, Saved) for event in read_journal(directory)) if journal.exists() else 0


@pytest.mark.parametrize("keep", ["keep", "not kept", "placed"])
def test_three_kills_in_one_epoch_and_none_of_them_can_be_told(
    keep: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path, lines = tmp_path / "numbers.txt", [f"{n}\n" for n in range(300)]
    path.write_text("".join(lines))
    (tmp_path / "shards").mkdir()
    for number, start in enumerate((0, 40, 41, 120, 200, 270)):
        stop = (40, 41, 120, 200, 270, 300)[number]
        (tmp_path / "shards" / f"{number}").write_text("".join(lines[start:stop]))
    assert begun(tmp_path / "whole", path, keep, "cpu:1", 0, 1, "inline").wait() == 0
    run = tmp_path / "run"
    for place in PLACES:
        before, process = saved(run), begun(run, path, keep, *place)
        while saved(run) < before + 8 and process.poll() is None:
            time.sleep(0.02)
        assert process.poll() is None, "the run ended before it was killed"
        process.kill()
        process.wait()
        if keep != "keep":
            opened = [event for event in read_journal(run) if isinstance(event, DataOpened)]
            assert opened[-1].shards["train"] == (40, 1, 79, 80, 70, 30)
    sections = [member.sections for member in RunState.of(read_journal(run)).members.values()]
    assert not any(sections), "a kill was after the first epoch"
    reads = tmp_path / "reads.txt"
    reads.unlink(missing_ok=True)
    assert begun(run, path, keep, "cpu:2", 2, 1).wait() == 0
    if keep == "placed":
        assert "on from row" in reads.read_text(), "no shard was resumed from its journaled state"
    assert evidence.results(run) == evidence.results(tmp_path / "whole")
    assert audit(run) == []
    told = argosy.load(run).keeping["train"]
    if keep == "keep":
        # Nothing was prepared again: a kept stream is read only once, even by resumed runs.
        assert sum(event.samples for event in read_journal(run) if isinstance(event, Fed)) == 0
        assert told == "read by an earlier run"
    else:
        assert told == "read in each epoch, shard by shard, because it is not kept"
