"""Optuna's part: it proposes parameters, and its storage shows the search to its dashboard. The only file that imports it.

What was proposed is in the run's journal before anything trains, and all that is here follows from that: trials are sampled in
memory, each under a seed of its own number, so that a search that was killed proposes the same ones again. A sampler is shown
every trial that has reached something, those that rest included (`Shown`). The storage is a copy
that Argosy alone writes; where it is not what the journal says, it is written anew.
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

from argosy.bindings import called
from argosy.disk.files import appending, lines_of, replacing
from argosy.errors import RunError, StudyError
from argosy.errors.checks import check_takes
from argosy.errors.traces import mistakes_in
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

__all__ = ["Copy", "Outcome", "Sampling", "default_sampler", "write_plots"]

Outcome = Literal["complete", "pruned", "failed"]
STATES: Mapping[str, TrialState] = {
    "complete": TrialState.COMPLETE,
    "pruned": TrialState.PRUNED,
    "failed": TrialState.FAIL,
}
DIRECTIONS: Mapping[str, StudyDirection] = {"min": StudyDirection.MINIMIZE, "max": StudyDirection.MAXIMIZE}
OWNER = "argosy directory"
CONSTRAINTS = "constraints"
"""Attribute under which samplers look for what the constraints say of a trial."""
GOOD, MOST_GOOD, CANDIDATES = 0.35, 25, 128
"""Of several objectives: share of the trials that count as good ones, the most of them, and proposals of which one is taken."""
INDEPENDENT = (optuna.samplers.RandomSampler, optuna.samplers.QMCSampler)
"""Samplers that propose the same whatever trials have reached."""
GRIDS = (optuna.samplers.GridSampler, optuna.samplers.BruteForceSampler)
"""Samplers that propose each point once, of which they ask the study and draw under one seed."""
STARTUP = "n_startup_trials"
"""What samplers call the number of trials that they draw at random first."""
PLAIN = (bool, int, float, str, type(None))
FEW = 1000
Place = frozenset[tuple[str, Any]]
FACTORS = (0.8, 1.2)
"""Factors by which a population's numbers change."""


def default_sampler(objectives: int, at_once: int | None) -> Callable[..., Any]:
    """Return Optuna's own default (Bergstra et al., Algorithms for hyper-parameter optimization, 2011), or that for several objectives in waves."""
    return optuna.samplers.TPESampler if objectives == 1 or at_once == 1 else ParetoSampler


class ParetoSampler(optuna.samplers.TPESampler):
    """TPE for several objectives, with numbers that suit trials in waves (`benchmarks/pareto.py`): many proposals, and many good trials."""

    def __init__(self, *, n_startup_trials: int = 10, seed: int | None = None) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "`gamma` has been deprecated", FutureWarning)  # it stays until Optuna 6
            super().__init__(n_startup_trials=n_startup_trials, seed=seed, gamma=_good, n_ei_candidates=CANDIDATES)


def _good(trials: int) -> int:
    """Return how many of so many trials count as good: a Pareto set is wider than one best trial."""
    return min(math.ceil(GOOD * trials), MOST_GOOD)


