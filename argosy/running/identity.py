"""``study.json``: what a run directory was made for, in plain words, and whether another study is the same."""

import functools
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from argosy.commands import Measured
from argosy.errors import RunError
from argosy.fold import MemberState
from argosy.running.code_digest import Code, Reading
from argosy.study import FACTORIES, Member, Study

__all__ = ["Identity", "found_study", "spell", "summarize", "write_json"]

LATE = ("lengths", "fingerprint", "val_fingerprint", "parameter_shapes")
"""What only open data and built networks tell."""
IDENTITY = ("seed", "objective", "mode", "validations_per_epoch", "lengths")
SAMPLES = {"fingerprint": "Data.train", "val_fingerprint": "Data.val"}
"""Digests of two prepared samples, and whose they are."""
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
MEMBER_IDENTITY = (*MEMBER_FIELDS, "parameter_shapes", "subset", "val_subset")
NEWCOMERS = "newcomers.jsonl"
"""Members that came when ``study.json`` was written: a line for those that came together."""
KEYS = {"seed", "objective", "mode", "validations_per_epoch", "lengths", "fingerprint", "members"}
"""Of ``study.json``, whose lack shows that it is none."""
LINES_DEEP = 3
MOST_NAMED = 3
"""Members, or things that have changed, that are named in a line."""
MOST_SHOWN = 120
"""Letters of a value in a message."""


class Identity:
    """Of one run: what an earlier driver wrote of its study, and what this one writes.

    Whatever decides the weights or figures of members that have begun must be as it was there. What is meant to change may differ:
    rules, limits, devices, added members, and the code of members that failed. What an earlier version did not write is not compared.
    """

    def __init__(self, directory: Path, members: Mapping[str, MemberState]) -> None:
        self.directory = directory
        self._begun = {name for name, state in members.items() if state.sections or state.saved}
        """What others were to be, nobody is bound to."""
        self._failed = {name for name, state in members.items() if state.status == "failed"}
        """Their code may have been mended."""
        self._code = Code()
        self._readings: dict[str, dict[str, Reading]] = {}
        """By member, "" for the study: read once, as code that runs may change what it refers to."""

    @functools.cached_property
    def found(self) -> dict[str, Any] | None:
        """``study.json`` of the earlier driver."""
        return found_study(self.directory)

    def check(self, study: Study) -> None:
        """Raise RunError with all differences from the study that is there, as far as they show before the data is open."""
        if self.found is not None:
            self._check(self._summary(study))

    def write(self, study: Study, **known: Any) -> None:
        """Check again with what only open data and built networks tell, as `summarize` takes it, and write."""
        here, earlier = self._summary(study, **known), self.found["members"] if self.found else {}
        self._check(here)
        for name, described in here["members"].items():
            known_shapes = earlier.get(name, {}).get("parameter_shapes")
            described["parameter_shapes"] = described["parameter_shapes"] or known_shapes
        write_json(self.directory / "study.json", here)
        (self.directory / NEWCOMERS).unlink(missing_ok=True)

    def add(self, study: Study, names: Iterable[str], **known: Any) -> None:
        """Append what newcomers are to a file beside ``study.json``, which for each of thousands would be written anew."""
        here = self._summary(replace(study, members=[study.member(name) for name in names]), **known)
        line = json.dumps({"members": here["members"], "parts": here["code"]["parts"]})
        with (self.directory / NEWCOMERS).open("a") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())

    def twin(self, member: Member, study: Study) -> str | None:
        """The member of a study that becomes the same, bit for bit: of the same configuration, and the same given seed."""
        if member.seed is None:
            return None
        here = self._described(member, study)
        others = (other for other in study.members if other.seed == member.seed)
        twin = next((other.name for other in others if self._described(other, study) == here), None)
        if twin is not None:
            del self._readings[member.name]  # there will be another one of that name
        return twin

    def _described(self, member: Member, study: Study) -> dict[str, Any]:
        code = self._read(member.name, _functions(member))
        return {**_describe(member, None), "stop": repr(study.stop_of(member)), "code": code}

    def _check(self, here: Mapping[str, Any]) -> None:
        if self.found is not None and (differences := list(self._differences(self.found, here))):
            raise RunError(
                f"{self.directory} holds the run of another study:\n  " + "\n  ".join(differences) + "\n"
                "Choose another directory, or undo the change."
            )

    def _summary(self, study: Study, **known: Any) -> dict[str, Any]:
        """`summarize` and the digests of all code."""
        here = summarize(study, **known)
        here["code"] = {"version": Code.VERSION, "parts": {}, **self._read("", {"on_device": study.data.on_device})}
        for member in study.members:
            here["members"][member.name]["code"] = self._read(member.name, _functions(member))
        readings = (self._readings[owner].values() for owner in ("", *study.names))
        parts = {part for found in readings for reading in found for part in reading.parts}
        for name, digest in sorted(parts):
            here["code"]["parts"].setdefault(name, []).append(digest)
        return here

    def _read(self, owner: str, functions: Mapping[str, Any]) -> dict[str, str]:
        """Digests of an owner's functions."""
        if owner not in self._readings:
            given = {field: function for field, function in functions.items() if function is not None}
            self._readings[owner] = {field: self._code.read(function) for field, function in given.items()}
        return {field: reading.digest for field, reading in self._readings[owner].items()}

    def _differences(self, found: Mapping[str, Any], here: Mapping[str, Any]) -> Iterator[str]:
        """In words, members with the same difference together."""
        yield from _other_values(found, here, IDENTITY)
        for key, split in SAMPLES.items():
            if _differ(found, here, key):
                yield f"{split}: its first or its last sample is another one than there"
        yield from (f"Data.{change}" for change in self._other_code("", found, here, ("on_device",)))
        of_members: dict[str, list[str]] = {}
        for name, there in found["members"].items():
            if name in self._begun:
                for change in self._of_member(name, there, here["members"].get(name)):
                    of_members.setdefault(change, []).append(name)
        yield from (_named(names) + change for change, names in of_members.items())

    def _of_member(self, name: str, there: Mapping[str, Any], here: Mapping[str, Any] | None) -> Iterator[str]:
        if here is None:
            yield ": there, and not here"
            return
        fields = [*FACTORIES, *(key for key in {**there, **here} if key.startswith("metrics."))]
        yield from (f", {change}" for change in _other_values(there, here, MEMBER_IDENTITY))
        yield from (f", {change}" for change in self._other_code(name, there, here, fields))

    def _other_code(
        self, owner: str, there: Mapping[str, Any], here: Mapping[str, Any], fields: Iterable[str]
    ) -> Iterator[str]:
        """What is said of each function: its name, the values bound to it, or what it computes."""
        for field in fields:
            if field not in there and "code" not in there:
                continue
            before, now = there.get(field), here.get(field)
            bound = list(_other_bindings(field, there, here))
            if _bare(before) != _bare(now):
                # The name of the file does not matter: it may be run as a script.
                yield f"{field}: {_short(before)} there, {_short(now)} here"
            elif bound:
                yield from bound
            elif now is not None and owner not in self._failed and there.get("code", {}).get(field):
                yield from self._changed_code(field, there["code"][field], self._readings[owner][field])

    def _changed_code(self, field: str, before: str, now: Reading) -> Iterator[str]:
        assert self.found is not None
        found = self.found["code"]
        if before != now.digest and found["version"] == Code.VERSION:
            changed = dict.fromkeys(name for name, digest in now.parts if digest not in found["parts"].get(name, ()))
            what = ", ".join(list(changed)[:MOST_NAMED]) or "what it holds"
            yield f"{field}: {what} changed since the run began"


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
        "members": {m.name: _describe(m, measured.get(m.name)) for m in study.members},
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
        found["members"] = {**line["members"], **found["members"]}
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


