"""Members, best first: their results, and the hyper-parameters in which they differ."""

from argosy.errors.wording import differing, html_table
from argosy.results.report import Report
from argosy.views.html.page import Section

__all__ = ["leaderboard"]


def leaderboard(report: Report) -> Section:
    """Return one row a member; a click on a column sorts."""
    rows = report.table()
    differ = differing({row.name: row.hyperparameters for row in report.rows})
    metrics = list(dict.fromkeys(name for row in report.rows for name in row.metrics))
    first = ["member", "status", "epochs", "best_epoch", *metrics, *differ]
    columns = [*dict.fromkeys(first), "device", "seconds", "reason"]
    table = html_table(columns, [["" if row.get(c) is None else row[c] for c in columns] for row in rows])
    same = {
        name: value
        for name, value in (report.rows[0].hyperparameters if report.rows else {}).items()
        if name not in differ
    }
    text = [f"Best first by {report.objective}, each with the metrics of its best section. A click on a column sorts."]
    if same:
        text.append("The same in all: " + ", ".join(f"{name} = {value}" for name, value in same.items()) + ".")
    return Section(title="Leaderboard", text=text, table=table)
