"""What is asked of a search: how a trial's member is built, from which space, on which data, and how far trials train."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

from argosy.described import described
from argosy.errors import StudyError
from argosy.errors.checks import check_callable, check_choice, check_number, check_takes, check_whole, shown
from argosy.errors.spelling import known_keywords, meant
from argosy.errors.traces import mistakes_in
from argosy.stopping import MaxEpochs, Mode, mode_of, sections_in
from argosy.study import Data, Member, Study
from argosy.tuning import SCHEDULERS
from argosy.tuning.hyperband import Brackets
from argosy.tuning.hyperband import brackets as table
from argosy.tuning.objectives import TOTALS, Objectives
from argosy.tuning.packing import check_packs

__all__ = ["Search", "Store"]

RUNGS = ("hyperband", "asha")
"""Schedulers that let trials go on from one budget to the next."""
BY_ONE_NUMBER = ("median", "pbt")
"""Schedulers that compare trials by one number."""
MEND = "Mend it, and give the same command again. Let the space leave out parameters that cannot be trained."
CONSTRAINTS = "a function: what a trial has reached -> list of numbers, as lambda reached: [reached['seconds'] - 60]"


@dataclass(frozen=True, kw_only=True, slots=True)
class Store:
    """Where Optuna's own tools find a search."""

    url: str | None = None
    """URL of a database, as ``sqlite:///search.db``; by default a file in the search's directory."""
    name: str | None = None
    """Name of the study there; by default the directory's."""


