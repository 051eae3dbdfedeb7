"""Tests the screen of a run as a value, and as text in the room that a terminal has."""

import io
import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import searches
import studies
import voyages
from rich.console import Console

import argosy
from argosy.plans import Plan
from argosy.protocol.events import Event, MemberEnded, PlanMade, RunStarted, Split
from argosy.protocol.feeder import FeederProgress
from argosy.protocol.trainer import Progress
from argosy.results.fold import RunState
from argosy.running.directory.journal import timeline
from argosy.tuning.report import SearchReport
from argosy.tuning.trials import TrialResult, TrialsSoFar, statuses
from argosy.views.drawing import draw, format_screen_line
from argosy.views.html.report import page_values
from argosy.views.news import News
from argosy.views.rungs import fill_brackets, rungs_of_all
from argosy.views.screen import Screen, ScreenContext, screen_of


def asking(study: argosy.Study, expected: Callable[[], float] | None = None) -> ScreenContext:
    """Return what a driver shows that began at 0 a run that nobody had trained before."""
    return ScreenContext(
        study=study,
        parameters={member.name: member.hyperparameters for member in study.members},
        directory=Path("runs/x"),
        began=0.0,
        done_before=0.0,
        expected=expected,
    )


def seen(
    study: argosy.Study,
    timeline: Iterable[tuple[float, Event]],
    *,
    more: Iterable[Any] = (),
    now: float = 60.0,
    **rest: Any,
) -> Screen:
    """Return the screen at some moment of a driver that began at 0 and sent these events and messages."""
    state, news = RunState(), News()
    for seconds, event in timeline:
        state.apply(event)
        news.handle("", event, seconds)
    for message in more:
        when, worker, told = message if isinstance(message, tuple) else (now, "", message)
        news.handle(worker or ("feeder-0" if isinstance(told, FeederProgress) else "cpu:0"), told, when)
    question = asking(study, rest.pop("expected", None))
    return screen_of(question, state, news, phase=rest.pop("phase", "training"), now=now)


def drawn(screen: Screen, width: int, height: int) -> list[str]:
    """Return the lines that a terminal of that size shows."""
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    console.print(draw(screen, width, height))
    return console.file.getvalue().splitlines()


def hundred(*, faults: int = 5) -> Screen:
    """Return the screen in the middle of a run of a hundred members with faults, in which two members have ended badly."""
    study = voyages.asked(100, epochs=20)
    names = list(study.names)
    failed = [
        (52.0, MemberEnded(member=names[7], status="failed", reason="Traceback\nRuntimeError: out of luck")),
        (53.0, MemberEnded(member=names[60], status="diverged", reason="its loss is nan")),
    ]
    gauge = {"waiting_seconds": 1.0, "busy_seconds": 9.0, "rows": 500}
    losses = dict.fromkeys(names, 0.25)
    heard = [
        Progress(samples=dict.fromkeys(names, 100), losses=losses, gauge=gauge),
        FeederProgress(gauge={**voyages.FEEDER, "to_train": {"mean": 0.94}}),
    ]
    return seen(study, [*voyages.scheduler(study, epochs=5, faults=faults, end=False), *failed], more=heard)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 50)])
def test_a_hundred_members_are_readable(width: int, height: int) -> None:
    lines = drawn(hundred(), width, height)
    text = "\n".join(lines)
    assert len(lines) < height
    assert max(map(len, lines)) <= width
    assert "training, 1 min" in lines[0]
    assert "left" in lines[0]
    assert "558 of 1,970 epochs" in text
    assert "100 members: 98 training, 1 failed, 1 diverged" in text
    assert ("cpu:0 is lost: killed by signal 9" in text) is (height == 50)
    assert "RuntimeError: out of luck" in text
    assert "5.6/20" in text
    told = " ".join(text.split())
    assert "Bottleneck: preparation: 40 samples/s in all, members could take" in told
    # The names are too long for 80 columns and begin alike; what differs must tell the rows apart.
    rows = [line for line in lines if "5.6/20" in line]
    assert len({row.split(" 0.")[0] for row in rows}) == len(rows) == 10 if height == 50 else len(rows) >= 5
    values = [float(row.partition("5.6/20")[0].split()[-1]) for row in rows]
    assert values == sorted(values), "rows are sorted by the value they show"


