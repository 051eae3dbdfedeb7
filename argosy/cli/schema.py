"""``argosy schema`` and ``argosy guide``: documentation for programs that drive Argosy."""

import importlib.resources
import json
from typing import Annotated, Any

import typer

from argosy.errors import RunError
from argosy.errors.spelling import did_you_mean
from argosy.views.output import print_output

__all__ = ["guide", "schema", "schema_of"]

FOLDER = importlib.resources.files("argosy.cli")
REFERENCE = "#/$defs/"


def schema(
    command: Annotated[
        str, typer.Argument(help="Name of a command, such as status; lists the commands by default.")
    ] = "",
) -> None:
    """Print the JSON Schema of what a command prints with --json; each output names its version, as "schema": 1."""
    print_output(schema_of(command) if command else {"commands": [*_schemas()["commands"]]}, every=True)


def guide(topic: Annotated[str, typer.Argument(help="Topic, such as compare; everything by default.")] = "") -> None:
    """Explain to a program, or an agent, how to start a run, wait, read, compare, change it, and use its results."""
    text = (FOLDER / "guide.md").read_text(encoding="utf-8").rstrip("\n")
    if topic:
        parts = {part.partition("\n")[0].casefold(): f"## {part}".rstrip("\n") for part in text.split("\n## ")[1:]}
        if topic.casefold() not in parts:
            raise RunError(
                f"the guide has no part {topic!r}{did_you_mean(topic, parts)}; choose one of {', '.join(parts)}."
            )
        text = parts[topic.casefold()]
    print_output(text)


def schema_of(command: str) -> dict[str, Any]:
    """Return the JSON Schema of a command's output, with the definitions that it needs."""
    schemas = _schemas()
    if command not in schemas["commands"]:
        known = schemas["commands"]
        raise RunError(
            f"no command {command!r} prints JSON{did_you_mean(command, known)}; choose one of {', '.join(known)}."
        )
    needed: dict[str, Any] = {}
    todo = [schemas["commands"][command]]
    while todo:
        for name in _references_in(todo.pop()) - needed.keys():
            needed[name] = schemas["$defs"][name]
            todo.append(needed[name])
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"argosy {command} --json"}
    return {**head, **schemas["commands"][command], "$defs": needed}


def _schemas() -> dict[str, Any]:
    schemas: dict[str, Any] = json.loads((FOLDER / "schemas.json").read_text(encoding="utf-8"))
    return schemas


def _references_in(value: Any) -> set[str]:
    """Return the names of the definitions that a schema refers to by itself."""
    if isinstance(value, list):
        return set().union(*map(_references_in, value))
    if not isinstance(value, dict):
        return set()
    own = {value["$ref"].removeprefix(REFERENCE)} if "$ref" in value else set()
    return own.union(*map(_references_in, value.values()))
