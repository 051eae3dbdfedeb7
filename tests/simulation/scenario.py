"""Scenarios: the members, devices and policy of a simulated run, and the faults and requests that it meets. A scenario is a value.

`drawn` draws a scenario from a seed. `shrunk` reduces a scenario that goes wrong to a smaller one that still does.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

__all__ = ["Fault", "Scenario", "drawn", "is_rough", "shrunk"]

MESSAGES = ("SectionReport", "Measured", "Opened", "Held", "Paused", "Fed")
COMMANDS = (
    *("Assign", "Unassign", "Measure", "Attach", "Credit", "Hold", "Feed", "Pause", "Journaled", "Open", "Save"),
    "enlist",
)
OF_WORKERS = ("kill", "kill", "kill", "kill", "hang", "stop")
OF_MEMBERS = ("oom", "raise", "diverge")
OF_DRIVERS = ("driver", "power", "full")
OF_PEOPLE = ("end", "end", "pause", "clone", "warm clone", "node goes", "node comes")
AT_MOMENTS = ("kill", "kill", "kill", "kill", "stop", "driver", "power", *OF_PEOPLE)
MOMENTS = ("move", "move", "leave", "hold", "measure", "regroup")
"""Moments that a round of the driver may find, see `simulation.script.MOMENTS`; most rounds find none."""
OF_NODES = ("node goes", "node goes", "node comes")


PER_MEMBER = ("epochs", "batches", "row_ms", "rests", "ends")
"""The fields of `Scenario` that have an item for each member."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """Something that goes wrong, or that a person asks for."""

    kind: str
    at: str
    """The event that it waits for: ``say Held``, ``obey Assign``, ``step``, ``block``, ``build``, ``round``, ``write``, or a moment."""
    count: int
    """The number of the event among those of its kind, from 1."""
    before: bool = True
    """Whether the fault comes before the event, which then may not happen any more."""

    def __str__(self) -> str:
        return f"{self.kind} {'before' if self.before else 'after'} {self.at} {self.count}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """A run. `epochs`, `batches` (batch sizes) and `row_ms` (time per row) have an item for each member."""

    seed: int
    """The seed of all random numbers: how long each message is under way, which worker is heard first."""
    epochs: tuple[int, ...]
    batches: tuple[int, ...]
    row_ms: tuple[float, ...]
    rests: tuple[int, ...] = ()
    """Sections after which each member rests until others have come as far, 0 for never; empty without a judge."""
    ends: tuple[int, ...] = ()
    """Sections after which a judge ends each member, 0 for never; empty without a judge."""
    alike: int = 1
    """How many members in a row are of one kind, of which only one is measured."""
    nodes: tuple[int, ...] = (2,)
    """The number of devices of each node."""
    length: int = 20
    val: int = 0
    block: int = 8
    per_epoch: int = 1
    policy: str = "balanced"
    checkpoint_seconds: float = 300.0
    flush_seconds: float = 1e-4
    """How long each flush to the disk takes."""
    splits: bool = False
    """Whether members may be split over devices."""
    scheduler: str = ""
    """The scheduler of a search with as many trials, of these members' kinds; empty if the run trains the members themselves."""
    warm: bool = True
    """Whether trials of the search continue from rung to rung, or begin anew in each."""
    faults: tuple[Fault, ...] = ()


