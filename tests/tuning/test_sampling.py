"""Tests that parameters are Optuna's, each under a seed derived from its trial's number, so that a later driver proposes the same."""

import json
import math
import warnings
from functools import partial
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from argosy.errors import RunError, StudyError
from argosy.tuning.sampling import DEFAULT_SAMPLERS, Sampling


def made() -> Sampling:
    sampler = partial(optuna.samplers.TPESampler, n_startup_trials=5)
    return Sampling({"x": FloatDistribution(0.0, 1.0)}, modes=["min"], seed=3, sampler=sampler)


def end(sampling: Sampling, number: int, x: float) -> None:
    sampling.report(number, 1, (x - 0.3) ** 2)
    sampling.end(number, "complete", [(x - 0.3) ** 2])


def test_a_sampler_that_learns_does_so_and_goes_on_after_a_restart_as_it_would_have() -> None:
    sampling, found = made(), list[float]()
    for number in range(30):
        found.append(sampling.ask()[0]["x"])
        end(sampling, number, found[-1])
    apart = [abs(x - 0.3) for x in found]
    assert sum(apart[15:]) < sum(apart[:15]) * 0.7
    later = made()
    for number, x in enumerate(found[:20]):
        assert later.again({"x": x}) == ({"x": x}, {"x": x})
        end(later, number, x)
    for number, x in enumerate(found[20:], start=20):
        assert later.ask()[0]["x"] == x
        end(later, number, x)


def test_trials_of_several_objectives_that_rest_are_known_to_the_default_sampler_with_their_constraints() -> None:
    """Under `asha` no trial is complete before all have begun, and Optuna keeps no values of others with several objectives."""
    space = {name: FloatDistribution(0.0, 1.0) for name in "xy"}
    sampling, found = Sampling(space, modes=["min", "max"], seed=1, sampler=DEFAULT_SAMPLERS[0]), list[dict[str, Any]]()
    for wave in (0, 20, 40):
        found += [sampling.ask()[0] for _ in range(20)]
        for number in range(wave, wave + 20):
            x, y = found[number].values()
            sampling.report(number, 1, x, y, constrained=[x - 0.5])
            if y > 0.7:  # the worst of all, whether or not it meets the constraint
                sampling.end(number, "failed", ())
            elif number % 3:
                sampling.end(number, "pruned", ())
    late = found[40:]
    assert sum(one["x"] < 0.5 for one in late) > 15 and sum(one["y"] < 0.7 for one in late) > 15


def test_of_trials_of_several_objectives_that_rest_tpe_does_not_take_the_first_for_the_best() -> None:
    """Their values are unknown to it, and among trials without values it prefers those that came first."""
    found = []
    for reports in (False, True):
        sampling = Sampling(
            {"x": FloatDistribution(0.0, 1.0)}, modes=["min", "max"], seed=1, sampler=optuna.samplers.TPESampler
        )
        for number in range(20):
            sampling.ask()
            if reports:
                sampling.report(number, 1, 0.0, 0.0)
        found.append(sampling.ask())
    assert found[0] == found[1]


def test_a_failed_trial_is_shown_to_samplers_of_optuna_with_its_constraints() -> None:
    """TPE would otherwise count it among those that violate none."""
    sampling = Sampling({"x": FloatDistribution(0.0, 1.0)}, modes=["min"], seed=1, sampler=optuna.samplers.TPESampler)
    sampling.ask()
    sampling.report(0, 1, 0.5, constrained=[2.0])
    sampling.end(0, "failed", ())
    sampling._shown.asking = True
    (trial,) = sampling.frozen_trials()
    assert (trial.state.name, trial.intermediate_values, [*trial.constraints.values()]) == ("PRUNED", {}, [2.0])


