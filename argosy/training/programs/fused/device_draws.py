"""Draws of captured steps: the dropout masks of all members in one kernel, each from its own state (`argosy.training.device.own_kernels`).

A member gets the masks that it draws alone. A replay repeats nothing that the host does: it reads seeds and offsets from static memory,
where they are placed before each step. Offsets move on the host by what a step draws, and stand in the members' states after it. As most
steps draw as much as the one before, those of coming steps are brought to the device at once.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from argosy.stream.batches import sent
from argosy.training.device.kernel_forms import AHEAD, Drawn, OwnKernels
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
        self._next = torch.zeros(len(states), 2, dtype=torch.int64)
        """Seeds and offsets of the coming step."""
        self._seen: list[Tensor | None] = [None] * len(states)
        """The states that these are of."""
        self._coming = self._placed.new_empty(0)
        """Seeds and offsets of steps on the device ``[steps, members, 2]``, if each draws as much as the last one."""
        self._number = 0
        """Which of them the coming step has."""
        self._foreseen = torch.zeros(len(states), dtype=torch.int64)
        """By how much they move from step to step."""
        self.moves = torch.zeros(len(states), dtype=torch.int64)
        """By how much the step at hand moves the offsets."""
        self._tables: dict[Any, Any] = {}
        """What kernels read of masks; recordings read it too."""

    @classmethod
    def of(cls, states: Sequence[Randomness]) -> "DeviceDraws | None":
        """Return the draws of members with these states; None where their device has no kernels for them."""
        device = states[0].backend.device
        kernels = None if states[0].device_state is None else kernels_of(device)
        return None if kernels is None else cls(states, kernels, device)

    def place(self) -> None:
        """Let the coming step draw what comes next in the members' states."""
        stale = self._number >= len(self._coming)
        for row, state in enumerate(self._states):
            if state.device_state is not self._seen[row]:
                self._seen[row], stale = state.device_state, True
                self._next[row] = state.device_state.view(torch.int64)
        if stale:
            self._number, self._foreseen = 0, self.moves
            moved = torch.arange(AHEAD).view(-1, 1, 1) * torch.stack([torch.zeros_like(self.moves), self.moves], 1)
            self._coming = sent(self._next + moved, self._placed.device)
        self._placed.copy_(self._coming[self._number])

    def begin(self) -> None:
        """Begin the draws of a step."""
        self.moves = torch.zeros_like(self.moves)

    def masks(self, drawn: Sequence[Drawn], into: Tensor) -> None:
        """Draw the masks that come next in the step."""
        moves, placed = self.moves.tolist(), []
        for one in drawn:
            placed.append((one, moves[one.row]))
            if 0 < one.kept < 1:
                moves[one.row] += self._kernels.increment(one.size)
        self.moves = torch.tensor(moves)
        self._kernels.masks(into, placed, self._placed, self._tables)

    def advance(self) -> None:
        """Move the members' states by what the step has drawn, once it is made."""
        self._number = self._number + 1 if torch.equal(self.moves, self._foreseen) else len(self._coming)
        if not self.moves.any():
            return
        self._next[:, 1] += self.moves
        for row, own in enumerate(self._next.clone().view(torch.uint8).unbind()):
            self._states[row].device_state = self._seen[row] = own


class States(list[Randomness]):
    """Random states of the members of a program, by row."""

    on_device: DeviceDraws | None = None
    """What draws their dropout masks in steps that are captured."""
