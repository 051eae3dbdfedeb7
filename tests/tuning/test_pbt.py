"""Tests that a population replaces trials as its definition says, and that a clone equals a plain loop over its line of sources."""

import itertools
import math
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import evidence
import living
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import TPESampler
from reference import reference
from searches import DATA, outcome, stored, tune
from torch import nn
from torch.optim import SGD

import argosy
from argosy.errors import RunError
from argosy.protocol.events import MemberRested, Saved
from argosy.protocol.trainer import SectionReport
from argosy.running.control.driver import Driver
from argosy.running.directory.audit import audit
from argosy.running.search.populations import changed_parameters
from argosy.tuning.pbt import Pbt
from argosy.tuning.sampling import Sampling

Costs = dict[int, list[float]]
SPACE = {
    "lr": FloatDistribution(0.003, 1.0, log=True),
    "momentum": FloatDistribution(0.1, 0.9),
    "batch_size": CategoricalDistribution([8, 20]),
}


class World:
    """A population with fixed costs, whose trials train and whose clones begin in any order."""

    def __init__(self, pbt: Pbt, costs: Costs, fails: dict[int, int]) -> None:
        self.pbt, self.costs, self.fails = pbt, {trial: list(row) for trial, row in costs.items()}, fails
        self.reached: dict[int, int] = {}
        self.failed: set[int] = set()
        self.trained = 0
        """The sections that all trials have trained together."""

    def begin(self) -> bool:
        """Begin one more trial if one is wanted; a clone starts with what its source has reached."""
        trial = len(self.reached)
        if not self.pbt.wanted_trials(trial):
            return False
        source = self.pbt.sources.get(trial)
        self.reached[trial] = 0 if source is None else self.reached[source]
        if source is not None:
            self.costs[trial][: self.reached[trial] + 1] = self.costs[source][: self.reached[trial] + 1]
        for section in range(1, self.reached[trial] + 1):
            self.pbt.tell(trial, section, self.costs[trial][section])
        return True

    def play(self, draw: Random) -> None:
        while True:
            movable = [t for t, r in self.reached.items() if t not in self.failed and r < self.pbt.budget(t)]
            if not movable and not self.begin():
                return
            if movable and (draw.random() < 0.7 or not self.begin()):
                self.step(draw.choice(movable))

    def step(self, trial: int) -> None:
        if self.fails.get(trial) == self.reached[trial]:
            self.failed.add(trial)
            self.pbt.fail(trial)
            return
        self.reached[trial] += 1
        self.trained += 1
        self.pbt.tell(trial, self.reached[trial], self.costs[trial][self.reached[trial]])

    @property
    def table(self) -> dict[int, tuple[int, bool, int | None]]:
        return {
            t: (reached, self.pbt.out(t) is None, self.pbt.sources.get(t))
            for t, reached in self.reached.items()
            if t not in self.failed
        }


