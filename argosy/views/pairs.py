"""The results of ``argosy profile --pairs``, for users."""

from collections.abc import Sequence

from rich.table import Table

from argosy.running.control.pairs import Pair

__all__ = ["pairs_table"]


def pairs_table(pairs: Sequence[Pair]) -> Table:
    """Return a table with the share of time that packing saves for each pair of members: (sum T_i - T_pack) / sum T_i."""
    names = list(dict.fromkeys(pair.members[0] for pair in pairs))
    title = "saved by two on one device (*: one program stepped both)"
    table = Table("", *names, box=None, pad_edge=False, title=title, title_justify="left")
    by_pair = {pair.members: pair for pair in pairs} | {pair.members[::-1]: pair for pair in pairs}
    for name in names:
        table.add_row(name, *(_cell(by_pair[name, other]) for other in names))
    return table


def _cell(pair: Pair) -> str:
    return f"{pair.improvement:+.0%}{'*' * pair.fused}"
