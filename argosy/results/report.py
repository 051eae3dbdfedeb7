"""The results of a run, computed from the fold of its events."""

import itertools
import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from argosy.disk.files import user_path
from argosy.errors import RunError
from argosy.errors.checks import check_choice, check_flag, check_whole
from argosy.errors.spelling import did_you_mean, format_names
from argosy.errors.warned import warn_caller
from argosy.errors.wording import cause_of, differing_parameters, format_duration
from argosy.protocol.events import EnsembleChosen, SharingChosen
from argosy.protocol.packs import Packed
from argosy.results.bands import BANDS, Spread
from argosy.results.diagnosis import Diagnosis, diagnose
from argosy.results.end_table import EndTable
from argosy.results.ending import Ending, format_counts, output_size
from argosy.results.fold import MemberState, RunState
from argosy.results.frames import to_frame
from argosy.results.legs import LegResult, gauges_of, legs_of, waiting_share
from argosy.results.member import LEFT_OUT, MemberResult, Networks, band_of, format_best_epochs
from argosy.results.ranking import rank
from argosy.results.repetitions import Comparison, Leader, Repetitions

__all__ = ["Format", "Report"]

Combine = Literal["probabilities", "logits", "votes", "mean"]
"""How the outputs of networks are combined."""
Format = Literal["safetensors", "onnx", "torch-export", "hub"]
"""Formats of exports."""
IDENTITY = ("member", "configuration", "seed", "fold")
"""First columns of every table of members."""
INTEGER_COLUMNS = ("seed", "fold")
"""Columns that hold whole numbers or NA."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """The results of a run: its members, best first."""

    rows: tuple[MemberResult, ...]
    """Members by their best value of the objective, ties in the order of the study; then those that failed or diverged,
    those without a finished section, and last those that the study has left out."""
    objective: str
    directory: Path
    status: str
    """running, done, paused, failed, or interrupted (its driver was killed)."""
    reason: str
    seconds: float
    """Working time of the drivers that ended properly; `cpu_seconds` and `joules` are of the same drivers."""
    killed_drivers: int
    """Number of drivers that were killed; their time is not in `seconds`."""
    preparations: float
    """Mean number of times that a training sample was prepared per epoch of the stream."""
    preparations_alone: float
    """The same number for one script per member, over the same epochs."""
    keeping: Mapping[str, str]
    """By split: which prepared samples are kept, or why none are, in words."""
    skipped: Mapping[str, tuple[int, int]]
    """By split: number of samples that raised and were left out (`Data.on_error`), and number of all samples."""
    waiting_share: float
    """Share of the trainers' time spent waiting for data."""
    cpu_seconds: float
    """User and system time of the whole tree of processes."""
    joules: Mapping[str, float]
    """Energy that the whole machine used in that time, by counter."""
    sharing: SharingChosen | None
    """How nodes shared the stream, and why."""
    ensembles: tuple[EnsembleChosen, ...]
    """Ensembles that `Study.ensemble` selected after each section: the members' weights, and the losses."""
    packs: tuple[Packed, ...]
    """Every choice of programs for members that can share one, in order, with its measurements."""
    alone: Mapping[str, str]
    """By member: why it could not share a program with others; only for members that were tried."""
    diagnosis: Diagnosis | None
    """The stage that limited the run; None if nothing was trained."""
    repetitions: Repetitions
    """Networks that several members repeat, with the means of their metrics."""
    legs: tuple[LegResult, ...]
    """Predicted and actual times of each leg."""
    gauges: Mapping[str, Mapping[str, Any]]
    """Counters of the stages and the fill of the queues between them, by worker; if several drivers worked on the run, the driver's number
    precedes the worker's name."""
    networks: Callable[[], Networks] = field(repr=False)
    validations_per_epoch: int
    """Number of sections per epoch."""
    is_search: bool = False
    """Whether members are trials: ``report.run`` of `argosy.tune`."""
    has_added: bool = False
    """Whether ``argosy add`` brought members of other study files."""

    @property
    def last_packs(self) -> tuple[Packed, ...]:
        """The last choice for each device and set of members that can share a program."""
        return tuple({(pack.device, frozenset(itertools.chain(*pack.programs))): pack for pack in self.packs}.values())

    def best(self) -> MemberResult:
        """Return the member with the best objective among those that neither failed nor diverged; ties go to the earlier one.

        If members repeat networks under several seeds or folds, this is a single repetition, which may be good by luck: `leader` names the
        best configuration, and ``ensemble(members=[report.leader.name])`` combines all its members. Raises RunError if no member has
        finished an epoch with a finite objective.
        """
        row = next(filter(self._has_number, self.rows), None)
        if row is None:
            raise RunError(
                f"no member of {self.directory} has a {self.objective} that counts: each has finished no epoch, "
                f"failed, diverged, or reached no number. See `argosy status {shlex.quote(str(self.directory))}`, or "
                "report.member(name) for what one reached."
            )
        return row

    def _has_number(self, row: MemberResult) -> bool:
        """Whether a member's result counts, and its objective is a number."""
        return row.counts and not math.isnan(row.metrics.get(self.objective, math.nan))

    @property
    def epochs(self) -> float:
        """Epochs that all members together have trained, without what clones took over."""
        return sum(len(row.sections) for row in self.rows) / self.validations_per_epoch

    @property
    def leader(self) -> Leader | None:
        """The best member, or the best configuration by its mean if members repeat networks, as named in headlines.

        None before there is one.
        """
        single = [row for row in self.rows if row.repetition is None and row.counts]
        return self.repetitions.leader({row.name: row.metrics.get(self.objective, math.nan) for row in single})

    def member(self, name: str) -> MemberResult:
        """Return the member with this name; raises RunError if there is none."""
        result = next((row for row in self.rows if row.name == name), None)
        if result is None:
            raise self._unknown(name, [row.name for row in self.rows])
        return result

    def _row(self, member: str | MemberResult) -> MemberResult:
        """Return a member given by name or as a result; raises RunError if this run has no such member."""
        row = self.member(member.name if isinstance(member, MemberResult) else member)
        if isinstance(member, MemberResult) and member.folder.resolve() != row.folder.resolve():
            raise RunError(
                f"member {member.name!r} belongs to the run in {member.folder.parents[1]}, but this report is of "
                f"{self.directory}. Use the report of its run, or pass its network: member.load()."
            )
        return row

    def _given(self, network: Any) -> MemberResult | None:
        """Return the member that a network is given by, by default the best one; None if it is given as a module."""
        if network is None:
            return self.best()
        return self._row(network) if isinstance(network, str | MemberResult) else None

    def _unknown(self, name: str, known: Sequence[str]) -> RunError:
        """Return the error for an unknown name of a member."""
        return RunError(
            f"no member {name!r}{did_you_mean(name, known)} in {self.directory}; choose one of {format_names(known)}."
        )

    def ensemble(
        self,
        *,
        top: int | None = None,
        members: Sequence[str | MemberResult] | None = None,
        select: Literal["greedy", "bagged"] | None = None,
        snapshots: bool = True,
        combine: Combine | tuple[Any, ...] | Mapping[Any, Any] | None = None,
        calibrate: bool = False,
        preprocess: bool = False,
    ) -> Any:
        """Return an ensemble of the best weights of the `top`, the named, or all members, as one ``nn.Module``.

        A configuration's name in `members` stands for all members that repeat it. Members that failed, diverged or have no finite objective
        are only included if they are named themselves.

        With ``select="greedy"``, only members that improve the ensemble on the validation samples are included, with weights (Caruana et al.
        2004); ``"bagged"`` averages such selections from random halves of the members. Members that keep snapshots of recent sections
        (`EnsemblePlateau.snapshot_bytes`) can also be selected as they were then, under names such as ``m03@12``. Snapshots are not used if
        `snapshots` is false, if `calibrate` is set, or if outputs are combined otherwise than by probabilities or a mean.

        With `calibrate`, each member's logits are divided by a temperature that is fitted on the validation samples. The ensemble's
        ``scores`` are its own results and those of each member on these samples; its ``note`` says which samples they are, or why there are
        no scores.

        `combine` follows from the members' losses by default, if these determine it. For networks with several outputs it is one way for all
        of them, or one for each in their structure, such as ``{"digit": "probabilities", "angle": "mean"}``. The ensemble takes inputs as
        `Data.on_device` returns them; with `preprocess`, as the dataset returns them. Raises RunError and StudyError.
        """
        if select is not None:
            check_choice("report.ensemble: select", select, ("greedy", "bagged"))
        check_flag("report.ensemble: calibrate", calibrate)
        names = [row.name for row in self._candidates(top, members)]
        return self.networks().ensemble(
            names, combine=combine, select=select, snapshots=snapshots, calibrate=calibrate, preprocess=preprocess
        )

    def predict(self, samples: Any = None, network: Any = None) -> Any:
        """Return a network's output for each sample, by default the best member's: a tensor ``[N, …]`` on the host.

        A network with several outputs returns them in its own structure: a tuple, a dict or a dataclass of tensors. Samples are arrays (one,
        a tuple, or a dict by name) or a Dataset, by default the study's validation samples; they are prepared like these. They need no
        targets unless `Data.on_device` computes inputs from them; missing targets are zeros. The network is given by a member's name or as a
        module, such as an ensemble, and runs on its device, in ``eval()``: each call returns the same, so for Monte Carlo dropout call the
        network yourself. If the study skips samples that raise (`Data.on_error`), their rows are NaN and a warning names them. Raises
        RunError and StudyError.
        """
        row = self._given(network)
        return self.networks().predict(network if row is None else row.load(), samples)

    def export(
        self,
        to: str | Path,
        network: Any = None,
        *,
        format: Format = "safetensors",
        preprocess: bool = False,
        push_to_hub: str | None = None,
    ) -> Path:
        """Write a network into the folder `to`, in a format that loads without Argosy, and return the folder.

        The network is given by a member's name or as a module, such as an ensemble; by default it is the best member's. ``"safetensors"``
        contains the weights and a ``config.json``; ``"onnx"`` and ``"torch-export"`` contain the whole network, for batches of any size;
        ``"hub"`` is a folder for the Hugging Face Hub with a model card, which `push_to_hub` uploads to ``"owner/name"``. The exported network
        takes inputs as `Data.on_device` returns them; with `preprocess`, which needs a format with the whole network, as the dataset returns
        them. The report needs its study. Raises RunError and StudyError.
        """
        row, folder = self._given(network), user_path(to)
        self.networks().export(network, row, folder, format=format, preprocess=preprocess, push_to_hub=push_to_hub)
        return folder

    def out_of_fold(self, configuration: str) -> Any:
        """Return the out-of-fold predictions of a cross-validation: a tensor ``[N, …]`` on the host.

        Row n is the prediction for validation sample n by the best weights of the member that holds it out: the mean if several members do,
        as with bootstraps, and NaN if none does. Members that failed or diverged are left out, with a warning.
        """
        folds = [row for row in self.rows if row.repeats == configuration and row.status != LEFT_OUT]
        if not folds:
            known = [folds.name for folds in self.repetitions.configurations]
            raise RunError(
                f"{self.directory} has no configuration {configuration!r}{did_you_mean(configuration, known)}. Choose a "
                "member that was passed to argosy.kfold."
            )
        if lost := [row for row in folds if row.failed]:
            problem = f"{len(lost)} of {len(folds)} members of {configuration!r} have failed or diverged: {format_names(row.name for row in lost)}"
            if len(lost) == len(folds):
                raise RunError(
                    f"{problem}; nothing was predicted out of fold. Train them further with retry_failed=True."
                )
            warn_caller(
                f"{problem}; rows of samples that only they held out are NaN. Train them further with retry_failed=True."
            )
        return self.networks().out_of_fold([row.name for row in folds if not row.failed])

    def _candidates(self, top: int | None, members: Sequence[str | MemberResult] | None) -> Sequence[MemberResult]:
        """Return the members for an ensemble, best first."""
        if top is not None and members is not None:
            raise RunError(
                f"report.ensemble was given top={top} and members=. Pass one of them, or neither for all members."
            )
        if top is not None:
            check_whole("report.ensemble: top", top, least=1)
        if isinstance(members, str | MemberResult):
            members = [members]
        known = [*filter(self._has_number, self.rows)]
        if members is not None:
            wanted = [self._row(one).name if isinstance(one, MemberResult) else one for one in members]
            own = dict.fromkeys(row.name for row in self.rows)
            names = dict.fromkeys([*own, *self.repetitions.outcomes])
            if unknown := [name for name in wanted if name not in names]:
                raise self._unknown(unknown[0], [*names])
            # A name of a member comes before that of a configuration.
            known = [
                row
                for row in self.rows
                if row.name in wanted or (self._has_number(row) and row.repeats in wanted and row.repeats not in own)
            ]
        if len(known) < (top or 1):
            raise RunError(
                f"report.ensemble needs {top or 'one or more'} members, but only {len(known)} of {self.directory} "
                f"have a {self.objective} that counts, or were named. Choose fewer, or train them further."
            )
        return known[:top]

    def compare(self, first: str, second: str, metric: str | None = None) -> Comparison:
        """Compare configurations, first minus second, by a metric or the objective, in pairs of the same seed or fold.

        ``report.compare("gelu", "relu").first_minus_second`` is below zero if gelu has the lower values.
        """
        return self.repetitions.compare(first, second, metric)

    @property
    def curve_columns(self) -> list[str]:
        """The columns of `curves`."""
        return [*IDENTITY, "epoch", *(["section"] if self.validations_per_epoch > 1 else []), "metric", "value"]

    def curve_rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows of `curves`, without pandas."""
        several = self.validations_per_epoch > 1
        for row in self.rows:
            for ended in row.sections:
                section = {"section": ended.section + 1} if several else {}
                at = {**row.identity, "epoch": ended.epoch + 1, **section}
                yield from ({**at, "metric": name, "value": value} for name, value in ended.metrics.items())

    def curves(self) -> Any:
        """Return the learning curves as a tidy pandas DataFrame: one row for each metric of each section of each member.

        Its columns are member, configuration, seed, fold, epoch, section if an epoch has several, metric, value. Epochs
        and sections count from 1. A member that repeats no other is its own configuration. A clone's curve begins where
        the clone did. Raises RunError if pandas is not installed.
        """
        return to_frame([*self.curve_rows()], self.curve_columns, whole=INTEGER_COLUMNS)

    def plot(
        self, metric: str | None = None, *, by: str | None = None, band: Spread | None = "ci", axes: Any = None
    ) -> Any:
        """Draw a metric, by default the objective, over the epochs, and return the matplotlib axes.

        Without `by` there is one line per member, with the best one coloured. With ``by="configuration"`` there is the mean over the members
        of each configuration that neither failed nor diverged, at the epochs that all of them have reached, with a `band`: "ci" (95 % interval
        of the mean), "std" (standard deviation), "range" (minimum to maximum) or None. Members can also be grouped by "seed", "fold" or any
        hyper-parameter, such as "optimizer.lr". Raises RunError for unknown names, and if matplotlib is not installed.
        """
        from argosy.results import figures  # imports matplotlib

        metric = self._known_metric(metric)
        if band is not None:
            check_choice("report.plot: band", band, BANDS)
        groups = None if by is None else self._groups(by)
        axes = figures.new_axes()[0] if axes is None else axes
        if groups is None:
            rows = [row for row in self.rows if row.status != LEFT_OUT and row.curve(metric)]
            best = rows[0].name if rows and rows[0].counts else None
            figures.draw_curves(axes, [row.curve(metric) for row in rows], metric, best)
        else:
            counted = {name: [row for row in rows if row.counts and row.curve(metric)] for name, rows in groups.items()}
            bands = [band_of(name, rows, metric, band) for name, rows in counted.items()]
            figures.draw_bands(axes, [one for one in bands if one.count], metric)
        return axes

    def plot_hyperparameters(self, metric: str | None = None) -> list[Any]:
        """Draw a metric, by default the objective, against each hyper-parameter that differs between members.

        Returns the matplotlib axes, one per hyper-parameter. The metric is taken from each member's best section, and the best member is
        coloured. Raises RunError for an unknown metric, and if matplotlib is not installed.
        """
        from argosy.results import figures  # imports matplotlib

        metric, counted = self._known_metric(metric), [row for row in self.rows if row.counts]
        names = differing_parameters({row.name: row.hyperparameters for row in counted})
        points = [(row.hyperparameters, row.metrics[metric]) for row in counted if metric in row.metrics]
        return figures.draw_parameters(names, points, metric)

    def write_figures(self, folder: str | Path) -> list[Path]:
        """Write figures for a paper into a folder, each as PNG, SVG and PDF, and return the files.

        The figures are the objective over the epochs, the mean of each configuration if members repeat networks, and the objective against
        hyper-parameters that differ. Raises RunError if matplotlib is not installed.
        """
        from argosy.results import figures  # imports matplotlib

        with figures.paper_style():
            drawn = {"objective": self.plot()}
            if self.repetitions.outcomes:
                drawn["configurations"] = self.plot(by="configuration")
            if against := self.plot_hyperparameters():
                drawn["hyperparameters"] = against[0]
            return figures.save_figures(user_path(folder), drawn)

    def _known_metric(self, metric: str | None) -> str:
        """Return the metric, by default the objective; raises RunError if no member reports it, once one reports any."""
        known = dict.fromkeys(name for row in self.rows for ended in row.sections[:1] for name in ended.metrics)
        if metric is not None and known and metric not in known:
            raise RunError(
                f"no member of {self.directory} reports {metric!r}{did_you_mean(metric, known)}; choose one of {', '.join(known)}."
            )
        return self.objective if metric is None else metric

    def _groups(self, by: str) -> dict[str, list[MemberResult]]:
        """Return the members that have a value of `by`, under its words: configurations best first, numbers ascending."""
        groups: dict[Any, list[MemberResult]] = {}
        known = dict.fromkeys(IDENTITY[1:])
        for row in self.rows:
            values = {**row.identity, **row.hyperparameters}
            known.update(dict.fromkeys(row.hyperparameters))
            if values.get(by) is not None:
                groups.setdefault(values[by], []).append(row)
        if by not in known:
            raise RunError(
                f"members cannot be grouped by {by!r}{did_you_mean(by, known)}; choose one of {', '.join(known)}."
            )
        if by != "configuration":
            numbers = all(isinstance(value, int | float) for value in groups)
            return {f"{by} = {value}": groups[value] for value in (sorted(groups) if numbers else groups)}
        best_first = [*(values.name for values in self.repetitions.configurations), *groups]
        return {name: groups[name] for name in dict.fromkeys(best_first) if name in groups}

    def table(self) -> list[dict[str, Any]]:
        """Return one plain row per member, best first."""
        return [
            {
                **row.identity,
                "status": row.status,
                "epochs": row.epochs,
                "best_epoch": row.best_epoch,
                **row.metrics,
                **row.hyperparameters,
                "parameters": row.parameters or None,
                "device": row.device,
                "seconds": round(row.seconds, 3),
                "reason": cause_of(row.reason),
            }
            for row in self.rows
        ]

    def ending(
        self, *, again: str = "the same call again", fixed: str = "the same call with retry_failed=True"
    ) -> Ending:
        """Return the text at the end of a run: the best member, failures with reasons, a table, and next steps.

        `again` describes how to resume the run, and `fixed` how to continue failed members. ``print(report)`` shows this text.
        """
        failed = [row for row in self.rows if row.status == "failed"]
        single = [row for row in self.rows if row.repetition is None and row.status != LEFT_OUT]
        counted_any = any(one.counted for one in self.repetitions.configurations)
        means = EndTable.of_means(self.repetitions, single) if counted_any else None
        table = means or EndTable.of_members(self.rows, self.objective)
        skipped = (
            f"{count:,} of {length:,} samples raised and were left out ({split})"
            for split, (count, length) in self.skipped.items()
        )
        known = self.seconds and not self.killed_drivers and self.status != "running"
        took = f" after {format_duration(self.seconds)}" if known else ""
        why = f" ({cause_of(self.reason)})" if self.reason else ""
        state = f"{self.status}{took}{why}: {format_counts([row.status for row in self.rows])}"
        ending = Ending(
            best=(*self._best(), *self._last_ensemble()),
            failures=(*skipped, *(row.failure for row in self.rows if row.failed)),
            logs=f"Logs: {self.directory / 'members' / (failed[0].name if len(failed) == 1 else 'NAME') / 'log.txt'}"
            if failed
            else "",
            columns=table.columns,
            rows=table.rows,
            everything=f"argosy report {shlex.quote(str(self.directory))} --verbose",
            note=table.note,
            state=f"{state}. Everything is in {self.directory}",
            limit=self.diagnosis.verdict if self.diagnosis is not None and self.diagnosis.stage != "training" else "",
            actions=self._actions(again, fixed),
        )
        # A relative path may be of another working directory.
        if self.directory.exists() or not self.directory.is_absolute():
            return ending
        # For example after `argosy.fit` without a directory.
        deleted = f"{state}. The files of the run are deleted."
        return replace(ending, best=ending.best[:1], logs="", everything="report.rows", state=deleted, actions=())

    def _best(self) -> tuple[str, ...]:
        leader = self.leader
        load = f"Load it: {self._load_expression}"
        if leader is None:
            row = next(filter(self._has_number, self.rows), None)
            if row is None:
                return (f"Best: none yet, because no member has a {self.objective} that counts.",)
            so_far = (
                f"{row.name}, {self.objective} {row.metrics[self.objective]:.4g} at epoch {format_best_epochs(row)}"
            )
            return (
                f"Best so far: {so_far}; no configuration has a mean that counts",
                f"{load}.member({row.name!r}).load()",
            )
        if leader.repetitions is not None:
            return f"Best: {leader}", f"{load}.ensemble(members=[{leader.name!r}])"
        row = self.member(leader.name)
        return f"Best: {leader} at epoch {format_best_epochs(row)}", f"{load}.member({row.name!r}).load()"

    def _last_ensemble(self) -> tuple[str, ...]:
        """Return the last ensemble of `Study.ensemble`, and how to load it."""
        last = next((chosen for chosen in reversed(self.ensembles) if chosen.loss is not None), None)
        if last is None:
            return ()
        loss = f"loss {last.loss:.4g}"
        if last.held_out is not None:
            loss = f"loss {last.held_out:.4g} on samples that were not used to choose it"
        count = sum(weight > 0 for weight in last.weights.values())
        return (
            f"Ensemble: {count} of {len(self.rows)} members, {loss}",
            f"Load an ensemble of all kept sections: {self._load_expression}.ensemble(select='bagged')",
        )

    @property
    def _load_expression(self) -> str:
        """Return the Python expression that reads this report again."""
        own = "search" if self.is_search else "study"
        study = f"{f'[{own}, added]' if self.has_added else own}){'.run' if self.is_search else ''}"
        return f"argosy.load({str(self.directory)!r}, study={study}"

    def _actions(self, again: str, fixed: str) -> tuple[tuple[str, str], ...]:
        folder = shlex.quote(str(self.directory))
        page = "Curves, devices", f"argosy report {folder} --open"
        if self.status == "running":
            stop = f"argosy stop {folder} NAME; without a name it stops all"
            return ("Watch it", f"{page[1]} --live"), ("Stop a member", stop)
        return (
            *([("Resume", again)] if self.status != "done" else []),
            *([("After a fix", fixed)] if any(row.status == "failed" for row in self.rows) else []),
            *([page] if any(row.metrics for row in self.rows) else []),
        )

    def __str__(self) -> str:
        return self.ending().text(*output_size())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return the same for a notebook."""
        return self.ending().html()

    def to_json(self) -> dict[str, Any]:
        """Return everything as a plain value."""
        return {
            "directory": str(self.directory),
            "status": self.status,
            "objective": self.objective,
            "seconds": round(self.seconds, 3),
            "killed_drivers": self.killed_drivers,
            "preparations_per_sample_and_epoch": self.preparations,
            "preparations_alone": self.preparations_alone,
            "keeping": dict(self.keeping),
            "skipped": {split: list(counts) for split, counts in self.skipped.items()},
            "waiting_share": round(self.waiting_share, 4),
            "cpu_seconds": round(self.cpu_seconds, 3),
            "joules": dict(self.joules),
            "sharing": asdict(self.sharing) if self.sharing else None,
            "ensembles": [asdict(chosen) for chosen in self.ensembles],
            "packs": [{**asdict(pack), "improvement": pack.improvement} for pack in self.packs],
            "alone": dict(self.alone),
            "diagnosis": asdict(self.diagnosis) if self.diagnosis else None,
            "best": self.leader.to_json() if self.leader else None,
            "legs": [asdict(leg) for leg in self.legs],
            "gauges": {worker: dict(gauge) for worker, gauge in self.gauges.items()},
            "members": self.table(),
            "configurations": [one.to_json() for one in self.repetitions.configurations],
            "comparisons": [one.to_json() for one in self.repetitions.comparisons],
        }

    def to_pandas(self) -> Any:
        """Return the table as a pandas DataFrame with integer, float, boolean and string columns; missing values are NA.

        Raises RunError if pandas is not installed.
        """
        return to_frame(self.table(), [*IDENTITY, "status", "epochs", "best_epoch"], whole=INTEGER_COLUMNS)

    @classmethod
    def of(
        cls,
        state: RunState,
        *,
        directory: Path,
        summary: dict[str, Any],
        networks: Callable[[], Networks],
        at_work: bool = False,
    ) -> "Report":
        """Build the report from a run's fold and its ``study.json``; `at_work` says that the run has a driver."""
        objective, mode = summary["objective"], summary["mode"]
        rows = [
            MemberResult.of(
                state.members.get(name, MemberState(name)),
                described,
                directory=directory,
                networks=networks,
                at_work=at_work,
            )
            for name, described in summary["members"].items()
        ]
        # The sort is stable: members with equal values stay in the order of the study.
        rows.sort(key=lambda row: (row.status == LEFT_OUT, rank(row.metrics.get(objective), mode, failed=row.failed)))
        repeated = [(row.repetition, row) for row in rows if row.repetition is not None and row.status != LEFT_OUT]
        used = list(itertools.chain.from_iterable(state.used))
        return cls(
            rows=tuple(rows),
            objective=objective,
            directory=directory,
            status="running" if at_work else state.ended.status if state.ended else "interrupted",
            reason=state.ended.reason if state.ended and not at_work else "",
            seconds=state.seconds,
            # The last driver was killed if it journaled no end and does not work any more.
            killed_drivers=state.killed + (state.started is not None and state.ended is None and not at_work),
            preparations=state.preparations if state.started else 0.0,
            preparations_alone=state.preparations_alone if state.started else 0.0,
            keeping=state.keeping,
            skipped=state.skipped,
            waiting_share=waiting_share(one.gauge for one in used),
            cpu_seconds=state.cpu_seconds,
            joules=state.joules,
            sharing=state.sharing,
            ensembles=tuple(state.ensembles),
            legs=legs_of(state),
            packs=tuple(state.packed),
            alone=state.alone,
            diagnosis=diagnose((one.worker, one.gauge) for one in used),
            repetitions=Repetitions.of(
                [(repetition, _outcome(row)) for repetition, row in repeated],
                objective=objective,
                mode=mode,
                held_out={(its.of, its.under): summary["members"][row.name].get("val_subset") for its, row in repeated},
            ),
            networks=networks,
            gauges=gauges_of(state),
            validations_per_epoch=summary["validations_per_epoch"],
            is_search=bool(state.searches),
            has_added=any(one.command.get("command") == "add" and not one.refused for one in state.answered),
        )


def _outcome(row: MemberResult) -> dict[str, float]:
    """Return the metrics of a member that is done, else nothing. A learning rate is not a metric."""
    return {name: value for name, value in row.metrics.items() if name != "lr" and row.status == "done"}
