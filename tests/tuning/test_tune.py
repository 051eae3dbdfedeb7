"""Tests searches on real trainers: trials continue as the scheduler's definition says, and a killed search ends like any other."""

import errno
import json
import math
import os
import random
import shutil
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import evidence
import forked
import living
import optuna
import pytest
import studies
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState
from searches import DATA, SPACE, at_once, build, outcome, stored, tune
from torch.optim.lr_scheduler import LambdaLR

import argosy
from argosy.api import run_search
from argosy.errors import DiskError, MemberError, MemberFailed, RunError, StudyError
from argosy.protocol.events import SectionEnded
from argosy.protocol.packs import Packed
from argosy.running.control import cost_table
from argosy.running.control.driver import Driver
from argosy.running.directory import inbox
from argosy.running.directory.studyfile import load_search
from argosy.running.launch.inline import Inline
from argosy.running.search.terms import terms_of
from argosy.running.watch.phase import Phase
from argosy.settings import Settings
from argosy.tuning.hyperband import brackets
from argosy.tuning.report import packed_seconds
from argosy.tuning.search import Search, Store


def by_definition(directory: Path, *, most: int, eta: int) -> dict[str, float]:
    """Return how far each trial of one round of Hyperband trains, judged by what the trials reached."""
    members, reached, start = living.state_of(directory).members, {}, 0
    for size, budgets in brackets(most, eta):
        racing = list(range(start, start + size))
        start += size
        for budget in budgets:
            worth = {t: min(row["val_loss"] for row in members[f"net-{t}"].history[:budget]) for t in racing}
            reached.update(dict.fromkeys(racing, budget))
            racing = sorted(racing, key=lambda t: (worth[t], t))[: len(racing) // eta]
    return {f"net-{trial}": epochs for trial, epochs in reached.items()}


def test_a_rung_that_trains_in_turns_is_compared_when_all_have_had_theirs(tmp_path: Path) -> None:
    report = tune(tmp_path / "run", policy="rounds")
    assert {row.name: row.epochs for row in report.run.rows} == by_definition(tmp_path / "run", most=9, eta=3)
    assert evidence.event_lines(tmp_path / "run", "MemberRested")


@pytest.mark.parametrize("seed", range(3))
def test_faults_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    whole, draw = tune(tmp_path / "whole", n_trials=9, numerics="exact"), random.Random(seed)

    def act(driver: Driver) -> None:
        if driver.run.phase is Phase.TRAINING and draw.random() < 0.1:
            driver.faults.regroup()

    living.at_every_round(monkeypatch, act)
    assert outcome(tune(tmp_path / "run", n_trials=9, numerics="exact")) == outcome(whole)


def test_what_a_program_of_several_saves_follows_from_what_was_measured() -> None:
    def ended(name: str) -> SectionEnded:
        given = dict.fromkeys((field.name for field in fields(SectionEnded)), 0)
        return SectionEnded(**{**given, "member": name, "samples": 100})

    def saved(*events: Packed | SectionEnded) -> float:
        return packed_seconds([(0.0, event) for event in events])

    assert saved(ended("a")) == 0.0
    costs = ((1, 0.003), (4, 0.001))
    tried = Packed(device="d", programs=(("a", "b", "c", "d"), ("e",)), settled=False, seconds_per_sample=costs)
    settled = replace(tried, settled=True)
    assert saved(tried, ended("a")) == 0.0
    assert saved(tried, settled, ended("a"), ended("e")) == pytest.approx(0.2)
    assert saved(ended("a"), settled, ended("e")) == 0.0
    apart = replace(settled, programs=(("a",), ("b", "c", "d")))
    assert [round(saved(settled, apart, ended(name)), 6) for name in "ab"] == [0.0, 0.2]


def test_hyperband_is_the_table_and_a_killed_search_ends_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Otherwise members would move after the rates that a busy machine measures.
    monkeypatch.setattr(cost_table, "WORTH_A_CORRECTION", math.inf)
    run, seen = tmp_path / "run", list[optuna.trial.FrozenTrial]()

    def note_trials(driver: Driver) -> None:
        if not seen and any(member.epochs == 5 for member in driver.state.members.values()):
            seen.extend(stored(run).trials)

    with monkeypatch.context() as patched:
        living.keep_all_files(patched)
        living.at_every_round(patched, note_trials)
        report = tune(run, numerics="exact")
    assert {row.name: row.epochs for row in report.run.rows} == by_definition(run, most=9, eta=3)
    assert len(report.run.rows) == 9 + 5 + 3
    assert report.epochs == sum(row.epochs for row in report.run.rows) == 69
    # Promoted trials continue in place, and all trials read one stream.
    started = evidence.event_lines(run, "MemberStarted")
    assert sorted(line["member"] for line in started) == sorted(row.name for row in report.run.rows)
    assert report.run.preparations == 1.0
    assert report.best() is report.run.rows[0]
    assert report.best_parameters == report.parameters[report.best().name]
    assert report.best().load()(report.best().load().weight.new_zeros(1, 6)).shape == (1, 10)
    assert 0 < report.first_comparison_seconds < report.best_seconds <= report.seconds
    assert report.trials_per_hour == pytest.approx(17 / report.seconds * 3600)
    json.dumps(report.to_json())
    assert optuna.visualization.plot_parallel_coordinate(report.study).data
    assert report.packed_seconds == report.saved_by_packing == 0.0
    assert {trial.state for trial in seen} == {TrialState.RUNNING, TrialState.PRUNED}
    trials = stored(run).trials
    assert [trial.params for trial in trials] == [report.parameters[f"net-{trial.number}"] for trial in trials]
    assert [trial.state == TrialState.COMPLETE for trial in trials] == [
        report.run.member(f"net-{trial.number}").epochs == 9 for trial in trials
    ]
    assert stored(run).best_trial.number == int(report.best().name.removeprefix("net-"))

    whole = (run / "journal.jsonl").read_bytes().splitlines(keepends=True)
    for number, cut in enumerate([1, 12, 40, 75, len(whole) - 2]):
        again = shutil.copytree(run, tmp_path / f"killed-{number}")
        (again / "journal.jsonl").write_bytes(b"".join(whole[:cut]) + whole[cut][:20])
        with (again / "optuna.log").open("ab") as log:
            log.write(b'{"op_code": 5, "wor')
        (again / "optuna.log.lock").symlink_to("nowhere")
        found = tune(again, study_name="run", numerics="exact")
        assert outcome(found) == outcome(report), cut
        assert [(t.params, t.state, t.values) for t in stored(again, "run").trials] == [
            (t.params, t.state, t.values) for t in trials
        ]


def test_totals_grow_and_trials_that_are_over_go_on(tmp_path: Path) -> None:
    once = tune(tmp_path / "once", n_trials=8, max_epochs=4, eta=2)
    tune(tmp_path / "run", n_trials=5, max_epochs=2, eta=2)
    before = {name: member.epochs for name, member in living.state_of(tmp_path / "run").members.items()}
    report = tune(tmp_path / "run", n_trials=8, max_epochs=4, eta=2)
    assert len(before) == 5
    assert report.parameters == once.parameters
    assert all(row.epochs >= before.get(row.name, 0) for row in report.run.rows)
    assert report.best().name == once.best().name
    # Trials that the larger total added have read the same epochs of the stream as the others before.
    for member in living.state_of(tmp_path / "run").members.values():
        assert [row.stream_epoch for row in member.sections] == list(range(len(member.sections))), member.name
    # The storage was rewritten, since Optuna lets no trial continue that it holds for finished.
    values = {trial.number: trial.value for trial in stored(tmp_path / "run").trials}
    worth = {
        name: min(r["val_loss"] for r in m.history) for name, m in living.state_of(tmp_path / "run").members.items()
    }
    assert values == {int(name.removeprefix("net-")): value for name, value in worth.items()}
    with pytest.raises(RunError, match=r"n_trials: was 8, is now 5\n.*max_epochs and n_trials may grow"):
        tune(tmp_path / "run", n_trials=5, max_epochs=4, eta=2)
    with pytest.raises(RunError, match="eta: was 2, is now 3"):
        tune(tmp_path / "run", n_trials=8, max_epochs=4)
    with pytest.raises(RunError, match=r"the space has changed: trial 0 .*out of range"):
        tune(tmp_path / "run", n_trials=8, max_epochs=4, eta=2, space={**SPACE, "lr": FloatDistribution(5.0, 6.0)})
    assert outcome(tune(tmp_path / "run", n_trials=8, max_epochs=4, eta=2)) == outcome(report)


@pytest.mark.filterwarnings("ignore:.*has no study.json")
def test_failures_are_failed_trials_and_the_search_goes_on(tmp_path: Path) -> None:
    def suggest(trial: optuna.Trial) -> dict[str, Any]:
        kind = trial.suggest_categorical("kind", ["good", "bad", "wild"])
        lr = trial.suggest_float("lr", 0.01, 0.1) if kind == "good" else {"bad": 0.1, "wild": math.inf}[kind]
        return {"lr": lr, "width": 2 if kind == "bad" else 10}

    run = tmp_path / "run"
    with pytest.warns(MemberFailed, match="of 9 members of the search failed or diverged: 'net-") as told:
        report = tune(
            run, space=suggest, n_trials=9, max_epochs=3, brackets="in-turn", sampler=optuna.samplers.RandomSampler
        )
    assert len(told) == 1
    status = {row.name: row.status for row in report.run.rows}
    kinds = {name: parameters["kind"] for name, parameters in report.parameters.items()}
    wanted = {"good": {"done"}, "bad": {"failed"}, "wild": {"diverged"}}
    reasons = {row["trial"]: row["reason"] for row in report.table()}
    assert all("for labels 0 to 1" in reasons[name] for name, kind in kinds.items() if kind == "bad")
    assert all("is not a number" in reasons[name] for name, kind in kinds.items() if kind == "wild")
    assert all(status[name] in wanted[kind] for name, kind in kinds.items())
    assert set(kinds.values()) == {"good", "bad", "wild"}
    assert all(
        set(parameters) == {"kind", "lr"} for name, parameters in report.parameters.items() if kinds[name] == "good"
    )
    for trial in stored(run).trials:
        assert (trial.state == TrialState.FAIL) == (kinds[f"net-{trial.number}"] != "good")
    # Brackets follow one another, the one with the longest trials first: the second proposes its first trial when the
    # first is over.
    events = [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]
    began = next(number for number, line in enumerate(events) if line["event"] == "Proposed" and line["trial"] == 2)
    assert {line["member"] for line in events[:began] if line["event"] == "MemberEnded"} == {"net-0", "net-1"}
    whole = (run / "journal.jsonl").read_bytes().splitlines(keepends=True)
    again = shutil.copytree(run, tmp_path / "killed")
    (again / "journal.jsonl").write_bytes(b"".join(whole[: began + 1]))
    (again / "study.json").unlink()  # this file is never ahead of the journal
    with pytest.warns(MemberFailed):
        found = tune(
            again, space=suggest, n_trials=9, max_epochs=3, brackets="in-turn", sampler=optuna.samplers.RandomSampler
        )
    assert outcome(found).keys() == outcome(report).keys()
    assert found.parameters == report.parameters
    assert {row.name: (row.status, row.epochs) for row in found.run.rows} == {
        row.name: (row.status, row.epochs) for row in report.run.rows
    }


def test_people_stop_trials_and_clone_them_while_the_search_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, left = tmp_path / "run", list[str]()
    living.trusting(monkeypatch)
    clone = {"command": "clone", "member": "net-0", "name": "mine", "set": {"optimizer.lr": 0.02}, "warm": False}

    def act(driver: Driver) -> None:
        if not left and driver.state.member("net-1").sections:
            left.extend(
                inbox.write_command(run, command) for command in ({"command": "stop", "member": "net-1"}, clone)
            )

    living.at_every_round(monkeypatch, act)
    report = tune(run, scheduler="random", n_trials=3, max_epochs=6)
    rows = {row.name: row for row in report.rows}
    assert {name: row.status for name, row in rows.items()} == {
        "net-0": "done",
        "net-1": "stopped",
        "net-2": "done",
        "mine": "done",
    }
    assert (rows["net-1"].reason, rows["net-1"].epochs < 6, rows["mine"].epochs) == ("by command", True, 6)
    assert [trial.state for trial in stored(run).trials] == [TrialState.COMPLETE, TrialState.FAIL, TrialState.COMPLETE]
    # A clone that a person adds is no trial, however good it is.
    assert report.best_trial.name == min(rows.keys() - {"mine"}, key=lambda name: rows[name].metrics["val_loss"])
    assert report.best().name == report.best_trial.name
    assert outcome(tune(run, scheduler="random", n_trials=3, max_epochs=6)) == outcome(report)


def test_a_member_that_is_added_takes_no_name_of_a_trial_to_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trial could not begin, and no later command could continue the search."""
    run, left = tmp_path / "run", list[str]()
    living.trusting(monkeypatch)
    # A `build` may name trials by their kind of network, of which there is none yet.
    names = ["net-2", "cnn-2", "net-9", "net-2-seed=0", "net-0-s3-seed=0"]
    clone = {"command": "clone", "member": "net-0-seed=0", "set": {"optimizer.lr": 0.02}, "warm": False}

    def act(driver: Driver) -> None:
        if not left and driver.state.member("net-0-seed=0").sections:
            left.append(inbox.write_command(run, {**clone, "name": "cnn-64"}))
            left.extend(inbox.write_command(run, {**clone, "name": name}) for name in names)

    living.at_every_round(monkeypatch, act)

    def twice(parameters: dict[str, Any]) -> list[argosy.Member]:
        return argosy.replicate(build(parameters), seeds=2)

    report = tune(run, build=twice, scheduler="random", n_trials=3, max_epochs=3, at_once=1)
    answers = sorted(answered["answer"] for answered in evidence.event_lines(run, "Answered"))
    why = "is a name for trials of this search. Give the new member another name, without"
    assert answers == [
        "added cnn-64",
        *(f"refused: {name!r} {why} '-{name.split('-')[1]}'." for name in sorted(names)),
    ]
    assert {row.name: row.status for row in report.rows} == dict.fromkeys(("cnn-64", "net-0", "net-1", "net-2"), "done")
    with pytest.raises(RunError, match="set a larger n_trials in its search, and start it again"):
        inbox.send_commands(run, clone)


def test_three_trials_that_fail_alike_stop_the_search(tmp_path: Path) -> None:
    with pytest.raises(MemberError, match=r"the first 3 members failed in the same way(.|\n)*Fix it\. Then fresh=True"):
        tune(tmp_path, space={"width": IntDistribution(2, 4)}, n_trials=9)


def test_what_build_raises_is_told_with_its_lines_and_once_mended_the_search_goes_on(tmp_path: Path) -> None:
    wrong = {20}

    def picky(parameters: dict[str, Any]) -> argosy.Member:
        if parameters["batch_size"] in wrong:
            raise optuna.TrialPruned("too large")
        return build(parameters)

    rest = {"scheduler": "grid", "space": {"batch_size": CategoricalDistribution([8, 20])}, "max_epochs": 1}
    for _ in range(2):
        with pytest.raises(
            StudyError, match=r"build\({'batch_size': 20}\) raised:\n(.|\n)*in picky(.|\n)*too large\nFix it"
        ):
            tune(tmp_path, build=picky, at_once=1, **rest)
    wrong.clear()
    assert [row.status for row in tune(tmp_path, build=picky, at_once=1, **rest).rows] == ["done", "done"]


def test_what_a_space_raises_is_told_with_its_lines(tmp_path: Path) -> None:
    def misspelt(trial: optuna.Trial) -> None:
        trial.suggest_flaot("lr", 0.1, 1.0)  # type: ignore[attr-defined]

    with pytest.raises(StudyError, match=r"the space, .* raised:\n(.|\n)*in misspelt(.|\n)*suggest_flaot"):
        tune(tmp_path, space=misspelt)


@pytest.mark.parametrize("function", ["build", "space"])
def test_a_function_of_a_search_that_exits_does_not_end_the_script(tmp_path: Path, function: str) -> None:
    def parses_arguments(*_: Any, **__: Any) -> Any:
        sys.exit()  # the command would end with 0, as if the search was done

    with pytest.raises(StudyError, match=rf"{function}.* raised:\n(.|\n)*in parses_arguments(.|\n)*SystemExit\n"):
        tune(tmp_path, **{function: parses_arguments})


@pytest.mark.parametrize("scheduler", ["hyperband", "asha", "median", "random"])
def test_other_schedulers(tmp_path: Path, scheduler: str) -> None:
    rest = {"scheduler": scheduler, "n_trials": 7, "max_epochs": 4, "at_once": 3, "validations_per_epoch": 2}
    if scheduler in ("hyperband", "asha"):
        rest["eta"] = 2
    report = tune(tmp_path / "run", objective="val_accuracy", **rest)
    epochs = sorted(row.epochs for row in report.run.rows)
    assert len(epochs) == 7
    assert epochs[-1] == 4
    assert epochs == [4] * 7 if scheduler == "random" else epochs[0] < 4
    assert {row.status for row in report.run.rows} == {"done"}
    assert at_once(tmp_path / "run") <= 3
    # Every trial equals its member trained alone, including those that joined later.
    members = [replace(build(dict(report.parameters[name])), name=name) for name in report.parameters]
    living.equal_alone(argosy.Study(data=DATA, members=members, validations_per_epoch=2), tmp_path / "run")
    again = tune(tmp_path / "run", objective="val_accuracy", **rest)
    assert outcome(again) == outcome(report)
    assert again.run.status == "done"


def test_a_grid_is_every_point_and_any_storage_of_optuna_shows_it(tmp_path: Path) -> None:
    space = {"batch_size": CategoricalDistribution([8, 20]), "lr": FloatDistribution(0.1, 0.3, step=0.1)}
    url = f"sqlite:///{tmp_path}/search.db"
    report = tune(tmp_path / "run", space=space, scheduler="grid", max_epochs=1, storage=url, study_name="points")
    points = [(parameters["batch_size"], round(parameters["lr"], 6)) for parameters in report.parameters.values()]
    assert points == [(8, 0.1), (8, 0.2), (8, 0.3), (20, 0.1), (20, 0.2), (20, 0.3)]
    study = optuna.load_study(study_name="points", storage=url)
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE] * 6
    assert study.best_value == report.best().metrics["val_loss"]
    with pytest.raises(
        RunError, match=r"the storage has a study 'points' that belongs to .*, not to the search in this directory"
    ):
        tune(tmp_path / "other", scheduler="random", n_trials=1, max_epochs=1, storage=url, study_name="points")


def test_a_disk_that_refuses_the_lock_of_optunas_file_is_told_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = os.rename

    def refuse(old: str, new: str, **rest: Any) -> None:
        if str(old).endswith("optuna.log.lock"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), old)
        rename(old, new, **rest)

    rest = {"directory": tmp_path / "run", "scheduler": "random", "n_trials": 1, "max_epochs": 1}
    monkeypatch.setattr("os.rename", refuse)
    with pytest.raises(DiskError, match=r"No space left on device: .*optuna\.log.* Free disk space; the same command"):
        tune(**rest)
    monkeypatch.setattr("os.rename", rename)
    assert tune(**rest).run.status == "done"


def test_a_grid_that_has_grown_trains_what_it_lacks(tmp_path: Path) -> None:
    # Of the storages, databases refuse a parameter with two lists of choices.
    rest = {"directory": tmp_path / "run", "scheduler": "grid", "max_epochs": 1, "storage": f"sqlite:///{tmp_path}/db"}
    sizes = CategoricalDistribution([8, 20])
    tune(space={"batch_size": sizes, "lr": CategoricalDistribution([0.1, 0.3])}, **rest)
    report = tune(space={"batch_size": sizes, "lr": CategoricalDistribution([0.1, 0.2, 0.3])}, **rest)
    points = [tuple(report.parameters[f"net-{number}"].values()) for number in range(6)]
    assert points == [(8, 0.1), (8, 0.3), (20, 0.1), (20, 0.3), (8, 0.2), (20, 0.2)]
    assert report.epochs == 6


def test_a_search_that_draws_from_another_space_from_now_on_says_so_once(tmp_path: Path) -> None:
    wider = {**SPACE, "lr": FloatDistribution(1e-3, 2.0, log=True)}
    rest = {"scheduler": "random", "max_epochs": 1}
    tune(tmp_path, n_trials=1, **rest)
    with pytest.warns(
        UserWarning, match=r"^the space has changed: lr was Float.*high=1.0.*, is now .*high=2.0.*Earlier"
    ):
        report = tune(tmp_path, n_trials=2, space=wider, **rest)
    assert report.study.trials[0].distributions == report.study.trials[1].distributions == wider
    tune(tmp_path, n_trials=3, space=wider, **rest)


def test_a_range_that_the_latest_trial_does_not_draw_from_is_told_too(tmp_path: Path) -> None:
    def space(high: float, trial: optuna.Trial) -> None:
        if trial.suggest_categorical("kind", ["deep", "flat"]) == "deep":
            trial.suggest_float("lr", 0.01, high)

    rest = {"scheduler": "random", "max_epochs": 1, "enqueue": [{"kind": "deep"}, {"kind": "flat"}]}
    tune(tmp_path, n_trials=2, space=partial(space, 0.1), **rest)
    with pytest.warns(UserWarning, match=r"^the space has changed: lr was .*high=0.1.*, is now .*high=0.2"):
        tune(tmp_path, n_trials=2, space=partial(space, 0.2), **rest)


def test_a_search_that_has_nothing_to_do_is_not_changed(tmp_path: Path) -> None:
    tune(tmp_path, n_trials=1, scheduler="random", max_epochs=1)
    before = (tmp_path / "journal.jsonl").stat().st_mtime_ns
    tune(tmp_path, n_trials=1, scheduler="random", max_epochs=1)
    assert (tmp_path / "journal.jsonl").stat().st_mtime_ns == before
    assert tune(tmp_path, n_trials=1, scheduler="random", max_epochs=2).epochs == 2


def test_what_is_enqueued_later_is_next_and_once(tmp_path: Path) -> None:
    rest = {"scheduler": "random", "max_epochs": 1}
    known = [{"lr": 0.05}, {"lr": 0.06, "batch_size": 8}]

    def found(trials: int, enqueue: list[dict[str, Any]]) -> list[dict[str, Any]]:
        report = tune(tmp_path, n_trials=trials, enqueue=enqueue, **rest)
        return [dict(report.parameters[f"net-{number}"]) for number in range(trials)]

    drawn = found(2, [])
    first = found(3, known[:1])
    assert first[:2] == drawn and first[2]["lr"] == 0.05
    second = found(6, known)
    assert second[:3] == first and second[3] == known[1]
    assert [one["lr"] for one in second].count(0.05) == 1
    assert found(6, known) == second
    with pytest.raises(
        StudyError, match="enqueue has 1 trials that this directory has not started, but the search has room for 0 more"
    ):
        found(6, [*known, {"lr": 0.07}])


def test_parameters_metrics_and_fields_of_one_name_have_columns_of_their_own(tmp_path: Path) -> None:
    def halved(parameters: dict[str, Any]) -> argosy.Member:
        return replace(build(parameters), schedule=partial(LambdaLR, lr_lambda=lambda _: 0.5))

    space = {"lr": CategoricalDistribution([0.2]), "epochs": CategoricalDistribution([7])}
    report = tune(tmp_path, space=space, build=halved, scheduler="random", n_trials=1, max_epochs=1)
    (row,) = report.table()
    assert [row[name] for name in ("lr", "metric.lr", "epochs", "parameter.epochs")] == [0.2, 0.1, 1, 7]
    assert report.to_json()["trials"] == [row]


def test_a_sampler_is_known_again_by_what_it_holds_wherever_that_lies_in_memory() -> None:
    def gamma() -> Callable[[int], int]:
        def quarter(trials: int) -> int:
            return trials // 4

        return quarter

    def terms(**held: Any) -> str:
        sampler = partial(optuna.samplers.TPESampler, **held)
        search = Search(build=build, space=SPACE, data=DATA, max_epochs=1, sampler=sampler)
        return str(terms_of(search, 1, brackets="together")["sampler"])

    def holding(trials: int) -> dict[str, Any]:
        return {
            "gamma": gamma(),
            "base_sampler": optuna.samplers.RandomSampler(),
            "constraints_func": partial(max, gamma()),
            "n_startup_trials": trials,
        }

    first, second = holding(5), holding(5)
    assert first["gamma"] is not second["gamma"]
    assert terms(**first) == terms(**second) != terms(**holding(6))
    assert terms(**first) != terms(**{**first, "gamma": max})
    # The text that existing directories hold.
    assert (
        terms(n_startup_trials=5, seed=None) == "optuna.samplers._tpe.sampler:TPESampler(n_startup_trials=5, seed=None)"
    )


def test_what_is_asked_is_checked_before_anything_trains(tmp_path: Path) -> None:
    def refused(match: str, **rest: Any) -> None:
        with pytest.raises(StudyError, match=match):
            tune(tmp_path / "run", **{"n_trials": 2, **rest})

    refused(
        r"scheduler is 'hyper' \(did you mean 'hyperband'\?\); it must be 'hyperband', 'asha', 'median', 'pbt', 'random' or 'grid'",
        scheduler="hyper",
    )
    refused(
        "scheduler 'random' does not determine the number of trials. Set n_trials", scheduler="random", n_trials=None
    )
    refused(
        r"sampler is .*, which cannot be called with no arguments \(.*'seed'\)",
        sampler=lambda: optuna.samplers.TPESampler(),
    )
    refused("it must be a dictionary of named Optuna distributions", space={})
    refused("space: 'lr' is 0.1; it must be a distribution of Optuna", space={"lr": 0.1})
    refused("parameters must be numbers, strings, bools or None; found none at all", space=lambda trial: None)
    with pytest.warns(UserWarning, match="for persistent storage"):
        layers = {"layers": CategoricalDistribution([16, 16, 16, 16, [32, 16]])}
    refused(r"bools or None; found {'layers': \[32, 16\]}. Suggest a name", space=layers)
    refused(r"bools or None; found {'layers': \[32, 16\]}. Suggest a name", space=layers, scheduler="grid")
    refused("'lr' has infinitely many values. Set step=", scheduler="grid")
    width = IntDistribution(1, 2000)
    refused(r"the space has 4,000,000 points; at most 1,000,000", scheduler="grid", space={"a": width, "b": width})
    large = {f"x{number}": IntDistribution(1, 10**6) for number in range(60)}
    refused("'lr' has infinitely many values", scheduler="grid", space={**large, "lr": FloatDistribution(0, 1)})
    for numbered in ({1: width}, lambda trial: {"lr": trial.suggest_float(1, 0.1, 0.2)}):
        refused("a parameter named 1, of type int; names must be strings. Write '1'", space=numbered)
    refused(
        "space: the function returned 0.2.*; it must return a dictionary",
        space=lambda t: t.suggest_float("lr", 0.2, 0.2),
    )
    refused("'grid' needs a space of named distributions", scheduler="grid", space=lambda trial: None)
    refused("brackets is only for scheduler 'hyperband', and scheduler is 'asha'", scheduler="asha", brackets="in-turn")
    refused(
        "eta is only for scheduler 'hyperband' or 'asha' or 'pbt', and scheduler is 'median'", scheduler="median", eta=2
    )
    refused(r"eta is 1; it must be an int of at least 2", eta=1)
    refused("eta is None; it must be an int", eta=None)
    refused("n_trials is True; it must be an int", n_trials=True)
    refused("seed is -1; it must be an int", seed=-1)
    refused("max_epochs is 0; it must be a finite number greater than 0", max_epochs=0)
    cold: dict[str, Any] = {"warm": False, "brackets": "in-turn", "n_trials": None}
    late = argosy.SWA(from_epoch=2)
    refused(
        "ends it after 1 epochs, so nothing would be averaged", build=lambda p: replace(build(p), average=late), **cold
    )
    refused("max_epochs is inf; it must be a finite number greater than 0", max_epochs=math.inf)
    refused("data is an instance of tuple; it must be an argosy.Data", data=(DATA, DATA))
    refused("Search: mode is 'maximize'; it must be 'min' or 'max'", mode="maximize")
    refused("Search: the name 'val_score' does not show whether lower or higher is better", objective="val_score")
    refused("objective is an instance of function; it must be the name of a metric", objective=argosy.accuracy)
    refused("does not report the objective 'val_f1'", objective="val_f1")
    refused(r"build\(\{.*\}\) returned dict; it must return an argosy.Member", build=lambda parameters: parameters)
    refused(
        r"build is .*, which cannot be called with 1 argument \(.*'width'\); .* one dictionary",
        build=lambda lr, width: None,
    )
    refused(r"build is .*, which cannot be called with 1 argument \(.*'width'\)", build=lambda lr, width, epochs: None)
    refused("sampler is 3; it must be a class of optuna.samplers", sampler=3)
    refused("sampler has seed=1, .* set seed=1 on the search", sampler=partial(optuna.samplers.RandomSampler, seed=1))
    refused(r"fresh is \['net-1'\]; for a search it must be True or False", fresh=["net-1"])
    refused(
        "batch_size 64 is larger than its 40 training samples",
        build=lambda parameters: replace(build(parameters), drop_last=True),
        space={"batch_size": IntDistribution(64, 64)},
    )
    for url in ("nonsense", f"sqlite:///{tmp_path}/no/such/search.db"):
        with pytest.raises(
            RunError, match=r"Optuna's storage cannot be opened: .* Choose another, for example sqlite:///search.db"
        ):
            tune(tmp_path / "run", storage=url)
    assert not (tmp_path / "run" / "members").exists()
    # Once the obstacle is removed, the same directory can be used.
    assert tune(tmp_path / "run", n_trials=2, max_epochs=1).run.status == "done"
    argosy.train(
        studies.study(40, fleet=[studies.member("m")], epochs=1), directory=tmp_path / "plain", launcher="inline"
    )
    with pytest.raises(RunError, match="holds a run that is not a search"):
        tune(tmp_path / "plain")


FILE = """
from functools import partial
import numpy as np
from optuna.distributions import FloatDistribution
from torch import nn
from torch.optim import SGD
import argosy

x = np.random.RandomState(0).randn(80, 6).astype(np.float32)
data = argosy.Data(arrays=(x, np.arange(80) % 10), val_arrays=(x, np.arange(80) % 10))

def build(parameters):
    return argosy.Member("net", model=partial(nn.Linear, 6, 10), optimizer=partial(SGD, lr=parameters["lr"]), batch_size=4)

search = argosy.Search(build=build, space={"lr": FloatDistribution(0.001, 1.0, log=True)}, data=data, max_epochs=9)
"""


KILLS = """
import os
from argosy.running.directory.journal import Journal

commit = Journal.commit

def committed(journal):
    commit(journal)
    if journal.path.read_bytes().count(b"SectionEnded") >= 5:
        os.kill(os.getpid(), 9)

Journal.commit = committed
"""
"""Code appended to a study file that kills its driver after five sections."""


def test_without_optuna_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    for name in ("argosy.running.search.tuner", "argosy.tuning.sampling", "argosy.tuning.optuna_package"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(StudyError, match=r"optuna, which is not installed. Install it: pip install 'argosy\[tune\]'"):
        tune(tmp_path / "run", space=lambda trial: None)


def test_the_command_goes_on_after_kill_9(tmp_path: Path) -> None:
    words = ["tune", "search.py", "--devices", "cpu:2", "--numerics", "exact", "--dir"]
    (tmp_path / "search.py").write_text(FILE + KILLS)
    killed = forked.command(tmp_path, [*words, "killed"])
    assert killed.returncode == -9, killed.stderr
    (tmp_path / "search.py").write_text(FILE)
    reports = {}
    for name, launcher in (("killed", "processes"), ("whole", "inline")):
        found = forked.command(tmp_path, [*words, name, "--launcher", launcher, "--json"])
        assert found.returncode == 0, found.stderr
        reports[name] = json.loads(found.stdout)
    kept = ("trial", "status", "epochs", "lr", "val_loss", "reason")
    tables = [[{key: row[key] for key in kept} for row in report["trials"]] for report in reports.values()]
    assert tables[0] == tables[1]
    assert reports["killed"]["best"] == tables[0][0]["trial"]
    shown = forked.command(tmp_path, [*words, "whole", "--launcher", "inline"]).stdout
    assert shown[shown.index("Best: ") :].startswith(f"Best: {reports['whole']['best']}, val_loss ")
    assert "17 trials, " in shown and "; 69 epochs" in shown
    (tmp_path / "search.py").write_text("search = 3\n")
    wrong = forked.command(tmp_path, [*words, "whole", "--launcher", "inline"])
    assert wrong.returncode == 2
    assert "is an argosy.Search; found int" in " ".join(wrong.stderr.split())


def test_the_example_searches(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples" / "optuna_search.py"
    assert len(example.read_text().splitlines()) <= 25
    search = replace(load_search(example), max_epochs=3)
    settings = Settings(devices="cpu:1")
    report = run_search(search, settings, tmp_path / "run", store=Store(), launcher=Inline(), view=None)
    assert len(report.table()) == 5
    assert report.best().metrics["val_loss"] < 2.0
