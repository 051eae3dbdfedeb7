"""The trainer of one device: takes blocks, steps the members of its assignment, saves them, and reports each section in one message.

Contract. A trainer does not use the study, sockets or processes: members arrive in messages, launchers push blocks and commands in,
`emit` sends messages out, and `listen` returns whether a command is pending. It is polled between steps, so a command waits for at most
one step. `Assign` assigns and unassigns members. Blocks carry the number of their assignment, and the first block of a later assignment
is kept until the driver has announced its members. A member's epochs are those of the blocks that it receives; only the driver counts them.
"""

import math
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle

from argosy.errors import MemberError
from argosy.errors.traces import register_sources
from argosy.protocol.events import Event, MemberRested, MemberStarted, Saved, ShardsRead, Used
from argosy.protocol.trainer import (
    Assign,
    Enlist,
    Journaled,
    Measure,
    Pause,
    Paused,
    Progress,
    Save,
    SectionReport,
    StartMember,
    SumsTimed,
    TimeSums,
    Unassign,
)
from argosy.settings import Settings
from argosy.stream.blocks import Block, Layout, Place
from argosy.stream.gauges import TrainerGauge
from argosy.stream.heartbeat import Heartbeat
from argosy.stream.imported import check_imports
from argosy.stream.padding import batch_form
from argosy.stream.schedule import Orders
from argosy.study import Member, Terms
from argosy.training.choice.fusion_group import Kind
from argosy.training.device.copies import DeviceCopies
from argosy.training.device.devices import Backend, collect_cycles, is_out_of_memory, no_room
from argosy.training.device.heap import outside_heap
from argosy.training.member.building import build_member
from argosy.training.member.files import Files, Saving
from argosy.training.member.live import LiveMember
from argosy.training.member.outlook import TrainingOutlook, set_outlook
from argosy.training.programs.shard.ends import sum_device
from argosy.training.programs.shard.parallel import time_sums
from argosy.training.trainer.assigned import AssignedMember
from argosy.training.trainer.guard import Guard
from argosy.training.trainer.program_choice import ProgramChoice, weight_bytes
from argosy.training.trainer.program_instances import ProgramInstance
from argosy.training.trainer.stepping import Stepping
from argosy.training.trainer.trials import Trials

__all__ = ["Trainer"]

PROGRESS_SECONDS = 0.25
MAX_BLOCKS_AHEAD = 2
"""Most blocks whose steps may be uncompleted when the device gets another one; each of them takes device memory."""


