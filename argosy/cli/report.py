"""``argosy status``, ``report`` and ``audit``: show the progress of a run, show its results, and check them."""

import csv
import io
import shlex
import sys
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from argosy.cli.options import Verbose
from argosy.cli.steer import RunDirectory
from argosy.disk.files import replacing
from argosy.results.ending import output_size
from argosy.running.directory.lock import wait_for_data, wait_for_section
from argosy.views.output import All, Json, output_path, print_output, print_table

if TYPE_CHECKING:
    from argosy.results.report import Report
    from argosy.tuning.report import SearchReport

__all__ = [
    "ReportCommand",
    "RunCommand",
    "audit",
    "load_reports",
    "summary_of",
    "print_results",
    "report",
    "status",
    "typed_command",
]

DETAILS = ("ensembles", "packs", "alone", "legs", "gauges")
"""Keys of a report that only describe how it was made."""
BEGUN_BY = "the command that started it"
"""How a run is resumed whose command is not known here."""


def status(
    directory: RunDirectory,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the next section, or the run, has ended.")] = False,
    verbose: Verbose = False,
    as_json: Json = False,
) -> None:
    """Show the progress of a run, from its journal alone."""
    if wait:
        wait_for_section(directory)
    loaded, search = load_reports(directory)
    if not as_json:
        _print_results_of(loaded, search, as_json=False, verbose=verbose)
        return
    rows = [
        {"member": row.name, "status": row.status, "epochs": row.epochs, "best_epoch": row.best_epoch, **row.metrics}
        for row in loaded.rows
    ]
    trials = {} if search is None else {"trials": search.table()}
    leader = (search or loaded).leader
    best = leader.to_json() if leader else None
    print_output(
        {"status": loaded.status, "objective": loaded.objective, "best": best, "members": rows, **trials}, every=verbose
    )


