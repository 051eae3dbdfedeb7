"""Tests of members whose own step updates the weights, and of metrics beside an own step."""

import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import evidence
import packs
import pytest
import studies
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

import argosy
from argosy.stream.order import member_seed, permutation
from argosy.training.device.devices import open_backend
from argosy.training.member import checkpoint
from argosy.training.member.building import build_member
from argosy.training.member.live import LiveMember
from argosy.training.member.own import OwnSchedules
from argosy.training.programs.solo import Solo

REAL = torch.randn(50, 4, generator=torch.Generator().manual_seed(1)).numpy()
BATCH = 16


class Gan(nn.Module):
    """A generator and a discriminator."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 4))
        self.discriminator = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, z: Tensor) -> Tensor:
        return self.generator(z)


def optimizers(model: Gan, lr: float = 0.01) -> dict[str, Any]:
    return {
        "generator": Adam(model.generator.parameters(), lr=lr),
        "discriminator": SGD(model.discriminator.parameters(), lr=lr, momentum=0.9),
    }


def schedule(optimizers: Mapping[str, Any]) -> dict[str, Any]:
    return {name: StepLR(optimizer, step_size=1, gamma=0.5) for name, optimizer in optimizers.items()}


def step(model: Gan, batch: Any, optimizers: Mapping[str, Any]) -> Tensor:
    (real,) = batch
    ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
    fake = model(torch.randn(len(real), 2))
    optimizers["discriminator"].zero_grad()
    right = binary_cross_entropy_with_logits(model.discriminator(real), ones)
    wrong = binary_cross_entropy_with_logits(model.discriminator(fake.detach()), zeros)
    (right + wrong).backward()
    optimizers["discriminator"].step()
    optimizers["generator"].zero_grad()
    loss = binary_cross_entropy_with_logits(model.discriminator(fake), ones)
    loss.backward()
    optimizers["generator"].step()
    return loss


def validate(model: Gan, batch: Any) -> tuple[Tensor, Tensor, Tensor]:
    scores = model.discriminator(batch[0])
    return binary_cross_entropy_with_logits(scores, torch.ones_like(scores)), scores, torch.ones_like(scores)


def seen(scores: Tensor, ones: Tensor) -> Tensor:
    return (scores > 0).float().squeeze(1)


def gan(name: str = "gan", **rest: Any) -> argosy.Member:
    given = {"optimizers": optimizers, "schedule": schedule, "validate": validate, "metrics": {"seen": seen}, **rest}
    return argosy.Member(name, model=Gan, step=step, batch_size=BATCH, **given)


def train(directory: Path, *members: argosy.Member, epochs: int, **rest: Any) -> argosy.Report:
    data = argosy.Data(arrays=(REAL,), val_arrays=(REAL[:20],))
    study = argosy.Study(data=data, members=members, stop=argosy.MaxEpochs(epochs))
    return argosy.train(study, directory=directory, launcher="inline", devices="cpu:1", block_size=11, **rest)


def by_hand(name: str, epochs: int) -> tuple[str, str]:
    """Train in a plain loop; return the fingerprints of the weights and of the optimizers."""
    torch.manual_seed(member_seed(0, name))
    model = Gan()
    own = optimizers(model)
    moved = schedule(own)
    for epoch in range(epochs):
        order = permutation(0, epoch, len(REAL))
        for start in range(0, len(REAL), BATCH):
            step(model, (torch.from_numpy(REAL[order[start : start + BATCH]]),), own)
        for one in moved.values():
            one.step()
    saved = {name: optimizer.state_dict() for name, optimizer in own.items()}
    return evidence.fingerprint(model.state_dict()), evidence.fingerprint({"state": saved})


def test_a_step_that_moves_the_weights_trains_as_a_plain_loop_beside_others_and_over_a_resume(tmp_path: Path) -> None:
    fleet = [gan(f"gan{number}") for number in range(3)]
    train(tmp_path, *fleet, epochs=1)
    report = train(tmp_path, *fleet, epochs=3)
    found = evidence.results(tmp_path)
    for member in fleet:
        weights, moved = by_hand(member.name, 3)
        assert (found[member.name]["weights"], found[member.name]["optimizer"]) == (weights, moved)
        assert found[member.name]["epochs"][-1][2]["lr"] == 0.01 / 4
    assert set(report.alone.values()) == {"its own step updates the weights"}
    best = report.best()
    network = best.load()
    scores = network.discriminator(torch.from_numpy(REAL[:20]))
    assert best.metrics["val_seen"] == pytest.approx(float((scores > 0).float().mean()))


def test_members_that_move_their_weights_are_no_program_with_others(tmp_path: Path) -> None:
    from argosy.training.choice.split_check import why_not_split
    from argosy.training.programs.fused.fingerprint import obstacle

    live = alive(gan())
    assert obstacle(live) == "its own step updates the weights"
    assert "moves the weights" in why_not_split(live, (torch.from_numpy(REAL[:8]),), 8)
    beside = studies.member(step=classes, metrics={"accuracy": argosy.accuracy})
    assert obstacle(alive(beside)) == "its own step decides what is validated"


def alive(member: argosy.Member) -> LiveMember:
    return build_member(member, open_backend("cpu:0"), study_seed=0, objective="val_loss", mode="min")


def steps(live: LiveMember, first: int, last: int) -> None:
    solo = Solo(live)
    for number in range(first, last):
        with solo.active():
            solo.try_step((torch.from_numpy(REAL[number * 4 : number * 4 + 4]),), 4)


def bits(live: LiveMember) -> str:
    saved = live.state_dict()
    return evidence.fingerprint({name: saved[name] for name in ("model", "optimizer", "schedule", "random", "steps")})


def test_such_a_member_is_saved_between_two_steps(tmp_path: Path) -> None:
    straight, cut, other = alive(gan()), alive(gan()), alive(gan())
    steps(straight, 0, 8)
    steps(cut, 0, 5)
    checkpoint.save(checkpoint.to_plain(cut.state_dict()), tmp_path / "x.pt")
    other.load_state_dict(checkpoint.load(tmp_path / "x.pt"))
    steps(other, 5, 8)
    assert bits(other) == bits(straight)


def unfreezing(weights: Any, model: Gan, batch: Any, optimizers: Mapping[str, Any]) -> Tensor:
    """Train the last layer, and from the second step on the first one, too."""
    optimizer = optimizers["last"]
    if optimizer.state and len(optimizer.param_groups) == 1:
        optimizer.add_param_group({"params": weights(model.discriminator[0]), "lr": 0.001})
    loss = model.discriminator(batch[0]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


@pytest.mark.parametrize("weights", [nn.Module.parameters, nn.Module.named_parameters])
def test_groups_that_a_step_has_added_are_saved(weights: Any, tmp_path: Path) -> None:
    def last(model: Gan) -> dict[str, Any]:
        return {"last": Adam(weights(model.discriminator[2]), lr=0.1)}

    step = partial(unfreezing, weights)
    member = argosy.Member("net", model=Gan, optimizers=last, step=step, validate=validate, batch_size=4)
    whole, cut, other = alive(member), alive(member), alive(member)
    steps(whole, 0, 4)
    steps(cut, 0, 2)
    checkpoint.save(checkpoint.to_plain(cut.state_dict()), tmp_path / "x.pt")
    other.load_state_dict(checkpoint.load(tmp_path / "x.pt"))
    assert [group["lr"] for group in other.optimizer.param_groups] == [0.1, 0.001]
    steps(other, 2, 4)
    assert bits(other) == bits(whole)


def adding_up(model: Gan, batch: Any, optimizers: Mapping[str, Any]) -> Tensor:
    """Accumulate gradients without a step, like the first of several batches."""
    loss = model.discriminator(batch[0]).square().mean()
    loss.backward()
    return loss


def skipping(model: Gan, batch: Any, optimizers: Mapping[str, Any]) -> Tensor:
    """Make no step because scaled gradients have overflowed."""
    loss = model.discriminator(batch[0]).square().mean()
    (loss * torch.inf).backward()
    return loss


def by_own_hand(model: Gan, batch: Any, optimizers: Mapping[str, Any]) -> Tensor:
    """Update the weights without an optimizer."""
    loss = adding_up(model, batch, optimizers)
    for weight in model.discriminator.parameters():
        weight.data.sub_(0.1 * weight.grad)
    return loss


@pytest.mark.parametrize(("own", "refused"), [(adding_up, True), (skipping, False), (by_own_hand, False)])
def test_a_step_that_adds_up_gradients_of_several_batches_is_refused(own: Any, refused: bool) -> None:
    live = alive(argosy.Member("gan", model=Gan, optimizers=optimizers, step=own, validate=validate, batch_size=4))
    with pytest.raises(argosy.errors.StudyError, match="do not survive a step") if refused else nullcontext():
        steps(live, 0, 1)


def with_backward(model: Gan, batch: Any, *, twice: bool, keep: bool) -> Tensor:
    """Call backward() on the loss that is returned, or on another term, whose gradients are to be added to the loss's."""
    loss = model.discriminator(batch[0]).square().mean()
    (loss if twice else model.discriminator(batch[0]).mean()).backward(retain_graph=keep)
    return loss


