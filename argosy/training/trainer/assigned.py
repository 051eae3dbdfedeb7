"""A member of an assignment: its files, and where in the stream it is."""

from dataclasses import dataclass, replace

import torch

from argosy.protocol.events import MemberStarted, SectionEnded
from argosy.protocol.packs import Packed
from argosy.protocol.trainer import StartMember
from argosy.stream.blocks import Place
from argosy.stream.schedule import Orders
from argosy.training.choice.measure import NUMPY_RANDOM, PRIVATE
from argosy.training.device.heap import large_outside
from argosy.training.member import checkpoint
from argosy.training.member.changes import change
from argosy.training.member.files import Files
from argosy.training.member.live import LiveMember

__all__ = ["AssignedMember"]


@dataclass(slots=True)
class AssignedMember:
    """Its epochs are those of the blocks that it is given: the driver alone counts them."""

    live: LiveMember
    files: Files
    orders: Orders
    sections: int
    """Of an epoch."""
    stream_epoch: int
    """That its batches are cut from."""
    next_section: int
    """Of the stream: the first whose end it has not seen."""
    earlier: int
    """Samples of the sections that it has ended aboard, less those of its first one that it had before."""
    leads: bool
    """Whether this device saves it and speaks of it: alone, or as the first of those that carry it."""
    packed: Packed | None = None
    """Which programs are to step it and its like, as they did before it came aboard."""

    @classmethod
    def board(
        cls, live: LiveMember, start: StartMember, files: Files, orders: Orders, *, sections: int
    ) -> "AssignedMember":
        """A member that was just built, where it goes on."""
        live.member = replace(live.member, accumulate=start.accumulate)
        live.private, live.randomness.uses_others = PRIVATE in start.notes, NUMPY_RANDOM in start.notes
        position = 0
        if start.checkpoint is not None:
            built = [dict(group) for group in live.optimizer.param_groups]
            # The driver has compared its sum. The file's own tensors go again; what is copied from them stays.
            with large_outside():
                position = live.load_state_dict(checkpoint.load(files.folder / start.checkpoint.file))
            if start.changes is not None:
                live.best = None  # that of the file is the source's
                change(live, start.changes, built)
        live.begin_epoch(orders, start.stream_epoch, position)
        first = start.stream_epoch * sections + live.section
        leads = start.seat is None or start.seat.rank == 0
        behind = -live.samples
        return cls(live, files, orders, sections, start.stream_epoch, first, behind, leads, start.packed)

    @property
    def name(self) -> str:
        """The member's."""
        return self.live.member.name

    @property
    def stands(self) -> tuple[int, int]:
        """Where in the stream: members that go on together must stand at one place."""
        return self.stream_epoch, self.next_section

    @property
    def samples(self) -> int:
        """That it was stepped on since it came aboard."""
        return self.earlier + self.live.samples

    def started(self, start: StartMember, device: str) -> MemberStarted:
        """What is journaled of that."""
        return MemberStarted(
            member=start.member,
            device=device,
            epoch=self.live.epoch,
            section=self.live.section,
            stream_epoch=self.stream_epoch,
            position=self.live.position + self.live.carried,
            threads=torch.get_num_threads(),
            mkldnn=bool(torch.backends.mkldnn.enabled),
            notes=start.notes,
        )

    def follow(self, place: Place) -> bool:
        """Go with the stream into another epoch; False for a block that this member has behind it."""
        if place.epoch < self.stream_epoch or (place.split != "train" and place.section < self.next_section):
            return False
        if place.split == "train" and place.epoch > self.stream_epoch:
            self.stream_epoch = place.epoch
            self.live.begin_epoch(self.orders, place.epoch)
        return True

    def ends(self, place: Place) -> bool:
        """Whether the section that a block ends is one of this member's."""
        return place.section >= self.next_section and place.epoch == self.stream_epoch

    def end_section(self, section: int, device: str) -> SectionEnded:
        """What it has to say at the end of a section of the stream; it is ready for the next."""
        live = self.live
        epoch, number, position = live.epoch, live.section, live.position
        train, val = live.train.digest, live.val.digest if live.val_cutter else None
        seconds, samples, best = live.seconds, live.samples, live.best
        metrics = live.end_section(self.sections)
        self.earlier += samples
        if live.section:
            live.begin_section()
        self.next_section = section + 1
        return SectionEnded(
            member=self.name,
            device=device,
            epoch=epoch,
            section=number,
            stream_epoch=self.stream_epoch,
            position=position,
            metrics=metrics,
            epochs=epoch + (number + 1) / self.sections,
            seconds=seconds,
            samples=samples,
            digest=train,
            val_digest=val,
            best=live.best != best,
            steps=live.steps,
        )
