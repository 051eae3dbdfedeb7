"""What one device does: takes blocks, steps the members it carries, saves them, and asks the driver at each epoch's end.

The trainer knows no sockets and no processes: launchers push blocks and commands in, and `emit` carries events out.
"""

import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from argosy.commands import Continue, Journaled, Measure, OutOfMemory, Pause, Paused, Progress, StartMember, Stop, Train
from argosy.errors import DiskError, MemberError, WorkerError
from argosy.events import Checkpoint, EpochEnded, MemberEnded, MemberStarted, Saved, Used
from argosy.settings import Settings
from argosy.stream.blocks import Block
from argosy.stream.gauges import TrainerGauge
from argosy.stream.schedule import Orders
from argosy.study import Study
from argosy.training import checkpoint
from argosy.training.copies import Copies
from argosy.training.devices import Backend, memory_returned, out_of_memory, poisoned
from argosy.training.heap import large_outside
from argosy.training.measure import NUMPY_RANDOM, PRIVATE, measure
from argosy.training.member import LiveMember, build

__all__ = ["Trainer"]

PROGRESS_SECONDS = 0.25
RETURN_SECONDS = 10.0
"""How long a device's memory may take to come back from a process that was killed."""


@dataclass(slots=True)
class _Aboard:
    """A member on this device, and what the trainer keeps about it."""

    live: LiveMember
    stream_epoch: int
    saved: float
    """When it was saved last (monotonic seconds)."""
    ended: EpochEnded | None = None
    """The epoch's end that the driver has not answered yet."""
    newest: Checkpoint | None = None
    kept: tuple[str, ...] = ()
    """File names of its newest checkpoints."""
    best: str | None = None
    unsettled: tuple[str, ...] = ()
    """File names of checkpoints that the driver may not have journaled yet: only when it has may older ones go."""


