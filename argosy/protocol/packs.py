"""Programs that step the members that share a device, as journaled events."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from argosy.disk.json_values import Name
from argosy.protocol.events import Event

__all__ = ["Chosen", "FellBack", "Packed", "StepsAlone"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Chosen:
    """Programs that were chosen before for members like these."""

    members: int
    """Members that shared the device."""
    size: int
    """Members of the largest program."""
    kind: str
    """Kind of the programs."""


class Packed(Event):
    """The programs that step these members of a device from here on; one may step all of them."""

    device: str
    programs: tuple[tuple[Name, ...], ...]
    """The members of each; one alone is stepped by itself."""
    settled: bool
    """Whether the choice is final; else it is being tried."""
    seconds_per_sample: tuple[tuple[int, float], ...]
    """What was measured so far of plain programs: (members in a program, seconds of a training sample of one member)."""
    step_bytes: tuple[tuple[int, int], ...] = ()
    """(Members in a program of this kind, bytes that a step takes for each of them), where the device counts them."""
    reason: str = ""
    """Why there are no more members in a program."""
    kind: str = "plain"
    """How the programs make their steps: plain, graphed (captured whole), compiled, or grouped, of unlike members."""
    seconds_by_kind: tuple[tuple[str, int, float], ...] = ()
    """What was measured of programs that are not plain: (kind, members in a program, seconds)."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Kinds of program that these members cannot have, and why."""
    exact: bool = False
    """Whether each member has the bits in them that it would have alone."""
    shows: bool = False
    """Whether other programs would have given these members other last bits."""
    unlike: bool = False
    """Whether they are MLPs of several architectures."""

    @property
    def chosen(self) -> Chosen:
        """The choice, without the members' names."""
        kind = "grouped" if self.unlike else self.kind
        return Chosen(members=sum(map(len, self.programs)), size=self.size, kind=kind)

    @property
    def size(self) -> int:
        """Members of the largest program."""
        return max(map(len, self.programs))

    @property
    def seconds(self) -> Mapping[tuple[str, int], float]:
        """Seconds of a training sample of one member, by kind of program and members in it."""
        plain = {("plain", size): seconds for size, seconds in self.seconds_per_sample}
        return plain | {(kind, size): seconds for kind, size, seconds in self.seconds_by_kind}

    @property
    def improvement(self) -> float | None:
        """(sum of T_i - T_pack) / sum of T_i of the largest program that was measured; negative where it is slower.

        T_i is what a member's sample takes alone in a plain program, T_pack what one sample of each takes together, by the
        fastest kind. None where it is not known.
        """
        alone = ("plain", 1)
        largest = max((size for _, size in self.seconds), default=1)
        together = [
            seconds for (kind, size), seconds in self.seconds.items() if size == largest and (kind, size) != alone
        ]
        return 1.0 - min(together) / self.seconds[alone] if together and alone in self.seconds else None


class StepsAlone(Event):
    """These members of a device cannot share a program with its others."""

    device: str
    reasons: Mapping[Name, str]
    """Why, by member."""


class FellBack(Event):
    """A faster program of these members raised, or gave other results than each of them by itself; slower code steps them."""

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
        return f"{names} on {self.device}: no {self.kind} program, as {self.reason}"
