"""Runs published experiments for real in miniature, and compares them with the papers' figures and with Argosy's models.

* ``sc18``: 8 and 20 nodes with a network each, as processes of this machine (`published_nodes.py`: rates and links as
  published, fewer bytes, preparation that sleeps): samples per second that each node receives with training stripped
  (Fig 8a), with duplicated pipelines, all-shared, and single- and multi-broadcast of five preparing nodes. The model is
  the rule by which ``sharing="auto"`` chooses (what nodes prepare, what is exchanged), with the exchange limited by the
  link of the pipeline's busiest node.
* ``fleet``: FLEET's hundred networks on 20 and on 40 devices (`miniature.py`: a thirty-second of the time), under
  ``rounds`` (its *Homogeneous*), ``fleet`` (its FLEET-G) and ``balanced``. The simulator gets the run's own profiles
  and costs.

A link carries the most that all-shared received in SC'18, 347 MB/s each way. In gloo's binomial tree for broadcasts,
the first of 20 nodes sends a block up to five times, so its link bounds all the others; MPI on Titan broadcast in
another way.
"""

import math
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from measuring import arguments, finish, hardware, target

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import evidence
import published_nodes
import sc18
from fleet_table import PUBLISHED
from miniature import networks, run_policy
from published_nodes import BLOCK, LENGTH, busiest

import argosy
from argosy.stream.feed import SLOTS, SLOTS_PER_NODE

NODES = (8, 20)
PREPARING = 5
LINK = max(sc18.PEAK[16].values())
"""Images a second that all-shared receives at most, 347 MB/s: what a node's link carries."""
SIDES: Mapping[str, Mapping[str, Any]] = {
    "local": {"sharing": "local"},
    "all-shared": {"sharing": "all-shared"},
    "single-broadcast": {"sharing": "single-broadcast", "preparing_nodes": PREPARING},
    "multi-broadcast": {"sharing": "multi-broadcast", "preparing_nodes": PREPARING},
}
"""Settings of each side; if a node has one network, ``local`` means duplicated pipelines."""
DEVICES = (20, 40)
POLICIES = ("rounds", "fleet", "balanced")
NEAR_MODEL, NEAR_SIMULATOR = 0.15, 0.1


# ---- SC'18


def rate(nodes: int, side: str, *, seconds: float, folder: Path) -> float:
    """Return the samples a second that every node receives once the rings' initial content is used up."""
    first = math.ceil((SLOTS + SLOTS_PER_NODE * nodes) * BLOCK / LENGTH)
    epochs = first + max(math.ceil(seconds * predicted(nodes, side) / LENGTH), 1)
    directory = folder / f"{side}-{nodes}"
    argosy.train(
        published_nodes.study(nodes, link=LINK, epochs=epochs),
        quiet=True,
        directory=directory,
        nodes=nodes,
        devices="cpu:1",
        loader_workers=1,
        block_size=BLOCK,
        numerics="exact",
        packing="interleaved",
        **SIDES[side],
    )
    ended: dict[str, list[float]] = {}
    for line in evidence.event_lines(directory, "SectionEnded"):
        ended.setdefault(line["member"], []).append(line["at"])
    assert [len(at) for at in ended.values()] == [epochs] * nodes
    return min((epochs - first) * LENGTH / (at[-1] - at[first - 1]) for at in ended.values())


def predicted(nodes: int, side: str) -> float:
    """Return what preparation and the busiest link allow."""
    preparing = {"local": 1, "all-shared": nodes}.get(side, PREPARING)
    link = math.inf if side == "local" else LINK / busiest(side, nodes, preparing)
    return min(preparing * sc18.SOLO_PEAK, link)


def published(nodes: int, side: str) -> float:
    """Return the figure of Fig 8a."""
    received = {"local": sc18.SOLO_PEAK, "all-shared": sc18.PEAK[16][nodes]}
    return received.get(side) or sc18.BROADCAST_PEAK[side][nodes]


def run_sc18(options: Any, folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Run part one."""
    figures: dict[str, Any] = {}
    targets = []
    print(f"{'nodes':>5} {'pipeline':17} {'samples/s':>9} {'model':>6} {'SC18':>6}   over local: here, model, SC'18")
    for nodes in options.nodes:
        found: dict[str, float] = {}
        for side in SIDES:
            found[side] = rate(nodes, side, seconds=options.seconds, folder=folder)
            model, theirs = predicted(nodes, side), published(nodes, side)
            ratios = found[side] / found["local"], model / sc18.SOLO_PEAK, theirs / sc18.SOLO_PEAK
            print(
                f"{nodes:5} {side:17} {found[side]:9.0f} {model:6.0f} {theirs:6.0f}   "
                f"{', '.join(f'{ratio:.2f}' for ratio in ratios)}",
                flush=True,
            )
            figures[f"{nodes}/{side}"] = {"rate": found[side], "model": model, "published": theirs}
            what = f"{nodes} nodes, {side}: error of the model"
            targets.append(target(what, [abs(found[side] / model - 1)], at_most=NEAR_MODEL))
        gain = found["all-shared"] / found["local"] / (published(nodes, "all-shared") / sc18.SOLO_PEAK)
        what = f"{nodes} nodes: gain of all-shared over duplicated pipelines / the published gain"
        targets.append(target(what, [gain], at_least=1 - NEAR_MODEL))
    return figures, targets


# ---- FLEET


def run_fleet(options: Any, folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Run part two."""
    figures: dict[str, Any] = {}
    targets = []
    for slots in options.devices:
        rows = {policy: run_policy(networks(), policy, slots, folder / f"{policy}-{slots}") for policy in POLICIES}
        figures[str(slots)] = rows
        for policy, row in rows.items():
            print(
                f"{slots} devices, {policy:9} {row['seconds']:6.1f} s, simulated {row['simulated_seconds']:6.1f} s; "
                f"{row['legs']} legs, simulated {row['simulated_legs']}",
                flush=True,
            )
        theirs = PUBLISHED[slots].homogeneous_seconds / PUBLISHED[slots].fleet_seconds
        for policy in ("rounds", "balanced"):
            here, simulated = (rows[policy][key] / rows["fleet"][key] for key in ("seconds", "simulated_seconds"))
            beside = f", FLEET's Homogeneous over FLEET-G {theirs:.3f}" if policy == "rounds" else ""
            print(f"{slots} devices: {policy} takes {here:.3f} of fleet's time, simulated {simulated:.3f}{beside}")
            what = f"error of the simulated ratio of {policy} to fleet, {slots} devices"
            targets.append(target(what, [abs(simulated / here - 1)], at_most=NEAR_SIMULATOR))
    return figures, targets


PARTS = {"sc18": run_sc18, "fleet": run_fleet}


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=list(PARTS), help="only these parts")
    parser.add_argument(
        "--nodes", type=int, nargs="*", choices=NODES, default=list(NODES), help="numbers of nodes, for SC'18"
    )
    parser.add_argument(
        "--devices", type=int, nargs="*", choices=DEVICES, default=list(DEVICES), help="numbers of devices, for FLEET"
    )
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="approximate seconds to measure each of SC'18's pipelines"
    )
    options = parser.parse_args()
    print(hardware(), flush=True)
    figures: dict[str, Any] = {}
    targets: list[dict[str, Any]] = []
    for part in options.parts:
        with tempfile.TemporaryDirectory(prefix="argosy-published-") as name:
            figures[part], found = PARTS[part](options, Path(name))
        targets += found
    finish("published", figures, targets, as_json=options.json)


if __name__ == "__main__":
    main()