class Copy:
    """A study in Optuna's storage that shows the trials of one directory.

    Contract. A thread of its own writes there, so that the search never waits for a disk or a database; callers leave the newest
    frozen states of trials, which do not change any more. A write that fails is reported at the end, when nothing is lost by it:
    the same command writes everything that is missing.
    """

    def __init__(self, directory: Path, store: Store, *, modes: Sequence[Mode]) -> None:
        self.name: str = store.name or directory.resolve().name
        self.modes = modes
        # A file moves with its directory.
        self.owner: str = "this directory" if store.url is None else str(directory.resolve())
        try:
            file = directory / "optuna.log"
            self.storage: Any = JournalStorage(_file(file)) if store.url is None else _database(store.url)
            self.study: Any = self._open()
        except (SQLAlchemyError, ImportError, ValueError) as error:
            # Without the address, in which there may be a password.
            raise RunError(
                f"Optuna's storage cannot be opened: {str(error).splitlines()[0]}. Choose another, for example "
                "sqlite:///search.db, or omit storage= to use a file in the directory."
            ) from error
        self._known: dict[int, tuple[int, set[int]]] = {}
        """By a trial's number: its number in the storage, and the steps that are reported there."""
        self._news: queue.SimpleQueue[list[FrozenTrial] | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write_news, name="optuna-storage", daemon=True)
        self._failure: Exception | None = None

    def settle(self, trials: list[FrozenTrial]) -> None:
        """Let the storage hold these trials and no others."""
        there = self.study.get_trials(deepcopy=False)
        if any(map(_contradicts, there, trials)) or len(there) > len(trials):
            optuna.delete_study(study_name=self.name, storage=self.storage)
            self.study, there = self._open(), []
        study = self.storage.get_study_id_from_name(self.name)
        for trial in there:
            number = self.storage.get_trial_id_from_study_id_trial_number(study, trial.number)
            self._known[trial.number] = (number, set(trial.intermediate_values))
        for trial in trials:
            if not (trial.number < len(there) and there[trial.number].state.is_finished()):
                self._write(trial)
        self._writer.start()

    def show(self, trials: list[FrozenTrial]) -> None:
        """Write trials that have got further, soon."""
        self._news.put(trials)

    def close(self) -> None:
        """Wait until everything is written; raises RunError where something could not be."""
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
        except Exception as error:  # the end of a thread: `close` raises it
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
        with _quietly():
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


