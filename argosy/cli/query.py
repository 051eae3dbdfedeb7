"""``argosy query`` and ``argosy compare``: questions about a run that its report does not answer."""

import csv
import io
from typing import Annotated

import typer

from argosy.cli.steer import RunDirectory
from argosy.errors import RunError
from argosy.errors.wording import text_table
from argosy.views.output import All, Json, print_output

__all__ = ["compare", "query"]

ROWS_SHOWN = 50
"""Rows that are printed unless all are requested."""
UNBOUNDED = 10**6
"""Width at which no column of a table is left out, since each was requested."""


def query(
    directory: RunDirectory,
    sql: Annotated[str, typer.Argument(metavar="SELECT", help="One SELECT over members, sections and events.")] = "",
    schema: Annotated[bool, typer.Option("--schema", help="List the tables and their columns.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print the rows as CSV.")] = False,
    every: All = False,
    as_json: Json = False,
) -> None:
    """Query a run in SQL: members (best first), sections and events are tables; nothing is written."""
    from argosy.running.directory.query import columns_of
    from argosy.running.directory.query import query as ask

    if schema:
        tables = columns_of(directory)
        lines = [f"{table}: {', '.join(columns)}" for table, columns in tables.items()]
        print_output({"tables": tables} if as_json else "\n".join(lines))
        return
    if not sql:
        raise RunError(f"no query was given. Write one, for example argosy query {directory} 'SELECT * FROM members'.")
    answer = ask(directory, sql)
    if as_json:
        print_output({"columns": [*answer.columns], "rows": [*answer.rows]}, every=every, table="rows")
        return
    rows = answer.rows if every else answer.rows[:ROWS_SHOWN]
    if as_csv:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([answer.columns, *rows])
        lines = [text.getvalue().removesuffix("\n")]  # splitlines would end rows at U+2028 within a value
    else:
        lines = text_table(answer.columns, [["" if one is None else one for one in row] for row in rows], UNBOUNDED)
    print_output("\n".join(lines))
    if unshown := len(answer.rows) - len(rows):
        typer.echo(f"and {unshown} more: --all prints them", err=True)


def compare(
    directory: RunDirectory,
    first: Annotated[str, typer.Argument(help="Configuration: the name given to argosy.replicate or argosy.kfold.")],
    second: Annotated[str, typer.Argument(help="Configuration to compare it with.")],
    metric: Annotated[str | None, typer.Option(help="Metric to compare; the objective by default.")] = None,
    as_json: Json = False,
) -> None:
    """Compare two configurations over their seeds or folds: the difference of their means, and its 95 % interval."""
    from argosy.running.directory.loading import load_report

    comparison = load_report(directory).compare(first, second, metric)
    print_output(comparison.to_json() if as_json else f"{comparison}")
