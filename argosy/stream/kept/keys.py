"""The key of kept rows: what decides the content of a Dataset's samples and can be told before one is prepared.

That is the code of its class with all that it refers to in the user's files, the values of its attributes in full, and the versions
of the packages that either names. Comments, line numbers, the study, its workers, blocks and seeds do not count; nor do the
names of the folders in which its files lie. What cannot be told before (files that samples open, variables that they read) has
witnesses (`argosy.stream.kept.witnesses`).
"""

import functools
import hashlib
import importlib.metadata
import os
import re
import secrets
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from argosy.stream.code_digest import Code, Opaque, Whole, attributes_of, is_installed
from argosy.stream.kept.witnesses import Roots

__all__ = ["Key", "key_of"]

ALWAYS = ("numpy", "torch")
"""Packages that make every sample."""
REQUIREMENT = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class Key:
    """What decides the samples of one Dataset."""

    subject: str
    """Name of its class: of two keys of one subject a message says which parts differ."""
    parts: dict[str, str]
    """Digest of each part, by its name in words."""
    roots: Roots
    files: tuple[str, ...]
    """Files that it names or maps, with absolute paths."""
    whole: Whole
    """What was noted when its values were read."""

    @classmethod
    def of_one_run(cls, dataset: Any) -> "Key":
        """Return a key that no other run has, for what has no content to be told."""
        parts = {"this run": secrets.token_hex(8)}
        return cls(subject=_subject(dataset), parts=parts, roots=Roots([]), files=(), whole=Whole())

    @property
    def name(self) -> str:
        """Return the name under which rows are kept; that of all keys of one subject begins alike."""
        return f"{self.prefix}{_hash(repr(sorted(self.parts.items())))}"

    @property
    def prefix(self) -> str:
        """Return what the names of all keys of this subject begin with."""
        return f"{_hash(self.subject)}-"

    def difference(self, parts: Mapping[str, str], volatile: Collection[str]) -> str:
        """Return which parts another key has otherwise, in words, but for those that samples change themselves."""
        names = [name for name in {**parts, **self.parts} if name not in volatile]
        changed = [name for name in names if parts.get(name) != self.parts.get(name)]
        return ", ".join(changed[:3]) + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")

    def changed_by_samples(self, dataset: Any) -> tuple[str, ...]:
        """Return the parts that have changed since, which decide nothing: samples were equal all the same, as those of a counter."""
        now = _parts(dataset, Code(self.whole), opaque="opaque")
        return tuple(name for name, digest in self.parts.items() if now.get(name, digest) != digest)


def key_of(dataset: Any) -> Key:
    """Return the key of a Dataset that was opened; raises Opaque where it holds what has no content to be told."""
    whole = Whole()
    parts = _parts(dataset, Code(whole))
    roots = tuple(_roots(whole.paths))
    if roots:
        whole = replace(whole, roots=roots)
        parts = _parts(dataset, Code(whole))
    parts |= {f"the version of {package}": version for package, version in sorted(_versions(whole.packages))}
    parts["the version of Python and torch"] = Code.VERSION
    named = [path for path in whole.paths if Path(path).is_file()]
    return Key(
        subject=_subject(dataset),
        parts=parts,
        roots=Roots([*roots, str(Path.cwd())]),
        files=tuple(dict.fromkeys([*sorted(named), *(file.path for file in whole.files)])),
        whole=whole,
    )


def _subject(dataset: Any) -> str:
    return f"{type(dataset).__module__}.{type(dataset).__qualname__}"


def _parts(dataset: Any, code: Code, *, opaque: str | None = None) -> dict[str, str]:
    """Return the digests of a Dataset's class, of what it refers to, and of its attributes; `opaque` for those without content."""
    values = attributes_of(dataset)
    named = {f"its {name}": value for name, value in values.items()}
    named["its class"] = type(dataset) if values else dataset
    parts: dict[str, str] = {}
    further: dict[tuple[str, str], None] = {}
    for name, value in named.items():
        try:
            reading = code.read(value)
        except Opaque:
            if opaque is None:
                raise
            parts[name] = opaque
            continue
        parts[name] = reading.said
        further |= dict.fromkeys(reading.parts)
    for name, digest in further:
        parts[name] = _hash(f"{parts[name]} {digest}") if name in parts else digest
    return parts


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _roots(paths: Iterable[str]) -> list[str]:
    """Return the folders that values name, or the files of which they name, but for those inside of others."""
    folders: dict[str, None] = {}
    for path in paths:
        folder = path if Path(path).is_dir() else str(Path(path).parent)
        if Path(path).exists() and folder != os.sep and not is_installed(Path(folder)):
            folders.setdefault(folder.rstrip(os.sep))
    return [folder for folder in folders if not any(folder.startswith(f"{other}{os.sep}") for other in folders)]


def _versions(packages: set[str]) -> set[tuple[str, str]]:
    """Return the installed distributions of these packages, with their versions, and of what they need but for `ALWAYS`."""
    known = _distributions()
    left = [name for package in {*packages, *ALWAYS} for name in known.get(package, ())]
    found: dict[str, str] = {}
    while left:
        name = left.pop()
        if name not in found:
            try:
                distribution = importlib.metadata.distribution(name)
            except importlib.metadata.PackageNotFoundError:  # needed on other systems alone
                continue
            found[name] = distribution.version
            needed = (text for text in distribution.requires or () if "extra ==" not in text)
            if name not in ALWAYS:
                left += [match.group().lower() for text in needed if (match := REQUIREMENT.match(text))]
    return set(found.items())


@functools.cache
def _distributions() -> dict[str, list[str]]:
    return {
        package: [name.lower() for name in names]
        for package, names in importlib.metadata.packages_distributions().items()
    }
