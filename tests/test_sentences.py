"""Tests of advice and notices: each sentence appears with figures that justify it, and not with others."""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import voyages
from rich.console import Console
from test_diagnosis import TRAINER, feeder
from views.test_endings import searched as search_of

import argosy
from argosy.protocol.events import Divided, MemberEnded, MemberStarted, NodeCame, SharingChosen, Skipped, WorkerLost
from argosy.protocol.packs import Packed
from argosy.results.diagnosis import diagnose
from argosy.results.report import Report
from argosy.running.directory.journal import timeline
from argosy.views.html.predictions import predictions
from argosy.views.html.report import page_values
from argosy.views.html.savings import savings
from argosy.views.notices import Notices
from argosy.views.tables import report_table, search_table


@dataclass(frozen=True)
class Sentence:
    """A sentence of a verdict, identified by words that no other has."""

    words: str
    right: Callable[[], str]
    """Returns a verdict that must have the words."""
    wrong: Callable[[], str]
    """Returns a verdict that must not have them."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Return the report of an invented run."""
    folder, study = tmp_path_factory.mktemp("sentences") / "run", voyages.asked(5, epochs=2)
    voyages.leave(folder, study, voyages.scheduler(study, epochs=2))
    return argosy.load(folder)


def verdict(*nodes: dict[str, Any], taken: int = 3000) -> str:
    """Return the verdict for nodes with these gauges and a trainer that took `taken` samples in 2 s."""
    named: list[tuple[str, dict[str, Any]]] = [(f"node{n}/feeder-0", gauge) for n, gauge in enumerate(nodes)]
    found = diagnose([*named, ("node0/cpu:0", {**TRAINER, "rows": taken})])
    return "" if found is None else found.verdict


def alone(**rest: Any) -> dict[str, Any]:
    """Return the gauge of a single node that prepares 200 samples/s on 2 cores with 2 workers."""
    return feeder(**{"prepare": 0.9, "exchanged_bytes": 0, "preparation_cpu_seconds": 8.0, **rest})


EVEN = {"busy_seconds": 2.0, "filling_seconds": 2.0}
VERDICTS = [
    Sentence(
        "more or faster devices would help, more loader workers would not",
        lambda: verdict(alone(train=0.9, busy_seconds=0.1), taken=2000),
        lambda: verdict(alone(train=0.9, busy_seconds=1.0), taken=2000) + verdict(alone()),
    ),
    Sentence(
        "both are about equally fast, so more devices alone would not help",
        lambda: verdict(alone(train=0.9, busy_seconds=1.0), taken=2000),
        lambda: verdict(alone(train=0.9, busy_seconds=0.1), taken=2000),
    ),
    Sentence(
        "send fewer bytes",
        lambda: verdict(*[feeder(exchange=0.9, **EVEN)] * 2),
        lambda: verdict(alone()) + verdict(alone(train=0.9)),
    ),
    Sentence(
        "or prepare on every node (sharing='local')",
        lambda: verdict(*[feeder(exchange=0.9, busy_seconds=1.0, filling_seconds=4.0)] * 2, taken=9000),
        # If each node prepared everything, they would be slower than the network.
        lambda: verdict(*[feeder(exchange=0.9, busy_seconds=4.0, filling_seconds=4.0)] * 2, taken=9000),
    ),
    Sentence(
        "node1 is slow",
        lambda: verdict(feeder(exchange=0.9), feeder(prepare=0.9, busy_seconds=10.0)),
        lambda: verdict(feeder(exchange=0.9), feeder(prepare=0.9, busy_seconds=5.5)) + verdict(alone()),
    ),
    Sentence(
        "compute for 1% of the time that they could and wait for the rest",
        lambda: verdict(alone(preparation_cpu_seconds=0.1)),
        lambda: verdict(alone()) + verdict(alone(loaders=16)),
    ),
    Sentence(
        "more of them would help (--loader-workers), even more than cores",
        lambda: verdict(alone(preparation_cpu_seconds=0.1, loaders=16)),
        lambda: verdict(alone()) + verdict(alone(loaders=1, preparation_cpu_seconds=4.0)),
    ),
    Sentence(
        "more loader workers would help (--loader-workers; 1 per node)",
        lambda: verdict(alone(loaders=1, preparation_cpu_seconds=4.0)),
        lambda: verdict(alone(loaders=0)) + verdict(alone()) + verdict(alone(loaders=1, preparation_cpu_seconds=0.1)),
    ),
    Sentence(
        "more cores or nodes would help, or a cheaper dataset: what is the same in each epoch is prepared only once if random changes are made in Data(then=...)",
        lambda: verdict(alone()),
        lambda: verdict(alone(preparation_cpu_seconds=0.1)) + verdict(alone(loaders=1, preparation_cpu_seconds=4.0)),
    ),
    Sentence(
        "samples/s per core on 2 cores",
        lambda: verdict(alone()),
        lambda: verdict(alone(preparation_cpu_seconds=0.1)) + verdict(alone(preparation_cpu_seconds=0.0)),
    ),
]