def test_the_trials_of_an_earlier_driver_are_not_sampled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two thousand proposals of the default sampler would take minutes."""
    space = {"x": FloatDistribution(0.0, 1.0)}
    first, later = (Sampling(space, modes=["min"], seed=3, sampler=DEFAULT_SAMPLERS[0]) for _ in range(2))
    found = [first.ask()[0]["x"] for _ in range(10)]
    for number, x in enumerate(found):
        end(first, number, x)
        later.again({"x": x})
        end(later, number, x)
    found.append(first.ask()[0]["x"])
    with monkeypatch.context() as patched:
        patched.setattr(DEFAULT_SAMPLERS[0], "sample_relative", None)
        later.again({"x": found[-1]})
    assert later.ask() == first.ask()


def warning(trial: optuna.Trial) -> None:
    """A space that raises a FutureWarning, as users' spaces and Optuna itself do."""
    warnings.warn("there will be another name for it", FutureWarning, stacklevel=1)
    trial.suggest_int("units", 16, 100, step=16)


@pytest.mark.filterwarnings("ignore")
def test_a_space_may_warn_of_the_trials_that_it_has_as_of_others() -> None:
    asked = Sampling(warning, modes=["min"], seed=3, sampler=None).ask()
    assert Sampling(warning, modes=["min"], seed=3, sampler=None).again(asked[0]) == asked


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("space", "match"),
    [
        ({"units": IntDistribution(32, 64)}, "units with value 16 is out of range"),
        ({"units": IntDistribution(64, 64)}, "units with value 16 is out of range"),
        ({"units": IntDistribution(0, 30, step=5)}, "units with value 16 is out of range"),
        ({"units": FloatDistribution(0.0, 1.0)}, "units with value 16 is out of range"),
        ({"units": CategoricalDistribution([8, 32])}, r"not in \(8, 32\)"),
        ({"width": IntDistribution(16, 64)}, "the space now has width"),
        ({"units": IntDistribution(16, 64), "depth": IntDistribution(1, 2)}, "the space now has units, depth"),
    ],
)
def test_a_trial_that_the_space_would_not_have_is_refused(space: dict[str, Any], match: str) -> None:
    with pytest.raises(
        RunError, match=rf"the space has changed: trial 0 of this directory has {{'units': 16}}, but .*{match}"
    ):
        Sampling(space, modes=["min"], seed=3, sampler=None).again({"units": 16})


def test_a_grid_that_has_grown_goes_on_with_the_points_that_no_trial_has() -> None:
    def grid(units: list[int], high: float) -> Sampling:
        space = {"units": CategoricalDistribution(units), "lr": FloatDistribution(0.1, high, step=0.1)}
        return Sampling(space, modes=["min"], seed=3, sampler=None, grid=True)

    first, later = grid([16, 64], 0.3), grid([16, 64, 256], 0.5)
    found = [first.ask()[0] for _ in range(5)]
    for parameters in found:
        assert later.again(parameters)[0] == parameters
    found += [later.ask()[0] for _ in range(10)]
    points = [(parameters["units"], round(parameters["lr"], 6)) for parameters in found]
    assert sorted(points) == [(units, lr) for units in (16, 64, 256) for lr in (0.1, 0.2, 0.3, 0.4, 0.5)]
    assert points[5:9] == [(16, 0.4), (16, 0.5), (64, 0.3), (64, 0.4)]


TWO = {"x": FloatDistribution(0.0, 1.0), "units": IntDistribution(1, 8)}


def test_trials_that_are_enqueued_come_first_and_what_they_leave_out_is_sampled() -> None:
    first = [{"x": 0.25, "units": 3}, {"x": 0.75}]
    sampling = Sampling(TWO, modes=["min"], seed=3, sampler=None, first=first)
    found = [sampling.ask()[0] for _ in range(4)]
    assert found[0] == first[0]
    assert found[1]["x"] == 0.75 and 1 <= found[1]["units"] <= 8
    # Later trials are those of a search without given first ones, and a restarted search proposes the same again.
    plain, later = (Sampling(TWO, modes=["min"], seed=3, sampler=None, first=given) for given in ((), first))
    assert [plain.ask()[0] for _ in range(4)][2:] == found[2:]
    assert [later.again(one)[0] for one in found[:2]] == found[:2]
    assert [later.ask()[0] for _ in range(2)] == found[2:]


def test_trials_that_are_enqueued_alike_are_as_many_after_a_restart() -> None:
    first = [{"x": 0.5}, {"x": 0.5}, {"x": 0.25}]
    whole, later = (Sampling(TWO, modes=["min"], seed=3, sampler=None, first=first) for _ in range(2))
    found = [whole.ask()[0] for _ in range(4)]
    assert [one["x"] for one in found[:3]] == [0.5, 0.5, 0.25]
    later.again(found[0])
    assert [later.ask()[0] for _ in range(3)] == found[1:]


