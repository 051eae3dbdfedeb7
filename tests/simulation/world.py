"""Virtual time, and the workers of a simulated run: real trainers with counting members, and feeders that follow the real `FeedSchedule`.

A seed decides the timing: how long each message is under way, how long each action takes, and which worker is heard first. Time
passes only when some process spends it. A run of minutes therefore takes milliseconds, and the same seed gives the same run.
"""

import heapq
import itertools
import random
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from argosy.cluster import Node
from argosy.protocol.events import Used
from argosy.protocol.feeder import Credit, Feed, Hold, Leg, Open, Opened
from argosy.protocol.trainer import Attach, Came, DevicePoisoned, Exit, Failed, Lost, Measured
from argosy.running.launch.launcher import Job
from argosy.running.launch.worker import without_feeder
from argosy.stream.blocks import Layout
from argosy.stream.course import FeedSchedule
from argosy.stream.gauges import StreamGauge
from argosy.stream.heartbeat import SLOT_BYTES, WAITING, Heartbeat
from argosy.study import Member
from argosy.training.device.devices import open_backend
from argosy.training.trainer.assigned import AssignedMember
from argosy.training.trainer.guard import Poisoned
from argosy.training.trainer.trainer import Trainer
from simulation.counting import CountingBlock, CountingMember
from simulation.split import Meeting

__all__ = ["Killed", "SimulatedWorkers", "Terms", "World", "measured"]

COUNTED = Layout(tree=None, dtypes=(), shapes=())
"""The layout of samples that have no content and are only counted."""
SLOTS = 6
"""Most blocks that the readers of a feeder may hold at a time."""


class Killed(BaseException):
    """The driver's process is gone, and nothing more of its work may happen."""


class World:
    """Virtual time, the random numbers, and the events to come."""

    def __init__(self, seed: int) -> None:
        self.now = 1000.0
        """Virtual time in seconds; it starts far enough from 0 that nothing that was never done is due."""
        self.random = random.Random(seed)
        self.story: list[tuple[float, str, str, Any]] = []
        """(time, who, what they do, with what)."""
        self.meetings: defaultdict[str, Meeting] = defaultdict(Meeting)
        """The meetings of split members, by rendezvous."""
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        """(time, number, action); the numbers keep the order of events at the same time."""
        self._numbers = itertools.count()

    def spend(self, seconds: float) -> None:
        """Let time pass for the process that acts."""
        self.now += seconds

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Schedule an action in so many seconds."""
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), action))

    def tell(self, who: str, what: str, about: Any = "") -> None:
        """Add a line to the story."""
        self.story.append((self.now, who, what, about))

    def run_until(self, end: float, arrived: Collection[Any] = ()) -> None:
        """Run the actions that are due up to a time, or until something has arrived."""
        events = self._events
        while events and events[0][0] <= end and not arrived:
            # Processes run in parallel: time that the last action spent has not passed for the others, so the clock may go back.
            self.now, _, action = heapq.heappop(events)
            action()
        self.now = max(self.now, end) if not arrived else self.now

    def forget(self) -> None:
        """Drop all events and meetings."""
        self._events.clear()
        self.meetings.clear()


class _Line:
    """One direction of a connection: messages arrive in order, each after a random delay."""

    def __init__(self, world: World, arrives: Callable[[Any], None]) -> None:
        self.world = world
        self._arrives = arrives
        self._last = 0.0
        self._cut = False
        self._under_way: deque[Any] = deque()

    def say(self, word: Any) -> None:
        """Send a message."""
        if self._cut:
            return
        world = self.world
        at = world.now + world.random.expovariate(500.0)
        if at > self._last:
            self._last = at
        self._under_way.append(word)
        world.later(self._last - world.now, self._one)

    def _one(self) -> None:
        if self._under_way:
            self._arrives(self._under_way.popleft())

    def cut(self, *, keeps: int | None) -> None:
        """Send nothing more, and lose all messages under way but the first `keeps`; None keeps all."""
        self._cut = True
        if keeps is not None:
            while len(self._under_way) > keeps:
                self._under_way.pop()

    @property
    def last(self) -> float:
        """The time at which the last message arrives."""
        return self._last

    @property
    def under_way(self) -> int:
        """The number of messages that have not arrived."""
        return len(self._under_way)


class _Shown(Heartbeat):
    """A heartbeat that shows its worker as waiting until the worker's next turn, since others may read it in between."""

    def waiting(self, doing: str) -> AbstractContextManager[None]:
        """See `Heartbeat.waiting`."""
        self.show(WAITING, 0, doing.encode())
        return nullcontext()

    def look_up(self) -> None:
        """End the waiting, as the worker has a turn."""
        if self.doing[0] == WAITING:
            self.rest()


