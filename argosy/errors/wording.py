"""Formatting for people: durations, bytes, values, hyper-parameters, names and tables."""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from html import escape
from typing import Any

__all__ = [
    "as_html",
    "cause_of",
    "differing_parameters",
    "html_table",
    "format_duration",
    "shorten_names",
    "format_bytes",
    "format_parameters",
    "columns_shown",
    "text_table",
    "format_value",
    "escape_unprintable",
]

SIZES = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
FRAME = re.compile(r'(?m)^  File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in .*)?$')
"""One frame of a traceback."""
LIBRARIES = ("/site-packages/", "/dist-packages/", "<frozen ", "<string>")
"""Parts of file names that are not the user's own."""
PARTS = re.compile("-(?=[^-=]*=)")
"""Separator between the parts of names that grids make."""
SHORTEST_NAME = 12
"""Least width of the column of names in a table."""
UNITS = ((86400, "days"), (3600, "h"), (60, "min"), (1, "s"))


def escape_unprintable(text: str, *, lines: bool = True) -> str:
    r"""Return the text with unprintable characters escaped as in `repr`; with `lines`, line breaks and tabs are kept.

    Names, values and messages pass here where they are shown: an escape of a terminal is shown, and not obeyed.

    >>> escape_unprintable("\x1b[31mred")
    '\\x1b[31mred'
    """
    if text.isprintable():
        return text
    kept = "\n\t" if lines else ""
    return "".join(c if c.isprintable() or c in kept else c.encode("unicode_escape").decode() for c in text)


def as_html(text: str) -> str:
    """Return the text escaped for HTML."""
    return escape(escape_unprintable(text))


def format_duration(seconds: float) -> str:
    """Return a duration in words, in at most two units.

    >>> [format_duration(seconds) for seconds in (0.25, 42, 200, 3600, 90061)]
    ['under 1 s', '42 s', '3 min 20 s', '1 h', '1 day 1 h']
    """
    remaining = round(seconds)
    if remaining < 1:
        return "under 1 s"
    largest = next(place for place, (unit, _) in enumerate(UNITS) if remaining >= unit)
    words = []
    for unit, name in UNITS[largest : largest + 2]:
        count, remaining = divmod(remaining, unit)
        if count:
            words.append(f"{count} {'day' if name == 'days' and count == 1 else name}")
    return " ".join(words)


def format_bytes(count: float) -> str:
    """Return a number of bytes in the largest unit that it fills.

    >>> [format_bytes(count) for count in (300, 5 * 2**20, 16e9)]
    ['0.3 KiB', '5.0 MiB', '14.9 GiB']
    """
    unit, name = next(((unit, name) for unit, name in SIZES if count >= unit), SIZES[-1])
    return f"{count / unit:.1f} {name}"


def format_value(value: Any) -> str:
    """Return a short, one-line form of a value; whole numbers, such as a number of parameters, keep all digits.

    >>> [format_value(value) for value in (0.123456, 123456.5, 123456.0, 1e12)]
    ['0.1235', '1.235e+05', '123456', '1e+12']
    """
    if not isinstance(value, float):
        return escape_unprintable(str(value), lines=False)
    return f"{value:.0f}" if value.is_integer() and 1e4 <= abs(value) < 1e10 else f"{value:.4g}"