@known_keywords("argosy.Search")
@described
@dataclass(frozen=True, kw_only=True, slots=True)
class Search:
    """Every keyword of `argosy.tune` that decides what comes out, and every name in the file of ``argosy tune``."""

    build: Callable[..., Member | Sequence[Member]]
    """A trial's parameters -> its member, or what `argosy.kfold` and its like make of one: the trial is their mean then. The
    trial's number is added to the name. One that takes ``epochs`` as well gets how many the member is to train, for
    schedules of learning rates: `max_epochs`, or without `warm` its rung's."""
    space: Mapping[str, Any] | Callable[[Any], Mapping[str, Any] | None]
    """Optuna distributions by name; or a function of an Optuna trial that suggests (and may return other parameters)."""
    data: Data
    """What all trials train on."""
    max_epochs: float
    """Epochs of a trial that is never out."""
    scheduler: str = "hyperband"
    """``hyperband``, ``asha``, ``median``, ``pbt``; ``random`` and ``grid`` train every trial to the end."""
    eta: int = 3
    """One in so many trials of a rung goes on, for so many times the budget; one in so many of a population is replaced."""
    n_trials: int | None = None
    """Number of trials, or of a population's; by default one round of Hyperband's brackets, or all points of a grid."""
    epochs_per_generation: int = 1
    """Epochs after which trials of a population (``pbt``) are compared, and the last of them replaced."""
    brackets: Brackets | None = None
    """Order of Hyperband's brackets: ``together``, all on one stream; or ``in-turn``, one after another from the longest trials, so that a sampler
    learns from those before. By default in turn where the sampler learns."""
    at_once: int | None = None
    """Most trials that train at the same time; the next begin where others rest or are out. Where the sampler learns: trials
    that are asked together; the next follow when all of these rest or are over."""
    objective: str | Mapping[str, Mode] = ""
    """The metric that ranks trials, by its best section; by default ``val_loss``, without validation data ``train_loss``. Or several
    objectives with their modes, as ``{"val_accuracy": "max", "seconds": "min"}``: metrics, of which the first chooses the section
    that the others are of, and ``seconds``, ``samples`` and ``parameters`` (`argosy.tuning.objectives`)."""
    mode: Mode | None = None
    """Whether the objective is minimised or maximised; needed where its name does not tell (``argosy.stopping.mode_of``)."""
    constraints: Callable[[Mapping[str, float]], Sequence[float]] | None = None
    """A function of what a trial has reached in its best section, metrics and what several objectives may be, that returns numbers,
    as ``lambda reached: [reached["seconds"] - 60]``: a trial breaks those above 0, and is behind all that break none."""
    sampler: Callable[..., Any] | None = None
    """A class of ``optuna.samplers``, or a partial of one, that is called with ``seed=``. One that learns is asked in waves
    (`argosy.tuning.waves`), and told what all trials before have reached. By default ``TPESampler``, of several
    objectives in waves one that takes more trials for good ones, with schedulers ``hyperband``, ``asha`` and ``median``, if there are enough trials
    to learn from; else random, as ``RandomSampler`` is always."""
    enqueue: Sequence[Mapping[str, Any]] = ()
    """Parameters of the first trials, as ``[{"lr": 0.01}]``: what is known to be good, or to be beaten. What one leaves out is sampled.
    In a search that goes on, those that no trial has are next."""
    seed: int = 0
    """What parameters, the order of samples and networks follow from."""
    validations_per_epoch: int = 1
    """Sections of an epoch: budgets are counted in them, so the least is this part of an epoch."""
    warm: bool = True
    """Whether a trial goes on where it is; else at each rung it begins anew, as another member, with the rung's budget."""
    packs: str = "planned"
    """Trials that share a device and a stream: ``planned`` by the planner, ``none``, ``batch-size``, ``random(k)``, ``knn(k)``."""

    def __post_init__(self) -> None:
        check_callable("build", self.build, "a function: parameters -> Member")
        told = ("epochs",) if _takes_epochs(self.build) else ()
        check_takes("build", self.build, 1, "a function: parameters, which are one dictionary, -> Member", told)
        if not callable(self.space) and not (isinstance(self.space, Mapping) and self.space):
            raise StudyError(
                "space must be a dictionary of Optuna distributions by name, or a function of an Optuna trial; found "
                f"{self.space!r}."
            )
        if not isinstance(self.data, Data):
            raise StudyError(f"data is {shown(self.data)}; it must be an argosy.Data, as argosy.Data(arrays=(x, y)).")
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
            _ = self.objectives  # raises StudyError where the name does not tell the mode
        elif not (
            isinstance(self.objective, Mapping)
            and self.objective
            and all(isinstance(one, str) for one in self.objective)
        ):
            raise StudyError(
                f"objective is {shown(self.objective)}; it must be the name of a metric, as 'val_accuracy', or several with their modes, "
                "as {'val_accuracy': 'max', 'seconds': 'min'}."
            )
        elif self.mode is not None:
            raise StudyError(
                f"mode={self.mode!r} is of one objective, and these have modes of their own; leave it out."
            )
        else:
            for name, mode in self.objective.items():
                check_choice(f"objective: the mode of {name!r}", mode, get_args(Mode))
            if self.objectives.first in TOTALS:
                raise StudyError(
                    f"objective begins with {self.objectives.first!r}, and the first one chooses the weights of a trial among its sections; "
                    "give a metric first, as 'val_accuracy'."
                )
        if self.constraints is not None:
            check_callable("constraints", self.constraints, CONSTRAINTS)
            check_takes("constraints", self.constraints, 1, CONSTRAINTS)
        if self.scheduler in BY_ONE_NUMBER and (len(self.objectives.modes) > 1 or self.constraints is not None):
            raise StudyError(
                f"scheduler {self.scheduler!r} compares trials by one number, which several objectives or constraints are not; choose "
                "hyperband, asha, random or grid."
            )

    def check_reported(self, member: Member) -> None:
        """Raise StudyError where a trial's member does not report an objective beside the first, which its study checks."""
        known = {*member.reported(has_val=self.data.has_val), *TOTALS}
        _, *others = self.objectives.modes
        if unknown := [name for name in others if name not in known]:
            raise StudyError(
                f"member {member.name!r} does not report the objective {unknown[0]!r}{meant(unknown[0], known)}; choose from "
                f"{', '.join(sorted(known))}, or add it to the member's metrics."
            )

    def _check_enqueued(self) -> None:
        if not isinstance(self.enqueue, Sequence) or not all(isinstance(one, Mapping) for one in self.enqueue):
            raise StudyError(
                f"enqueue is {shown(self.enqueue)}; it must be a list of parameters by name, as [{{'lr': 0.01}}]."
            )
        if self.enqueue and self.scheduler == "grid":
            raise StudyError("scheduler 'grid' trains all points of the space, in their order; leave out enqueue.")
        space = self.space if isinstance(self.space, Mapping) else {}
        unknown = [name for one in self.enqueue for name in one if space and name not in space]
        if unknown:
            raise StudyError(
                f"enqueue has {unknown[0]!r}{meant(unknown[0], space)}, which is not in the space; choose from {', '.join(space)}."
            )

    def _check_seed(self) -> None:
        """Raise StudyError where the sampler has a seed that would be replaced by those of the trials."""
        bound = self.sampler.keywords.get("seed") if isinstance(self.sampler, partial) else None
        if bound is not None:
            raise StudyError(
                f"sampler has seed={bound!r}, and seeds of samplers follow from that of the search; leave it out, and give the search "
                f"seed={bound!r}."
            )

    def _check_scheduler(self) -> None:
        """Raise StudyError for a keyword that this scheduler does not have."""
        if not self.warm and self.scheduler not in RUNGS:
            raise StudyError(
                f"warm=False lets trials begin anew at each rung, and scheduler {self.scheduler!r} has none; choose one of "
                f"{', '.join(RUNGS)}, or leave it out."
            )
        if self.epochs_per_generation != 1 and self.scheduler != "pbt":
            raise StudyError(
                f"epochs_per_generation belongs to scheduler 'pbt', and this is {self.scheduler!r}; leave it out."
            )
        if self.scheduler == "pbt" and callable(self.space):
            raise StudyError(
                "scheduler 'pbt' needs a space of distributions by name, and found a function; give a dictionary."
            )

    @property
    def most(self) -> int:
        """Sections of a trial that is never out."""
        return sections_in(self.max_epochs, self.validations_per_epoch)

    @property
    def in_step(self) -> bool:
        """Whether trials train on the same epochs of the stream whenever they do, so that what they reach depends on nothing else.

        Where some are to come later than others by design, these join the stream where it is, unless a sampler learns from what
        they reach.
        """
        later = self.at_once is not None or (self.scheduler == "hyperband" and self.brackets == "in-turn")
        return self.scheduler == "pbt" or not later

    def member(self, parameters: dict[str, Any], sections: int) -> Any:
        """Return what `build` makes of a trial's parameters, for so many sections."""
        whole, part = divmod(sections, self.validations_per_epoch)
        epochs = sections / self.validations_per_epoch if part else whole
        with mistakes_in(f"build({parameters})", MEND):
            return self.build(parameters, **({"epochs": epochs} if _takes_epochs(self.build) else {}))

    def trials(self, points: int | None) -> int:
        """Return the number of trials, where a grid has so many points; raises StudyError where it is not known."""
        if points is not None:
            return min(self.n_trials or points, points)
        if self.n_trials is None and self.scheduler != "hyperband":
            raise StudyError(f"scheduler {self.scheduler!r} has no number of trials of its own; give n_trials.")
        found = self.n_trials or sum(size for size, _ in table(self.most, self.eta))
        if len(self.enqueue) > found:
            raise StudyError(
                f"enqueue has {len(self.enqueue)} trials, and the search {found}, so the last would never be tried; give more n_trials."
            )
        return found

    @property
    def objectives(self) -> Objectives:
        """What trials are compared by."""
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
