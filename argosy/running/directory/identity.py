"""Check that a study is the one that a run directory was made for, and say in plain words what differs."""

import functools
import itertools
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from argosy.disk.files import open_append
from argosy.errors import RunError
from argosy.errors.warned import warn_caller
from argosy.results.fold import MemberState
from argosy.running.directory.study_json import (
    MEMBER_FIELDS,
    NEWCOMERS,
    describe,
    functions_of,
    read_study,
    summarize,
    write_json,
)
from argosy.stream.code_digest import CodeReader, ValueDigest
from argosy.study import FACTORIES, Member, Study
from argosy.training.device.process_state import ProcessState

__all__ = ["Identity"]

LATE = ("lengths", "fingerprint", "val_fingerprint", "parameter_shapes")
"""Keys that are known only once the data is open and the networks are built."""
IDENTITY = ("seed", "objective", "mode", "validations_per_epoch", "lengths", "ragged")
"""Keys of a study whose values must stay equal."""
SAMPLES = {"fingerprint": "Data.train", "val_fingerprint": "Data.val"}
"""By key of a split's digest (of its values, or of a few samples and the labels): the data's name in messages."""
MEMBER_IDENTITY = (*MEMBER_FIELDS, "average", "parameter_shapes", "subset", "val_subset")
"""Keys of a member whose values must stay equal."""
MOST_NAMED = 3
"""Most members, or changed things, that a line names."""
MOST_SHOWN = 120
"""Most characters of a value in a message."""


