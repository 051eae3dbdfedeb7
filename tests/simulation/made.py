"""Scenarios made by hand, for pairs of a state and a message that drawn seeds seldom reach, and for planted bugs that none of them shows.

Most let a state last, because processes stand still when they get the command that would end it, and let things happen meanwhile. A change
of the driver moves which of a scenario's seeds reach a pair, so the seeds that follow the known one are tried as well.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from argosy.running.control.members import State
from simulation.campaign import Covered
from simulation.runs import play
from simulation.scenario import Fault, Scenario

__all__ = ["CREDIT_TO_A_BUSY_TRAINER", "LOST_WHILE_MEASURING", "MADE", "STOPPED_AT_START", "Made"]

MOST_SEEDS = 300
"""The number of seeds that are tried; one in forty reaches the rarest pair."""


@dataclass(frozen=True, slots=True)
class Made:
    """A scenario, and the pairs that runs with its seed and the next ones reach together."""

    scenario: Scenario
    pairs: Mapping[State, Sequence[str]]
    """What the driver hears, by state of a member."""

    def played(self) -> Covered:
        """Play one seed after another until they have reached all pairs."""
        covered = Covered()
        for seed in range(self.scenario.seed, self.scenario.seed + MOST_SEEDS):
            covered.add(play(replace(self.scenario, seed=seed)))
            if not self.left(covered):
                break
        return covered

    def left(self, covered: Covered) -> list[tuple[State, str]]:
        """Return the pairs that were not reached."""
        return [
            (state, event)
            for state, events in self.pairs.items()
            for event in events
            if not covered.pairs[state, event]
        ]


def _at(kind: str, moment: str, *counts: int) -> tuple[Fault, ...]:
    return tuple(Fault(kind=kind, at=moment, count=count) for count in counts)


def _slow(command: str, *counts: int) -> tuple[Fault, ...]:
    """Let workers stand still when they get these commands of a kind."""
    return _at("freeze", f"obey {command}", *counts)


def _made(base: Scenario, seed: int, *faults: tuple[Fault, ...], **changes: object) -> Scenario:
    return replace(base, seed=seed, faults=tuple(one for some in faults for one in some), **changes)  # type: ignore[arg-type]


JOINING, WAITING, RECOVERING, STARTING, ASSIGNED, MOVING, LEAVING, RESTING, REGROUPING, ENDED = State
ANY_MOVE = (MOVING, STARTING, LEAVING)
FIVE = Scenario(
    seed=0,
    epochs=(6,) * 5,
    batches=(8, 4, 16, 5, 8),
    row_ms=(50.0, 50.0, 100.0, 100.0, 50.0),
    nodes=(2, 1, 1),
    policy="restless",
    flush_seconds=0.05,
)
"""Five members, most of which change their device at a barrier; the first clone brings their leg to one."""
SPLIT = replace(
    FIVE, epochs=(8,) * 3, batches=(4,) * 3, row_ms=(10.0,) * 3, block=64, nodes=(5,), flush_seconds=0.02, splits=True
)
"""Three members on five devices, some of them split."""
TWO = replace(FIVE, epochs=(6, 6), batches=(8, 8), row_ms=(20.0, 20.0), nodes=(3,), splits=True)
CLONES = _at("clone", ASSIGNED, 1, 20, 40, 60)
SLOW_SAVES = _slow("Unassign", 1, 4, 7, 10, 13)
MOVES = (*_at("clone", ASSIGNED, 1), *_slow("Assign", 5, 6, 7, 8), *_slow("Unassign", 1, 2, 3, 4))
"""Members move, and their old devices take long to save them."""
RECOVERS = (*_at("kill", "say SectionReport", 8), *_slow("Open", 4, 5, 6))
"""A member loses its trainer, and waits for another feeder."""
LATE_SUMS = (*_slow("TimeSums", 1, 2, 5, 6), *_at("kill", "say SumsTimed", 1))
"""A trainer that was to time sums is lost, so the two others are asked again, and train before they have answered that."""

MADE = (
    Made(
        _made(
            FIVE,
            3,
            MOVES,
            *(_at("node comes", state, 1) for state in (STARTING, LEAVING)),
            _at("clone", MOVING, 2),
            *(_at("node goes", state, 8) for state in (STARTING, LEAVING)),
        ),
        {
            WAITING: ("Came", "Lost node"),
            STARTING: ("Came", "Opened", "Held", "Lost node"),
            MOVING: ("Came", "Opened", "Held", "Lost node"),
            LEAVING: ("Came", "Opened", "Lost node"),
            ASSIGNED: ("Lost node",),
            ENDED: ("Lost node",),
        },
    ),
    Made(
        _made(FIVE, 7, MOVES, *(_at("oom", state, 1) for state in ANY_MOVE)),
        dict.fromkeys((*ANY_MOVE, ENDED), ("OutOfMemory",)),
    ),
    Made(
        _made(FIVE, 24, MOVES, *(_at("poison", state, 1) for state in ANY_MOVE)),
        {
            STARTING: ("DevicePoisoned", "Lost trainer"),
            **dict.fromkeys((MOVING, LEAVING, ENDED), ("DevicePoisoned",)),
        },
    ),
    Made(
        _made(FIVE, 7, MOVES, *(_at("add", state, 1) for state in ANY_MOVE)),
        {STARTING: ("Measured", "Progress"), MOVING: ("Measured",), LEAVING: ("Measured",)},
    ),
    Made(
        _made(FIVE, 7, MOVES, *(_at("kill", state, 2, 6) for state in ANY_MOVE)),
        {STARTING: ("Lost feeder",), LEAVING: ("Lost trainer", "Lost feeder", "Paused")},
    ),
    Made(  # one leg regroups while members of another move
        _made(
            FIVE,
            9,
            _at("kill", "say SectionReport", 4),
            _at("clone", ASSIGNED, 14, 30),
            _slow("Assign", 8, 9, 10, 11, 12),
            _slow("Unassign", 1, 2, 3, 4),
            _at("kill", MOVING, 3, 5),
            _at("kill", STARTING, 3),
            nodes=(5,),
        ),
        {
            RECOVERING: ("Held",),
            STARTING: ("Paused",),
            MOVING: ("Paused", "Progress", "Lost trainer", "Lost feeder"),
            ASSIGNED: ("Paused",),
        },
    ),
    Made(
        _made(SPLIT, 14, CLONES, SLOW_SAVES, _at("kill rank", MOVING, 4, 10, 16)),
        {STARTING: ("Broke",), MOVING: ("Broke",)},
    ),
    Made(
        _made(
            SPLIT,
            16,
            CLONES,
            SLOW_SAVES,
            _slow("Assign", 6, 7, 8, 11, 14, 17),
            *(_at("kill rank", state, 3, 6, 9, 12, 15, 18) for state in (MOVING, LEAVING)),
            epochs=(8, 4, 2),
            policy="splitting",
        ),
        {LEAVING: ("Broke",), ENDED: ("Broke",)},
    ),
    Made(
        _made(
            SPLIT, 26, _at("add", ASSIGNED, 2, 4), _slow("Measure", 5, 6, 7), _at("kill rank", JOINING, *range(2, 12))
        ),
        {JOINING: ("Broke", "Fed", "Progress")},
    ),
    Made(
        _made(
            SPLIT,
            3,
            CLONES,
            _at("kill", "say SectionReport", 8),
            _slow("Open", 2, 3),
            _at("kill rank", RECOVERING, *range(2, 25, 3)),
        ),
        {RECOVERING: ("Broke", "Progress"), ASSIGNED: ("Broke",)},
    ),
    Made(
        _made(
            SPLIT,
            15,
            _at("add", ASSIGNED, 1),
            _at("clone", ASSIGNED, 4),
            _at("kill rank", RESTING, *range(1, 12)),
            rests=(1, 2, 3),
        ),
        {RESTING: ("Broke", "Measured"), WAITING: ("Broke",), REGROUPING: ("Broke", "Held")},
    ),
    Made(
        _made(
            TWO,
            2,
            LATE_SUMS,
            _at("add", ASSIGNED, 1),
            _at("clone", ASSIGNED, 2, 3),
            _slow("Assign", 2, 3),
            rests=(1, 3),
        ),
        {
            **dict.fromkeys((ASSIGNED, MOVING, LEAVING, RESTING), ("SumsTimed",)),
            JOINING: ("SumsTimed", "Held"),
            STARTING: ("SumsTimed", "Fed", "SectionReport"),
        },
    ),
    Made(
        _made(TWO, 2, LATE_SUMS, _slow("Open", 2, 3), _at("kill", ASSIGNED, 2)),
        dict.fromkeys((RECOVERING, REGROUPING, ENDED), ("SumsTimed",)),
    ),
    Made(
        _made(
            FIVE,
            13,
            _at("clone", ASSIGNED, 1),
            _at("kill", ASSIGNED, 2),
            _slow("Pause", 1, 2, 3),
            _at("oom", REGROUPING, 1),
            _at("poison", REGROUPING, 2),
            _at("node comes", REGROUPING, 3),
            _at("node goes", REGROUPING, 8),
        ),
        {REGROUPING: ("Came",), ENDED: ("Came",)},
    ),
    Made(  # a slow disk: members are measured until their trainers get the command to pause
        _made(FIVE, 2, _at("add", ASSIGNED, 1, 2, 3), _at("oom", JOINING, 1, 4, 8), flush_seconds=0.5),
        {REGROUPING: ("Measured", "OutOfMemory", "Fed")},
    ),
    Made(
        _made(
            FIVE,
            3,
            RECOVERS,
            _at("oom", RECOVERING, 1),
            _at("node comes", RECOVERING, 2),
            _at("poison", RECOVERING, 3),
            _at("kill", RECOVERING, 6),
            _at("node goes", RECOVERING, 10),
        ),
        {RECOVERING: ("Came", "DevicePoisoned", "Fed", "Lost trainer", "Lost feeder", "Lost node", "Paused")},
    ),
    Made(
        _made(FIVE, 1, RECOVERS, _at("clone", ASSIGNED, 3), _at("oom", RECOVERING, 1)),
        {RECOVERING: ("OutOfMemory", "SectionReport"), WAITING: ("OutOfMemory",)},
    ),
    Made(
        _made(
            FIVE,
            16,
            _at("add", ASSIGNED, 1),
            _slow("Measure", 5, 6, 7, 8),
            _at("node comes", JOINING, 2),
            _at("oom", JOINING, 3),
            _at("poison", JOINING, 5),
            _at("kill", JOINING, 10),
            _at("node goes", JOINING, 14),
        ),
        {
            JOINING: (
                *("Came", "Opened", "OutOfMemory", "Paused", "DevicePoisoned"),
                *("Lost trainer", "Lost feeder", "Lost node"),
            ),
            RECOVERING: ("Measured",),
            REGROUPING: ("DevicePoisoned", "Lost node", "Opened"),
        },
    ),
    Made(
        _made(
            FIVE,
            29,
            _at("add", ASSIGNED, 1),
            _at("clone", ASSIGNED, 4),
            _at("node comes", RESTING, 2),
            _at("oom", RESTING, 3),
            _at("poison", RESTING, 6),
            _at("kill", RESTING, 10),
            _at("node goes", RESTING, 14),
            rests=(1, 2, 3, 2, 4),
        ),
        {
            RESTING: ("Came", "Opened", "OutOfMemory", "Paused", "DevicePoisoned", "Lost feeder", "Lost node"),
            **dict.fromkeys((WAITING, ASSIGNED), ("DevicePoisoned",)),
            REGROUPING: ("Lost trainer", "Lost feeder"),
        },
    ),
)
"""Together, these reach every pair."""

STOPPED_AT_START = _made(FIVE, 3, MOVES, _at("end", STARTING, 1, 3, 5))
"""A person stops a member that waits to start."""
LOST_WHILE_MEASURING = Scenario(
    seed=11,
    epochs=(1,),
    batches=(8,),
    row_ms=(5.0,),
    faults=(*_at("add", LEAVING, 1), *_slow("Assign", 3), *_at("kill", LEAVING, 9)),
)
"""The only member is saved at its end while those that were added are measured, and its trainer is lost."""
CREDIT_TO_A_BUSY_TRAINER = _made(
    SPLIT,
    73,
    _at("clone", ASSIGNED, 1, 9),
    _slow("Assign", *range(6, 16)),
    _at("kill", LEAVING, 1, 3, 5),
    epochs=(6,) * 5,
    batches=(8, 4, 16, 5, 8),
    row_ms=(10.0,) * 5,
    block=8,
    flush_seconds=0.1,
)
"""A trainer still has its connection to a feeder, because it is busy, when credit names it there again."""