@pytest.mark.parametrize(("twice", "keep"), [(True, True), (True, False), (False, False)])
def test_a_step_that_calls_backward_on_its_loss_is_refused(twice: bool, keep: bool) -> None:
    own, adam = partial(with_backward, twice=twice, keep=keep), partial(Adam, lr=0.01)
    live = alive(argosy.Member("net", model=Gan, optimizer=adam, step=own, validate=validate, batch_size=4))
    with pytest.raises(argosy.errors.StudyError, match="gradients would be doubled") if twice else nullcontext():
        steps(live, 0, 1)


def with_backward_alone(model: Gan, batch: Any) -> Tensor:
    loss = model.discriminator(batch[0]).square().mean()
    if model.training:
        loss.backward()
    return loss.detach()


def test_a_step_that_calls_backward_and_returns_a_detached_loss_is_refused() -> None:
    adam = partial(Adam, lr=0.01)
    live = alive(argosy.Member("net", model=Gan, optimizer=adam, step=with_backward_alone, batch_size=4))
    with pytest.raises(argosy.errors.StudyError, match="calls backward\\(\\) and returns a loss without gradients"):
        steps(live, 0, 1)


def in_backward(model: Gan) -> dict[str, Any]:
    """Return optimizers that are stepped by hooks of their weights, so that only one gradient exists at a time."""
    made = {name: SGD([weight], lr=0.1) for name, weight in model.discriminator.named_parameters()}
    for one in made.values():
        (weight,) = one.param_groups[0]["params"]
        weight.register_post_accumulate_grad_hook(partial(stepped, one))
    return made