class Identity:
    """The identity of one run: the study as an earlier driver wrote it, compared with this one.

    Everything that determines the weights or metrics of members that have begun must be unchanged. Stopping rules, limits,
    devices, added members, and the code of members that failed may change.
    """

    def __init__(
        self, directory: Path, members: Mapping[str, MemberState], process: ProcessState, *, of_search: bool = False
    ) -> None:
        self.directory = directory
        self.process = process
        self._of_search = of_search
        """Whether members are trials; users do not choose the names of these."""
        self._begun = {
            name for name, state in members.items() if state.sections or state.saved or state.status == "diverged"
        }
        """Members that have trained. Others may change in any way."""
        self._anew = [name for name, state in members.items() if state.aside is not None and name not in self._begun]
        """Members that begin anew, which advice has to repeat."""
        self._failed = {name for name, state in members.items() if state.status == "failed"}
        """Members that failed; their code may have been fixed."""
        self._code = CodeReader()
        self._readings: dict[str, dict[str, ValueDigest]] = {}
        """By member, "" for the study. Read once, because running code may change the objects that it refers to."""

    @functools.cached_property
    def found(self) -> dict[str, Any] | None:
        """Return ``study.json`` of the earlier driver."""
        return read_study(self.directory)

    def warn_if_missing(self) -> None:
        """Warn if members have trained and ``study.json`` is missing, so that a changed study is not noticed."""
        if self.found is None and self._begun:
            warn_caller(
                f"{self.directory} has no study.json, so it was not checked whether its members began with this study. They "
                "continue with their weights and the states of their optimizers, which hold learning rates. If the study has "
                "changed since, restore a copy of study.json, or start over (fresh=True, --fresh)."
            )

    def check(self, study: Study, **known: Any) -> None:
        """Raise RunError with all differences from the earlier study that can be seen from what is `known` so far."""
        if self.found is not None:
            self._check(self.found, self._summary(study, **known))

    def write(self, study: Study, **known: Any) -> None:
        """Check again with all that is known once data is open and networks are built (see `summarize`), and write."""
        described = self._summary(study, **known)
        if self.found is not None:
            self._check(self.found, described)
            self._merge_earlier(self.found, described)
            self.found = described  # a driver writes more than once
        write_json(self.directory / "study.json", described)
        # After study.json, which now has these members.
        (self.directory / NEWCOMERS).unlink(missing_ok=True)

    def _warn_if_uncompared(self, version: str) -> None:
        if self._begun:
            warn_caller(
                f"{self.directory} was last trained under other versions of Python, torch or Argosy ({version!r}, here {CodeReader.VERSION!r}), so it "
                "was not checked whether functions or classes of the study have changed since. If they have, undo the change, or start "
                "over (fresh=True, --fresh)."
            )

    def update(self, study: Study, **known: Any) -> None:
        """Write the members of a run with nothing to train, if they are missing, or its study has lost members or got them back."""
        earlier = self.found
        if earlier is None and self._begun:
            write_json(self.directory / "study.json", self._summary(study, **known))
        elif earlier is not None and (
            any((name in study.names) == one.get("left_out", False) for name, one in earlier["members"].items())
            # Left out when study.json, which had been lost, was written again.
            or self._begun & {*study.names} - earlier["members"].keys()
        ):
            described = {**earlier, **self._summary(study), **{key: earlier[key] for key in LATE if key in earlier}}
            self._merge_earlier(earlier, described)
            self.found = described
            write_json(self.directory / "study.json", described)

    def _merge_earlier(self, earlier: Mapping[str, Any], here: dict[str, Any]) -> None:
        """Copy into `here` what this study lacks: members that have begun and were left out, and earlier metrics."""
        # `here` has one version for all digests, so those of another would later count as changed.
        if earlier["code"]["version"] != CodeReader.VERSION:
            self._warn_if_uncompared(earlier["code"]["version"])
            members = {name: {**there, "code": {}} for name, there in earlier["members"].items()}
            earlier = {**earlier, "code": {"parts": {}}, "members": members}
        for name, there in earlier["members"].items():
            if name not in here["members"]:
                if name in self._begun:
                    here["members"][name] = {**there, "left_out": True}
                continue
            described = here["members"][name]
            described["parameter_shapes"] = described["parameter_shapes"] or there["parameter_shapes"]
            if name in self._begun:
                described.update({key: there[key] for key in _metrics(there) if key not in described})
                code = there["code"]
                described["code"].update({key: code[key] for key in _metrics(code) if key not in described["code"]})
        for part, digests in earlier["code"]["parts"].items():
            known = here["code"]["parts"].setdefault(part, [])
            known.extend(digest for digest in digests if digest not in known)

    def add(self, study: Study, names: Iterable[str], **known: Any) -> None:
        """Append added members to a file beside ``study.json``, because rewriting it for each of thousands would be slow."""
        described = self._summary(replace(study, members=[study.member(name) for name in names]), **known)
        line = json.dumps({"members": described["members"], "parts": described["code"]["parts"]})
        with open_append(self.directory / NEWCOMERS) as file:
            file.write(f"{line}\n".encode())
            os.fsync(file.fileno())

    def equal_member(self, member: Member, study: Study) -> str | None:
        """Return the member that would become bitwise equal: one with the same configuration and the same given seed."""
        if member.seed is None:
            return None
        described = self._described(member, study)
        others = (other for other in study.members if other.seed == member.seed)
        equal = next((other.name for other in others if self._described(other, study) == described), None)
        if equal is not None:
            del self._readings[member.name]  # another member will get this name
        return equal

    def changed_networks(self, study: Study) -> dict[str, list[str]]:
        """Return by member, in words, what is known to have changed in its network since its weights were trained. Call this before
        building a network, which may change what its factory refers to."""
        earlier, now = {} if self.found is None else self.found["members"], self._summary(study)["members"]
        return {
            name: list(self._code_changes(name, earlier[name], now[name], ["model"])) for name in now if name in earlier
        }

    def _described(self, member: Member, study: Study) -> dict[str, Any]:
        code = self._read(member.name, functions_of(member))
        return {**describe(member, None), "stop": repr(study.stop_of(member)), "code": code}

    def _check(self, earlier: Mapping[str, Any], here: Mapping[str, Any]) -> None:
        changed = self._changed_members(earlier, here)
        of_study = list(self._differences(earlier, here))
        if of_study or changed:
            lines = [*of_study, *(_format_members(names) + change for change, names in changed.items())]
            names = dict.fromkeys(itertools.chain(self._anew, *changed.values()))
            anew = not of_study and not self._of_search and names.keys() <= here["members"].keys()
            raise RunError(
                f"{self.directory} holds the run of a different study:\n  " + "\n  ".join(lines) + "\n"
                f"Undo the change, or choose another directory. {_advice(_by_configuration(names, here) if anew else [], self.directory)}"
            )

    def _summary(self, study: Study, **known: Any) -> dict[str, Any]:
        """Return `summarize` with the digests of all code."""
        described = summarize(study, **known)
        described["process"] = self.process.decisive_settings
        of_data = {"on_device": study.data.on_device, "then": study.data.then}
        described["code"] = {"version": CodeReader.VERSION, "parts": {}, **self._read("", of_data)}
        for member in study.members:
            described["members"][member.name]["code"] = self._read(member.name, functions_of(member))
        readings = (self._readings[owner].values() for owner in ("", *study.names))
        parts = {part for found_readings in readings for reading in found_readings for part in reading.parts}
        for name, digest in sorted(parts):
            described["code"]["parts"].setdefault(name, []).append(digest)
        return described

    def _read(self, owner: str, functions: Mapping[str, Any]) -> dict[str, str]:
        """Return the digests of an owner's functions."""
        if owner not in self._readings:
            present = {field: function for field, function in functions.items() if function is not None}
            self._readings[owner] = {field: self._code.read(function) for field, function in present.items()}
        return {field: reading.digest for field, reading in self._readings[owner].items()}

    def _differences(self, earlier: Mapping[str, Any], here: Mapping[str, Any]) -> Iterator[str]:
        """Yield the differences that concern all members, in words."""
        yield from _value_changes(earlier, here, IDENTITY)
        # None: this build of torch lacks the setting, as one without CUDA, or without opt_einsum.
        known = [key for key, value in here["process"].items() if None not in (value, earlier["process"].get(key))]
        yield from _value_changes(earlier["process"], here["process"], known)
        for key, split in SAMPLES.items():
            if _differ(earlier, here, key):
                yield f"{split}: its samples or labels have changed"
        yield from (f"Data.{change}" for change in self._code_changes("", earlier, here, ("on_device", "then")))

    def _changed_members(self, earlier: Mapping[str, Any], here: Mapping[str, Any]) -> dict[str, list[str]]:
        """Return names of members by what has changed in them.

        Some members may be missing; if all are, it is another study.
        """
        begun = {name: earlier_member for name, earlier_member in earlier["members"].items() if name in self._begun}
        if begun and not begun.keys() & here["members"].keys():
            return {": no longer in the study": list(begun)}
        changed: dict[str, list[str]] = {}
        for name, earlier_member in begun.items():
            if name in here["members"]:
                for change in self._member_changes(name, earlier_member, here["members"][name]):
                    changed.setdefault(change, []).append(name)
        return changed

    def _member_changes(self, name: str, there: Mapping[str, Any], here: Mapping[str, Any]) -> Iterator[str]:
        """Yield what has changed in a member.

        Metrics may come and go and do not affect weights; only metrics in both studies are compared.
        """
        fields = [*FACTORIES, *(key for key in _metrics(there) if key in here)]
        yield from (f", {change}" for change in _value_changes(there, here, MEMBER_IDENTITY))
        yield from (f", {change}" for change in self._code_changes(name, there, here, fields))

    def _code_changes(
        self, owner: str, there: Mapping[str, Any], here: Mapping[str, Any], fields: Iterable[str]
    ) -> Iterator[str]:
        """Yield what has changed in each function: its name, its bound values, or what it computes."""
        for field in fields:
            before, now = there.get(field), here.get(field)
            bound = list(_binding_changes(field, there, here))
            if _bare_name(before) != _bare_name(now):
                # The file's name does not matter: it may be run as a script.
                yield f"{field}: was {_format_value(before)}, is now {_format_value(now)}"
            elif bound:
                yield from bound
            elif now is not None and owner not in self._failed and there["code"].get(field):
                yield from self._changed_code(field, there["code"][field], self._readings[owner][field])

    def _changed_code(self, field: str, before: str, now: ValueDigest) -> Iterator[str]:
        assert self.found is not None
        earlier = self.found["code"]
        if before != now.digest and earlier["version"] == CodeReader.VERSION:
            changed = dict.fromkeys(name for name, digest in now.parts if digest not in earlier["parts"].get(name, ()))
            what = ", ".join(list(changed)[:MOST_NAMED]) or "its content"
            yield f"{field}: {what} changed since the run began"


