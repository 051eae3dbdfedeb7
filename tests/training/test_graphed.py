"""Tests that captured steps give members what they get alone, on a CPU recorder as strict as CUDA graphs and on a CUDA device."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import late
import pytest
import replays
import torch
from blocks import blocks
from packs import (
    Drifting,
    Pulled,
    ResNet,
    Transformer,
    alone,
    convnet,
    difference,
    live,
    matrices,
    member,
    mlp,
    samples,
    state,
    there,
    train,
)
from replays import recorded
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam, AdamW, RMSprop
from torch.optim.lr_scheduler import ExponentialLR, LambdaLR, StepLR

import argosy
from argosy.averages import SWA
from argosy.errors import StudyError
from argosy.protocol.packs import FellBack
from argosy.running.directory.journal import read_journal
from argosy.stream.blocks import Place
from argosy.stream.heartbeat import Heartbeat
from argosy.stream.schedule import Orders
from argosy.study import Member
from argosy.training.choice import fusion_group
from argosy.training.choice.fusion_group import ALONE, FusionGroup
from argosy.training.device.devices import Cpu, PassedEvent
from argosy.training.device.equivalence import have_diverged
from argosy.training.device.recorders import make_recorder
from argosy.training.member.live import LiveMember
from argosy.training.member.weights import NetworkWeights
from argosy.training.programs.fused.fused import Fused
from argosy.training.programs.graphed import evaluation
from argosy.training.programs.graphed.capturable import why_not_captured
from argosy.training.programs.graphed.graphed import MAX_DISTANCE, Graphed, run_concurrently
from argosy.training.programs.solo import Solo
from argosy.training.trainer.program_choice import ProgramChoice
from argosy.training.trainer.program_instances import ProgramInstance, Round
from argosy.training.trainer.stepping import Stepping

replayable = replays.replayable
DEVICES = [
    pytest.param("cpu:0", id="recorded"),
    pytest.param(
        "cuda:0",
        marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")],
        id="cuda",
    ),
]
pytestmark = pytest.mark.usefixtures("replayable")


def per_step(make: Any, *args: Any) -> dict[str, Any]:
    return {"schedule": lambda optimizer: make(optimizer, *args), "schedule_per": "step"}


PACKS: Mapping[str, Sequence[Member]] = {
    "sgd": [member(f"m{n}", optimizer=partial(SGD, lr=0.1 / n)) for n in (1, 2, 3)],
    "momenta, schedules, clipping": [
        member("a", optimizer=partial(SGD, lr=0.1, momentum=0.9, nesterov=True), clip_grad_norm=0.1),
        member("b", optimizer=partial(SGD, lr=0.1, momentum=0.5, nesterov=True), **per_step(ExponentialLR, 0.9)),
        member("c", optimizer=partial(SGD, lr=0.1, momentum=0.5), **per_step(LambdaLR, lambda step: 1 / (step + 1))),
    ],
    "adams": [
        member("a", optimizer=partial(Adam, lr=0.01, betas=(0.8, 0.9))),
        member("b", optimizer=partial(Adam, lr=0.02, weight_decay=0.1), schedule=lambda o: StepLR(o, 1, 0.5)),
        member("c", optimizer=partial(AdamW, lr=0.01, weight_decay=0.5), **per_step(ExponentialLR, 0.9)),
    ],
    "lists": [
        member("a", optimizer=partial(matrices, lr=0.01), **per_step(ExponentialLR, 0.9)),
        member("b", optimizer=partial(matrices, lr=0.02, momentum=0.8, weight_decay=0.0), clip_grad_norm=0.5),
    ],
    "batch norm": [member(f"m{n}", model=ResNet, optimizer=partial(SGD, lr=0.1 / n)) for n in (1, 2)],
    "shorter last batches": [member(f"m{n}", batch_size=20, optimizer=partial(Adam, lr=0.01 * n)) for n in (1, 2)],
    "micro-batches": [member(f"m{n}", accumulate=2, optimizer=partial(Adam, lr=0.01 * n)) for n in (1, 2)],
    "own samples": [member(f"m{n}", subset=[*range(n, 64 + n)], optimizer=partial(SGD, lr=0.1)) for n in (1, 2)],
    "attention": [member(f"m{n}", model=Transformer, optimizer=partial(SGD, lr=0.1 / n)) for n in (1, 2)],
}


ROUNDING_ON_CUDA = {"lists": 0.1, "attention": 1e-4}
"""Tolerances on CUDA: Muon orthogonalizes matrices in 16 bits, where products of several matrices round differently; torch evaluates the
encoder layer of a single network by another path, which agrees to six digits."""


def on(device: str, members: Sequence[Member]) -> list[LiveMember]:
    return [live(one, device) for one in members]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("pack", PACKS)
def test_a_captured_pack_is_each_of_its_members_alone(pack: str, device: str) -> None:
    members = PACKS[pack]
    single = on(device, members)
    history: dict[str, Any] = {}
    for one in single:
        history |= train(Solo(one), 3)
    lives = on(device, members)
    program = Graphed.of(Fused.of(lives))
    found = train(program, 3)
    assert program.replays
    rounding = 1e-10 if device == "cpu:0" else ROUNDING_ON_CUDA.get(pack, 1e-10)
    for one, other in zip(single, lives, strict=True):
        assert difference(state(one), state(other)) <= rounding, one.member.name
    assert difference(history, found) <= rounding
    program.release()
    assert difference(state(single[0]), state(lives[0])) <= rounding


def test_a_step_that_is_not_made_as_a_whole_is_counted() -> None:
    """An eager step, for unequal batches between replays (here due to broken samples), advances Adam's bias corrections as well."""
    members = [
        member(
            f"m{n}",
            batch_size=4,
            subset=[*range(8 * n, 56 + 8 * n)],
            optimizer=partial(Adam, lr=0.03, betas=(0.9, 0.99)),
        )
        for n in range(2)
    ]
    single, lives = on("cpu:0", members), on("cpu:0", members)
    history: dict[str, Any] = {}
    for one in single:
        history |= train(Solo(one), 3, size=64, holes=[3, 5, 60])
    program = Graphed.of(Fused.of(lives))
    found = train(program, 3, size=64, holes=[3, 5, 60])
    assert program.replays
    assert difference(history, found) <= 1e-10
    for one, other in zip(single, lives, strict=True):
        assert difference(state(one), state(other)) <= 1e-10


