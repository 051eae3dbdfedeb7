"""SQL queries over a run: each query gets an in-memory SQLite database of its members, sections and events, built from the journal."""

import contextlib
import json
import re
import sqlite3
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from argosy.errors import RunError
from argosy.errors.wording import escape_unprintable
from argosy.protocol.events import Event
from argosy.results.report import Report
from argosy.running.directory.journal import to_line
from argosy.running.directory.loading import load_timed

__all__ = ["Answer", "columns_of", "query"]

TABLES = ("members", "sections", "events")
SECONDS = 10.0
"""Most seconds that a query may take."""
MOST_ROWS = 100_000
"""Most rows of an answer."""
LARGEST_BYTES = 10_000_000
"""Most bytes of a value, so that no SQL function fills the memory."""
STEPS = 10_000
"""SQLite instructions between two checks of the clock."""
READS = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE)
"""Actions that a query may perform."""
QUOTED = re.compile(r"""('(?:[^']|'')*'|--[^\n]*|/\*.*?\*/)|"((?:[^"]|"")*)\"""", re.DOTALL)
"""String literals and comments, which stay unchanged, and names in double quotes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """The rows of a query."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


def query(directory: Path, sql: str) -> Answer:
    """Return the rows of a SELECT; raises RunError for a statement that SQLite refuses, that writes, or that takes too long."""
    with contextlib.closing(_open_database(directory)) as database:
        # From here on only SELECT statements are allowed, and none that opens a file.
        database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LARGEST_BYTES)
        database.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        database.set_authorizer(_authorize)
        return _run_select(database, sql)


def columns_of(directory: Path) -> dict[str, list[str]]:
    """Return the columns of each table; metrics and hyper-parameters have a column each under their own names."""
    with contextlib.closing(_open_database(directory)) as database:
        return {
            table: [column for _, column, *_ in database.execute(f"PRAGMA table_info({table})")] for table in TABLES
        }


def _open_database(directory: Path) -> sqlite3.Connection:
    report, events = load_timed(directory)
    database = sqlite3.connect(":memory:")
    for table, rows in zip(TABLES, (report.table(), [*_sections(report)], [*_events(events)]), strict=True):
        _fill(database, table, rows)
    database.execute("SELECT * FROM json_each('[]')")  # its first use creates tables, which would be refused later
    return database


def _run_select(database: sqlite3.Connection, sql: str) -> Answer:
    deadline = time.monotonic() + SECONDS
    database.set_progress_handler(lambda: time.monotonic() > deadline, STEPS)
    try:
        cursor = database.execute(QUOTED.sub(_as_name, sql))
        rows = cursor.fetchmany(MOST_ROWS + 1)
    except (sqlite3.Error, sqlite3.Warning) as error:
        if time.monotonic() > deadline:
            raise RunError(
                f"the query took more than {SECONDS:g} s; ask for fewer rows, or join fewer tables."
            ) from error
        raise _refusal(f"{error}".removesuffix(".")) from error
    if cursor.description is None:
        raise _refusal("it selects nothing")
    if len(rows) > MOST_ROWS:
        raise RunError(f"the query returns more than {MOST_ROWS:,} rows; add a LIMIT, or count or average them in SQL.")
    return Answer(columns=tuple(column for column, *_ in cursor.description), rows=tuple(map(_printable, rows)))


def _as_name(part: re.Match[str]) -> str:
    """Return a quoted name in backticks, because SQLite treats an unknown name in double quotes as a string literal."""
    return part[1] or "`{}`".format(part[2].replace('""', '"').replace("`", "``"))


def _refusal(why: str) -> RunError:
    return RunError(
        f"the query failed: {why}. Pass one SELECT over the tables {', '.join(TABLES)}, with strings in single "
        "quotes; `argosy query DIR --schema` lists their columns."
    )


def _printable(row: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(value.hex() if isinstance(value, bytes) else value for value in row)


def _authorize(action: int, first: str | None, second: str | None, *_: object) -> int:
    allowed = action in READS and second != "load_extension"
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


def _sections(report: Report) -> Iterable[dict[str, Any]]:
    for row in report.rows:
        for ended in row.sections:
            at = {"epoch": ended.epoch + 1, "section": ended.section + 1, "device": ended.device}
            cost = {"seconds": ended.seconds, "samples": ended.samples, "steps": ended.steps}
            yield {**row.identity, **at, **cost, "best": ended.best, **ended.metrics}


def _events(events: Iterable[tuple[float, Event]]) -> Iterable[dict[str, Any]]:
    for seconds, event in events:
        line = to_line(event)
        yield {"at": seconds, "event": line.pop("event"), "member": line.get("member"), "facts": line}


def _fill(database: sqlite3.Connection, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Create a table with the columns of all rows. Names that differ only by case are one column in SQL; the first one gets it."""
    columns: dict[str, str] = {}
    for name in (name for row in rows for name in row):
        columns.setdefault(name.casefold(), name)
    names = [*columns.values()] or ["member"]
    if len(names) > (most := database.getlimit(sqlite3.SQLITE_LIMIT_COLUMN)):
        raise RunError(
            f"the table {table} has {len(names):,} columns, one for each metric and hyper-parameter, and a query can read {most:,}. "
            "Use `argosy report DIR --csv FILE`, which writes all metrics, or --json for all of the report."
        )
    quoted = ", ".join('"{}"'.format(escape_unprintable(name).replace('"', '""')) for name in names)
    database.execute(f"CREATE TABLE {table} ({quoted})")
    values = ", ".join("?" * len(names))
    database.executemany(
        f"INSERT INTO {table} VALUES ({values})", ([_value(row.get(name)) for name in names] for row in rows)
    )


def _value(value: Any) -> Any:
    """Return a value for SQLite: numbers and text unchanged, a bool as 0 or 1, anything else as JSON."""
    if isinstance(value, float | None) or (isinstance(value, int) and value.bit_length() < 64):
        return value
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text.encode(errors="replace").decode()
