"""Installed versions of the packages that determine what processes compute, found without importing them."""

import importlib.metadata
import platform
import sys
from collections.abc import Iterable

from argosy.version import __version__

__all__ = ["versions", "versions_of"]


def versions() -> dict[str, str]:
    """Return the versions of the software that determines what this process computes; ``unknown`` if it is not installed as a package."""
    installed = {name: version or "unknown" for name, version in versions_of(["torch", "numpy"]).items()}
    return {"argosy": __version__, **installed, "python": platform.python_version()}


def versions_of(packages: Iterable[str]) -> dict[str, str | None]:
    """Return versions by package, including ``python``; None for a package that is not installed."""
    return {name: _version(name) for name in packages}


def _version(package: str) -> str | None:
    if package == "python":
        return ".".join(map(str, sys.version_info[:3]))
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