class _Worker:
    """One simulated process."""

    def __init__(self, workers: "SimulatedWorkers", name: str, node: str) -> None:
        self.workers, self.world, self.name, self.node = workers, workers.world, name, node
        self.alive = True
        self.hung = False
        self.heartbeat = _Shown(memoryview(bytearray(2 * SLOT_BYTES)))
        self.birth = workers.births = workers.births + 1
        self.heartbeat._words[0] = self.birth  # differs from that of an earlier worker of this name
        self.ears = _Line(self.world, self._handle)
        self.mouth = _Line(self.world, lambda message: workers.arrived.append((name, message)))
        self.commands: deque[Any] = deque()
        self._due = False
        self._free_at = self.world.now + self.world.random.uniform(0.05, 0.5)
        """When the worker has started, or has finished what it is doing."""

    def _handle(self, command: Any) -> None:
        if self.alive:
            self.commands.append(command)
            self.wake()

    def say(self, message: Any) -> None:
        """Send a message to the driver."""
        script = self.workers.script
        script.said(self, message, before=True)
        self.check()
        self.mouth.say(message)
        script.said(self, message, before=False)
        self.check()

    def check(self) -> None:
        """Raise `_Gone` if the worker was ended or hangs."""
        if not self.alive or self.hung:
            raise _Gone

    def wake(self) -> None:
        """Schedule a turn for when the worker is free."""
        if not self._due and self.alive and not self.hung:
            self._due, seconds = True, self._free_at - self.world.now
            self.world.later(seconds if seconds > 0.0 else 0.0, self._turn)

    def _turn(self) -> None:
        self._due = False
        if not self.alive or self.hung:
            return
        started = self.world.now
        try:
            did = self.act()
        except _Gone:
            did = False
        except Poisoned as error:  # process boundary, too
            self.mouth.say(DevicePoisoned(detail=str(error), members=error.members))
            self.workers.lose(self, "exit code 1", keeps=None)
            did = False
        except Exception as error:  # process boundary, as in `argosy.running.launch.worker`
            self.mouth.say(Failed(error=error))
            did = False
        self._free_at, self.world.now = self.world.now, started
        if self.hung:
            self.heartbeat.start("hanging", opaque=self.birth % 2 == 0)
        elif did:
            self.wake()

    def act(self) -> bool:
        """Do one thing; return False if there is nothing to do."""
        raise NotImplementedError

    @property
    def assigned(self) -> Mapping[str, AssignedMember]:
        """The members that the worker steps."""
        return {}

    def end(self) -> None:
        """End the worker, whatever it is doing."""
        self.alive = False


class _Gone(BaseException):
    """A worker was ended, or hangs, in the middle of an action."""


