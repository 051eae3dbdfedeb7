"""Tests the report as a page: one file that needs no network, for members of any name and for large runs."""

import importlib.util
import json
import math
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import browser
import pytest
import searches
import studies
import voyages

import argosy
from argosy.cli import report as reporting_cli
from argosy.protocol.events import MemberStarted, Recovered, SectionEnded, WorkerLost
from argosy.results.bands import Band
from argosy.running.directory import journal, lock
from argosy.running.directory.journal import timeline
from argosy.running.directory.query import query
from argosy.views.html import page as page_of
from argosy.views.html.chronicle import Chronicle, Mark, Span
from argosy.views.html.devices import devices_of, idle_share
from argosy.views.html.importance import chance, importance
from argosy.views.html.page import page
from argosy.views.html.predictions import predictions
from argosy.views.html.report import page_values, write_news, write_report
from argosy.views.html.rows import PageRow, table_of

NEEDS_BROWSER = pytest.mark.skipif(browser.CHROMIUM is None, reason="needs a browser: apt-get install chromium")


def shown(text: str) -> dict[str, Any]:
    """Return the values that a page draws."""
    found = re.search(r'<script type="application/json" id="values">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    values: dict[str, Any] = json.loads(found[1], parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    return values


def written(folder: Path, *, members: int = 100, epochs: int = 12, faults: int = 5) -> Path:
    """Write the page of a made-up run, and return its path."""
    study = voyages.asked(members, epochs=epochs)
    voyages.leave(folder / "run", study, voyages.scheduler(study, epochs=epochs, faults=faults))
    return write_report(argosy.load(folder / "run"), timeline(folder / "run"))


def test_a_lost_worker_is_one_fault_however_its_members_continue() -> None:
    lost = [*voyages.scheduler(voyages.asked(8, epochs=3), epochs=3, faults=1)]
    at = next(number for number, (_, event) in enumerate(lost) if isinstance(event, WorkerLost))
    after = Recovered(worker="cpu:0", members=("m",), way="apart", costs={})
    found = Chronicle.of([*lost[: at + 1], (lost[at][0], after), *lost[at + 1 :]])
    assert [mark.kind for mark in found.marks] == ["fault", "recovery"]


def test_a_chronicle_has_the_place_of_each_member_at_each_time() -> None:
    study = voyages.asked(8, epochs=3)
    found = Chronicle.of(voyages.scheduler(study, epochs=3, faults=1))
    first = next(iter(study.names))
    spans = [span for span in found.spans if span.member == first]
    assert [(span.device, span.begin_seconds, span.end_seconds, span.came_from) for span in spans] == [
        ("cpu:0", 0.2, 10.0, ""),
        ("cpu:1", 10.3, 31.0, "cpu:0"),
    ]
    assert {span.flotilla for span in found.spans} == {1}
    text = "cpu:0 is lost: killed by signal 9"
    assert found.marks == [Mark(seconds=10.0, kind="fault", device="cpu:0", text=text)]
    assert found.seconds == 32.0
    assert found.state.members[first].status == "done"


def test_a_chronicle_of_thousands_of_members_takes_a_moment() -> None:
    of_all = {
        "device": "cpu:0",
        "epoch": 0,
        "section": 0,
        "stream_epoch": 0,
        "position": 0,
        "threads": 1,
        "mkldnn": True,
    }
    started = [(0.0, MemberStarted(member=f"m{number}", **of_all)) for number in range(5000)]
    began = time.process_time()
    assert len(Chronicle.of([*started, *started]).spans) == 10_000
    assert time.process_time() - began < 1.0, "the time grew with the square of the number of members"


def test_after_a_driver_that_was_killed_no_member_is_assigned_twice() -> None:
    study = voyages.asked(4, epochs=2)
    killed = list(voyages.scheduler(study, epochs=1, end=False))
    later = [(20.0 + seconds, event) for seconds, event in voyages.scheduler(study, epochs=2)]
    found = Chronicle.of([*killed, *later])
    assert len(found.spans) == 8
    assert sorted({(span.begin_seconds, span.end_seconds) for span in found.spans}) == [(0.2, 9.5), (20.2, 41.0)]


@pytest.mark.tampers
def test_the_report_is_one_small_file_with_everything(tmp_path: Path) -> None:
    path = written(tmp_path)
    text, values = path.read_text(), shown(path.read_text())
    assert path.stat().st_size < 1e6
    assert not re.search(r"<(script|link|img)[^>]*(src|href)=.http", text)
    assert [card["title"] for card in values["cards"]] == [
        *("Best val_loss", "Members", "Time", "Saved by sharing and packing")
    ]
    assert values["metrics"] == ["val_loss", "val_accuracy", "train_loss"]
    assert all(len(row["curves"]["val_loss"][0]) == 12 for row in values["rows"])
    assert sum(mark["kind"] == "fault" for mark in values["devices"]["marks"]) == 5
    said = json.dumps(values["sections"], ensure_ascii=False)
    assert "1.25 times as long as predicted" in said
    assert "4.00 CPU seconds for 2,000 prepared samples, 2,000 µs per sample" in said
    assert "package-0 5,000 J" in said
    assert "members take" in said


@pytest.mark.tampers
def test_a_journal_is_read_once_for_a_page_a_status_or_a_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    of_two_objectives(tmp_path / "search")
    of_run, of_search = (tmp_path / name for name in ("run", "search"))
    written(tmp_path, members=2, epochs=1, faults=0)
    seen: list[Path] = []
    read = journal.read_lines

    def counted(path: Path) -> Iterator[bytes]:
        seen.append(path)
        return read(path)

    monkeypatch.setattr(journal, "read_lines", counted)
    for directory in (of_run, of_search):
        reporting_cli.report(directory, html=True)
        reporting_cli.status(directory)
        query(directory, "SELECT count(*) FROM events")
    assert seen == [of_run / "journal.jsonl"] * 3 + [of_search / "journal.jsonl"] * 3


@pytest.mark.tampers
def test_cards_say_what_matters_first(tmp_path: Path) -> None:
    written(tmp_path)
    report = argosy.load(tmp_path / "run")
    values = page_values(report, timeline(tmp_path / "run"))
    best, members, spent, saved = values["cards"]
    first = report.best()
    assert (best["value"], best["name"]) == (f"{first.metrics['val_loss']:.4g}", report.ending().best[0][6:])
    assert best["pairs"] == [
        ["Load it", f"argosy.load({str(tmp_path / 'run')!r}, study=study).member({first.name!r}).load()"]
    ]
    assert (members["value"], members["counts"]) == ("100", [["done", 99], ["failed", 1]])
    assert [text for _, text in members["pairs"]] == [row.failure for row in report.rows if row.failed]
    assert (spent["value"], spent["name"]) == ("2 min 2 s", "on 4 devices")
    assert ["Waiting for data", "20% of the trainers' time"] in spent["pairs"]
    assert (saved["value"], saved["name"]) == ("6 min 36 s", "of CPU time")


@pytest.mark.tampers
def test_cells_are_those_of_the_table(tmp_path: Path) -> None:
    written(tmp_path, members=9)
    report = argosy.load(tmp_path / "run")
    values = page_values(report, timeline(tmp_path / "run"))
    names = [column["name"].replace(" ", "_") for column in values["columns"]]
    assert len(names) == len({*names})
    table = report.table()
    assert [row["name"] for row in values["rows"]] == [row["member"] for row in table]
    for row, known in zip(values["rows"], table, strict=True):
        for name, cell in zip(names, row["cells"], strict=True):
            assert cell == pytest.approx(known[name], abs=1e-3) if isinstance(cell, float) else known[name] == cell
    equal = {name for name, column in zip(names, values["columns"], strict=True) if column["equal"]}
    assert {"batch_size", "epochs"} < equal and not {"val_loss", "model.hidden"} & equal


@pytest.mark.tampers
def test_a_page_of_one_leg_does_not_teach_the_word(tmp_path: Path) -> None:
    written(tmp_path, members=3, epochs=2, faults=0)
    report = argosy.load(tmp_path / "run")
    told = str([*predictions(report)]).split()
    assert not any("leg" in word for word in told)
    several = str([*predictions(replace(report, legs=(*report.legs, replace(report.legs[0], leg="2"))))])
    assert all(name in several for name in ("'leg 1'", "'leg 2'", "A leg is", "['leg', "))


@pytest.mark.tampers
def test_means_over_repetitions_are_on_the_page(tmp_path: Path) -> None:
    fleet = [*argosy.replicate(studies.member("good"), seeds=3), *argosy.replicate(studies.member("slow"), seeds=2)]
    study = studies.study(voyages.LENGTH, fleet=fleet)
    voyages.leave(tmp_path / "run", study, voyages.scheduler(study, epochs=2))
    report = argosy.load(tmp_path / "run")
    values = page_values(report, timeline(tmp_path / "run"))
    best, other = report.repetitions.configurations
    sheet = values["means"]["blocks"][0]["sheet"]
    assert [(row[0], row[3]) for row in sheet["rows"]] == [(best.name, "1 of 2"), (other.name, "3 of 3")]
    assert [row[1] for row in sheet["rows"]] == [str(found.metrics["val_loss"]) for found in (best, other)]
    assert f"val_loss minus that of {best.name}" in sheet["columns"]
    assert values["cards"][0]["name"] == f"{best.name}, val_loss {best.metrics['val_loss']}, mean of 1 of 2"
    (band,) = values["bands"]
    members = [report.rows[place] for place in band["members"]]
    assert {row.repeats for row in members} == {band["label"]} == {other.name} and len(members) == 3
    epochs, steps, seconds = band["across"]
    assert (epochs, steps, seconds) == ([1.0, 2.0], [9.0, 18.0], [9.0, 19.0])
    means, low, high = band["curves"]["val_loss"]
    values_at = [[row.curve("val_loss")[epoch] for row in members] for epoch in epochs]
    assert means == pytest.approx([sum(found) / 3 for found in values_at])
    assert all(a < min(found) and max(found) < b for a, found, b in zip(low, values_at, high, strict=True))
    assert shown(written(tmp_path / "alone", members=3, epochs=1).read_text())["means"] is None


@pytest.mark.tampers
def test_a_page_tells_how_long_drivers_worked_that_were_killed(tmp_path: Path) -> None:
    study = voyages.asked(2, epochs=30)
    killed = list(voyages.scheduler(study, epochs=28, end=False))
    voyages.leave(tmp_path / "run", study, iter(killed))
    text = write_report(argosy.load(tmp_path / "run"), timeline(tmp_path / "run")).read_text()
    values = shown(text)
    assert values["status"] == "interrupted"
    assert [card["value"] for card in values["cards"][1:3]] == ["2", "4 min 40 s"]


def span(member: str, begin: float, end: float, *, device: str = "cpu:0", flotilla: int = 1) -> Span:
    """Return the time that a member spent on a device."""
    return Span(member=member, device=device, flotilla=flotilla, begin_seconds=begin, end_seconds=end, came_from="")


def test_lanes_fold_members_to_their_number_and_leave_out_idle_time() -> None:
    spans = [
        span("a", 1, 4),
        span("b", 1, 2),
        span("c", 2, 4),
        span("a", 6, 9, flotilla=2),
        span("b", 0, 10, device="cpu:1"),
    ]
    fault = Mark(seconds=4.0, kind="fault", device="cpu:0", text="gone")
    found = devices_of(spans, [fault], 10.0, {"a": 7, "b": 8, "c": 9})
    folded, whole = found["lanes"]
    # At 2 one member leaves and another one comes, so there are two all the time.
    assert folded["segments"] == [(1, 4, 2, 1), (6, 9, 1, 2)]
    assert (folded["idle"], whole["idle"]) == (pytest.approx(0.4), 0.0)
    assert [(lane, row) for lane, row, *_ in found["spans"]] == [(0, 7), (0, 8), (0, 9), (0, 7), (1, 8)]
    assert [(mark["seconds"], mark["lane"], mark["text"]) for mark in found["marks"]] == [(4.0, 0, "gone")]
    assert found["flotillas"] == [1, 2]
    assert idle_share([], 0.0) == 0.0


@pytest.mark.tampers
def test_members_with_long_names_are_told_apart(tmp_path: Path) -> None:
    labels = [row["label"] for row in shown(written(tmp_path, members=40, epochs=1).read_text())["rows"]]
    assert len({*labels}) == 40 and max(map(len, labels)) <= 30


def test_importance_is_of_what_matters_and_expects_nothing_of_the_rest() -> None:
    results = [
        ({"lr": 10.0 ** -(at % 7), "kind": "ab"[at % 2], "noise": (at * 7919) % 101, "same": 1}, (at % 7) ** 2.0)
        for at in range(210)
    ]
    found = importance(results)
    assert found["lr"] > 0.9
    assert found["kind"] < 0.02 and found["noise"] < 0.05
    assert "same" not in found
    assert importance([(parameters, math.exp(value)) for parameters, value in results]) == found
    # Two groups whose ranks alternate explain less than chance would.
    assert importance([({"kind": "ab"[at % 2]}, float(at)) for at in range(8)]) == {"kind": 0.0}
    assert importance(results[:7]) == {} == importance([(parameters, math.nan) for parameters, _ in results])


@pytest.mark.parametrize("trials", [8, 20, 100])
def test_a_parameter_without_influence_shows_more_than_by_chance_in_one_of_ten_searches(trials: int) -> None:
    draw = Random(trials)
    found = [importance([({"noise": draw.random()}, draw.random()) for _ in range(trials)]) for _ in range(500)]
    assert 0.06 < sum(one["noise"] > chance(trials) for one in found) / 500 < 0.14


def test_importance_of_a_parameter_that_some_lack_is_among_those_that_have_it() -> None:
    """The width of a second layer says nothing about how much the number of layers matters."""
    draw = Random(0)
    shallow, deep = [{"layers": 1}] * 30, [{"layers": 2, "second": draw.random()} for _ in range(60)]
    found = importance([(one, 9.0 * one["layers"] + draw.random()) for one in [*shallow, *deep]])
    assert found["layers"] > 0.6 and found["second"] < 0.1
    assert importance([(one, one["second"]) for one in deep])["second"] > 0.9
    few = importance([*((one, 1.0) for one in shallow), *((one, one["second"]) for one in deep[:7])])
    assert "layers" in few and "second" not in few


def test_importance_of_a_number_that_some_do_not_have_is_of_like_values_too() -> None:
    """If each value were a group of its own, the hidden size would seem to explain what the members without it have in common."""
    alike = [({"width": at}, 50.0 + at / 100) for at in range(20)]
    apart = [({"hidden": at}, 100.0 * ((at * 7919 + at // 3) % 2)) for at in range(20)]
    found = importance(alike + apart)
    assert found["hidden"] < 0.1, "hidden sizes do not explain these values"
    steep = [({"width": at}, float(at)) for at in range(20)]
    assert importance(steep + [({"hidden": at}, 10.0 + (at * 7919) % 3) for at in range(20)])["width"] > 0.5


def test_importance_counts_a_trial_that_starts_from_scratch_at_each_rung_once() -> None:
    values = {0: [0.9, 0.1], 1: [0.8, 0.2], **{at: [0.3 + 0.05 * at] for at in range(2, 9)}}
    rows = [
        PageRow(
            name=f"net-{trial}-{rung}",
            status="done",
            reason="",
            counts=True,
            load="",
            metrics={"val_loss": value},
            parameters={"lr": 0.1 * trial},
            facts={},
            members=[],
            number=trial,
        )
        for trial, rungs in values.items()
        for rung, value in enumerate(rungs)
    ]
    rows.sort(key=lambda row: row.metrics["val_loss"])
    shown = table_of(rows, "val_loss", {})
    best = [({"lr": 0.1 * trial}, min(rungs)) for trial, rungs in values.items()]
    assert [column["weight"] for column in shown["columns"] if column["name"] == "lr"] == [importance(best)["lr"]]
    assert shown["chance"] == chance(len(values))


@pytest.mark.tampers
def test_a_search_has_a_layout_of_its_own(tmp_path: Path) -> None:
    search = searches.tune(tmp_path / "run", quiet=True)
    report = argosy.load(tmp_path / "run")
    values = page_values(report, timeline(tmp_path / "run"))
    assert (values["noun"], values["search"]["scheduler"]) == ("trial", "hyperband")
    rows = {row["name"]: row for row in values["rows"]}
    assert [*rows] == [row.name for row in search.rows]
    assert {row["status"] for row in rows.values()} == {"done", "pruned"}
    assert values["cards"][0]["value"] == f"{search.best_trial.metrics['val_loss']:.4g}"
    at = [(column["kind"], column["name"]) for column in values["columns"]]
    for name, parameters in search.parameters.items():
        for parameter, value in parameters.items():
            assert rows[name]["cells"][at.index(("parameter", parameter))] == value
    # Hyperband with 9 epochs and η = 3 has brackets of 9, 5 and 3 trials that begin with 1, 3 and 9 epochs; each rung
    # keeps a third.
    brackets = {
        bracket["rungs"][0][0]: [counts for _, *counts in bracket["rungs"]] for bracket in values["search"]["brackets"]
    }
    assert brackets == {1.0: [[9, 9], [3, 3], [1, 1]], 3.0: [[5, 5], [1, 1]], 9.0: [[3, 3]]}
    assert sum(row["status"] == "pruned" for row in rows.values()) == 6 + 2 + 4


def of_two_objectives(directory: Path) -> Any:
    """Run a search by two objectives with a constraint."""
    return searches.tune(
        directory,
        objective={"val_loss": "min", "samples": "min"},
        constraints=lambda reached: [2.3 - reached["val_loss"]],
        scheduler="random",
        n_trials=12,
        quiet=True,
    )


@pytest.mark.tampers
def test_the_page_of_several_objectives_has_the_pareto_set(tmp_path: Path) -> None:
    search = of_two_objectives(tmp_path / "run")
    values = page_values(argosy.load(tmp_path / "run"), timeline(tmp_path / "run"))
    assert values["search"]["objectives"] == [["val_loss", "min"], ["samples", "min"]]
    assert values["search"]["pareto"] == [*range(len(search.pareto))]
    assert [row["name"] for row in values["rows"]] == [row.name for row in search.rows]
    at = {column["name"]: number for number, column in enumerate(values["columns"])}
    for shown, row in zip(values["rows"], search.rows, strict=True):
        assert shown["cells"][at["samples"]] == row.totals["samples"]
        assert shown["cells"][at["pareto"]] == (row in search.pareto)
        assert shown["cells"][at["constraints"]] == row.verdict
        assert shown["counts"] == (row.verdict == "met")
    assert {row["counts"] for row in values["rows"]} == {True, False}
    assert [
        "Pareto set",
        f"{len(search.pareto)} trials, report.pareto; this is the one with the best val_loss",
    ] in values["cards"][0]["pairs"]


@NEEDS_BROWSER
def test_two_objectives_are_drawn_with_the_line_of_the_pareto_set(tmp_path: Path) -> None:
    search = of_two_objectives(tmp_path / "run")
    path = write_report(argosy.load(tmp_path / "run"), timeline(tmp_path / "run"))
    with browser.opened(tmp_path / "profile") as chromium:
        chromium.open(path)
        chromium.picture(tmp_path / "picture.png", width=1240, dark=False)
        drawn = json.loads(
            chromium.ask(
                "JSON.stringify([...document.querySelectorAll('#front circle')].map(one => "
                "[Number(one.dataset.row), Number(one.getAttribute('cx')), Number(one.getAttribute('cy'))]))"
            )
        )
        line = chromium.ask("document.querySelector('#front path.best-so-far').getAttribute('d')")
        assert chromium.errors == []
    spots = {row: (x, y) for row, x, y in drawn}
    assert sorted(spots) == [place for place, row in enumerate(search.rows) if row.verdict == "met"]
    corners = [tuple(map(float, point.split())) for point in re.split("[ML]", line)[1:]]
    assert corners[::2] == sorted(spots[place] for place in range(len(search.pareto)))
    # No trial lies below the line between them: none of as few samples has a lower loss.
    for x, y in spots.values():
        assert y <= max(corner[1] for corner in corners if corner[0] <= x)


@pytest.mark.tampers
def test_a_run_that_has_only_begun_has_a_page(tmp_path: Path) -> None:
    study = voyages.asked(3, epochs=1)
    events = list(voyages.scheduler(study, epochs=0, end=False))[:1]
    voyages.leave(tmp_path / "run", study, iter(events))
    text = write_report(argosy.load(tmp_path / "run"), timeline(tmp_path / "run"), live=True).read_text()
    values = shown(text)
    assert values["live"] == {"news": "report.live.js", "seconds": page_of.LIVE_SECONDS}
    assert values["devices"]["lanes"] == []
    assert values["cards"][0]["value"] == "none yet"
    assert '"lanes":[]' in (tmp_path / "run" / "report.live.js").read_text()


@pytest.mark.tampers
def test_a_run_whose_samples_were_all_kept_before_says_what_it_did_without(tmp_path: Path) -> None:
    study = voyages.asked(2, epochs=1)
    voyages.leave(tmp_path / "run", study, voyages.scheduler(study, epochs=1))
    report, told = argosy.load(tmp_path / "run"), list(timeline(tmp_path / "run"))
    saved = [
        page_values(replace(report, preparations=once, preparations_alone=alone, gauges={}), told)["cards"][3]
        for once, alone in ((0.0, 2.0), (0.5, 2.0), (1.0, 1.0))
    ]
    assert [(card["value"], card["name"]) for card in saved] == [
        ("all", "preparations"),
        ("4 ×", "fewer preparations"),
        ("nothing", "no sample is shared by several members"),
    ]
    assert saved[0]["pairs"][0] == ["Each sample prepared", "0.00 times per epoch; 2.00 with one script per member"]


def test_no_name_can_end_the_page() -> None:
    evil = "</script><script>alert(1)</script>"
    text = page({"title": evil, "rows": [{evil: evil, "value": math.nan}]})
    assert evil not in text
    assert shown(text)["rows"] == [{evil: evil, "value": None}]


def test_news_are_written_while_the_run_goes_on_and_the_whole_page_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, live = tmp_path / "run", list[bool]()
    study = studies.study(90, fleet=[studies.member()], epochs=2)
    argosy.train(study, directory=run, launcher="inline", devices="cpu:1")
    found, working = argosy.load(run), iter([True, True, False, False])
    monkeypatch.setattr(argosy.running.directory.loading, "has_driver", lambda directory: next(working))
    monkeypatch.setattr(time, "sleep", lambda seconds: live.append(is_live(run)))
    monkeypatch.setattr(reporting_cli, "print_output", lambda value: None)
    reporting_cli.report(run, html=False, open_=False, live=True, as_json=False)
    assert live == [True, True]
    assert not is_live(run)
    assert not (run / "report.live.js").exists()
    assert shown((run / "report.html").read_text())["rows"][0]["name"] == found.rows[0].name


def test_a_live_page_waits_for_a_run_that_has_just_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, waited = tmp_path / "run", list[float]()
    study = studies.study(90, fleet=[studies.member()], epochs=1)
    argosy.train(study, directory=run, launcher="inline", devices="cpu:1")
    (run / "study.json").rename(tmp_path / "study.json")

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            (tmp_path / "study.json").rename(run / "study.json")

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(lock, "has_driver", lambda directory: True)
    monkeypatch.setattr(reporting_cli, "print_output", lambda value: None)
    reporting_cli.report(run, html=False, open_=False, live=True, as_json=False)
    assert len(waited) == 3 and (run / "report.html").exists()


def is_live(run: Path) -> bool:
    """Return whether the run's page looks for news, and the file with news exists."""
    return bool(shown((run / "report.html").read_text())["live"]) and (run / "report.live.js").exists()


@NEEDS_BROWSER
@pytest.mark.tampers
def test_a_large_page_opens_in_a_second(tmp_path: Path) -> None:
    """The time is the browser's own processor time, which does not depend on how busy the machine is."""
    path = written(tmp_path, epochs=20)
    assert path.stat().st_size < 3e6
    with browser.opened(tmp_path / "profile") as chromium:
        chromium.open(path)
        chromium.wait("document.querySelectorAll('#curves .curve').length === 100")
        assert chromium.seconds() < 1.0
        assert chromium.errors == []


ROWS = "[...document.querySelectorAll('#table tbody tr:not(.more)')].map(row => row.cells[{at}].textContent)"
HIDDEN = "[...document.querySelectorAll('#table th')].findIndex(head => head.textContent.includes('model.hidden'))"


def sorted_by_hidden(chromium: browser.Browser) -> list[int]:
    """Click on the head of the column of hidden sizes, and return its values in the new order."""
    at = chromium.ask(HIDDEN)
    chromium.ask(f"document.querySelectorAll('#table th button')[{at}].click()")
    return [int(text) for text in chromium.ask(ROWS.replace("{at}", str(at)))]


@NEEDS_BROWSER
@pytest.mark.tampers
def test_a_live_page_shows_what_is_new_and_keeps_what_a_person_has_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_of, "LIVE_SECONDS", 0.05)
    run, study = tmp_path / "run", voyages.asked(30, epochs=20)
    events = list(voyages.scheduler(study, epochs=20))
    early = [event for event in events if event[0] <= 40.0]
    voyages.leave(run, study, iter(early))
    path = write_report(argosy.load(run), timeline(run), live=True)
    with browser.opened(tmp_path / "profile") as chromium:
        chromium.open(path)
        chromium.ask("self.kept = true")
        chromium.wait("document.querySelector('#curves .curve')")
        choose(chromium, "metric", "val_accuracy")
        chromium.ask("document.querySelectorAll('#table tbody button')[4].click()")
        picked = chromium.ask("document.querySelector('#table [aria-pressed=true]').title")
        sorted_by_hidden(chromium)
        sorted_by_hidden(chromium)
        voyages.leave(tmp_path / "later", study, iter([event for event in events if event[0] <= 150.0]))
        shutil.copy(tmp_path / "later" / "journal.jsonl", run)
        write_news(argosy.load(run), timeline(run))
        before = chromium.seconds()
        chromium.wait("document.querySelector('.cards').textContent.includes('450 epochs')")
        assert chromium.ask("document.querySelector('#curves .title').textContent") == "val_accuracy"
        assert chromium.ask("document.querySelector('#curves svg').textContent").count("val_accuracy") == 1
        hidden = [int(text) for text in chromium.ask(ROWS.replace("{at}", str(chromium.ask(HIDDEN))))]
        assert hidden == sorted(hidden, reverse=True)
        assert chromium.ask(
            "[...document.querySelectorAll('#curves .best')].map(curve => values.rows[curve.dataset.row].name)"
        ) == [picked]
        assert chromium.seconds() - before < 1.0
        # When the news file is gone, the page loads its final version.
        write_report(argosy.load(run), timeline(run))
        deadline = time.monotonic() + 30
        while chromium.ask("self.kept"):
            assert time.monotonic() < deadline
        assert [error for error in chromium.errors if "report.live.js" not in error and "ERR_" not in error] == []


def choose(chromium: browser.Browser, of: str, value: str) -> None:
    """Choose a value in a drop-down list of the page."""
    chromium.ask(f"it = document.getElementById({of!r}), it.value = {value!r}, it.dispatchEvent(new Event('change'))")


@NEEDS_BROWSER
@pytest.mark.tampers
def test_the_page_is_clicked_through_in_a_browser(tmp_path: Path) -> None:
    path = written(tmp_path)
    with browser.opened(tmp_path / "profile") as chromium:
        chromium.open(path)
        choose(chromium, "metric", "val_accuracy")
        assert chromium.ask("document.querySelector('#curves .title').textContent") == "val_accuracy"
        assert chromium.ask("document.querySelectorAll('#table tbody tr').length") == 12
        chromium.ask("[...document.querySelectorAll('#table button')].at(-1).click()")
        hidden = sorted_by_hidden(chromium)
        assert len(hidden) == 100 and hidden == sorted(hidden)
        assert sorted_by_hidden(chromium) == hidden[::-1]
        # The search box looks in names and cells; the status list filters.
        search(chromium, "depth=3 hidden=20")
        assert chromium.ask("document.querySelectorAll('#table tbody tr').length") == 1
        search(chromium, "")
        choose(chromium, "status", "failed")
        assert chromium.ask("document.querySelector('#table tbody .reason').textContent") == "ValueError: too wide"
        choose(chromium, "status", "")
        # A row that is pointed at or picked in one figure is marked in all.
        row = chromium.ask("document.querySelectorAll('#table tbody tr')[7].dataset.row")
        chromium.ask("document.querySelectorAll('#table tbody tr')[7].dispatchEvent(new Event('pointerenter'))")
        for place in ("curves", "scatter", "parallel", "devices"):
            assert (
                chromium.ask(f"[...document.querySelectorAll('#{place} .hot')].map(node => node.dataset.row)").count(
                    row
                )
                >= 1
            )
        chromium.ask("document.querySelectorAll('#table tbody tr')[7].querySelector('button').click()")
        for place in ("curves", "scatter", "parallel"):
            assert {
                *chromium.ask(f"[...document.querySelectorAll('#{place} .best')].map(node => node.dataset.row)")
            } == {row}
        assert chromium.ask("document.querySelector('#table .more').textContent").count("batch_size") == 1
        chromium.ask("document.querySelector('#clear').click()")
        assert len(chromium.ask("[...document.querySelectorAll('#curves .best')].map(node => node.dataset.row)")) == 5
        # Columns with equal values in all rows are hidden until they are asked for.
        heads = "document.querySelector('#table thead').textContent"
        assert "batch_size" not in chromium.ask(heads)
        press(chromium, "6 columns equal for all")
        chromium.picture(tmp_path / "picture.png", width=2400)
        assert "batch_size" in chromium.ask(heads)
        press(chromium, "unfold members")
        assert chromium.ask("document.querySelectorAll('#devices .empty').length") > 100
        # Dragging along half of an axis filters by that half; a click shows all again.
        drag(chromium, "#parallel rect[fill=transparent]", (0.5, 0.5), (0.5, 1.1))
        kept = int(chromium.ask("document.querySelector('#parallel .note').textContent").split()[0])
        assert 30 < kept < 70 and chromium.ask("document.querySelectorAll('#parallel .curve').length") == kept
        drag(chromium, "#parallel rect[fill=transparent]", (0.5, 0.5), (0.5, 0.5))
        assert chromium.ask("document.querySelectorAll('#parallel .curve').length") == 99
        ground = "getComputedStyle(document.body).backgroundColor"
        light = chromium.ask(ground)
        press(chromium, "Dark")
        assert chromium.ask(ground) != light
        assert chromium.ask("performance.getEntriesByType('resource').length") == 0
        assert chromium.errors == []


def press(chromium: browser.Browser, words: str) -> None:
    """Press the button with these words."""
    chromium.ask(f"[...document.querySelectorAll('button')].find(it => it.textContent === {words!r}).click()")


Place = tuple[float, float]
"""Shares of an element's width and height."""


def point(chromium: browser.Browser, what: str, at: Place, *kinds: str, clicks: int = 1) -> None:
    """Send these mouse events to a place in the first element that the selector finds."""
    chromium.ask(f"document.querySelector('{what}').scrollIntoView({{block: 'center'}})")
    box = chromium.ask(f"document.querySelector('{what}').getBoundingClientRect().toJSON()")
    place = {"x": box["left"] + at[0] * box["width"], "y": box["top"] + at[1] * box["height"]}
    for kind in kinds:
        held = {} if kind == "mouseMoved" else {"button": "left", "clickCount": clicks}
        chromium.call("Input.dispatchMouseEvent", type=kind, **held, **place)


def drag(chromium: browser.Browser, what: str, first: Place, last: Place) -> None:
    """Drag from one place to another within the first element that the selector finds."""
    point(chromium, what, first, "mousePressed")
    point(chromium, what, last, "mouseReleased")


def type_key(chromium: browser.Browser, key: str) -> None:
    """Press and release a key."""
    for kind in ("keyDown", "keyUp"):
        chromium.call("Input.dispatchKeyEvent", type=kind, key=key)


def uneven(folder: Path) -> Path:
    """Write the page of six members whose sections get longer and have more and more steps."""
    study = voyages.asked(6, epochs=12)
    events = (
        (seconds**2 / 10, replace(event, steps=event.steps**2) if isinstance(event, SectionEnded) else event)
        for seconds, event in voyages.scheduler(study, epochs=12)
    )
    voyages.leave(folder / "run", study, events)
    return write_report(argosy.load(folder / "run"), timeline(folder / "run"))


def drawn(chromium: browser.Browser, what: str = "best") -> list[Place]:
    """Return the coordinates of the best member's curve."""
    text = chromium.ask(f"document.querySelector('#curves .{what}[data-row=\"0\"]').getAttribute('d')")
    return [(float(x), float(y)) for x, y in (pair.split() for pair in re.split("[ML]", text)[1:])]


def along(found: list[float], values: list[float]) -> None:
    """Assert that coordinates are proportional to values, up to a tenth of a pixel."""
    one, other = min(range(len(values)), key=values.__getitem__), max(range(len(values)), key=values.__getitem__)
    pixels = (found[other] - found[one]) / (values[other] - values[one])
    assert found == pytest.approx([found[one] + (value - values[one]) * pixels for value in values], abs=0.11)


@NEEDS_BROWSER
@pytest.mark.tampers
def test_curves_are_drawn_over_epochs_steps_and_time(tmp_path: Path) -> None:
    path = uneven(tmp_path)
    row = shown(path.read_text())["rows"][0]
    assert row["across"][1][-1] == 108**2 and row["across"][2][-1] == pytest.approx(119**2 / 10)
    names = "[...document.querySelectorAll('#curves text')].map(node => node.textContent)"
    with browser.opened(tmp_path / "profile") as chromium:
        chromium.open(path)
        # The page chooses a logarithmic axis for these values.
        along([y for _, y in drawn(chromium)], [math.log(value) for value in row["curves"]["val_loss"][0]])
        press(chromium, "log")
        for name, unit, axis in zip(
            ("epoch", "steps", "time"), ("epoch", "steps", "minutes since the start"), row["across"], strict=True
        ):
            choose(chromium, "axis", name)
            found = drawn(chromium)
            along([x for x, _ in found], axis)
            along([y for _, y in found], row["curves"]["val_loss"][0])
            assert unit in chromium.ask(names)
        # 119² / 10 seconds are 23.6 minutes.
        assert "20" in chromium.ask(names)
        assert chromium.errors == []


@NEEDS_BROWSER
@pytest.mark.tampers
def test_curves_of_trials_of_several_members_have_intervals(tmp_path: Path) -> None:
    searches.tune(tmp_path / "run", build=lambda found: argosy.replicate(searches.build(found), seeds=3), quiet=True)
    report = argosy.load(tmp_path / "run")
    path = write_report(report, timeline(tmp_path / "run"))
    row = shown(path.read_text())["rows"][0]
    means, low, high = row["curves"]["val_loss"]
    members = [report.member(f"{row['name']}-seed={seed}").curve("val_loss") for seed in range(3)]
    expected = [Band.of("", members, "ci").bounds[at] for at in range(len(means))]
    assert [*zip(low, high, strict=True)] == [pytest.approx(bounds, rel=1e-5) for bounds in expected]
    with browser.opened(tmp_path / "profile") as chromium:
        chromium.open(path)
        assert chromium.ask("document.querySelectorAll('#curves .area').length") > 1
        assert "95 % intervals" in chromium.ask("document.querySelector('#curves .note').textContent")
        assert chromium.errors == []


@NEEDS_BROWSER
@pytest.mark.tampers
def test_curves_are_smoothed_as_tensorboard_does(tmp_path: Path) -> None:
    path = uneven(tmp_path)
    values = shown(path.read_text())["rows"][0]["curves"]["val_loss"][0]
    with browser.opened(tmp_path / "profile") as chromium:
        chromium.open(path)
        press(chromium, "log")
        before = drawn(chromium)
        point(chromium, "#smooth", (0.7, 0.5), "mousePressed", "mouseReleased")
        weight = float(chromium.ask("document.getElementById('smooth').value"))
        assert 0.6 < weight < 0.8 and chromium.ask("document.getElementById('smoothing').value") == f"{weight:.2f}"
        smooth, last = list[float](), 0.0
        for count, value in enumerate(values, start=1):
            last = last * weight + (1 - weight) * value
            smooth.append(last / (1 - weight**count))
        raw = drawn(chromium, "raw")
        assert len(raw) == len(before) == 12
        along([y for _, y in [*raw, *drawn(chromium)]], [*values, *smooth])
        assert chromium.ask("getComputedStyle(document.querySelector('#curves .raw')).opacity") == "0.35"
        point(chromium, "#smooth", (0.0, 0.5), "mousePressed", "mouseReleased")
        assert drawn(chromium) == before and not chromium.ask("document.querySelector('#curves .raw')")
        assert chromium.errors == []


@NEEDS_BROWSER
@pytest.mark.tampers
def test_curves_are_zoomed_by_dragging_and_by_keys(tmp_path: Path) -> None:
    path = uneven(tmp_path)
    right = "Number(document.querySelector('#curves .axis').getAttribute('x2'))"
    width = "document.querySelector('#curves svg').clientWidth"
    with browser.opened(tmp_path / "profile") as chromium:
        chromium.open(path)
        whole, left, right, width = drawn(chromium), 52.0, chromium.ask(right), chromium.ask(width)
        picked = "chosen.picked.length"

        def stretched(first: float, last: float) -> list[float]:
            """Return where the points lie if this part of the figure's width is stretched over all of it."""
            first, last = first * width, last * width
            return [left + (x - first) / (last - first) * (right - left) for x, _ in whole]

        drag(chromium, "#curves svg", (0.3, 0.5), (0.6, 0.51))
        found = drawn(chromium)
        assert [x for x, _ in found] == pytest.approx(stretched(0.3, 0.6), abs=0.3)
        inside = [y for x, y in found if left < x < right]
        assert 2 < len(inside) < 8
        # The visible values use the whole height.
        heights = chromium.ask("[...document.querySelectorAll('#curves .best')].map(node => node.getAttribute('d'))")
        seen = [
            float(y)
            for text in heights
            for x, y in (pair.split() for pair in re.split("[ML]", text)[1:])
            if left < float(x) < right
        ]
        assert min(seen) < 40 and max(seen) > 340
        # Pointing still marks a row of the table, and dragging has picked none.
        x, y = next(place for place in found if left < place[0] < right)
        point(chromium, "#curves svg", (x / width, y / 400), "mouseMoved")
        assert chromium.ask("document.querySelector('#table .hot').dataset.row") is not None
        assert chromium.ask("document.querySelector('.tip').textContent").count("epoch") == 1
        assert chromium.ask(picked) == 0
        point(chromium, "#curves svg", (0.5, 0.12), "mousePressed", "mouseReleased")
        point(chromium, "#curves svg", (0.5, 0.12), "mousePressed", "mouseReleased", clicks=2)
        assert drawn(chromium) == whole
        # A rectangle zooms both axes.
        drag(chromium, "#curves svg", (0.3, 0.3), (0.6, 0.7))
        assert [x for x, _ in drawn(chromium)] == pytest.approx(stretched(0.3, 0.6), abs=0.3)
        top, bottom = 26.0, 364.0
        expected = [top + (y - 0.3 * 400) / (0.4 * 400) * (bottom - top) for _, y in whole]
        assert [y for _, y in drawn(chromium)] == pytest.approx(expected, abs=0.3)
        zoomed, hash_ = drawn(chromium), chromium.ask("location.hash")
        # The address holds what is chosen, and a reloaded page restores it.
        assert "across=" in hash_ and "along=" in hash_
        chromium.call("Page.reload")
        chromium.wait("document.querySelector('#curves .curve')")
        again = drawn(chromium)
        assert [*map(list, again)] == [pytest.approx(place, abs=0.2) for place in zoomed]
        chromium.ask("document.getElementById('unzoom').focus()")
        type_key(chromium, "Tab")
        assert chromium.ask("document.activeElement.id") == "curves"
        type_key(chromium, "Escape")
        assert drawn(chromium) == whole and "across" not in chromium.ask("location.hash")
        type_key(chromium, "+")
        middle = (left + right) / 2 / width
        quarter = (right - left) / 4 / width
        assert [x for x, _ in drawn(chromium)] == pytest.approx(stretched(middle - quarter, middle + quarter), abs=0.3)
        type_key(chromium, "ArrowLeft")
        assert drawn(chromium)[0][0] < 0 + left + 200
        type_key(chromium, "-")
        assert chromium.ask("document.getElementById('unzoom').hidden") is False
        point(chromium, "#unzoom", (0.5, 0.5), "mousePressed", "mouseReleased")
        assert drawn(chromium) == whole
        assert chromium.errors == []


@NEEDS_BROWSER
def test_names_are_text_and_nothing_is_asked_of_anyone(tmp_path: Path) -> None:
    evil = "<img src=http://example.invalid/x onerror=self.hurt=1>"
    devices = devices_of([span(evil, 0, 1, device=evil)], [], 1.0, {evil: 0})
    path = tmp_path / "page.html"
    path.write_text(page({"title": evil, "name": evil, "rows": [{"name": evil, "label": evil}], "devices": devices}))
    with browser.opened(tmp_path / "profile") as chromium:
        chromium.open(path)
        press(chromium, "Dark")
        assert chromium.ask("[document.querySelector('h1').textContent, document.title]") == [evil, evil]
        assert chromium.ask("[document.images.length, self.hurt ?? 0]") == [0, 0]
        assert chromium.errors == []
        chromium.ask(
            "new Promise(done => { const it = new Image(); it.onerror = done; it.src = 'http://example.invalid/x' })"
        )
        assert "Content Security Policy" in " ".join(chromium.errors)


def search(chromium: browser.Browser, words: str) -> None:
    """Type words into the search box above the table."""
    chromium.ask(f"it = document.getElementById('query'), it.value = {words!r}, it.dispatchEvent(new Event('input'))")


@NEEDS_BROWSER
@pytest.mark.tampers
@pytest.mark.parametrize("width", [1440, 800, 390])
def test_nothing_scrolls_sideways_or_inside(width: int, tmp_path: Path) -> None:
    path = written(tmp_path)
    with browser.opened(tmp_path / "profile") as chromium:
        chromium.open(path)
        chromium.picture(tmp_path / "picture.png", width=width, height=900)
        assert chromium.ask("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
        own = "['auto', 'scroll'].some(way => [getComputedStyle(node).overflowX, getComputedStyle(node).overflowY].includes(way))"
        assert chromium.ask(f"[...document.body.querySelectorAll('*')].filter(node => {own}).length") == 0
        assert chromium.errors == []


AXE = importlib.util.find_spec("axe_playwright_python")
"""The package that contains axe-core; only the script in it is used."""


@NEEDS_BROWSER
@pytest.mark.skipif(AXE is None, reason="needs axe-core: pip install --no-deps axe-playwright-python")
@pytest.mark.tampers
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("what", ["members", "search"])
def test_axe_finds_no_violation(what: str, dark: bool, tmp_path: Path) -> None:
    assert AXE is not None and AXE.origin is not None
    axe = (Path(AXE.origin).parent / "axe.min.js").read_text(encoding="utf-8")
    if what == "search":
        searches.tune(tmp_path / "run", quiet=True)
        path = write_report(argosy.load(tmp_path / "run"), timeline(tmp_path / "run"))
    else:
        path = written(tmp_path, members=30)
    with browser.opened(tmp_path / "profile") as chromium:
        chromium.open(path)
        chromium.picture(tmp_path / "picture.png", width=1440, dark=dark)
        chromium.ask("document.querySelectorAll('#table tbody button')[0].click()")
        chromium.ask("document.querySelectorAll('details').forEach(part => { part.open = true; })")
        chromium.ask(f"{axe}; 0")
        told = "found.violations.map(one => [one.id, one.nodes.slice(0, 3).map(node => node.html.slice(0, 200))])"
        assert chromium.ask(f"axe.run().then(found => {told})") == []
        assert chromium.errors == []
