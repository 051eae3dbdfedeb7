"""The command line: parse, call the stages, print. Every command has ``--json``."""

import contextlib
import os
import shlex
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from argosy.cli import cache as cache_cli
from argosy.cli import doctor as doctor_cli
from argosy.cli import export as exporting_cli
from argosy.cli import plan as planning_cli
from argosy.cli import report as reporting_cli
from argosy.cli import runs as runs_cli
from argosy.cli import steer as steering_cli
from argosy.cli.options import (
    Address,
    Commands,
    Directory,
    Fresh,
    LauncherName,
    SearchFile,
    Track,
    Verbose,
    takes_settings,
)
from argosy.cli.query import compare, query
from argosy.cli.report import ReportCommand, RunCommand, print_results, summary_of, typed_command
from argosy.cli.schema import guide, schema
from argosy.cli.steer import StudyFile
from argosy.disk.files import user_path
from argosy.errors import ArgosyError, PlanError, RunError
from argosy.errors.system import system_refused
from argosy.errors.wording import format_bytes
from argosy.profiles import load_profiles, save_profiles
from argosy.running.hosts.place import JobPlace, choose_job_place, seconds_left
from argosy.settings import Settings
from argosy.version import __version__
from argosy.views.output import (
    All,
    Json,
    console,
    open_missing_streams,
    output_path,
    print_output,
    print_table,
    reporting_interrupts,
)

if TYPE_CHECKING:
    from argosy.results.report import Report
    from argosy.running.control.pairs import Pair
    from argosy.running.launch.launcher import Launcher
    from argosy.running.watch.view import View
    from argosy.tuning.report import SearchReport


@takes_settings()
def run(
    study_file: StudyFile,
    directory: Directory = None,
    fresh: Fresh = None,
    launcher: LauncherName = "auto",
    address: Address = None,
    track: Track = None,
    verbose: Verbose = False,
    as_json: Json = False,
    **settings: Any,
) -> None:
    """Train every member of a study file."""
    place = choose_job_place(launcher, os.environ)
    chosen = _settings(settings, place)
    directory = _directory(directory, study_file)
    _serve(place, chosen, directory)
    with _launcher(launcher, place, directory, address) as opened:
        from argosy.running.directory.studyfile import load_study  # beside the launcher's own imports

        study = load_study(study_file)
        if "" in (fresh or ()):  # only now: a file that cannot be read must not move an earlier run
            _set_aside(directory, quiet=as_json)
        from argosy import api  # after the study file, which may be no study

        names = [name for name in fresh or () if name]
        watching: dict[str, Any] = {"view": _view(quiet=as_json), "trackers": track or ()}
        report = api.run(study, chosen, directory, fresh=names, launcher=opened, **watching)
    _finish(report, as_json=as_json, verbose=verbose)
    raise typer.Exit(_exit_code(report))


@takes_settings(but=("policy", "preparing_nodes", "packing", "retry_failed"))
def tune(
    search_file: SearchFile,
    directory: Directory = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over; the old directory is kept.")] = False,
    storage: Annotated[
        str | None,
        typer.Option(help="URL of Optuna's storage, such as sqlite:///search.db; by default a file in the directory."),
    ] = None,
    study_name: Annotated[
        str | None, typer.Option(help="Name of the Optuna study there; by default the directory's name.")
    ] = None,
    launcher: LauncherName = "auto",
    address: Address = None,
    track: Track = None,
    verbose: Verbose = False,
    as_json: Json = False,
    **settings: Any,
) -> None:
    """Search for the best hyper-parameters: every trial is a member of one fleet (extra: tune)."""
    place = choose_job_place(launcher, os.environ)
    chosen = _settings(settings, place)
    directory = _directory(directory, search_file)
    _serve(place, chosen, directory)
    with _launcher(launcher, place, directory, address) as opened:
        from argosy import api  # beside the launcher's own imports
        from argosy.running.directory.studyfile import load_search
        from argosy.tuning.search import Store

        search = load_search(search_file)
        if fresh:  # as in `run`
            _set_aside(directory, quiet=as_json)
        store = Store(url=storage, name=study_name)
        watching: dict[str, Any] = {"view": _view(quiet=as_json), "trackers": track or ()}
        report = api.run_search(search, chosen, directory, store=store, launcher=opened, **watching)
    _finish(report, as_json=as_json, verbose=verbose)
    raise typer.Exit(_exit_code(report.run))


