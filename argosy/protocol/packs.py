"""Journaled events about the programs that step the members of a device."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from argosy.disk.json_values import Name
from argosy.protocol.events import Event

__all__ = ["Chosen", "FellBack", "Packed", "StepsAlone"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Chosen:
    """A program choice for similar members, made earlier."""

    device: str
    members: int
    """Number of members that shared the device."""
    size: int
    """Number of members of the largest program."""
    kind: str
    """Kind of the programs."""


class Packed(Event):
    """The programs that step these members of a device from here on; one may step all of them."""

    device: str
    programs: tuple[tuple[Name, ...], ...]
    """The members of each program; a program may have a single member."""
    settled: bool
    """Whether the choice is final; otherwise it is being tried."""
    seconds_per_sample: tuple[tuple[int, float], ...]
    """Measurements of plain programs so far: (members in a program, seconds per training sample and member)."""
    step_bytes: tuple[tuple[int, int], ...] = ()
    """(Members in a program of this kind, bytes of a step per member), if the device counts bytes."""
    reason: str = ""
    """Why the programs have no more members."""
    kind: str = "plain"
    """Kind of the programs: plain, graphed, compiled, or grouped (of different architectures)."""
    seconds_by_kind: tuple[tuple[str, int, float], ...] = ()
    """Measurements of other kinds: (kind, members in a program, seconds per training sample and member)."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Kinds of program that these members cannot have, and why."""
    exact: bool = False
    """Whether these programs give each member bitwise the results that it would get alone."""
    shows: bool = False
    """Whether other programs would have given these members results that differ in the last bits."""
    unlike: bool = False
    """Whether the members are MLPs of several architectures."""

    @property
    def chosen(self) -> Chosen:
        """The choice without the members' names."""
        kind = "grouped" if self.unlike else self.kind
        return Chosen(device=self.device, members=sum(map(len, self.programs)), size=self.size, kind=kind)

    @property
    def size(self) -> int:
        """Number of members of the largest program."""
        return max(map(len, self.programs))

    @property
    def seconds(self) -> Mapping[tuple[str, int], float]:
        """Seconds per training sample and member, by kind of program and number of its members."""
        plain = {("plain", size): seconds for size, seconds in self.seconds_per_sample}
        return plain | {(kind, size): seconds for kind, size, seconds in self.seconds_by_kind}

    @property
    def improvement(self) -> float | None:
        """(sum of T_i - T_pack) / sum of T_i of the largest program that was measured; negative if it is slower.

        T_i is the time per sample of a member alone in a plain program; T_pack is the time for one sample of each member
        together, with the fastest kind. None if unknown.
        """
        alone = ("plain", 1)
        largest = max((size for _, size in self.seconds), default=1)
        together = [
            seconds for (kind, size), seconds in self.seconds.items() if size == largest and (kind, size) != alone
        ]
        return 1.0 - min(together) / self.seconds[alone] if together and alone in self.seconds else None


class StepsAlone(Event):
    """These members of a device cannot share a program with its other members."""

    device: str
    reasons: Mapping[Name, str]
    """Reasons by member."""


class FellBack(Event):
    """A faster program of these members raised an error or gave results that they do not get alone; slower code steps them."""

    device: str
    members: tuple[str, ...]
    kind: str
    """Kind of the program: fused, graphed or compiled."""
    reason: str

    @property
    def words(self) -> str:
        """A sentence for the user."""
        first, more = ", ".join(map(repr, self.members[:3])), len(self.members) - 3
        names = f"{first} and {more} more" if more > 0 else first
        return f"{names} on {self.device}: no {self.kind} program, because {self.reason}"
