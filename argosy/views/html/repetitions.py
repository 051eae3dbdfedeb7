"""Networks that several members repeat, as folds or seeds: their means, and how they differ from the best."""

from argosy.errors.wording import html_table
from argosy.results.means import Means
from argosy.views.html.page import Section

__all__ = ["repetitions"]


def repetitions(means: Means) -> Section:
    """Return one row a network; a click on a column sorts."""
    return Section(title="Repetitions", text=[means.text], table=html_table(means.columns, means.rows))
