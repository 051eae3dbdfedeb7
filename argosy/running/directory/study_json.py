"""``study.json``: the study of a run directory as plain values, and the members added since."""

import functools
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

from argosy.disk.files import open_plain, read_lines, replacing
from argosy.disk.json_values import Name, Positive, convert, parse_json
from argosy.errors import RunError
from argosy.study import FACTORIES, Member, Repetition, Study

__all__ = [
    "MEMBER_FIELDS",
    "NEWCOMERS",
    "describe",
    "ranges_of",
    "read_study",
    "functions_of",
    "format_factory",
    "summarize",
    "write_json",
]

MEMBER_FIELDS = (
    "batch_size",
    "batch_tokens",
    "eval_batch_size",
    "drop_last",
    "schedule_per",
    "precision",
    "clip_grad_norm",
    "accumulate",
    "seed",
)
"""Fields of a member that are written as they are."""
NEWCOMERS = "newcomers.jsonl"
"""Members added after ``study.json`` was written: one line for those added together."""
LINES_DEEP = 3
"""How many levels of dictionaries have a line for each key."""


class Lengths(TypedDict):
    """Number of samples in each split."""

    train: int
    val: NotRequired[int]


class CodeDigests(TypedDict):
    """Digests of all code except the study's own functions."""

    version: str
    parts: Mapping[str, tuple[str, ...]]


class Described(TypedDict):
    """The fields of a member that are read: as written by `describe`, with the digests of its functions."""

    batch_size: Positive
    drop_last: bool
    seed: int | None
    hyperparameters: Mapping[str, Any]
    parameter_shapes: str | None
    subset: str | tuple[int, ...] | None
    val_subset: str | tuple[int, ...] | None
    repetition: Repetition | None
    code: Mapping[str, str]


class DescribedStudy(TypedDict):
    """The fields of ``study.json`` that are read."""

    seed: int
    objective: str
    mode: Literal["min", "max"]
    validations_per_epoch: Positive
    lengths: Lengths | None
    fingerprint: str | None
    val_fingerprint: str | None
    ragged: str | None
    members: Mapping[Name, Described]
    process: Mapping[str, Any]
    code: CodeDigests


class NewcomersLine(TypedDict):
    """A line of ``newcomers.jsonl``."""

    members: Mapping[Name, Described]
    parts: Mapping[str, tuple[str, ...]]