DEMO_NEEDS = {"Pillow": "PIL", "scikit-learn": "sklearn"}
"""Packages of the extra demo, with their modules."""


@takes_settings("devices")
def demo(
    directory: Annotated[Path, typer.Option("--dir", help="Directory of the run.")] = Path("runs/demo"),
    compare: Annotated[
        bool, typer.Option("--compare", help="Also run the same study under policy solo, and time both.")
    ] = False,
    verbose: Verbose = False,
    as_json: Json = False,
    **settings: Any,
) -> None:
    """Train eight different networks on scikit-learn's handwritten digits, every sample prepared once."""
    if missing := [package for package, module in DEMO_NEEDS.items() if find_spec(module) is None]:
        raise RunError(
            f"argosy demo lacks {' and '.join(missing)}. Install with pip install 'argosy[demo]', or run uvx "
            "--from 'argosy[demo]' argosy demo."
        )
    directory = directory.absolute()
    folders = {"balanced": directory}
    if compare:
        folders["solo"] = directory.with_name(f"{directory.name}-solo")
    reports = {}
    for policy, folder in folders.items():
        with _launcher("processes") as place:
            from argosy import api  # beside the launcher's own imports
            from argosy.cli.demo import study

            chosen = Settings(**settings, policy=policy)
            reports[policy] = api.run(study, chosen, folder, launcher=place, view=_view(quiet=as_json))
        if reports[policy].status != "done":
            break
    ratio = reports["solo"].seconds / reports["balanced"].seconds if len(reports) == 2 else None
    if as_json and compare:
        print_output(
            {**{policy: summary_of(report) for policy, report in reports.items()}, "times_as_long": ratio},
            every=verbose,
        )
    else:
        for report in reports.values():
            _finish(report, as_json=as_json, verbose=verbose)
        if ratio is not None:
            print_output(f"The same study with a pipeline for each member took {ratio:.2f} times as long.")
    raise typer.Exit(max(_exit_code(report) for report in reports.values()))


@takes_settings("devices", "policy")
def plan(
    study_file: StudyFile,
    cluster: Annotated[
        str | None, typer.Option(help="Plan for this cluster instead: nodes x devices x memory, such as 2x4x80GB.")
    ] = None,
    profiles: Annotated[
        Path | None, typer.Option(help="Profiles that `argosy profile` measured on a device of that cluster.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Draw the cluster's timeline in this file.")] = None,
    every: All = False,
    as_json: Json = False,
    **settings: Any,
) -> None:
    """Show which members would share which device at which pace, here or on a cluster, without training."""
    if cluster is None and (profiles or html):
        raise PlanError(
            "--profiles and --html need a --cluster, which was not given. Set it, for example --cluster "
            "2x4x80GB, or omit them."
        )
    known = None if profiles is None else load_profiles(profiles)
    html = None if html is None else output_path(html)
    with _launcher("processes") as place:
        from argosy import api  # beside the launcher's own imports
        from argosy.running.directory.studyfile import load_study

        chosen, study = Settings(**settings), load_study(study_file)
        if cluster is None:
            planned = api.plan(study, launcher=place, **settings)
            train_them = typed_command().replace(" plan ", " run ", 1)
            print_output(
                planned.to_json() if as_json else f"{planned.explain()}\n\nTrain them:      {train_them}", every=every
            )
            return
        forecast = api.forecast_cluster(study, cluster, settings=chosen, launcher=place, profiles=known)
    if html is not None:
        from argosy.views.timeline import write_timeline

        write_timeline(forecast.simulation, html)
    if as_json:
        print_output(forecast.to_json(), every=every)
        return
    print_output(f"{forecast.explain()}\n")
    if html is not None:
        print_output(f"Timeline:        {html}")
    train_there = [
        "srun",
        "argosy",
        "run",
        str(study_file),
        *([] if chosen.policy == "balanced" else ["--policy", chosen.policy]),
    ]
    print_output(f"Train there:     {shlex.join(train_there)}")


