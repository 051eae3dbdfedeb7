"""Tests of fused programs that run out of memory: no step is half done, and little memory beyond the program's own is needed."""

from functools import partial
from typing import Any

import late
import packs
import pytest
import torch
from packs import Drifting, alone, difference, member, state, together
from torch import nn
from torch.optim import SGD, Adam, AdamW

from argosy.study import Member
from argosy.training.choice import fused_check
from argosy.training.device.devices import open_backend
from argosy.training.member.building import build_member
from argosy.training.optim import rules
from argosy.training.programs.fused.fused import Fused

devices = late.devices


def no_memory(*given: Any, **named: Any) -> Any:
    raise torch.OutOfMemoryError("no memory")


def test_a_turn_that_runs_out_of_memory_where_weights_move_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    optimizers = [
        partial(SGD, lr=0.05, momentum=0.9),
        partial(Adam, lr=0.01, weight_decay=0.1),
        partial(AdamW, lr=0.01, weight_decay=0.5),
        partial(AdamW, lr=0.02, weight_decay=0.5),
    ]
    kept = {"m0": Drifting()}
    members = [member(f"m{n}", optimizer=one, augment=kept.get(f"m{n}")) for n, one in enumerate(optimizers)]
    finish, ready, again = Fused.finish, rules.Tile.ready, []

    def crowded(tile: rules.Tile, gradients: Any) -> rules.Move:
        return no_memory() if tile.kind is Adam else ready(tile, gradients)

    def stumbling(program: Fused) -> int:
        lockstep = program._lockstep
        with monkeypatch.context() as patched:
            patched.setattr(rules.Tile, "ready", crowded)  # in the second kernel, when the first one is ready
            with pytest.raises(torch.OutOfMemoryError):
                finish(program)
        program.undo()
        program.begin(lockstep)
        again.append(lockstep)
        return finish(program)

    monkeypatch.setattr(Fused, "finish", stumbling)
    lives, history = alone(members, 2)
    fused, found = together(members, 2)
    assert len(again) == 12
    for one, other in zip(lives, fused, strict=True):
        assert difference(state(one), state(other)) <= 1e-10, one.member.name
    assert difference(history, found) <= 1e-10