def differing_parameters(parameters: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the names of the hyper-parameters that differ between members, in order of appearance."""
    names = dict.fromkeys(name for values in parameters.values() for name in values)
    return tuple(name for name in names if len({repr(values.get(name)) for values in parameters.values()}) > 1)


def format_parameters(values: Mapping[str, Any], names: Sequence[str]) -> str:
    """Return these hyper-parameters of one member, for example ``lr=0.1 hidden=16``; prefixes are dropped if names stay unique."""
    last = [name.rpartition(".")[2] for name in names]
    short = {name: tail if last.count(tail) == 1 else name for name, tail in zip(names, last, strict=True)}
    return " ".join(f"{format_value(short[name])}={format_value(values[name])}" for name in names if name in values)


def cause_of(reason: str) -> str:
    """Return the error in the reason of a run or member and, for a traceback, the last line of the user's own code in it.

    >>> cause_of('Traceback (most recent call last):\\n  File "net.py", line 12, in forward\\n    x.view(3)\\nRuntimeError: no\\nmore')
    'RuntimeError: no (net.py:12)'
    >>> cause_of('sample 40 raised ValueError: no\\n  File "data.py", line 8, in __getitem__\\n    x.view(3)\\nFix the dataset.')
    'sample 40 raised ValueError: no (data.py:8)'
    >>> cause_of("the first 3 members failed in the same way, so the study stops:\\nRuntimeError: no\\nFix the study.")
    'RuntimeError: no'
    >>> cause_of("RuntimeError: Error(s) in loading state_dict for Net:\\n\\tsize mismatch for a.weight\\n\\tsize mismatch for b.weight")
    'RuntimeError: Error(s) in loading state_dict for Net: size mismatch for a.weight'
    >>> cause_of("12 steps")
    '12 steps'
    """
    frames = list(FRAME.finditer(reason))
    raised, *after = reason.strip().splitlines() or [""]
    introduced = raised.endswith(":") and (": " not in raised or "".join(after[:1]).startswith("Traceback"))
    if introduced or raised.startswith(("Traceback", "File ")):  # the error comes later, after frames
        after = reason[frames[-1].end() :].splitlines() if frames else after
        at, raised = next(((at, line) for at, line in enumerate(after) if line and not line[0].isspace()), (-1, raised))
        after = after[at + 1 :]
    if raised.rstrip().endswith(":"):
        below = next(filter(str.strip, after), "")
        raised = f"{raised.rstrip()} {'' if FRAME.match(below) else below.strip()}".rstrip()
    own = [frame for frame in frames if not any(part in frame["file"] for part in LIBRARIES)]
    place = "".join(f" ({frame['file']}:{frame['line']})" for frame in (own or frames)[-1:])
    return escape_unprintable(f"{raised}{place}")


def shorten_names(names: Collection[str], width: int) -> dict[str, str]:
    """Return distinct names of at most this width: without the common prefix, then without the names of values, then without the middle.

    >>> shorten_names(["resnet-wide-lr=0.1-hidden=8", "resnet-wide-lr=0.01-hidden=8"], 10)
    {'resnet-wide-lr=0.1-hidden=8': '…lr=0.1', 'resnet-wide-lr=0.01-hidden=8': '…lr=0.01'}
    >>> shorten_names(["mlp-lr=0.1-hidden=8", "mlp-lr=0.01-hidden=16"], 10)
    {'mlp-lr=0.1-hidden=8': '…0.1-8', 'mlp-lr=0.01-hidden=16': '…0.01-16'}
    """
    parts = {name: PARTS.split(name) for name in sorted(names)}
    shared = set.intersection(*map(set, parts.values())) if len(parts) > 1 else set()
    own = {name: [part for part in its if part not in shared] for name, its in parts.items()}
    unlike = ["-".join(its) for its in own.values()]
    values = ["-".join(part.rpartition("=")[2] for part in its) for its in own.values()]
    ways = ([*parts], unlike, _strip_common_prefix(unlike), _strip_common_prefix(values))
    for way in ways:
        labels = [_mark_difference(label, name) for label, name in zip(way, parts, strict=True)]
        if all(len(label) <= width for label in labels) and len({*labels}) == len(labels):
            break
    else:
        labels = _number_duplicates([_truncate(label, width) for label in labels], width)
    label_of = dict(zip(parts, labels, strict=True))
    return {name: label_of[name] for name in names}


def _strip_common_prefix(labels: Sequence[str]) -> list[str]:
    """Return the labels without their common prefix, cut at the beginning of the first word or number that differs."""
    first, last = min(labels, default=""), max(labels, default="")
    same = next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), 0)
    while same and (first[same - 1].isalnum() or first[same - 1] == "."):
        same -= 1
    return [label[same:] for label in labels]


def _mark_difference(label: str, name: str) -> str:
    return name if label in ("", name) else f"…{label}"


def _truncate(label: str, width: int) -> str:
    if len(label) <= width:
        return label
    head = width // 3
    return f"{label[:head]}…{label[len(label) - (width - head - 1) :]}"


def _number_duplicates(labels: Sequence[str], width: int) -> list[str]:
    """Append a number to labels that equal an earlier one."""
    numbered = dict[str, None]()
    seen = Counter[str]()
    for label in labels:
        text = label
        while text in numbered:
            seen[label] += 1
            number = f"~{seen[label] + 1}"
            text = f"{label[: width - len(number)]}{number}"
        numbered[text] = None
    return [*numbered]


def html_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a table as HTML, with short numbers aligned to the right."""
    head = "".join(f"<th>{as_html(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def text_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], width: int) -> list[str]:
    """Return a header and the rows as lines: names first, shortened if necessary, and as many columns as fit.

    >>> text_table(["member", "loss", "status"], [["mlp", 0.5, "done"], ["cnn-8", 12.0, "done"]], 16)
    ['member  loss', 'mlp      0.5', 'cnn-8     12']
    """
    cells = [columns, *([format_value(value) for value in row] for row in rows)]
    widths = _widths(columns, rows)
    count = columns_shown(columns, rows, width)
    room = width - sum(2 + one for one in widths[1:count])
    names = [row[0] for row in cells[1:]]
    short = shorten_names(names, room) if widths[0] > room else {name: name for name in names}
    first = min(widths[0], max(room, SHORTEST_NAME))
    return [
        "  ".join([f"{name:<{first}}", *map(str.rjust, row[1:count], widths[1:])]).rstrip()
        for name, row in zip((columns[0], *(short[name] for name in names)), cells, strict=True)
    ]


def columns_shown(columns: Sequence[str], rows: Sequence[Sequence[Any]], width: int) -> int:
    """Return how many columns `text_table` shows."""
    widths, count = _widths(columns, rows), 1
    taken = min(widths[0], max(width // 2, SHORTEST_NAME))
    while count < len(columns) and taken + 2 + widths[count] <= width:
        taken, count = taken + 2 + widths[count], count + 1
    return count


def _widths(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[int]:
    return [max([len(name), *(len(format_value(row[at])) for row in rows)]) for at, name in enumerate(columns)]


def _cell(value: Any) -> str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    style = ' style="text-align:right"' if number else ""
    return f"<td{style}>{escape(format_value(value))}</td>"