def by_definition(
    trials: int, terms: dict[str, int], costs: Costs, fails: dict[int, int]
) -> dict[int, tuple[int, bool, int | None]]:
    """Return where each trial ends, computed one generation after the other, for the whole population at once."""
    most, every, eta, seed = (terms[key] for key in ("most", "every", "eta", "seed"))
    costs = {trial: list(row) for trial, row in costs.items()}
    born, racing, found = dict.fromkeys(range(trials), 0), list(range(trials)), {}
    sources: dict[int, int] = {}
    for mark in [*range(every, most, every), most]:
        dead = {t for t in racing if born[t] <= fails.get(t, most) < mark}
        found = {t: row for t, row in found.items() if t not in dead}
        found |= {t: (mark, True, sources.get(t)) for t in racing if t not in dead}
        alive = [t for t in racing if t not in dead]
        if mark == most or not alive:
            break
        alive.sort(key=lambda t: (math.isnan(costs[t][mark]), 0 if math.isnan(costs[t][mark]) else costs[t][mark], t))
        replaced = max(trials // eta, 1) if trials > 1 else 0
        order = [*alive, *sorted(dead)]
        losers = [t for t in order if t in dead or t in order[len(order) - replaced :]]
        best = alive[: max(replaced, 1)]
        drawn = Random(f"{seed}/{len(sources)}").sample(best, len(best))
        for place, loser in enumerate(losers):
            clone = trials + len(sources)
            sources[clone] = source = drawn[place % len(best)]
            born[clone], costs[clone][: mark + 1] = mark, costs[source][: mark + 1]
            racing = [*(t for t in racing if t != loser), clone]
            if loser not in dead:
                found[loser] = mark, False, sources.get(loser)
    return found


@given(st.integers(0, 2**32))
@settings(max_examples=60)
def test_a_population_is_decided_the_same_whatever_the_order(seed: int) -> None:
    draw = Random(seed)
    trials = draw.randint(1, 9)
    terms = {"most": draw.randint(1, 12), "every": draw.randint(1, 5), "eta": draw.choice([2, 3, 5]), "seed": seed}
    values = [0.0, 0.25, 0.5, 0.75, 1.0, math.nan]
    costs = {t: [draw.choice(values) for _ in range(13)] for t in range(trials * 13)}
    fails = {t: draw.randint(0, 12) for t in range(trials * 13) if draw.random() < 0.2}
    worlds = [World(Pbt(trials=trials, **terms), costs, fails) for _ in range(2)]
    for world in worlds:
        world.play(draw)
    assert worlds[0].table == worlds[1].table == by_definition(trials, terms, costs, fails)
    # A later driver reports all results at once, trial by trial, and the failures after them.
    again = Pbt(trials=trials, **terms)
    for trial, reached in worlds[0].reached.items():
        for section in range(1, reached + 1):
            again.tell(trial, section, worlds[0].costs[trial][section])
    for trial in worlds[0].failed:
        again.fail(trial)
    assert again.sources == worlds[0].pbt.sources
    assert all(again.out(trial) == worlds[0].pbt.out(trial) for trial in worlds[0].reached)
    if not worlds[0].failed:
        assert again.expected_sections(again=False) == worlds[0].trained


def test_a_trial_that_its_own_rule_has_ended_is_no_source() -> None:
    """It may lack a file of an epoch's end, and its rule would end a clone that inherits its sections."""
    for seed in range(8):
        pbt = Pbt(trials=5, most=6, every=2, eta=2, seed=seed)
        pbt.tell(0, 1, 0.0)
        pbt.close(0)
        for trial in range(1, 5):
            for section in (1, 2):
                pbt.tell(trial, section, trial)
        assert {pbt.sources[clone] for clone in (5, 6)} <= {1, 2}
        assert {trial for trial in range(5) if pbt.out(trial)} == {3, 4}
        for trial, begun in ((1, 2), (2, 2), (5, 0), (6, 0)):
            for section in range(begun + 1, 4):
                pbt.tell(trial, section, trial)
            if trial > 1:
                pbt.close(trial)
        pbt.tell(1, 4, 1.0)
        assert pbt.racing == [1] and len(pbt.sources) == 2 and pbt.budget(1) == 6


def test_the_clones_of_a_generation_are_no_twins() -> None:
    """With one parameter, two clones of one source would often have equal parameters, and train to equal weights."""
    for seed in range(8):
        pbt = Pbt(trials=8, most=3, every=1, eta=2, seed=seed)
        for trial in range(8):
            pbt.tell(trial, 1, trial)
        assert sorted(pbt.sources.values()) == [0, 1, 2, 3]


def test_a_trial_that_its_own_rule_ends_at_the_mark_of_a_generation_is_no_source(tmp_path: Path) -> None:
    def ending(parameters: dict[str, Any]) -> argosy.Member:
        return replace(build(parameters), stop=argosy.MaxEpochs(1 if parameters["lr"] > 0.1 else 3))

    best_first = [{"lr": 0.2}, {"lr": 0.02}, {"lr": 0.01}]
    terms = {"n_trials": 3, "epochs_per_generation": 1, "max_epochs": 2, "eta": 2}
    search(tmp_path, space={"lr": SPACE["lr"]}, build=ending, enqueue=best_first, **terms)
    assert line_of(tmp_path, "net-3")[0] == "net-1"


def test_parameters_go_on_to_values_beside_them() -> None:
    space = {
        "lr": FloatDistribution(0.1, 1.0),
        "rate": FloatDistribution(0.0, 1.0, step=0.25),
        "depth": IntDistribution(1, 4),
        "net": CategoricalDistribution(["a", "b", "c"]),
        "one": CategoricalDistribution([3]),
    }
    sampling = Sampling(space, modes=["min"], seed=0, sampler=None)
    here = {"lr": 0.5, "rate": 0.25, "depth": 2, "net": "a", "one": 3}
    found = [sampling.explored(here, space) for _ in range(40) if sampling.ask()]
    assert {round(row["lr"], 6) for row in found} == {0.4, 0.6}
    assert {row["rate"] for row in found} == {0.0, 0.5}
    assert {row["depth"] for row in found} == {1, 3}
    assert {(row["net"], row["one"]) for row in found} == {("b", 3)}
    assert sampling.explored({**here, "lr": 1.0, "depth": 4}, ["lr", "depth"])["lr"] == pytest.approx(0.8)
    assert sampling.explored(here, []) == here


def build(parameters: dict[str, Any]) -> argosy.Member:
    """Return a member of one layer with dropout, so that random states matter."""
    return argosy.Member(
        "net",
        model=partial(_network, 6),
        optimizer=partial(SGD, lr=parameters["lr"], momentum=parameters.get("momentum", 0.5)),
        batch_size=parameters.get("batch_size", 8),
    )


def _network(inputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 12), nn.Dropout(0.1), nn.Linear(12, 10))


