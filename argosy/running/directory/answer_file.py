"""An append-only file with the members' answers on the validation samples, for the sections that were their best.

A record is a line of JSON, which names the member, its section, the number of values per sample and a number of bytes, followed by these
bytes: float32, as in `argosy.training.member.answers`. A record is on disk before its section is journaled. A torn last record is cut off.
"""

import json
import os
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from argosy.disk.files import append_flushed, open_append_descriptor, open_plain
from argosy.disk.json_values import Name, Positive, convert, parse_json
from argosy.errors import RunError

__all__ = ["AnswerFile", "Record", "parse_answers"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """The head of a record."""

    member: Name
    section: Positive
    """Number of sections that the member had finished, including this one."""
    each: Positive
    """Number of values per sample."""
    bytes: Positive
    crc: int | None = None
    """CRC-32 of these bytes; None in files of earlier versions."""


class AnswerFile:
    """The file of one run, open for writing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = open_append_descriptor(path)

    def read(self) -> dict[tuple[str, int], npt.NDArray[np.float32]]:
        """Return all answers ``[samples, each]`` by (member, section), without damaged ones; of duplicates, the last.

        Raises RunError for a file of another format.
        """
        with open_plain(self.path) as file:
            content = file.read()
        answers, at = {}, 0
        while (end := content.find(b"\n", at)) >= 0:
            head = self._head(content[at:end])
            last = end + 1 + head.bytes
            if last > len(content):
                break
            values = content[end + 1 : last]
            if head.crc in (None, zlib.crc32(values)):
                answers[head.member, head.section] = parse_answers(head.each, values)
            at = last
        os.ftruncate(self._descriptor, at)
        return answers

    def append(self, answers: Iterable[tuple[str, int, int, bytes]]) -> None:
        """Append (member, section, values per sample, bytes) and flush them to the disk; raises DiskError."""
        append_flushed(self._descriptor, b"".join(_record(*one) for one in answers), self.path)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def _head(self, line: bytes) -> Record:
        try:
            head: Record = convert(parse_json(line.decode()), Record, "the header of a section's answers", set())
            if head.bytes % (4 * head.each):
                raise ValueError(f"{head.bytes} bytes do not divide into rows of {head.each} float32")
        except ValueError as error:
            raise RunError(
                f"{self.path} is not the answer file that the run wrote: {error}. Restore that file, or start "
                "over with --fresh."
            ) from error
        return head


def parse_answers(each: int, content: bytes) -> npt.NDArray[np.float32]:
    """Return answers ``[samples, each]`` from their bytes."""
    return np.frombuffer(content, np.float32).reshape(-1, each)


def _record(member: str, section: int, each: int, content: bytes) -> bytes:
    head = {"member": member, "section": section, "each": each, "bytes": len(content), "crc": zlib.crc32(content)}
    return json.dumps(head).encode() + b"\n" + content