@pytest.mark.parametrize(
    ("space", "first", "match"),
    [
        (TWO, {"x": 2.0}, "Use values of the space"),
        ({"units": IntDistribution(1, 8)}, {"units": "inf"}, "Use values of the space"),
        (lambda trial: {"lr": trial.suggest_float("lr", 0.1, 0.2)}, {"depth": 2}, "does not suggest"),
    ],
)
def test_trials_that_are_enqueued_are_of_the_space(space: Any, first: dict[str, Any], match: str) -> None:
    with pytest.raises(StudyError, match=match):
        Sampling(space, modes=["min"], seed=3, sampler=None, first=[first]).ask()


def test_numbers_that_are_enqueued_are_of_the_kind_that_the_space_draws() -> None:
    space = {"x": FloatDistribution(0.0, 9.0), "units": IntDistribution(1, 8), "few": CategoricalDistribution([1, 2])}
    first = [{"x": 1, "units": 3.0, "few": np.int64(2)}, {"units": True}, {"x": "1e-3", "units": np.int64(5)}]
    sampling, later = (Sampling(space, modes=["min"], seed=3, sampler=None, first=first) for _ in range(2))
    found = [sampling.ask()[1] for _ in range(4)]
    assert repr(found[0]) == "{'x': 1.0, 'units': 3, 'few': 2}"
    assert [repr(one["units"]) for one in found[:3]] == ["3", "1", "5"]
    assert repr(found[2]["x"]) == "0.001"
    assert [later.again(one)[1] for one in found[:3]] == found[:3]
    assert later.ask()[1] == found[3]
    copied = [trial.system_attrs["fixed_params"] for trial in sampling.frozen_trials()[:3]]
    assert json.loads(json.dumps(copied)) == copied  # NumPy's numbers have no place in Optuna's journal


@pytest.mark.parametrize("fixed", [5.0, np.int64(5)])
def test_numbers_that_a_sampler_has_of_its_own_are_of_the_kind_that_the_space_draws(fixed: Any) -> None:
    def sampler(seed: int) -> Any:
        with warnings.catch_warnings(action="ignore"):  # it is experimental
            return optuna.samplers.PartialFixedSampler({"units": fixed}, optuna.samplers.RandomSampler(seed=seed))

    sampling = Sampling({"units": IntDistribution(1, 8)}, modes=["min"], seed=3, sampler=sampler)
    assert repr(sampling.ask()[1]) == "{'units': 5}"


@pytest.mark.parametrize("choices", [[0, 1, True], [0.5, math.nan], [0.0, -0.0], [1, 1.0]])
def test_choices_that_would_count_as_each_other_are_refused(choices: list[Any]) -> None:
    """A grid left one of them out, and trained the other in its place."""
    for grid in (True, False):
        with pytest.raises(StudyError, match=f"the choice {choices[-1]!r}, which"):
            Sampling({"x": CategoricalDistribution(choices)}, modes=["min"], seed=3, sampler=None, grid=grid)
    Sampling({"x": CategoricalDistribution(["a", "a", None, "1", 1])}, modes=["min"], seed=3, sampler=None)


@pytest.mark.parametrize(
    "sampler",
    [
        partial(optuna.samplers.GridSampler, {"units": [1, 2]}),
        lambda seed: optuna.samplers.GridSampler({"units": [1, 2]}, seed=seed),
        optuna.samplers.BruteForceSampler,
    ],
)
def test_samplers_that_are_grids_are_refused_for_the_scheduler_that_is_one(sampler: Any) -> None:
    with pytest.raises(StudyError, match=r"would repeat points .* set scheduler='grid'"):
        Sampling({"units": IntDistribution(1, 2)}, modes=["min"], seed=3, sampler=sampler)


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_a_sampler_without_a_seed_is_refused_unless_a_function_gives_it_one() -> None:
    kind, space = optuna.samplers.PartialFixedSampler, {"x": FloatDistribution(0.0, 1.0)}
    with pytest.raises(StudyError, match=r"PartialFixedSampler, which cannot be called .* lambda seed:"):
        Sampling(space, modes=["min"], seed=3, sampler=partial(kind, {"x": 0.5}, optuna.samplers.RandomSampler()))
    fixed = Sampling(
        space,
        modes=["min"],
        seed=3,
        sampler=lambda seed: kind({"x": 0.5}, optuna.samplers.RandomSampler(seed=seed)),
    )
    assert fixed.ask()[0] == {"x": 0.5}


