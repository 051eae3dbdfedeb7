"""Sampling with Optuna, which proposes parameters.

Proposed parameters are in the run's journal before anything trains, and the state here is rebuilt from the journal. Trials are sampled in
memory, each with a seed derived from its number, so a search that was killed proposes the same trials again. A sampler sees
every trial that has a result, including resting ones (`TrialStorage`).
"""

import copy
import functools
import inspect
import random
import warnings
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, Literal

from argosy.bindings import unwrap_partials
from argosy.errors import RunError, StudyError
from argosy.errors.checks import check_takes, describe_value
from argosy.errors.traces import user_errors_in
from argosy.stopping import Mode
from argosy.tuning.optuna_package import CONSTRAINTS, DIRECTIONS, optuna, silence_optuna
from argosy.tuning.space import (
    GridKey,
    as_drawn,
    check_distributions,
    check_plain,
    count_values,
    grid_key,
    grid_points,
    list_values,
    neighbor,
)
from argosy.tuning.thompson import REACHED, ThompsonSampler

__all__ = ["DEFAULT_SAMPLERS", "Outcome", "Sampling"]

Outcome = Literal["complete", "pruned", "failed"]
STATES: Mapping[str, optuna.trial.TrialState] = {
    "complete": optuna.trial.TrialState.COMPLETE,
    "pruned": optuna.trial.TrialState.PRUNED,
    "failed": optuna.trial.TrialState.FAIL,
}
"""Optuna's state for each outcome."""
DEFAULT_SAMPLERS = (ThompsonSampler, optuna.samplers.TPESampler)
"""The sampler of searches that learn, and that of earlier versions, which their searches keep."""
INDEPENDENT = (optuna.samplers.RandomSampler, optuna.samplers.QMCSampler)
"""Samplers whose proposals do not depend on results."""
GRIDS = (optuna.samplers.GridSampler, optuna.samplers.BruteForceSampler)
"""Samplers that propose each point once; they look up the used points in the study and draw with one seed."""
STARTUP = "n_startup_trials"
"""Samplers' keyword for the number of trials that they draw at random first."""
FEW = 1000
"""Most values of a parameter that are listed."""


class TrialStorage(optuna.storages.InMemoryStorage):
    """In-memory storage of the trials of one search, which presents them differently while a sampler is asked.

    Optuna's samplers learn nothing from unfinished trials. So a trial that rests at a rung, and may continue, is shown as pruned there,
    with all its values. With several objectives, Optuna has no values of pruned trials, among which TPE takes the first for the best: a
    trial that rests stays running, and `REACHED` has its values. A failed trial is shown as pruned before its first value, which ranks
    below all others. A trial without results is shown as running, which tells samplers with a constant liar that its parameters are
    being tried.
    """

    get_best_trial = optuna.storages.BaseStorage.get_best_trial
    """The lowest number among equals; the storage in memory returns the trial that ended first."""

    def __init__(self) -> None:
        super().__init__()
        self.asking = False
        self.hides = False
        """Whether samplers see all trials as running."""
        self.reached: dict[int, tuple[int, Sequence[float]]] = {}
        """With several objectives: for each trial, its newest number of sections and the values so far."""

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[optuna.trial.TrialState] | None = None
    ) -> list[optuna.trial.FrozenTrial]:
        """Return the trials as they are or, while a sampler is asked, as it should see them."""
        # Optuna looks for enqueued trials while it asks the sampler, and has to find them as they are.
        if not self.asking or states == (optuna.trial.TrialState.WAITING,):
            stored: list[optuna.trial.FrozenTrial] = super().get_all_trials(study_id, deepcopy=deepcopy, states=states)
            return stored
        show = _without_results if self.hides else self._as_shown
        trials = map(show, super().get_all_trials(study_id, deepcopy=deepcopy))
        return [trial for trial in trials if states is None or trial.state in states]

    def _as_shown(self, trial: optuna.trial.FrozenTrial) -> optuna.trial.FrozenTrial:
        reached = self.reached.get(trial.number)
        failed = trial.state == optuna.trial.TrialState.FAIL
        resting = trial.state == optuna.trial.TrialState.RUNNING and trial.intermediate_values
        if not (failed or resting or reached):
            return trial
        shown = copy.copy(trial)
        if failed:
            shown.state, shown.values, shown.intermediate_values = optuna.trial.TrialState.PRUNED, None, {}
        elif reached:
            shown.system_attrs = {**trial.system_attrs, REACHED: reached}
        else:
            shown.state = optuna.trial.TrialState.PRUNED
            shown.value = shown.intermediate_values[max(shown.intermediate_values)]
        return shown