def drawn(seed: int, *, faults: bool = True) -> Scenario:
    """Draw a scenario from a seed: 1 to 6 members, 2 to 4 devices, up to 8 sections, 3 faults on average.

    Every second pair of seeds has more faults. One seed in twenty has members that may be split, one in twenty is a search, and
    one in twenty has rough machines; study files may be added to these three.
    """
    r = random.Random(seed)
    members, per_epoch = r.randint(1, 6), r.choice([1, 1, 2])
    most = 8 // per_epoch
    alike = r.choice([1, 1, 2])
    kinds = [r.choice([4, 5, 8, 16]) for _ in range(members)]
    slow = r.choice([1, 1, 1, 20])  # where sections take long, it pays to move members between devices
    rests = tuple(r.choice([0, 1, 2, 3]) for _ in range(members)) if r.random() < 0.4 else ()
    scenario = Scenario(
        seed=seed,
        epochs=tuple(r.randint(1, most) for _ in range(members)),
        batches=tuple(kinds[number // alike] for number in range(members)),
        row_ms=tuple(slow * r.choice([1.0, 2.0, 5.0, 20.0]) for _ in range(members)),
        rests=rests,
        alike=alike,
        nodes=r.choice([(2,), (2,), (3,), (4,), (1, 1), (2, 1), (2, 2)]),
        length=r.choice([16, 20, 33]),
        val=r.choice([0, 6]),
        block=r.choice([8, 16, 64]),
        per_epoch=per_epoch,
        policy=r.choice(["balanced", "balanced", "balanced", "rounds", "fleet", "solo"]),
        checkpoint_seconds=r.choice([0.05, 1.0, 300.0, 300.0]),
        faults=tuple(_fault(r) for _ in range(r.choice([0, 1, 2, 3, 3, 4, 5, 6]) if faults else 0)),
    )
    other = _OTHERS.get(seed % 40)
    if other is not None:
        scenario = other(r, scenario)
        adds = r.choice([0, 0, 1, 2]) if faults else 0
        added = tuple(Fault(kind="add", at="round", count=r.randint(1, 60)) for _ in range(adds))
        scenario = replace(scenario, faults=(*added, *scenario.faults))
    return _with_more(r, scenario) if faults and seed % 4 > 1 else scenario


def _split(r: random.Random, scenario: Scenario) -> Scenario:
    return replace(scenario, splits=True, policy=r.choice(["balanced", "fleet", "fleet", "solo"]))


def _search(r: random.Random, scenario: Scenario) -> Scenario:
    scheduler, epochs = r.choice(["random", "asha", "hyperband", "hyperband"]), r.choice([1, 2, 4])
    warm = scheduler != "hyperband" or r.random() < 0.7
    return replace(scenario, scheduler=scheduler, warm=warm, rests=(), epochs=(epochs,) * len(scenario.epochs))


def _on_rough_machines(r: random.Random, scenario: Scenario) -> Scenario:
    """Return the scenario on rough machines.

    Often, members move at the majority of barriers and saves take long, so that other events have time to intervene. Members' code
    fails at such moments, kernels assert, processes stand still, and clocks are set.
    """
    command, moments = r.choice(COMMANDS), (*MOMENTS, *("start",) * 6)
    kinds = ("oom", "oom", "raise", "freeze", "kill", "kill", "add", *OF_PEOPLE)
    faults = [
        Fault(kind=r.choice(kinds), at=r.choice(moments), count=r.randint(1, 4)),
        Fault(kind=r.choice(kinds), at=r.choice(moments), count=r.randint(1, 4)),
        Fault(kind="poison", at="step", count=r.randint(1, 60)),
        Fault(kind="freeze", at=f"obey {command}", count=r.randint(1, 6), before=r.random() < 0.5),
        Fault(kind=r.choice(["driver freezes", "clock"]), at="round", count=r.randint(1, 60)),
    ]
    return replace(
        scenario,
        flush_seconds=r.choice([1e-4, 0.01, 0.1, 0.5]),
        policy=r.choice([scenario.policy, "restless", "restless"]),
        splits=r.random() < 0.3,
        faults=(*r.sample(faults, r.randint(0, len(faults))), *scenario.faults),
    )


_OTHERS = {9: _split, 19: _split, 1: _search, 11: _search, 26: _on_rough_machines, 39: _on_rough_machines}
"""Special scenarios, by the seed modulo 40; all other seeds play what they played before these existed."""


def is_rough(seed: int) -> bool:
    """Return whether a seed's run is on rough machines, which have shown most of what long campaigns have found."""
    return _OTHERS.get(seed % 40) is _on_rough_machines


def _with_more(r: random.Random, scenario: Scenario) -> Scenario:
    """Return the scenario with faults at rare moments, some of which soon recur, and perhaps with a judge that ends members."""
    several = len(scenario.nodes) > 1
    kinds, moments = (*AT_MOMENTS, *(OF_NODES if several else ())), (*MOMENTS, *(("open", "open") if several else ()))
    faults = [
        Fault(kind=r.choice(kinds), at=r.choice(moments), count=r.randint(1, 6)) for _ in range(r.choice([1, 1, 2, 3]))
    ]
    again = [replace(fault, count=fault.count + r.randint(1, 2)) for fault in faults if r.random() < 0.3]
    return replace(
        scenario,
        ends=tuple(r.choice([0, 0, 1, 3, 5]) for _ in scenario.epochs) if r.random() < 0.5 else (),
        policy=r.choice([scenario.policy, scenario.policy, "fleet"]),
        faults=(*scenario.faults[: r.randint(0, len(scenario.faults))], *faults, *again),
    )


def _fault(r: random.Random) -> Fault:
    kind = r.choice((*OF_WORKERS, *OF_MEMBERS, *OF_DRIVERS, *OF_PEOPLE))
    if kind in OF_DRIVERS:
        at = "write" if kind == "full" else r.choice(["round", "write"])
        return Fault(kind=kind, at=at, count=r.randint(1, 60), before=r.random() < 0.5)
    if kind in OF_MEMBERS:
        at = "step" if kind == "diverge" else r.choice(["step", "step", "step", "build"])
        return Fault(kind=kind, at=at, count=r.randint(1, 60))
    if kind in OF_PEOPLE:
        return Fault(kind=kind, at="round", count=r.randint(1, 60))
    how = r.choice(["say", "say", "obey", "obey", "step", "block"])
    if how in ("step", "block"):
        return Fault(kind=kind, at=how, count=r.randint(1, 80))
    what = r.choice(MESSAGES if how == "say" else COMMANDS)
    return Fault(kind=kind, at=f"{how} {what}", count=r.randint(1, 12), before=r.random() < 0.5)


def shrunk(scenario: Scenario, wrong: Callable[[Scenario], bool]) -> Scenario:
    """Return a scenario that still goes wrong, with as few faults, members and epochs as that takes."""
    smaller = True
    while smaller:
        smaller = False
        for candidate in _smaller(scenario):
            if wrong(candidate):
                scenario, smaller = candidate, True
                break
    return scenario


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    for number in range(len(scenario.faults)):
        yield replace(scenario, faults=_without(scenario.faults, number))
    for number in range(len(scenario.epochs) if len(scenario.epochs) > 1 else 0):
        fewer = {name: _without(getattr(scenario, name), number) for name in PER_MEMBER}
        yield replace(scenario, **fewer)
    for name in ("rests", "ends"):
        if any(getattr(scenario, name)):
            yield replace(scenario, **{name: ()})
    for number, epochs in enumerate(scenario.epochs):
        if epochs > 1:
            yield replace(scenario, epochs=(*scenario.epochs[:number], epochs - 1, *scenario.epochs[number + 1 :]))


def _without(items: tuple[object, ...], number: int) -> tuple[object, ...]:
    return (*items[:number], *items[number + 1 :])