def summarize(
    study: Study,
    *,
    lengths: Mapping[str, int] | None = None,
    fingerprints: Mapping[str, str] | None = None,
    shapes: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the study as a plain value; digests of parameter `shapes` are given for members that were built."""
    shapes, fingerprints = shapes or {}, fingerprints or {}
    return {
        "seed": study.seed,
        "objective": study.objective,
        "mode": study.mode,
        "validations_per_epoch": study.validations_per_epoch,
        "lengths": None if lengths is None else dict(lengths),
        "fingerprint": fingerprints.get("train"),
        "val_fingerprint": fingerprints.get("val"),
        "on_device": _format_function(study.data.on_device),
        "then": _format_function(study.data.then),
        "ragged": None if study.data.ragged is None else repr(study.data.ragged),
        "stop": repr(study.stop),
        "members": {m.name: describe(m, shapes.get(m.name)) for m in study.members},
    }


def read_study(directory: Path) -> dict[str, Any] | None:
    """Return ``study.json`` of an earlier driver, with members added since; raises RunError if it is damaged."""
    path = directory / "study.json"
    try:
        with open_plain(path) as file:
            described: dict[str, Any] = _parse_checked(file.read(), DescribedStudy, path)
        return _with_newcomers(described, directory / NEWCOMERS)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunError(
            f"cannot read {error.filename}: {error.strerror}. Pass the directory of a run that you are allowed to read."
        ) from error


def _parse_checked(text: bytes, kind: Any, path: Path) -> dict[str, Any]:
    """Return the parsed value after checking it. Arrays stay lists, as in a study's own description, except for subsets in older files."""
    try:
        parsed: dict[str, Any] = parse_json(text.decode(), infinite=True)  # hyper-parameters may be infinite
        convert(parsed, kind, "it")
    except ValueError as error:
        raise RunError(
            f"{path} is damaged: {error}. Restore a copy of it, or delete it and repeat the run's command with "
            "the same study, which writes it again."
        ) from error
    for described in parsed["members"].values():
        described |= {field: _spell_subset(described[field]) for field in ("subset", "val_subset")}
    return parsed


def _with_newcomers(study_described: dict[str, Any], path: Path) -> dict[str, Any]:
    """Add the members of ``newcomers.jsonl``, except those of an unfinished line, which had not begun."""
    for text in read_lines(path) if path.exists() else ():
        line = _parse_checked(text, NewcomersLine, path)
        for name, described in line["members"].items():
            study_described["members"].setdefault(name, described)  # known members keep their description
        known = study_described["code"]["parts"]
        for name, digests in line["parts"].items():
            known[name] = [*dict.fromkeys((*known.get(name, ()), *digests))]
    return study_described


def write_json(path: Path, value: Any) -> None:
    """Replace a file atomically: after a crash the old or the new content is on disk."""
    with replacing(path, durable=True) as file:
        file.writelines(map(str.encode, _format_json(value)))
        file.write(b"\n")


def _format_json(value: Any, depth: int = 0) -> Iterator[str]:
    """Yield JSON with one line for each key of the outer dictionaries. The text of many members is never in memory as a whole."""
    if not isinstance(value, dict) or not value:
        yield _format_item(value)
        return
    margin, opening = "  " * depth, "{"
    if depth + 1 == LINES_DEEP:
        yield opening + ",".join([f"\n{margin}  {_format_key(k)}: {_format_item(item)}" for k, item in value.items()])
    else:
        for key, item in value.items():
            yield f"{opening}\n{margin}  {_format_key(key)}: "
            yield from _format_json(item, depth + 1)
            opening = ","
    yield f"\n{margin}}}"


_format_key = functools.lru_cache(maxsize=1000)(json.dumps)
"""Cached, because all members have the same keys."""


def _format_item(value: Any) -> str:
    return "null" if value is None else json.dumps(value)  # most fields of a member are not set


def describe(member: Member, shapes: str | None) -> dict[str, Any]:
    """Return a member as a plain value."""
    return {
        **{field: _format_function(function) for field, function in functions_of(member).items()},
        **{field: getattr(member, field) for field in MEMBER_FIELDS},
        "hyperparameters": member.hyperparameters,
        "parameter_shapes": shapes,
        "average": None if member.average is None else repr(member.average),
        "stop": repr(member.stop),
        "subset": _spell_subset(member.subset),
        "val_subset": _spell_subset(member.val_subset),
        "repetition": None if member.repetition is None else asdict(member.repetition),
    }


def functions_of(member: Member) -> dict[str, Any]:
    """Return a member's functions by field, metrics as ``metrics.<name>``; None for an unset field."""
    metrics = {f"metrics.{name}": metric for name, metric in member.metrics.items()}
    return {**{field: getattr(member, field) for field in FACTORIES}, **metrics}


def _format_function(function: Any) -> str | None:
    return None if function is None else format_factory(function)


def format_factory(factory: Any) -> str:
    """Return ``module:qualname(arguments)`` of a factory."""
    if isinstance(factory, functools.partial):
        arguments = [repr(a) for a in factory.args] + [f"{k}={v!r}" for k, v in factory.keywords.items()]
        return f"{format_factory(factory.func)}({', '.join(arguments)})"
    module = getattr(factory, "__module__", type(factory).__module__)
    return f"{module}:{getattr(factory, '__qualname__', type(factory).__qualname__)}"


def _spell_subset(subset: Any) -> str | None:
    """Return indices in their order as text, ``0-11 13 20-22``: of folds of a million samples, text takes a tenth of the time to read."""
    if not isinstance(subset, list | str | None):
        import numpy as np  # readers do not need it

        subset = np.asarray(subset, dtype=np.int64).tolist()
    if not subset or isinstance(subset, str):
        return subset or None
    starts = (place for place, (one, other) in enumerate(itertools.pairwise(subset), start=1) if other - one != 1)
    runs = itertools.pairwise([0, *starts, len(subset)])
    return " ".join(f"{subset[a]}-{subset[b - 1]}" if b - a > 1 else f"{subset[a]}" for a, b in runs)


def ranges_of(spelled: str | None) -> list[range] | None:
    """Return the indices of a subset as ``study.json`` has them; a text without any has none."""
    runs = re.findall(r"(\d{1,18})(?:-(\d{1,18}))?", spelled or "")
    return None if spelled is None else [range(int(first), int(last or first) + 1) for first, last in runs]
