"""What no plan can be made for: clusters, devices, profiles, policies, tables."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import studies
from planning.cases import GB, devices, profile

import argosy
from argosy import api
from argosy.cli import app as cli
from argosy.cli.plan import simulate as replayed
from argosy.cli.simulated import cluster_of, read_networks, read_scaling
from argosy.cluster import Cluster, Device, Node
from argosy.planning import make_plan
from argosy.planning.forecast import forecast
from argosy.planning.outcomes import Workload
from argosy.planning.replay import Network, workload_of
from argosy.planning.simulate import simulate
from argosy.plans import Flotilla, Placement, Plan
from argosy.profiles import PreparationRates, Profile, ShardCost, load_profiles
from argosy.running.launch.discovery import discover
from argosy.running.launch.inline import Inline
from argosy.settings import Settings
from argosy.training.device.devices import KINDS, Hardware
from messages import of_studies

__all__ = ["CASES"]


def device(name: str = "cpu:0", memory_bytes: int = GB) -> Device:
    """A device of 1 GB."""
    return Device(name=name, node="local", kind="cpu", memory_bytes=memory_bytes)


def cluster(*found: Device) -> Cluster:
    """One node with these."""
    return Cluster(nodes=(Node(name="local", devices=found, cores=2),))


def placement(member: str = "a", *on: str, **changes: Any) -> Placement:
    """A member of `profile` on devices, at 100 samples a second."""
    return Placement(member=member, devices=on or ("node0/cuda:0",), seconds_per_sample=0.01, **changes)


def plan(*placements: Placement) -> Plan:
    """All in one flotilla."""
    return Plan(policy="solo", flotillas=(Flotilla(placements=placements),), waiting=())


def hidden(patch: pytest.MonkeyPatch, module: str) -> None:
    """As if a package were not installed."""
    patch.setitem(sys.modules, module, None)


class Idle:
    """A policy that starts nothing."""

    def launch(self, situation: Any) -> tuple[Flotilla, ...]:
        """See `Policy.launch`."""
        return ()


def without_solver(patch: pytest.MonkeyPatch) -> None:
    """The extra of policy 'exact' is missing."""
    hidden(patch, "highspy")
    make_plan([profile()], devices(1), policy="exact")


def table(text: str, read: Any) -> Any:
    """A file that is no such table."""
    Path("networks.csv").write_text(text)
    return read(Path("networks.csv"))


def ask(**options: Any) -> None:
    """``argosy simulate`` as the command line calls it, on a table of one network."""
    Path("networks.csv").write_text("name,samples_per_second,epochs,model_mb\nresnet,100,3,98\n")
    given = {"devices": "4", "policy": "solo", "samples": 100, "slowdown": 1.0, "rebalance_seconds": 2.0}
    given |= {"memory_gb": 16.0, "activation_gb": 4.0, "node_devices": 4, "gb_per_second": 1.0, "draws": 1}
    given |= {"flotilla_seconds": 0.0, "one_link": False, "one_pace": False, "scaling": None, "as_json": True}
    replayed(Path("networks.csv"), **{**given, **options})


def damaged() -> None:
    """A profile of another version."""
    Profile.from_json({"member": "a"})


def measured_but_for_one() -> None:
    """The factory of one of two members raises."""
    study = of_studies.study(members=[studies.member("mlp"), studies.member("wide", model=of_studies.misspelt)])
    api.profile(study, settings=Settings(devices="cpu:1"), launcher=Inline())


def carried() -> None:
    """Profiles of another study's members."""
    study, settings = of_studies.study(), Settings(devices="cpu:1")
    api.forecast_cluster(study, "1x1x80GB", settings=settings, launcher=Inline(), profiles=[profile("vit")])


def of_one_node() -> None:
    """A launcher that has no nodes."""
    argosy.train(of_studies.study(), directory="runs/x", launcher="inline", nodes=2)


class TwoGpus:
    """A backend's word on its hardware."""

    @classmethod
    def hardware(cls, kind: str) -> tuple[Hardware, ...]:
        """See `Backend.hardware`."""
        return (Hardware(name="H100", memory_bytes=80 * GB),) * 2


def of_two_gpus(patch: pytest.MonkeyPatch, asked: str, nodes: int = 1) -> None:
    """Devices of a machine that has two."""
    patch.setitem(KINDS, "cuda", TwoGpus)
    discover(Settings(devices=asked, nodes=nodes))


TWO = devices(2)
BOTH = ("node0/cuda:0", "node0/cuda:1")