def test_at_80_columns_members_that_only_their_names_tell_apart_have_labels_of_their_own() -> None:
    names = [
        f"residual-network-depth={depth}-hidden={hidden}-batch_size={size}-weight_decay=0.0005-warmup_epochs=5-norm={norm}"
        for depth in (2, 4)
        for hidden in (16, 256)
        for size in (32, 64)
        for norm in ("batch", "layer")
    ]
    study = studies.study(voyages.LENGTH, fleet=[studies.member(name) for name in names], epochs=1000)
    samples = dict.fromkeys(names, 123 * voyages.LENGTH + 100)
    progress = Progress(samples=samples, losses=dict.fromkeys(names, 123.4567), gauge={})
    lines = drawn(seen(study, voyages.scheduler(study, epochs=123, end=False), more=[progress]), 80, 40)
    rows = [line.partition(" 0.00")[0].strip() for line in lines if " 123.6/1000 " in line]
    assert len({*rows}) == len(rows) == 16
    assert not any(row.endswith("…") or "~" in row for row in rows)


def test_members_are_in_the_order_of_what_they_have_reached_and_those_that_failed_come_last() -> None:
    screen = hundred(faults=0)
    assert {row.status for row in screen.rows[-2:]} == {"diverged", "failed"}
    reached = [row.metrics["val_loss"] for row in screen.rows[:-2]]
    assert reached == sorted(reached)
    assert screen.best is not None and screen.rows[0].metrics["val_loss"] == screen.best.value.mean
    assert screen.attention[0].endswith("diverged: its loss is nan")


def test_the_time_left_is_the_plans_corrected_by_what_was_seen() -> None:
    study = voyages.asked(8, epochs=10)
    screen = seen(study, voyages.scheduler(study, epochs=4, end=False), now=41.0)
    # Two members share a device at 1e-4 s a sample, so an epoch of 170 samples is planned to take 0.034 s. The epochs
    # so far took 10 s instead of 8.
    assert screen.seconds_left == pytest.approx(6 * 0.034 * 10 / 8)
    assert (screen.epochs, screen.to_come, screen.share) == (32, 48, pytest.approx(0.4))
    # A driver that continues the run knows this too, before its own first section has ended.
    told = [*voyages.scheduler(study, epochs=4, end=False)]
    began = next((41.0, event) for _, event in told if isinstance(event, RunStarted))
    assert seen(study, [*told, began], now=41.0).seconds_left == screen.seconds_left


def test_before_a_section_has_ended_the_time_left_follows_from_the_rates() -> None:
    """Samples that take long to prepare hold up members that the plan takes to be fast."""
    study = voyages.asked(8, epochs=10)
    told = [
        (at, "", Progress(samples=dict.fromkeys(study.names, samples), losses={}, gauge={}))
        for at, samples in ((10.0, 10), (20.0, 27))
    ]
    begun = [*voyages.scheduler(study, epochs=0, end=False)]
    assert seen(study, begun, now=20.0).seconds_left is None
    assert seen(study, begun, more=told[:1], now=20.2).seconds_left == pytest.approx((10 * 170 - 10) / 0.5)
    assert seen(study, begun, more=told, now=20.0).seconds_left == pytest.approx((10 * 170 - 27) / 1.7)