def _by_configuration(names: Collection[str], here: Mapping[str, Any]) -> list[str]:
    """Return these members by name, or by configuration where all repetitions of one are among them."""
    of = {name: (described["repetition"] or {}).get("of", name) for name, described in here["members"].items()}
    parts = {of[name] for name in of if name not in names}
    return list(dict.fromkeys(name if of[name] in {*parts, *here["members"]} else of[name] for name in names))


def _advice(changed: Sequence[str], directory: Path) -> str:
    """Return how the user can still train in the directory, given the members or configurations that have changed."""
    everything = f"fresh=True (--fresh) trains everything again and keeps the old files in {directory.name}.old-1, or with the next number."
    if not changed:
        return f"Or start over: {everything}"
    flags = " ".join(f"--fresh {name}" for name in changed[:MOST_NAMED])
    more = "" if len(changed) <= MOST_NAMED else " and so on"
    them, they_are = ("it", "it is a new member") if len(changed) == 1 else ("them", "they are new members")
    return (
        f"Or keep the rest:\n  fresh={list(changed[:MOST_NAMED])}{more} ({flags}{more}) trains {them} again and keeps the old files "
        f"in members.old\n  under another name, {they_are} beside the existing ones\n  {everything}"
    )


def _metrics(described: Mapping[str, Any]) -> list[str]:
    return [key for key in described if key.startswith("metrics.")]


