"""No step waits for its device: each kind of member and of program, on a device of which every value and every copy is watched."""

from collections.abc import Collection
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import elsewhere as away
import numpy as np
import pytest
import torch
from blocks import blocks
from elsewhere import Waits, copied, unwaiting
from packs import ResNet, Transformer, convnet, live, member, samples, there
from torch import Tensor
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR

from argosy.stream.order import Digest
from argosy.stream.schedule import Orders
from argosy.training.member.precision import LossScale, LossScales
from argosy.training.programs.fused.compiled import Pass
from argosy.training.programs.fused.fused import Fused
from argosy.training.programs.graphed.static_inputs import StaticInputs
from argosy.training.programs.program import Program
from argosy.training.programs.shard.flat import Flat
from argosy.training.programs.solo import Solo

elsewhere = away.elsewhere

FOLD, BOOTSTRAP = [*range(10, 90)], np.random.RandomState(0).randint(0, 96, 96).tolist()
MEMBERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "momentum, nesterov": {"optimizer": partial(SGD, lr=0.1, momentum=0.9, nesterov=True)},
    "clipped": {"clip_grad_norm": 1.0, "optimizer": AdamW},
    "augmented": {"augment": lambda batch: (batch[0].flip(1), batch[1])},
    "scheduled": {"optimizer": Adam, "schedule": partial(CosineAnnealingLR, T_max=9), "schedule_per": "step"},
    "dropout": {"model": convnet},
    "norms": {"model": ResNet},
    "attention": {"model": Transformer, "optimizer": AdamW},
    "micro-batched": {"accumulate": 4},
    "of a fold": {"subset": FOLD},
    "of a bootstrap": {"subset": BOOTSTRAP, "optimizer": Adam},
    "across blocks": {"batch_size": 24, "subset": BOOTSTRAP},
}


def step_through(program: Program[Any], *, holes: Collection[int] = ()) -> int:
    """Make the steps of an epoch and validate, without waiting after the first block; returns the number of steps after it."""
    arrays, val = samples(next(program.members[0].model.parameters()).dtype)
    orders = Orders(0, {"train": len(arrays[0]), "val": len(val[0])})
    for one in program.members:
        one.begin_epoch(orders, 0)
    steps = 0
    for number, block in enumerate(blocks(orders.epoch("train", 0), 40, arrays=arrays, holes=holes)):
        brought = there(block, program)
        with program.active(), unwaiting() if number else nullcontext():
            for batch in program.cut(brought):
                program.begin(batch)
                steps += program.finish() > 0 and number > 0
    for number, block in enumerate(blocks(orders.epoch("val", 0), 10, arrays=val, split="val", holes=holes)):
        brought = there(block, program)
        with program.active(keep=True), unwaiting() if number else nullcontext():
            for _ in program.evaluate(brought):
                pass
    return steps


@pytest.mark.parametrize("kind", MEMBERS)
@pytest.mark.parametrize("holes", [(), (3, 15, 40, 70)], ids=["whole", "broken samples"])
def test_no_step_of_a_member_waits(kind: str, holes: Collection[int], elsewhere: str) -> None:
    assert step_through(Solo(live(member("m", **MEMBERS[kind]), elsewhere)), holes=holes) > 1


@pytest.mark.parametrize("kind", MEMBERS)
def test_no_step_of_a_pack_waits(kind: str, elsewhere: str) -> None:
    assert step_through(Fused.of([live(member(name, **MEMBERS[kind]), elsewhere) for name in "abc"])) > 1


@pytest.mark.parametrize("subsets", [[FOLD], [FOLD, FOLD, FOLD], [FOLD, BOOTSTRAP, FOLD]])
def test_row_numbers_are_copied_once_for_each_selection_and_block(subsets: list[list[int]], elsewhere: str) -> None:
    """Of the two blocks that are watched; the validation is of all samples."""
    lives = [live(member(f"m{number}", subset=subset), elsewhere) for number, subset in enumerate(subsets)]
    step_through(Solo(lives[0]) if len(lives) == 1 else Fused.of(lives))
    assert len(copied) == 2 * len({*map(tuple, subsets)})


def test_a_split_step_begins_without_waiting(elsewhere: str) -> None:
    weight = torch.zeros(3, device="meta", requires_grad=True)
    flat = Flat([weight], weight.device, rank=1, size=2)
    with unwaiting():
        (weight * 2).sum().backward()
        flat.fill(weight.detach(), Digest(4, 2**63, 5))


def test_what_the_host_knows_of_a_step_goes_to_the_device_without_waiting(elsewhere: str) -> None:
    """Loss scales, which float16 needs though it waits elsewhere, and the numbers of captured steps."""
    losses = torch.ones(2, 5, device="meta")
    pack = Fused.of([live(member(name, **MEMBERS["scheduled"]), elsewhere) for name in "ab"])
    numbers = StaticInputs(pack.kernels, pack.parameter_buffer.weights)
    with unwaiting():
        LossScales([LossScale("a"), LossScale("b")], losses.device).times(losses)
        numbers.turn()
    assert len(copied) == 2


def test_free_places_of_a_compiled_pass_are_filled_without_waiting(elsewhere: str) -> None:
    weights = torch.zeros(3, 7, device="meta")
    buffer: Any = SimpleNamespace(weights=weights, fixed={}, buffers={})
    data: Any = SimpleNamespace(apart=False, tree=[weights])
    with unwaiting():
        inputs = Pass(forward=None, parameter_buffer=buffer, data=data, factors=weights[:, 0]).inputs(4)  # type: ignore[arg-type]
    assert [tuple(tensor.shape) for tensor in inputs] == [(4, 7), (4,), (3, 7)] and not copied


@pytest.mark.parametrize(
    "wait", [Tensor.item, Tensor.cpu, lambda one: one.copy_(torch.ones(())), lambda one: one.new_tensor(1.0)]
)
def test_what_waits_is_seen(wait: Any, elsewhere: str) -> None:
    """Without which all of the above would say nothing."""
    one = torch.zeros((), device="meta")
    with pytest.raises(Waits), unwaiting():
        wait(one)
