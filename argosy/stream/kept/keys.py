"""The key of kept rows: everything that decides a Dataset's samples and is known before a sample is prepared.

It covers the code of the Dataset's class with all that it refers to in the user's files, the complete values of its attributes, and the versions
of the packages that code or values name. Comments, line numbers, the study, its workers, blocks and seeds do not count; nor do the
names of the folders that contain its files. What is known only after preparation (files that samples open, variables that they read) is
covered by witnesses (`argosy.stream.kept.witnesses`).
"""

import functools
import hashlib
import importlib.metadata
import os
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from argosy.readings import attributes_of, is_installed
from argosy.stream.code_digest import CodeReader
from argosy.stream.kept.witnesses import Roots
from argosy.stream.padding import unwrap_padding
from argosy.stream.shards import FactoryStream
from argosy.stream.value_text import Content

__all__ = ["Key", "make_key"]

ALWAYS = ("numpy", "torch")
"""Packages that affect every sample."""
ITEMS = (list, tuple, dict, np.ndarray, torch.Tensor)
"""Types whose subclasses may be Datasets that hold samples besides their attributes."""
REQUIREMENT = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class Key:
    """Everything that decides the samples of one Dataset."""

    subject: str
    """Name of its class. For two keys of the same subject, a message says which parts differ."""
    parts: dict[str, str]
    """Digest of each part, by the part's name in words."""
    roots: Roots
    """The folders from which files are read. Keys of Datasets that differ only in the content of these folders have equal parts."""
    files: tuple[str, ...]
    """Absolute paths of files that it names or maps."""

    @classmethod
    def of_one_run(cls, dataset: Any) -> "Key":
        """Return a key that no other run has, for a Dataset with unreadable content."""
        parts = {"this run": secrets.token_hex(8)}
        return cls(subject=_subject(dataset), parts=parts, roots=Roots(), files=())

    @property
    def name(self) -> str:
        """Return the name under which rows are kept. It differs between places; names of keys of the same subject have a common prefix."""
        return f"{self.prefix}{_hash(repr((sorted(self.parts.items()), self.roots.folders)))}"

    @property
    def prefix(self) -> str:
        """Return the common prefix of the names of all keys of this subject."""
        return f"{_hash(self.subject)}-"

    def difference(self, parts: Mapping[str, str]) -> str:
        """Return in words which parts differ in another key."""
        changed = [name for name in {**parts, **self.parts} if parts.get(name) != self.parts.get(name)]
        return ", ".join(changed[:3]) + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")


def make_key(dataset: Any) -> Key:
    """Return the key of an opened Dataset. Raises UnreadableContent if it holds an object whose content cannot be read.

    For padded samples, it is the key of the Dataset as it was given, with the lengths to which they are padded.
    """
    if unwrap_padding(dataset) is not dataset:
        key = make_key(unwrap_padding(dataset))
        return replace(key, parts={**key.parts, "Data.ragged": repr(dataset.ragged)})
    whole = Content()
    code = CodeReader(whole)
    parts = _parts(dataset, code)
    roots = tuple(_roots(whole.paths))
    if roots:
        whole = replace(whole, roots=roots)
        parts = _parts(dataset, CodeReader(whole))
    parts |= {f"the version of {package}": version for package, version in sorted(_versions(code.packages))}
    parts["the version of Python and torch"] = CodeReader.VERSION
    parts["torch's default dtype"] = str(torch.get_default_dtype())
    parts["the kernels for this processor"] = torch.backends.cpu.get_cpu_capability()
    return Key(
        subject=_subject(dataset),
        parts=parts,
        roots=Roots((*roots, str(Path.cwd()))),
        files=tuple(dict.fromkeys([*sorted(whole.named), *(file.path for file in whole.files)])),
    )


def _subject(dataset: Any) -> str:
    dataset = unwrap_padding(dataset)
    if isinstance(dataset, FactoryStream):
        return f"{dataset.name}()"
    return f"{type(dataset).__module__}.{type(dataset).__qualname__}"


def _parts(dataset: Any, code: CodeReader) -> dict[str, str]:
    """Return the digests of a Dataset's class, of what it refers to, and of its attributes. Raises UnreadableContent."""
    values = attributes_of(dataset)
    named = {f"its {name}": value for name, value in values.items()}
    named["its class"] = type(dataset) if values else dataset
    if values and isinstance(dataset, ITEMS):
        named["its items"] = dataset
    parts, further = dict[str, str](), dict[str, str]()
    for name, value in named.items():
        reading = code.read(value)
        parts[name] = reading.said
        further |= dict(reading.parts)
    return {**further, **parts}


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


def _roots(paths: Iterable[str]) -> list[str]:
    """Return the folders that values name, and those of files that they name, except folders inside others."""
    folders: dict[str, None] = {}
    for path in paths:
        folder = path if Path(path).is_dir() else str(Path(path).parent)
        if Path(path).exists() and folder != os.sep and not is_installed(Path(folder)):
            folders.setdefault(folder.rstrip(os.sep))
    return [folder for folder in folders if not any(folder.startswith(f"{other}{os.sep}") for other in folders)]


def _versions(packages: set[str]) -> set[tuple[str, str]]:
    """Return names and versions of the distributions of these packages and of `ALWAYS`, and of their dependencies except those of `ALWAYS`."""
    todo = [name for package in {*packages, *ALWAYS} for name in _distributions_of(package)]
    versions: dict[str, str] = {}
    while todo:
        name = todo.pop()
        if name not in versions:
            try:
                distribution = importlib.metadata.distribution(name)
            except importlib.metadata.PackageNotFoundError:  # needed only on other systems
                continue
            versions[name] = distribution.version
            needed = (text for text in distribution.requires or () if "extra ==" not in text)
            if name not in ALWAYS:
                todo += [match.group().lower() for text in needed if (match := REQUIREMENT.match(text))]
    return set(versions.items())


def _distributions_of(package: str) -> list[str]:
    """Return the distributions that contain a package; most have its name."""
    try:
        importlib.metadata.distribution(package)
        return [package.lower()]
    except importlib.metadata.PackageNotFoundError:
        return _distributions_with(package)


@functools.cache
def _distributions_with(package: str) -> list[str]:
    """Search the unparsed file lists of all distributions. `importlib.metadata.packages_distributions` would take a quarter of a second."""
    its_file = re.compile(rf"^{re.escape(package)}[/.]", re.MULTILINE)
    names = []
    for distribution in importlib.metadata.distributions():
        declared = distribution.read_text("top_level.txt")
        has_it = package in declared.split() if declared else its_file.search(distribution.read_text("RECORD") or "")
        if has_it:
            names.append(distribution.name.lower())
    return names
