"""What ``argosy simulate`` does: read tables, and format what came of them."""

import csv
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from argosy.cluster import Cluster
from argosy.errors import PlanError
from argosy.errors.spelling import did_you_mean
from argosy.planning import POLICIES
from argosy.planning.outcomes import Simulation
from argosy.planning.replay import Network

__all__ = ["choose_policies", "cluster_of", "format_runs", "read_networks", "read_scaling", "split_sizes"]


def cluster_of(devices: int, node_devices: int, memory_gb: float) -> Cluster:
    """Return a cluster of `devices` devices in equal nodes; raises PlanError if they do not fill them."""
    if devices < 1 or node_devices < 1 or devices % node_devices:
        raise PlanError(f"{devices} devices do not fill nodes of {node_devices}; change --devices or --node-devices.")
    return Cluster.parse(f"{devices // node_devices}x{node_devices}x{memory_gb:.12g}GB")


def read_networks(path: Path) -> list[Network]:
    """Read a table with columns name, samples_per_second, epochs, model_mb."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:  # spreadsheets write a byte order mark
            networks = [
                Network(
                    name=row["name"],
                    samples_per_second=float(row["samples_per_second"]),
                    epochs=int(row["epochs"]),
                    model_bytes=int(float(row["model_mb"]) * 1e6),
                )
                for row in csv.DictReader(file, restval="", skipinitialspace=True)
            ]
        if not networks:
            raise ValueError("it has no rows")
        names = Counter(network.name for network in networks)
        if wrong := [network.name for network in networks if network.epochs < 1 or names[network.name] > 1]:
            raise ValueError(f"{wrong[0]!r} is listed twice, or has less than 1 epoch")
        return networks
    except (OSError, KeyError, ValueError) as error:
        raise PlanError(
            f"cannot read the table {path} ({error!r}); give it the columns name, samples_per_second, epochs, model_mb."
        ) from error


def read_scaling(path: Path) -> list[list[float]]:
    """Read curves of rates on 1, 2, … devices, one per row below a header."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            curves = [[float(rate) for rate in row] for row in list(csv.reader(file))[1:] if row]
        if not curves or min(map(min, curves)) <= 0:
            raise ValueError(f"{len(curves)} curves, and each must have rates greater than 0")
        return curves
    except (OSError, ValueError) as error:
        raise PlanError(
            f"cannot read the scaling curves {path} ({error!r}); write a header line, then lines of rates."
        ) from error


def split_sizes(text: str) -> list[int]:
    """Return the numbers of ``--devices``; raises PlanError for other words."""
    if not all(part.strip().isdigit() for part in text.split(",")):
        raise PlanError(f"--devices is {text!r}; it must be a list of numbers, for example 20,40,80.")
    return [int(part) for part in text.split(",")]


def choose_policies(text: str) -> Sequence[str]:
    """Return the policies of ``--policy``; raises PlanError for unknown ones."""
    # ``exact`` solves only small cases.
    names = (
        tuple(name for name in POLICIES if name != "exact")
        if text == "all"
        else tuple(name.strip() for name in text.split(","))
    )
    if unknown := [name for name in names if name not in POLICIES]:
        raise PlanError(
            f"unknown policy {', '.join(map(repr, unknown))}{did_you_mean(unknown[0], POLICIES)}; choose all, or "
            f"some of {', '.join(POLICIES)}."
        )
    return names


def format_runs(runs: Sequence[Simulation]) -> str:
    """Return a table of simulated runs."""
    lines = ["policy       devices  makespan s   of bound  flotillas  moves   idle  planner s"]
    for run in runs:
        ratio = run.makespan_seconds / run.bound_seconds if run.bound_seconds else 1.0
        lines.append(
            f"{run.policy:<12} {run.devices:>7}  {run.makespan_seconds:>10,.0f}   {ratio:>8.3f}  {run.flotillas:>9}  "
            f"{run.moves:>5}  {run.idle_share:>5.1%}  {run.planner_seconds:>9.2f}"
        )
    return "\n".join(lines)
