"""Lets the faults of a scenario happen at their time, and records which members they excuse."""

import errno
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from argosy.cluster import Device, Node
from argosy.running.control.driver import Driver
from argosy.running.control.legs import Gate
from argosy.running.control.members import State
from argosy.running.directory.inbox import write_command
from simulation.counting import CountingMember
from simulation.scenario import OF_MEMBERS, OF_WORKERS, Fault, Scenario
from simulation.world import Killed, SimulatedWorkers, World

__all__ = ["MOMENTS", "Script"]

MOMENTS: dict[str, Callable[[Driver], object]] = {
    "hold": lambda driver: any(leg.gate is Gate.HOLDING for leg in driver.legs.live),
    "leave": lambda driver: driver.members.in_states(State.LEAVING),
    "loss": lambda driver: driver.state.lost,
    "measure": lambda driver: driver.run.cost_table.missing,
    "move": lambda driver: any(leg.starting for leg in driver.legs.live),
    "open": lambda driver: driver.starts.unopened,
    "regroup": lambda driver: driver.legs.regrouping,
    "start": lambda driver: driver.members.in_states(State.STARTING),
    **{state: lambda driver, state=state: driver.members.in_states(state) for state in State},
}
"""Moments that faults may wait for, as the driver finds them at the beginning of a round.

A state is the moment at which some member is in it. The others, in this order: a leg is to be held; a member is saved to go elsewhere; a worker has been lost; costs of members are not known; an
assignment waits for members that move; a node that came has not opened the data; a leg regroups; a member waits for others of its
assignment.
"""

STOPPED_SECONDS = 10.0
"""How long a launcher takes to find a stopped process."""
FROZEN_SECONDS = (0.2, 8.0)
"""The shortest and longest time for which a process stands still without counting as stopped."""
LONG_SECONDS = 60.0
"""How long the driver may stand still."""
CLOCK_SECONDS = (-3600.0, 3600.0)
"""The changes of a clock that is set."""


