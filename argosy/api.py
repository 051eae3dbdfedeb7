"""The entry points `train`, `tune`, `plan` and `profile`, each a few lines over the packages that do the work."""

import contextlib
import functools
import math
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from argosy.cluster import Cluster
from argosy.described import document_keywords
from argosy.disk.files import user_path
from argosy.disk.scratch import scratch
from argosy.errors import DiskError, PlanError, RunError, StudyError
from argosy.errors.checks import describe_value
from argosy.errors.optional import optional
from argosy.errors.spelling import did_you_mean, known_keywords
from argosy.errors.system import explain_refusals
from argosy.planning.forecast import Forecast, forecast
from argosy.plans import Plan
from argosy.profiles import PreparationRates, Profile
from argosy.results.failures import raise_failures, warn_of_failures, warn_of_interrupts, warn_of_trials
from argosy.results.fold import RunState
from argosy.results.report import Report
from argosy.running.control.costs import Costs
from argosy.running.control.driver import drive
from argosy.running.control.profiling import first_plan, measure
from argosy.running.directory.anew import make_began_anew, set_run_aside
from argosy.running.directory.journal import Journal, read_journal
from argosy.running.directory.loading import check_sections, load_report, load_timed
from argosy.running.directory.lock import Lock, make_own_directory
from argosy.running.launch.inline import Inline
from argosy.running.launch.launcher import Job, Launcher, Workers
from argosy.running.launch.limits import limit_cores, usable_cores
from argosy.running.launch.processes import Processes
from argosy.running.watch.apart import ThreadedView
from argosy.running.watch.hooks import Hooked
from argosy.running.watch.view import Silent, View
from argosy.settings import Settings, Sharing
from argosy.stopping import Mode, sections_in
from argosy.study import Data, Member, Study
from argosy.tracking import Tracker, make_trackers
from argosy.tuning.hyperband import Brackets
from argosy.tuning.report import SearchReport
from argosy.tuning.search import Search, Store
from argosy.views.bar import progress_bar
from argosy.views.output import open_missing_streams, print_output
from argosy.views.trackers import Tracked

__all__ = ["LAUNCHERS", "forecast_cluster", "plan", "profile", "ray_cluster", "run", "run_search", "train", "tune"]

C = TypeVar("C", bound=Callable[..., Any])
T = TypeVar("T", Settings, Search)


def ray_cluster(address: str | None = None) -> Launcher:
    """Return an `argosy.Ray` launcher for an address; raises RunError if Ray is not installed."""
    with optional(RunError, "launcher 'ray' needs Ray", "'argosy[ray]'"):
        from argosy.running.hosts.ray_cluster import Ray
    return Ray(address=address)


LAUNCHERS: dict[str, Callable[[], Launcher]] = {"processes": Processes, "inline": Inline, "ray": ray_cluster}


@known_keywords("argosy.train")
@document_keywords(Settings, "Settings")
def train(
    study: Study,
    *,
    directory: str | Path | None = None,
    fresh: bool | str | Sequence[str] = False,
    devices: str | None = None,
    launcher: Launcher | str = "processes",
    policy: str = "balanced",
    nodes: int = 1,
    sharing: Sharing = "auto",
    preparing_nodes: int | None = None,
    packing: Literal["auto", "interleaved"] = "auto",
    numerics: Literal["equivalent", "exact"] = "equivalent",
    like: str | None = None,
    compile: bool = False,
    time_limit: float | None = None,
    loader_workers: int | None = None,
    cores: int | None = None,
    block_size: int | None = None,
    keep_bytes: int | None = None,
    checkpoint_seconds: float = 300.0,
    hang_seconds: float = 120.0,
    threads: int = 1,
    retry_failed: bool = False,
    on_end: str | None = None,
    on_diverged: str | None = None,
    raise_on_failure: bool = False,
    quiet: bool = False,
    progress: bool = False,
    trackers: Sequence[Tracker | str] = (),
    view: View | None = None,
) -> Report:
    """Train every member of a study on one shared stream; the same call on the same directory resumes.

    The directory is ``runs/`` and the name of the script by default, ``runs/argosy`` in a notebook or interpreter. With ``fresh=True`` the
    run starts over, and the old directory is kept beside the new one; with names, such as ``fresh=["mlp"]``, only these members or
    configurations start over.

    A script prints the report at the end unless `quiet` is set; a notebook displays the return value of its cell. With `progress`, a progress
    bar is shown; `view` is any other observer. Trackers, such as ``["tensorboard"]``, receive all metrics; `argosy.tracking` lists them.
    With the launcher ``"inline"`` everything runs in this process, as a debugger needs it; ``"ray"`` or an `argosy.Ray` is a Ray cluster.

    Raises StudyError, PlanError and RunError for errors that the caller has to correct, and WorkerError if a process was lost. A member that
    fails or diverges causes a MemberFailed warning with the reason, and the others are trained to the end; with `raise_on_failure` a
    MemberError then names all of them. If the first three fail in the same way, a MemberError ends the run at once.
    """
    settings = _from_arguments(Settings, locals())  # locals() holds only the arguments yet
    _check_study("argosy.train", study)
    if not isinstance(fresh, bool | str | Collection):
        raise StudyError(f"fresh is {describe_value(fresh)}; it must be True, False or names of members.")
    place = _launcher(launcher)
    watching = _watching(view, progress=progress)
    folder = Path("runs", _script()) if directory is None else user_path(directory)
    if fresh is True:  # only now: arguments that are refused must not move an earlier run
        set_run_aside(folder)
    names = [fresh] if isinstance(fresh, str) else () if isinstance(fresh, bool) else fresh
    report = run(study, settings, folder, fresh=names, launcher=place, view=watching, trackers=trackers)
    _print_in_script(report, quiet=quiet)
    (raise_failures if raise_on_failure else warn_of_failures)(report.rows)
    return report


