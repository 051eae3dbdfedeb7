"""The table of all messages."""

import inspect
import re
from collections.abc import Sequence

from argosy import errors
from messages.showing import Shown

__all__ = ["table"]

HEAD = """\
# Messages

All errors that Argosy raises, sorted by who must act. `tests/test_messages.py` provokes each of them once and fails if one is
missing here; `PYTHONPATH=tests python -m messages > docs/messages.md` writes this page. If one member fails, only that member
ends: its error is in `members/<member>/log.txt`, and the command's exit code is 1.
"""


def table(messages: Sequence[Shown]) -> str:
    """The page of the docs."""
    parts = [HEAD]
    for kind in filter(inspect.isclass, vars(errors).values()):
        rows = [shown for shown in messages if type(shown.error) is kind]
        if rows:
            parts.append(f"\n## {kind.__name__}\n\n{kind.__doc__} Exit code {kind.exit_code}.\n")
            parts.append("\n| cause | message |\n|---|---|\n")
            parts += [f"| {shown.when} | {_cell(shown.text)} |\n" for shown in rows]
    return "".join(parts)


def _cell(text: str) -> str:
    """Text in a cell of a table."""
    return re.sub(r"([|<>*_\[\]])", r"\\\1", text).replace("\n", "<br>")
