"""Tests samplers that learn: they are asked in waves, see the results of all earlier trials, and propose the same after any kill."""

import json
import math
import shutil
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import living
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.samplers import BaseSampler, QMCSampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial, Trial, TrialState
from searches import DATA, SPACE, build, outcome, stored, tune

from argosy.errors import RunError, StudyError
from argosy.protocol.events import SearchBegan
from argosy.running.control import cost_table
from argosy.running.search.terms import check_terms
from argosy.running.search.tuner import Tuner
from argosy.tuning.sampling import DEFAULT_SAMPLERS
from argosy.tuning.search import Search

pytestmark = pytest.mark.filterwarnings("ignore::argosy.errors.MemberFailed")  # reports are checked for its text

TPE = partial(TPESampler, n_startup_trials=2)
SETTINGS: list[dict[str, Any]] = [
    {},
    {"brackets": "in-turn", "at_once": 3},
    {"brackets": "together", "at_once": 6},
    {"scheduler": "asha", "n_trials": 12},
    {"scheduler": "asha", "n_trials": 12, "at_once": 4},
    {"scheduler": "asha", "n_trials": 12, "warm": False},
    {"scheduler": "median", "n_trials": 12},
    {"scheduler": "random", "n_trials": 12},
]


class Watching(BaseSampler):
    """A sampler that records what it is shown, and stores in each trial the state from which the next ones follow, as CMA-ES does."""

    seen: list[dict[int, tuple[str, dict[int, float]]]]

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def infer_relative_search_space(self, study: Any, trial: FrozenTrial) -> dict[str, Any]:
        return {"lr": SPACE["lr"]}

    def sample_relative(self, study: Any, trial: FrozenTrial, search_space: Any) -> dict[str, Any]:
        others = [other for other in study.get_trials(deepcopy=False) if other.number != trial.number]
        self.seen.append({o.number: (o.state.name, dict(o.intermediate_values)) for o in others})
        reached = sum(value for other in others for value in other.intermediate_values.values() if value == value)
        place = math.modf(reached + sum(other.system_attrs["place"] for other in others) / 7)[0]
        study._storage.set_trial_system_attr(trial._trial_id, "place", place)
        return {"lr": 0.001 + place / 2}

    def sample_independent(self, study: Any, trial: FrozenTrial, name: str, distribution: Any) -> Any:
        return RandomSampler(seed=self.seed).sample_independent(study, trial, name, distribution)


@pytest.fixture(autouse=True)
def _afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    # Otherwise members would move after the rates that a busy machine measures.
    monkeypatch.setattr(cost_table, "WORTH_A_CORRECTION", math.inf)
    Watching.seen = []


@pytest.mark.parametrize("terms", SETTINGS, ids=str)
def test_a_sampler_is_told_what_all_trials_before_its_wave_have_reached(tmp_path: Path, terms: dict[str, Any]) -> None:
    report = tune(tmp_path, sampler=Watching, **terms)
    assert len(Watching.seen) == len(set(report.trials.values()))
    last, members = Watching.seen[-1], living.state_of(tmp_path).members
    known = {number: reached for number, (state, reached) in last.items() if state != "RUNNING"}
    assert [*known] == [*range(len(known))], "the sampler sees all trials of earlier waves"
    assert len(known) >= len(last) / 2
    together = terms.get("brackets") == "together"
    for number, reached in known.items():
        assert len(reached) >= 1
        if not terms.get("scheduler") and not together:
            # The brackets before this one are over, so what the sampler was shown is everything.
            best = [min(row["val_loss"] for row in members[f"net-{number}"].history[:k]) for k in reached]
            assert [*reached.values()] == best
    assert {state for state, _ in last.values()} <= {"RUNNING", "PRUNED", "COMPLETE"}
    assert max(len(reached) for reached in known.values()) > (0 if together else 1)


