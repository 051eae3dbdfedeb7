"""Tests of what a run promises, with every pipeline: it depends neither on the number of nodes nor on how they share the stream."""

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import evidence
import living
import psutil
import pytest
import studies
import torch
from test_cli import argosy as command

import argosy
from argosy.errors import PlanError, StudyError
from argosy.planning import POLICIES, Situation
from argosy.plans import Flotilla, Placement
from argosy.profiles import Profile
from argosy.protocol.events import SectionEnded
from argosy.running.watch.view import Silent
from argosy.stream.sharing import PIPELINES

LENGTH, VAL, EPOCHS = 170, 41, 2
SIZES = [32, 32, 32, 32, 32, 10, 32, 9] * EPOCHS
"""Samples in each block of a run: six training and two validation blocks an epoch, the last of each shorter."""
TWO = [
    (sharing, 2, preparing)
    for sharing in ("local", *PIPELINES)
    for preparing in ((1, 2) if sharing.endswith("broadcast") else (2,))
]
FOUR = [(sharing, 4, 3 if sharing.endswith("broadcast") else 4) for sharing in PIPELINES]
"""Blocks that the preparing nodes cannot share evenly; with a broadcast, one node only receives."""
CASES = [("multi-broadcast", 1, 1), *TWO, *FOUR]
"""With one node, all pipelines are the same, so one is tested."""
KILLED = [
    ("all-shared", 1, 1),
    ("local", 2, 2),
    ("all-shared", 2, 2),
    ("single-broadcast", 2, 2),
    ("multi-broadcast", 2, 1),
    ("single-broadcast", 4, 1),
    ("multi-broadcast", 4, 2),
]
"""The killed feeder prepares or only receives, alone or beside others."""


class Counting(studies.Vectors):
    """A dataset that appends each index that it prepares to a file, in one write so that processes can share the file."""

    def __init__(self, length: int, path: Path) -> None:
        super().__init__(length)
        self.path = path

    def __getitem__(self, index: int) -> Any:
        with self.path.open("a") as file:
            file.write(f"{index}\n")
        return super().__getitem__(index)


class Broken(studies.Vectors):
    """A dataset whose samples 17 and 100 cannot be read."""

    def __getitem__(self, index: int) -> Any:
        if index in (17, 100):
            raise OSError("truncated file")
        return super().__getitem__(index)


class Dealt:
    """A policy that deals members to devices in turn, whatever they cost, so that every node has one, even on a busy machine."""

    def launch(self, situation: Situation) -> tuple[Flotilla, ...]:
        pairs = zip(situation.waiting, itertools.cycle(situation.devices), strict=False)
        placements = tuple(Placement.whole(profile, device.name) for profile, device in pairs)
        return (Flotilla(placements=placements),) if len(situation.free) == len(situation.devices) else ()

    def keeps(self, situation: Situation, started: Flotilla, live: tuple[Profile, ...]) -> bool:
        return True


@pytest.fixture(autouse=True)
def _dealt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES, "dealt", Dealt())


def fleet() -> list[argosy.Member]:
    """Return four members that differ in batch size, width, subset and accumulation."""
    return [
        studies.member("plain"),
        studies.member("odd", hidden=24, batch_size=33, clip_grad_norm=1.0),
        studies.member("bootstrap", batch_size=16, subset=[3, 3, 5, *range(40, 130)], drop_last=True),
        studies.member("wide", batch_size=50, hidden=40, accumulate=3, eval_batch_size=7),
    ]


FIXED = {"policy": "dealt", "devices": "cpu:1", "loader_workers": 1, "block_size": 32, "numerics": "exact"}
"""Default settings: one device and one loader worker a node."""


def train(study: argosy.Study, directory: Path, **settings: Any) -> argosy.Report:
    """Train with `FIXED` and these settings."""
    return argosy.train(study, directory=directory, **{**FIXED, **settings})


def counted(folder: Path) -> argosy.Data:
    """Return data that record which samples are prepared."""
    return argosy.Data(train=Counting(LENGTH, folder / "train"), val=Counting(VAL, folder / "val"))


