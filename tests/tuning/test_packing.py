"""Tests that packs are chosen as in the paper, without the mistakes of its code, and trials that begin anew at each rung."""

import math
import random
import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import evidence
import living
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import TrialState
from searches import DATA, at_once, outcome, stored, tune
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import CosineAnnealingLR

import argosy
from argosy.running.control.driver import Driver
from argosy.running.directory.audit import audit
from argosy.running.directory.journal import timeline
from argosy.running.watch.phase import Phase
from argosy.tuning.hyperband import brackets
from argosy.tuning.packing import Candidate, Packing, make_packing
from argosy.views.html.report import page_values

CHOICES = {"lr": [0.001, 0.01, 0.1, 1.0], "units": [8, 16, 32]}
SPACE = {
    "lr": CategoricalDistribution([0.003, 0.03, 0.3, 1.0]),
    "batch_size": CategoricalDistribution([8, 20]),
    "momentum": FloatDistribution(0.0, 0.9),
}
PACKS = ["none", "batch-size", "random(3)", "knn(3)", "planned"]


def build(parameters: dict[str, Any]) -> argosy.Member:
    """Return a member with two hidden layers and a batch norm."""
    return argosy.Member(
        "net",
        model=partial(_network, 10),
        optimizer=partial(SGD, lr=parameters["lr"], momentum=parameters["momentum"]),
        batch_size=parameters["batch_size"],
        metrics={"accuracy": argosy.accuracy},
    )


def scheduled(parameters: dict[str, Any], epochs: float) -> argosy.Member:
    """Return a member whose learning rate has decayed to 0 after that many epochs."""
    return replace(build(parameters), schedule=partial(CosineAnnealingLR, T_max=int(epochs)))