@dataclass
class Script:
    """The script of one run, for all its drivers in turn."""

    scenario: Scenario
    world: World
    seen: Counter[str] = field(default_factory=Counter)
    happened: list[Fault] = field(default_factory=list)
    excused: set[str] = field(default_factory=set)
    """Members that may end otherwise than by their stopping rules, because of a fault or a request."""
    asserting: set[str] = field(default_factory=set)
    """Members whose kernels assert at each step from now on."""
    driver: Any = None
    """The current driver."""
    dead: bool = False
    """Whether the driver's process is gone, so that it must not write any more."""
    power: bool = False
    """Whether the power went with the driver."""
    awaits_code: Fault | None = None
    """A fault that comes with the next step or build of any member."""
    clock_seconds: float = 0.0
    """By how much the clock is ahead of the time that has passed."""
    asked: bool = False
    """Whether a person may have left a command, so that the folder of commands has to be read."""
    full: bool = False
    """Whether the disk is full, until the driver has ended because of it."""

    def __post_init__(self) -> None:
        self.left = {(fault.at, fault.count, fault.before): fault for fault in self.scenario.faults}
        self.awaited = {*(fault.at for fault in self.scenario.faults), "round"}
        self._awaits_words = {at.partition(" ")[0] for at in self.awaited}
        self.moments = [at for at in dict.fromkeys(fault.at for fault in self.scenario.faults) if at in MOMENTS]
        self._numbered = 0

    def _due(self, at: str, *, before: bool) -> Fault | None:
        if at not in self.awaited:
            return None
        self.seen[at] += before
        fault = self.left.pop((at, self.seen[at], before), None)
        if fault is not None:
            self.happened.append(fault)
            self.world.tell("script", str(fault))
        return fault

    # ---- workers

    def said(self, worker: Any, message: Any, *, before: bool) -> None:
        """Note that a worker is about to send a message, or has sent it."""
        if "say" in self._awaits_words and (fault := self._due(f"say {type(message).__name__}", before=before)):
            self._to(worker, fault)

    def obeys(self, worker: Any, command: Any, *, before: bool) -> None:
        """Note that a worker is about to obey a command, or has obeyed it."""
        if "obey" not in self._awaits_words:
            return
        name = command[0] if isinstance(command, tuple) else type(command).__name__
        if fault := self._due(f"obey {name}", before=before):
            self._to(worker, fault)

    def serves(self, worker: Any) -> None:
        """Note that a trainer is about to look for a block."""
        if fault := self._due("block", before=True):
            self._to(worker, fault)

    def steps(self, worker: Any, live: CountingMember) -> None:
        """Note that a member is about to step."""
        fault = self._due("step", before=True) or self._awaiting()
        worker.device.synchronize()  # a member meets what an earlier step of another one did to the device
        if fault is not None and fault.kind == "poison":
            self.excused.add(live.member.name)
            self.asserting.add(live.member.name)
            fault = None
        worker.device.poisoned = live.member.name in self.asserting
        if fault is not None and fault.kind == "diverge":
            self.excused.add(live.member.name)
            live.diverged = True
            return
        self._in_member(worker, live.member.name, fault)

    def builds(self, worker: Any, member: str) -> None:
        """Note that a member is about to be built."""
        self._in_member(worker, member, self._due("build", before=True) or self._awaiting())

    def _awaiting(self) -> Fault | None:
        fault, self.awaits_code = self.awaits_code, None
        return fault

    def _in_member(self, worker: Any, member: str, fault: Fault | None) -> None:
        if fault is not None and fault.kind in ("oom", "raise"):
            self.excused.add(member)  # a member that is alone on its device may fail when out of memory
            raise torch.OutOfMemoryError("as the script says") if fault.kind == "oom" else RuntimeError("as it says")
        if fault is not None:
            self._to(worker, fault)
        worker.check()

    def _to(self, worker: Any, fault: Fault) -> None:
        workers, under_way = worker.workers, worker.mouth.under_way
        if fault.kind == "hang":
            worker.hung = True
        elif fault.kind == "freeze":
            self.world.spend(self.world.random.uniform(*FROZEN_SECONDS))
        elif fault.kind == "stop":
            worker.hung = True
            self.world.later(STOPPED_SECONDS, partial(workers.lose, worker, "it was stopped", keeps=None))
        else:
            keeps = self.world.random.choice([None, self.world.random.randint(0, under_way)])
            workers.lose(worker, "it was killed by signal 9", keeps=keeps)

    # ---- the driver

    def round(self, workers: SimulatedWorkers) -> None:
        """Note that the driver begins a round by receiving messages."""
        for at in self.moments:
            if MOMENTS[at](self.driver) and (fault := self._due(at, before=True)):
                self._happens(workers, fault)
        for before in (True, False):
            if fault := self._due("round", before=before):
                self._happens(workers, fault)

    def _happens(self, workers: SimulatedWorkers, fault: Fault) -> None:
        if fault.kind in ("driver", "power"):
            self.die(fault)
        elif fault.kind == "driver freezes":
            chance = self.world.random
            workers.frozen_seconds = LONG_SECONDS if chance.random() < 0.1 else chance.uniform(*FROZEN_SECONDS)
        elif fault.kind in (*OF_MEMBERS, "freeze", "poison"):
            self.awaits_code = fault
        elif fault.kind not in (*OF_WORKERS, "kill rank"):
            self._ask(workers, fault)
        elif among := workers.in_split_steps() if fault.kind == "kill rank" else list(workers.there.values()):
            self._to(self.world.random.choice(among), fault)

    def writes(self, *, before: bool) -> None:
        """Note that a file is about to be flushed, written or renamed, or has been."""
        if self.dead:
            raise Killed
        if "write" not in self.awaited:
            return
        fault = self._due("write", before=before)
        self.full |= fault is not None and fault.kind == "full"
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if fault is not None:
            self.die(fault)

    def die(self, fault: Fault) -> None:
        """End the driver's process."""
        self.dead, self.power = True, fault.kind == "power"
        raise Killed

    def _number(self) -> int:
        """Return a number that no clone, no added file and no node has yet."""
        self._numbered = max(self._numbered + 1, self.seen["round"])
        return self._numbered

    def _ask(self, workers: SimulatedWorkers, fault: Fault) -> None:
        driver, chance, kind = self.driver, self.world.random, fault.kind
        names, self.asked = list(driver.run.study.names), True
        if fault.at in ("move", "leave"):
            names = driver.members.in_states(State.STARTING, State.MOVING, State.LEAVING)
        elif fault.at in ("start", State.STARTING):
            names = driver.members.in_states(State.STARTING)
        if kind == "clock":
            self.clock_seconds += chance.choice(CLOCK_SECONDS)
        elif kind == "pause":
            driver.requests.request_pause("as the script wants")
        elif kind == "end":
            self.excused.add(name := chance.choice(names))
            write_command(driver.run.directory, {"command": "stop", "member": name})
        elif kind in ("clone", "warm clone"):
            command = {"member": chance.choice(names), "name": f"c{self._number()}", "set": {"optimizer.lr": 0.2}}
            write_command(driver.run.directory, {"command": "clone", "warm": kind == "warm clone", **command})
        elif kind == "add":
            file = driver.run.directory / f"added{self._number()}.py"
            file.write_text(str(self._numbered))
            write_command(driver.run.directory, {"command": "add", "study": str(file)})
        elif kind == "node goes":
            there = [node.name for node in driver.run.cluster.nodes if node.name not in workers.gone_nodes]
            if len(there) > 1:
                workers.lose_node(chance.choice(there))
        elif len(self.scenario.nodes) > 1:
            name = f"late{self._number()}"
            device = Device(name=f"{name}/cpu:0", node=name, kind="cpu", memory_bytes=10**9)
            driver.count("Came")
            workers.bring_node(Node(name=name, devices=(device,), cores=1))
