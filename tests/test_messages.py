"""Tests that each error message, raised here once, says what is wrong, what was found and what to do, and is shown in the docs."""

from pathlib import Path

import pytest
from messages.page import table
from messages.showing import all_shown
from messages.sites import all_sites
from messages.wording import faults

PAGE = Path(__file__).parents[1] / "docs" / "messages.md"


def test_messages_of_all_places_say_what_to_do_and_are_on_the_page() -> None:
    """Each place that raises an error has a case, a complete message, and a row on the page; one test, since raising all takes long."""
    shown = {message.site for message in all_shown()}
    missing = sorted(all_sites().keys() - shown)
    assert not missing, "no case of tests/messages/ reaches:\n" + "\n".join(map(str, missing))
    assert None not in shown, [message.when for message in all_shown() if message.site is None]
    found = [f"{message.text}\n  {fault}" for message in all_shown() for fault in faults(message.text)]
    assert not found, "\n".join(found)
    assert PAGE.read_text() == table(all_shown()), "run PYTHONPATH=tests python -m messages > docs/messages.md"


@pytest.mark.parametrize(
    "text",
    [
        "wrong.",
        "member 'a': batch_size is 0, which is no batch size at all, and no network trains on it.",
        "member 'a': batch_size is 0; give a whole number from 1",
        "member 'a': batch_size is None; give a whole number from 1.",
        "something that was given is wrong; give something else.",
    ],
)
def test_the_lint_of_messages_finds_what_is_missing(text: str) -> None:
    assert list(faults(text))