SINGLES: Mapping[str, Member] = {
    "sgd": member("m"),
    "adam, clipped": member("m", optimizer=partial(Adam, lr=0.01, weight_decay=0.1), clip_grad_norm=0.1),
    "a list": member("m", optimizer=partial(matrices, lr=0.01, nesterov=False)),
    "a schedule": member("m", optimizer=partial(AdamW, lr=0.01), **per_step(ExponentialLR, 0.9)),
    "dropout": member("m", model=partial(convnet, dropout=0.3)),
    "batch norm": member("m", model=ResNet, optimizer=partial(Adam, lr=0.01), batch_size=20),
    "augmented": member("m", augment=lambda batch: (batch[0] + 0.1 * torch.randn_like(batch[0]), batch[1])),
    "micro-batches": member("m", accumulate=3, loss=nn.CrossEntropyLoss()),
    "groups": member(
        "m",
        optimizer=lambda p: SGD(
            [{"params": ps, "lr": 0.1 * n} for n, ps in enumerate(zip(p, strict=False), 1)], lr=0.1
        ),
    ),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", SINGLES)
def test_a_captured_member_is_that_member(kind: str, device: str) -> None:
    (single,), (one,) = on(device, [SINGLES[kind]]), on(device, [SINGLES[kind]])
    assert why_not_captured(Solo(one)) is None
    program = Graphed.of(Solo(one))
    history, found = train(Solo(single), 3), train(program, 3)
    assert program.replays
    assert difference(state(single), state(one)) <= 1e-10
    assert difference(history, found) <= 1e-10
    program.release()
    train(Solo(one), 1)
    train(Solo(single), 1)
    assert difference(state(single), state(one)) <= 1e-10


def test_losses_are_added_up_as_they_come() -> None:
    members = PACKS["sgd"]
    plain, lives = on("cpu:0", members), on("cpu:0", members)
    history, found = train(Fused.of(plain), 3), train(Graphed.of(Fused.of(lives)), 3)
    assert difference(history, found) == 0.0
    assert [difference(state(one), state(other)) for one, other in zip(plain, lives, strict=True)] == [0.0] * 3


def test_between_blocks_members_stand_where_they_would() -> None:
    arrays, val = samples()
    orders = Orders(0, {"train": len(arrays[0]), "val": len(val[0])})
    lives = on("cpu:0", [SINGLES["adam, clipped"]] * 2)
    programs = [Solo(lives[0]), Graphed.of(Solo(lives[1]))]
    for epoch in range(2):
        for one in lives:
            one.begin_epoch(orders, epoch)
        for block in blocks(orders.epoch("train", epoch), 40, arrays=arrays, epoch=epoch):
            for program in programs:
                with program.active():
                    for batch in program.cut(there(block, program)):
                        program.begin(batch)
                        program.finish()
            one, other = (live.state_dict(carried=True) | {"seconds": 0.0} for live in lives)
            assert difference(one, other) <= 1e-10
        for one in lives:
            one.end_section(1)


# ---- what cannot be captured


def beyond(program: Any, plain: Callable[[], Any], epochs: int = 2) -> list[str]:
    """Train as a trainer does: undo a step that raises, and continue with the program `plain()`. Return the error messages."""
    (arrays, val), raised, lives = samples(), list[str](), program.members
    orders = Orders(0, {"train": len(arrays[0]), "val": len(val[0])})
    for epoch in range(epochs):
        for one in lives:
            one.begin_epoch(orders, epoch)
        for block in blocks(orders.epoch("train", epoch), 40, arrays=arrays, epoch=epoch):
            while True:
                error = ""
                try:
                    with program.active():
                        for batch in program.cut(there(block, program)):
                            program.begin(batch)
                            program.finish()
                except Exception as found:
                    error = str(found)
                if not error:
                    break
                raised.append(error)
                program.undo()
                program.release()
                program = plain()
        for block in blocks(orders.epoch("val", epoch), 40, arrays=val, split="val"):
            with program.active(keep=True):
                for _ in program.evaluate(there(block, program)):
                    pass
        for one in lives:
            one.end_section(1)
    return raised


class Noting(nn.Module):
    """A network that counts its calls in an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.calls = mlp(), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.inner(x)


class Half(nn.Module):
    """A network with a layer that it does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.idle = mlp(), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


class Assigning(nn.Module):
    """A network that replaces a buffer in each training pass instead of writing into it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        made = self.inner(x)
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * made.detach().mean(0)
        return made - self.mean


def reading(output: Tensor, target: Tensor) -> Tensor:
    losses = functional.cross_entropy(output, target, reduction="none")
    return losses * (2.0 if losses.mean().item() > 0 else 1.0)


class Hungry(nn.CrossEntropyLoss):
    """A loss that runs out of memory the first time it is recorded."""

    fed = False

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        if recorded[-1].asked[-1:] == ["record"] and not self.fed:
            self.fed = True
            raise torch.OutOfMemoryError("no memory")
        return super().forward(output, target)


class Counted(nn.CrossEntropyLoss):
    """A loss that counts its calls; the count affects the result only after 10,000."""

    calls = 0

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(output, target) * (0.5 if self.calls > 10_000 else 1.0)


UNCAPTURED: Mapping[str, tuple[Member, str]] = {
    "reads a value": (member("m", loss=reading), "called a synchronizing operation"),
    "runs out of memory": (member("m", loss=Hungry(reduction="none")), "no memory"),
    "network counts calls": (member("m", model=Noting), "a step changes 'calls' of the network, on the host"),
    "loss counts calls": (member("m", loss=Counted()), "a step changes its loss, on the host"),
    "step keeps an average": (member("m", step=Pulled(), metrics={}), "a step changes its step, on the host"),
    "augmentation keeps a sum": (member("m", loss=reading, augment=Drifting()), "called a synchronizing operation"),
    "assigns a buffer": (member("m", model=Assigning), "a step changes the buffer 'mean', on the host"),
    "skips a weight": (
        member("m", model=Half, optimizer=partial(SGD, lr=0.1, weight_decay=0.1)),
        "the weight 'idle.bias' gets no gradient, so its optimizer skips it",
    ),
}


@pytest.mark.parametrize("kind", UNCAPTURED)
def test_what_cannot_be_captured_is_made_plainly_from_that_step_on(kind: str) -> None:
    one, reason = UNCAPTURED[kind]
    (found,) = on("cpu:0", [one])
    raised = beyond(Graphed.of(Solo(found)), lambda: Solo(found))
    (single,), _ = alone([one], 2)
    assert raised == [reason]
    assert difference(state(single), state(found)) <= 1e-10
    assert counts(single) == counts(found)


def counts(one: LiveMember) -> tuple[int, int]:
    """Return the numbers that networks and losses of `UNCAPTURED` keep, which are in no checkpoint."""
    return getattr(one.model, "calls", 0), getattr(one.member.loss, "calls", 0)


def test_a_pack_with_an_optimizer_without_kernel_is_not_tried_as_captured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fusion_group, "MAX_TRIES", 1)
    monkeypatch.setattr(fusion_group, "MAX_ROUNDS", 1)
    x = torch.randn(64, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    data = argosy.Data(arrays=(x, x[:, :4].argmax(1)))
    members = [member(name, optimizer=made, metrics={}) for name, made in (("a", RMSprop), ("b", Adam))]
    study = argosy.Study(data=data, members=members, stop=argosy.MaxEpochs(40))
    argosy.train(study, directory=tmp_path, devices="cpu:1", launcher="inline", quiet=True)
    assert not [event for event in read_journal(tmp_path) if isinstance(event, FellBack)]


def test_a_pack_that_draws_is_made_plainly() -> None:
    members = [member(f"m{n}", model=partial(convnet, dropout=0.2)) for n in range(2)]
    lives = on("cpu:0", members)
    raised = beyond(Graphed.of(Fused.of(lives)), lambda: Fused.of(lives))
    assert raised == ["its members draw random numbers, each from its own state"]
    single, _ = alone(members, 2)
    for one, other in zip(single, lives, strict=True):
        assert difference(state(one), state(other)) <= 1e-10


def test_a_schedule_that_changes_what_steps_are_made_of_ends_it() -> None:
    def wake(optimizer: Any) -> Any:
        def rate(step: int) -> float:
            optimizer.param_groups[0]["weight_decay"] = 0.1 * (step > 7)
            return 1.0

        return LambdaLR(optimizer, rate)

    one = member("m", schedule=wake, schedule_per="step")
    (found,) = on("cpu:0", [one])
    raised = beyond(Graphed.of(Solo(found)), lambda: Solo(found))
    (single,), _ = alone([one], 2)
    assert raised == ["a schedule has changed the form of its steps"]
    assert difference(state(single), state(found)) <= 1e-10


CALLS: list[int] = []
"""Calls of `growing`, in a global that no check of host state watches."""


def growing(output: Tensor, target: Tensor) -> Tensor:
    CALLS.append(1)
    return functional.cross_entropy(output, target, reduction="none") * 2.0 ** len(CALLS)


def test_a_replay_that_leads_elsewhere_is_found_before_it_counts() -> None:
    (found,) = on("cpu:0", [member("m", loss=growing)])
    raised = beyond(Graphed.of(Solo(found)), lambda: Solo(found), epochs=1)
    assert raised == ["when replayed, its step gives a different result"]
    assert len(replays.closed) == 1


def test_what_makes_its_steps_itself_is_refused() -> None:
    slow = partial(SGD, lr=0.01, momentum=0.5, dampening=0.1)
    for optimizer in (partial(RMSprop, lr=0.01), slow):
        (found,) = on("cpu:0", [member("m", optimizer=optimizer)])
        assert why_not_captured(Solo(found)) == "its optimizer has no kernel"
        beside = Fused.of([found, *on("cpu:0", [member("other")])])
        assert why_not_captured(beside) == "one of its optimizers has no kernel"


def test_refusal_of_a_device_without_recorders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(replays.recorders.RECORDERS, "cpu")
    (found,) = on("cpu:0", [member("m")])
    assert why_not_captured(Solo(found)) == "its device cannot capture steps"


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("batch_size", [16, 20])
def test_undo_after_a_validation_undoes_no_step(count: int, batch_size: int) -> None:
    """`undo` after an error in validation leaves the last step alone, even an eager one of a shorter batch."""
    lives = on("cpu:0", [replace(SINGLES["augmented"], name=f"m{n}", batch_size=batch_size) for n in range(count)])
    program = Graphed.of(Solo(lives[0]) if count == 1 else Fused.of(lives))
    train(program, 1)
    assert program.replays
    before = [state(one) for one in lives]
    program.undo()
    assert difference(before, [state(one) for one in lives]) == 0.0


def test_a_label_without_an_output_is_found_before_it_is_replayed() -> None:
    (found,) = on("cpu:0", [member("m", batch_size=8)])
    program = Graphed.of(Solo(found))
    inputs, targets = samples()[0]
    orders = Orders(0, {"train": len(targets)})
    for epoch, labels in enumerate((targets, torch.where(targets == 3, 9, targets))):
        found.begin_epoch(orders, epoch)
        for block in blocks(orders.epoch("train", epoch), 96, arrays=(inputs, labels), epoch=epoch):
            apart = block.with_copies(block.leaves)  # as on a device with its own memory, with labels kept on the host
            raises = pytest.raises(StudyError, match="a target has label 9") if epoch else contextlib.nullcontext()
            with raises, program.active():
                for batch in program.cut(apart):
                    program.begin(batch)
                    program.finish()
        assert program.replays
        assert found.steps == 12


# ---- side by side


@pytest.mark.parametrize("device", DEVICES)
def test_unlike_members_step_side_by_side_once_all_are_replayed(device: str) -> None:
    members = [member("a", model=ResNet), member("b", optimizer=partial(Adam, lr=0.01)), member("c", model=convnet)]
    arrays, val = samples()
    orders = Orders(0, {"train": len(arrays[0]), "val": len(val[0])})
    single, lives = on(device, members), on(device, members)
    programs = [Graphed.of(Solo(one)) for one in lives]
    for epoch in range(3):
        for one in lives:
            one.begin_epoch(orders, epoch)
        for block in blocks(orders.epoch("train", epoch), 96, arrays=arrays, epoch=epoch):
            for recorder in recorded:
                recorder.asked.clear()
            with run_concurrently(programs):
                for program in programs:
                    with program.active():
                        for batch in program.cut(there(block, program)):
                            program.begin(batch)
                            program.finish()
        for block in blocks(orders.epoch("val", epoch), 96, arrays=val, split="val"):
            for program in programs:
                with program.active(keep=True):
                    for _ in program.evaluate(there(block, program)):
                        pass
        for one in lives:
            one.end_section(1)
    if device == "cpu:0":
        assert [recorder.asked for recorder in recorded] == [["fork", "own", "over", "join"]] * 3
    for one, other in zip(single, lives, strict=True):
        train(Solo(one), 3, size=96)
        assert difference(state(one), state(other)) <= 1e-10


def asked_for(programs: Sequence[Graphed], epoch: int) -> list[list[str]]:
    """Step through one block side by side, and return the calls that the recorder of each program got."""
    arrays, _ = samples()
    orders = Orders(0, {"train": len(arrays[0])})
    for program in programs:
        program.members[0].begin_epoch(orders, epoch)
    (block,) = blocks(orders.epoch("train", epoch), 96, arrays=arrays, epoch=epoch)
    for recorder in recorded:
        recorder.asked.clear()
    with run_concurrently(programs):
        for program in programs:
            with program.active():
                for batch in program.cut(there(block, program)):
                    program.begin(batch)
                    program.finish()
    return [recorder.asked for recorder in recorded]


def test_replays_that_share_a_random_state_do_not_run_at_once() -> None:
    kinds = ["dropout", "dropout", "sgd"]
    programs = [Graphed.of(Solo(one)) for one in on("cpu:0", [SINGLES[kind] for kind in kinds])]
    asked_for(programs, 0)
    assert all(program.replays for program in programs)
    assert asked_for(programs, 1) == [[]] * 3
    apart = ["fork", "own", "over", "join"]
    assert asked_for(programs[1:], 2) == [[], apart, apart]
    for recorder in recorded:
        recorder.draws_apart = True
    assert asked_for(programs, 3) == [apart] * 3


class Unguarded:
    """A guard that does not handle errors."""

    careful = False

    def __call__(self, name: str, steps: Callable[[], Any]) -> Any:
        return steps()

    def wait_if_careful(self) -> None:
        """Return at once."""


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("pack", ["adams", "batch norm", "shorter last batches", "own samples", "attention"])
def test_a_pack_is_evaluated_by_a_captured_pass_as_each_member_alone(
    pack: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "EAGER_PASSES", 2)
    members = [replace(one, metrics={"accuracy": argosy.accuracy, "spread": spread}) for one in PACKS[pack]]
    single, lives = on(device, members), on(device, members)
    history: dict[str, Any] = {}
    for one in single:
        history |= train(Solo(one), 4)
    fused = Fused.of(lives)
    program = Graphed.of(fused)
    found = train(program, 4)
    assert replayed_evaluation(fused)
    assert difference(history, found) <= (1e-10 if device == "cpu:0" else ROUNDING_ON_CUDA.get(pack, 1e-10))
    held = program.memory_bytes
    program.release()
    assert fused.evaluation is None and program.memory_bytes < held


def spread(output: Tensor, target: Tensor) -> Tensor:
    """A metric of the whole set, for which all outputs are kept."""
    return output.double().std()


def replayed_evaluation(program: Any) -> bool:
    return isinstance(program.evaluation, evaluation.Evaluation) and program.evaluation.captured.replays


class Sampling(nn.Module):
    """A network that draws in evaluation only."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp()

    def forward(self, x: Tensor) -> Tensor:
        return functional.dropout(self.inner(x), 0.2, training=not self.training)


CALLED: list[int] = []
"""Calls of `drifting` in evaluation, in a global that no check of host state watches."""


def drifting(output: Tensor, target: Tensor) -> Tensor:
    losses = functional.cross_entropy(output, target, reduction="none")
    if not torch.is_grad_enabled():
        CALLED.append(1)
    return losses if torch.is_grad_enabled() else losses * (1.0 + 0.01 * len(CALLED))


def test_an_evaluation_that_draws_is_computed_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "EAGER_PASSES", 2)
    members = [member(f"m{n}", model=Sampling, optimizer=partial(SGD, lr=0.1 / n)) for n in (1, 2)]
    single, lives = on("cpu:0", members), on("cpu:0", members)
    history: dict[str, Any] = {}
    for one in single:
        history |= train(Solo(one), 3)
    fused = Fused.of(lives)
    program = Graphed.of(fused)
    assert difference(history, train(program, 3)) <= 1e-10
    assert program.replays and not replayed_evaluation(fused)