class Trainer:
    """One device. `ready` says whether it can take a block; commands may come at any time."""

    def __init__(
        self,
        study: Study,
        settings: Settings,
        directory: Path,
        *,
        name: str,
        backend: Backend,
        emit: Callable[[Any], None],
    ) -> None:
        self.study = study
        self.settings = settings
        self.directory = directory
        self.name = name
        self.backend = backend
        self.copies = Copies(backend, study.data.on_device)
        self.emit = emit
        self.orders: Orders | None = None
        self.leg = -1
        """The newest that the driver spoke of."""
        self.first: Block | None = None
        """A leg's first block, kept until the driver says what it is for: it may be here sooner than the driver's word."""
        self.to_measure: Measure | None = None
        self.built: dict[str, LiveMember] = {}
        self.aboard: dict[str, _Aboard] = {}
        self.gauge = TrainerGauge()
        self.blocks = 0
        self.samples: dict[str, int] = {}
        self.pausing = False
        self._told = 0.0
        self.last_split = "val" if study.data.has_val else "train"

    @property
    def ready(self) -> bool:
        """Whether the next block may come: nobody waits for the driver.

        A trainer without members takes blocks as well, and drops them: the ring waits for every reader.
        """
        return self.first is None and not any(member.ended for member in self.aboard.values())

    # ---- commands

    def know(self, lengths: Mapping[str, int]) -> None:
        """Learn how many samples each split has."""
        self.orders = Orders(self.study.seed, lengths)

    def obey(self, command: Any) -> None:
        """Do what the driver says."""
        if isinstance(command, Measure):
            self.to_measure = command
            self._follow(command.leg)
        elif isinstance(command, Train):
            self._start(command)
        elif isinstance(command, Continue | Stop):
            self._settle(command)
        elif isinstance(command, Journaled):
            aboard = self.aboard.get(command.member)
            if aboard is not None and command.file in aboard.unsettled:
                self._tidy(command.member, aboard, command.file, best=False)
        elif isinstance(command, Pause):
            self._pause()

    def used(self, cpu_seconds: float) -> Used:
        """The last word."""
        return Used(worker=self.name, cpu_seconds=cpu_seconds, gauge=asdict(self.gauge))

    # ---- blocks

    def take(self, block: Block) -> None:
        """Measure on the block, or run all steps that it completes; one of a later leg is kept, of an earlier one dropped."""
        self.blocks += 1
        self._sort(block)

    def _sort(self, block: Block) -> None:
        if block.place.leg > self.leg:
            self.first = block
        elif block.place.leg == self.leg:
            self._use(block)

    def _follow(self, leg: int) -> None:
        """Use the blocks of this leg from here on; its first one may have come before."""
        self.leg, first, self.first = leg, self.first, None
        if first is not None:
            self._sort(first)

    def _use(self, block: Block) -> None:
        if self.to_measure is None:
            self._train_on(self._on_device(block))
        else:
            command, self.to_measure, self.first = self.to_measure, None, block
            # It is there while the members' kernels are made.
            with large_outside():
                on_device = self._on_device(block)
            self._measure(command, on_device)

    def _on_device(self, block: Block) -> Block:
        self.backend.activate()
        self.copies.release_done()
        return self.copies.start(block)

    def _measure(self, command: Measure, block: Block) -> None:
        # All are built before the first is measured: weights would lie scattered over the memory that steps take and give
        # back, and a gap between two of them serves only tensors that fit into it.
        for name in command.members:
            live = self._guarded(name, partial(self._build, name), again=True)
            if live is not None:
                live.member = replace(live.member, accumulate=command.accumulate.get(name, live.member.accumulate))
                self.built[name] = live
        for name in command.members:
            if name in self.built:
                steps = partial(
                    measure,
                    self.built[name],
                    block,
                    self.backend,
                    thorough=command.thorough,
                    groups=command.groups,
                )
                measured = self._guarded(name, steps, again=True)
                if measured is not None:
                    self.emit(measured)

    def _train_on(self, block: Block) -> None:
        started, place = time.perf_counter(), block.place
        before = self.gauge.samples
        for name, aboard in list(self.aboard.items()):
            if aboard.stream_epoch == place.epoch:
                self._guarded(name, partial(self._advance, name, aboard, block))
        if block.touched:
            raise MemberError(self._somebody_wrote())
        elapsed = time.perf_counter() - started
        self.gauge.busy_seconds += elapsed
        if self.gauge.samples > before:
            self.gauge.rows += place.rows
            self.gauge.training_seconds += elapsed
        self._tell()

    def _advance(self, name: str, aboard: _Aboard, block: Block) -> None:
        live, place = aboard.live, block.place
        if place.split == "train":
            samples = live.train_on(block)
            self.samples[name] = self.samples.get(name, 0) + samples
            self.gauge.samples += samples
            if live.diverged:
                self._end(name, "diverged", f"its training loss is not a number after {live.steps} steps")
                return
        else:
            live.evaluate_on(block)
        if place.last and place.split == self.last_split:
            self._end_epoch(name, aboard)
        elif time.monotonic() - aboard.saved > self.settings.checkpoint_seconds:
            self._save_within(name, aboard)

    # ---- members

    def _build(self, name: str) -> LiveMember:
        member = self.study.member(name)
        return build(member, self.backend.device, study_seed=self.study.seed, objective=self.study.objective)

    def _start(self, command: Train) -> None:
        for start in command.members:
            self._guarded(start.member, partial(self._board, start), again=True)
        self.built.clear()
        self.to_measure = None
        self._follow(command.leg)

    def _board(self, start: StartMember) -> None:
        assert self.orders is not None
        live = self.built.pop(start.member, None) or self._build(start.member)
        live.member = replace(live.member, accumulate=start.accumulate)
        live.private, live.randomness.uses_others = PRIVATE in start.notes, NUMPY_RANDOM in start.notes
        folder, position = self._folder(start.member), 0
        folder.mkdir(parents=True, exist_ok=True)
        for note in start.notes:
            self._log(start.member, note)
        if start.checkpoint is not None:
            path = folder / start.checkpoint.file
            # The driver has compared its sum. The file's own tensors go again; what is copied from them stays.
            with large_outside():
                position = live.load_state_dict(checkpoint.load(path))
        live.begin_epoch(self.orders, start.stream_epoch, position)
        kept = (start.checkpoint.file,) if start.checkpoint else ()
        self.aboard[start.member] = _Aboard(
            live, start.stream_epoch, time.monotonic(), newest=start.checkpoint, kept=kept, best=start.best
        )
        self.emit(
            MemberStarted(
                member=start.member,
                device=self.name,
                epoch=live.epoch,
                stream_epoch=start.stream_epoch,
                position=position,
                threads=torch.get_num_threads(),
                mkldnn=bool(torch.backends.mkldnn.enabled),
                notes=start.notes,
            )
        )

    def _end_epoch(self, name: str, aboard: _Aboard) -> None:
        live = aboard.live
        train, val, seconds = live.train, live.val if live.val_cutter else None, live.seconds
        metrics = live.end_epoch()
        aboard.ended = EpochEnded(
            member=name,
            device=self.name,
            epoch=live.epoch - 1,
            stream_epoch=aboard.stream_epoch,
            metrics=metrics,
            seconds=seconds,
            samples=train.rows,
            digest=train.digest,
            val_digest=val.digest if val else None,
            checkpoint=self._save(name, aboard),
        )
        self.emit(aboard.ended)

    def _settle(self, command: Continue | Stop) -> None:
        aboard = self.aboard.get(command.member)
        if aboard is None or aboard.ended is None:
            return
        self._tidy(command.member, aboard, aboard.ended.checkpoint.file, best=command.best)
        aboard.ended = None
        if isinstance(command, Stop) or self.pausing:
            del self.aboard[command.member]
            self._let_go()
            return
        assert self.orders is not None
        aboard.stream_epoch += 1
        aboard.live.begin_epoch(self.orders, aboard.stream_epoch)

    def _pause(self) -> None:
        self.pausing = True
        for name, aboard in list(self.aboard.items()):
            # A member at its epoch's end is saved already, and leaves when the driver has answered it.
            if aboard.ended is None:
                self._guarded(name, partial(self._save_within, name, aboard))
                self.aboard.pop(name, None)
        self._let_go()

    def _let_go(self) -> None:
        if self.pausing and not self.aboard:
            self.pausing, self.first, self.to_measure = False, None, None
            self.emit(Paused())

    def _end(self, name: str, status: str, reason: str) -> None:
        self.aboard.pop(name, None)
        self.emit(MemberEnded(member=name, status=status, reason=reason))

    def _guarded(self, name: str, action: Callable[[], Any], *, again: bool = False) -> Any:
        """Run a piece of a member's own code; what it raises ends that member and nobody else.

        Tried `again` where it ran out of memory that a killed process gave back only then.
        """
        try:
            return action()
        except DiskError:
            raise
        except Exception as error:  # boundary between a member's code and ours
            if poisoned(self.backend):
                words = (
                    f"{self.name} is of no more use to its process since {name!r}, or another on it, raised {error!r}"
                )
                raise WorkerError(words) from error
            if again and out_of_memory(error) and memory_returned(self.backend, patience=RETURN_SECONDS):
                return self._guarded(name, action)
            self.built.pop(name, None)
            if out_of_memory(error):
                self.aboard.pop(name, None)
                self.emit(OutOfMemory(member=name, detail=str(error)))
                return None
            trace = "".join(traceback.format_exception(error))
            self._log(name, trace)
            self._end(name, "failed", trace)
            return None

    # ---- files

    def _folder(self, name: str) -> Path:
        return self.directory / "members" / name

    def _log(self, name: str, text: str) -> None:
        self._folder(name).mkdir(parents=True, exist_ok=True)
        with (self._folder(name) / "log.txt").open("a") as log:
            log.write(text.rstrip() + "\n")

    def _save(self, name: str, aboard: _Aboard) -> Checkpoint:
        live = aboard.live
        state = live.state_dict()
        newest = aboard.newest
        if newest is not None and (newest.epoch, newest.position) == (live.epoch, state["position"]):
            # Nothing has moved since; a journaled file is never written again.
            return newest
        file = f"e{live.epoch:04d}-s{live.steps:07d}.pt"
        path = self._folder(name) / file
        digest = checkpoint.save(state, path)
        if not aboard.kept:
            # The first file proves that all later ones can be opened.
            checkpoint.load(path, digest)
        aboard.saved = time.monotonic()
        aboard.unsettled = (*aboard.unsettled, file)
        aboard.newest = Checkpoint(file=file, sha256=digest, epoch=live.epoch, position=state["position"])
        return aboard.newest

    def _save_within(self, name: str, aboard: _Aboard) -> None:
        saved = self._save(name, aboard)
        self.emit(Saved(member=name, stream_epoch=aboard.stream_epoch, checkpoint=saved))

    def _tidy(self, name: str, aboard: _Aboard, file: str, *, best: bool) -> None:
        """Now that a file is journaled, move the links, and delete older ones but the one before it and the best."""
        folder = self._folder(name)
        checkpoint.link(folder / file, "last.pt")
        if best:
            checkpoint.link(folder / file, "best.pt")
            aboard.best = file
        aboard.kept = (*(kept for kept in aboard.kept[-1:] if kept != file), file)
        if file in aboard.unsettled:
            aboard.unsettled = aboard.unsettled[aboard.unsettled.index(file) + 1 :]
        checkpoint.keep_newest(folder, {*aboard.kept, *aboard.unsettled, aboard.best or file})

    # ---- words

    def waited(self, seconds: float) -> None:
        """Note a time without a block, and give a sign of life."""
        self.gauge.waiting_seconds += seconds
        self._tell()

    def _tell(self) -> None:
        if time.monotonic() - self._told > PROGRESS_SECONDS:
            self._told = time.monotonic()
            losses = {name: a.live.train.means("").get("loss", float("nan")) for name, a in self.aboard.items()}
            gauge = asdict(self.gauge)
            self.emit(Progress(blocks=self.blocks, samples=dict(self.samples), losses=losses, gauge=gauge))

    def _somebody_wrote(self) -> str:
        return (
            f"a member on {self.name} ({', '.join(self.aboard)}) wrote into its input, which it shares with the others, "
            "though it did not on its first batches. Clone the input before changing it; the run stops at the last "
            "checkpoints, which are sound."
        )