@pytest.mark.parametrize("sentence", VERDICTS, ids=lambda one: one.words)
def test_a_verdict_is_said_where_its_figures_bear_it_out(sentence: Sentence) -> None:
    assert sentence.words in sentence.right()
    assert sentence.words not in sentence.wrong()


@pytest.mark.parametrize("gauge", [alone(), alone(loaders=1), alone(preparation_cpu_seconds=0.1), alone(loaders=0)])
def test_no_message_recommends_on_device_for_work_of_each_epoch(gauge: dict[str, Any]) -> None:
    assert "on_device" not in verdict(gauge)


def printed(report: Report) -> str:
    """Return a report as a terminal shows it."""
    console = Console(file=io.StringIO(), width=400)
    console.print(report_table(report))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def ended(report: Report, command: str = "argosy run") -> str:
    """Return the last lines of a command that has made this report."""
    return report.ending(again=command, fixed=f"{command} --retry-failed").text(400, 50)


def pack(*programs: int, reason: str = "", **seconds: float) -> Packed:
    """Return programs with these numbers of members; `s2=` gives the seconds per sample in a program of two."""
    names = iter(f"m{number}" for number in range(100))
    return Packed(
        device="cpu:1",
        programs=tuple(tuple(next(names) for _ in range(count)) for count in programs),
        settled=True,
        seconds_per_sample=tuple((int(size[1:]), each) for size, each in seconds.items()),
        reason=reason,
    )


def packed(report: Report, *packs: Packed) -> str:
    """Return what the terminal shows of a report with these packs."""
    return printed(replace(report, packs=packs))


def leg(report: Report, *, seconds: float, predicted: float) -> Report:
    """Return a report with one leg of these actual and predicted seconds."""
    return replace(report, legs=(replace(report.legs[0], seconds=seconds, predicted_seconds=predicted),))


def pages(report: Report) -> str:
    """Return the text of the report's page on predictions and savings."""
    return " ".join(text for blocks in (predictions(report), savings(report)) for text, _ in blocks)


OF_REPORTS: Sequence[tuple[str, Callable[[Report], str], Callable[[Report], str]]] = [
    (
        "5 similar members were stepped in 1 program on cpu:1; together they take 40% of the time",
        lambda r: packed(r, pack(5, s1=1.0, s5=0.4)),
        lambda r: packed(r, pack(4, 1, s1=1.0, s4=0.5, s5=0.4)),
    ),
    (
        "4 different members were stepped in 1 program, with the same bits as each alone, on cpu:1",
        lambda r: packed(r, replace(pack(4), kind="grouped", unlike=True, exact=True)),
        lambda r: packed(r, replace(pack(4), exact=True)),
    ),
    (
        "were stepped one after another on cpu:1; as one program they took 127% of the time",
        lambda r: packed(r, pack(1, 1, s1=1.0, s2=1.27)),
        lambda r: packed(r, pack(1, s1=1.0, s2=1.27)) + packed(r, pack(2, s1=1.0, s2=0.6)),
    ),
    ("1 member was", lambda r: "1 member was", lambda r: packed(r, pack(1, s1=1.0, s2=1.27))),
    (
        "16.0 s predicted",
        lambda r: printed(leg(r, seconds=20.0, predicted=16.0)),
        lambda r: printed(leg(r, seconds=20.0, predicted=0.01)),
    ),
    (
        "s predicted",
        lambda r: printed(leg(r, seconds=0.5, predicted=0.4)),
        lambda r: printed(leg(r, seconds=26.6, predicted=0.2)) + printed(leg(r, seconds=0.1, predicted=0.09)),
    ),
    (
        "1.25 times as long as predicted",
        lambda r: pages(leg(r, seconds=20.0, predicted=16.0)),
        lambda r: pages(leg(r, seconds=26.6, predicted=0.01)),
    ),
    (
        "Similar members, alone and as one program",
        lambda r: pages(replace(r, packs=(pack(2, s1=1.0, s2=0.6),))),
        lambda r: pages(replace(r, packs=(pack(1, s1=1.0),))),
    ),
    (
        "Each training sample was prepared 1.0 times per epoch",
        lambda r: printed(replace(r, preparations=1.0)),
        lambda r: printed(replace(r, preparations=0.0)),
    ),
    (
        "Trainers waited for data 20% of their time",
        printed,
        lambda r: printed(replace(r, gauges={})),
    ),
    (
        "Nodes shared the stream: local (fastest)",
        lambda r: printed(
            replace(r, sharing=SharingChosen(sharing="local", reason="fastest", preparing=1, loader_workers=1))
        ),
        lambda r: printed(
            replace(r, sharing=SharingChosen(sharing="local", reason="one node", preparing=1, loader_workers=1))
        ),
    ),
    (
        "and the time of 1 driver that was killed",
        lambda r: printed(replace(r, killed_drivers=1)),
        printed,
    ),
    (
        "Best: none yet, because no member has a val_loss that counts",
        lambda r: ended(replace(r, rows=tuple(replace(row, metrics={}) for row in r.rows))),
        ended,
    ),
    (
        " diverged: its loss",
        lambda r: ended(with_status(r, "diverged")),
        lambda r: ended(with_status(r, "stopped")),
    ),
    (
        "After a fix: ",
        lambda r: ended(with_status(r, "failed"), "argosy run"),
        lambda r: ended(with_status(r, "diverged"), "argosy run"),
    ),
    (
        "Resume: ",
        lambda r: ended(replace(r, status="paused"), "argosy run"),
        lambda r: ended(replace(r, status="done"), "argosy run"),
    ),
    ("Watch it: ", lambda r: ended(replace(r, status="running"), "x"), lambda r: ended(r, "x")),
    (
        "Load it: ",
        lambda r: ended(r, "x"),
        lambda r: ended(replace(r, rows=tuple(replace(row, metrics={}) for row in r.rows)), "x"),
    ),
]


