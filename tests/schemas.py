"""A validator for the subset of JSON Schema that ``argosy schema`` uses; `forked.command` checks every ``--json`` output with it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from argosy.cli.schema import schema_of
from argosy.views.output import MOST_CHARACTERS

__all__ = ["check", "errors"]

KINDS: Mapping[str, Any] = {
    "array": list,
    "boolean": bool,
    "integer": int,
    "null": type(None),
    "number": int | float,
    "object": dict,
    "string": str,
}
KNOWN = {"$defs", "$ref", "$schema", "additionalProperties", "anyOf", "const", "description", "enum"} | {
    *("items", "properties", "required", "title", "type")
}


def check(words: Sequence[str], printed: str) -> None:
    """Raise AssertionError unless printed JSON matches its schema and, without ``--all`` or ``--verbose``, is short enough."""
    if "--json" not in words or not printed.strip():
        return
    schema = schema_of(words[0])
    found = [*errors(json.loads(printed), schema, schema["$defs"])]
    assert not found, f"{' '.join(words)}: {found[0]}"
    assert {"--all", "--verbose"} & {*words} or len(printed.strip()) <= MOST_CHARACTERS, words


def errors(value: Any, schema: Mapping[str, Any], names: Mapping[str, Any], where: str = "") -> Iterator[str]:
    """Yield a message for each place in which a value does not match the schema."""
    assert schema.keys() <= KNOWN, f"the validator does not know {schema.keys() - KNOWN}"
    if "$ref" in schema:
        yield from errors(value, names[schema["$ref"].rpartition("/")[2]], names, where)
    if "anyOf" in schema:
        each = [[*errors(value, one, names, where)] for one in schema["anyOf"]]
        yield from min(each, key=len)
    if "const" in schema and value != schema["const"]:
        yield f"{where}: {value!r} is not {schema['const']!r}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{where}: {value!r} is none of {schema['enum']}"
    if "type" in schema and not _is(value, schema["type"]):
        yield f"{where}: {value!r} is no {schema['type']}"
    elif isinstance(value, dict):
        yield from _in_object(value, schema, names, where)
    elif isinstance(value, list) and "items" in schema:
        for at, item in enumerate(value):
            yield from errors(item, schema["items"], names, f"{where}[{at}]")


def _is(value: Any, kinds: str | Sequence[str]) -> bool:
    named = [kinds] if isinstance(kinds, str) else kinds
    return any(isinstance(value, KINDS[kind]) and (kind == "boolean" or not isinstance(value, bool)) for kind in named)


def _in_object(value: Any, schema: Mapping[str, Any], names: Mapping[str, Any], where: str) -> Iterator[str]:
    yield from (f"{where}: {key} is missing" for key in schema.get("required", ()) if key not in value)
    others = schema.get("additionalProperties", True)
    for key, item in value.items():
        if key in schema.get("properties", {}):
            yield from errors(item, schema["properties"][key], names, f"{where}.{key}")
        elif others is False:
            yield f"{where}: {key} is not described"
        elif others is not True:
            yield from errors(item, others, names, f"{where}.{key}")