class Trainer:
    """Trains members on one device. It accepts blocks when it is `ready`, and commands at any time."""

    def __init__(
        self,
        terms: Terms,
        settings: Settings,
        directory: Path,
        *,
        name: str,
        backend: Backend,
        emit: Callable[[Any], None],
        listen: Callable[[], bool] = lambda: False,
        heartbeat: Heartbeat | None = None,
    ) -> None:
        self.terms = terms
        self.settings = settings
        self.directory = directory
        self.name = name
        self.backend = backend
        self.copies: DeviceCopies = DeviceCopies(backend, terms.on_device)
        self.emit = emit
        self.listen = listen
        """Returns whether a command is pending."""
        self.heartbeat: Heartbeat = heartbeat or Heartbeat.private()
        self.known: dict[str, Member] = {}
        self.orders: Orders | None = None
        self.validated: int = 0
        """Number of samples that members validate when they are measured: 0 unless those of validation have the layout of training samples."""
        self.assignment: int = -1
        """Number of the latest assignment that the driver has announced."""
        self._shards_read: ShardsRead | None = None
        """Event for the newest block with shard marks, reported when members are saved."""
        self.kept: list[tuple[Block, int]] = []
        """Blocks of assignments that are not announced yet, each with the assignment's number; also blocks used for measurements."""
        self.at_hand: Block | None = None
        """The block whose steps a command has interrupted."""
        folder = directory / "members"
        self.guard: Guard = Guard(name, backend, folder, emit, self._drop, self._save_best, self._give_back)
        self.trials: Trials = Trials(self._build, self.guard, emit, listen, self.heartbeat)
        self.assigned: dict[str, AssignedMember] = {}
        self.instances: list[ProgramInstance] = []
        """Instances in the order in which they step; each assigned member is in one of them."""
        self.gauge: TrainerGauge = TrainerGauge()
        self._noted: Place | None = None
        """The newest block whose rows are counted."""
        self.last_split = "val" if terms.has_val else "train"
        self._reported_at = 0.0
        self.saving: Saving = Saving(settings.checkpoint_seconds)
        self.exact: bool = settings.numerics == "exact"
        allowed = settings.packing == "auto" and not self.exact
        kinds: tuple[Kind, ...] = ("plain", "graphed", "compiled") if settings.compile else ("plain", "graphed")
        self.program_choice: ProgramChoice = ProgramChoice(
            *(name, self.instances, emit, self._save, self.heartbeat, self.guard.check_device),
            allowed=allowed,
            kinds=kinds,
        )
        self.stepping: Stepping = Stepping(
            *(self.instances, self.assigned, self.program_choice, self.guard, self.heartbeat, emit),
            wanted=self._wanted,
        )

    @property
    def ready(self) -> bool:
        """Whether the trainer can take the next block."""
        return not self.kept and self.at_hand is None and not self.behind

    @property
    def behind(self) -> bool:
        """Whether the device must complete steps before it gets another block."""
        return self.copies.ahead > MAX_BLOCKS_AHEAD

    @property
    def turns_left(self) -> int:
        """Number of members' turns that the device has not completed, if it is `behind`; else 0."""
        return sum(assigned.live.clock.poll() for assigned in self.assigned.values()) if self.behind else 0

    # ---- commands

    def set_splits(self, lengths: Mapping[str, int], layouts: Mapping[str, Layout], shards: Sequence[int] = ()) -> None:
        """Set the number of samples and the layout of each split, and the shards that determine the order of training samples."""
        by_length = batch_form(layouts["train"].tree) is not None
        self.orders = Orders(self.terms.seed, lengths, shards=shards, by_length=by_length)
        self.validated = lengths["val"] if layouts["train"] == layouts.get("val") else 0

    def enlist(self, members: Iterable[Member]) -> None:
        """Set the definitions of members; copies built earlier under these names are dropped."""
        for member in members:
            self.known[member.name] = member
            self.trials.replaced(member.name)

    def _build(self, name: str) -> LiveMember:
        terms, member = self.terms, self.known[name]
        stop = terms.stop if member.stop is None else member.stop
        known = None if self.orders is None else TrainingOutlook.of(member, stop, self.orders.lengths)
        with set_outlook(known):
            live = build_member(
                member,
                self.backend,
                study_seed=terms.seed,
                objective=terms.objective,
                mode=terms.mode,
                exact=self.exact,
                answering=terms.answers,
                snapshot_bytes=terms.snapshot_bytes,
            )
        if self.orders is not None:
            live.epoch_samples = self.orders.lengths["train"] if member.subset is None else len(member.subset)
        return live

    def obey(self, command: Any) -> None:
        """Carry out a command of the driver."""
        if isinstance(command, Assign):
            self._assign(command)
        elif isinstance(command, Enlist):
            register_sources(command.sources)
            sys.path += [folder for folder in command.path if folder not in sys.path]
            members = cloudpickle.loads(command.definitions)
            if not self.known:
                # Checked only the first time, because members of this trainer may change their modules later.
                check_imports(members, command.imported)
            self.enlist(members)
        elif isinstance(command, Measure):
            self.trials.want(command)
            if command.assignment is not None:
                self._follow(command.assignment)
        elif isinstance(command, TimeSums):
            on = sum_device(self.backend.device)
            short, long = time_sums(command.rendezvous, command.rank, command.size, on=on)
            self.emit(SumsTimed(short_seconds=short, long_seconds=long))
        elif isinstance(command, Unassign):
            self._leave([name for name in command.members if name in self.assigned])
        elif isinstance(command, Save):
            self.saving.wanted = True
        elif isinstance(command, Journaled):
            for name, file in command.files.items():
                if name in self.assigned:
                    self.assigned[name].files.kept.note_journaled(file)
        elif isinstance(command, Pause):
            self._leave(list(self.assigned))
            # Keep the first blocks of a new leg, which may already have sent them and will not send them again.
            self.kept = [kept for kept in self.kept if kept[1] > self.assignment]
            self.at_hand = None
            self.trials.forget()
            self.emit(Paused())

    def used(self, cpu_seconds: float) -> Used:
        """Return the trainer's last message."""
        return Used(worker=self.name, cpu_seconds=cpu_seconds, gauge=self.gauge.to_json())

    # ---- blocks

    def take(self, block: Block, assignment: int) -> None:
        """Run all steps of a block, until a command is pending; keep blocks of later assignments, and drop those of earlier ones."""
        # Behind a kept block the later ones are kept too, so that they stay in order.
        if assignment > self.assignment or self.kept:
            self.kept.append((block, assignment))
        elif assignment == self.assignment:
            self._use(block)

    def go_on(self) -> bool:
        """Resume work that a command interrupted; returns False if there is none."""
        block, self.at_hand = self.at_hand, None
        if block is None:
            if self.trials.left:
                self._follow(self.assignment)
                return True
            return False
        if (
            block.place.split == "train"
            and self.trials.beside
            and not self.trials.measure(block, validated=self.validated)
        ):
            self.at_hand = block
        else:
            self._train_on(block)
        return True

    def _follow(self, assignment: int) -> None:
        """Switch to this assignment. Its first block may already be queued."""
        self.assignment = assignment
        kept, self.kept = self.kept, []
        for block, number in kept:
            if number > assignment or self.kept:
                self.kept.append((block, number))
            elif number == assignment:
                self._use(block)

    def _use(self, block: Block) -> None:
        if block.marks:
            self._shards_read = ShardsRead(epoch=block.place.epoch, start=block.place.start, marks=block.marks)
        if self.trials.wanted is None or block.place.split != "train":
            self._train_on(self._on_device(block))
            return
        # Allocated outside the heap, because the block stays while kernels for the members are made.
        with outside_heap():
            on_device = self._on_device(block)
        if self.trials.beside:
            self.at_hand = on_device
            self.go_on()
        else:
            self.trials.measure(on_device, validated=self.validated)
            self.kept.append((block, self.assignment))

    def _on_device(self, block: Block) -> Block:
        """Copy a block to the device, and drop the largest members until it fits."""
        self.backend.activate()
        self.copies.release_done()
        emptied = False
        while True:
            try:
                return self.copies.start(block)
            except Exception as error:  # `Data.on_device` may run out of memory too
                if not is_out_of_memory(error):
                    raise
                if emptied and not self.assigned:
                    raise no_room(
                        self.name, f"a block of {block.place.rows} samples", "lower --block-size ", error
                    ) from error
                detail = str(error)
            # Not in the handler, whose traceback keeps the copies alive.
            if self._give_back(detail):
                continue
            if emptied:
                largest = max(self.assigned, key=lambda name: weight_bytes(self.assigned[name].live))
                self.guard.drop_unfit(largest, detail)
            self.backend.empty_cache()
            emptied = True

    def _give_back(self, detail: str) -> bool:
        return self.trials.give_back() or self.copies.resident.give_back(detail)

    def _train_on(self, block: Block) -> None:
        started, place = time.perf_counter(), block.place
        self.guard.begin(careful=any(assigned.careful is not None for assigned in self.assigned.values()))
        undone = not self.stepping.through(block)
        self.copies.stepped()
        if block.touched:
            raise MemberError(
                f"a member on {self.name} ({', '.join(self.assigned)}) wrote into its input, which it shares with "
                "other members, although it did not on its first batches. Clone the input before changing it. The "
                "run stops at the last checkpoints, which are sound."
            )
        waited = self.stepping.waited()
        elapsed = time.perf_counter() - started - waited
        self.gauge.waiting_seconds += waited
        self.gauge.busy_seconds += elapsed
        self.gauge.rows += 0 if place is self._noted else place.rows
        self._noted = place
        if undone:
            self.at_hand = block
        if not undone and place.last and place.split == self.last_split:
            self._end_section(block)
        elif self._must_save():
            self.emit(SectionReport(events=tuple(self._save(list(self.assigned)))))
        self._report_progress()

    def _wanted(self) -> bool:
        """Return whether there is something to do between two steps."""
        return self.listen() or self._must_save()

    # ---- sections

    def _end_section(self, block: Block) -> None:
        section = block.place.section
        events: list[Event] = []
        answers: dict[str, tuple[int, bytes]] = {}
        for name, assigned in list(self.assigned.items()):
            if assigned.must_end_section(block.place):
                # Reading the sums would wait as well, but hangs are only detected while the trainer is marked busy.
                with self.heartbeat.busy("waiting for its device"):
                    assigned.wait()
                    diverged = self.stepping.end_if_diverged(assigned, wait=True)
                if diverged:
                    continue
                ended = self.guard(name, partial(assigned.end_section, section, self.name))
                if ended is not None and assigned.leads:
                    events.append(ended)
                    if assigned.live.answers is not None:
                        answers[name] = assigned.live.answers
        if self.orders is not None:
            # Only now is it known how much memory a section of steps takes.
            self.copies.resident.allow(self.orders.lengths)
        due = self.saving.due
        # A member without its own file gets one, because its best weights could otherwise not be saved if it fails.
        unsaved = [name for name, one in self.assigned.items() if due or (one.leads and not one.files.own)]
        if unsaved:
            events += self._save(unsaved)
        if due:
            self.saving.wanted = False
        if self.assigned or events:
            # An empty assignment does not report: the driver does not wait for it, and could take a late report for one of the next leg.
            self.emit(SectionReport(events=tuple(events), section=section, answers=answers))

    # ---- members

    def _assign(self, command: Assign) -> None:
        self.guard.begin(careful=any(start.careful is not None for start in command.start))
        self._leave([name for name in command.leave if name in self.assigned])
        collect_cycles(self.backend)
        started: list[Event] = []
        for start in command.start:
            began = self.guard(start.member, partial(self._start, start), again=True)
            if began is not None and self.assigned[start.member].leads:
                started.append(began)
        # What was built for this assignment is assigned by now, or not wanted any more.
        self.trials.forget(assignment_of_its_own=True)
        self.copies.member_assigned()
        # A block at hand is of an earlier assignment, and no member has steps left on it: a rank does not wait until the first rank has saved.
        self.at_hand = None
        if started:
            self.emit(SectionReport(events=tuple(started)))
        self._follow(command.assignment)

    def _start(self, start: StartMember) -> MemberStarted:
        assert self.orders is not None
        live = self.trials.take(start.member)
        for note in start.notes:
            self.guard.log(start.member, note)
        files = Files(self.directory / "members" / start.member, start.checkpoint, inherited=start.changes is not None)
        sections = self.terms.validations_per_epoch
        assigned = AssignedMember.assign(live, start, files, self.orders, sections=sections)
        self.assigned[start.member] = assigned
        if start.group_rank is None:
            self.instances.append(ProgramInstance.of([assigned]))
            self.program_choice.note_assigned()
        else:
            self.instances.append(ProgramInstance.of_rank(assigned, start.group_rank))
        return assigned.started(start, self.name)

    def _leave(self, names: list[str]) -> None:
        """Save members at their current position, and unassign them."""
        if not names:
            return
        rested = tuple(MemberRested(member=name, reason="") for name in names if self.assigned[name].leads)
        saved = self._save(names, carried=True)
        self._let_go(names)
        self.emit(SectionReport(events=(*saved, *rested)))

    def _drop(self, name: str, *, failed: bool = False) -> LiveMember | None:
        if failed:
            self.program_choice.failed(name)
        self._let_go([name])
        return self.trials.built.pop(name, None)

    def _let_go(self, names: Iterable[str]) -> None:
        self.program_choice.remove_members([name for name in names if self.assigned.pop(name, None) is not None])

    # ---- files

    def _save(self, names: Collection[str], *, carried: bool = False) -> list[Event]:
        """Save these members, and flush their files to the disk together."""
        all_members = self.assigned.keys() <= set(names)
        with self.heartbeat.busy("saving members", opaque=True), self.saving.timed(all_members=all_members):
            drafts = {}
            for assigned in [self.assigned[name] for name in names if self.assigned[name].leads]:
                name = assigned.name
                draft = self.guard(name, partial(assigned.files.draft, assigned.live, carried=carried))
                if draft is not None:
                    drafts[name] = (assigned.files, draft)
            written = {name: self.guard(name, save) for name, save in self.saving.write(drafts)}
        seconds = round(self.saving.seconds / max(len(written), 1), 5)
        events: list[Event] = [
            Saved(member=n, checkpoint=saved, seconds=seconds) for n, saved in written.items() if saved is not None
        ]
        if events and self._shards_read is not None:
            events.insert(0, self._shards_read)
            self._shards_read = None
        return events

    def _save_best(self, name: str) -> list[Saved]:
        """Save the best weights of a member that ends."""
        assigned, started = self.assigned.get(name), time.monotonic()
        if assigned is None or not assigned.leads:
            return []
        with self.heartbeat.busy("saving members", opaque=True):
            saved = assigned.files.save_best(assigned.live)
        seconds = round(time.monotonic() - started, 5)
        return [] if saved is None else [Saved(member=name, checkpoint=saved, seconds=seconds)]

    def _must_save(self) -> bool:
        """Return whether a crash now would repeat more than `checkpoint_seconds` of training."""
        return bool(self.assigned) and self.saving.overdue

    # ---- messages

    def waited(self, seconds: float) -> None:
        """Record time spent without a block, during which the device may have worked on earlier ones, and send progress."""
        if self.copies.ahead:
            self.gauge.busy_seconds += seconds
        else:
            self.gauge.waiting_seconds += seconds
        self._report_progress()

    def _report_progress(self) -> None:
        if time.monotonic() - self._reported_at > PROGRESS_SECONDS:
            self._reported_at = time.monotonic()
            means = {name: assigned.live.train.mean_by_now("loss") for name, assigned in self.assigned.items()}
            losses = {name: mean for name, mean in means.items() if not math.isnan(mean)}
            samples = {name: assigned.samples for name, assigned in self.assigned.items() if assigned.leads}
            self.emit(Progress(samples=samples, losses=losses, gauge=self.gauge.to_json()))