CASES = {
    "a device without memory": lambda: device(memory_bytes=0),
    "a cluster without devices": lambda: cluster(),
    "two devices with one name": lambda: cluster(device(), device()),
    "--cluster that is not nodes x devices x memory": lambda: Cluster.parse("2 nodes"),
    "an unknown device": lambda: cluster(device()).device("cuda:7"),
    "an unknown policy": lambda: make_plan([profile()], TWO, policy="fastest"),
    "policy 'exact' with many members": lambda: make_plan([profile(f"m{n}") for n in range(9)], TWO, policy="exact"),
    "policy 'exact' with too little memory for all members": lambda: make_plan(
        [profile(f"m{n}", memory_bytes=10 * GB) for n in range(3)], TWO, policy="exact"
    ),
    "policy 'exact' without its solver": without_solver,
    "policy 'fleet' on different devices": lambda: make_plan(
        [profile()], [TWO[0], replace(TWO[1], kind="tpu")], policy="fleet"
    ),
    "a member that fits on no device": lambda: make_plan([profile(memory_bytes=99 * GB)], TWO),
    "a simulation of a member without epochs": lambda: Workload(profiles=(profile(),), epochs={}, samples_per_epoch=10),
    "a simulation without samples": lambda: Workload(profiles=(), epochs={}, samples_per_epoch=0),
    "a table with a network that fits on no device": lambda: workload_of(
        [Network(name="gpt", samples_per_second=1.0, epochs=1, model_bytes=9 * GB)],
        samples_per_epoch=10,
        device_memory_bytes=16 * GB,
        activation_bytes=GB,
    ),
    "a simulation in which nothing runs": lambda: simulate(
        Idle(), Workload(profiles=(profile(),), epochs={"a": 1}, samples_per_epoch=10), TWO
    ),
    "profiles from several kinds of device": lambda: forecast(
        [profile("a"), replace(profile("b"), device_kind="cpu")], "1x1x80GB", epochs={}, samples_per_epoch=10
    ),
    "devices that do not fill the nodes": lambda: cluster_of(6, 4, 16.0),
    "--devices of simulate that are not numbers": lambda: ask(devices="20,many"),
    "an unknown --policy of simulate": lambda: ask(policy="solo,fastest"),
    "a table of networks with missing columns": lambda: table("name,rate\nresnet,100\n", read_networks),
    "scaling curves that are not numbers": lambda: table("1,2\nfast,faster\n", read_scaling),
    "a file that is not a plan": lambda: Plan.from_json({"policy": "balanced", "flotillas": 3}),
    "a plan with a negative time": lambda: replace(placement(), seconds_per_sample=-1.0),
    "a plan for another cluster": lambda: plan(placement("a", "cuda:7")).check([profile()], TWO),
    "a plan that splits an unsplittable member": lambda: plan(placement("a", *BOTH)).check([profile()], TWO),
    "a plan whose costs differ from the profiles": lambda: plan(placement()).check([profile("a", 50.0)], TWO),
    "a plan with a pack that exceeds the memory": lambda: plan(placement("a"), placement("b")).check(
        [profile(name, memory_bytes=10 * GB) for name in "ab"], TWO
    ),
    "a placement with a device twice": lambda: placement("a", "cuda:0", "cuda:0"),
    "a placement whose shares do not sum to 1": lambda: placement("a", "cuda:0", "cuda:1", shares=(0.5, 0.6)),
    "a placement with times for another number of devices": lambda: placement("a", "cuda:0", device_seconds=(1.0, 2.0)),
    "a flotilla that has a member twice": lambda: Flotilla(placements=(placement(), placement())),
    "a plan with two flotillas on one device at once": lambda: Plan(
        policy="solo", flotillas=tuple(Flotilla(placements=(placement(name),)) for name in "ab"), waiting=()
    ),
    "a plan in which a member both trains and waits": lambda: replace(plan(placement()), waiting=("a",)),
    "a negative shard cost": lambda: ShardCost(fixed_seconds=-1.0, proportional_seconds=1.0),
    "a profile with a rate of 0": lambda: profile("a", 0.0),
    "a profile with impossible sizes": lambda: profile(memory_bytes=1, activation_bytes=2),
    "preparation rates in the wrong order": lambda: PreparationRates(samples_per_second=((2, 10.0), (1, 5.0))),
    "a file without profiles": lambda: load_profiles(Path("profiles.json")),
    "a profile of an incompatible version": damaged,
    "profiles without a member of the study": carried,
    "a member that fails while being measured": measured_but_for_one,
    "the address of a Ray cluster without the launcher": lambda: cli._launcher("auto", address="auto").__enter__(),
    "profiles without --cluster": lambda: cli.plan(Path("study.py"), profiles=Path("profiles.json")),
    "an output file in a folder that does not exist": lambda: cli.profile(
        Path("study.py"), out=Path("nowhere/profiles.json")
    ),
    "launcher 'inline' with several nodes": of_one_node,
    "--devices that cannot be read": lambda: discover(Settings(devices="cuda:first")),
    "an unknown kind in --devices": lambda: discover(Settings(devices="gpu:0")),
    "--devices cpu:0": lambda: discover(Settings(devices="cpu:0")),
    "--devices that do not exist on this machine": lambda patch: of_two_gpus(patch, "cuda:0,9"),
    "devices that cannot be divided evenly among the nodes": lambda patch: of_two_gpus(patch, "cuda", nodes=3),
}