def test_an_evaluation_whose_replay_gives_other_results_or_holds_much_is_computed_plainly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(evaluation, "EAGER_PASSES", 2)
    for loss, least, replayed in ((None, 2**28, True), (drifting, 2**28, False), (None, 64, False)):
        monkeypatch.setattr(evaluation, "MAX_HELD_BYTES", least)
        fused = Fused.of(on("cpu:0", [member(f"m{n}", loss=loss) for n in (1, 2)]))
        program = Graphed.of(fused)
        train(program, 2)
        assert program.replays
        assert replayed_evaluation(fused) == replayed


def test_validations_of_single_members_are_not_side_by_side() -> None:
    """Evaluations of single members are not captured, and each stream would keep memory for activations."""
    programs = [Graphed.of(Solo(one)) for one in on("cpu:0", [SINGLES["sgd"], SINGLES["sgd"]])]
    asked_for(programs, 0)
    arrays, val = samples()
    orders = Orders(0, {"train": len(arrays[0]), "val": len(val[0])})
    instances = list[ProgramInstance]()
    for program in programs:
        (one,) = program.members
        one.begin_epoch(orders, 1)
        assigned = SimpleNamespace(live=one, name=one.member.name, leads=True, follow=lambda _: True)
        instances.append(ProgramInstance(program=program, assignment=(assigned,)))
    choice = SimpleNamespace(form_groups=lambda _: None, settle=lambda: None)
    given = (instances, {}, choice, Unguarded(), Heartbeat.private(), print)
    stepping, asked = Stepping(*given, wanted=lambda: False), list[set[str]]()
    for split, of in (("train", arrays), ("val", val)):
        for recorder in recorded:
            recorder.asked.clear()
        for block in blocks(orders.epoch(split, 1), 96, arrays=of, split=split, epoch=1):
            assert stepping.through(block)
        asked.append({what for recorder in recorded for what in recorder.asked})
    assert asked == [{"fork", "own", "over", "join"}, set()]


