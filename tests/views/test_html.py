"""The report as a page: one file without a network, whatever members are called, large runs included."""

import importlib.resources
import json
import re
import shutil
import time
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import browser
import pytest
import studies
import voyages

import argosy
from argosy.cli import report as reporting_cli
from argosy.running.directory import journal
from argosy.running.directory.journal import timeline
from argosy.views.html import page as page_of
from argosy.views.html.chronicle import Chronicle, Mark, Span
from argosy.views.html.gantt import gantt
from argosy.views.html.page import Section, figure, page
from argosy.views.html.predictions import predictions
from argosy.views.html.report import write_news, write_report


def figures(text: str) -> dict[str, Any]:
    """The values that a page draws."""
    found = re.search(r'<script type="application/json" id="figures">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return json.loads(found[1], parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def written(folder: Path, *, members: int = 100, epochs: int = 12, faults: int = 5) -> Path:
    """The page of a run that never was."""
    study = voyages.asked(members, epochs=epochs)
    voyages.leave(folder / "run", study, voyages.scheduler(study, epochs=epochs, faults=faults))
    return write_report(argosy.load(folder / "run"), timeline(folder / "run"))


def test_a_chronicle_has_who_was_where_when() -> None:
    study = voyages.asked(8, epochs=3)
    found = Chronicle.of(voyages.scheduler(study, epochs=3, faults=1))
    first = next(iter(study.names))
    spans = [span for span in found.spans if span.member == first]
    assert [(span.device, span.begin_seconds, span.end_seconds, span.came_from) for span in spans] == [
        ("cpu:0", 0.2, 10.0, ""),
        ("cpu:1", 10.3, 31.0, "cpu:0"),
    ]
    assert {span.flotilla for span in found.spans} == {1}
    names = list(study.names)
    text = "cpu:0 is lost: killed by signal 9"
    assert found.marks == [Mark(seconds=10.0, kind="fault", device="cpu:0", members=(names[0], names[4]), text=text)]
    assert found.seconds == 32.0
    assert found.state.members[first].status == "done"


def test_after_a_driver_that_was_killed_nobody_is_aboard_twice() -> None:
    study = voyages.asked(4, epochs=2)
    killed = list(voyages.scheduler(study, epochs=1, end=False))
    later = [(20.0 + seconds, event) for seconds, event in voyages.scheduler(study, epochs=2)]
    found = Chronicle.of([*killed, *later])
    assert len(found.spans) == 8
    assert sorted({(span.begin_seconds, span.end_seconds) for span in found.spans}) == [(0.2, 9.5), (20.2, 41.0)]


@pytest.mark.tampers
def test_the_report_is_one_small_file_with_everything(tmp_path: Path) -> None:
    path = written(tmp_path)
    text, drawn = path.read_text(), figures(path.read_text())
    assert path.stat().st_size < 8e6
    assert not re.search(r"<(script|link|img)[^>]*(src|href)=.http", text)
    for title in ("Leaderboard", "Learning curves", "Devices and members", "Stages and queues", "Predicted and actual"):
        assert f">{title}</h2>" in text
    curves, gantt = drawn["f2-0"], drawn["f3-0"]
    assert len(curves["data"]) == 100
    assert len(curves["layout"]["updatemenus"][0]["buttons"]) == 3
    assert {trace["name"] for trace in gantt["data"]} == {"training", "moves", "faults"}
    assert "signs of faults: 5." in text
    assert "1.25 times as long as predicted" in text
    assert "4.00 CPU seconds for 2,000 prepared samples, 2,000 µs a sample" in text
    assert "package-0 5,000 J" in text
    assert "members take" in text


@pytest.mark.tampers
def test_a_page_of_one_leg_does_not_teach_the_word(tmp_path: Path) -> None:
    written(tmp_path, members=3, epochs=2, faults=0)
    report = argosy.load(tmp_path / "run")
    told = str(predictions(report)).split()
    assert not any("leg" in word for word in told)
    several = str(predictions(replace(report, legs=(*report.legs, replace(report.legs[0], leg="2")))))
    assert all(name in several for name in ("'leg 1', 'leg 2'", "A leg is", "<th>leg</th>"))


@pytest.mark.tampers
def test_means_over_repetitions_are_on_the_page(tmp_path: Path) -> None:
    fleet = [*argosy.replicate(studies.member("good"), seeds=3), *argosy.replicate(studies.member("slow"), seeds=2)]
    study = studies.study(voyages.LENGTH, fleet=fleet)
    voyages.leave(tmp_path / "run", study, voyages.scheduler(study, epochs=2))
    report = argosy.load(tmp_path / "run")
    text = write_report(report, timeline(tmp_path / "run")).read_text()
    best, other = report.repetitions.configurations
    means = [str(found.metrics["val_loss"]) for found in (best, other)]
    assert ">Repetitions</h2>" in text
    assert "<td>3 of 3</td>" in text and "<td>1 of 2</td>" in text
    assert any(" ± " in mean for mean in means)
    assert all(f"<td>{mean}</td>" in text for mean in means)
    assert f"<th>val_loss minus that of {best.name}</th>" in text
    assert f"<p>Best: {best.name}, val_loss {means[0]}, mean of 1 of 2.</p>" in text
    assert ">Repetitions<" not in written(tmp_path / "alone", members=3, epochs=1).read_text()


@pytest.mark.tampers
def test_a_page_tells_how_long_drivers_worked_that_were_killed(tmp_path: Path) -> None:
    study = voyages.asked(2, epochs=30)
    killed = list(voyages.scheduler(study, epochs=28, end=False))
    voyages.leave(tmp_path / "run", study, iter(killed))
    text = write_report(argosy.load(tmp_path / "run"), timeline(tmp_path / "run")).read_text()
    assert "interrupted after 4 min 40 s: 2 members" in text


def test_members_with_long_names_have_rows_of_their_own() -> None:
    names = [f"mlp-lr={lr}-hidden={hidden}-batch_size=32" for lr in (0.1, 0.001) for hidden in (16, 32, 64, 256)]
    spans = [
        Span(member=name, device="cpu:0", flotilla=1, begin_seconds=0.0, end_seconds=1.0, came_from="")
        for name in names
    ]
    (drawn,) = gantt(Chronicle(spans=spans, seconds=1.0)).figures
    assert len({*drawn["layout"]["yaxis"]["categoryarray"]}) == len(names)


def test_plotly_s_script_stands_in_a_page_as_it_is_published() -> None:
    folder = importlib.resources.files("argosy.views.html") / "plotly"
    script = (folder / "plotly-basic.min.js").read_text(encoding="utf-8")
    assert "Licensed under the MIT license" in script[:200]
    assert "Permission is hereby granted" in (folder / "LICENSE").read_text()
    found = re.findall(r'<script type="text/plain" id="plotly">(.*?)</script>', page("", []), re.DOTALL)
    assert found == [script]
    # It would hide the end of the element that it stands in.
    assert "<!--" not in script


@pytest.mark.tampers
@pytest.mark.parametrize(
    ("members", "epochs", "mode"), [(20, 3, "lines+markers"), (21, 3, "lines"), (21, 1, "lines+markers")]
)
def test_curves_have_dots_where_these_can_be_told_apart_or_are_all(
    members: int, epochs: int, mode: str, tmp_path: Path
) -> None:
    drawn = figures(written(tmp_path, members=members, epochs=epochs, faults=0).read_text())
    assert {trace["mode"] for trace in drawn["f2-0"]["data"]} == {mode}


@pytest.mark.tampers
def test_a_run_that_has_only_begun_has_a_page(tmp_path: Path) -> None:
    study = voyages.asked(3, epochs=1)
    events = list(voyages.scheduler(study, epochs=0, end=False))[:1]
    voyages.leave(tmp_path / "run", study, iter(events))
    text = write_report(argosy.load(tmp_path / "run"), timeline(tmp_path / "run"), live=True).read_text()
    assert 'script.src = "report.live.js?"' in text
    assert "Nobody has trained." in text
    assert "Nobody has trained." in (tmp_path / "run" / "report.live.js").read_text()


def test_no_name_can_end_the_page() -> None:
    evil = "</script><script>alert(1)</script>"
    text = page(evil, [Section(title=evil, text=[evil], figures=[figure([{"name": evil, "y": [float("nan")]}])])])
    assert evil not in text
    (drawn,) = figures(text).values()
    # Plotly reads a part of HTML in texts, and shows entities as what they stand for.
    assert drawn["data"][0] == {"name": escape(evil, quote=False), "y": [None]}


def test_news_are_written_while_the_run_goes_on_and_the_whole_page_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, live = tmp_path / "run", list[bool]()
    study = studies.study(90, fleet=[studies.member()], epochs=2)
    argosy.train(study, directory=run, launcher="inline", devices="cpu:1")
    found, working = argosy.load(run), iter([True, True, False, False])
    monkeypatch.setattr(argosy.running.directory.loading, "at_work", lambda directory: next(working))
    monkeypatch.setattr(time, "sleep", lambda seconds: live.append(is_live(run)))
    monkeypatch.setattr(reporting_cli, "write", lambda value: None)
    reporting_cli.report(run, html=False, open_=False, live=True, as_json=False)
    assert live == [True, True]
    assert not is_live(run)
    assert not (run / "report.live.js").exists()
    assert f">{found.rows[0].name}</td>" in (run / "report.html").read_text()


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
    monkeypatch.setattr(journal, "at_work", lambda directory: True)
    monkeypatch.setattr(reporting_cli, "write", lambda value: None)
    reporting_cli.report(run, html=False, open_=False, live=True, as_json=False)
    assert len(waited) == 3 and (run / "report.html").exists()


def is_live(run: Path) -> bool:
    """Whether its page looks for news, which are there."""
    return "report.live.js" in (run / "report.html").read_text() and (run / "report.live.js").exists()


@pytest.mark.skipif(browser.CHROMIUM is None, reason="needs a browser: apt-get install chromium")
@pytest.mark.tampers
def test_a_large_page_opens_in_two_seconds(tmp_path: Path) -> None:
    """Of the browser's own time: that of a busy machine is not the page's."""
    path = written(tmp_path, epochs=20)
    with browser.opened(tmp_path / "profile") as chromium:
        chromium.open(path)
        chromium.wait("document.querySelector('#f2-0.js-plotly-plot .main-svg')")
        assert chromium.seconds() < 2.0
        assert chromium.errors == []


@pytest.mark.skipif(browser.CHROMIUM is None, reason="needs a browser: apt-get install chromium")
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
        chromium.wait("document.querySelector('#f2-0.js-plotly-plot .main-svg')")
        chromium.ask("document.querySelector('#f2-0 .updatemenu-header').dispatchEvent(new Event('click'))")
        chromium.ask(
            "document.querySelectorAll('#f2-0 .updatemenu-dropdown-button')[2].dispatchEvent(new Event('click'))"
        )
        chromium.ask("for (const _ of [0, 1]) document.querySelectorAll('#s1 th')[7].click()")
        voyages.leave(tmp_path / "later", study, iter([event for event in events if event[0] <= 150.0]))
        shutil.copy(tmp_path / "later" / "journal.jsonl", run)
        write_news(argosy.load(run), timeline(run))
        before = chromium.seconds()
        chromium.wait("document.querySelector('main').textContent.includes('450 epochs')")
        chromium.wait("document.getElementById('f2-0').data[0].x.length === 15")
        chromium.wait("document.getElementById('f2-0').data[0].y[14] > 0.9")
        assert chromium.ask("document.getElementById('f2-0').layout.yaxis.title.text") == "val_accuracy"
        column = "[...document.querySelectorAll('#s1 tbody tr')].map(row => row.cells[7].textContent)"
        hidden = [int(text) for text in chromium.ask(column)]
        assert hidden == sorted(hidden, reverse=True)
        assert chromium.seconds() - before < 1.0
        # Once there are no news any more it loads the page that is whole.
        write_report(argosy.load(run), timeline(run))
        deadline = time.monotonic() + 30
        while chromium.ask("self.kept"):
            assert time.monotonic() < deadline
        assert [error for error in chromium.errors if "report.live.js" not in error and "ERR_" not in error] == []


@pytest.mark.skipif(browser.CHROMIUM is None, reason="needs a browser: apt-get install chromium")
@pytest.mark.tampers
def test_the_page_is_clicked_through_in_a_browser(tmp_path: Path) -> None:
    path = written(tmp_path)
    with browser.opened(tmp_path / "profile") as chromium:
        chromium.open(path)
        for place in figures(path.read_text()):
            chromium.ask(f"document.getElementById('{place}').scrollIntoView()")
            chromium.wait(f"document.querySelector('#{place}.js-plotly-plot .main-svg')")
        assert chromium.ask("document.querySelectorAll('#f3-0 .bars path').length") >= 100
        # The metric of the curves is chosen from a menu; a table is sorted by a click.
        chromium.ask("document.querySelector('#f2-0 .updatemenu-header').dispatchEvent(new Event('click'))")
        chromium.ask(
            "document.querySelectorAll('#f2-0 .updatemenu-dropdown-button')[2].dispatchEvent(new Event('click'))"
        )
        assert chromium.ask("document.getElementById('f2-0').layout.yaxis.title.text") == "val_accuracy"
        column = "[...document.querySelectorAll('#s1 tbody tr')].map(row => row.cells[7].textContent)"
        chromium.ask("document.querySelectorAll('#s1 th')[7].click()")
        hidden = [int(text) for text in chromium.ask(column)]
        assert hidden == sorted(hidden)
        chromium.ask("document.querySelectorAll('#s1 th')[7].click()")
        assert [int(text) for text in chromium.ask(column)] == hidden[::-1]
        assert chromium.errors == []
