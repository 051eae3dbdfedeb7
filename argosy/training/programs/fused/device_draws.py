"""Draws of captured steps: the dropout masks of all members in one kernel, each from its own state (`argosy.training.device.own_kernels`).

A member gets the masks that it draws alone. A replay does not repeat work of the host, so it reads seeds and offsets from static memory,
which is updated before each step. After the step the host advances the offsets by the numbers drawn, and writes them to the members'
states. Most steps draw as much as the one before, so the offsets of several coming steps are sent to the device at once.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from argosy.stream.batches import copy_to_device
from argosy.training.device.kernel_forms import STEPS_AHEAD, MaskDraw, OwnKernels
from argosy.training.device.own_kernels import find_kernels
from argosy.training.member.randomness import Randomness

__all__ = ["DeviceDraws", "States"]


class DeviceDraws:
    """Dropout draws of these members, by row, in steps that are captured as a whole."""

    def __init__(self, states: Sequence[Randomness], kernels: OwnKernels, device: torch.device) -> None:
        self._states = states
        self._kernels = kernels
        self._placed = torch.zeros(len(states), 2, dtype=torch.int64, device=device)
        """Seeds and offsets on the device."""
        self._next = torch.zeros(len(states), 2, dtype=torch.int64)
        """Seeds and offsets of the coming step."""
        self._seen: list[Tensor | None] = [None] * len(states)
        """The member states from which `_next` was read or written."""
        self._coming = self._placed.new_empty(0)
        """Seeds and offsets of coming steps on the device ``[steps, members, 2]``, valid if each draws as much as the last step."""
        self._number = 0
        """Index of the coming step in `_coming`."""
        self._foreseen = torch.zeros(len(states), dtype=torch.int64)
        """Expected increments of the offsets per step, from which `_coming` was computed."""
        self.moves = torch.zeros(len(states), dtype=torch.int64)
        """Increments of the offsets by the current step."""
        self._tables: dict[Any, Any] = {}
        """Descriptions of masks that kernels read, also in recordings."""

    @classmethod
    def of(cls, states: Sequence[Randomness]) -> "DeviceDraws | None":
        """Return the draws of members with these states; None if their device has no kernels for them."""
        device = states[0].backend.device
        kernels = None if states[0].device_state is None else find_kernels(device)
        return None if kernels is None else cls(states, kernels, device)

    def place(self) -> None:
        """Write the seeds and offsets of the coming step to static memory."""
        stale = self._number >= len(self._coming)
        for row, state in enumerate(self._states):
            # By identity: a state is replaced when it is drawn from or set, and never written into.
            if state.device_state is not self._seen[row]:
                self._seen[row], stale = state.device_state, True
                self._next[row] = state.device_state.view(torch.int64)
        if stale:
            self._number, self._foreseen = 0, self.moves
            each = torch.stack([torch.zeros_like(self.moves), self.moves], 1)  # seeds stay as they are
            coming = self._next + torch.arange(STEPS_AHEAD).view(-1, 1, 1) * each
            self._coming = copy_to_device(coming, self._placed.device)
        self._placed.copy_(self._coming[self._number])

    def begin(self) -> None:
        """Begin the draws of a step."""
        self.moves = torch.zeros_like(self.moves)

    def masks(self, drawn: Sequence[MaskDraw], into: Tensor) -> None:
        """Draw the next masks of the step."""
        moves, placed = self.moves.tolist(), []
        for one in drawn:
            placed.append((one, moves[one.row]))
            if 0 < one.kept < 1:
                moves[one.row] += self._kernels.increment(one.size)
        self.moves = torch.tensor(moves)
        self._kernels.masks(into, placed, self._placed, self._tables)

    def advance(self) -> None:
        """Advance the members' states by the numbers that the finished step has drawn."""
        # After another number of draws than foreseen, all coming offsets are wrong and are computed anew.
        self._number = self._number + 1 if torch.equal(self.moves, self._foreseen) else len(self._coming)
        if not self.moves.any():
            return
        self._next[:, 1] += self.moves
        for row, own in enumerate(self._next.clone().view(torch.uint8).unbind()):
            self._states[row].device_state = self._seen[row] = own


class States(list[Randomness]):
    """Random states of the members of a program, by row."""

    on_device: DeviceDraws | None = None
    """Draws the dropout masks in captured steps; None otherwise."""
