"""The description of a search: how members are built, the parameter space, the data, and how far trials train."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

from argosy.described import document_fields
from argosy.errors import StudyError
from argosy.errors.checks import (
    check_callable,
    check_choice,
    check_flag,
    check_number,
    check_takes,
    check_whole,
    describe_value,
)
from argosy.errors.spelling import did_you_mean, known_keywords
from argosy.errors.traces import user_errors_in
from argosy.stopping import MaxEpochs, Mode, mode_of, sections_in
from argosy.study import Data, Member, Study
from argosy.tuning import SCHEDULERS
from argosy.tuning.hyperband import Brackets
from argosy.tuning.hyperband import brackets as table
from argosy.tuning.objectives import TOTALS, Objectives
from argosy.tuning.packing import check_packs

__all__ = ["USED_BY", "Search", "Store"]

RUNGS = ("hyperband", "asha")
"""Schedulers that promote trials from one budget to the next."""
BY_ONE_NUMBER = ("median", "pbt")
"""Schedulers that compare trials by one number."""
USED_BY = (
    ("epochs_per_generation", 1, ("pbt",)),
    ("brackets", None, ("hyperband",)),
    ("eta", 3, (*RUNGS, "pbt")),
)
"""Keywords with their defaults, and the only schedulers that use them."""
FIX = "Fix it, and run the same command again. Remove parameters that cannot be trained from the space."
CONSTRAINTS = (
    "a function that takes a trial's results and returns a list of numbers, for example lambda reached: "
    "[reached['seconds'] - 60]"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Store:
    """Location of a search for Optuna's own tools."""

    url: str | None = None
    """URL of a database, such as ``sqlite:///search.db``; by default a file in the search's directory."""
    name: str | None = None
    """Name of the Optuna study there; by default that of the directory."""