@dataclass
class Ending(Unguarded):
    """A guard that reads the best weights of a member that ends, as if into a file, and raises other errors."""

    live: LiveMember
    read: int = 0

    def check_process(self, names: tuple[str, ...], error: Exception) -> None:
        """Raise the error."""
        raise error

    def end(self, name: str, status: str, reason: str) -> None:
        """Read them."""
        found = self.live.best.state()
        assert found is not None
        self.read += len([weight.clone() for weight in found["model"].values()])


def test_programs_side_by_side_use_no_memory_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An epoch begins on the common stream, with the means of weights, and there the best weights of a member that ends are read."""
    kinds = {"average": SWA(1), "model": ResNet, "optimizer": partial(SGD, lr=0.1)}
    lives = on("cpu:0", [member("a", **kinds), member("b", **kinds), member("c")])
    programs, guard = [Graphed.of(Solo(one)) for one in lives], Ending(lives[-1])
    lives[-1].weights = NetworkWeights("c", lives[-1].model, None, apart=True)
    lives[-1].best.network = lives[-1].weights
    arrays, val = samples()
    orders = Orders(0, {"train": len(arrays[0]), "val": len(val[0])})
    epochs = {id(one): -1 for one in lives}

    def follow(one: LiveMember, place: Place) -> bool:
        if place.epoch > epochs[id(one)]:
            epochs[id(one)] = place.epoch
            one.begin_epoch(orders, place.epoch)
        return True

    instances = [
        ProgramInstance(
            program=program,
            assignment=(SimpleNamespace(live=one, name=one.member.name, leads=True, follow=partial(follow, one)),),
        )
        for program, one in zip(programs, lives, strict=True)
    ]
    choice = SimpleNamespace(form_groups=lambda _: None, settle=lambda: None)
    given = (instances, {}, choice, guard, Heartbeat.private(), print)
    stepping = Stepping(*given, wanted=lambda: False)
    monkeypatch.setattr(LiveMember, "diverged", property(lambda own: own is lives[-1] and own.epoch == 2))
    with replays.Races():
        for epoch in range(3):
            for split, of in (("train", arrays), ("val", val)):
                for block in blocks(orders.epoch(split, epoch), 96, arrays=of, split=split, epoch=epoch):
                    assert stepping.through(block)
            for one in lives:
                one.end_section(1)
    assert all(program.replays for program in programs)
    assert guard.read and lives[0].averaged is not None


@dataclass
class At:
    """An event that passes at a time in milliseconds; `now` is the latest time that was waited for."""

    at: float
    now: ClassVar[float] = -1.0

    def query(self) -> bool:
        return At.now >= self.at

    def synchronize(self) -> None:
        At.now = max(At.now, self.at)

    def elapsed_time(self, end: "At") -> float:
        assert self.query() and end.query()
        return end.at - self.at


def test_members_side_by_side_share_the_time_of_their_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two programs that take 6 and 3 seconds overlap in a pass of 6 seconds, which is divided in proportion."""
    programs = [Graphed.of(Solo(one)) for one in on("cpu:0", [SINGLES["sgd"], SINGLES["sgd"]])]
    asked_for(programs, 0)
    before = [program.members[0].seconds for program in programs]
    stamps = [At(at) for at in (0.0, 0.0, 6000.0, 1000.0, 4000.0, 6000.0)]
    monkeypatch.setattr(Cpu, "stamp", lambda _: stamps.pop(0))
    asked_for(programs, 1)
    assert not stamps
    passed = [program.members[0].seconds - was for program, was in zip(programs, before, strict=True)]
    assert passed == pytest.approx([4.0, 2.0])


