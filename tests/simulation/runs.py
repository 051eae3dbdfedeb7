"""Plays a whole run from a seed, in virtual time and in one process, with the real driver and its real conversation with trainers.

The clock, the random numbers and the ``fsync`` of the process are replaced while a run is played, so that no code of the driver
can reach the real ones. Members only count (`counting`), messages of workers take virtual time (`world`), and a script decides
what goes wrong (`script`). What must hold is in `invariants`.
"""

import gc
import hashlib
import json
import math
import os
import shutil
import socket
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

import optuna
import torch

import argosy
from argosy import api
from argosy.cluster import Cluster, Device, Node
from argosy.disk import settled
from argosy.disk.cached import NOWHERE, Cached
from argosy.errors import DiskError
from argosy.errors.system import explain_refusals
from argosy.planning import POLICIES
from argosy.protocol.events import WorkerLost
from argosy.protocol.trainer import Lost
from argosy.results.fold import RunState
from argosy.running.control import additions, choices, costs, positions, resume
from argosy.running.control import driver as driving
from argosy.running.control.rehearsal import RehearsalResult
from argosy.running.control.verdicts import Fate, Verdict
from argosy.running.directory import inbox, lock, records
from argosy.running.directory.journal import Journal, read_journal
from argosy.running.directory.lock import Lock
from argosy.running.directory.study_copy import StudyCopy
from argosy.running.launch.launcher import Job
from argosy.running.search.tuner import Tuner
from argosy.running.watch.energy import Meter
from argosy.running.watch.view import Silent
from argosy.settings import Settings
from argosy.stream.code_digest import CodeReader
from argosy.stream.opening import identities_of_arrays
from argosy.study import Study
from argosy.training.choice import rehearsal
from argosy.training.device import process_state
from argosy.training.device.process_state import ProcessState
from argosy.training.member import checkpoint
from argosy.training.trainer import descriptors, guard, program_instances, stepping, trainer, trials
from argosy.tuning.search import Search, Store
from simulation.counting import Counted, CountingBlock, CountingMember
from simulation.disk import Disk
from simulation.invariants import ends_well, holds
from simulation.restless import Restless
from simulation.scenario import Scenario
from simulation.script import Script
from simulation.split import CountingShard, Group
from simulation.world import Killed, SimulatedWorkers, Terms, World, measured

__all__ = ["Outcome", "play"]

PATIENCE_SECONDS = 3600.0
"""Virtual time after which a driver that has not ended counts as making no progress."""
MOST_ROUNDS = 20_000
STEPS_AFTER_STOP = 2
"""Most steps that a member makes before the command to stop reaches it; one step ends as many sections as its batch covers."""
MOST_DRIVERS = 12
MEMORY = Path("/dev/shm")
TEMPORARY = tempfile.gettempdir()
"""Read at import, because the first call of `gettempdir` writes a file, which a full disk would refuse."""
PROCESS_STATE = ProcessState.here()
"""Taken before anything is replaced."""
PID, HOST, BEGUN, TIMES = 4321, "vm", "8640000", os.times_result((1.0, 1.0, 0.0, 0.0, 1.0))
VERSIONS = {"argosy": "0.1.0", "torch": "2.13.0+cpu", "numpy": "2.4.6", "python": "3.11.7"}
"""What else a driver asks the system and writes into files; fixed, since where a power cut tears a file depends on each byte of it."""
REPORT = SimpleNamespace(objective="", leader=None, table=list, status="", reason="")
"""What a search returns; its journal is looked at instead."""
gc.freeze()  # imported modules are never garbage, and scanning them in every collection takes longer than a run


