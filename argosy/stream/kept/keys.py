"""The key of kept rows: what decides the content of a Dataset's samples and can be told before one is prepared.

That is the code of its class with all that it refers to in the user's files, the values of its attributes in full, and the versions
of the packages that either names. Comments, line numbers, the study, its workers, blocks and seeds do not count; nor do the
names of the folders in which its files lie. What cannot be told before (files that samples open, variables that they read) has
witnesses (`argosy.stream.kept.witnesses`).
"""

import contextlib
import functools
import hashlib
import importlib.metadata
import os
import re
import secrets
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from argosy.readings import is_installed
from argosy.stream.code_digest import Code, Content, Global, Opaque, attributes_of
from argosy.stream.kept.witnesses import Roots
from argosy.stream.padding import given

__all__ = ["Key", "key_of"]

ALWAYS = ("numpy", "torch")
"""Packages that make every sample."""
ITEMS = (list, tuple, dict, np.ndarray, torch.Tensor)
"""Types whose subclasses may be Datasets, with samples besides their attributes."""
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
    whole: Content
    """What was noted when its values were read."""

    @classmethod
    def of_one_run(cls, dataset: Any) -> "Key":
        """Return a key that no other run has, for what has no content to be told."""
        parts = {"this run": secrets.token_hex(8)}
        return cls(subject=_subject(dataset), parts=parts, roots=Roots([]), files=(), whole=Content())

    @property
    def name(self) -> str:
        """Return the name under which rows are kept, another one for each place; that of all keys of one subject begins alike."""
        return f"{self.prefix}{_hash(repr((sorted(self.parts.items()), self.place)))}"

    @property
    def place(self) -> tuple[str, ...]:
        """Return the folders in which files are looked for: two that are alike but for what lies in them have equal parts."""
        return tuple(self.roots.folders)

    @property
    def prefix(self) -> str:
        """Return what the names of all keys of this subject begin with."""
        return f"{_hash(self.subject)}-"

    def difference(self, parts: Mapping[str, str]) -> str:
        """Return which parts another key has otherwise, in words."""
        changed = [name for name in {**parts, **self.parts} if parts.get(name) != self.parts.get(name)]
        return ", ".join(changed[:3]) + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")

    def note_use(self, dataset: Any) -> None:
        """Note what the first samples have changed: where the Dataset is opened again in this process, it counts as it was."""
        dataset = given(dataset)
        now, _ = _parts(dataset, Code(self.whole))
        changed = {name: self.parts.get(name) for name, digest in now.items() if self.parts.get(name) != digest}
        USED.note(dataset, changed, self.whole)


class _Used:
    """What samples have changed in this process, with the digests from before; None for what was not there.

    A counter or a cache decides nothing: samples are equal before and after. A global list counts as it was for all Datasets that
    refer to this very list, an attribute for this very Dataset.
    """

    def __init__(self) -> None:
        self._globals: dict[int, tuple[Any, str]] = {}
        self._attributes: dict[int, tuple[weakref.ref[Any], dict[str, str | None]]] = {}

    def note(self, dataset: Any, changed: Mapping[str, str | None], whole: Content) -> None:
        """Add what has changed since a Dataset was opened."""
        of_dataset = dict(changed)
        for name, part in whole.parts.items():
            digest = of_dataset.pop(name, None)
            if digest is not None:
                self._globals[id(_held(part))] = (_held(part), digest)
            elif name in changed and not isinstance(part, Global):
                of_dataset[name] = None  # a class of which samples have made objects
        with contextlib.suppress(TypeError):  # a class without weak references: its objects count as they are
            identity, before = id(dataset), self._of(dataset)
            reference = weakref.ref(dataset, lambda _: self._attributes.pop(identity, None))
            self._attributes[identity] = (reference, before | of_dataset)

    def before(self, dataset: Any, whole: Content) -> dict[str, str | None]:
        """Return what counts instead of the digests of some parts."""
        known = {name: self._globals.get(id(_held(part))) for name, part in whole.parts.items()}
        return self._of(dataset) | {name: found[1] for name, found in known.items() if found is not None}

    def _of(self, dataset: Any) -> dict[str, str | None]:
        reference, known = self._attributes.get(id(dataset), (None, {}))
        return known if reference is not None and reference() is dataset else {}


def _held(part: Any) -> Any:
    return part.value if isinstance(part, Global) else part


USED = _Used()


def key_of(dataset: Any) -> Key:
    """Return the key of a Dataset that was opened; raises Opaque where it holds what has no content to be told.

    Of samples that are padded it is that of the Dataset as it was given, and how they are.
    """
    if given(dataset) is not dataset:
        key = key_of(given(dataset))
        return replace(key, parts={**key.parts, "Data.ragged": repr(dataset.ragged)})
    whole = Content()
    parts, opaque = _parts(dataset, Code(whole))
    roots = tuple(_roots(whole.paths))
    if roots:
        whole = replace(whole, roots=roots)
        parts, opaque = _parts(dataset, Code(whole))
    before = USED.before(dataset, whole)
    for name, error in opaque.items():
        if name not in before:
            raise error
    parts = {name: digest for name, digest in {**parts, **before}.items() if digest is not None}
    parts |= {f"the version of {package}": version for package, version in sorted(_versions(whole.packages))}
    parts["the version of Python and torch"] = Code.VERSION
    parts["torch's default dtype"] = str(torch.get_default_dtype())
    parts["the kernels for this processor"] = torch.backends.cpu.get_cpu_capability()
    return Key(
        subject=_subject(dataset),
        parts=parts,
        roots=Roots([*roots, str(Path.cwd())]),
        files=tuple(dict.fromkeys([*sorted(whole.named), *(file.path for file in whole.files)])),
        whole=whole,
    )


def _subject(dataset: Any) -> str:
    dataset = given(dataset)
    return f"{type(dataset).__module__}.{type(dataset).__qualname__}"


def _parts(dataset: Any, code: Code) -> tuple[dict[str, str], dict[str, Opaque]]:
    """Return the digests of a Dataset's class, of what it refers to, and of its attributes; why some of these have none."""
    values = attributes_of(dataset)
    named = {f"its {name}": value for name, value in values.items()}
    named["its class"] = type(dataset) if values else dataset
    if values and isinstance(dataset, ITEMS):
        named["its items"] = dataset
    parts, opaque, further = dict[str, str](), dict[str, Opaque](), dict[str, str]()
    for name, value in named.items():
        try:
            reading = code.read(value)
        except Opaque as error:
            parts[name], opaque[name] = "opaque", error
            continue
        parts[name] = reading.said
        further |= dict(reading.parts)
    return {**further, **parts}, opaque


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
    left = [name for package in {*packages, *ALWAYS} for name in _distributions_of(package)]
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


def _distributions_of(package: str) -> list[str]:
    """Return the distributions that have a package; most have its name."""
    try:
        importlib.metadata.distribution(package)
        return [package.lower()]
    except importlib.metadata.PackageNotFoundError:
        return _distributions_with(package)


@functools.cache
def _distributions_with(package: str) -> list[str]:
    """Find them by their lists of files, unparsed: `importlib.metadata.packages_distributions` takes a quarter of a second for all packages."""
    its_file = re.compile(rf"^{re.escape(package)}[/.]", re.MULTILINE)
    found = []
    for distribution in importlib.metadata.distributions():
        declared = distribution.read_text("top_level.txt")
        has_it = package in declared.split() if declared else its_file.search(distribution.read_text("RECORD") or "")
        if has_it:
            found.append(distribution.name.lower())
    return found