class _Feeder(_Worker):
    def __init__(self, workers: "SimulatedWorkers", name: str, node: str) -> None:
        super().__init__(workers, name, node)
        terms = workers.terms
        self.course = FeedSchedule(terms.lengths, per_epoch=terms.per_epoch, block_size=terms.block_size)
        self.readers: dict[str, _Trainer] = {}
        self.held: dict[int, set[_Trainer]] = {}
        self._blocks = itertools.count()

    def act(self) -> bool:
        """Obey a command, or announce a block."""
        if self.commands:
            command = self.commands.popleft()
            self.world.spend(self.world.random.uniform(1e-5, 1e-3))
            self.workers.script.obeys(self, command, before=True)
            self.check()
            self._obey(command)
            self.workers.script.obeys(self, command, before=False)
            self.check()
            return True
        return self._announce()

    def _obey(self, command: Any) -> None:
        terms = self.workers.terms
        match command:
            case Open():
                self.world.spend(self.world.random.uniform(0.01, 0.3))
                self.say(
                    Opened(
                        lengths=terms.lengths,
                        fingerprints={
                            **dict.fromkeys(terms.lengths, "counted"),
                            **terms.identities,
                        },
                        block_size=terms.block_size,
                        seconds_per_sample=1e-5,
                        opening_seconds=0.1,
                        keeping={},
                    )
                )
            case Feed():
                for fed in self.course.begin(command.leg):
                    self.say(fed)
            case Credit():
                self.course.allow(command)
            case Hold():
                self.say(self.course.hold(command))
            case Exit():
                for fed in self.course.begin(Leg.empty()):
                    self.say(fed)
                self.say(Used(worker=self.name, cpu_seconds=0.0, gauge=StreamGauge().to_json()))
                self.workers.left(self)

    def _announce(self) -> bool:
        course = self.course
        if len(self.held) >= SLOTS or not course.assignments or not self.readers.keys() >= course.assignments.keys():
            return False
        place = course.peek()
        if place is None or not course.may_announce(place):
            return False
        course.next()
        self.world.spend(place.rows * 1e-5)
        number = next(self._blocks)
        self.held[number] = {self.readers[name] for name in course.assignments}
        for name, assignment in course.assignments.items():
            self.readers[name].blocks.say((self, number, CountingBlock(place), assignment))
        fed = course.note_announced(place, place.rows)
        if fed is not None:
            self.say(fed)
        return True

    def admit(self, reader: "_Trainer") -> None:
        """Accept a trainer that has connected."""
        if not self.alive or not reader.alive or reader.feeder is not self:
            return
        earlier = self.readers.get(reader.name)
        if earlier is not None and earlier is not reader:
            self.lose(earlier)
        self.readers[reader.name] = reader
        self.wake()

    def released(self, number: int, reader: "_Trainer") -> None:
        """Note that a reader no longer needs a block."""
        if number in self.held:
            self.held[number].discard(reader)
            if not self.held[number]:
                del self.held[number]
        self.wake()

    def lose(self, reader: "_Trainer") -> None:
        """Drop a reader that is gone or reads from another feeder."""
        if self.readers.get(reader.name) is reader:
            del self.readers[reader.name]
        for number in list(self.held):
            self.released(number, reader)

    def end(self) -> None:
        """See `_Worker.end`."""
        super().end()
        for reader in self.readers.values():
            reader.blocks.say((self, None, None, 0))


