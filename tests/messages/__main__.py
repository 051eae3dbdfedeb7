"""Writes the page of all messages."""

from argosy.views.output import reserve_stdout
from messages.page import table
from messages.showing import all_shown

page = reserve_stdout()  # what is called for the messages prints as well
print(table(all_shown()), end="", file=page)
