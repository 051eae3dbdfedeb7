"""Writes the page of all messages."""

from messages.page import table
from messages.showing import all_shown

print(table(all_shown()), end="")