def _without_results(trial: optuna.trial.FrozenTrial) -> optuna.trial.FrozenTrial:
    shown = copy.copy(trial)
    shown.state, shown.values, shown.intermediate_values = optuna.trial.TrialState.RUNNING, None, {}
    return shown


class Sampling:
    """The trials of one search as Optuna knows them, numbered from 0."""

    def __init__(
        self,
        space: Mapping[str, Any] | Callable[[Any], Mapping[str, Any] | None],
        *,
        modes: Sequence[Mode],
        seed: int,
        sampler: Callable[..., Any] | None,
        grid: bool = False,
        first: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self.space = space
        self.modes = modes
        """Mode of each objective."""
        self.seed = seed
        if not callable(space):
            check_distributions(space)
            first = [
                {name: as_drawn(space[name], value) if name in space else value for name, value in one.items()}
                for one in first
            ]
        self.waiting: dict[int, Mapping[str, Any]] = dict(enumerate(first))
        """Enqueued parameters, complete or not, that no trial has used yet, by position in `first`; the next trials take them."""
        self.sampler: Callable[..., Any] = sampler or optuna.samplers.RandomSampler
        _check_sampler(self.sampler, len(modes))
        self.can_learn: bool = not _is_of(self.sampler, *INDEPENDENT)
        """Whether the sampler's proposals depend on results."""
        self.learns: bool = self.can_learn and not grid
        self.in_sequence: bool = not grid and _is_of(self.sampler, optuna.samplers.QMCSampler)
        """Whether trials are consecutive points of one sequence; each trial takes one, even if its parameters are known."""
        self._stores: bool = self.learns and unwrap_partials(self.sampler) not in DEFAULT_SAMPLERS
        """Whether the sampler may store state with a trial that later proposals need, as CMA-ES does."""
        self._shown = TrialStorage()
        with silence_optuna():
            self.study: optuna.Study = optuna.create_study(
                directions=[DIRECTIONS[mode] for mode in modes], storage=self._shown
            )
        self.points: dict[GridKey, dict[str, Any]] | None = grid_points(space) if grid else None
        """Points of a grid that no trial has used yet, in order, by `grid_key`."""
        self._trials: list[optuna.Trial] = []
        self.changed: set[int] = set()
        """Numbers of the trials with changes that are not in Optuna's storage yet."""

    def ask(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the next trial's parameters for the journal, and the argument from which its member is built."""
        if self.points is not None:
            return self.again(next(iter(self.points.values())))
        self._take_sampler()
        place = next(iter(self.waiting), None)
        with user_errors_in("the space, or the sampler that it uses,", "Fix it, and run the same command again."):
            return self._ask() if place is None else self._ask_enqueued(place)

    def _ask_enqueued(self, place: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Ask for a trial with some parameters given; raises StudyError for values that are not in the space."""
        enqueued = dict(self.waiting[place])
        sampled, built_from = self._given(
            enqueued, lambda why: StudyError(f"enqueue[{place}] is {enqueued}, but {why}. Use values of the space.")
        )
        if lacking := [name for name in enqueued if name not in sampled]:
            raise StudyError(
                f"enqueue[{place}] has {lacking[0]!r}, which the space does not suggest; it suggests "
                f"{', '.join(sampled)}. Remove it."
            )
        return sampled, built_from

    @property
    def startup(self) -> int:
        """Number of trials that the sampler draws at random before it learns."""
        parameter = inspect.signature(self.sampler).parameters.get(STARTUP)
        return parameter.default if parameter is not None and isinstance(parameter.default, int) else 0

    def _take_sampler(self) -> None:
        """Make the sampler for the next trial, with the trial's own seed, so that it is the same after a restart.

        A sampler of a sequence keeps the search's seed.
        """
        seed = random.Random(f"{self.seed}/{len(self._trials)}").getrandbits(32)
        if self.in_sequence:
            # Parameters that the sequence does not supply, for example those of the first trial, are drawn with the trial's own seed.
            rest = {"independent_sampler": optuna.samplers.RandomSampler(seed=seed)}
            own = self.sampler.keywords if isinstance(self.sampler, functools.partial) else {}
            self.study.sampler = self.sampler(**{**rest, **own, "seed": self.seed})
        else:
            self.study.sampler = self.sampler(seed=seed)

    def again(self, parameters: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what `ask` does, for a trial with known parameters; raises RunError if the space does not match them.

        A sampler that may store state with the trial is still asked. A sampler of a sequence is asked because it counts points.
        """
        if self.learns or self.in_sequence:
            self._take_sampler()
        else:
            self.study.sampler = optuna.samplers.RandomSampler(seed=self.seed)
        number = len(self._trials)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a space's warnings were shown when the trial was new
            sampled, built_from = self._given(parameters, lambda why: RunError(_format_change(number, parameters, why)))
        if sampled != parameters:
            raise RunError(_format_change(number, parameters, f"the space now has {', '.join(sampled) or 'nothing'}"))
        if self.points is not None:
            self.points.pop(grid_key(sampled), None)
        return sampled, built_from

    def _given(
        self, parameters: Mapping[str, Any], refused: Callable[[str], Exception]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Ask for a trial with these parameters; if they do not fit the space, raise the exception that `refused` makes of the reason."""
        with silence_optuna(), warnings.catch_warnings():
            # Optuna only warns about a value out of range.
            warnings.filterwarnings("error", "Fixed parameter", UserWarning)
            try:
                self.study.enqueue_trial(dict(parameters))
                return self._ask()
            except (UserWarning, ValueError) as error:
                raise refused(str(error).rstrip(".")) from error

    def explored(self, parameters: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
        """Return parameters near these for the next trial: each named one is drawn a fifth lower or higher, or as an adjacent choice."""
        assert isinstance(self.space, Mapping)
        draw = random.Random(f"{self.seed}/{len(self._trials)}")
        return {**parameters, **{name: neighbor(self.space[name], parameters[name], draw) for name in names}}

    @property
    def choices(self) -> dict[str, list[Any]]:
        """Ordered values of the parameters that have at most `FEW`; empty if the space is a function."""
        if callable(self.space):
            return {}
        few = {name: one for name, one in self.space.items() if count_values(one) <= FEW}
        return {name: list_values(name, distribution) for name, distribution in few.items()}

    def report(self, number: int, sections: int, *values: float, constrained: Sequence[float] = ()) -> None:
        """Record a trial's value of each objective after `sections` sections, and its constraint values.

        With several objectives, Optuna accepts no values before a trial is complete.
        """
        self.changed.add(number)
        if len(self.modes) == 1:
            self._trials[number].report(values[0], sections)
        else:
            self._shown.reached[number] = sections, values
        if constrained:
            study = self._shown.get_study_id_from_name(self.study.study_name)
            trial = self._shown.get_trial_id_from_study_id_trial_number(study, number)
            self._shown.set_trial_system_attr(trial, CONSTRAINTS, [*constrained])

    def end(self, number: int, outcome: Outcome, values: Sequence[float]) -> None:
        """Record how a trial ended, and its value of each objective."""
        self.changed.add(number)
        self.study.tell(number, values if outcome == "complete" else None, STATES[outcome])

    def hide_results(self) -> None:
        """Let the sampler see no results, for trials that are not asked in waves: what is known then depends on when others trained."""
        self._shown.hides = True

    def frozen_trials(self) -> list[optuna.trial.FrozenTrial]:
        """Return all trials as they are."""
        return self.study.get_trials(deepcopy=False)

    def _ask(self) -> tuple[dict[str, Any], dict[str, Any]]:
        self._shown.asking = True
        try:
            trial, built_from = self._suggest()
        except ModuleNotFoundError as error:
            raise StudyError(
                f"sampler: {_name(self.sampler)} needs {error.name}, which is not installed. Install it: pip "
                f"install {error.name}."
            ) from error
        finally:
            self._shown.asking = False
        self._trials.append(trial)
        self.changed.add(trial.number)
        sampled = trial.params
        if not callable(self.space):
            # Samplers with values of their own, such as PartialFixedSampler, give these as they are.
            sampled = {name: as_drawn(one, sampled[name]) for name, one in trial.distributions.items()}
        check_plain(sampled)
        try:
            given = dict(sampled if built_from is None else built_from)
        except (TypeError, ValueError) as error:
            raise StudyError(
                f"space: the function returned {describe_value(built_from)}; it must return a dictionary, from which build makes the "
                "trial's member, or nothing."
            ) from error
        if constraints := trial.constraints:
            raise StudyError(
                f"space: it sets the constraints {[*constraints]} of a trial, by which the search would not choose the best "
                "one. Remove set_constraint, and pass constraints= to the search, a function of what a trial has reached."
            )
        # The first enqueued entry that these parameters contain, if any.
        used = next((place for place, waiting in self.waiting.items() if waiting.items() <= sampled.items()), -1)
        self.waiting.pop(used, None)
        return sampled, given

    def _suggest(self) -> tuple[optuna.Trial, Mapping[str, Any] | None]:
        """Return Optuna's next trial, and what the space returns for it if it is a function."""
        trial = self.study.ask() if callable(self.space) else self.study.ask(dict(self.space))
        # The first trial takes no point of a sequence, because the sampler learns the space from that trial.
        if self._stores or (self.in_sequence and self._trials):
            # If all parameters are given, Optuna does not ask the sampler, which may need to store state with the trial for later
            # proposals. Ask it before the trial has parameters, as happens when none are given.
            _ = trial.relative_params
        return trial, self.space(trial) if callable(self.space) else None


def _check_sampler(sampler: Callable[..., Any], objectives: int) -> None:
    if not _is_of(sampler, *GRIDS):
        check_takes(
            "sampler",
            sampler,
            0,
            "a class of optuna.samplers that takes seed=, or a function that does and returns a sampler, for example "
            "lambda seed: PartialFixedSampler({'lr': 0.1}, TPESampler(seed=seed))",
            ("seed",),
        )
    kind = unwrap_partials(sampler)
    if not isinstance(kind, type):
        kind = type(sampler(seed=0))
    if objectives > 1 and issubclass(kind, optuna.samplers.CmaEsSampler):
        raise StudyError(
            "sampler: CmaEsSampler supports only one objective, but there are several; choose TPESampler, "
            "NSGAIISampler or GPSampler."
        )
    if issubclass(kind, GRIDS):
        raise StudyError(
            f"sampler: {kind.__name__} would repeat points and omit others, because each trial has its own sampler "
            "and seed. Remove the sampler, and set scheduler='grid', which trains every point of the space once."
        )


def _is_of(sampler: Callable[..., Any], *kinds: type) -> bool:
    kind = unwrap_partials(sampler)
    return isinstance(kind, type) and issubclass(kind, kinds)


def _name(sampler: Callable[..., Any]) -> str:
    return getattr(unwrap_partials(sampler), "__name__", repr(unwrap_partials(sampler)))


def _format_change(number: int, parameters: Mapping[str, Any], why: str) -> str:
    return (
        f"the space has changed: trial {number} of this directory has {dict(parameters)}, but {why}. Choose "
        "another directory, or undo the change."
    )