def test_after_members_have_joined_those_of_the_plan_the_time_left_follows_from_all_rates() -> None:
    study = voyages.asked(8, epochs=10)
    *planned, late = study.names
    of_planned = Plan(policy="balanced", flotillas=(voyages.flotilla(planned),), waiting=())
    told = [
        (at, PlanMade(plan=of_planned.to_json()) if isinstance(event, PlanMade) else event)
        for at, event in voyages.scheduler(study, epochs=1, end=False)
    ]
    more = [
        (
            at,
            "",
            Progress(
                samples=dict.fromkeys(planned, samples) | {late: 170 + (samples - 170) // 10}, losses={}, gauge={}
            ),
        )
        for at, samples in ((10.0, 170), (20.0, 180))
    ]
    assert seen(study, told, more=more, now=20.0).seconds_left == pytest.approx((9 * 170 - 1) / 0.1)
    # One member is far behind, and the latest has no rate yet: the one behind still needs its time.
    behind = [
        (at, "", replace(p, samples={n: p.samples[n] for n in planned[1:]} | {planned[0]: p.samples[late]}))
        for at, _, p in more
    ]
    assert seen(study, told, more=behind, now=20.0).seconds_left == pytest.approx((9 * 170 - 1) / 0.1)
    assert seen(study, told, now=20.2).seconds_left == pytest.approx(20.0 / 8 * 72)


def test_without_a_plan_the_time_left_is_that_of_the_epochs_so_far() -> None:
    study = voyages.asked(8, epochs=10)
    timeline = [
        (at, event) for at, event in voyages.scheduler(study, epochs=4, end=False) if not isinstance(event, PlanMade)
    ]
    assert seen(study, timeline, now=40.2).seconds_left == pytest.approx(60.0)
    assert seen(study, timeline, now=40.2, expected=lambda: 8.0).seconds_left == pytest.approx(10.0)
    # The thirty seconds before training began, in which members were measured, say nothing about epochs.
    assert seen(study, [(at + 30, event) for at, event in timeline], now=70.2).seconds_left == pytest.approx(60.0)


def test_an_epoch_that_goes_on_counts_in_part() -> None:
    study = studies.study(voyages.LENGTH, fleet=[studies.member("one")], epochs=2)
    gauge = {"waiting_seconds": 0.0, "busy_seconds": 1.0}
    progress = Progress(samples={"one": 85}, losses={"one": 1.5}, gauge=gauge)
    screen = seen(study, voyages.scheduler(study, epochs=0, end=False), more=[progress], now=1.0)
    assert (screen.epochs, screen.to_come) == (0.5, 1.5)
    assert screen.rows[0].epochs == 0.5


def test_late_progress_does_not_count_an_ended_section_twice() -> None:
    study = studies.study(voyages.LENGTH, fleet=[studies.member("one")], epochs=2)
    gauge = {"waiting_seconds": 0.0, "busy_seconds": 1.0}
    said = [
        Progress(samples={"one": samples}, losses={}, gauge=gauge)
        for samples in (voyages.LENGTH - 17, voyages.LENGTH, voyages.LENGTH + 17)
    ]
    found = [seen(study, voyages.scheduler(study, epochs=1, end=False), more=[one], now=1.0).epochs for one in said]
    assert found == pytest.approx([1.0, 1.0, 1.1])


def test_before_the_first_member_the_phase_is_said() -> None:
    study = voyages.asked(2, epochs=1)
    screen = seen(study, [], phase="opening the data", now=12.0)
    assert format_screen_line(screen) == "Opening the data, 12 s so far."
    assert drawn(screen, 80, 24)[0].startswith("opening the data, 12 s")


def test_members_that_are_done_are_to_come_where_their_rules_give_them_more() -> None:
    story = list(voyages.scheduler(voyages.asked(2, epochs=2), epochs=2))
    for epochs, told in ((2, "100% of all epochs (4 of 4)"), (8, "25% of all epochs (4 of 16)")):
        study = voyages.asked(2, epochs=epochs)
        line = format_screen_line(seen(study, story, phase="opening the data"))
        assert line.startswith(f"Opening the data: {told}")
    steered = replace(study, ensemble=argosy.EnsemblePlateau())
    assert "(4 of 4)" in format_screen_line(seen(steered, story)), "the ensemble's rule may have ended them early"


def test_a_line_shows_progress_time_left_and_the_best_member() -> None:
    study = voyages.asked(8, epochs=10)
    line = format_screen_line(seen(study, voyages.scheduler(study, epochs=4, end=False), now=41.0))
    assert line.startswith("40% of all epochs (32 of 80), under 1 s left; 8 members: 8 training; best val_loss 0.09091")


def test_a_line_names_the_best_configuration_where_members_repeat_networks() -> None:
    fleet = [*argosy.replicate(studies.member("good"), seeds=3), studies.member("once")]
    study = studies.study(voyages.LENGTH, fleet=fleet, epochs=4)
    state = RunState.of(event for _, event in voyages.scheduler(study, epochs=2, end=False))
    values = [member.best.metrics["val_loss"] for member in state.members.values() if member.best is not None]
    state.members["once"].status = "failed"
    screen = screen_of(asking(study), state, News(), phase="training", now=1.0)
    assert screen.best is not None
    assert (screen.best.name, screen.best.value.mean) == ("good", pytest.approx(sum(values[:3]) / 3))
    assert f"best val_loss {screen.best.value}, mean of 3 (good)" in format_screen_line(screen)
    for status in ("diverged", "stopped"):
        state.members["good-seed=1"].status = status
        assert "mean of 2 of 3 (good)" in format_screen_line(
            screen_of(asking(study), state, News(), phase="training", now=1.0)
        )


def test_many_devices_have_one_line() -> None:
    study = voyages.asked(4, epochs=1)
    state = RunState.of(event for _, event in voyages.scheduler(study, epochs=0, end=False))
    for number, member in enumerate(state.members.values()):
        member.device = f"cuda:{number + 2}"
    news = News()
    plan = Plan(policy="balanced", flotillas=(voyages.flotilla(list(study.names)),), waiting=())
    news.handle("", PlanMade(plan=plan.to_json()), 0.0)
    text = "\n".join(drawn(screen_of(asking(study), state, news, phase="training", now=1.0), 80, 24))
    assert "4 of 8 devices train" in text


def test_samples_of_a_split_member_are_counted_once() -> None:
    study = voyages.asked(2, epochs=1)
    state = RunState.of(event for _, event in voyages.scheduler(study, epochs=0, end=False))
    first, second = state.members
    state.apply(Split(member=first, devices=("cpu:0", "cpu:1"), shares=(0.75, 0.25)))
    state.members[second].device = "cpu:1"
    news = News(rates={first: 100.0, second: 10.0})
    screen = screen_of(asking(study), state, news, phase="training", now=1.0)
    rows = {row.device: (row.members, row.samples_per_second) for row in screen.devices}
    assert rows == {"cpu:0": (1, 75.0), "cpu:1": (2, 35.0)}
    assert "2 of 2 devices train, 110 samples/s in all" in "\n".join(drawn(screen, 80, 12))


def test_a_member_that_goes_on_within_an_epoch_has_begun_what_it_had_of_it() -> None:
    news = News()

    def progress(samples: int) -> int:
        gauge = {"waiting_seconds": 0.0, "busy_seconds": 1.0}
        news.handle("cpu:0", Progress(samples={"m": samples}, losses={}, gauge=gauge), 0.0)
        return news.samples_begun("m")

    news.handle("", replace(voyages.started("m", "cpu:0", 2), position=30), 0.0)
    assert progress(20) == 50
    news.handle("", voyages.ended("m", "cpu:0", 2, value=0.1), 0.0)
    assert progress(voyages.LENGTH - 30 + 5) == 5


def folds(parameters: dict[str, Any]) -> list[argosy.Member]:
    """Return a trial that is the mean of two members."""
    return argosy.replicate(searches.build(parameters), seeds=2)


@pytest.mark.tampers
@pytest.mark.parametrize(
    "rest", [{}, {"warm": False, "max_epochs": 3}, {"build": folds, "scheduler": "asha", "n_trials": 5}]
)
def test_trials_are_ranked_at_any_moment_as_the_report_would(tmp_path: Path, rest: dict[str, Any]) -> None:
    report = searches.tune(tmp_path / "run", quiet=True, **rest)
    lines = (tmp_path / "run" / "journal.jsonl").read_text().splitlines(keepends=True)
    for count in range(len(lines), 0, -len(lines) // 9):
        folder = tmp_path / f"{count}"
        folder.mkdir()
        shutil.copy(tmp_path / "run" / "study.json", folder)
        (folder / "journal.jsonl").write_text("".join(lines[:count]))
        run = argosy.load(folder)
        expected = SearchReport.of(run, timeline(folder), None)
        state = RunState.of(event for _, event in timeline(folder))
        found = TrialsSoFar.of(state, {row.name: state.member(row.name) for row in run.rows})
        assert [(row.name, row.epochs, row.metrics) for row in found.rows] == [
            (row.name, row.epochs, row.metrics) for row in expected.rows
        ]
        assert (None if found.best is None else found.best.name) == expected.to_json()["best"]
        counts = Counter(statuses(found.rows, found.numbers))
        assert counts.total() == len({*expected.trials.values()})
        page = page_values(run, timeline(folder))
        rungs = [rung for bracket in page["search"]["brackets"] for rung in bracket["rungs"]]
        assert sum(rung.reached for rung in rungs_of_all(found)) == sum(reached for _, reached, _ in rungs)
        if rest.get("warm", True):
            told = (row["status"] for row in page["rows"] if row["name"] in expected.trials)
            # Of a run without a driver the report says that its members are paused.
            assert counts == Counter("training" if status == "paused" else status for status in told)
    assert len({*report.trials.values()}) > 4


@pytest.mark.parametrize(("per_epoch", "most"), [(1, 10), (3, 10), (7, 36), (12, 40)])
def test_a_trial_that_ended_at_a_rung_has_reached_it_whatever_part_of_an_epoch_that_is(
    per_epoch: int, most: int
) -> None:
    epochs = [at // per_epoch + (at % per_epoch + 1) / per_epoch for at in range(most)]
    trial = TrialResult(name="", members=(), status="pruned", reason="", epochs=0, metrics={}, totals={})
    rows = [replace(trial, name=f"net-{at}", epochs=ended) for at, ended in enumerate(epochs)]
    terms = {"max_epochs": most / per_epoch, "scheduler": "asha", "eta": 2, "n_trials": most}
    (bracket,) = fill_brackets(terms, per_epoch, rows, {row.name: at for at, row in enumerate(rows)})
    for rung in bracket.rungs:
        assert rung.reached == most + 1 - round(rung.epochs * per_epoch)