def _value_changes(there: Mapping[str, Any], here: Mapping[str, Any], keys: Iterable[str]) -> Iterator[str]:
    for key in keys:
        if _differ(there, here, key):
            yield f"{key}: was {_format_value(there[key])}, is now {_format_value(here[key])}"


def _differ(there: Mapping[str, Any], here: Mapping[str, Any], key: str) -> bool:
    """Return whether a value has changed; False unless both are known."""
    unknown = key not in there or (key in LATE and None in (there[key], here[key]))
    return not unknown and bool(there[key] != here[key])


def _binding_changes(field: str, there: Mapping[str, Any], here: Mapping[str, Any]) -> Iterator[str]:
    """Yield changed hyper-parameters of a function; the data's function has none."""
    before, now = there.get("hyperparameters", {}), here.get("hyperparameters", {})
    for key in dict.fromkeys([*before, *now]):
        if key.startswith(f"{field}.") and (key in before, before.get(key)) != (key in now, now.get(key)):
            yield f"{_format_value(key)}: was {_format_value(before.get(key))}, is now {_format_value(now.get(key))}"


def _format_members(names: Collection[str]) -> str:
    first, rest = ", ".join(map(repr, list(names)[:MOST_NAMED])), len(names) - MOST_NAMED
    return f"{'member' if len(names) == 1 else 'members'} {first}{f' and {rest} more' if rest > 0 else ''}"


def _format_value(value: Any) -> str:
    text = "none" if value is None else value if isinstance(value, str) else repr(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"


def _bare_name(spelled: str | None) -> str | None:
    """Return the name of a function without its file and bound values."""
    return spelled.partition("(")[0].rpartition(":")[2] if isinstance(spelled, str) else None
