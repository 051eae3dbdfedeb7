"""``study.json``: what a run directory was made for, in plain words, and whether another study is the same."""

import functools
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from argosy.commands import Measured
from argosy.errors import RunError
from argosy.fold import RunState
from argosy.study import Member, Study

__all__ = ["check_identity", "found_study", "of_those_begun", "spell", "summarize", "write_json", "write_study"]

IDENTITY = ("seed", "lengths", "fingerprint", "validations_per_epoch")
KEYS = {"seed", "objective", "mode", "validations_per_epoch", "lengths", "fingerprint", "members"}
"""Of ``study.json``, whose lack shows that it is none."""
LINES_DEEP = 3
MEMBER_IDENTITY = ("batch_size", "drop_last", "hyperparameters", "parameter_shapes", "subset", "val_subset")


def summarize(
    study: Study, *, lengths: Mapping[str, int], fingerprint: str, measured: Mapping[str, Measured]
) -> dict[str, Any]:
    """The study as a plain value; parameter shapes are there for members that were built."""
    return {
        "seed": study.seed,
        "objective": study.objective,
        "mode": study.mode,
        "validations_per_epoch": study.validations_per_epoch,
        "lengths": dict(lengths),
        "fingerprint": fingerprint,
        "stop": repr(study.stop),
        "members": {m.name: _describe(m, measured.get(m.name)) for m in study.members},
    }


def check_identity(directory: Path, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raise RunError with the difference unless the run in the directory belongs to this study.

    Epochs, limits, devices and added members may differ; what decides a member's result may not.
    """
    differences = [
        f"{key}: {found[key]!r} there, {wanted[key]!r} here" for key in IDENTITY if found[key] != wanted[key]
    ]
    for name, there in found["members"].items():
        here = wanted["members"].get(name)
        if here is None:
            differences.append(f"member {name!r} is there, and not here")
            continue
        for key in MEMBER_IDENTITY:
            # A finished member is not built again, so its shapes are unknown here.
            if there[key] != here[key] and not (key == "parameter_shapes" and None in (there[key], here[key])):
                differences.append(f"member {name!r}, {key}: {there[key]!r} there, {here[key]!r} here")
    if differences:
        raise RunError(
            f"{directory} holds the run of another study:\n  " + "\n  ".join(differences) + "\n"
            "Choose another directory, or undo the change."
        )


def found_study(directory: Path) -> dict[str, Any] | None:
    """``study.json`` of an earlier driver; raises RunError where it is damaged."""
    path = directory / "study.json"
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text())
        if found.keys() >= KEYS:
            return dict(found)
        problem = f"it lacks {', '.join(sorted(KEYS - found.keys()))}"
    except (ValueError, AttributeError) as error:
        problem = str(error)
    raise RunError(
        f"{path} is damaged: {problem}. Put back a copy of it, or delete it and give the run's command with the same study, "
        "which writes it again."
    )


def of_those_begun(found: Mapping[str, Any], state: RunState) -> dict[str, Any]:
    """What was found, of members alone that have come to something: what others were to be, nobody is bound to."""
    begun = {name for name, member in state.members.items() if member.sections or member.saved}
    return {**found, "members": {name: there for name, there in found["members"].items() if name in begun}}


def write_study(directory: Path, summary: dict[str, Any], found: Mapping[str, Any] | None) -> None:
    """Write ``study.json``; raises RunError where `found`, of an earlier driver, was another study's."""
    if found is not None:
        check_identity(directory, found, summary)
        for name, described in summary["members"].items():
            known = found["members"].get(name, {})
            described["parameter_shapes"] = described["parameter_shapes"] or known.get("parameter_shapes")
    write_json(directory / "study.json", summary)


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


def _describe(member: Member, measured: Measured | None) -> dict[str, Any]:
    return {
        "model": spell(member.model),
        "optimizer": spell(member.optimizer),
        "loss": None if member.loss is None else spell(member.loss),
        "batch_size": member.batch_size,
        "eval_batch_size": member.eval_batch_size,
        "drop_last": member.drop_last,
        "hyperparameters": member.hyperparameters,
        "parameter_shapes": measured.parameter_shapes if measured else None,
        "stop": repr(member.stop),
        "subset": _spell_subset(member.subset),
        "val_subset": _spell_subset(member.val_subset),
    }


def spell(factory: Any) -> str:
    """``module:qualname(arguments)`` of a factory."""
    if isinstance(factory, functools.partial):
        arguments = [repr(a) for a in factory.args] + [f"{k}={v!r}" for k, v in factory.keywords.items()]
        return f"{spell(factory.func)}({', '.join(arguments)})"
    module = getattr(factory, "__module__", type(factory).__module__)
    return f"{module}:{getattr(factory, '__qualname__', type(factory).__qualname__)}"


def _spell_subset(subset: Any) -> list[int] | None:
    return None if subset is None else np.asarray(subset, dtype=np.int64).tolist()