def test_losses_are_fetched_behind_the_steps_that_sum_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """This also holds for the eager locksteps in which a member has no batch."""

    def fetch(_: Cpu, tensor: Tensor) -> tuple[Tensor, PassedEvent]:
        recorded[-1].asked.append("fetch")
        return tensor.clone(), PassedEvent()

    lives = on("cpu:0", PACKS["own samples"])
    program = Graphed.of(Fused.of(lives))
    train(program, 1)
    assert program.replays
    monkeypatch.setattr(Cpu, "fetch", fetch)
    (arrays, _), uneven = samples(), 0
    orders = Orders(0, {"train": len(arrays[0])})
    for one in lives:
        one.begin_epoch(orders, 1)
    for block in blocks(orders.epoch("train", 1), 8, arrays=arrays, epoch=1):
        recorded[-1].asked.clear()
        program.fork()
        with program.active():
            for batch in program.cut(there(block, program)):
                uneven += None in batch
                program.begin(batch)
                program.finish()
        assert not any(one.diverged for one in lives)
        assert "fetch" not in recorded[-1].asked[recorded[-1].asked.index("over") :]
        program.join()
    assert uneven


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("pack", ["momenta, schedules, clipping", "adams"])
def test_the_host_waits_for_no_plain_step_of_a_pack(pack: str) -> None:
    lives = on("cuda:0", PACKS[pack])
    program = Fused.of(lives)
    train(program, 1)
    (arrays, _) = samples()
    orders = Orders(0, {"train": len(arrays[0])})
    for one in lives:
        one.begin_epoch(orders, 1)
        one.best.keep()  # outside of the strict part: it may copy weights to the host, if the last epoch was the best
    (block,) = blocks(orders.epoch("train", 1), 96, arrays=arrays, epoch=1)
    with program.active(), make_recorder(lives[0].backend).strict():
        for batch in program.cut(there(block, program)):
            program.begin(batch)
            program.finish()