class Following(nn.Module):
    """A network with two frozen layers, of which one follows a trained one, as a momentum encoder does."""

    def __init__(self) -> None:
        super().__init__()
        self.fast, self.slow, self.still, self.last = (nn.Linear(16, n) for n in (16, 16, 16, 4))
        self.slow.requires_grad_(requires_grad=False)
        self.still.requires_grad_(requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            with torch.no_grad():
                self.slow.weight.lerp_(self.fast.weight, 0.1)
        return self.last(self.still(self.fast(x) + self.slow(x)))  # type: ignore[no-any-return]


def test_a_turn_that_is_made_again_moves_frozen_weights_once(monkeypatch: pytest.MonkeyPatch) -> None:
    members = [member(f"m{n}", model=Following) for n in range(2)]
    begin, moving = Fused.begin, []

    def stumbling(program: Fused, lockstep: Any) -> None:
        begin(program, lockstep)
        if moving:  # not in the first step, after which it is known which weights move
            program.undo()
            begin(program, lockstep)
        moving.append(len(program.parameter_buffer.moving()))

    lives, _ = alone(members, 2)
    monkeypatch.setattr(Fused, "begin", stumbling)
    fused, _ = together(members, 2)
    for one, other in zip(lives, fused, strict=True):
        assert difference(state(one), state(other)) <= 1e-10, one.member.name
    assert moving == [1] * 12


def wide_enough(hidden: int = 64) -> nn.Module:
    """Return a network with the same bits in a program as alone."""
    return nn.Sequential(nn.Linear(16, hidden), nn.Tanh(), nn.Linear(hidden, 4))


def normed() -> nn.Module:
    """Return a network that rounds differently in a program."""
    return nn.Sequential(nn.Linear(16, 8), nn.LayerNorm(8), nn.Linear(8, 4))


@pytest.mark.parametrize(
    ("room", "rounding", "tried"),
    [
        (4, False, [(4, False)] * 2),
        (2, False, [(4, False), (2, False), (2, False)]),
        (8, True, [*[(4, False)] * 2, *[(4, True)] * 2]),
        (4, True, [*[(4, False)] * 2, (4, True), *[(2, True)] * 2]),
        (2, True, [(4, False), *[(2, False)] * 2, (2, True), *[(2, False)] * 3]),
        (1, True, [(4, False), (2, False), (2, True), (2, False)]),
    ],
)
def test_where_memory_ends_fewer_are_tried(
    room: int, rounding: bool, tried: list[tuple[int, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, copies = [], fused_check._copies

    def few(lives: Any, *, double: bool = False, nudged: bool = False) -> Any:
        found.append((len(lives), double))
        return copies(lives, double=double, nudged=nudged) if len(lives) * (1 + double) <= room else no_memory()

    monkeypatch.setattr(fused_check, "_copies", few)
    names = tuple(f"m{n}" for n in range(5))
    model = normed if rounding else wide_enough
    members = [
        member(name, model=model, dtype=torch.float32, batch_size=8, optimizer=torch.optim.RMSprop) for name in names
    ]
    admission = packs.admission(members)
    assert found == tried
    assert tuple(admission.packs) == ((names,) if room > 1 else ())
    words = "there is not enough memory to try 2 side by side: OutOfMemoryError: no memory"
    assert admission.alone == ({} if room > 1 else dict.fromkeys(names, words))


@pytest.mark.parametrize("alike", [True, False])
def test_members_of_large_samples_stay_alone_without_a_copy_of_them(
    alike: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check holds 16 samples twice: with samples of 100 MB, 3.2 GB."""
    models = [partial(wide_enough, 64 if alike else 64 + n) for n in range(3)]
    members = [member(f"m{n}", model=one, dtype=torch.float32, batch_size=2) for n, one in enumerate(models)]
    samples = 16 * (16 * 4 + 8)
    monkeypatch.setattr(fused_check, "MAX_BYTES", samples)
    assert sum(map(len, (packs.admission(members).packs or packs.admission(members).grouped).keys())) == 3
    monkeypatch.setattr(fused_check, "MAX_BYTES", samples - 1)
    with monkeypatch.context() as patch:  # results are compared up to rounding, on one batch
        patch.setattr(fused_check, "batch_form", lambda _: ())
        assert sum(map(len, (packs.admission(members).packs or packs.admission(members).grouped).keys())) == 3
    monkeypatch.setattr(fused_check, "fill_block", no_memory)
    admission = packs.admission(members)
    assert not admission.packs and not admission.grouped
    reasons = {**admission.alone, **{name: why for names, why in admission.failed.items() for name in names}}
    found = "its samples are large: 16 of them, which would be compared, take 1.1 KiB, more than 1.1 KiB"
    assert reasons == dict.fromkeys(("m0", "m1", "m2"), found)


def wide() -> nn.Module:
    """Return a network of 1 MiB."""
    return nn.Linear(512, 512, bias=False)


@pytest.mark.usefixtures("devices")
def test_what_lies_side_by_side_is_parted_one_matrix_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LATE_BYTES", str(10**9))
    backend = open_backend("late:0")
    backend.activate()
    lives = [
        build_member(
            Member(f"m{n}", model=wide, optimizer=Adam, batch_size=4),
            backend,
            study_seed=0,
            objective="train_loss",
            mode="min",
        )
        for n in range(4)
    ]
    weights, peaks, kept = 4 * 2**20, [], []
    for act in (lambda: Fused.of(lives), lambda: kept.pop().release()):
        backend.reset_peak()
        before = backend.memory_in_use() or 0
        kept.append(act())
        peaks.append(((backend.peak_memory() or 0) - before) / weights)
    # Weights are moved into a new matrix, and Adam's state takes two more. On release, only one of the three exists twice at a time.
    assert 2 <= peaks[0] < 2.5
    assert peaks[1] < 1.1
    assert backend.memory_in_use() < 3.1 * weights