def search(directory: Path, **rest: Any) -> Any:
    terms = {"scheduler": "pbt", "n_trials": 6, "max_epochs": 6, "epochs_per_generation": 2, "numerics": "exact"}
    return tune(directory, **{"space": SPACE, "build": build, **terms, **rest})


def line_of(run: Path, name: str) -> tuple[str, list[tuple[int, dict[str, Any]]]]:
    """Return the first of a clone's sources, and the changes, with their epochs, on the way to the clone."""
    cloned = {line["member"]: line for line in evidence.event_lines(run, "Cloned")}
    changed: list[tuple[int, dict[str, Any]]] = []
    while name in cloned:
        line = cloned[name]
        changed.insert(0, (line["checkpoint"]["epoch"], {key: new for key, (_, new) in line["changes"].items()}))
        name = line["source"]
    return name, changed


def test_a_clone_is_what_a_plain_loop_makes_of_its_line_and_a_killed_search_ends_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        living.at_every_round(patch, Snapshots(tmp_path).act)
        report = search(run)
    state = living.state_of(run)
    assert audit(run) == []
    assert len(report.trials) == 6 + 2 * 2
    for row in report.run.rows:
        _, out, rest = row.reason.partition(" after section ")
        assert row.epochs == (float(rest.partition(":")[0]) if out else 6.0)
    assert [row["trial"] for row in report.table()] == sorted(
        report.trials, key=lambda name: (report.run.member(name).metrics["val_loss"], report.trials[name])
    )
    # The sections that a clone inherits from its source were not trained again.
    assert report.epochs == 6 * 6
    assert report.sources.keys() == {f"net-{number}" for number in range(6, 10)}
    for name in report.trials:
        root, changed = line_of(run, name)
        source, rows = report.sources.get(name), state.members[name].sections
        assert [row.stream_epoch for row in rows] == list(range(len(rows)))
        if source is not None:
            kept, now = report.parameters[source], report.parameters[name]
            assert now["batch_size"] == kept["batch_size"]
            assert now["lr"] / kept["lr"] in (pytest.approx(0.8), pytest.approx(1.2), pytest.approx(1.0 / kept["lr"]))

        def before(epoch: int, optimizer: Any, changed: Any = changed) -> None:
            for begin, values in changed:
                if epoch >= begin:
                    for key, value in values.items():
                        optimizer.param_groups[0][key.removeprefix("optimizer.")] = value

        first = replace(build(dict(report.parameters[root])), name=root)
        weights, losses = reference(first, DATA, range(6), ends=len(rows), before=before)
        assert [row.metrics["val_loss"] for row in rows] == losses
        assert evidence.results_of(run, name)["weights"] == weights
    trials = stored(run).trials
    assert [trial.params for trial in trials] == [report.parameters[f"net-{trial.number}"] for trial in trials]
    # A clone's value is what it reached itself: in the report, in Optuna's storage, and after a kill.
    for trial in trials:
        row, own = report.run.member(f"net-{trial.number}"), state.members[f"net-{trial.number}"].own_sections
        reached = min(one.metrics["val_loss"] for one in own)
        assert row.metrics["val_loss"] == reached
        assert trial.value == reached
        assert row.metrics["lr"] == row.hyperparameters["optimizer.lr"]
    killed = sorted(tmp_path.glob("killed-*"))
    assert len(killed) >= 5
    # The last line that reached the disk may be a clone that is not yet a trial. Later saves have deleted older
    # checkpoints, so the journal can only be cut where none follows.
    torn = 0
    for one in killed:
        lines = (one / "journal.jsonl").read_bytes().splitlines(keepends=True)
        cut = max((number for number, line in enumerate(lines, 1) if b'"Cloned"' in line), default=len(lines))
        if cut < len(lines) and not any(b'"Saved"' in line for line in lines[cut:]):
            (one / "journal.jsonl").write_bytes(b"".join(lines[:cut]))
            torn += 1
    assert torn, "every snapshot has a checkpoint saved after its last clone, so none tests the cut"
    for again in killed:
        found = search(again, study_name="run")
        assert outcome(found) == outcome(report), again
        assert found.sources == report.sources, again
        assert audit(again) == []