def report(
    directory: RunDirectory,
    html: Annotated[bool, typer.Option("--html", help="Write report.html, a page with figures.")] = False,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    live: Annotated[bool, typer.Option("--live", help="Update the page while the run is in progress.")] = False,
    verbose: Verbose = False,
    csv_file: Annotated[
        str | None,
        typer.Option(
            "--csv",
            metavar="[FILE.csv]",
            help="Write learning curves, one row per value, to a file or to the terminal.",
        ),
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write figures for a paper as PNG, SVG and PDF (extra: report).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the results of a run, from its journal alone, or write them as a self-contained HTML page."""
    page_wanted = html or open_ or live
    if not page_wanted and csv_file is None and figures is None:
        _print_results_of(*load_reports(directory), as_json=as_json, verbose=verbose)
        return
    from argosy.cli import pages

    if live:
        wait_for_data(directory)
    written, goes_on = _write_exports(directory, csv_file, figures, as_json=as_json), False
    if page_wanted:
        page, goes_on = pages.write_page(directory, live=live)
        written["page"] = str(page)
    _print_written(written, as_json=as_json, every=verbose)
    if open_:
        webbrowser.open(Path(written["page"]).resolve().as_uri())
    if goes_on:
        pages.update_page(directory)


def audit(directory: RunDirectory, every: All = False, as_json: Json = False) -> None:
    """Check that every member saw every sample of its epochs exactly once, in order; exit code 1 if not."""
    from argosy.running.directory import audit as auditing

    problems = auditing.audit(directory)
    if as_json:
        print_output({"directory": str(directory), "passes": not problems, "found": problems}, every=every)
    elif problems:
        print_output("\n".join([*problems, "", "Train these members again, in another directory."]))
    else:
        print_output(
            f"{directory}: every member saw every sample of its epochs exactly once, in order. There is nothing to do."
        )
    raise typer.Exit(1 if problems else 0)


def _write_exports(directory: Path, csv_file: str | None, figures: Path | None, *, as_json: bool) -> dict[str, Any]:
    """Write the curves as CSV (printed if the file name is empty) and the figures; return what was written."""
    written: dict[str, Any] = {}
    if csv_file is None and figures is None:
        return written
    loaded, search = load_reports(directory)
    if csv_file == "" and as_json:
        written["curves"] = [*loaded.curve_rows()]
    elif csv_file is not None:
        text = io.StringIO()
        table = csv.DictWriter(text, loaded.curve_columns, lineterminator="\n")
        table.writeheader()
        table.writerows(loaded.curve_rows())
        if csv_file:
            file = output_path(Path(csv_file))
            with replacing(file) as new:
                new.write(text.getvalue().encode(errors="backslashreplace"))
            written["csv"] = str(file)
        else:
            print_output(text.getvalue().removesuffix("\n"))
    if figures is not None:
        written["figures"] = [str(file) for file in (search or loaded).write_figures(figures)]
    return written


def _print_written(written: dict[str, Any], *, as_json: bool, every: bool) -> None:
    """Print which files were written."""
    if as_json:
        print_output(written, every=every)
        return
    for name in ("csv", "figures", "page"):
        files = written.get(name, ())
        for file in [files] if isinstance(files, str) else files:
            print_output(f"Written: {file}")


def load_reports(directory: Path) -> "tuple[Report, SearchReport | None]":
    """Return the report of the run in a directory and, if it is a search, the report of its trials."""
    from argosy.running.directory.loading import load_timed, search_report_of  # `argosy --help` does not wait for them

    loaded, events = load_timed(directory)
    return loaded, search_report_of(loaded, events)


def _print_results_of(report_of_run: "Report", search: "SearchReport | None", *, as_json: bool, verbose: bool) -> None:
    """Print the results of a run that was found in a directory: a search as trials, any other run as members."""
    again, folder = BEGUN_BY, shlex.quote(str(report_of_run.directory))
    if search is not None:
        again = f"argosy tune FILE --dir {folder}   (FILE: the search's; or call argosy.tune again)"
    print_results(search or report_of_run, again, f"{BEGUN_BY}, with --retry-failed", as_json=as_json, verbose=verbose)


def summary_of(results: "Report | SearchReport") -> dict[str, Any]:
    """Return the results, without details of how they were made."""
    return {key: value for key, value in results.to_json().items() if key not in DETAILS}


def print_results(results: "Report | SearchReport", again: str, fixed: str, *, as_json: bool, verbose: bool) -> None:
    """Print the results of a run or a search for a program, or the ending for a person; if `verbose` everything, with the costs.

    `again` resumes it, and `fixed` continues failed members, which a search does not.
    """
    if as_json:
        print_output(results.to_json() if verbose else summary_of(results), every=verbose)
        return
    from argosy.results.report import Report

    if verbose:
        from argosy.views.tables import report_table, search_table

        for table in (
            [report_table(results)]
            if isinstance(results, Report)
            else [search_table(results), report_table(results.run)]
        ):
            print_table(table, whole=True)
        print_output("")
    ending = results.ending(again=again, fixed=fixed) if isinstance(results, Report) else results.ending(again=again)
    print_output(ending.text(*output_size()))


class RunCommand(TyperCommand):
    """A command whose ``--fresh`` stands alone, for everything, or before the name of a member."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """See `click.Command.parse_args`."""
        return super().parse_args(ctx, _fresh_with_names(args))


class ReportCommand(TyperCommand):
    """A command whose ``--csv`` stands alone, to print, or before the name of a file."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """See `click.Command.parse_args`."""
        return super().parse_args(ctx, _join_option(args, "--csv", lambda word: word.endswith(".csv")))


def _fresh_with_names(words: Sequence[str]) -> list[str]:
    """``--fresh NAME`` as ``--fresh=NAME``, and alone as ``--fresh=``; a Python file is no member's name.

    >>> _fresh_with_names(["--fresh", "mlp", "--fresh", "study.py", "--fresh"])
    ['--fresh=mlp', '--fresh=', 'study.py', '--fresh=']
    """
    return _join_option(words, "--fresh", lambda word: not word.startswith("-") and not word.endswith(".py"))


def _join_option(words: Sequence[str], option: str, is_value: Callable[[str], bool]) -> list[str]:
    """Join an option with the following word if that is its value."""
    joined: list[str] = []
    for word in words:
        if joined[-1:] == [f"{option}="] and is_value(word):
            joined[-1] += word
        else:
            joined.append(f"{option}=" if word == option else word)
    return joined


def typed_command() -> str:
    """Return the command as it was typed, without one-time options."""
    words = _fresh_with_names(sys.argv[1:])
    return shlex.join(
        [
            "argosy",
            *(
                word
                for word in words
                if word not in ("--retry-failed", "--verbose", "--all") and not word.startswith("--fresh=")
            ),
        ]
    )
