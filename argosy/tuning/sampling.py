"""Sampling with Optuna, which proposes parameters, and a copy of the search in Optuna's storage, for its dashboard. Only this file imports Optuna.

Proposed parameters are in the run's journal before anything trains, and the state here is rebuilt from the journal. Trials are sampled in
memory, each with a seed derived from its number, so a search that was killed proposes the same trials again. A sampler sees
every trial that has a result, including resting ones (`TrialStorage`). The storage is only a copy, and only Argosy writes it; if it
contradicts the journal, it is rewritten.
"""

import contextlib
import copy
import functools
import inspect
import itertools
import math
import os
import queue
import random
import threading
import warnings
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from argosy.bindings import unwrap_partials
from argosy.disk.files import open_append, read_lines, replacing
from argosy.errors import RunError, StudyError
from argosy.errors.checks import check_takes
from argosy.errors.traces import user_errors_in
from argosy.stopping import Mode
from argosy.tuning.search import Store

try:
    import optuna
    from optuna.distributions import BaseDistribution, CategoricalDistribution
    from optuna.storages import InMemoryStorage, JournalStorage
    from optuna.storages.journal import JournalFileBackend
    from optuna.study import StudyDirection
    from optuna.trial import FrozenTrial, TrialState
    from sqlalchemy.exc import SQLAlchemyError
except ModuleNotFoundError as _error:
    raise StudyError(
        "argosy.tune needs Optuna, which is not installed. Install it: pip install 'argosy[tune]'."
    ) from _error

__all__ = ["StorageMirror", "Outcome", "Sampling", "default_sampler", "write_plots"]

Outcome = Literal["complete", "pruned", "failed"]
STATES: Mapping[str, TrialState] = {
    "complete": TrialState.COMPLETE,
    "pruned": TrialState.PRUNED,
    "failed": TrialState.FAIL,
}
"""Optuna's state for each outcome."""
DIRECTIONS: Mapping[str, StudyDirection] = {"min": StudyDirection.MINIMIZE, "max": StudyDirection.MAXIMIZE}
OWNER = "argosy directory"
"""Attribute of a study in a storage that names the directory to which it belongs."""
CONSTRAINTS = "constraints"
"""Attribute under which samplers look for a trial's constraint values."""
GOOD, MOST_GOOD, CANDIDATES = 0.35, 25, 128
"""For several objectives: the fraction of trials that count as good, the maximum number of good ones, and the candidates per proposal."""
INDEPENDENT = (optuna.samplers.RandomSampler, optuna.samplers.QMCSampler)
"""Samplers whose proposals do not depend on results."""
GRIDS = (optuna.samplers.GridSampler, optuna.samplers.BruteForceSampler)
"""Samplers that propose each point once; they look up the used points in the study and draw with one seed."""
STARTUP = "n_startup_trials"
"""Samplers' keyword for the number of trials that they draw at random first."""
PLAIN = (bool, int, float, str, type(None))
"""Types of parameters, as a journal holds them."""
FEW = 1000
"""Most values of a parameter that are listed."""
GridKey = frozenset[tuple[str, Any]]
FACTORS = (0.8, 1.2)
"""Factors by which a clone's numeric parameters change."""


def default_sampler(objectives: int, at_once: int | None) -> Callable[..., Any]:
    """Return TPE, Optuna's default (Bergstra et al., Algorithms for hyper-parameter optimization, 2011), or its variant for several objectives."""
    return optuna.samplers.TPESampler if objectives == 1 or at_once == 1 else ParetoSampler


class ParetoSampler(optuna.samplers.TPESampler):
    """TPE for several objectives, tuned for trials in waves (`benchmarks/pareto.py`): more candidates, and more trials that count as good."""

    # `Sampling.startup` reads the default of `n_startup_trials`.
    def __init__(self, *, n_startup_trials: int = 10, seed: int | None = None) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "`gamma` has been deprecated", FutureWarning)  # it stays until Optuna 6
            super().__init__(
                n_startup_trials=n_startup_trials, seed=seed, gamma=_count_good, n_ei_candidates=CANDIDATES
            )