@known_keywords("argosy.Search")
@document_fields
@dataclass(frozen=True, kw_only=True, slots=True)
class Search:
    """The description of a search: the keywords of `argosy.tune` that decide its results, and the `search` in a file of ``argosy tune``."""

    build: Callable[..., Member | Sequence[Member]]
    """Function from a trial's parameters to its member, or to several members (for example from `argosy.kfold`), whose mean is the trial's
    result. The trial's number is appended to the name. If the function also takes ``epochs``, it gets the number of epochs to train, for
    learning-rate schedules: `max_epochs`, or without `warm` the budget of the rung."""
    space: Mapping[str, Any] | Callable[[Any], Mapping[str, Any] | None]
    """Optuna distributions by name, or a function of an Optuna trial that calls its ``suggest_…`` methods (and may return other parameters)."""
    data: Data
    """The data that all trials train on."""
    max_epochs: float
    """Epochs of a trial that is never stopped early."""
    scheduler: str = "hyperband"
    """``hyperband``, ``asha``, ``median`` or ``pbt``; ``random`` and ``grid`` train every trial to the end."""
    eta: int = 3
    """Reduction factor: one in `eta` trials of a rung is promoted, to `eta` times the budget; one in `eta` of a population is replaced."""
    n_trials: int | None = None
    """Number of trials, or size of the population; by default one round of Hyperband's brackets, or all points of a grid."""
    epochs_per_generation: int = 1
    """Epochs between two comparisons of a population (``pbt``), in which the worst trials are replaced."""
    brackets: Brackets | None = None
    """Order of Hyperband's brackets: ``together``, all on one stream, or ``in-turn``, one after another starting with the longest trials, so that
    a sampler learns from earlier brackets. ``in-turn`` is the default if the sampler learns."""
    at_once: int | None = None
    """Largest number of trials that train at the same time; the next ones start when others rest or end. Those that Hyperband promotes
    together, and all of a population after its first generation, train together even if they are more. If the sampler learns: number of
    trials that are asked for together; the next ones follow when all of these rest or have ended."""
    objective: str | Mapping[str, Mode] = ""
    """The metric that ranks trials, by its best section; by default ``val_loss``, or ``train_loss`` without validation data. Or several
    objectives with their modes, such as ``{"val_accuracy": "max", "seconds": "min"}``: metrics, all taken from the best section of the
    first one, and ``seconds``, ``samples`` and ``parameters`` (`argosy.tuning.objectives`)."""
    mode: Mode | None = None
    """Whether the objective is minimised or maximised; required if its name does not show it (``argosy.stopping.mode_of``)."""
    constraints: Callable[[Mapping[str, float]], Sequence[float]] | None = None
    """Function from a trial's results in its best section (metrics, and the other possible objectives) to numbers, such as
    ``lambda reached: [reached["seconds"] - 60]``. A number above 0 is a violation; trials with violations rank behind all others."""
    sampler: Callable[..., Any] | None = None
    """A class of ``optuna.samplers``, or a partial of one; it is called with ``seed=``. A sampler that learns is asked in waves
    (`argosy.tuning.waves`), each with the results of all earlier trials. With schedulers ``hyperband``, ``asha`` and ``median`` and enough
    trials to learn from, the default is Thompson sampling from Gaussian processes (`argosy.tuning.thompson`);
    otherwise it is random."""
    enqueue: Sequence[Mapping[str, Any]] = ()
    """Parameters of the first trials, for example a baseline: ``[{"lr": 0.01}]``. Missing parameters are sampled. When a search is
    resumed, entries that no trial has used yet come next."""
    seed: int = 0
    """Seed of parameters, of the order of samples, and of networks."""
    validations_per_epoch: int = 1
    """Number of sections per epoch; budgets are counted in sections."""
    warm: bool = True
    """Whether a promoted trial continues; otherwise it starts from scratch at each rung, as another member with the rung's budget."""
    packs: str = "planned"
    """Which trials share a device and a stream: ``planned`` (by the planner), ``none``, ``batch-size``, ``random(k)`` or ``knn(k)``."""

    def __post_init__(self) -> None:
        check_callable("build", self.build, "a function that takes the parameters and returns an argosy.Member")
        keywords = ("epochs",) if _takes_epochs(self.build) else ()
        check_takes(
            "build",
            self.build,
            1,
            "a function that takes the parameters as one dictionary and returns an argosy.Member",
            keywords,
        )
        if not callable(self.space) and not (isinstance(self.space, Mapping) and self.space):
            raise StudyError(
                f"space is {self.space!r}; it must be a dictionary of named Optuna distributions, or a function "
                "that takes an Optuna trial."
            )
        if not isinstance(self.data, Data):
            raise StudyError(
                f"data is {describe_value(self.data)}; it must be an argosy.Data, for example argosy.Data(arrays=(x, y))."
            )
        check_choice("scheduler", self.scheduler, SCHEDULERS)
        if self.brackets is not None:
            check_choice("brackets", self.brackets, get_args(Brackets))
        check_packs(self.packs)
        self._check_numbers()
        self._check_objectives()
        self._check_enqueued()
        if self.sampler is not None:
            check_callable("sampler", self.sampler, "a class of optuna.samplers, or a partial of one")
            self._check_seed()
        self._check_scheduler()

    def _check_numbers(self) -> None:
        check_number("max_epochs", self.max_epochs, above=0)
        check_whole("eta", self.eta, least=2)
        check_whole("seed", self.seed, least=0)
        check_whole("epochs_per_generation", self.epochs_per_generation, least=1)
        check_whole("validations_per_epoch", self.validations_per_epoch, least=1)
        if self.n_trials is not None:
            check_whole("n_trials", self.n_trials, least=1)
        if self.at_once is not None:
            check_whole("at_once", self.at_once, least=1)

    def _check_objectives(self) -> None:
        if isinstance(self.objective, str):
            _ = self.objectives  # raises StudyError if the name does not show the mode
        elif not (
            isinstance(self.objective, Mapping)
            and self.objective
            and all(isinstance(one, str) for one in self.objective)
        ):
            raise StudyError(
                f"objective is {describe_value(self.objective)}; it must be the name of a metric, for example "
                "'val_accuracy', or several with their modes, for example {'val_accuracy': 'max', 'seconds': "
                "'min'}."
            )
        elif self.mode is not None:
            raise StudyError(
                f"mode={self.mode!r} is for a single objective, but each of these has its own mode. Remove it."
            )
        else:
            for name, mode in self.objective.items():
                check_choice(f"objective: the mode of {name!r}", mode, get_args(Mode))
            if self.objectives.first in TOTALS:
                raise StudyError(
                    f"objective starts with {self.objectives.first!r}, but the first objective selects the best "
                    "weights of a trial. Put a metric first, for example 'val_accuracy'."
                )
        if self.constraints is not None:
            check_takes("constraints", self.constraints, 1, CONSTRAINTS)
        if self.scheduler in BY_ONE_NUMBER and (len(self.objectives.modes) > 1 or self.constraints is not None):
            raise StudyError(
                f"scheduler {self.scheduler!r} compares trials by one number, so it does not support several "
                "objectives or constraints; choose hyperband, asha, random or grid."
            )

    def check_reported(self, member: Member) -> None:
        """Raise StudyError if a trial's member does not report all further objectives; its study checks the first one."""
        known = {*member.reported(has_val=self.data.has_val), *TOTALS}
        _, *others = self.objectives.modes
        if unknown := [name for name in others if name not in known]:
            raise StudyError(
                f"member {member.name!r} does not report the objective {unknown[0]!r}{did_you_mean(unknown[0], known)}; "
                f"choose one of {', '.join(sorted(known))}, or add it to the member's metrics."
            )

    def _check_enqueued(self) -> None:
        if not isinstance(self.enqueue, Sequence) or not all(isinstance(one, Mapping) for one in self.enqueue):
            raise StudyError(
                f"enqueue is {describe_value(self.enqueue)}; it must be a list of dictionaries of parameters, for example "
                "[{'lr': 0.01}]."
            )
        if self.enqueue and self.scheduler == "grid":
            raise StudyError("scheduler 'grid' trains all points of the space in a fixed order. Remove enqueue.")
        space = self.space if isinstance(self.space, Mapping) else {}
        unknown = [name for one in self.enqueue for name in one if space and name not in space]
        if unknown:
            raise StudyError(
                f"enqueue has {unknown[0]!r}{did_you_mean(unknown[0], space)}, which is not in the space; choose one of "
                f"{', '.join(space)}."
            )

    def _check_seed(self) -> None:
        """Raise StudyError if the sampler has a seed: the seeds of the trials would replace it."""
        bound = self.sampler.keywords.get("seed") if isinstance(self.sampler, partial) else None
        if bound is not None:
            raise StudyError(
                f"sampler has seed={bound!r}, but the seeds of samplers are derived from the search's seed. Remove "
                f"it, and set seed={bound!r} on the search."
            )

    def _check_scheduler(self) -> None:
        """Raise StudyError for a keyword that this scheduler does not use."""
        check_flag("warm", self.warm)
        if not self.warm and self.scheduler not in RUNGS:
            raise StudyError(
                f"warm=False retrains trials from scratch at each rung, but scheduler {self.scheduler!r} has no "
                f"rungs. Choose one of {', '.join(RUNGS)}, or remove warm."
            )
        for name, default, schedulers in USED_BY:
            if getattr(self, name) != default and self.scheduler not in schedulers:
                raise StudyError(
                    f"{name} is only for scheduler {' or '.join(map(repr, schedulers))}, and scheduler is {self.scheduler!r}. "
                    "Remove it."
                )
        if self.scheduler == "pbt" and callable(self.space):
            raise StudyError(
                "scheduler 'pbt' needs a space of named distributions, but space is a function. Pass a dictionary."
            )

    @property
    def most(self) -> int:
        """Sections of a trial that is never stopped early."""
        return sections_in(self.max_epochs, self.validations_per_epoch)

    @property
    def in_step(self) -> bool:
        """Whether all trials train on the same epochs of the stream, so that results do not depend on when a trial starts.

        If some trials start later by design, they join the stream at its current position, unless a sampler learns from their results.
        """
        later = self.at_once is not None or (self.scheduler == "hyperband" and self.brackets == "in-turn")
        return self.scheduler == "pbt" or not later

    def member(self, parameters: dict[str, Any], sections: int) -> Any:
        """Call `build` with a trial's parameters, for a budget of `sections`."""
        whole, part = divmod(sections, self.validations_per_epoch)
        epochs = sections / self.validations_per_epoch if part else whole
        with user_errors_in(f"build({parameters})", FIX):
            return self.build(parameters, **({"epochs": epochs} if _takes_epochs(self.build) else {}))

    def trials(self, points: int | None) -> int:
        """Return the number of trials, given the number of points of a grid; raises StudyError if it is unknown."""
        if points is not None:
            return min(self.n_trials or points, points)
        if self.n_trials is None and self.scheduler != "hyperband":
            raise StudyError(f"scheduler {self.scheduler!r} does not determine the number of trials. Set n_trials.")
        count = self.n_trials or sum(size for size, _ in table(self.most, self.eta))
        if len(self.enqueue) > count:
            raise StudyError(
                f"enqueue has {len(self.enqueue)} trials, but the search has {count}, so the last ones would never "
                "be tried. Increase n_trials."
            )
        return count

    @property
    def objectives(self) -> Objectives:
        """Objectives and constraints by which trials are compared."""
        if isinstance(self.objective, str):
            name = self.objective or ("val_loss" if self.data.has_val else "train_loss")
            modes = {name: mode_of(name, self.mode, owner="Search")}
        else:
            modes = dict(self.objective)
        return Objectives(modes=modes, constraints=self.constraints)

    def study(self, members: Sequence[Member]) -> Study:
        """Return the study with the members of these trials."""
        return Study(
            data=self.data,
            members=members,
            stop=MaxEpochs(self.max_epochs),
            objective=self.objectives.first,
            mode=self.objectives.mode,
            seed=self.seed,
            validations_per_epoch=self.validations_per_epoch,
        )


def _takes_epochs(build: Callable[..., Any]) -> bool:
    try:
        return "epochs" in inspect.signature(build).parameters
    except (TypeError, ValueError):
        return False  # a builtin without a signature