def prepared(folder: Path, split: str, *, nodes: int) -> Counter[int]:
    """Return how often each sample was prepared, without the samples that each node prepares to open the data.

    To open the data, a node prepares the first sample to find the layout, and three samples twice to check the dataset.
    """
    length = {"train": LENGTH, "val": VAL}[split]
    found = Counter(map(int, (folder / split).read_text().split()))
    found.subtract([0, *2 * [0, length // 2, length - 1]] * nodes)
    return found


def prepared_by(directory: Path) -> list[int]:
    """Return the number of samples of the stream that each node prepared."""
    used = [line for line in evidence.event_lines(directory, "Used") if "feeder" in line["worker"]]
    return [line["gauge"]["prepared"] for line in sorted(used, key=lambda line: line["worker"])]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the results of one node."""
    directory = tmp_path_factory.mktemp("alone")
    study = studies.study(data=counted(directory), fleet=fleet(), epochs=EPOCHS)
    train(study, directory / "run", launcher="inline", policy="balanced")
    return evidence.results(directory / "run")


@pytest.mark.parametrize(("sharing", "nodes", "preparing"), CASES)
def test_results_are_those_of_one_node_and_everything_is_prepared_once(
    tmp_path: Path, alone: dict[str, Any], sharing: str, nodes: int, preparing: int
) -> None:
    study = studies.study(data=counted(tmp_path), fleet=fleet(), epochs=EPOCHS)
    asked = preparing if sharing.endswith("broadcast") else None
    report = train(study, tmp_path / "run", nodes=nodes, sharing=sharing, preparing_nodes=asked)
    assert evidence.results(tmp_path / "run") == alone
    times = nodes if sharing == "local" else 1
    assert report.preparations == times
    for split, length in (("train", LENGTH), ("val", VAL)):
        assert prepared(tmp_path, split, nodes=nodes) == dict.fromkeys(range(length), EPOCHS * times)
    assert evidence.event_lines(tmp_path / "run", "WorkerLost") == []
    devices = {line["device"] for line in evidence.event_lines(tmp_path / "run", "MemberStarted")}
    assert devices == ({"cpu:0"} if nodes == 1 else {f"node{number}/cpu:0" for number in range(nodes)})
    (chosen,) = evidence.event_lines(tmp_path / "run", "SharingChosen")
    assert (chosen["sharing"], chosen["preparing"]) == (sharing, preparing)
    assert chosen["reason"] == ("one node" if nodes == 1 else f"set by sharing={sharing!r}")
    dealt = [sum(SIZES[turn::preparing]) for turn in range(preparing)] + [0] * (nodes - preparing)
    assert prepared_by(tmp_path / "run") == ([sum(SIZES)] * nodes if sharing == "local" else dealt)


class Killing(Silent):
    """A view that kills the feeder of the last node when the first member has ended an epoch."""

    def __init__(self) -> None:
        self.killed: list[str] = []

    def handle(self, worker: str, message: Any) -> None:
        """See `View.handle`."""
        if isinstance(message, SectionEnded) and not self.killed:
            feeders = {}
            for process in psutil.Process().children(recursive=True):
                if process.name() == "argosy-feeder":
                    feeders[Path(f"/proc/{process.pid}/fd/1").readlink().stem] = process
            last = max(feeders)
            feeders[last].kill()
            self.killed.append(last.replace("-feeder", "/feeder") if last.startswith("node") else last)


@pytest.fixture(scope="module")
def alone_for_longer(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the results of one node after three epochs."""
    directory = tmp_path_factory.mktemp("alone_for_longer")
    train(studies.study(LENGTH, fleet=fleet(), epochs=3), directory, launcher="inline", policy="balanced")
    return evidence.results(directory)


@pytest.mark.parametrize(("sharing", "nodes", "preparing"), KILLED)
def test_a_killed_feeder_changes_no_result(
    tmp_path: Path, alone_for_longer: dict[str, Any], sharing: str, nodes: int, preparing: int
) -> None:
    # The driver announces the third epoch only when it has received the first one's results: by then the feeder is dead.
    study, view = studies.study(LENGTH, fleet=fleet(), stop=studies.Unsure(3, sections=2)), Killing()
    asked = preparing if sharing.endswith("broadcast") else None
    settings = {"nodes": nodes, "sharing": sharing, "preparing_nodes": asked, "block_size": 8}
    living.run(study, tmp_path / "run", launcher="processes", view=view, **{**FIXED, **settings})
    assert evidence.results(tmp_path / "run") == alone_for_longer
    lost = [line["worker"] for line in evidence.event_lines(tmp_path / "run", "WorkerLost")]
    assert view.killed[0] in lost
    assert all(worker in view.killed or worker.endswith("/exchange") for worker in lost)


@pytest.mark.parametrize("sharing", ["local", "all-shared"])
def test_holes_are_the_same_on_all_nodes(tmp_path: Path, sharing: str) -> None:
    data = argosy.Data(train=Broken(LENGTH), on_error="skip")
    study = studies.study(data=data, fleet=[studies.member("even"), studies.member("odd", batch_size=7)])
    train(study, tmp_path / "one", launcher="inline")
    train(study, tmp_path / "two", nodes=2, sharing=sharing)
    assert evidence.results(tmp_path / "two") == evidence.results(tmp_path / "one")
    ended = evidence.event_lines(tmp_path / "two", "SectionEnded")
    assert {(line["device"], line["samples"]) for line in ended} == {
        ("node0/cpu:0", LENGTH - 2),
        ("node1/cpu:0", LENGTH - 2),
    }
    told = Counter((line["epoch"], line["index"]) for line in evidence.event_lines(tmp_path / "two", "Skipped"))
    assert told == dict.fromkeys([(0, 17), (0, 100), (1, 17), (1, 100)], 2 if sharing == "local" else 1)


def test_arrays_are_shared_alike(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    data = argosy.Data(arrays=(torch.randn(LENGTH, 12, generator=generator), torch.arange(LENGTH) % 10))
    study = studies.study(data=data, fleet=[studies.member("even"), studies.member("odd", batch_size=7)])
    train(study, tmp_path / "one", launcher="inline")
    train(study, tmp_path / "two", nodes=2, sharing="all-shared")
    assert evidence.results(tmp_path / "two") == evidence.results(tmp_path / "one")
    assert evidence.event_lines(tmp_path / "two", "WorkerLost") == []


def test_auto_measures_says_why_and_changes_no_result(tmp_path: Path, alone: dict[str, Any]) -> None:
    study = studies.study(data=counted(tmp_path), fleet=fleet(), epochs=EPOCHS)
    train(study, tmp_path / "run", nodes=2, sharing="auto")
    assert evidence.results(tmp_path / "run") == alone
    (chosen,) = evidence.event_lines(tmp_path / "run", "SharingChosen")
    assert chosen["sharing"] in ("local", *PIPELINES)
    for words in ("2 nodes of", "samples/s a core", "members could take", "MB/s of samples of 56 bytes", "local of 2"):
        assert words in chosen["reason"]


def test_another_cluster_goes_on_where_one_stopped(tmp_path: Path) -> None:
    train(studies.study(epochs=4), tmp_path / "whole", launcher="inline")
    train(studies.study(epochs=1), tmp_path / "moved", nodes=2, sharing="all-shared")
    train(studies.study(epochs=2), tmp_path / "moved", launcher="inline")
    train(studies.study(epochs=4), tmp_path / "moved", nodes=3, sharing="single-broadcast", preparing_nodes=2)
    assert evidence.results(tmp_path / "moved") == evidence.results(tmp_path / "whole")


class Unlike:
    """A factory that returns more samples on the second node that opens it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self) -> studies.Vectors:
        try:
            self.path.touch(exist_ok=False)
        except FileExistsError:
            return studies.Vectors(180)
        return studies.Vectors(170)


def test_a_node_whose_data_are_not_those_of_the_others_is_named(tmp_path: Path) -> None:
    data = argosy.Data(train=Unlike(tmp_path / "opened"))
    with pytest.raises(StudyError, match=r"node 'node[01]' has different data than the other nodes: lengths .*1[78]0"):
        train(studies.study(data=data), tmp_path / "run", nodes=2)


def test_inline_has_one_node(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="nodes is 2, but launcher inline has one process and one node"):
        argosy.train(studies.study(), directory=tmp_path, launcher="inline", nodes=2)


REFUSED = [
    (
        ("--nodes", "2", "--sharing", "single-broadcast", "--preparing-nodes", "3"),
        "preparing_nodes is 3, but there are 2",
    ),
    (("--nodes", "2", "--sharing", "multi-broadcast", "--preparing-nodes", "0"), "preparing_nodes is 0; it must be"),
    (("--nodes", "2", "--sharing", "all-shared", "--preparing-nodes", "2"), "preparing_nodes needs sharing"),
    (("--nodes", "2", "--preparing-nodes", "1"), "preparing_nodes needs sharing"),
    (("--nodes", "0"), "nodes is 0; it must be an int"),
    (("--nodes", "2", "--sharing", "none"), "which needs policy 'solo'"),
]


@pytest.mark.parametrize(("words", "message"), REFUSED)
def test_what_contradicts_itself_is_refused_before_anything_starts(
    tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    settings = {words[i].removeprefix("--").replace("-", "_"): words[i + 1] for i in range(0, len(words), 2)}
    typed: dict[str, Any] = {name: int(word) if word.isdigit() else word for name, word in settings.items()}
    with pytest.raises(StudyError, match=message) as raised:
        argosy.train(studies.study(), directory=tmp_path / "run", **typed)
    assert raised.value.exit_code == 2
    assert not (tmp_path / "run").exists()


def test_the_command_says_so_with_the_exit_code_of_a_wrong_study(tmp_path: Path) -> None:
    (tmp_path / "study.py").write_text("import studies\nstudy = studies.study()\n")
    words, message = REFUSED[0]
    assert message in command(tmp_path, "run", "study.py", *words, code=2).stderr.replace("\n", " ")