def _count_good(trials: int) -> int:
    """Return how many of `trials` trials count as good: a Pareto set is wider than one best trial."""
    return min(math.ceil(GOOD * trials), MOST_GOOD)


class StorageMirror:
    """A study in Optuna's storage that shows the trials of one directory.

    Contract. A separate thread writes to the storage, so the search never waits for a disk or a database. Callers pass frozen copies
    of trials, which no longer change. A failed write is reported at the end; nothing is lost, because running the same command
    again writes whatever is missing.
    """

    def __init__(self, directory: Path, store: Store, *, modes: Sequence[Mode]) -> None:
        self.name: str = store.name or directory.resolve().name
        self.modes = modes
        # A file moves with its directory.
        self.owner: str = "this directory" if store.url is None else str(directory.resolve())
        try:
            file = directory / "optuna.log"
            self.storage: Any = JournalStorage(_open_journal(file)) if store.url is None else _open_database(store.url)
            self.study: Any = self._open()
        except (SQLAlchemyError, ImportError, ValueError) as error:
            # The URL is left out, because it may contain a password.
            raise RunError(
                f"Optuna's storage cannot be opened: {str(error).splitlines()[0]}. Choose another, for example "
                "sqlite:///search.db, or omit storage= to use a file in the directory."
            ) from error
        self._known: dict[int, tuple[int, set[int]]] = {}
        """By trial number: its number in the storage, and the steps already reported there."""
        self._news: queue.SimpleQueue[list[FrozenTrial] | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write_news, name="optuna-storage", daemon=True)
        self._failure: Exception | None = None

    def settle(self, trials: list[FrozenTrial]) -> None:
        """Make the storage contain exactly these trials, and start the writer thread."""
        stored = self.study.get_trials(deepcopy=False)
        if any(map(_contradicts, stored, trials)) or len(stored) > len(trials):
            optuna.delete_study(study_name=self.name, storage=self.storage)
            self.study, stored = self._open(), []
        study = self.storage.get_study_id_from_name(self.name)
        for trial in stored:
            number = self.storage.get_trial_id_from_study_id_trial_number(study, trial.number)
            self._known[trial.number] = (number, set(trial.intermediate_values))
        for trial in trials:  # Optuna refuses changes of finished ones
            if not (trial.number < len(stored) and stored[trial.number].state.is_finished()):
                self._write(trial)
        self._writer.start()

    def show(self, trials: list[FrozenTrial]) -> None:
        """Queue trials with new results for writing."""
        self._news.put(trials)

    def close(self) -> None:
        """Wait until everything is written; raises RunError if a write failed."""
        self._news.put(None)
        self._writer.join()
        if self._failure is not None:
            raise RunError(
                f"Optuna's storage of {self.name!r} could not be written: {self._failure}. The search itself is "
                "complete. Run the same command again to write the missing results there."
            ) from self._failure

    def _write_news(self) -> None:
        try:
            while (trials := self._news.get()) is not None:
                for trial in trials:
                    self._write(trial)
        except Exception as error:  # this ends the thread; `close` reports it
            self._failure = error

    def _write(self, trial: FrozenTrial) -> None:
        if trial.number not in self._known:
            study = self.storage.get_study_id_from_name(self.name)
            number = self.storage.create_new_trial(study, template_trial=trial)
            self._known[trial.number] = (number, set(trial.intermediate_values))
            return
        number, steps = self._known[trial.number]
        for step in sorted(trial.intermediate_values.keys() - steps):
            self.storage.set_trial_intermediate_value(number, step, trial.intermediate_values[step])
            steps.add(step)
        if CONSTRAINTS in trial.system_attrs:
            self.storage.set_trial_system_attr(number, CONSTRAINTS, trial.system_attrs[CONSTRAINTS])
        if trial.state.is_finished():
            self.storage.set_trial_state_values(number, trial.state, trial.values)

    def _open(self) -> optuna.Study:
        with _silence_optuna():
            study = optuna.create_study(
                storage=self.storage,
                study_name=self.name,
                directions=[DIRECTIONS[mode] for mode in self.modes],
                sampler=optuna.samplers.RandomSampler(),
                load_if_exists=True,
            )
        owner = study.user_attrs.get(OWNER)
        if owner is None and not study.get_trials(deepcopy=False):
            study.set_user_attr(OWNER, self.owner)
        elif owner != self.owner:
            raise RunError(
                f"the storage has a study {self.name!r} that belongs to {owner or 'another program'}, not to the "
                "search in this directory. Choose another study_name."
            )
        return study