def _from_arguments(kind: type[T], arguments: Mapping[str, Any]) -> T:
    """Return `Settings` or a `Search` from the arguments of a call, which have the names of its fields."""
    return kind(**{one.name: arguments[one.name] for one in fields(kind)})


def _check_study(function: str, study: Any) -> None:
    if not isinstance(study, Study):
        fix = (
            "Pass it to argosy.tune." if isinstance(study, Search) else "Pass argosy.Study(data=data, members=members)."
        )
        raise StudyError(f"{function} was given {describe_value(study)}; it must be an argosy.Study. {fix}")


def _script_file() -> Path | None:
    """Return the file of the script; None in a notebook or an interpreter, also in that of Python 3.13, which runs as a module with a file."""
    file = getattr(sys.modules["__main__"], "__file__", None)
    return None if file is None or Path(file).parent.name == "_pyrepl" else Path(file)


def _script() -> str:
    """Return the name of the script, or ``argosy`` if there is none."""
    path = _script_file() or Path("argosy")
    return path.resolve().parent.name if path.stem == "__main__" else path.stem.strip("<>")  # such as <stdin>


def _print_in_script(report: Report | SearchReport, *, quiet: bool) -> None:
    """Print the report if a script is running, and if nothing is printed warn of an interrupt.

    Interactive interpreters and notebooks display the return value themselves, unless a variable takes it.
    """
    if not quiet and _script_file() is not None:
        with contextlib.suppress(DiskError):  # a full disk under the log must not lose the return value
            print_output(f"{report}")
    else:
        warn_of_interrupts(report if isinstance(report, Report) else report.run)


def _launcher(launcher: Launcher | str) -> Launcher:
    if isinstance(launcher, str) and launcher in LAUNCHERS:
        return LAUNCHERS[launcher]()
    if isinstance(launcher, str | type) or not all(hasattr(launcher, name) for name in ("discover", "open", "close")):
        raise RunError(
            f"unknown launcher {launcher!r}{did_you_mean(launcher, LAUNCHERS)}; choose one of {', '.join(LAUNCHERS)}, or pass an object of your own with discover, "
            "open and close. To use several hosts without Ray, run the study by command, for example srun argosy run study.py."
        )
    return launcher


def _watching(view: View | None, *, progress: bool) -> View | None:
    if not progress:
        return view
    if view is not None:
        raise StudyError(
            "view= and progress=True were both given, but only one of them can watch a run. Remove one of them."
        )
    return progress_bar()


def run(
    study: Study,
    settings: Settings,
    directory: Path,
    *,
    fresh: Sequence[str] = (),
    launcher: Launcher,
    view: View | None,
    trackers: Sequence[Tracker | str] = (),
) -> Report:
    """Run `train` with its settings as one value. The `fresh` members start over. Neither a view nor a tracker can delay the run."""
    directory = directory.absolute()  # the study's code may change the working directory
    # Hooks end last, because ``on_end`` runs when the directory is free again.
    with Hooked(_with_trackers(view, trackers, directory), settings, directory) as watching:
        with _claim_directory(directory, settings, launcher) as (lock, journal):
            state = RunState.of(read_journal(directory))
            anew = make_began_anew(fresh, study, state, directory)
            if anew is not None:
                state.apply(anew)
            check_sections(state, directory)
            cluster = launcher.discover(settings)
            job = Job(study=study, settings=settings, directory=directory, lock=lock.descriptor)
            trained = drive(job, cluster, launcher.open(job), journal, state, watching, anew=anew)
        report = load_report(directory, study=trained, compares=False)
        watching.run_on_end(report, report.leader)
    return report


