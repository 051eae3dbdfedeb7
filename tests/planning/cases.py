"""Random studies and clusters, as Hypothesis strategies and as seeded draws."""

from dataclasses import dataclass
from random import Random

from hypothesis import strategies as st

from argosy.cluster import Cluster, Device, Node
from argosy.profiles import Profile

GB = 10**9


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A study and the cluster to plan it for."""

    profiles: tuple[Profile, ...]
    devices: tuple[Device, ...]
    epochs: dict[str, int]


def profile(member: str = "a", *rates: float, **changes: object) -> Profile:
    """Return a profile; rates and sizes that are not given do not matter to the test."""
    sizes = {"memory_bytes": GB, "state_bytes": GB // 2}
    return Profile(member=member, device_kind="gpu", samples_per_second=rates or (100.0,), **{**sizes, **changes})


def devices(count: int, *, node_devices: int = 4, memory_bytes: int = 16 * GB) -> tuple[Device, ...]:
    """Return equal devices in equal nodes; the last node may have fewer."""
    nodes = -(-count // node_devices)
    cluster = Cluster.uniform(nodes=nodes, node_devices=node_devices, memory_bytes=memory_bytes, kind="gpu", cores=8)
    return cluster.devices[:count]


def small_case(seed: int) -> Case:
    """Draw up to 6 members on up to 4 devices, which ``exact`` can solve."""
    draw = Random(seed)
    profiles = []
    for number in range(draw.randint(1, 6)):
        rate, efficiency = 10 ** draw.uniform(1, 2.5), draw.uniform(0.7, 1.0)
        rates = [rate, *(rate * m * efficiency ** (1 + 0.1 * m) for m in range(2, 5))]
        activation = draw.uniform(0.5, 4)
        sizes = {
            "memory_bytes": int((activation + draw.uniform(0.1, 2)) * GB),
            "activation_bytes": int(activation * GB),
        }
        profiles.append(profile(f"m{number}", *rates, splittable=draw.random() < 0.7, **sizes))
    return Case(
        profiles=tuple(profiles),
        devices=devices(draw.randint(1, 4)),
        epochs={p.member: draw.randint(0, 20) for p in profiles},
    )


@st.composite
def large_cases(draw: st.DrawFn, *, efficiency: float | None = None) -> Case:
    """Draw cases with unequal memory, members without epochs, a huge member, and more devices than useful.

    With ``efficiency`` every member may be split, at that efficiency; otherwise some may, at falling efficiencies.
    """
    rng = Random(draw(st.integers(0, 2**32)))  # One draw only: shrinking a hundred members takes hours.
    members = draw(st.one_of(st.integers(1, 60), st.integers(1, 4)))
    cluster = _uneven_nodes(rng, nodes=draw(st.integers(1, 12)), node_devices=draw(st.sampled_from([1, 2, 4, 8])))
    largest = max(device.memory_bytes for device in cluster)
    huge = draw(st.booleans())
    profiles = []
    for number in range(members):
        rate = 10 ** rng.uniform(1, 3) / (30 if huge and number == 0 else 1)
        splits = efficiency or rng.uniform(0.5, 0.95)
        fall = 0.0 if efficiency else 0.12
        rates = [rate, *(rate * m * splits ** (1 + fall * m) for m in range(2, 9))]
        state = min(int(rng.uniform(0.05, 2) * GB), largest // 3)
        activation = int(min(rng.uniform(0.1, 4) * GB, largest - 3 * state // 2))
        profiles.append(
            profile(
                f"m{number}",
                *rates,
                memory_bytes=3 * state // 2 + activation,
                state_bytes=state,
                activation_bytes=activation if rng.random() < 0.8 else 0,
                splittable=bool(efficiency) or rng.random() < 0.6,
            )
        )
    epochs = {p.member: 0 if rng.random() < 0.05 else rng.randint(1, 25) for p in profiles}
    return Case(profiles=tuple(profiles), devices=cluster, epochs=epochs)


def _uneven_nodes(rng: Random, *, nodes: int, node_devices: int) -> tuple[Device, ...]:
    def node(name: str) -> Node:
        memory = rng.choice([8, 16, 16, 32]) * GB
        slots = (
            Device(name=f"{name}/cuda:{slot}", node=name, kind="gpu", memory_bytes=memory)
            for slot in range(node_devices)
        )
        return Node(name=name, devices=tuple(slots), cores=8)

    return Cluster(nodes=tuple(node(f"node{number}") for number in range(nodes))).devices