def _describe(member: Member, measured: Measured | None) -> dict[str, Any]:
    return {
        **{field: _spell(function) for field, function in _functions(member).items()},
        **{field: getattr(member, field) for field in MEMBER_FIELDS},
        "hyperparameters": member.hyperparameters,
        "parameter_shapes": measured.parameter_shapes if measured else None,
        "stop": repr(member.stop),
        "subset": _spell_subset(member.subset),
        "val_subset": _spell_subset(member.val_subset),
        "repetition": None if member.repetition is None else asdict(member.repetition),
    }


def _functions(member: Member) -> dict[str, Any]:
    """By field, metrics as ``metrics.<name>``; None where a field is left out."""
    metrics = {f"metrics.{name}": metric for name, metric in member.metrics.items()}
    return {**{field: getattr(member, field) for field in FACTORIES}, **metrics}


def _other_values(there: Mapping[str, Any], here: Mapping[str, Any], keys: Iterable[str]) -> Iterator[str]:
    for key in keys:
        if _differ(there, here, key):
            yield f"{key}: {_short(there[key])} there, {_short(here[key])} here"


def _differ(there: Mapping[str, Any], here: Mapping[str, Any], key: str) -> bool:
    """Whether a value is another one, as far as both are known."""
    unknown = key not in there or (key in LATE and None in (there[key], here[key]))
    return not unknown and bool(there[key] != here[key])


def _other_bindings(field: str, there: Mapping[str, Any], here: Mapping[str, Any]) -> Iterator[str]:
    """Hyper-parameters of a function; earlier versions did not write positional ones."""
    before, now = there.get("hyperparameters", {}), here.get("hyperparameters", {})
    for key in dict.fromkeys([*before, *(now if "code" in there else ())]):
        if key.startswith(f"{field}.") and (key in before, before.get(key)) != (key in now, now.get(key)):
            yield f"{key}: {_short(before.get(key))} there, {_short(now.get(key))} here"


def _named(names: Collection[str]) -> str:
    first, rest = ", ".join(map(repr, list(names)[:MOST_NAMED])), len(names) - MOST_NAMED
    return f"{'member' if len(names) == 1 else 'members'} {first}{f' and {rest} more' if rest > 0 else ''}"


def _short(value: Any) -> str:
    text = "none" if value is None else value if isinstance(value, str) else repr(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"


def _bare(spelled: str | None) -> str | None:
    """The name of a function, without its file and what is bound to it."""
    return None if spelled is None else spelled.partition("(")[0].rpartition(":")[2]


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