def _with_trackers(view: View | None, trackers: Sequence[Tracker | str], directory: Path) -> View:
    """Return the view combined with the trackers; none of them can disturb another."""
    watching = Silent() if view is None else ThreadedView(view)
    return Tracked(watching, make_trackers(trackers), directory / "workers") if trackers else watching


@contextlib.contextmanager
def _claim_directory(directory: Path, settings: Settings, launcher: Launcher) -> Iterator[tuple[Lock, Journal]]:
    """Claim a run directory for this driver exclusively."""
    open_missing_streams()
    make_own_directory(directory)
    with (
        contextlib.closing(launcher),
        explain_refusals(directory),
        limit_cores(settings.cores),
        Lock(directory / "run.lock") as lock,
        Journal(directory / "journal.jsonl") as journal,
    ):
        yield lock, journal


def _unpacks_search(tune: C) -> C:
    """Let `tune` accept a `Search` in place of its keywords; keywords given beside it override those of the search."""

    @functools.wraps(tune)
    def unfolded(build: Any, *values: Any, **keywords: Any) -> Any:
        if isinstance(build, Search):
            own = {one.name: getattr(build, one.name) for one in fields(build)}
            build, keywords = own.pop("build"), {**own, **keywords}
        return tune(build, *values, **keywords)

    return cast("C", unfolded)


@known_keywords("argosy.tune", Settings)
@_unpacks_search
def tune(
    build: Search | Callable[..., Member | Sequence[Member]],
    space: Mapping[str, Any] | Callable[[Any], Mapping[str, Any] | None] | None = None,
    *,
    data: Data | None = None,
    max_epochs: float | None = None,
    scheduler: str = "hyperband",
    eta: int = 3,
    n_trials: int | None = None,
    epochs_per_generation: int = 1,
    brackets: Brackets | None = None,
    at_once: int | None = None,
    objective: str | Mapping[str, Mode] = "",
    mode: Mode | None = None,
    constraints: Callable[[Mapping[str, float]], Sequence[float]] | None = None,
    sampler: Callable[..., Any] | None = None,
    enqueue: Sequence[Mapping[str, Any]] = (),
    seed: int = 0,
    validations_per_epoch: int = 1,
    warm: bool = True,
    packs: str = "planned",
    directory: str | Path | None = None,
    fresh: bool = False,
    storage: str | None = None,
    study_name: str | None = None,
    raise_on_failure: bool = False,
    quiet: bool = False,
    launcher: Launcher | str = "processes",
    progress: bool = False,
    trackers: Sequence[Tracker | str] = (),
    view: View | None = None,
    **settings: Any,
) -> SearchReport:
    """Search for the best hyper-parameters: every trial is a member of one fleet, on one shared stream. Needs the extra ``tune``.

    The keywords that describe the search are documented in `argosy.Search`. They can also be given as one value, ``argosy.tune(search)``;
    keywords beside it, as in ``argosy.tune(search, n_trials=60)``, override it. Keywords described neither there nor here are those of
    `argosy.train`.

    The same call on the same directory resumes, and with a larger `n_trials` or `max_epochs` continues further. The directory is ``runs/``
    and the name of the script with ``-search`` by default. With `fresh` the search starts over, and the old directory is kept. Optuna's
    storage is a file in the directory, or at `storage`, any URL that Optuna supports, under `study_name`. A script prints the report unless
    `quiet` is set. Raises what `train` raises; if trials fail or diverge, one MemberFailed warning names the first of them.
    """
    if not isinstance(fresh, bool):
        raise StudyError(
            f"fresh is {fresh!r}; for a search it must be True or False, where True starts the whole search over. Single trials "
            "cannot start over."
        )
    search = _from_arguments(Search, locals())
    place, chosen = _launcher(launcher), Settings(**settings)
    store = Store(url=storage, name=study_name)
    watching: dict[str, Any] = {"view": _watching(view, progress=progress), "trackers": trackers}
    folder = Path("runs", f"{_script()}-search") if directory is None else user_path(directory)
    if fresh:  # as in `train`
        set_run_aside(folder)
    report = run_search(search, chosen, folder, store=store, launcher=place, **watching)
    _print_in_script(report, quiet=quiet)
    (raise_failures if raise_on_failure else warn_of_trials)(report.run.rows)
    return report