def with_status(report: Report, status: str) -> Report:
    """Return a report whose first member has this status and whose others are done."""
    first, *others = report.rows
    rows = [replace(first, status=status, reason="its loss"), *(replace(row, status="done") for row in others)]
    return replace(report, rows=tuple(rows))


@pytest.mark.tampers
@pytest.mark.parametrize(("words", "right", "wrong"), OF_REPORTS, ids=[words for words, _, _ in OF_REPORTS])
def test_a_report_says_what_its_figures_bear_out(
    made: Report, words: str, right: Callable[[Report], str], wrong: Callable[[Report], str]
) -> None:
    assert words in right(made)
    assert words not in wrong(made)


def searched(report: Report, **figures: Any) -> str:
    """Return what the terminal shows of a search with this run."""
    console = Console(file=io.StringIO(), width=400)
    console.print(search_table(replace(search_of(report), **figures)))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


OF_SEARCHES: Sequence[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("All could be compared after 2.0 s", {"first_comparison_seconds": 2.0}, {"first_comparison_seconds": None}),
    ("Stepping similar trials as one program saved", {"packed_seconds": 100.0}, {"packed_seconds": 0.1}),
    ("The best trial was found after 3.0 s", {"best_seconds": 3.0}, {"best_seconds": None}),
]


@pytest.mark.tampers
@pytest.mark.parametrize(("words", "right", "wrong"), OF_SEARCHES, ids=[words for words, _, _ in OF_SEARCHES])
def test_a_search_says_what_its_figures_bear_out(
    made: Report, words: str, right: dict[str, Any], wrong: dict[str, Any]
) -> None:
    assert words in searched(made, **right)
    assert words not in searched(made, **wrong)


@pytest.mark.tampers
def test_a_search_that_shared_nothing_saved_nothing_by_sharing(made: Report) -> None:
    words = "Preparing samples once for all trials saved"
    assert words in searched(replace(made, preparations=1.0, preparations_alone=5.0))
    assert words not in searched(replace(made, preparations=1.0, preparations_alone=1.001))


BEGUN = MemberStarted(
    member="m", device="cpu:0", epoch=0, section=0, stream_epoch=0, position=0, threads=1, mkldnn=True
)
NOTICES: Sequence[tuple[str, Any, Any]] = [
    (
        "its members continue from their checkpoints",
        WorkerLost(worker="n1/cpu:0", detail="killed"),
        WorkerLost(worker="n1/feeder-0", detail="killed"),
    ),
    ("feeder-0 is lost: killed", WorkerLost(worker="feeder-0", detail="killed"), None),
    (
        "m failed: ValueError: no",
        MemberEnded(member="m", status="failed", reason="ValueError: no"),
        MemberEnded(member="m", status="done", reason="ValueError: no"),
    ),
    (
        "Nodes share the stream: local (fastest)",
        SharingChosen(sharing="local", reason="fastest", preparing=1, loader_workers=1),
        SharingChosen(sharing="local", reason="one node", preparing=1, loader_workers=1),
    ),
    (
        "sample 17 (val) is left out: OSError: truncated",
        Skipped(split="val", epoch=0, index=17, error="OSError: truncated"),
        None,
    ),
    ("m needs more memory", Divided(member="m", accumulate=2), None),
    ("n2 has joined: 1 more devices", NodeCame(node="n2", devices=({"id": "n2/cpu:0"},)), None),
    ("m: uses NumPy", replace(BEGUN, notes=("uses NumPy",)), BEGUN),
]


@pytest.mark.parametrize(("words", "right", "wrong"), NOTICES, ids=[words for words, _, _ in NOTICES])
def test_a_notice_is_told_of_what_it_is_about(words: str, right: Any, wrong: Any) -> None:
    assert [words in text for text, _ in Notices().of(right, Path("run"))] == [True]
    assert not any(words in text for text, _ in Notices().of(wrong, Path("run")))


@pytest.mark.tampers
def test_the_page_of_a_run_repeats_what_the_terminal_says(made: Report) -> None:
    card = page_values(made, timeline(made.directory))["cards"][0]
    first, *others = made.ending().best
    assert f"Best: {card['name']}" == first
    assert [f"{label}: {text}" for label, text in card["pairs"]] == others
    assert made.leader is not None and card["value"] == str(made.leader.value)