class _Device:
    """The device of one process; after a kernel has asserted, every later synchronization raises."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self.poisoned = False

    def __getattr__(self, name: str) -> Any:
        found = self.__dict__[name] = getattr(self._backend, name)
        return found

    def synchronize(self) -> None:
        """See `Backend.synchronize`."""
        if self.poisoned:
            raise RuntimeError("device-side assert triggered")


class _SimulatedTrainer(Trainer):
    """A trainer that builds counting members."""

    worker: "_Trainer"

    def _build(self, name: str) -> Any:
        return self.worker.build(self.known[name])


class _Trainer(_Worker):
    def __init__(self, workers: "SimulatedWorkers", name: str, node: str) -> None:
        super().__init__(workers, name, node)
        self.blocks = _Line(self.world, self._block)
        self.read: deque[tuple[_Feeder, int, CountingBlock, int]] = deque()
        self.feeder: _Feeder | None = None
        self.held: list[tuple[CountingBlock, _Feeder, int]] = []
        """Blocks that were taken, each with its feeder and its number there, to be given back."""
        self.device = _Device(workers.backend)
        job = workers.job
        self.trainer = _SimulatedTrainer(
            job.study.terms,
            job.settings,
            job.directory,
            name=name,
            backend=self.device,
            emit=self.say,
            listen=self._called,
            heartbeat=self.heartbeat,
        )
        self.trainer.worker = self

    @property
    def assigned(self) -> Mapping[str, AssignedMember]:
        """See `_Worker.assigned`."""
        return self.trainer.assigned

    def _called(self) -> bool:
        return bool(self.commands) or self.world.random.random() < 0.2

    def _block(self, word: Any) -> None:
        feeder, number, block, assignment = word
        if not self.alive or feeder is not self.feeder:
            return
        if number is None:
            self.feeder = None
        else:
            self.read.append((feeder, number, block, assignment))
        self.wake()

    def act(self) -> bool:
        """Take a block, then obey all commands, in the order in which `argosy.running.launch.worker` serves a trainer."""
        self.heartbeat.look_up()
        took = self._give()
        self._release()
        obeyed = bool(self.commands)
        while self.commands:
            command = self.commands.popleft()
            self.workers.script.obeys(self, command, before=True)
            self.check()
            self._obey(command)
            self.workers.script.obeys(self, command, before=False)
            self.check()
        self._release()
        return took or obeyed

    def _obey(self, command: Any) -> None:
        self.world.spend(self.world.random.uniform(1e-5, 2e-3))
        match command:
            case ("enlist", members):
                self.trainer.enlist(members)
            case Attach():
                self._attach(command.feeder)
            case Exit():
                self.say(self.trainer.used(0.0))
                self.workers.left(self)
            case _:
                to_do = command if self.feeder is not None else without_feeder(command)
                if to_do is not None:
                    self.trainer.obey(to_do)

    def _give(self) -> bool:
        self.workers.script.serves(self)
        self.check()
        if self.trainer.go_on():
            return True
        if self.read and self.trainer.ready:
            feeder, number, block, assignment = self.read.popleft()
            self.held.append((block, feeder, number))
            self.trainer.take(block, assignment)
            return True
        return False

    def _release(self) -> None:
        if not self.held:
            return
        using = [block for block, _ in self.trainer.kept] + [self.trainer.at_hand]
        held, self.held = self.held, []
        for block, feeder, number in held:
            if block in using:
                self.held.append((block, feeder, number))
            elif feeder.alive:
                self.world.later(self.world.random.expovariate(1000.0), partial(feeder.released, number, self))

    def _attach(self, name: str) -> None:
        self._close()
        self.read.clear()
        feeder = self.workers.there.get(name)
        if isinstance(feeder, _Feeder):
            self.feeder = feeder
            self.trainer.set_splits(self.workers.terms.lengths, dict.fromkeys(self.workers.terms.lengths, COUNTED))
            self.world.later(self.world.random.expovariate(1000.0), partial(feeder.admit, self))

    def _close(self) -> None:
        if self.feeder is not None and self.feeder.alive:
            self.feeder.lose(self)
        self.feeder = None

    def build(self, member: Member) -> CountingMember:
        """Build a member that has not trained yet."""
        terms = self.workers.terms
        self.world.spend(self.world.random.uniform(1e-4, 1e-2))
        self.workers.script.builds(self, member.name)
        return CountingMember(
            member=member,
            backend=self.device,
            spend=self.world.spend,
            row_seconds=terms.row_seconds.get(member.name, 0.002),
            length=terms.lengths["train"],
            lengths=terms.lengths,
            trips=partial(self.workers.script.steps, self),
        )

    def end(self) -> None:
        """See `_Worker.end`."""
        super().end()
        for instance in self.trainer.instances:
            if instance.shard is not None:
                instance.shard.group.leave()
        if self.feeder is not None and self.feeder.alive:
            self.world.later(0.001, partial(self.feeder.lose, self))


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """What the workers of a run have to know about it."""

    lengths: dict[str, int]
    identities: dict[str, str]
    """The identities of the data, by split."""
    per_epoch: int
    block_size: int
    row_seconds: dict[str, float]
    """Seconds per row, by member; rows of other members take 2 ms."""


class SimulatedWorkers:
    """The `Workers` of one driver in a world."""

    side_by_side: ClassVar[bool] = True

    def __init__(self, world: World, script: Any, job: Job, terms: Terms) -> None:
        self.world, self.script, self.job, self.terms = world, script, job, terms
        self.backend = open_backend("cpu:0")
        self.births = 0
        self.there: dict[str, _Worker] = {}
        self.gone_nodes: set[str] = set()
        self.arrived: list[tuple[str, Any]] = []
        self.unsent: list[tuple[str, _Worker | None, Any]] = []
        self.frozen_seconds = 0.0
        """How long the driver stands still before it next receives anything."""
        self._rendezvous = itertools.count()

    # ---- what the driver calls

    def start(self, name: str, role: str, node: str) -> None:
        """See `Workers.start`."""
        if node in self.gone_nodes:
            self._lost(name, "its node is gone", self.world.now, node_gone=True)
            return
        assert name not in self.there, f"{name} was started twice"
        self.world.tell(name, "starts")
        self.there[name] = (_Feeder if role == "feeder" else _Trainer)(self, name, node)

    def send(self, worker: str, command: Any) -> None:
        """See `Workers.send`; an unsent command for a lost worker does not reach the next worker of that name."""
        self.unsent.append((worker, self.there.get(worker), command))

    def enlist(self, worker: str, members: tuple[Member, ...]) -> None:
        """See `Workers.enlist`."""
        self.send(worker, ("enlist", members))

    def kill(self, worker: str) -> None:
        """See `Workers.kill`."""
        if worker in self.there:
            self.lose(self.there[worker], "it was killed", keeps=None)

    def receive(self, timeout: float) -> list[tuple[str, Any]]:
        """See `Workers.receive`."""
        self.script.round(self)
        unsent, self.unsent = self.unsent, []
        for name, worker, command in unsent:
            self.world.tell("driver", f"to {name}", command)
            feeder = self.there.get(command.feeder) if isinstance(command, Attach) else None
            if isinstance(feeder, _Feeder) and name in feeder.readers:
                # A feeder gets its end of a new connection at once, before any credit that names this reader.
                feeder.lose(feeder.readers[name])
            if worker is not None and worker.alive:
                worker.ears.say(command)
        if self.frozen_seconds:
            self.world.run_until(self.world.now + self.frozen_seconds)
            self.frozen_seconds = 0.0
        self.world.run_until(self.world.now + timeout, self.arrived)
        if self.world.random.random() < 0.5:  # more messages arrive before the driver looks
            self.world.run_until(self.world.now + self.world.random.uniform(0, 0.02))
        arrived, self.arrived = self.arrived, []
        for worker, message in arrived:
            self.world.tell(worker, "says", message)
        self.world.spend(1e-4)
        return arrived

    def rendezvous(self) -> str:
        """See `Workers.rendezvous`."""
        return f"rendezvous/{next(self._rendezvous)}"

    def heartbeat(self, worker: str) -> Heartbeat | None:
        """See `Workers.heartbeat`."""
        found = self.there.get(worker)
        return None if found is None else found.heartbeat

    def cpu_seconds(self, worker: str) -> float:
        """See `Workers.cpu_seconds`."""
        return 0.0

    def __enter__(self) -> "SimulatedWorkers":
        return self

    def __exit__(self, *error: Any) -> None:
        self.world.forget()
        self.there.clear()

    # ---- workers and nodes that come and go

    def left(self, worker: _Worker) -> None:
        """Note that a worker has exited as it was told to."""
        self.lose(worker, "it was told to exit", keeps=None)

    def lose(
        self, worker: _Worker, detail: str, *, keeps: int | None, after: float = 0.0, node_gone: bool = False
    ) -> None:
        """End a worker; the driver gets the first `keeps` of its messages under way, and then hears of the loss."""
        if self.there.get(worker.name) is not worker:
            return
        del self.there[worker.name]
        worker.end()
        worker.mouth.cut(keeps=keeps)
        until = max(worker.mouth.last, self.world.now) + after
        self._lost(worker.name, detail, until, node_gone=node_gone)

    def _lost(self, name: str, detail: str, at: float, *, node_gone: bool = False) -> None:
        delay = at - self.world.now + self.world.random.uniform(0.0, 0.05)
        self.world.later(delay, lambda: self.arrived.append((name, Lost(detail=detail, node_gone=node_gone))))

    def lose_node(self, node: str) -> None:
        """Lose a node with all workers on it."""
        self.gone_nodes.add(node)
        for worker in [one for one in self.there.values() if one.node == node]:
            self.lose(
                worker, "its node is gone", keeps=self.world.random.randint(0, worker.mouth.under_way), node_gone=True
            )

    def in_split_steps(self) -> list[_Worker]:
        """Return the trainers that are in a step of a split member."""
        trainers = [worker for worker in self.there.values() if isinstance(worker, _Trainer)]
        return [
            trainer
            for trainer in trainers
            if any(its.shard is not None and its.shard.under_way for its in trainer.trainer.instances)
        ]

    def bring_node(self, node: Node) -> None:
        """Add a node that the driver may use from now on."""
        self.arrived.append(("", Came(node=node)))


def measured(live: CountingMember, groups: int) -> Measured:
    """Return what a trainer measures of a member, and of its shares in groups of 2 to `groups` devices."""
    batch_seconds = live.member.batch_size * live.row_seconds
    return Measured(
        member=live.member.name,
        samples_per_second=1.0 / live.row_seconds,
        shard_seconds=tuple(batch_seconds / devices for devices in range(2, groups + 1)),
        memory_bytes=10**6,
        activation_bytes=10**5,
        state_bytes=10**5,
        gradient_bytes=8,
        parameter_shapes="one weight",
        batch_norm=False,
        whole="" if groups > 1 else "it only counts",
        notes=(),
    )