class Snapshots:
    """Copies of a run's directory as a kill would leave it, made whenever a member rests, ends or is cloned."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._seen: Any = None

    def act(self, driver: Driver) -> None:
        """Copy the directory at the end of a round if anything has happened."""
        members = driver.state.members
        here = len(members), sum(member.status in ("resting", "done") for member in members.values())
        if driver.run.begun and here != self._seen:
            # A thread of the storage creates and deletes its lock at any time.
            there = self.folder / f"killed-{'-'.join(map(str, here))}"
            shutil.copytree(
                driver.run.directory, there, symlinks=True, ignore=shutil.ignore_patterns("optuna.log.lock*")
            )
        self._seen = here


def test_faults_change_nothing_and_more_epochs_are_more_generations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = search(tmp_path / "whole", validations_per_epoch=2, max_epochs=3, epochs_per_generation=1)
    draw = Random(1)

    def act(driver: Driver) -> None:
        if draw.random() < 0.1:
            driver.faults.regroup()

    with monkeypatch.context() as patch:
        living.at_every_round(patch, act)
        terms = {"validations_per_epoch": 2, "epochs_per_generation": 1}
        # Trials that begin later train on the same epochs of the stream.
        search(tmp_path / "run", max_epochs=2, at_once=2, **terms)
        grown = search(tmp_path / "run", max_epochs=3, **terms)
    kept = [{name: row[:2] + row[3:] for name, row in outcome(found).items()} for found in (grown, whole)]
    assert kept[0] == kept[1]
    with pytest.raises(RunError, match=r"n_trials: was 6, is now 8\n.*Only max_epochs may grow"):
        search(tmp_path / "run", max_epochs=3, n_trials=8, **terms)


@pytest.mark.filterwarnings("ignore:the sampler of this search learns nothing")
def test_a_population_whose_trials_begin_one_after_another_is_that_which_begins_at_once(tmp_path: Path) -> None:
    """A sampler that learns would know what the first of them have reached, which depends on when they train."""
    sampler = partial(TPESampler, n_startup_trials=1)
    terms = {"sampler": sampler, "max_epochs": 1, "epochs_per_generation": 1}
    together, in_turn = (search(tmp_path / f"{most}", at_once=most, **terms) for most in (None, 1))
    assert together.parameters == in_turn.parameters
    assert outcome(together) == outcome(in_turn)


def test_only_numbers_that_a_clone_may_change_are_changed() -> None:
    def made(**rest: Any) -> argosy.Member:
        given = {"model": partial(_network, 6), "optimizer": partial(SGD, lr=0.1), "batch_size": 8, **rest}
        return argosy.Member("net", **given)

    assert changed_parameters(made(), made(optimizer=partial(SGD, lr=0.2))) == {"optimizer.lr": (0.1, 0.2)}
    assert changed_parameters(made(loss=nn.CrossEntropyLoss()), made(loss=nn.CrossEntropyLoss())) == {}
    assert changed_parameters(made(), made(batch_size=4)) is None
    assert changed_parameters(made(), made(model=partial(_network, 5))) is None
    assert changed_parameters(made(), made(optimizer=partial(_other, lr=0.2))) is None


def _other(parameters: Any, lr: float) -> SGD:
    return SGD(parameters, lr)


def test_a_generation_begins_when_all_of_it_rests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A generation waits for the late files of one device: members are called before they rest, yet no epoch is prepared for the others alone."""
    late: list[tuple[int, str, SectionReport]] = []
    handle, one_round, rounds = Driver._handle, Driver._round, itertools.count()

    def hear(driver: Driver, worker: str, message: Any) -> None:
        if isinstance(message, SectionReport):
            held = tuple(event for event in message.events if isinstance(event, Saved | MemberRested))
            if held:
                until = next(rounds) + (3 if worker.endswith("0") else 15)
                late.append((until, worker, SectionReport(events=held)))
                message = replace(message, events=tuple(event for event in message.events if event not in held))
        handle(driver, worker, message)

    def go_round(driver: Driver) -> None:
        one_round(driver)
        now = next(rounds)
        for until, worker, message in [one for one in late if one[0] <= now]:
            late.remove((until, worker, message))
            handle(driver, worker, message)

    monkeypatch.setattr(Driver, "_handle", hear)
    monkeypatch.setattr(Driver, "_round", go_round)
    terms = {"scheduler": "pbt", "n_trials": 6, "eta": 2, "max_epochs": 4}
    report = tune(tmp_path / "late", space={"lr": FloatDistribution(0.003, 1.0, log=True)}, **terms)
    assert argosy.load(tmp_path / "late").preparations == 1.0
    monkeypatch.undo()
    assert outcome(report) == outcome(
        tune(tmp_path / "whole", space={"lr": FloatDistribution(0.003, 1.0, log=True)}, **terms)
    )
