"""The result of one check of ``argosy doctor``."""

from dataclasses import dataclass

__all__ = ["Check", "make_check"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """The result of one check."""

    name: str
    found: str
    wanted: str
    ok: bool
    fix: str = ""
    """The exact command or setting that fixes the problem; without a problem, empty or advice."""


def make_check(name: str, found: str, wanted: str, fix: str = "") -> Check:
    """Return a check, which has failed if `fix` is given."""
    return Check(name=name, found=found, wanted=wanted, ok=not fix, fix=fix)
