"""Tests that no step of any kind of member or program waits for its device, on a device that watches all reads and copies."""

import runpy
from collections.abc import Collection
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import elsewhere as away
import numpy as np
import pytest
import torch
from elsewhere import Waits, copied, unwaiting
from packs import BOOTSTRAP, FOLD, UNWAITING, Pulled, ResNet, live, member, step_through
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from argosy.averages import SWA
from argosy.running.launch.inline import InlineWorkers
from argosy.stream.order import Digest
from argosy.training.device.copies import DeviceCopies
from argosy.training.device.devices import open_backend
from argosy.training.device.moved import copy_held
from argosy.training.member.building import build_member
from argosy.training.member.checkpoint import tensors_at
from argosy.training.member.precision import LossScale, LossScales
from argosy.training.programs.fused.compiled import Pass
from argosy.training.programs.fused.fused import Fused
from argosy.training.programs.graphed.static_inputs import StaticInputs
from argosy.training.programs.shard.flat import FlatGradient
from argosy.training.programs.solo import Solo

elsewhere = away.elsewhere


@pytest.mark.parametrize("kind", UNWAITING)
@pytest.mark.parametrize("holes", [(), (3, 15, 40, 70)], ids=["whole", "broken samples"])
def test_no_step_of_a_member_waits(kind: str, holes: Collection[int], elsewhere: str) -> None:
    assert step_through(unwaiting, Solo(live(member("m", **UNWAITING[kind]), elsewhere)), holes=holes) > 1


@pytest.mark.parametrize("kind", UNWAITING)
def test_no_step_of_a_pack_waits(kind: str, elsewhere: str) -> None:
    assert step_through(unwaiting, Fused.of([live(member(name, **UNWAITING[kind]), elsewhere) for name in "abc"])) > 1


WEIGHTS = torch.ones(4, dtype=torch.float64)
TEACHER = nn.Linear(16, 4).double()


def taught(model: nn.Module, batch: Any, teacher: nn.Module) -> Tensor:
    return (model(batch[0]) - teacher(batch[0]).detach()).square().mean()


@pytest.mark.parametrize("kind", [Solo, Fused])
@pytest.mark.parametrize(
    "calls",
    [
        {"loss": nn.CrossEntropyLoss(weight=WEIGHTS)},
        {"loss": partial(cross_entropy, weight=WEIGHTS)},
        {"step": partial(taught, teacher=TEACHER)},
    ],
    ids=["a loss with weights of classes", "a loss with weights in a partial", "a step with a teacher"],
)
def test_what_a_member_calls_is_on_its_device(calls: dict[str, Any], kind: Any, elsewhere: str) -> None:
    lives = [live(member(name, metrics={}, **calls), elsewhere) for name in "ab"]
    assert step_through(unwaiting, Fused.of(lives) if kind is Fused else Solo(lives[0])) > 1
    assert WEIGHTS.device == TEACHER.weight.device == torch.device("cpu")