@takes_settings("devices")
def profile(
    study_file: StudyFile,
    out: Annotated[Path, typer.Option(help="Output file, for `argosy plan --profiles`.")] = Path("profiles.json"),
    node_devices: Annotated[int, typer.Option(help="Devices per node of the planned cluster.", min=1)] = 4,
    pairs: Annotated[
        bool, typer.Option("--pairs", help="Also measure what each pair of members saves by sharing a device.")
    ] = False,
    every: All = False,
    as_json: Json = False,
    **settings: Any,
) -> None:
    """Measure the costs of members, alone and in groups of devices, as FLEET does, for `argosy plan --profiles`."""
    out = output_path(out)
    with _launcher("processes") as place:
        from argosy import api  # beside the launcher's own imports
        from argosy.running.directory.studyfile import load_study

        study, chosen = load_study(study_file), Settings(**settings)
        device = place.discover(chosen).devices[0].name
        costs = api.profile(study, settings=chosen, launcher=place, node_devices=node_devices)
    save_profiles(out, costs.profiles)
    measured_pairs: Sequence[Pair] = ()
    if pairs:
        from argosy.running.control.pairs import measure_pairs

        measured_pairs = measure_pairs(study, [profile.member for profile in costs.profiles], device, chosen)
    if as_json:
        measured = [{**asdict(pair), "improvement": pair.improvement} for pair in measured_pairs]
        print_output(
            {"out": str(out), "profiles": [p.to_json() for p in costs.profiles], "pairs": measured}, every=every
        )
        return
    for known in costs.profiles:
        rates = ", ".join(f"{rate:,.0f}" for rate in known.samples_per_second)
        print_output(f"{known.member}: {rates} samples/s on 1, 2, … devices; {format_bytes(known.memory_bytes)}")
    if measured_pairs:
        from argosy.views.pairs import pairs_table

        print_table(pairs_table(measured_pairs))
    plan_it = shlex.join(["argosy", "plan", str(study_file), "--cluster", "2x4x80GB", "--profiles", str(out)])
    print_output(f"\nWritten:         {out}\nPlan a cluster:  {plan_it}")


