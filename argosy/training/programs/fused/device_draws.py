"""Draws of captured steps: the dropout masks of all members in one kernel, each from its own state (`argosy.training.device.own_kernels`).

A member gets the masks that it draws alone. A replay repeats nothing that the host does: it reads seeds and offsets from static memory,
where they are placed before each step. Offsets move on the host by what a step draws, which is the same in every step.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from argosy.stream.batches import sent
from argosy.training.device.kernel_forms import Drawn, OwnKernels
from argosy.training.device.own_kernels import kernels_of
from argosy.training.member.randomness import Randomness

__all__ = ["DeviceDraws", "States"]


class DeviceDraws:
    """Draws of these members, by row, while their steps are made as a whole."""

    def __init__(self, states: Sequence[Randomness], kernels: OwnKernels, device: torch.device) -> None:
        self._states = states
        self._kernels = kernels
        self._placed = torch.zeros(len(states), 2, dtype=torch.int64, device=device)
        """Seeds and offsets on the device."""
        self._seen: list[Tensor | None] = [None] * len(states)
        """States as they were read, or written."""
        self._next = torch.zeros(len(states), 2, dtype=torch.int64)
        """Seeds and offsets of the next step."""
        self._moves = torch.zeros(len(states), dtype=torch.int64)
        """By how much a step moves the offsets."""

    @classmethod
    def of(cls, states: Sequence[Randomness]) -> "DeviceDraws | None":
        """Return the draws of members with these states; None where their device has no kernels for them."""
        device = states[0].backend.device
        kernels = None if states[0].device_state is None else kernels_of(device)
        return None if kernels is None else cls(states, kernels, device)

    def place(self) -> None:
        """Let the coming step draw what comes next in the members' states."""
        stale = bool(self._moves.any())
        for row, state in enumerate(self._states):
            if state.device_state is not self._seen[row]:
                self._seen[row], stale = state.device_state, True
                self._next[row] = state.device_state.view(torch.int64)
        if stale:
            self._placed.copy_(sent(self._next.clone(), self._placed.device))

    def begin(self) -> None:
        """Begin the draws of a step."""
        self._moves.zero_()

    def masks(self, drawn: Sequence[Drawn], into: Tensor) -> None:
        """Draw the masks that come next in the step."""
        moves = self._moves.tolist()
        placed = []
        for one in drawn:
            placed.append((one, moves[one.row]))
            if one.kept < 1:
                moves[one.row] += self._kernels.increment(one.size)
        self._moves.copy_(torch.tensor(moves))
        self._kernels.masks(into, placed, self._placed)

    def advance(self) -> None:
        """Note that a step was made."""
        self._next[:, 1] += self._moves

    def tell(self) -> None:
        """Write into the members' states what they have drawn."""
        for row, (state, seen) in enumerate(zip(self._states, self._seen, strict=True)):
            if (
                seen is not None
                and state.device_state is seen
                and not torch.equal(seen.view(torch.int64), self._next[row])
            ):
                state.device_state = self._seen[row] = self._next[row].clone().view(torch.uint8)


class States(list[Randomness]):
    """Random states of the members of a program, by row."""

    on_device: DeviceDraws | None = None
    """What draws their dropout masks in steps that are captured."""