class Standardized(nn.Module):
    """Standardized inputs, with statistics in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(16, dtype=torch.float64))
        self.mean: Tensor

    def forward(self, batch: Any) -> Any:
        return batch[0] - self.mean, batch[1]


def test_what_data_on_device_holds_is_there(elsewhere: str) -> None:
    module, bound = Standardized(), partial(taught, teacher=TEACHER)
    moved = [DeviceCopies(open_backend(elsewhere), work).on_device for work in (module, bound)]
    assert moved[0].mean.is_meta and moved[1].keywords["teacher"].weight.is_meta
    assert not module.mean.is_meta and not TEACHER.weight.is_meta


def test_what_a_partial_holds_in_lists_is_on_the_device(elsewhere: str) -> None:
    teachers, seen = [TEACHER, {"weights": (WEIGHTS,)}], list[Tensor]()
    calls = {name: partial(taught, teacher=teachers, seen=seen) for name in ("step", "validate")}
    own = live(member("m", metrics={}, **calls), elsewhere).member
    first, second = own.step.keywords["teacher"]
    assert first.weight.is_meta
    assert second["weights"][0].is_meta
    assert own.step.keywords["teacher"] is own.validate.keywords["teacher"]
    assert copy_held(calls["step"], torch.device(elsewhere)).keywords["seen"] is seen


class Perceived(nn.Linear):
    """A loss whose weights all members share."""

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return super().forward(output).square().mean() + 0 * target.sum()


def test_weights_in_a_loss_stay_with_the_caller(elsewhere: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # As between the host and CUDA, where `Module.to` changes a Parameter in place.
    monkeypatch.setattr(torch.__future__, "_swap_module_params_on_conversion", True)
    loss = Perceived(4, 2).double()
    for called in (loss, loss.forward, partial(loss)):
        lives = [live(member(name, metrics={}, loss=called), elsewhere) for name in "ab"]
        assert not loss.weight.is_meta
        assert step_through(unwaiting, Solo(lives[0])) > 1
    own, other = (live(member(name, metrics={}, loss=loss), elsewhere).member.loss for name in "ab")
    assert own.weight is other.weight and own is not other


def test_the_next_run_of_this_process_copies_again() -> None:
    with InlineWorkers(SimpleNamespace(settings=SimpleNamespace(threads=1))):
        copied = copy_held(TEACHER, torch.device("meta"))
        assert copy_held(TEACHER, torch.device("meta")) is copied
    assert copy_held(TEACHER, torch.device("meta")) is not copied


@pytest.mark.parametrize("subsets", [[FOLD], [FOLD, FOLD, FOLD], [FOLD, BOOTSTRAP, FOLD]])
def test_row_numbers_are_copied_once_for_each_selection_and_block(subsets: list[list[int]], elsewhere: str) -> None:
    """Two blocks are watched; the validation uses all samples and needs no row numbers."""
    lives = [live(member(f"m{number}", subset=subset), elsewhere) for number, subset in enumerate(subsets)]
    step_through(unwaiting, Solo(lives[0]) if len(lives) == 1 else Fused.of(lives))
    assert len(copied) == 2 * len({*map(tuple, subsets)})


def test_a_split_step_begins_without_waiting(elsewhere: str) -> None:
    weight = torch.zeros(3, device="meta", requires_grad=True)
    flat = FlatGradient([weight], weight.device, rank=1, size=2)
    with unwaiting():
        (weight * 2).sum().backward()
        flat.fill(weight.detach(), Digest(4, 2**63, 5))


def test_what_the_host_knows_of_a_step_goes_to_the_device_without_waiting(elsewhere: str) -> None:
    """This covers the hyper-parameters of captured steps and loss scales, although float16 waits in other places."""
    losses = torch.ones(2, 5, device="meta")
    pack = Fused.of([live(member(name, **UNWAITING["scheduled"]), elsewhere) for name in "ab"])
    numbers = StaticInputs(pack.kernels, pack.parameter_buffer.weights)
    with unwaiting():
        LossScales([LossScale("a"), LossScale("b")], losses.device).times(losses)
        numbers.set_numbers()
    assert len(copied) == 2


def test_free_places_of_a_compiled_pass_are_filled_without_waiting(elsewhere: str) -> None:
    weights = torch.zeros(3, 7, device="meta")
    buffer: Any = SimpleNamespace(weights=weights, fixed={}, buffers={})
    data: Any = SimpleNamespace(apart=False, tree=[weights])
    with unwaiting():
        inputs = Pass(forward=None, parameter_buffer=buffer, data=data, factors=weights[:, 0]).inputs(4)  # type: ignore[arg-type]
    assert [tuple(tensor.shape) for tensor in inputs] == [(4, 7), (4,), (3, 7)] and not copied


def test_statistics_of_an_average_are_computed_without_waiting(elsewhere: str) -> None:
    one = live(member("m", model=ResNet, step=Pulled(), metrics={}, average=SWA(from_epoch=1)), elsewhere)
    assert one.average is not None
    one.average.count = 1
    assert step_through(unwaiting, Solo(one)) > 1


@pytest.mark.filterwarnings("ignore:for .* copying from a non-meta parameter")
@pytest.mark.parametrize("saved_on", ["meta", "cpu"])
def test_the_state_of_a_step_is_loaded_to_where_the_member_is(saved_on: str, elsewhere: str) -> None:
    """Checkpoints hold it on the host."""
    one = live(member("m", step=Pulled(), metrics={}), "cpu:0" if saved_on == "cpu" else elsewhere)
    one.member.step.mean = torch.zeros(4, device=saved_on)
    saved = one.state_dict() | {"called": {"step": {"mean": torch.zeros(4)}}}
    other = live(member("m", step=Pulled(), metrics={}), elsewhere)
    other.load_state_dict(saved)
    assert other.member.step.mean.is_meta


class Recalling(nn.Module):
    """A network with a tensor in its extra state."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.mean = nn.Linear(16, 4), torch.zeros(4)

    def get_extra_state(self) -> Tensor:
        return self.mean

    def set_extra_state(self, state: Tensor) -> None:
        self.mean = state


@pytest.mark.filterwarnings("ignore:for .* copying from a non-meta parameter")
@pytest.mark.parametrize("saved_on", ["meta", "cpu"])
def test_extra_state_of_a_network_is_loaded_to_where_the_member_is(saved_on: str, elsewhere: str) -> None:
    """Checkpoints hold it on the host."""
    one = live(member("m", model=Recalling), "cpu:0" if saved_on == "cpu" else elsewhere)
    one.model.mean = torch.zeros(4, dtype=torch.float64, device=saved_on)
    saved = one.state_dict()
    saved["model"]["_extra_state"] = torch.zeros(4, dtype=torch.float64)
    other = live(member("m", model=Recalling), elsewhere)
    other.load_state_dict(saved)
    assert other.model.mean.is_meta


def test_host_tensors_in_the_state_of_a_step_stay_there() -> None:
    state = {"bank": torch.zeros(2, device="meta"), "mean": torch.zeros(2), "steps": 3}
    assert tensors_at(state, torch.device("meta")) == [0]
    generator = {"generator": torch.Generator().get_state(), "mean": torch.zeros(2)}
    assert tensors_at(generator, torch.device("cpu")) == [1]
    assert tensors_at({"counts": np.zeros(2), "mean": torch.zeros(2)}, torch.device("cpu")) == [1]


@pytest.mark.parametrize(
    "wait", [Tensor.item, Tensor.cpu, lambda one: one.copy_(torch.ones(())), lambda one: one.new_tensor(1.0)]
)
def test_what_waits_is_seen(wait: Any, elsewhere: str) -> None:
    """The watched device notices waits; otherwise the other tests would prove nothing."""
    one = torch.zeros((), device="meta")
    with pytest.raises(Waits), unwaiting():
        wait(one)


@pytest.mark.parametrize("example", ["gan", "boxes"])
def test_examples_train_on_an_accelerator(example: str, elsewhere: str) -> None:
    study = runpy.run_path(str(Path(__file__).parents[2] / "examples" / f"{example}.py"))["study"]
    made = build_member(study.members[0], open_backend(elsewhere), study_seed=0, objective="val_loss", mode="min")
    images, boxes = torch.rand(4, 1, 32, 32, device="meta"), torch.rand(4, 5, 4, device="meta")
    if example == "boxes":
        assert made.member.loss(made.model(images), boxes).is_meta
    else:
        assert made.member.step(made.model, (torch.rand(4, 64, device="meta"),), made.optimizer.by_name).is_meta