@dataclass(kw_only=True)
class Outcome:
    """The result of playing a scenario."""

    scenario: Scenario
    story: list[tuple[float, str, str, Any]]
    """(time, who, what they do, with what)."""
    wrong: list[str] = field(default_factory=list)
    """What did not hold; empty if all is well."""
    happened: list[Any] = field(default_factory=list)
    """Faults that happened."""
    drivers: int = 0
    rounds: int = 0
    covered: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(state of a member, what the driver heard)."""
    lost: list[WorkerLost] = field(default_factory=list)
    """The losses of workers in the journal."""
    journal: str = ""
    """The hash of the journal."""

    def told(self, last: int = 80) -> str:
        """Return the end of the story in words."""
        lines = [f"{at:9.4f} {who:>14} {what} {_short(about)}" for at, who, what, about in self.story[-last:]]
        return "\n".join([repr(self.scenario), *lines, *self.wrong])


def _short(about: Any) -> str:
    text = about.__class__.__name__ if isinstance(about, tuple) else str(about)
    return text if len(text) < 200 else f"{text[:200]}…"


def play(scenario: Scenario) -> Outcome:
    """Run a scenario to its end, with as many drivers in turn as it takes."""
    gc.disable()  # garbage is collected between runs, when all of a run but its outcome is garbage
    try:
        return _play(scenario)
    finally:
        gc.enable()


def _play(scenario: Scenario) -> Outcome:
    memory = MEMORY if MEMORY.is_dir() else Path(TEMPORARY)
    directory = Path(tempfile.mkdtemp(prefix="argosy-simulation-", dir=memory))
    world = World(scenario.seed)
    script = Script(scenario, world)
    outcome = Outcome(scenario=scenario, story=world.story, happened=script.happened)
    disk = Disk(directory, world.random)
    try:
        restless = {"restless": Restless(world.random), "splitting": Restless(world.random, splits=1.0)}
        with _replaced(world, script, disk), mock.patch.dict(POLICIES, restless):
            _drivers(scenario, directory, world, script, disk, outcome)
            outcome.wrong += ends_well(scenario, directory, _joined(script.driver), script.excused)
            outcome.lost, outcome.journal = script.driver.run.state.lost, _digest(directory)
    except AssertionError as error:
        outcome.wrong.append(str(error))
    except Exception:  # any exception of a driver is wrong
        outcome.wrong.append(traceback.format_exc(-6))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return outcome


def _joined(driver: driving.Driver) -> Study:
    """Return the study without members whose command is unanswered: they never joined the run."""
    study, added = driver.run.study, driver.members.addition
    joined = tuple(member for member in study.members if not added(member.name))
    return study if len(joined) == len(study.members) else replace(study, members=joined)


def _drivers(scenario: Scenario, directory: Path, world: World, script: Script, disk: Disk, outcome: Outcome) -> None:
    while outcome.drivers < MOST_DRIVERS:
        outcome.drivers += 1
        world.tell("driver", "starts")
        try:
            if not _drive(scenario, directory, world, script, outcome):
                return
        except DiskError:
            if not script.full:
                raise
            script.full = False
        except Killed:
            world.forget()
            script.dead = False
            if script.power:
                disk.lose_power()
            world.spend(world.random.uniform(1.0, 5.0))
    raise AssertionError("drivers are restarted without end")


def _drive(scenario: Scenario, directory: Path, world: World, script: Script, outcome: Outcome) -> bool:
    """Run one driver to its end, and return whether there is something left to do."""
    rests, ends = (dict(enumerate(given)) for given in (scenario.rests, scenario.ends))
    judges = [Waits(rests, ends)] if any(rests.values()) or any(ends.values()) else []

    def watched(*given: Any, **named: Any) -> Watched:
        script.driver = driver = Watched(*given, **named)
        driver.outcome, driver.told = outcome, {}
        return driver

    place = Place(world, script, scenario)
    with mock.patch.object(driving, "Driver", watched):
        if scenario.scheduler:
            api.run_search(_search(scenario), _settings(scenario), directory, store=Store(), launcher=place, view=None)
        else:
            _train(scenario, directory, place, judges)
    assert not place.workers.there, f"workers are left: {list(place.workers.there)}"
    run = script.driver.run
    left = run.positions.unfinished()
    assert not left or run.pause_reason is not None, f"the driver has ended although nothing paused it, and left {left}"
    return bool(left) or script.driver._more_to_come


def _train(scenario: Scenario, directory: Path, place: "Place", judges: Sequence["Waits"]) -> None:
    with (
        explain_refusals(directory),
        Lock(directory / "run.lock") as lock,
        Journal(directory / "journal.jsonl") as journal,
    ):
        state = RunState.of(read_journal(directory))
        job = Job(
            study=_study(scenario),
            settings=_settings(scenario),
            directory=directory,
            lock=lock.descriptor,
            process_state=PROCESS_STATE,
        )
        driving.drive(job, place.discover(job.settings), place.open(job), journal, state, Silent(), judges=judges)


class Place:
    """The launcher of one driver."""

    def __init__(self, world: World, script: Script, scenario: Scenario) -> None:
        self.world, self.script, self.scenario = world, script, scenario

    def discover(self, settings: Settings) -> Cluster:
        """See `Launcher.discover`."""
        return _cluster(self.scenario)

    def open(self, job: Job) -> SimulatedWorkers:
        """See `Launcher.open`."""
        self.workers = SimulatedWorkers(self.world, self.script, job, _terms(self.scenario))
        return self.workers

    def close(self) -> None:
        """See `Launcher.close`."""


class Watched(driving.Driver):
    """A driver that checks the invariants after each round, and counts which messages it got with members in which states."""

    outcome: Outcome
    told: dict[str, int]
    """The most sections that a member may end, for each member that is told to stop."""
    _since = 0.0

    def _round(self) -> None:
        super()._round()
        self.outcome.rounds += 1
        self._since = self._since or time.monotonic()
        assert time.monotonic() - self._since < PATIENCE_SECONDS, (
            f"no end after an hour, in phase {self.run.phase.name}"
        )
        assert self.outcome.rounds < MOST_ROUNDS, f"too many rounds, in phase {self.run.phase.name}"
        holds(self)
        for name in filter(self.members.is_asked_to_stop, self.run.study.names if self.run.begun else ()):
            sections = len(self.state.member(name).sections)
            ends = math.ceil(self.run.study.member(name).batch_size * self.run.per_epoch / self.run.lengths["train"])
            # The driver sends the command only when its journal is on the disk; with slow flushes, sections end meanwhile.
            given = self.outcome.scenario
            section_seconds = min(given.row_ms) / 1e3 * given.length / given.per_epoch
            flushing = int(2 * given.flush_seconds / section_seconds)
            most = self.told.setdefault(name, sections + STEPS_AFTER_STOP * ends + flushing)
            assert sections <= most, f"{name} was told to stop, but continues"

    def _handle(self, worker: str, message: Any) -> None:
        event = type(message).__name__
        if isinstance(message, Lost):
            event = f"Lost {'node' if message.node_gone else 'feeder' if 'feeder' in worker else 'trainer'}"
        self.count(event)
        super()._handle(worker, message)

    def count(self, event: str) -> None:
        """Count the state of each member at the moment when the driver hears of an event."""
        covered, members = self.outcome.covered, self.members
        for name in self.run.study.names if self.run.begun else ():
            covered[members.state(name), event] += 1


@dataclass(frozen=True, slots=True)
class Waits:
    """A judge that lets members rest after given numbers of sections, and ends them after others.

    A member rests until each of the others has ended, rests, or has as many sections. A member with an end is promised all
    sections up to its next stop after an even number of sections, but only one after an odd number: promises may shrink.
    """

    after: dict[int, int]
    ends: dict[int, int]

    def verdict(self, member: str, state: RunState, study: Study) -> Verdict:
        """See `Judge.verdict`."""
        number = int(member[1:]) if member.startswith("m") else -1
        sections = len(state.member(member).sections)
        rest, end = self.after.get(number, 0), self.ends.get(number, 0)
        if 0 < end <= sections:
            return Verdict(Fate.END, "as it was to")
        if sections and sections == rest and not self._over(member, state, study):
            return Verdict(Fate.REST, "until others are there")
        left = [after - sections for after in (rest, end) if after > sections]
        return Verdict(Fate.GO_ON, certain=1 if end and sections % 2 else min(left, default=1))

    def _over(self, member: str, state: RunState, study: Study) -> bool:
        sections = len(state.member(member).sections)
        others = [state.member(name) for name in study.names if name != member]
        return all(
            other.status in ("done", "stopped", "failed", "diverged", "resting") or len(other.sections) >= sections
            for other in others
        )

    def called(self, resting: Collection[str], state: RunState, study: Study) -> Sequence[str]:
        """See `Judge.called`."""
        return [name for name in sorted(resting) if self._over(name, state, study)]


# ---- the study or search, and the cluster


def network(number: int) -> torch.nn.Module:
    """Stand in for a network, which is never built, as members only count."""
    raise AssertionError(number)


def optimizer(parameters: Any, lr: float) -> Any:
    """Stand in for an optimizer, which is built only to compare the rates of a warm clone with its source's."""
    return SimpleNamespace(param_groups=[])


