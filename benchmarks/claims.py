"""How benchmarks report what they measured and whether a target holds."""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Target", "report"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """One claim: a value and what it must reach."""

    what: str
    value: float
    target: str
    """As a person reads it, for example ``>= 1.05``."""
    holds: bool

    @classmethod
    def at_least(cls, what: str, value: float, bound: float) -> "Target":
        """Return a target that the value is not below the bound."""
        return cls(what=what, value=value, target=f">= {bound:g}", holds=value >= bound)

    @classmethod
    def at_most(cls, what: str, value: float, bound: float) -> "Target":
        """Return a target that the value is not above the bound."""
        return cls(what=what, value=value, target=f"<= {bound:g}", holds=value <= bound)

    def __str__(self) -> str:
        return f"{'holds ' if self.holds else 'MISSED'}  {self.what}: {self.value:.4g} (target {self.target})"


def report(benchmark: str, figures: Mapping[str, Any], targets: Sequence[Target], *, as_json: bool) -> int:
    """Print the targets, or one line of JSON; return the exit status, which is 1 if a target is missed."""
    if as_json:
        rows = [{"what": t.what, "value": t.value, "target": t.target, "holds": t.holds} for t in targets]
        hardware = f"{os.cpu_count()} x {platform.machine()}, Python {platform.python_version()}"
        print(json.dumps({"benchmark": benchmark, "hardware": hardware, "figures": figures, "targets": rows}))
    else:
        print("\n".join(str(target) for target in targets))
    return 0 if all(target.holds for target in targets) else 1