def sequence(**bound: Any) -> Sampling:
    sampler = partial(optuna.samplers.QMCSampler, **bound)
    return Sampling({"x": FloatDistribution(0.0, 1.0)}, modes=["min"], seed=3, sampler=sampler)


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
@pytest.mark.parametrize("bound", [{}, {"scramble": True}, {"qmc_type": "halton", "scramble": True}], ids=str)
def test_a_quasi_random_sequence_is_one_for_the_whole_search_and_goes_on_where_it_was(bound: dict[str, Any]) -> None:
    whole, later = sequence(**bound), sequence(**bound)
    found = [whole.ask()[0] for _ in range(17)]
    assert len({int(one["x"] * 16) for one in found[1:]}) == 16
    assert [later.again(one)[0] for one in found[:5]] == found[:5]
    assert [later.ask()[0] for _ in range(12)] == found[5:]


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_a_quasi_random_sequence_goes_on_where_some_parameters_depend_on_others() -> None:
    def suggest(trial: optuna.Trial) -> None:
        for layer in range(trial.suggest_int("layers", 1, 2)):
            trial.suggest_int(f"units{layer}", 1, 64)

    whole, later = (
        Sampling(suggest, modes=["min"], seed=0, sampler=optuna.samplers.QMCSampler) for _ in ("whole", "later")
    )
    found = [whole.ask()[0] for _ in range(9)]
    assert {len(one) for one in found[:4]} == {2, 3}
    assert [later.again(one)[0] for one in found[:4]] == found[:4]
    assert [later.ask()[0] for _ in range(5)] == found[4:]


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_what_is_outside_of_a_quasi_random_sequence_is_drawn_for_each_trial() -> None:
    def suggest(trial: optuna.Trial) -> None:
        trial.suggest_float("x", 0.0, 1.0)
        if trial.number:
            trial.suggest_float("y", 0.0, 1.0)

    sampler = partial(optuna.samplers.QMCSampler, warn_independent_sampling=False)
    sampling = Sampling(suggest, modes=["min"], seed=3, sampler=sampler)
    assert len({sampling.ask()[0].get("y") for _ in range(8)}) == 8


def test_a_constraint_of_optuna_which_would_choose_another_best_trial_is_refused() -> None:
    def space(trial: optuna.Trial) -> None:
        trial.set_constraint("small", trial.suggest_float("x", 0.1, 0.2) - 0.05)

    with pytest.raises(StudyError, match=r"it sets the constraints \['small'\] .* pass constraints= to the search"):
        Sampling(space, modes=["min"], seed=3, sampler=optuna.samplers.RandomSampler).ask()


def test_a_grid_takes_a_range_of_one_value() -> None:
    space = {"lr": FloatDistribution(0.1, 0.1), "width": IntDistribution(8, 16, step=8)}
    sampling = Sampling(space, modes=["min"], seed=0, sampler=None, grid=True)
    assert [sampling.ask()[0] for _ in range(2)] == [{"lr": 0.1, "width": 8}, {"lr": 0.1, "width": 16}]


def test_a_space_may_return_what_dict_takes() -> None:
    """As ``ml_collections.ConfigDict``, which is no Mapping."""

    class Config:
        def keys(self) -> list[str]:
            return ["width"]

        def __getitem__(self, name: str) -> int:
            return 8

    def space(trial: optuna.Trial) -> Any:
        trial.suggest_float("lr", 0.1, 0.1)
        return Config()

    sampling = Sampling(space, modes=["min"], seed=3, sampler=optuna.samplers.RandomSampler)
    assert sampling.ask() == ({"lr": 0.1}, {"width": 8})