class Shown(InMemoryStorage):
    """The trials of one search in memory; while a sampler is asked, as it is to see them.

    Optuna's samplers learn nothing from a trial that is not over: one that rests at a rung, and may go on, is shown as pruned there,
    with all its values. One that failed is shown as pruned before its first value, which is worse than any. One that has reached
    nothing yet is running, by which samplers with a constant liar know that it is being tried.
    """

    def __init__(self) -> None:
        super().__init__()
        self.asking = False

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        """Return the trials as they are; while a sampler is asked, as it is to see them."""
        if not self.asking or states == (TrialState.WAITING,):
            found: list[FrozenTrial] = super().get_all_trials(study_id, deepcopy=deepcopy, states=states)
            return found
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
        """Of each objective."""
        self.seed = seed
        self.waiting: dict[int, Mapping[str, Any]] = dict(enumerate(first))
        """Parameters, or some of them, that no trial has yet, and that those to come have first; by place in what was enqueued."""
        self.sampler: Callable[..., Any] = sampler or optuna.samplers.RandomSampler
        _check_sampler(self.sampler, len(modes))
        self.can_learn: bool = not _is_of(self.sampler, *INDEPENDENT)
        """Whether what the sampler proposes depends on what trials have reached."""
        self.learns: bool = self.can_learn and not grid
        self.in_sequence: bool = not grid and _is_of(self.sampler, optuna.samplers.QMCSampler)
        """Whether trials are the points of one sequence, of which each trial takes one, also where its parameters are known."""
        self._shown = Shown()
        with _quietly():
            self.study: optuna.Study = optuna.create_study(
                directions=[DIRECTIONS[mode] for mode in modes], storage=self._shown
            )
        self.points: dict[Place, dict[str, Any]] | None = _points(space) if grid else None
        """Points of a grid that no trial has, in order, by `_place`."""
        self._trials: list[optuna.Trial] = []
        if not callable(space):
            _check_distributions(space)

    def ask(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the next trial's parameters for the journal, and what its member is built from."""
        if self.points is not None:
            return self.again(next(iter(self.points.values())))
        self._take_sampler()
        place = next(iter(self.waiting), None)
        with mistakes_in("the space, or the sampler that it uses,", "Fix it, and run the same command again."):
            return self._ask() if place is None else self._enqueued(place)

    def _enqueued(self, place: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Ask for a trial of which some parameters are given; raises StudyError for values that the space does not have."""
        given = dict(self.waiting[place])
        found, built_from = self._given(
            given, lambda why: StudyError(f"enqueue[{place}] is {given}, but {why}. Use values of the space.")
        )
        if lacking := [name for name in given if name not in found]:
            raise StudyError(
                f"enqueue[{place}] has {lacking[0]!r}, which the space does not suggest; it suggests "
                f"{', '.join(found)}. Remove it."
            )
        return found, built_from

    @property
    def startup(self) -> int:
        """Trials that the sampler draws at random before it learns from any."""
        found = inspect.signature(self.sampler).parameters.get(STARTUP)
        return found.default if found is not None and isinstance(found.default, int) else 0

    def _take_sampler(self) -> None:
        """Take a sampler under a seed of the next trial's own, so that it is the same after a restart; a sequence keeps its seed."""
        seed = random.Random(f"{self.seed}/{len(self._trials)}").getrandbits(32)
        if self.in_sequence:
            # What is not of the sequence, as the first trial, is drawn for each trial by itself.
            bound = {"independent_sampler": optuna.samplers.RandomSampler(seed=seed), **_bound(self.sampler)}
            self.study.sampler = self.sampler(**{**bound, "seed": self.seed})
        else:
            self.study.sampler = self.sampler(seed=seed)

    def again(self, parameters: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the same for a trial with known parameters; raises RunError where the space has others.

        A sampler that learns is asked all the same: it may keep with a trial what the next ones follow from, as CMA-ES does. One of
        a sequence counts its points.
        """
        if self.learns or self.in_sequence:
            self._take_sampler()
        else:
            self.study.sampler = optuna.samplers.RandomSampler(seed=self.seed)
        number = len(self._trials)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a space's warnings were shown when the trial was new
            found, built_from = self._given(parameters, lambda why: RunError(_changed(number, parameters, why)))
        if found != parameters:
            raise RunError(_changed(number, parameters, f"the space now has {', '.join(found) or 'nothing'}"))
        if self.points is not None:
            self.points.pop(_place(found), None)
        return found, built_from

    def _given(
        self, parameters: Mapping[str, Any], refused: Callable[[str], Exception]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Ask for a trial with these parameters; raises what `refused` makes of the reason where the space has others."""
        with _quietly(), warnings.catch_warnings():
            # For a value out of its range Optuna only warns.
            warnings.filterwarnings("error", "Fixed parameter", UserWarning)
            try:
                self.study.enqueue_trial(dict(parameters))
                return self._ask()
            except (UserWarning, ValueError) as error:
                raise refused(str(error).rstrip(".")) from error

    def explored(self, parameters: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
        """Return parameters near these: each of those named is a fifth less or more, or the choice beside it; drawn for the next trial."""
        assert isinstance(self.space, Mapping)
        draw = random.Random(f"{self.seed}/{len(self._trials)}")
        return {**parameters, **{name: _near(self.space[name], parameters[name], draw) for name in names}}

    @property
    def choices(self) -> dict[str, list[Any]]:
        """Values, in order, of parameters with few of them; none for a space that is a function."""
        if callable(self.space):
            return {}
        found = {name: distribution for name, distribution in self.space.items() if _count(distribution) <= FEW}
        return {name: _values(name, distribution) for name, distribution in found.items()}

    def report(self, number: int, sections: int, value: float, constrained: Sequence[float] = ()) -> None:
        """Note what a trial has reached after so many sections, and what the constraints say of it.

        Of several objectives Optuna has no values before a trial is complete.
        """
        if len(self.modes) == 1:
            self._trials[number].report(value, sections)
        if constrained:
            study = self._shown.get_study_id_from_name(self.study.study_name)
            trial = self._shown.get_trial_id_from_study_id_trial_number(study, number)
            self._shown.set_trial_system_attr(trial, CONSTRAINTS, [*constrained])

    def end(self, number: int, outcome: Outcome, values: Sequence[float]) -> None:
        """Note how a trial ended, and what it has reached in each objective."""
        self.study.tell(number, values if outcome == "complete" else None, STATES[outcome])

    def frozen(self) -> list[FrozenTrial]:
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
        strange = {name: value for name, value in trial.params.items() if not isinstance(value, PLAIN)}
        if strange or not trial.params:
            raise StudyError(
                "space: a trial's parameters must be numbers, strings, bools or None; found "
                f"{strange or 'none at all'}. Suggest a name or a number, and let build map it to the value."
            )
        self._wait_no_more(trial.params)
        return trial.params, dict(trial.params if built_from is None else built_from)

    def _wait_no_more(self, parameters: Mapping[str, Any]) -> None:
        """Strike out the first of what waits that a trial with these parameters is."""
        place = next((place for place, given in self.waiting.items() if given.items() <= parameters.items()), None)
        if place is not None:
            del self.waiting[place]

    def _suggest(self) -> tuple[optuna.Trial, Mapping[str, Any] | None]:
        """Return Optuna's next trial, and what the space makes of it where that is a function."""
        trial = self.study.ask() if callable(self.space) else self.study.ask(dict(self.space))
        # The first trial takes no point of a sequence, which knows the space from that trial.
        if self.learns or (self.in_sequence and self._trials):
            # Where all parameters are given Optuna asks no sampler, and this one may keep with the trial what the next follow from. It
            # is asked before the trial has any, as where none are given.
            _ = trial.relative_params
        return trial, self.space(trial) if callable(self.space) else None


def _check_sampler(sampler: Callable[..., Any], objectives: int) -> None:
    kind = called(sampler)
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
    made = called(sampler)
    return isinstance(made, type) and issubclass(made, kinds)


def _bound(sampler: Callable[..., Any]) -> Mapping[str, Any]:
    return sampler.keywords if isinstance(sampler, functools.partial) else {}


def _name(sampler: Callable[..., Any]) -> str:
    return getattr(called(sampler), "__name__", repr(called(sampler)))


def _file(path: Path) -> JournalFileBackend:
    """Return a journal of Optuna's without what a killed driver left there: its lock, and a part of its last line.

    It is made here: Optuna would make one that whoever the umask lets may write, also at the end of a link.
    """
    path.with_name(f"{path.name}.lock").unlink(missing_ok=True)
    with appending(path) as file:
        os.ftruncate(file.fileno(), sum(len(line) + 1 for line in lines_of(path)))
    return JournalFileBackend(str(path.resolve()))


def _database(url: str) -> Any:
    with _quietly():
        return optuna.storages.get_storage(url)


def _contradicts(there: FrozenTrial, here: FrozenTrial) -> bool:
    """Return whether a stored trial can no longer become the one given."""
    if there.params != here.params:
        return True
    ended = there.state.is_finished()
    return ended and _ending(there) != _ending(here)


def _ending(trial: FrozenTrial) -> tuple[Any, ...]:
    return trial.state, trial.values, trial.intermediate_values, trial.system_attrs.get(CONSTRAINTS)


def _changed(number: int, parameters: Mapping[str, Any], why: str) -> str:
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


def _points(space: Any) -> dict[Place, dict[str, Any]]:
    """Return all points of a space of finitely many values, the last parameter changing fastest."""
    if callable(space):
        raise StudyError(
            "scheduler 'grid' needs a space of named distributions, but space is a function. Pass a dictionary."
        )
    _check_distributions(space)
    axes = {name: _values(name, distribution) for name, distribution in space.items()}
    points = (dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values()))
    return {_place(point): point for point in points}


def _place(point: Mapping[str, Any]) -> Place:
    """Return a key for a point of a grid: steps that add up to 0.30000000000000004 count as 0.3."""
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


def _near(distribution: Any, value: Any, draw: random.Random) -> Any:
    """Return a value of a distribution beside this one; the same where there is no other."""
    if isinstance(distribution, CategoricalDistribution):
        place = distribution.choices.index(value)
        beside = [*distribution.choices[max(place - 1, 0) : place], *distribution.choices[place + 1 : place + 2]]
        return draw.choice(beside) if beside else value
    for factor in draw.sample(FACTORS, 2):
        change, step = value * (factor - 1.0), distribution.step
        if step is not None:
            change = (round(change / step) or math.copysign(1, factor - 1.0)) * step
        found = type(value)(min(max(value + change, distribution.low), distribution.high))
        if found != value:
            return found
    return value


def _count(distribution: Any) -> float:
    """Return the number of a distribution's values; infinite where it has no step."""
    if isinstance(distribution, CategoricalDistribution):
        return len(distribution.choices)
    if distribution.step is None:
        return math.inf
    steps: float = (distribution.high - distribution.low) / distribution.step
    return round(steps) + 1


def write_plots(study: optuna.Study, path: Path) -> None:
    """Write Optuna's own drawings of a study as one page; raises StudyError without plotly."""
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
def _quietly() -> Iterator[None]:
    """Silence Optuna's lines about studies that begin and trials that are taken up."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)
