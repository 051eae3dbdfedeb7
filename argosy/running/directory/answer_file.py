"""What members answered to the validation samples in sections that were their best: a file that is only appended to.

A record is a line of JSON, which names the member, its section and a number of bytes, and these bytes: float32, as in
`argosy.training.member.answers`. A record is on the disk before the journal has its section. A torn last record is cut off.
"""

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from argosy.disk.files import append_descriptor
from argosy.disk.json_values import Name, Positive, conforming, parsed
from argosy.errors import RunError
from argosy.errors.system import disk_refused

__all__ = ["AnswerFile", "Record"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """The head of a record."""

    member: Name
    section: Positive
    """Sections that the member had ended with this one."""
    bytes: Positive


class AnswerFile:
    """The file of one run, open for writing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = append_descriptor(path)

    def read(self) -> dict[tuple[str, int], npt.NDArray[np.float32]]:
        """Return all answers by (member, section), the last of those that are there twice. Raises RunError for a file that is none of these."""
        with self.path.open("rb") as file:
            content = file.read()
        found, at = {}, 0
        while (end := content.find(b"\n", at)) >= 0:
            head = self._head(content[at:end])
            last = end + 1 + head.bytes
            if last > len(content):
                break
            found[head.member, head.section] = np.frombuffer(content[end + 1 : last], np.float32)
            at = last
        os.ftruncate(self._descriptor, at)
        return found

    def append(self, answers: Iterable[tuple[str, int, bytes]]) -> None:
        """Add the answers of (member, section) and flush them to the disk; raises DiskError."""
        before = os.fstat(self._descriptor).st_size
        text = b"".join(_record(*one) for one in answers)
        try:
            written = 0
            while written < len(text):
                written += os.write(self._descriptor, text[written:])
            os.fdatasync(self._descriptor)
        except OSError as error:
            os.ftruncate(self._descriptor, before)
            raise disk_refused(error, f"cannot write {self.path}") from error

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def _head(self, line: bytes) -> Record:
        try:
            head: Record = conforming(parsed(line.decode()), Record, "the answers of a section", set())
            if head.bytes % 4:
                raise ValueError(f"{head.bytes} bytes are no float32")
        except ValueError as error:
            raise RunError(
                f"{self.path} is not the file of answers that the run wrote: {error}. Put that back, or begin anew with --fresh."
            ) from error
        return head


def _record(member: str, section: int, told: bytes) -> bytes:
    return json.dumps({"member": member, "section": section, "bytes": len(told)}).encode() + b"\n" + told