@lru_cache(maxsize=4)
def _study(scenario: Scenario) -> Study:
    """Return the study, in which each `scenario.alike` members in a row have the same network."""
    members = [
        _member(number, number // scenario.alike, batch, epochs)
        for number, (epochs, batch) in enumerate(zip(scenario.epochs, scenario.batches, strict=True))
    ]
    return argosy.Study(
        data=_data(scenario.length, scenario.val),
        members=members,
        stop=argosy.MaxEpochs(1),
        objective="train_loss",
        validations_per_epoch=scenario.per_epoch,
    )


@cache
def _data(length: int, val: int) -> argosy.Data:
    train, held_out = ([torch.zeros(rows, 1), torch.zeros(rows)] for rows in (length, val))
    return argosy.Data(arrays=train, val=held_out if val else None)


@cache
def _identities(length: int, val: int) -> dict[str, str]:
    """Return what feeders know of the data once they are open; each of a run's feeders would read all samples."""
    return identities_of_arrays(_data(length, val))


def _search(scenario: Scenario) -> Search:
    """Return the search, whose trials are of the kinds of the members and train for at most as many epochs as the longest of these."""

    def build(parameters: Mapping[str, Any]) -> argosy.Member:
        kind = parameters["kind"]
        return replace(_member(kind, kind, scenario.batches[kind], 1), name="trial", stop=None)

    return Search(
        build=build,
        space={"kind": optuna.distributions.IntDistribution(0, len(scenario.batches) - 1)},
        data=_data(scenario.length, scenario.val),
        max_epochs=max(scenario.epochs),
        scheduler=scenario.scheduler,
        eta=3 if scenario.scheduler == "random" else 2,
        n_trials=len(scenario.epochs),
        objective="train_loss",
        sampler=optuna.samplers.RandomSampler,
        validations_per_epoch=scenario.per_epoch,
        warm=scenario.warm,
    )


@cache
def _member(number: int, kind: int, batch: int, epochs: int) -> argosy.Member:
    return argosy.Member(
        f"m{number}",
        model=partial(network, number=kind),
        optimizer=partial(optimizer, lr=0.1),
        batch_size=batch,
        stop=argosy.MaxEpochs(epochs),
    )


def _cluster(scenario: Scenario) -> Cluster:
    several, nodes = len(scenario.nodes) > 1, []
    for number, count in enumerate(scenario.nodes):
        node = f"node{number}" if several else "local"
        names = [f"{node}/cpu:{slot}" if several else f"cpu:{slot}" for slot in range(count)]
        devices = tuple(Device(name=name, node=node, kind="cpu", memory_bytes=10**9) for name in names)
        nodes.append(Node(name=node, devices=devices, cores=4))
    return Cluster(nodes=tuple(nodes))


def _settings(scenario: Scenario) -> Settings:
    return Settings(
        policy=scenario.policy,
        numerics="equivalent" if scenario.splits else "exact",
        packing="interleaved" if scenario.splits else "auto",
        checkpoint_seconds=scenario.checkpoint_seconds,
        hang_seconds=20.0,
        sharing="local" if len(scenario.nodes) > 1 else "auto",
    )


def _terms(scenario: Scenario) -> Terms:
    return Terms(
        lengths={"train": scenario.length, **({"val": scenario.val} if scenario.val else {})},
        identities=_identities(scenario.length, scenario.val),
        per_epoch=scenario.per_epoch,
        block_size=scenario.block,
        row_seconds={f"m{number}": ms / 1000 for number, ms in enumerate(scenario.row_ms)},
    )


def _digest(directory: Path) -> str:
    """Return the hash of the journal without the path of its directory."""
    text = (directory / "journal.jsonl").read_text().replace(str(directory), "")
    return hashlib.sha256(text.encode()).hexdigest()


# ---- replacements for the real things


def _measuring(live: CountingMember, block: CountingBlock, *, groups: int, **how: Any) -> Iterator[None]:
    """See `argosy.training.choice.measure.measure_steps`."""
    for _ in range(3):
        live.spend(live.member.batch_size * live.row_seconds)
        yield
    return measured(live, groups)  # as `measure_steps` does


class _Reads:
    """Replaces `Rehearsal`: takes virtual time, and refuses one file in ten."""

    def __init__(self, world: World, copies: Mapping[str, StudyCopy]) -> None:
        self._world, self._files = world, tuple(copies)
        self._until = world.now + world.random.uniform(0.01, 0.5)

    def results(self) -> dict[str, RehearsalResult] | None:
        """See `Rehearsal.results`."""
        if self._world.now < self._until:
            return None
        problems = ("" if self._world.random.random() < 0.9 else "it raises" for _ in self._files)
        return {file: RehearsalResult(problem=problem) for file, problem in zip(self._files, problems, strict=True)}

    def close(self) -> None:
        """See `Rehearsal.close`."""


def _added(scenario: Scenario, copy: StudyCopy) -> Study:
    """Return the study of an added file, which holds only a number; the study has one or two members."""
    copy.check()
    number = int(copy.path.read_text())
    batch = scenario.batches[number % len(scenario.batches)]
    member = _member(100 + number % 3, 100 + number % 3, batch, max(scenario.epochs))
    members = [replace(member, name=f"{name}{number}") for name in ("a", "b")[: 1 + number % 2]]
    return replace(_study(scenario), members=members)


def _time_sums(world: World, rendezvous: str, rank: int, size: int, *, on: Any) -> tuple[float, float]:
    """See `argosy.training.programs.shard.parallel.time_sums`; one time in ten, the other ranks do not come."""
    if world.random.random() < 0.1:
        world.spend(20.0)
        return math.inf, math.inf
    world.spend(world.random.uniform(1e-3, 0.1))
    return 1e-5, 1e-3


_read_code = lru_cache(maxsize=1000)(CodeReader().read)
"""Cached, because most runs have the same factories of members, and nothing that these refer to changes."""


def _written(state: Any, path: Path) -> str:
    text = json.dumps(state).encode()
    with path.open("xb", buffering=0) as file:
        file.write(text)
    return hashlib.sha256(text).hexdigest()


def _loaded(path: Path, sha256: str | None = None, *, key: str = "") -> Any:
    checkpoint.check_file(path, sha256)
    return json.loads(path.read_bytes())


class _InTurn:
    """Replaces a pool of threads, whose order no seed decides: makes the calls in turn."""

    map: ClassVar[Callable[..., Any]] = staticmethod(map)

    def __enter__(self) -> "_InTurn":
        return self

    def __exit__(self, *error: Any) -> None:
        pass


@contextmanager
def _replaced(world: World, script: Script, disk: Disk) -> Iterator[None]:
    """Take time and random numbers from the world, use a disk that may lose its power, and let members only count."""

    loses_power = any(fault.kind == "power" for fault in script.scenario.faults)
    new = inbox.Inbox.new

    def calls(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def call(*given: Any, **named: Any) -> Any:
            script.writes(before=True)
            done = real(*given, **named)
            script.writes(before=False)
            return done

        return call

    def flush(descriptor: int) -> None:
        script.writes(before=True)
        world.spend(script.scenario.flush_seconds)
        if loses_power:
            disk.flushed(descriptor)
        script.writes(before=False)

    def syncfs(descriptor: int) -> int:
        script.writes(before=True)
        if loses_power:
            disk.all_flushed()
        script.writes(before=False)
        return 0

    replacements: list[tuple[Any, str, Any]] = [
        *((time, name, lambda: world.now) for name in ("monotonic", "perf_counter", "thread_time")),
        (time, "time", lambda: world.now + script.clock_seconds),
        (time, "sleep", world.spend),
        (time, "time_ns", lambda: int((world.now + script.clock_seconds) * 1e9)),
        (os, "urandom", world.random.randbytes),
        (os, "times", lambda: TIMES),
        (os, "getpid", lambda: PID),
        (socket, "gethostname", lambda: HOST),
        *((where, "versions", lambda: VERSIONS) for where in (records, choices)),
        (lock, "_start_time", lambda pid: BEGUN),
        (process_state, "_replaced_by_modules", lambda: PROCESS_STATE.replaced),
        *((os, name, calls(name)) for name in ("write", "rename")),
        *((os, name, flush) for name in ("fsync", "fdatasync")),
        # If the power is not lost, it only matters that files are flushed, not which.
        *([] if loses_power else [(settled, "flush", lambda path, how: how(-1))]),
        (settled, "_libc", SimpleNamespace(syncfs=syncfs)),
        (settled, "_dirty_bytes", int),
        (checkpoint, "_write", _written),
        (checkpoint, "load", _loaded),
        (resume, "ThreadPoolExecutor", _InTurn),
        (trials, "measure_steps", _measuring),
        (trials, "check_settings_kept", lambda member: nullcontext()),
        (rehearsal, "Solo", Counted),
        (program_instances, "Shard", CountingShard),
        (program_instances, "Group", SimpleNamespace(form=partial(Group.form, world))),
        (stepping, "POLL_SECONDS", 0.02),
        (trainer, "time_sums", partial(_time_sums, world)),
        (guard, "has_batch_norm", lambda model: False),
        (descriptors, "lowest_free", int),
        (guard, "wait_for_memory", lambda backend, patience: False),
        # Tracebacks contain the path of the code and its current line numbers.
        (guard, "trace_of", repr),
        (guard, "traceback", SimpleNamespace(format_exception=lambda error: [repr(error)], format_exc=str)),
        (additions.Rehearsal, "start", partial(_Reads, world)),
        *((where, "load_copy", partial(_added, script.scenario)) for where in (additions, positions)),
        (Tuner, "show", lambda tuner, directory, store: None),
        (api, "load_report", lambda *given, **named: REPORT),
        (api, "SearchReport", SimpleNamespace(of=lambda *given: REPORT)),
        (driving, "pausing_on_signal", lambda pause: nullcontext()),
        (Meter, "here", classmethod(lambda cls, *, gpus: cls({}))),
        (inbox, "POLL_SECONDS", 0.02),
        (inbox.Inbox, "new", lambda given: new(given) if script.asked else []),
        (CodeReader, "read", lambda code, value: _read_code(value)),
        # What earlier runs have cached must not influence this one, nor what kind of machine this is.
        (choices, "_processor", lambda: "processor"),
        (choices, "choices_folder", lambda: NOWHERE),
        (costs, "cache_folder", lambda: NOWHERE),
        (costs.ObservedRates, "refresh", lambda rates, profile, member, measured: profile),
        (costs.ObservedRates, "remember", lambda rates, *seen: None),
        (Cached, "load", lambda cache, key: None),
        (Cached, "save", lambda cache, key, value: None),
    ]
    found = [(where, what, vars(where)[what]) for where, what, _ in replacements]
    for where, what, other in replacements:
        setattr(where, what, other)
    try:
        yield
    finally:
        for where, what, earlier in found:
            setattr(where, what, earlier)
