"""Writes the page of all messages."""

from argosy.views.output import stdout_of_json
from messages.page import table
from messages.showing import all_shown

page = stdout_of_json()  # what is called for the messages prints as well
print(table(all_shown()), end="", file=page)
