"""``argosy simulate``: read tables or a journal, decide, print."""

import csv
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from argosy.errors import PlanError
from argosy.errors.spelling import did_you_mean
from argosy.views.output import All, Json, print_output

if TYPE_CHECKING:
    from argosy.cluster import Cluster
    from argosy.planning.outcomes import Simulation
    from argosy.planning.replay import Network

__all__ = ["cluster_of", "read_networks", "read_scaling", "simulate"]


def simulate(
    table: Annotated[
        Path,
        typer.Argument(
            help="CSV with columns name, samples_per_second, epochs, model_mb; or the directory of a run, replayed on its devices."
        ),
    ],
    scaling: Annotated[
        Path | None, typer.Option(help="CSV of rates on 1, 2, … devices; without it no network is split.")
    ] = None,
    devices: Annotated[str, typer.Option(help="Numbers of devices, such as 20,40,80.")] = "8",
    policy: Annotated[str, typer.Option(help="Policies: all, or names such as balanced,solo.")] = "all",
    samples: Annotated[int, typer.Option(help="Samples per epoch.")] = 30606,
    epochs_known: Annotated[
        bool, typer.Option("--epochs-known", help="Let policies know the epochs of the table beforehand.")
    ] = False,
    preparation: Annotated[
        float | None,
        typer.Option(
            help="Samples per second that the cluster prepares for all streams together; no limit by default."
        ),
    ] = None,
    slowdown: Annotated[float, typer.Option(help="Factor by which real samples take longer than in the table.")] = 1.0,
    rebalance_seconds: Annotated[float, typer.Option(help="Seconds of each re-balancing, without moves.")] = 2.0,
    memory_gb: Annotated[float, typer.Option(help="Memory of a device in GB.")] = 16.0,
    activation_gb: Annotated[float, typer.Option(help="Memory of a step in GB, at most that of the device.")] = 4.0,
    node_devices: Annotated[int, typer.Option(help="Devices per node.")] = 4,
    gb_per_second: Annotated[float, typer.Option(help="Bandwidth of a device for moves, in GB per second.")] = 1.0,
    one_link: Annotated[bool, typer.Option("--one-link", help="Let the whole cluster share that bandwidth.")] = False,
    flotilla_seconds: Annotated[
        float, typer.Option(help="Seconds that FLEET's policies need for each flotilla.")
    ] = 34.5,
    one_pace: Annotated[
        bool, typer.Option("--one-pace", help="Let FLEET's policies wait for the slowest member of a flotilla too.")
    ] = False,
    draws: Annotated[
        int, typer.Option(help="Number of runs of policies with random order, of which the median is shown.")
    ] = 21,
    every: All = False,
    as_json: Json = False,
) -> None:
    """Replay a table of networks on hypothetical clusters, or a run; options other than --policy apply to tables."""
    if table.is_dir():
        _simulate_run(table, policy, as_json=as_json, every=every)
        return
    from argosy.planning.outcomes import Charges  # no other command plans
    from argosy.planning.policy import Moving
    from argosy.planning.replay import replay, workload_of

    moving = Moving(rebalance_seconds=rebalance_seconds, bytes_per_second=gb_per_second * 1e9, one_link=one_link)
    charges = Charges(
        slowdown=slowdown,
        flotilla_seconds=flotilla_seconds,
        moving=moving,
        preparation_samples_per_second=preparation,
        one_pace=one_pace,
    )
    clusters = [cluster_of(size, node_devices, memory_gb) for size in _sizes(devices)]
    workload = workload_of(
        read_networks(table),
        scaling=read_scaling(scaling) if scaling else (),
        samples_per_epoch=samples,
        device_memory_bytes=int(memory_gb * 1e9),
        activation_bytes=int(activation_gb * 1e9),
        node_devices=node_devices,
        epochs_known=epochs_known,
    )
    runs = [
        replay(name, workload, cluster.devices, charges=charges, draws=draws, clock=time.perf_counter)
        for cluster in clusters
        for name in _policies(policy)
    ]
    print_output({"runs": [run.to_json() for run in runs]} if as_json else _table(runs), every=every)


def _simulate_run(directory: Path, policy: str, *, as_json: bool, every: bool) -> None:
    """Replay a run with the rates and epochs of its members, and compare it with what it took."""
    from argosy.planning import POLICIES
    from argosy.planning.hindsight import Hindsight
    from argosy.running.directory.journal import read_journal, timeline

    read_journal(directory)  # says what is wrong with a directory that holds no run
    past = Hindsight.of(timeline(directory))
    own = [past.policy] if past.policy in POLICIES else []
    runs = [past.under(name, clock=time.perf_counter) for name in dict.fromkeys((*own, *_policies(policy)))]
    if as_json:
        actual = {past.policy: {"actual_seconds": past.seconds}}
        print_output({"runs": [run.to_json() | actual.get(run.policy, {}) for run in runs]}, every=every)
        return
    simulated = "".join(
        f", simulated {run.makespan_seconds / past.seconds:.2f} times that" for run in runs if run.policy == past.policy
    )
    print_output(f"{_table(runs)}\nThe run itself took {past.seconds:,.1f} s under {past.policy}{simulated}.")


def cluster_of(devices: int, node_devices: int, memory_gb: float) -> "Cluster":
    """Return a cluster of `devices` devices in equal nodes; raises PlanError if they do not fill them."""
    from argosy.cluster import Cluster

    if devices < 1 or node_devices < 1 or devices % node_devices:
        raise PlanError(f"{devices} devices do not fill nodes of {node_devices}; change --devices or --node-devices.")
    return Cluster.parse(f"{devices // node_devices}x{node_devices}x{memory_gb:.12g}GB")


def read_networks(path: Path) -> "list[Network]":
    """Read a table with columns name, samples_per_second, epochs, model_mb."""
    from argosy.planning.replay import Network

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


def _sizes(text: str) -> list[int]:
    if not all(part.strip().isdigit() for part in text.split(",")):
        raise PlanError(f"--devices is {text!r}; it must be a list of numbers, for example 20,40,80.")
    return [int(part) for part in text.split(",")]


def _policies(text: str) -> Sequence[str]:
    from argosy.planning import POLICIES

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


def _table(runs: "Sequence[Simulation]") -> str:
    lines = ["policy       devices  makespan s   of bound  flotillas  moves   idle  planner s"]
    for run in runs:
        ratio = run.makespan_seconds / run.bound_seconds if run.bound_seconds else 1.0
        lines.append(
            f"{run.policy:<12} {run.devices:>7}  {run.makespan_seconds:>10,.0f}   {ratio:>8.3f}  {run.flotillas:>9}  "
            f"{run.moves:>5}  {run.idle_share:>5.1%}  {run.planner_seconds:>9.2f}"
        )
    return "\n".join(lines)