@pytest.mark.parametrize("sampler", [TPE, Watching])
@pytest.mark.parametrize("terms", [{}, {"scheduler": "asha", "n_trials": 9, "at_once": 3}], ids=str)
@pytest.mark.filterwarnings("ignore:.*has no study.json")
def test_a_killed_search_that_learns_ends_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terms: dict[str, Any], sampler: Any
) -> None:
    run, terms = tmp_path / "run", {"numerics": "exact", "sampler": sampler, "max_epochs": 4, "eta": 2, **terms}
    with monkeypatch.context() as patched:
        living.keep_all_files(patched)
        report = tune(run, **terms)
    whole = (run / "journal.jsonl").read_bytes().splitlines(keepends=True)
    proposed = [number for number, line in enumerate(whole) if json.loads(line)["event"] == "Proposed"]
    middle = proposed[len(proposed) // 2]
    for number, cut in enumerate([1, middle - 1, middle, middle + 1, proposed[-1] + 1, len(whole) - 2]):
        again = shutil.copytree(run, tmp_path / f"killed-{number}")
        (again / "journal.jsonl").write_bytes(b"".join(whole[:cut]) + whole[cut][:20])
        (again / "study.json").unlink()  # this file is never ahead of the journal
        found = tune(again, study_name="run", **terms)
        assert found.parameters == report.parameters, cut
        assert outcome(found) == outcome(report), cut


@pytest.mark.parametrize("terms", [{"scheduler": "random", "at_once": 4}, {"at_once": 3, "eta": 2}], ids=str)
def test_a_search_that_learns_goes_on_with_more_epochs_and_stays_as_it_ended(
    tmp_path: Path, terms: dict[str, Any]
) -> None:
    """With more epochs, trials that had ended, and those that others wait for at a rung, continue."""
    run, terms = tmp_path / "run", {"n_trials": 12, "sampler": TPE, **terms}
    tune(run, max_epochs=4, **terms)
    report = tune(run, max_epochs=8, **terms)
    assert report.run.status == "done"
    facts = [(one.state, one.value, one.intermediate_values) for one in report.study.trials]
    for trial in report.study.trials:
        whole = trial.state is TrialState.COMPLETE
        assert whole or trial.state is TrialState.PRUNED
        assert (len(trial.intermediate_values) == 8) == whole
        assert {row.epochs for row in report.rows if report.trials[row.name] == trial.number} == {
            len(trial.intermediate_values)
        }
    again = tune(run, max_epochs=8, **terms)
    for study in (again.study, stored(run)):
        assert [(one.state, one.value, one.intermediate_values) for one in study.trials] == facts


@pytest.mark.filterwarnings("ignore:.*has no study.json")
def test_a_wave_waits_for_a_trial_that_trains_its_last_section_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The killed driver knew the value of that section, but the trial's checkpoint was not written."""
    terms = {"scheduler": "random", "n_trials": 6, "at_once": 2, "max_epochs": 2, "numerics": "exact", "sampler": TPE}
    with monkeypatch.context() as patched:
        living.keep_all_files(patched)
        report = tune(tmp_path / "run", **terms)
    whole = (tmp_path / "run" / "journal.jsonl").read_bytes().splitlines(keepends=True)
    events = [json.loads(line) for line in whole]
    wave = next(number for number, event in enumerate(events) if event.get("trial") == 4)
    last = max(number for number, event in enumerate(events[:wave]) if event["event"] == "SectionEnded")
    again = shutil.copytree(tmp_path / "run", tmp_path / "killed")
    (again / "journal.jsonl").write_bytes(b"".join(whole[: last + 1]))
    (again / "study.json").unlink()
    assert tune(again, study_name="run", **terms).parameters == report.parameters


@pytest.mark.parametrize(
    "place", [{"devices": "cpu:1"}, {"policy": "rounds"}, {"packs": "none"}, {"packs": "random(2)"}]
)
def test_what_is_asked_depends_on_no_devices_and_no_packs(tmp_path: Path, place: dict[str, Any]) -> None:
    terms = {"sampler": TPE, "numerics": "exact", "max_epochs": 4, "eta": 2}
    here, there = tune(tmp_path / "here", **terms), tune(tmp_path / "there", **terms, **place)
    assert outcome(here) == outcome(there)
    assert here.parameters == there.parameters


def test_a_trial_that_failed_is_the_worst_that_a_sampler_sees(tmp_path: Path) -> None:
    space = {**SPACE, "width": CategoricalDistribution([10, 10, 2])}
    report = tune(tmp_path, space=space, sampler=Watching, scheduler="random", n_trials=10, max_epochs=1)
    failed = {report.trials[row.name] for row in report.rows if row.status == "failed"}
    assert failed
    known = {number: seen for number, seen in Watching.seen[-1].items() if seen[0] != "RUNNING"}
    assert {number for number, seen in known.items() if seen == ("PRUNED", {})} == failed & known.keys()
    assert [trial.state for trial in report.study.trials if trial.number in failed] == [TrialState.FAIL] * len(failed)


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_a_sequence_over_parameters_that_depend_on_others_does_not_depend_on_when_trials_train(tmp_path: Path) -> None:
    """Optuna takes the space from the first trial that has ended, and without one from all that were asked."""

    def space(trial: Trial) -> None:
        if trial.suggest_categorical("fast", [True, False]):
            trial.suggest_float("lr", 0.1, 0.5)
        else:
            trial.suggest_float("slow_lr", 0.001, 0.01)

    def made(parameters: dict[str, Any]) -> Any:
        return build({"lr": parameters.get("lr", parameters.get("slow_lr"))})

    sampler = partial(QMCSampler, warn_independent_sampling=False)
    terms = {"space": space, "build": made, "sampler": sampler, "scheduler": "random", "n_trials": 8, "max_epochs": 1}
    together, in_turn = (tune(tmp_path / f"{most}", at_once=most, **terms) for most in (None, 1))
    assert together.parameters == in_turn.parameters
    assert len({*map(str, together.parameters.values())}) == 8


def said(**terms: Any) -> list[str]:
    """Return the warnings that a search gives before it begins."""
    settings: dict[str, Any] = {"build": build, "space": SPACE, "data": DATA, "max_epochs": 9, "sampler": TPESampler}
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        Tuner(Search(**{**settings, **terms})).warn()
    return [str(warning.message) for warning in found if "this search" in str(warning.message)]


def test_a_sampler_that_cannot_learn_is_a_warning_that_names_the_setting_that_can() -> None:
    quiet: list[dict[str, Any]] = [
        {"max_epochs": 81},
        {"sampler": None},
        {"sampler": RandomSampler, "brackets": "together"},
        {"sampler": partial(QMCSampler, qmc_type="halton"), "scheduler": "random", "n_trials": 3},
        {"scheduler": "asha", "n_trials": 40},
        {"scheduler": "asha", "n_trials": 40, "at_once": 8},
        {"brackets": "together", "at_once": 6},
    ]
    for terms in quiet:
        assert said(**terms) == [], terms
    words = {
        "remove brackets, or set at_once to a part of the trials": {"brackets": "together"},
        "choose scheduler 'hyperband'": {"scheduler": "pbt", "n_trials": 8},
        "scheduler 'grid' trains every point of the space": {
            "scheduler": "grid",
            "space": {"lr": CategoricalDistribution([0.1, 0.2])},
        },
        "or reduce at_once": {"scheduler": "random", "n_trials": 8, "at_once": 8},
        "or set a smaller n_startup_trials on the sampler": {"scheduler": "asha", "n_trials": 8},
    }
    for word, terms in words.items():
        (message,) = said(**terms)
        assert word in message
        assert "learns nothing" in message


def test_by_default_a_search_learns_where_there_is_enough_to_learn_from() -> None:
    settings: dict[str, Any] = {"build": build, "space": SPACE, "data": DATA}
    learns = [
        {"max_epochs": 27},
        {"max_epochs": 27, "at_once": 4},
        {"max_epochs": 9, "scheduler": "asha", "n_trials": 40},
        {"max_epochs": 9, "scheduler": "median", "n_trials": 40},
    ]
    draws = [
        {"max_epochs": 9},  # too few trials
        {"max_epochs": 27, "brackets": "together"},
        {"max_epochs": 9, "scheduler": "random", "n_trials": 40},
        {"max_epochs": 9, "scheduler": "pbt", "n_trials": 40},
        {"max_epochs": 27, "sampler": RandomSampler},
    ]
    for terms in learns:
        assert Tuner.of(Search(**settings, **terms), []).sampling.sampler is DEFAULT_SAMPLERS[0], terms
    for terms in draws:
        assert Tuner.of(Search(**settings, **terms), []).sampling.sampler not in DEFAULT_SAMPLERS, terms


def test_a_search_goes_on_with_the_sampler_that_it_began_with() -> None:
    """It keeps the sampler when the number of trials changes, also in directories of versions that drew at random by default."""
    settings: dict[str, Any] = {"build": build, "space": SPACE, "data": DATA, "max_epochs": 9, "scheduler": "asha"}
    few, many = (Search(**settings, n_trials=trials) for trials in (8, 40))
    for began, goes_on in ((Tuner.of(few, []), many), (Tuner.of(many, []), few)):
        found = Tuner.of(goes_on, [SearchBegan(terms=began.terms)])
        assert found.terms["sampler"] == began.terms["sampler"]
        assert began.sampling.learns == found.sampling.learns


def test_other_waves_are_another_search_where_the_sampler_learns(tmp_path: Path) -> None:
    terms = {"scheduler": "random", "n_trials": 6, "max_epochs": 1}
    tune(tmp_path / "learns", sampler=Watching, at_once=2, **terms)
    with pytest.raises(RunError, match="at_once: was 2, is now 3"):
        tune(tmp_path / "learns", sampler=Watching, at_once=3, **terms)
    with pytest.raises(RunError, match="at_once: was 2, is now None"):
        tune(tmp_path / "learns", sampler=Watching, **terms)
    tune(tmp_path / "draws", sampler=RandomSampler, at_once=2, **terms)
    assert tune(tmp_path / "draws", sampler=RandomSampler, at_once=3, **terms).run.status == "done"


def test_a_directory_that_does_not_say_its_waves_goes_on(tmp_path: Path) -> None:
    """Directories of earlier versions lack `at_once`; they continue."""
    search = Search(build=build, space=SPACE, data=DATA, max_epochs=1, sampler=Watching, at_once=2)
    terms = Tuner(search).terms
    check_terms({name: value for name, value in terms.items() if name != "at_once"}, terms)


@pytest.mark.parametrize(("scheduler", "ignored"), [("asha", {"brackets": "in-turn"}), ("median", {"eta": 2})])
def test_a_search_that_began_with_a_keyword_without_effect_goes_on(scheduler: str, ignored: dict[str, Any]) -> None:
    """Earlier versions accepted them for all schedulers; they are refused, so the search continues without."""
    search = Search(build=build, space=SPACE, data=DATA, max_epochs=3, scheduler=scheduler, n_trials=4)
    check_terms({**Tuner(search).terms, **ignored}, Tuner(search).terms)
    terms = Tuner(Search(build=build, space=SPACE, data=DATA, max_epochs=3, n_trials=4, sampler=RandomSampler)).terms
    with pytest.raises(RunError, match="brackets: was 'in-turn', is now 'together'"):
        check_terms({**terms, "brackets": "in-turn"}, terms)


def test_a_sampler_whose_package_is_missing_is_one_sentence(tmp_path: Path) -> None:
    class Needy(Watching):
        def sample_relative(self, study: Any, trial: FrozenTrial, search_space: Any) -> dict[str, Any]:
            raise ModuleNotFoundError("No module named 'cmaes'", name="cmaes")

    with pytest.raises(
        StudyError, match=r"sampler: Needy needs cmaes, which is not installed. Install it: pip install cmaes"
    ):
        tune(tmp_path, sampler=Needy)


def searched(seed: int, sampler: Any, scheduler: str = "hyperband", **terms: Any) -> float:
    """Return the least cost that a simulated search finds; a trial costs the more the farther it is from one point, which shows only late."""
    settings = {"build": build, "space": QUALITY, "data": DATA, "max_epochs": 27, "scheduler": scheduler, "seed": seed}
    tuner = Tuner(Search(**{**settings, "sampler": sampler, **terms}))
    machine, sampling, costs = tuner.scheduler, tuner.sampling, list[float]()
    reached: list[int] = []
    for wave in tuner.waves:
        for _ in wave:
            parameters = sampling.ask()[1]
            costs.append(sum((value - 0.3) ** 2 for value in parameters.values()))
            reached.append(0)
        while movable := [t for t, sections in enumerate(reached) if sections < machine.budget(t)]:
            for trial in movable:
                reached[trial] += 1
                # In early sections, trials that learn fast are ahead of better ones.
                cost = costs[trial] + (1 + abs(hash((seed, trial)) % 100) / 100) / reached[trial]
                machine.tell(trial, reached[trial], cost)
                sampling.report(trial, reached[trial], cost)
        for trial in sampling.frozen_trials():
            number = trial.number
            if not trial.state.is_finished() and (machine.out(number) or reached[number] == 27):
                outcome = "pruned" if machine.out(number) else "complete"
                sampling.end(number, outcome, [trial.intermediate_values[reached[number]]])
    return min(costs[trial] for trial, sections in enumerate(reached) if sections == 27)


QUALITY = {name: FloatDistribution(0.0, 1.0) for name in "abcd"}


@pytest.mark.parametrize(
    "terms", [{}, {"scheduler": "asha", "n_trials": 40}, {"scheduler": "random", "n_trials": 30}], ids=str
)
def test_tpe_is_better_than_random_search_by_a_paired_test(terms: dict[str, Any]) -> None:
    differences = [searched(seed, TPESampler, **terms) - searched(seed, None, **terms) for seed in range(10)]
    # By chance, at least eight of ten pairs are better in one of twenty runs.
    assert sum(difference < 0 for difference in differences) >= 8, differences
    assert sum(differences) < 0
