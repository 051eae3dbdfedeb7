"""A member of an assignment: its files, and its position in the stream."""

from dataclasses import dataclass, replace

import torch

from argosy.protocol.events import MemberStarted, SectionEnded
from argosy.protocol.packs import Chosen, Packed
from argosy.protocol.trainer import StartMember
from argosy.stream.blocks import Place
from argosy.stream.schedule import Orders
from argosy.training.choice.measure import NUMPY_RANDOM, PRIVATE
from argosy.training.device.heap import outside_heap
from argosy.training.member import checkpoint
from argosy.training.member.changes import apply_changes
from argosy.training.member.files import Files
from argosy.training.member.live import LiveMember

__all__ = ["AssignedMember"]


@dataclass(slots=True)
class AssignedMember:
    """An assigned member. Its epochs are those of its blocks; only the driver counts them."""

    live: LiveMember
    files: Files
    orders: Orders
    sections: int
    """Sections per epoch."""
    stream_epoch: int
    """Stream epoch from which its batches are cut."""
    next_section: int
    """First section of the stream that it has not ended."""
    earlier: int
    """Samples of the sections that it has ended since it was assigned, minus those of the first section stepped on before that."""
    leads: bool
    """Whether this device saves and reports it: it is the member's only device, or the first one of a split member."""
    packed: Packed | None = None
    """Programs that stepped it and members like it before, to be restored."""
    chosen: tuple[Chosen, ...] = ()
    """Programs that earlier runs chose for it and members like it."""
    careful: tuple[int, int] | None = None
    """See `StartMember.careful`; None after this section has ended."""

    @classmethod
    def assign(
        cls, live: LiveMember, start: StartMember, files: Files, orders: Orders, *, sections: int
    ) -> "AssignedMember":
        """Assign a member that was just built."""
        if live.member.accumulate != start.accumulate:
            live.member = replace(live.member, accumulate=start.accumulate)
        live.private, live.randomness.uses_others = PRIVATE in start.notes, NUMPY_RANDOM in start.notes
        position = 0
        if start.checkpoint is not None:
            # Copied before the file replaces them: a clone takes changed hyper-parameters from here.
            built = [dict(group) for group in live.optimizer.param_groups]
            # The driver has compared the checksum. The tensors of the file are freed afterwards, and their copies stay.
            with outside_heap():
                position = live.load_state_dict(checkpoint.load(files.folder / start.checkpoint.file, key="model"))
            if start.changes is not None:
                live.forget_source()  # the file holds the source's
                apply_changes(live, start.changes, built)
        live.begin_epoch(orders, start.stream_epoch, position)
        first = start.stream_epoch * sections + live.section
        leads = start.group_rank is None or start.group_rank.rank == 0
        behind = -live.samples
        kept = start.packed, start.chosen, start.careful
        return cls(live, files, orders, sections, start.stream_epoch, first, behind, leads, *kept)

    @property
    def name(self) -> str:
        """Name of the member."""
        return self.live.member.name

    @property
    def stream_position(self) -> tuple[int, int]:
        """Position in the stream; it must be equal for all members of an instance."""
        return self.stream_epoch, self.next_section

    @property
    def samples(self) -> int:
        """Number of samples stepped on since it was assigned."""
        return self.earlier + self.live.samples

    def started(self, start: StartMember, device: str) -> MemberStarted:
        """Return the event that reports its start."""
        return MemberStarted(
            member=start.member,
            device=device,
            epoch=self.live.epoch,
            section=self.live.section,
            stream_epoch=self.stream_epoch,
            position=self.live.position + self.live.carried - self.live.again,
            threads=torch.get_num_threads(),
            mkldnn=bool(torch.backends.mkldnn.enabled),
            notes=start.notes,
            parameters=sum(parameter.numel() for parameter in self.live.model.parameters()),
        )

    def follow(self, place: Place) -> bool:
        """Follow the stream into another epoch; returns False for a block that this member has finished."""
        if place.epoch < self.stream_epoch or (place.split != "train" and place.section < self.next_section):
            return False
        if place.split == "train" and place.epoch > self.stream_epoch:
            self.stream_epoch = place.epoch
            self.live.begin_epoch(self.orders, place.epoch)
        return True

    def must_end_section(self, place: Place) -> bool:
        """Return whether this member must end the section that a block ends."""
        return place.section >= self.next_section and place.epoch == self.stream_epoch

    def wait(self) -> None:
        """Wait until the device has completed its steps."""
        _ = self.live.seconds

    def end_section(self, section: int, device: str) -> SectionEnded:
        """End a section of the stream and prepare the next; returns the event to be journaled."""
        live = self.live
        epoch, number, position = live.epoch, live.section, live.position
        train, val = live.train.digest, live.val.digest if live.val_cutter else None
        seconds, samples, best = live.seconds, live.samples, live.best.section
        metrics = live.end_section(self.sections)
        self.earlier += samples
        if live.section:
            live.begin_section()
        self.next_section = section + 1
        if self.careful is not None and (epoch, number) > self.careful:
            self.careful = None
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
            best=live.best.section != best,
            steps=live.steps,
        )