# ---- memory


def test_what_a_recording_keeps_counts_for_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cpu, "memory_in_use", lambda _: 1000)
    monkeypatch.setattr(Cpu, "peak_memory", lambda _: 1100)
    (one,) = on("cpu:0", [SINGLES["sgd"]])
    assigned = SimpleNamespace(live=one, name=one.member.name)
    instance = ProgramInstance(program=Graphed.of(Solo(one)), assignment=(assigned,), round=Round(100))
    (arrays, _) = samples()
    orders = Orders(0, {"train": len(arrays[0])})
    one.begin_epoch(orders, 0)
    (block,) = blocks(orders.epoch("train", 0), 96, arrays=arrays)
    assert instance.kept_bytes == 0
    instance.step(block, lambda: False)
    assert instance.kept_bytes > 100
    assert instance.round is not None and instance.round.need == 100 + instance.kept_bytes


def test_a_first_replay_is_compared_in_little_memory() -> None:
    """There are three copies of the weights by then; two more in float64 would be larger than all of these."""
    before, replayed, wrong = torch.zeros(3, 2_000_000), torch.ones(3, 2_000_000), torch.ones(3, 2_000_000)
    wrong[2, -1] = 1000.0
    with late.Counted(None) as counted:
        assert not have_diverged(torch.ones(1).expand(3, 2_000_000), replayed, before, MAX_DISTANCE)
        assert 0 < counted.peak < replayed.nbytes / 3
        assert have_diverged(replayed, wrong, before, MAX_DISTANCE)


