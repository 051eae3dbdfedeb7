"""What benchmarks share: the name of the hardware, quartiles, targets, and the line of JSON at the end."""

import argparse
import json
import os
import platform
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch


def arguments(description: str) -> argparse.ArgumentParser:
    """Return a parser with ``--json`` and ``--rounds``."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds")
    return parser


def hardware() -> str:
    """Return processor, usable cores, GPU and version of torch."""
    cpu = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
            break
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return f"{cpu}, {len(os.sched_getaffinity(0))} cores{gpu}, torch {torch.__version__}"


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the first quartile, the median and the third quartile."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, statistics.median(values), high


def target(
    what: str, values: Sequence[float], *, at_least: float | None = None, at_most: float | None = None
) -> dict[str, Any]:
    """Judge a target by the median, print it with its quartiles, and return it."""
    low, median, high = quartiles(values)
    holds = (at_least is None or median >= at_least) and (at_most is None or median <= at_most)
    wanted = f">= {at_least:g}" if at_least is not None else f"<= {at_most:g}"
    print(
        f"{'holds' if holds else 'MISSED'}: {what}: {median:.4g} (quartiles {low:.4g} to {high:.4g}), wanted {wanted}"
    )
    return {"what": what, "value": median, "quartiles": [low, high], "target": wanted, "holds": holds}


def finish(name: str, figures: dict[str, Any], targets: list[dict[str, Any]], *, as_json: bool) -> None:
    """Print the line of JSON if it is asked for."""
    if as_json:
        result = {"benchmark": name, "hardware": hardware(), "figures": figures, "targets": targets}
        print(json.dumps(result))