def stepped(optimizer: Any, weight: Tensor) -> None:
    optimizer.step()
    optimizer.zero_grad()


def test_hooks_of_weights_may_step_the_optimizers() -> None:
    live = alive(
        argosy.Member("gan", model=Gan, optimizers=in_backward, step=adding_up, validate=validate, batch_size=4)
    )
    before = live.model.discriminator[0].weight.clone()
    Solo(live.trial()).try_step((torch.from_numpy(REAL[:4]),), 4)  # a copy has no such hooks
    assert live.model.discriminator[0].weight.equal(before)
    steps(live, 0, 1)
    assert not live.model.discriminator[0].weight.equal(before)


def test_a_trial_leaves_the_member_as_it_is() -> None:
    live = alive(gan())
    before = bits(live)
    trial = live.trial()
    steps(trial, 0, 3)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Seems like `optimizer.step")  # a copy's schedule has not wrapped its step
        trial.step_schedule(1.0)
    assert bits(live) == before
    assert isinstance(trial.schedule, OwnSchedules)


def classes(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor, Tensor]:
    x, y = batch
    output = model(x)
    return cross_entropy(output, y, reduction="none"), output, y


def test_metrics_beside_an_own_step_are_those_of_the_usual_one(tmp_path: Path) -> None:
    usual = studies.member("usual", seed=0, metrics={"accuracy": argosy.accuracy})
    own = studies.member("own", seed=0, step=classes, metrics={"accuracy": argosy.accuracy})
    argosy.train(studies.study(90, fleet=[usual, own]), directory=tmp_path, launcher="inline")
    found = evidence.results(tmp_path)
    assert [row[2] for row in found["own"]["epochs"]] == [row[2] for row in found["usual"]["epochs"]]
    assert found["own"]["weights"] == found["usual"]["weights"]


def dropping(model: nn.Module, batch: Any) -> Tensor:
    """Return the mean loss of several passes with dropout, in validation as well."""
    for part in model.modules():
        if type(part).__name__.startswith("Dropout"):
            part.train()
    return torch.stack([cross_entropy(model(batch[0]), batch[1], reduction="none") for _ in range(3)]).mean(0)


def penalized(model: nn.Module, batch: Any) -> Tensor:
    with torch.enable_grad():
        inputs = batch[0].clone().requires_grad_()
        losses = cross_entropy(model(inputs), batch[1], reduction="none")
        (slope,) = torch.autograd.grad(losses.sum(), inputs, create_graph=True)
        return losses + slope.square().sum(1)


@pytest.mark.parametrize("how", [{"step": dropping}, {"step": penalized}])
def test_a_validation_may_drop_out_and_differentiate(tmp_path: Path, how: Any) -> None:
    study = studies.study(fleet=[studies.member(metrics={}, **how)])
    report = argosy.train(study, directory=tmp_path, launcher="inline", quiet=True)
    assert report.best().epochs == 2


class Remade(nn.Module):
    """A network that makes a layer anew in each pass, which is in train() in validations too."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.activation = nn.Tanh()
        return self.linear(self.activation(x))


def test_a_layer_that_a_pass_makes_is_no_change_of_mode() -> None:
    member = argosy.Member("remade", model=Remade, optimizer=partial(SGD, lr=0.1), batch_size=8)
    trial = Solo(alive(member))
    trial.try_validation((torch.randn(8, 4), torch.zeros(8, dtype=torch.long)), 8)


def annealing(optimizers: Mapping[str, Any]) -> dict[str, Any]:
    """Return schedules of which one lowers the rate by the validation loss, as truncated backpropagation of language models does."""
    return {
        "g": StepLR(optimizers["generator"], 1),
        "d": ReduceLROnPlateau(optimizers["discriminator"], patience=0, threshold=0.99),
    }


def test_a_schedule_of_several_optimizers_may_follow_the_objective(tmp_path: Path) -> None:
    train(tmp_path, gan(schedule=annealing), epochs=1)
    train(tmp_path, gan(schedule=annealing), epochs=3)
    saved = checkpoint.load(tmp_path / "members" / "gan" / "last.pt")["optimizer"]["state"]
    assert [saved[name]["param_groups"][0]["lr"] for name in ("generator", "discriminator")] == pytest.approx(
        [0.01 * 0.1**3, 0.01 * 0.1**2]
    )


@pytest.mark.parametrize(
    ("per", "mode", "said"), [("step", "min", "at the end of an epoch"), ("epoch", "max", "has mode='max'")]
)
def test_such_a_schedule_is_refused_where_one_of_one_optimizer_is(per: Any, mode: Any, said: str) -> None:
    watching = partial(ReduceLROnPlateau, mode=mode)
    with pytest.raises(argosy.errors.StudyError, match=said):
        alive(gan(schedule=lambda optimizers: {"g": watching(optimizers["generator"])}, schedule_per=per))


class Counting:
    """An augmentation whose state is empty until it is called."""

    def __call__(self, batch: Any) -> Any:
        return batch

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def bound(batch: Any, counting: Counting) -> Any:
    """An augmentation that gets an object by a partial."""
    return counting(batch)


@pytest.mark.parametrize(
    ("augment", "keeps"),
    [
        (None, False),
        (lambda batch: batch, False),
        (nn.Identity(), False),
        (nn.Sequential(nn.Dropout(), nn.Linear(4, 4)), False),
        (nn.BatchNorm1d(4), True),
        (Counting(), True),
        (partial(bound, counting=Counting()), True),
    ],
)
def test_only_an_augmentation_that_may_keep_something_is_copied_at_each_step(augment: Any, keeps: bool) -> None:
    assert packs.live(studies.member(augment=augment)).augment_keeps_state is keeps


def scaled(batch: list[Tensor]) -> list[Tensor]:
    return [batch[0] * 1.5, batch[1]]


def scaled_in_its_list(batch: list[Tensor]) -> list[Tensor]:
    batch[0] = batch[0] * 1.5
    return batch


def loss_of(model: nn.Module, batch: list[Tensor]) -> Tensor:
    return cross_entropy(model(batch[0] * 1.5), batch[1])


def loss_of_popped(model: nn.Module, batch: list[Tensor]) -> Tensor:
    batch[0] = batch[0] * 1.5
    target = batch.pop()
    return cross_entropy(model(*batch), target)


@pytest.mark.parametrize("average", [None, argosy.EMA(0.5)])
@pytest.mark.parametrize(
    ("changes", "leaves"),
    [({"augment": scaled_in_its_list}, {"augment": scaled}), ({"step": loss_of_popped}, {"step": loss_of})],
    ids=["augment", "step"],
)
def test_a_member_may_change_the_list_or_dict_of_its_batch(changes: Any, leaves: Any, average: Any) -> None:
    data = tuple([*arrays] for arrays in packs.samples(torch.float32))
    for trained in (packs.alone, packs.together):
        (found, rows), (wanted, others) = (
            trained(packs.pack(packs.mlp, 2, average=average, metrics={}, **how), 2, data=data)
            for how in (changes, leaves)
        )
        assert packs.difference(rows, others) == 0.0
        assert packs.difference([*map(packs.state, found)], [*map(packs.state, wanted)]) == 0.0
