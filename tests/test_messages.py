"""Every error that the package can make is made here once, and the docs show its message."""

from pathlib import Path

from messages.page import table
from messages.showing import all_shown
from messages.sites import all_sites

PAGE = Path(__file__).parents[1] / "docs" / "messages.md"


def test_every_place_that_makes_an_error_is_come_by() -> None:
    shown = {message.site for message in all_shown()}
    missing = sorted(all_sites().keys() - shown)
    assert not missing, "no case of tests/messages/ comes by:\n" + "\n".join(map(str, missing))
    assert None not in shown, [message.when for message in all_shown() if message.site is None]


def test_the_page_of_messages_is_up_to_date() -> None:
    assert PAGE.read_text() == table(all_shown()), "PYTHONPATH=tests python -m messages > docs/messages.md"
