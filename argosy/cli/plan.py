"""``argosy simulate``: its options."""

import time
from pathlib import Path
from typing import Annotated

import typer

from argosy.views.output import All, Json, print_output

__all__ = ["simulate"]


def simulate(
    table: Annotated[Path, typer.Argument(help="CSV with columns name, samples_per_second, epochs, model_mb.")],
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
    """Replay a table of networks on hypothetical clusters."""
    from argosy.cli import simulated  # no other command plans
    from argosy.planning.outcomes import Charges
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
    clusters = [simulated.cluster_of(size, node_devices, memory_gb) for size in simulated.split_sizes(devices)]
    workload = workload_of(
        simulated.read_networks(table),
        scaling=simulated.read_scaling(scaling) if scaling else (),
        samples_per_epoch=samples,
        device_memory_bytes=int(memory_gb * 1e9),
        activation_bytes=int(activation_gb * 1e9),
        node_devices=node_devices,
        epochs_known=epochs_known,
    )
    runs = [
        replay(name, workload, cluster.devices, charges=charges, draws=draws, clock=time.perf_counter)
        for cluster in clusters
        for name in simulated.choose_policies(policy)
    ]
    print_output({"runs": [run.to_json() for run in runs]} if as_json else simulated.format_runs(runs), every=every)
