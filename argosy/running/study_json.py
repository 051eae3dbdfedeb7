"""``study.json``: what a run directory was made for, as plain values, and members that came since.

Reading it needs no torch.
"""

import functools
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from argosy.commands import Measured
from argosy.errors import RunError
from argosy.study import FACTORIES, Member, Study

__all__ = ["MEMBER_FIELDS", "NEWCOMERS", "describe", "found_study", "functions", "spell", "summarize", "write_json"]

MEMBER_FIELDS = (
    "batch_size",
    "eval_batch_size",
    "drop_last",
    "schedule_per",
    "precision",
    "clip_grad_norm",
    "accumulate",
    "seed",
)
NEWCOMERS = "newcomers.jsonl"
"""Members that came when ``study.json`` was written: a line for those that came together."""
KEYS = {"seed", "objective", "mode", "validations_per_epoch", "lengths", "fingerprint", "members"}
"""Of ``study.json``, whose lack shows that it is none."""
LINES_DEEP = 3


def summarize(
    study: Study,
    *,
    lengths: Mapping[str, int] | None = None,
    fingerprints: Mapping[str, str] | None = None,
    measured: Mapping[str, Measured] | None = None,
) -> dict[str, Any]:
    """The study as a plain value; parameter shapes are there for members that were built."""
    measured, fingerprints = measured or {}, fingerprints or {}
    return {
        "seed": study.seed,
        "objective": study.objective,
        "mode": study.mode,
        "validations_per_epoch": study.validations_per_epoch,
        "lengths": None if lengths is None else dict(lengths),
        "fingerprint": fingerprints.get("train"),
        "val_fingerprint": fingerprints.get("val"),
        "on_device": _spell(study.data.on_device),
        "stop": repr(study.stop),
        "members": {m.name: describe(m, measured.get(m.name)) for m in study.members},
    }


def found_study(directory: Path) -> dict[str, Any] | None:
    """``study.json`` of an earlier driver; raises RunError where it is damaged."""
    path = directory / "study.json"
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text())
        if found.keys() >= KEYS:
            return _with_newcomers(found, directory / NEWCOMERS)
        problem = f"it lacks {', '.join(sorted(KEYS - found.keys()))}"
    except (ValueError, AttributeError) as error:
        problem = str(error)
    raise RunError(
        f"{path} is damaged: {problem}. Put back a copy of it, or delete it and give the run's command with the same study, "
        "which writes it again."
    )


def _with_newcomers(found: dict[str, Any], path: Path) -> dict[str, Any]:
    """The study with those that came since; a line that was not finished is of members that had not begun."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    for line in map(json.loads, lines):
        # Later ones come behind those before them, and say nothing new of a member that is known.
        found["members"] = {**found["members"], **line["members"], **found["members"]}
        known = found["code"]["parts"]
        for name, digests in line["parts"].items():
            known[name] = [*dict.fromkeys((*known.get(name, ()), *digests))]
    return found


def write_json(path: Path, value: Any) -> None:
    """Replace a small file in one step: after a crash there is the old one or this one, and on the disk."""
    temporary = path.with_name(f".{path.name}")
    with temporary.open("w") as file:
        file.write(_spelled(value) + "\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _spelled(value: Any, depth: int = 0) -> str:
    """JSON with a line for each key of the outer dictionaries: a subset of a million indices is one line."""
    if not isinstance(value, dict) or not value or depth == LINES_DEEP:
        return json.dumps(value)
    margin = "  " * depth
    lines = (f"{margin}  {json.dumps(key)}: {_spelled(item, depth + 1)}" for key, item in value.items())
    return "{\n" + ",\n".join(lines) + f"\n{margin}}}"


def describe(member: Member, measured: Measured | None) -> dict[str, Any]:
    """A member as a plain value."""
    return {
        **{field: _spell(function) for field, function in functions(member).items()},
        **{field: getattr(member, field) for field in MEMBER_FIELDS},
        "hyperparameters": member.hyperparameters,
        "parameter_shapes": measured.parameter_shapes if measured else None,
        "stop": repr(member.stop),
        "subset": _spell_subset(member.subset),
        "val_subset": _spell_subset(member.val_subset),
        "repetition": None if member.repetition is None else asdict(member.repetition),
    }


def functions(member: Member) -> dict[str, Any]:
    """By field, metrics as ``metrics.<name>``; None where a field is left out."""
    metrics = {f"metrics.{name}": metric for name, metric in member.metrics.items()}
    return {**{field: getattr(member, field) for field in FACTORIES}, **metrics}


def _spell(function: Any) -> str | None:
    return None if function is None else spell(function)


def spell(factory: Any) -> str:
    """``module:qualname(arguments)`` of a factory."""
    if isinstance(factory, functools.partial):
        arguments = [repr(a) for a in factory.args] + [f"{k}={v!r}" for k, v in factory.keywords.items()]
        return f"{spell(factory.func)}({', '.join(arguments)})"
    module = getattr(factory, "__module__", type(factory).__module__)
    return f"{module}:{getattr(factory, '__qualname__', type(factory).__qualname__)}"


def _spell_subset(subset: Any) -> list[int] | None:
    return None if subset is None else np.asarray(subset, dtype=np.int64).tolist()
