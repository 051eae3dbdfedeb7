"""The boundary to members' own code: an error in a member's code ends this member and no other."""

import gc
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from argosy.disk.files import make_folder, open_append
from argosy.errors import DiskError, WorkerError
from argosy.errors.system import files_refused, resources_refused
from argosy.errors.traces import USER_ERRORS, trace_of
from argosy.protocol.events import MemberEnded, Saved
from argosy.protocol.trainer import OutOfMemory, SectionReport
from argosy.training.choice.measure import has_batch_norm
from argosy.training.device.devices import Backend, is_out_of_memory, is_poisoned, wait_for_memory
from argosy.training.device.moved import note_placement
from argosy.training.member.live import LiveMember
from argosy.training.trainer.descriptors import Descriptors

__all__ = ["Guard", "Poisoned"]

RETURN_SECONDS = 10.0
"""Seconds within which a device's memory is freed after its process was killed."""


class Poisoned(Exception):  # noqa: N818
    """This process can no longer use its device: no member's next step can be trusted, whichever member caused it."""

    def __init__(self, detail: str, members: tuple[str, ...] = ()) -> None:
        super().__init__(detail)
        self.members = members
        """Members of which one is certainly the cause; empty if the cause is unknown."""


class Drop(Protocol):
    """Drops a member; returns it if it was built but not assigned yet."""

    def __call__(self, name: str, *, failed: bool = False) -> LiveMember | None:
        """Drop the member; `failed` if its own code has raised."""


@dataclass(eq=False)
class Guard:
    """Runs members' own code for one trainer."""

    _device: str
    _backend: Backend
    _members: Path
    """Folder that contains the members' folders."""
    _emit: Callable[[Any], None]
    drop: Drop
    _save_best: Callable[[str], list[Saved]]
    """Writes a member's best weights if they are in no file; returns the events to be journaled."""
    give_back: Callable[[str], bool]
    """Frees memory of the device after it ran out: built members that do not train yet, then kept rows; returns whether there were any."""
    _files: Descriptors = field(default_factory=Descriptors, init=False)
    careful: bool = field(default=False, init=False)
    """Whether to wait for the device after each piece of members' code, so that errors can be attributed to it."""

    def __call__(self, name: str, action: Callable[[], Any], *, again: bool = False) -> Any:
        """Run a piece of a member's own code; if it raises, end the member and return None.

        With `again`, retry it after it ran out of memory, if a killed process has freed memory since.
        """
        try:
            done = self._files.counted(name, action)
            self.wait_if_careful()
        except (DiskError, WorkerError):
            raise
        except USER_ERRORS as error:  # boundary to a member's code
            if not self._files.exhausted_by(name):
                self.check_process((name,), error)
            if not is_out_of_memory(error):
                note_placement(error, self._backend.device)
                self._fail(name, "".join(traceback.format_exception(error)), trace_of(error))
                return None
            detail = str(error)
        else:
            if not self._files.exhausted_by(name):
                return done
            leak = (
                f"it has left {self._files.left[name]} files open, and its process can hardly open any more: close "
                "files after use"
            )
            self._fail(name, leak, leak)
            return None
        # Not in the handler, whose traceback keeps the action's tensors alive. Frames of torch hold errors in reference cycles.
        gc.collect()
        freed = self.give_back(detail)
        if again and (freed or wait_for_memory(self._backend, patience=RETURN_SECONDS)):
            return self(name, action, again=freed)
        self.drop_unfit(name, detail, freed=freed)
        return None

    def _fail(self, name: str, text: str, reason: str) -> None:
        """End a member after its own code has raised, or has leaked files."""
        leaked = self._files.exhausted_by(name)
        if leaked:
            self._files.make_room(name)
        self.log(name, text)
        self.end(name, "failed", reason)
        if leaked:
            self._files.make_room(name)

    def drop_unfit(self, name: str, detail: str, *, freed: bool = False) -> None:
        """Drop a member that does not fit; the driver decides where it continues, or with which micro-batches.

        `freed` tells the driver that kept rows of samples, or built members, used part of the memory and have been freed.
        """
        built = self.drop(name)
        batch_norm = built is not None and has_batch_norm(built.model)
        self._emit(OutOfMemory(member=name, detail=detail, batch_norm=batch_norm, freed=freed))

    def begin(self, *, careful: bool) -> None:
        """Begin pieces of members' code, carefully or not; raises Poisoned if the device is already unusable before a careful one."""
        self.careful = False
        if careful:
            self.check_device("earlier work, which cannot be attributed to one member")
        self.careful = careful

    def wait_if_careful(self) -> None:
        """Wait for the device, if careful; raises device errors of the piece of a member's code before this call."""
        if self.careful:
            self._backend.synchronize()

    def check_process(self, names: tuple[str, ...], error: BaseException) -> None:
        """Raise WorkerError if no file can be opened, or Poisoned if the device is unusable; `names` are the members whose code raised."""
        if (refused := files_refused()) is not None:
            raise resources_refused(refused, self._device) or error from error  # the limit is shared by all members
        subject = " and ".join(map(repr, names)) or "its trainer"
        self.check_device(f"{subject} raised {error!r}", names)

    def check_device(self, since: str, names: tuple[str, ...] = ()) -> None:
        """Raise Poisoned if the device is unusable; if careful, one of `names`, whose error is being handled, is the cause."""
        if is_poisoned(self._backend):
            detail = f"{self._device} is unusable in this process since {since}"
            certain = names if self.careful else ()
            for name in certain:
                self.log(name, f"{detail}\n{traceback.format_exc()}")
            raise Poisoned(detail, certain)

    def end(self, name: str, status: str, reason: str) -> None:
        """End a member after saving its best weights."""
        saved = self._save_best(name)
        self.drop(name, failed=status == "failed")
        self._emit(SectionReport(events=(*saved, MemberEnded(member=name, status=status, reason=reason))))

    def log(self, name: str, text: str) -> None:
        """Append to a member's ``log.txt``."""
        folder = self._members / name
        make_folder(folder)
        with open_append(folder / "log.txt") as log:
            log.write(f"{text.rstrip()}\n".encode(errors="backslashreplace"))