def run_search(
    search: Search,
    settings: Settings,
    directory: Path,
    *,
    store: Store,
    launcher: Launcher,
    view: View | None,
    trackers: Sequence[Tracker | str] = (),
) -> SearchReport:
    """Run `tune` with its arguments as values."""
    from argosy.running.search.tuner import Tuner  # imports Optuna

    if settings.retry_failed:
        raise StudyError("retry_failed is only for argosy.train: a search keeps a failed trial as failed. Remove it.")
    if search.packs != "planned" and settings.policy != "balanced":
        raise StudyError(
            f"packs={search.packs!r} decides which trials train together, but so does policy={settings.policy!r}. Set only one of them."
        )
    directory = directory.absolute()  # the user's code may change the working directory
    with Hooked(_with_trackers(view, trackers, directory), settings, directory) as watching:
        with _claim_directory(directory, settings, launcher) as (lock, journal):
            events = read_journal(directory)
            state = RunState.of(events)
            check_sections(state, directory)
            tuner = Tuner.of(search, events)
            tuner.warn()
            tuner.replay(events, state)
            tuner.check_enqueued()
            brought = tuner.bring(state)
            job = Job(study=tuner.study, settings=settings, directory=directory, lock=lock.descriptor)
            tuner.begin(brought, job, journal, state, store)
            cluster = launcher.discover(settings)
            watching.expect(partial(tuner.epochs_to_come, state))
            roles: dict[str, Any] = {"judges": [tuner], "bringers": [tuner], "packs": tuner.policy}
            try:
                trained = drive(job, cluster, launcher.open(job), journal, state, watching, **roles)
            finally:
                tuner.leave(state)
        run, timed = load_timed(directory, study=trained, compares=False)
        report = SearchReport.of(run, timed, tuner.sampling.study)
        watching.run_on_end(run, report.leader)
    return report


@known_keywords("argosy.plan", Settings)
def plan(study: Study, *, launcher: Launcher | str = "processes", **settings: Any) -> Plan:
    """Measure the members on this machine and return which of them would share which device at which pace, without training.

    `launcher` and `settings` are those of `argosy.train`. A run of the same study and settings starts with this plan. Members that wait, and
    members left behind when others stop, are placed during the run.
    """
    _check_study("argosy.plan", study)
    with _measuring_only(study, Settings(**settings), _launcher(launcher)) as measured:
        return first_plan(*measured)


def profile(
    study: Study, *, settings: Settings | None = None, launcher: Launcher | None = None, node_devices: int | None = None
) -> Costs:
    """Measure what members and preparation cost, without training.

    With `node_devices`, members are measured as in FLEET §6.1 (48 batches, of which the last 20 count), and groups of up to M_t devices
    too: the steps of one shard are measured here, and the all-reduce is computed for the bandwidth of a typical link.
    """
    with _measuring_only(study, settings or Settings(), launcher or Processes()) as measured:
        return measure(*measured, node_devices=node_devices)


@contextlib.contextmanager
def _measuring_only(
    study: Study, settings: Settings, launcher: Launcher
) -> Iterator[tuple[Job, Cluster, Workers, Journal]]:
    """Yield everything that measures members, in a folder that is deleted afterwards."""
    with scratch("profile") as directory, _claim_directory(directory, settings, launcher) as (lock, journal):
        job = Job(study=study, settings=settings, directory=directory, lock=lock.descriptor)
        yield job, launcher.discover(settings), launcher.open(job), journal


def forecast_cluster(
    study: Study,
    cluster: str,
    *,
    settings: Settings | None = None,
    launcher: Launcher | None = None,
    profiles: Sequence[Profile] | None = None,
) -> Forecast:
    """Predict what a cluster that need not exist, written as in ``2x4x80GB``, would do with a study.

    Profiles carried from one of its devices are better than those measured here; the forecast says which they are.
    """
    settings = settings or Settings()
    Cluster.parse(cluster)  # refused before members are measured
    names = {member.name for member in study.members}
    carried = [known for known in profiles or () if known.member in names]
    if profiles is not None and len(carried) < len(names):
        missing = sorted(names - {known.member for known in carried})
        raise PlanError(
            f"the profiles do not include {', '.join(map(repr, missing))}. Measure all members with `argosy profile`."
        )
    # With profiles only preparation has to be measured, and no groups of devices.
    costs = profile(study, settings=settings, launcher=launcher, node_devices=None if profiles else 4)
    core = costs.preparation_seconds_per_sample
    most = usable_cores()
    rates = tuple((cores, cores / core) for cores in sorted({1, most})) if core else ()
    rules, per_epoch = {member.name: study.stop_of(member) for member in study.members}, study.validations_per_epoch
    limits = {name: rule.max_epochs for name, rule in rules.items() if rule.max_epochs is not None}
    sure = [
        name for name, limit in limits.items() if rules[name].certain((), per_epoch) >= sections_in(limit, per_epoch)
    ]
    return forecast(
        carried or costs.profiles,
        cluster,
        epochs={name: math.ceil(limit) for name, limit in limits.items()},
        samples_per_epoch=costs.lengths["train"],
        # An ensemble may end any member.
        epochs_known=study.ensemble is None and len(sure) == len(rules),
        policy=settings.policy,
        preparation=PreparationRates(samples_per_second=rates) if rates else None,
        profiles_from="carried" if carried else "measured here",
    )