def test_captured_steps_are_refused_where_memory_would_not_hold_them_all_at_once() -> None:
    found = []
    for room in (1100, 1200):
        fusion_group = FusionGroup(kinds=("plain", "graphed"), needs={ALONE: 250 * 2**20})
        fusion_group.estimate_fit(4, room * 2**20)
        found.append(fusion_group.refused)
    assert found == [{"graphed": "captured, steps of 4 members would keep 1000.0 MiB; 1.1 GiB are free"}, {}]


def test_memory_of_others_captured_steps_is_no_room() -> None:
    late = SimpleNamespace(
        name="late:1",
        memory_in_use=lambda: 100,
        foreign_memory=lambda: 20,
        hardware=lambda kind: [None, SimpleNamespace(memory_bytes=1000)],
    )
    fusion_group, assignment = FusionGroup(), [SimpleNamespace(live=SimpleNamespace(backend=late))]
    instances = [
        SimpleNamespace(fusion_group=one, assignment=assignment, kept_bytes=kept)
        for one, kept in ((fusion_group, 300), (FusionGroup(), 50), (None, 0))
    ]
    fusion = ProgramChoice(
        "late:1",
        instances,
        lambda report: None,
        lambda names: [],
        Heartbeat.private(),
        lambda since: None,
        allowed=True,
    )
    assert fusion._room(fusion_group) == 1000 - 100 - 20 - 50


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", ["reads a value", "network counts calls", "assigns a buffer"])
def test_after_a_capture_that_fails_a_cuda_device_goes_on(kind: str) -> None:
    one = UNCAPTURED[kind][0]
    single, found = on("cuda:0", [one, one])
    raised = beyond(Graphed.of(Solo(found)), lambda: Solo(found))
    train(Solo(single), 2)
    assert len(raised) == 1
    assert difference(state(single), state(found)) <= 1e-10
    dropping = on("cuda:0", [SINGLES["dropout"]] * 2)
    program = Graphed.of(Solo(dropping[1]))
    train(Solo(dropping[0]), 2), train(program, 2)
    assert program.replays
    assert difference(state(dropping[0]), state(dropping[1])) <= 1e-10