class TrialStorage(InMemoryStorage):
    """In-memory storage of the trials of one search, which presents them differently while a sampler is asked.

    Optuna's samplers learn nothing from unfinished trials. So a trial that rests at a rung, and may continue, is shown as pruned there,
    with all its values. A failed trial is shown as pruned before its first value, which ranks below all others. A trial without
    results is shown as running, which tells samplers with a constant liar that its parameters are being tried.
    """

    def __init__(self) -> None:
        super().__init__()
        self.asking = False

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        """Return the trials as they are or, while a sampler is asked, as it should see them."""
        # Optuna looks for enqueued trials while it asks the sampler, and has to find them as they are.
        if not self.asking or states == (TrialState.WAITING,):
            stored: list[FrozenTrial] = super().get_all_trials(study_id, deepcopy=deepcopy, states=states)
            return stored
        trials = map(_as_shown, super().get_all_trials(study_id, deepcopy=deepcopy))
        return [trial for trial in trials if states is None or trial.state in states]


def _as_shown(trial: FrozenTrial) -> FrozenTrial:
    failed = trial.state == TrialState.FAIL
    if not failed and not (trial.state == TrialState.RUNNING and trial.intermediate_values):
        return trial
    shown = copy.copy(trial)
    shown.state = TrialState.PRUNED
    if failed:
        shown.values, shown.intermediate_values = None, {}
    else:
        shown.value = shown.intermediate_values[max(shown.intermediate_values)]
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
        self.waiting: dict[int, Mapping[str, Any]] = dict(enumerate(first))
        """Enqueued parameters, complete or not, that no trial has used yet, by position in `first`; the next trials take them."""
        self.sampler: Callable[..., Any] = sampler or optuna.samplers.RandomSampler
        _check_sampler(self.sampler, len(modes))
        self.can_learn: bool = not _is_of(self.sampler, *INDEPENDENT)
        """Whether the sampler's proposals depend on results."""
        self.learns: bool = self.can_learn and not grid
        self.in_sequence: bool = not grid and _is_of(self.sampler, optuna.samplers.QMCSampler)
        """Whether trials are consecutive points of one sequence; each trial takes one, even if its parameters are known."""
        self._shown = TrialStorage()
        with _silence_optuna():
            self.study: optuna.Study = optuna.create_study(
                directions=[DIRECTIONS[mode] for mode in modes], storage=self._shown
            )
        self.points: dict[GridKey, dict[str, Any]] | None = _grid_points(space) if grid else None
        """Points of a grid that no trial has used yet, in order, by `_grid_key`."""
        self._trials: list[optuna.Trial] = []
        self.changed: set[int] = set()
        """Numbers of the trials with changes that are not in Optuna's storage yet."""
        if not callable(space):
            _check_distributions(space)

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
            bound = {"independent_sampler": optuna.samplers.RandomSampler(seed=seed), **_bound(self.sampler)}
            self.study.sampler = self.sampler(**{**bound, "seed": self.seed})
        else:
            self.study.sampler = self.sampler(seed=seed)

    def again(self, parameters: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what `ask` does, for a trial with known parameters; raises RunError if the space does not match them.

        A sampler that learns is still asked, because it may store state with a trial that later proposals need, as CMA-ES does. A
        sampler of a sequence is asked because it counts points.
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
            self.points.pop(_grid_key(sampled), None)
        return sampled, built_from

    def _given(
        self, parameters: Mapping[str, Any], refused: Callable[[str], Exception]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Ask for a trial with these parameters; if they do not fit the space, raise the exception that `refused` makes of the reason."""
        with _silence_optuna(), warnings.catch_warnings():
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
        return {**parameters, **{name: _neighbor(self.space[name], parameters[name], draw) for name in names}}

    @property
    def choices(self) -> dict[str, list[Any]]:
        """Ordered values of the parameters that have at most `FEW`; empty if the space is a function."""
        if callable(self.space):
            return {}
        distributions = {name: distribution for name, distribution in self.space.items() if _count(distribution) <= FEW}
        return {name: _values(name, distribution) for name, distribution in distributions.items()}

    def report(self, number: int, sections: int, value: float, constrained: Sequence[float] = ()) -> None:
        """Record a trial's value after `sections` sections, and its constraint values.

        With several objectives, Optuna accepts no values before a trial is complete.
        """
        self.changed.add(number)
        if len(self.modes) == 1:
            self._trials[number].report(value, sections)
        if constrained:
            study = self._shown.get_study_id_from_name(self.study.study_name)
            trial = self._shown.get_trial_id_from_study_id_trial_number(study, number)
            self._shown.set_trial_system_attr(trial, CONSTRAINTS, [*constrained])

    def end(self, number: int, outcome: Outcome, values: Sequence[float]) -> None:
        """Record how a trial ended, and its value of each objective."""
        self.changed.add(number)
        self.study.tell(number, values if outcome == "complete" else None, STATES[outcome])

    def frozen_trials(self) -> list[FrozenTrial]:
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
        strange = {name: value for name, value in trial.params.items() if not isinstance(value, PLAIN)}
        if strange or not trial.params:
            raise StudyError(
                "space: a trial's parameters must be numbers, strings, bools or None; found "
                f"{strange or 'none at all'}. Suggest a name or a number, and let build map it to the value."
            )
        self._drop_waiting(trial.params)
        return trial.params, dict(trial.params if built_from is None else built_from)

    def _drop_waiting(self, parameters: Mapping[str, Any]) -> None:
        """Remove the first enqueued entry that these parameters contain."""
        place = next((place for place, waiting in self.waiting.items() if waiting.items() <= parameters.items()), None)
        if place is not None:
            del self.waiting[place]

    def _suggest(self) -> tuple[optuna.Trial, Mapping[str, Any] | None]:
        """Return Optuna's next trial, and what the space returns for it if it is a function."""
        trial = self.study.ask() if callable(self.space) else self.study.ask(dict(self.space))
        # The first trial takes no point of a sequence, because the sampler learns the space from that trial.
        if self.learns or (self.in_sequence and self._trials):
            # If all parameters are given, Optuna does not ask the sampler, which may need to store state with the trial for later
            # proposals. Ask it before the trial has parameters, as happens when none are given.
            _ = trial.relative_params
        return trial, self.space(trial) if callable(self.space) else None


def _check_sampler(sampler: Callable[..., Any], objectives: int) -> None:
    kind = unwrap_partials(sampler)
    if not isinstance(kind, type):
        check_takes(
            "sampler",
            sampler,
            0,
            "a class of optuna.samplers, or a function that takes seed= and returns a sampler",
            ("seed",),
        )
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


def _bound(sampler: Callable[..., Any]) -> Mapping[str, Any]:
    return sampler.keywords if isinstance(sampler, functools.partial) else {}


def _name(sampler: Callable[..., Any]) -> str:
    return getattr(unwrap_partials(sampler), "__name__", repr(unwrap_partials(sampler)))


def _open_journal(path: Path) -> JournalFileBackend:
    """Return Optuna's journal file, after removing what a killed driver may have left: a lock, and an incomplete last line.

    The file is created here, because Optuna would follow a symbolic link and let the umask decide who may write it.
    """
    path.with_name(f"{path.name}.lock").unlink(missing_ok=True)
    with open_append(path) as file:
        os.ftruncate(file.fileno(), sum(len(line) + 1 for line in read_lines(path)))
    return JournalFileBackend(str(path.resolve()))


def _open_database(url: str) -> Any:
    with _silence_optuna():
        return optuna.storages.get_storage(url)


def _contradicts(there: FrozenTrial, here: FrozenTrial) -> bool:
    """Return whether the stored trial can no longer become `here`."""
    if there.params != here.params:
        return True
    ended = there.state.is_finished()
    return ended and _final_state(there) != _final_state(here)


def _final_state(trial: FrozenTrial) -> tuple[Any, ...]:
    return trial.state, trial.values, trial.intermediate_values, trial.system_attrs.get(CONSTRAINTS)


def _format_change(number: int, parameters: Mapping[str, Any], why: str) -> str:
    return (
        f"the space has changed: trial {number} of this directory has {dict(parameters)}, but {why}. Choose "
        "another directory, or undo the change."
    )


def _check_distributions(space: Mapping[str, Any]) -> None:
    for name, distribution in space.items():
        if not isinstance(distribution, BaseDistribution):
            raise StudyError(
                f"space: {name!r} is {distribution!r}; it must be a distribution of Optuna, for example "
                "FloatDistribution(1e-4, 1e-1, log=True) or CategoricalDistribution(['sgd', 'adam'])."
            )


def _grid_points(space: Any) -> dict[GridKey, dict[str, Any]]:
    """Return all points of a finite space, the last parameter changing fastest."""
    if callable(space):
        raise StudyError(
            "scheduler 'grid' needs a space of named distributions, but space is a function. Pass a dictionary."
        )
    _check_distributions(space)
    axes = {name: _values(name, distribution) for name, distribution in space.items()}
    points = (dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values()))
    return {_grid_key(point): point for point in points}


def _grid_key(point: Mapping[str, Any]) -> GridKey:
    """Return a key for a point of a grid; floats are rounded, so that 0.30000000000000004 equals 0.3."""
    rounded = {name: float(f"{value:.12g}") if isinstance(value, float) else value for name, value in point.items()}
    return frozenset(rounded.items())


def _values(name: str, distribution: Any) -> list[Any]:
    if isinstance(distribution, CategoricalDistribution):
        return list(distribution.choices)
    if distribution.step is None:
        raise StudyError(
            f"scheduler 'grid': {name!r} has infinitely many values. Set step=, or use a choice of values."
        )
    low, high, step = distribution.low, distribution.high, distribution.step
    return [min(low + number * step, high) for number in range(int(_count(distribution)))]


def _neighbor(distribution: Any, value: Any, draw: random.Random) -> Any:
    """Return a neighbouring value of the distribution, or `value` itself if there is none."""
    if isinstance(distribution, CategoricalDistribution):
        place = distribution.choices.index(value)
        beside = [*distribution.choices[max(place - 1, 0) : place], *distribution.choices[place + 1 : place + 2]]
        return draw.choice(beside) if beside else value
    for factor in draw.sample(FACTORS, 2):  # both, because at the end of a range the first may change nothing
        change, step = value * (factor - 1.0), distribution.step
        if step is not None:
            # At least one step.
            change = (round(change / step) or math.copysign(1, factor - 1.0)) * step
        neighbor = type(value)(min(max(value + change, distribution.low), distribution.high))
        if neighbor != value:
            return neighbor
    return value


def _count(distribution: Any) -> float:
    """Return the number of values of a distribution; infinite if it has no step."""
    if isinstance(distribution, CategoricalDistribution):
        return len(distribution.choices)
    if distribution.step is None:
        return math.inf
    steps: float = (distribution.high - distribution.low) / distribution.step
    return round(steps) + 1


def write_plots(study: optuna.Study, path: Path) -> None:
    """Write Optuna's plots of a study to one page; raises StudyError without plotly."""
    if not optuna.visualization.is_available():
        raise StudyError(
            "plots of a search need plotly, which is not installed. Install it: pip install 'argosy[tune]'."
        )
    history = optuna.visualization.plot_optimization_history(study)
    parallel = optuna.visualization.plot_parallel_coordinate(study)
    pages = (history.to_html(full_html=False), parallel.to_html(full_html=False, include_plotlyjs=False))
    with replacing(path) as file:
        file.write("\n".join(['<meta charset="utf-8">', *pages]).encode())


@contextlib.contextmanager
def _silence_optuna() -> Iterator[None]:
    """Silence Optuna's log lines about new studies and trials."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)