def _network(classes: int) -> nn.Module:
    """Return a network whose layers are wide enough that every program gives its members the bits they get alone."""
    hidden = nn.Linear(6, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()
    return nn.Sequential(*hidden, nn.Linear(64, classes))


def search(directory: Path, **rest: Any) -> Any:
    return tune(directory, **{"space": SPACE, "build": build, **rest})


def candidates(*points: dict[str, Any]) -> list[Candidate]:
    return [
        Candidate(name=f"m-{number}", batch_size=point.pop("batch_size", 8), parameters=point)
        for number, point in enumerate(points)
    ]


def packed(packing: Packing, waiting: Sequence[Candidate]) -> list[list[str]]:
    """Return the packs of a whole rung, as names."""
    left, packs = list(waiting), []
    while left:
        pack = packing(left)
        left = [one for one in left if one not in pack]
        packs.append([one.name for one in pack])
    return packs


def made(packs: str) -> Packing:
    packing = make_packing(packs, seed=0, choices=CHOICES)
    assert packing is not None
    return packing


def test_each_policy_packs_as_the_paper_says() -> None:
    waiting = candidates(*({"batch_size": size} for size in (8, 16, 8, 32, 16, 8)))
    assert packed(made("none"), waiting) == [[f"m-{number}"] for number in range(6)]
    assert packed(made("batch-size"), waiting) == [["m-0", "m-2", "m-5"], ["m-1", "m-4"], ["m-3"]]
    assert packed(made("random(4)"), waiting) == [["m-0", "m-1", "m-2", "m-3"], ["m-4", "m-5"]]
    assert make_packing("planned", seed=0, choices=CHOICES) is None


def test_knn_packs_hold_the_nearest_by_rank_in_lists_of_values() -> None:
    points = [{"lr": lr, "units": units, "net": net} for lr in CHOICES["lr"] for units in (8, 32) for net in ("a", "b")]
    waiting = candidates(*points)
    for size in (1, 2, 5):
        packs = packed(made(f"knn({size})"), waiting)
        assert sorted(name for pack in packs for name in pack) == sorted(one.name for one in waiting)
        assert [len(pack) for pack in packs[:-1]] == [size] * (len(packs) - 1)
    first = made("knn(3)")(waiting)

    def apart(one: Candidate, other: Candidate) -> int:
        places = [
            abs(CHOICES[name].index(one.parameters[name]) - CHOICES[name].index(other.parameters[name]))
            for name in CHOICES
        ]
        return sum(places) + (one.parameters["net"] != other.parameters["net"])

    distances = sorted(apart(first[0], one) for one in waiting if one is not first[0])
    assert sorted(apart(first[0], one) for one in first[1:]) == distances[:2] == [1, 1]
    # A value outside the list counts by its rank among the values at hand; a missing one counts as different.
    free = candidates({"rate": 0.1}, {"rate": 0.2}, {"rate": 0.9}, {})
    centre = make_packing("knn(2)", seed=3, choices={})
    assert {one.name for one in centre([free[0], free[2], free[1]])} != {"m-0", "m-2"}


def by_definition(directory: Path, *, anew: bool, most: int = 9, eta: int = 3) -> dict[str, float]:
    """Return how far each member trains if each rung promotes the best third, judged by what the members reached."""
    members, reached, start = living.state_of(directory).members, {}, 0
    for size, budgets in brackets(most, eta):
        racing = list(range(start, start + size))
        start += size
        for number, budget in enumerate(budgets):
            name = {t: f"net-{t}-s{budget}" if anew and number else f"net-{t}" for t in racing}
            worth = {t: min(row["val_loss"] for row in members[name[t]].history[:budget]) for t in racing}
            reached.update({name[t]: budget for t in racing})
            racing = sorted(racing, key=lambda t: (worth[t], t))[: len(racing) // eta]
    return {name: float(epochs) for name, epochs in reached.items()}


@pytest.mark.parametrize(("warm", "policies"), [(True, PACKS), (False, PACKS[-2:])])
def test_packs_change_neither_which_third_is_promoted_nor_its_weights(
    tmp_path: Path, warm: bool, policies: list[str]
) -> None:
    tables = {}
    for packs in policies:
        run = tmp_path / packs
        report = search(run, packs=packs, warm=warm, numerics="exact")
        assert {row.name: row.epochs for row in report.run.rows} == by_definition(run, anew=not warm)
        assert {row.status for row in report.run.rows} == {"done"}
        tables[packs] = {row["trial"]: (row["epochs"], row["val_loss"], row["val_accuracy"]) for row in report.table()}
        if packs.startswith(("random", "knn")):
            assert at_once(run) == 2 * 3, "two devices, each with a pack of three"
    assert all(table == tables["planned"] for table in tables.values())
    members = [*report_members(tmp_path / "knn(3)", warm)]
    living.equal_alone(argosy.Study(data=DATA, members=members), tmp_path / "knn(3)")
    for member in members:
        state = living.state_of(tmp_path / "knn(3)").members[member.name]
        assert state.history[-1]["steps"] == len(state.history) * -(-40 // member.batch_size)
        assert [row.stream_epoch for row in state.sections] == list(range(len(state.sections)))
    assert validated_as_it_is_used(tmp_path / "knn(3)", members[0])


def report_members(run: Path, warm: bool) -> list[argosy.Member]:
    """Build the members of a search by hand from its journal."""
    found = []
    for line in evidence.event_lines(run, "Proposed"):
        assert (line["sections"] is None) == warm
        found.append(replace(build(line["parameters"]), name=line["member"]))
    return found


def validated_as_it_is_used(run: Path, member: argosy.Member) -> bool:
    """Return whether the validation loss is that of the network in ``eval()``."""
    report = argosy.load(run, study=argosy.Study(data=DATA, members=[member]))
    x, y = DATA.val.tensors
    network = report.member(member.name).load()
    assert not network.training
    found = nn.functional.cross_entropy(network(x), y).item()
    return report.member(member.name).metrics["val_loss"] == pytest.approx(found, rel=1e-5)


@pytest.mark.parametrize("packs", ["planned", "knn(2)"])
def test_a_search_whose_trials_begin_anew_ends_like_any_other_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packs: str
) -> None:
    run = tmp_path / "run"
    with monkeypatch.context() as patched:
        living.keep_all_files(patched)
        report = search(run, warm=False, packs=packs)
    whole = (run / "journal.jsonl").read_bytes().splitlines(keepends=True)
    ended = [number for number, line in enumerate(whole) if b'"MemberEnded"' in line]
    for cut in (ended[0] + 1, ended[8] + 1, ended[len(ended) // 2]):
        again = shutil.copytree(run, tmp_path / f"killed-{cut}")
        (again / "journal.jsonl").write_bytes(b"".join(whole[:cut]))
        found = search(again, warm=False, packs=packs, study_name="run")
        assert outcome(found) == outcome(report), cut
        assert audit(again) == []
    trials = stored(run).trials
    assert len(trials) == 17
    assert sum(trial.state == TrialState.COMPLETE for trial in trials) == 1 + 1 + 3
    assert {trial.state for trial in trials} == {TrialState.COMPLETE, TrialState.PRUNED}
    assert report.trials_per_hour == pytest.approx(17 / report.seconds * 3600)
    assert len(report.run.rows) == 9 + 3 + 1 + 5 + 1 + 3
    assert ": 17 trials, 12 pruned, 5 done; " in report.ending().state, "a trial counts once, however many rows it has"
    card = page_values(report.run, timeline(run))["cards"][1]
    assert (card["title"], card["value"], card["counts"]) == ("Trials", "17", [["pruned", 12], ["done", 5]])
    if packs != "planned":
        return
    draw = random.Random(0)

    def act(driver: Driver) -> None:
        if driver.run.phase is Phase.TRAINING and draw.random() < 0.1:
            driver.faults.regroup()

    living.at_every_round(monkeypatch, act)
    assert outcome(search(tmp_path / "faults", warm=False, packs=packs)) == outcome(report)


def test_totals_grow_where_trials_begin_anew(tmp_path: Path) -> None:
    once = search(tmp_path / "once", warm=False, n_trials=8, max_epochs=4, eta=2)
    search(tmp_path / "run", warm=False, n_trials=5, max_epochs=2, eta=2)
    report = search(tmp_path / "run", warm=False, n_trials=8, max_epochs=4, eta=2)
    assert report.best().name == once.best().name
    assert {*report.trials.values()} == {*range(8)}
    for member, number in once.trials.items():
        assert once.parameters[member] == report.parameters[f"net-{number}"]
        mine = [row.epochs for row in report.run.rows if report.trials[row.name] == number]
        assert max(mine) >= once.run.member(member).epochs
    with pytest.raises(argosy.ArgosyError, match="warm: was False, is now True"):
        search(tmp_path / "run", n_trials=8, max_epochs=4, eta=2)


def test_a_schedule_sees_the_rungs_budget_or_the_last(tmp_path: Path) -> None:
    anew = search(tmp_path / "anew", build=scheduled, warm=False)
    warm = search(tmp_path / "warm", build=scheduled)
    for report, until in ((anew, None), (warm, 9)):
        for row in report.run.rows:
            history = living.state_of(report.run.directory).members[row.name].history
            rate, end = report.parameters[row.name]["lr"], until or row.epochs
            wanted = [rate * (1 + math.cos(math.pi * epoch / end)) / 2 for epoch in range(row.epochs)]
            assert [section["lr"] for section in history] == pytest.approx(wanted)
