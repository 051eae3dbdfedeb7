"""The boundary between members' own code and ours: what it raises ends that member, and nobody else."""

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from argosy.disk.files import appending, make_folder
from argosy.errors import DiskError, WorkerError
from argosy.errors.system import files_refused, means_refused
from argosy.errors.traces import trace_of
from argosy.protocol.events import MemberEnded, Saved
from argosy.protocol.trainer import OutOfMemory, SectionReport
from argosy.training.choice.measure import has_batch_norm
from argosy.training.device.devices import Backend, memory_returned, out_of_memory, poisoned
from argosy.training.member.live import LiveMember
from argosy.training.trainer.descriptors import Descriptors

__all__ = ["Guard", "Poisoned"]

RETURN_SECONDS = 10.0
"""How long a device's memory may take to come back from a process that was killed."""


class Poisoned(Exception):  # noqa: N818
    """The device is of no more use to this process, whoever's step did that: nobody's next one can be trusted."""


class Drop(Protocol):
    """Lets go of a member, wherever it is, and gives it where it had not boarded yet."""

    def __call__(self, name: str, *, failed: bool = False) -> LiveMember | None:
        """With `failed`, since its own code has raised."""


class Guard:
    """Of one trainer."""

    def __init__(
        self,
        device: str,
        backend: Backend,
        members: Path,
        emit: Callable[[Any], None],
        drop: Drop,
        save_best: Callable[[str], list[Saved]],
    ) -> None:
        self._device = device
        self._backend = backend
        self._members = members
        """Folder of members' folders."""
        self._emit = emit
        self._drop = drop
        self._save_best = save_best
        """Writes the best weights of a member that are in no file, and says what is to be journaled of that."""
        self._files = Descriptors()

    def __call__(self, name: str, action: Callable[[], Any], *, again: bool = False) -> Any:
        """Run a piece of a member's own code; what it raises ends that member, and gives None.

        Tried `again` where it ran out of memory that a killed process gave back only then.
        """
        try:
            with self._files.counted(name):
                done = action()
        except (DiskError, WorkerError):
            raise
        except Exception as error:  # boundary between a member's code and ours
            if not self._files.exhausted_by(name):
                self.check_process(repr(name), error)
            if not out_of_memory(error):
                self._fail(name, "".join(traceback.format_exception(error)), trace_of(error))
                return None
            detail = str(error)
        else:
            if not self._files.exhausted_by(name):
                return done
            leak = (
                f"it has left {self._files.left[name]} files open, and its process can hardly open any more: close them"
            )
            self._fail(name, leak, leak)
            return None
        # Outside of the handler, whose traceback holds what the action has made.
        if again and memory_returned(self._backend, patience=RETURN_SECONDS):
            return self(name, action)
        self.crowded_out(name, detail)
        return None

    def _fail(self, name: str, text: str, reason: str) -> None:
        """A member's own code has raised, or has taken what all members need."""
        leaked = self._files.exhausted_by(name)
        if leaked:
            self._files.make_room(name)
        self.log(name, text)
        self.end(name, "failed", reason)
        if leaked:
            self._files.make_room(name)

    def crowded_out(self, name: str, detail: str) -> None:
        """A member has no room here: the driver says where it goes on, or in which steps."""
        built = self._drop(name)
        batch_norm = built is not None and has_batch_norm(built.model)
        self._emit(OutOfMemory(member=name, detail=detail, batch_norm=batch_norm))

    def check_process(self, who: str, error: Exception) -> None:
        """Raise where that is no fault of a member's, and nobody's next step can be trusted."""
        if (refused := files_refused()) is not None:
            raise means_refused(refused, self._device) or error from error  # all members have these files together
        if poisoned(self._backend):
            raise Poisoned(f"{self._device} is of no more use to this process since {who} raised {error!r}") from error

    def end(self, name: str, status: str, reason: str) -> None:
        """A member leaves the run; what its report shows as its best is in a file."""
        saved = self._save_best(name)
        self._drop(name, failed=status == "failed")
        self._emit(SectionReport(events=(*saved, MemberEnded(member=name, status=status, reason=reason))))

    def log(self, name: str, text: str) -> None:
        """Write into a member's ``log.txt``."""
        folder = self._members / name
        make_folder(folder)
        with appending(folder / "log.txt") as log:
            log.write(f"{text.rstrip()}\n".encode(errors="backslashreplace"))