def _version(asked: bool) -> None:
    if asked:
        print_output(f"argosy {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Train a whole fleet of networks as one job."""


DEFAULT_FORMAT = warnings.formatwarning
PANELS: Mapping[str, Sequence[Callable[..., None]]] = {
    "Train": (run, tune),
    "Inspect": (runs_cli.runs, reporting_cli.status, reporting_cli.report, compare, query, reporting_cli.audit),
    "Export": (exporting_cli.export,),
    "Change a run in progress": (steering_cli.stop, steering_cli.add, steering_cli.clone),
    "Try, check and clean up": (demo, doctor_cli.doctor, cache_cli.cache),
    "Plan": (plan, profile, planning_cli.simulate),
    "Automate": (guide, schema),
}
"""Commands by panel of ``--help``, in the order in which users come to need them."""

app: typer.Typer = typer.Typer(cls=Commands, add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
app.callback()(_options)
for _panel, _commands in PANELS.items():
    for _command in _commands:
        _kind = {run: RunCommand, reporting_cli.report: ReportCommand}.get(_command)
        app.command(cls=_kind, rich_help_panel=_panel)(_command)


def main() -> None:
    """Entry point of the command ``argosy``: turns errors into one message and an exit code."""
    open_missing_streams()
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # the encoding may lack letters of a member's name
    warnings.formatwarning = _warning
    try:
        app()
    except (ArgosyError, OSError, MemoryError, RuntimeError) as error:
        known = error if isinstance(error, ArgosyError) else system_refused(error, "argosy cannot continue")
        if known is None:
            raise
        # Without a terminal, lines are not wrapped, so that paths can be copied.
        message = f"{type(known).__name__}: {known}"
        console(stderr=True).print(message, style="red", soft_wrap=True)
        sys.exit(known.exit_code)


def _warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Format a warning like Python, but without a source line if that is Typer's, as for warnings about the caller of a run."""
    of_typer = Path(filename).is_relative_to(Path(typer.__file__).parent)
    return f"Warning: {message}\n" if of_typer else DEFAULT_FORMAT(message, category, filename, lineno, line)


@contextlib.contextmanager
def _launcher(
    name: str, place: JobPlace | None = None, directory: Path = Path(), address: str | None = None
) -> Iterator["Launcher"]:
    """Open a launcher; processes start early, so that they import torch while this process imports the study."""
    if address is not None and name != "ray":
        raise PlanError(
            f"--address {address} is that of a Ray cluster, but the launcher is {name!r}. Add --launcher ray, or omit --address."
        )
    if place is not None and place.nodes > 1:
        from argosy.running.hosts.agents import Agents

        launcher: Launcher = Agents(place, directory).warm()
    elif name == "ray":
        from argosy.api import ray_cluster

        launcher = ray_cluster(address)
    elif name != "inline":
        from argosy.running.launch.forkserver import ForkServer

        server = ForkServer.start()  # first, as this process imports torch for a launcher
        from argosy.running.launch.processes import Processes

        launcher = Processes(server)
    else:
        from argosy.running.launch.inline import Inline

        launcher = Inline()
    with contextlib.closing(launcher), reporting_interrupts():
        yield launcher


def _directory(given: Path | None, file: Path) -> Path:
    """Return the run directory for a study file; absolute, because the file may change the working directory."""
    return (Path("runs", file.stem) if given is None else user_path(given)).absolute()


def _set_aside(directory: Path, *, quiet: bool) -> None:
    from argosy.running.directory.anew import set_run_aside

    place = set_run_aside(directory)
    if place is not None and not quiet:
        print_output(f"The old contents of {directory} are kept in {place}.")


def _settings(given: Mapping[str, Any], place: JobPlace | None) -> Settings:
    """Complete the settings with the number of nodes and the remaining time of the job, unless they are given."""
    values = dict(given)
    if place is not None and given["nodes"] == 1:
        values["nodes"] = place.nodes
    if given["time_limit"] is None:
        values["time_limit"] = seconds_left(os.environ, time.time())
    return Settings(**values)


def _serve(place: JobPlace | None, settings: Settings, directory: Path) -> None:
    """If another process of the job is the driver, serve as the agent of this node, then exit."""
    if place is not None and place.rank > 0:
        from argosy.running.hosts.agent import run_job_process

        raise typer.Exit(run_job_process(place, settings, directory))


def _view(*, quiet: bool) -> "View | None":
    if quiet:
        return None
    from argosy.views.terminal import Terminal

    return Terminal(console())


def _finish(report: "Report | SearchReport", *, as_json: bool, verbose: bool) -> None:
    print_results(report, typed_command(), f"{typed_command()} --retry-failed", as_json=as_json, verbose=verbose)


def _exit_code(report: "Report") -> int:
    if report.status == "paused":
        return 130
    nothing = bool(report.rows) and all(row.failed for row in report.rows)
    # A search is not in vain because one of its trials fails.
    return int(nothing or (not report.is_search and any(row.status == "failed" for row in report.rows)))
