"""Tests that a LightningModule trains through the adapter as by Lightning's own Trainer on the same order."""

import copy
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import evidence
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau, StepLR
from torch.utils.data import DataLoader, TensorDataset

import argosy
from argosy.errors import MemberFailed, StudyError
from argosy.stream.order import member_seed, permutation
from argosy.training.device.devices import open_backend
from argosy.training.member import checkpoint
from argosy.training.member.building import build_member
from argosy.training.member.live import LiveMember
from argosy.training.programs.solo import Solo

lightning = pytest.importorskip("lightning.pytorch")
from argosy.adapters.loop import Loop  # noqa: E402

torchmetrics = pytest.importorskip("torchmetrics")

RANDOM = np.random.RandomState(0)
X = RANDOM.normal(size=(70, 6))
Y = (X[:, 0] > 0).astype(np.int64) + 2 * (X[:, 1] > 0)
HELD_OUT = slice(0, 30)
BATCH, EPOCHS = 16, 4


class Classifier(lightning.LightningModule):
    """Logs a mean over batches, a metric object, and a value at the end of validation; its schedule is one of three kinds."""

    def __init__(self, lr: float = 0.1, schedule: str = "epoch") -> None:
        super().__init__()
        self.lr, self.schedule = lr, schedule
        self.net = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 4)).double()
        self.f1 = torchmetrics.F1Score(task="multiclass", num_classes=4, average="macro")
        self.epochs_seen: list[int] = []
        self.shown: list[float] = []

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = functional.cross_entropy(self(batch[0]), batch[1])
        self.log("train_loss", loss)
        # The loss depends on the counters, so that wrong counters change the weights.
        return {"loss": loss * (1 + 0.1 * batch_idx + 0.01 * self.current_epoch + 0.001 * self.global_step)}

    def on_train_epoch_start(self) -> None:
        self.epochs_seen.append(self.current_epoch)

    def validation_step(self, batch: Any) -> None:
        scores = self(batch[0])
        self.f1(scores, batch[1])
        self.shown.append(float(scores.detach().max()))
        right = (scores.argmax(1) == batch[1]).double().mean()
        self.log_dict({"val_loss": functional.cross_entropy(scores, batch[1]), "val_acc": right, "val_f1": self.f1})

    def on_validation_epoch_end(self) -> None:
        self.log("val_highest", max(self.shown))
        self.shown.clear()

    def configure_optimizers(self) -> Any:
        optimizer = SGD(self.parameters(), lr=self.lr, momentum=0.9)
        if self.schedule == "plateau":
            plateau = ReduceLROnPlateau(optimizer, patience=0, factor=0.5, threshold=0.2)
            return {"optimizer": optimizer, "lr_scheduler": plateau, "monitor": "val_loss"}
        how = {"interval": self.schedule, "frequency": 2 if self.schedule == "step" else 1}
        return [optimizer], [{"scheduler": StepLR(optimizer, step_size=1, gamma=0.8), **how}]


class Two(lightning.LightningModule):
    """Steps two optimizers manually."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.encoder, self.decoder = nn.Linear(6, 3).double(), nn.Linear(3, 6).double()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        encoder, decoder = self.optimizers()
        loss = functional.mse_loss(self.decoder(self.encoder(batch[0])), batch[0])
        for optimizer in (encoder, decoder):
            optimizer.zero_grad()
        self.manual_backward(loss)
        self.clip_gradients(decoder, gradient_clip_val=0.5, gradient_clip_algorithm="norm")
        encoder.step()
        if self.global_step % 3:
            decoder.step()
        self.lr_schedulers().step()
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> Tensor:
        return functional.mse_loss(self.decoder(self.encoder(batch[0])), batch[0])

    def configure_optimizers(self) -> Any:
        encoder, decoder = Adam(self.encoder.parameters(), lr=0.02), SGD(self.decoder.parameters(), lr=0.1)
        return [encoder, decoder], [StepLR(encoder, step_size=4, gamma=0.9)]


class Accumulating(lightning.LightningModule):
    """Steps on the gradients of three batches, and returns no loss."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.net = nn.Linear(6, 4).double()

    def training_step(self, batch: Any, batch_idx: int) -> None:
        self.manual_backward(functional.cross_entropy(self.net(batch[0]), batch[1]) / 3)
        if (batch_idx + 1) % 3 == 0:
            optimizer = self.optimizers()
            optimizer.step()
            optimizer.zero_grad()

    def validation_step(self, batch: Any, batch_idx: int) -> Tensor:
        return functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        return SGD(self.parameters(), lr=0.3)


class Following(lightning.LightningModule):
    """Its learning rate follows a value that training logs."""

    def __init__(self, monitor: str, **how: bool) -> None:
        super().__init__()
        self.monitor, self.how = monitor, how
        self.net = nn.Linear(6, 4).double()
        self.right = torchmetrics.Accuracy(task="multiclass", num_classes=4)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        scores = self.net(batch[0])
        loss = functional.cross_entropy(scores, batch[1])
        self.right(scores, batch[1])
        self.log("train_right", self.right, on_epoch=True)
        self.log("train_loss", loss, **self.how)
        return loss

    def on_train_epoch_end(self) -> None:
        self.log("train_wrong", 1.0 - self.right.compute())

    def validation_step(self, batch: Any, batch_idx: int) -> Tensor:
        return functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        optimizer = SGD(self.parameters(), lr=0.5)
        plateau = ReduceLROnPlateau(optimizer, patience=0, factor=0.5, threshold=0.3)
        return {"optimizer": optimizer, "lr_scheduler": plateau, "monitor": self.monitor}


ANSWERED = (
    *(
        "max_epochs",
        "estimated_stepping_batches",
        "num_training_batches",
        "num_val_batches",
        "current_epoch",
        "global_step",
    ),
    *(
        "logger",
        "loggers",
        "callbacks",
        "is_global_zero",
        "sanity_checking",
        "training",
        "validating",
        "testing",
        "predicting",
    ),
    *("evaluating", "world_size", "num_devices", "num_nodes", "global_rank", "local_rank", "node_rank", "max_steps"),
    *(
        "accumulate_grad_batches",
        "check_val_every_n_epoch",
        "precision",
        "ckpt_path",
        "gradient_clip_val",
        "is_last_batch",
    ),
    *("gradient_clip_algorithm", "early_stopping_callback", "checkpoint_callback", "enable_validation", "fast_dev_run"),
    *("received_sigterm", "interrupted", "barebones", "progress_bar_callback"),
)


class Asking(lightning.LightningModule):
    """Asks its trainer in every hook for everything that it answers, and trains in a way that depends on the answers."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(6, 4).double()
        self.heard: list[tuple[Any, ...]] = []

    def ask(self, where: str) -> None:
        self.trainer.strategy.barrier()
        # In these hooks Lightning has no batch at hand or has not looked at its samples yet, so it cannot answer.
        left = {"training_step": "", "configure_optimizers": "num_val_batches is_last_batch"}.get(
            where, "is_last_batch"
        )
        names = [name for name in ANSWERED if name not in left.split()]
        answers = {name: getattr(self.trainer, name) for name in names}
        answers = {name: [] if name == "callbacks" else answer for name, answer in answers.items()}
        rates = [group["lr"] for optimizer in self.trainer.optimizers for group in optimizer.param_groups]
        parts = (self.trainer.lightning_module is self, self.trainer.strategy.root_device, rates)
        self.heard.append((where, answers, self.trainer.strategy.broadcast(3), *parts))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.ask("training_step")
        return functional.cross_entropy(self.net(batch[0]), batch[1]) * self.trainer.max_epochs

    def on_train_epoch_start(self) -> None:
        self.ask("on_train_epoch_start")

    def on_train_epoch_end(self) -> None:
        self.ask("on_train_epoch_end")

    def on_validation_epoch_start(self) -> None:
        self.ask("on_validation_epoch_start")

    def on_validation_epoch_end(self) -> None:
        self.ask("on_validation_epoch_end")

    def validation_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.ask("validation_step")
        return functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        self.ask("configure_optimizers")
        optimizer = SGD(self.parameters(), lr=0.1, momentum=0.9)
        schedule = OneCycleLR(optimizer, max_lr=0.3, total_steps=self.trainer.estimated_stepping_batches)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Silent(Asking):
    """Runs one statement in one hook, and asks nothing else."""

    def __init__(self, name: str = "", where: str = "training_step") -> None:
        super().__init__()
        self.name, self.where = name, where

    def ask(self, where: str) -> None:
        if where == self.where:
            exec(self.name, {"self": self})


def data(*, validated: bool = True) -> argosy.Data:
    return argosy.Data(arrays=(X, Y), val_arrays=(X[HELD_OUT], Y[HELD_OUT]) if validated else None)


class Orders:
    """A batch sampler that yields the batches of each epoch in the order of Argosy's stream."""

    def __init__(self) -> None:
        self.epoch = 0

    def __len__(self) -> int:
        return -(-len(X) // BATCH)

    def __iter__(self) -> Any:
        order = permutation(0, self.epoch, len(X)).tolist()
        self.epoch += 1
        return iter([order[start : start + BATCH] for start in range(0, len(X), BATCH)])


def by_trainer(name: str, module: Any, path: Path, *, validated: bool = True) -> Any:
    """Return Lightning's Trainer after it has trained the module."""
    samples = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    held_out = TensorDataset(*(tensor[HELD_OUT] for tensor in samples.tensors))
    torch.manual_seed(member_seed(0, name))
    built = module()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(
            max_epochs=EPOCHS,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            default_root_dir=path,
            use_distributed_sampler=False,
        )
        shown = DataLoader(held_out, batch_size=BATCH) if validated else None
        trainer.fit(built, DataLoader(samples, batch_sampler=Orders()), shown)
    return trainer


def by_lightning(name: str, module: Any, path: Path, **rest: Any) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Return the weights and the figures of the last validation after training with Lightning."""
    trainer = by_trainer(name, module, path, **rest)
    figures = {name: float(value) for name, value in trainer.callback_metrics.items()}
    return trainer.lightning_module.state_dict(), figures


def run(directory: Path, member: argosy.Member, epochs: int, *, validated: bool = True, **settings: Any) -> Any:
    """Train the member with Argosy and return its result."""
    terms = {"validations_per_epoch": settings.pop("validations_per_epoch", 1)}
    study = argosy.Study(data=data(validated=validated), members=[member], stop=argosy.MaxEpochs(epochs), **terms)
    given = {"launcher": "inline", "devices": "cpu:1", "block_size": 11, **settings}
    return argosy.train(study, directory=directory, **given).rows[0]


def trained(
    directory: Path, member: argosy.Member, epochs: int = EPOCHS, **rest: Any
) -> tuple[dict[str, Tensor], dict[str, float]]:
    row = run(directory, member, epochs, **rest)
    assert row.status == "done", row.reason
    lines = [line.split(",") for line in (row.folder / "metrics.csv").read_text().splitlines()]
    return state_of(row.folder)["model"], {name: float(value) for name, value in zip(lines[0], lines[-1], strict=True)}


def state_of(folder: Path) -> dict[str, Any]:
    return torch.load(folder / "last.pt", weights_only=True)


def equal(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert torch.allclose(found[name], tensor, rtol=0, atol=1e-10), name


@pytest.mark.filterwarnings("ignore:member 'net'. steps change 'epochs_seen'")
@pytest.mark.parametrize(("schedule", "launcher"), [("epoch", "inline"), ("step", "processes"), ("plateau", "inline")])
def test_a_module_becomes_what_lightnings_trainer_makes_of_it(tmp_path: Path, schedule: str, launcher: str) -> None:
    module = partial(Classifier, lr=0.2, schedule=schedule)
    logged = ["val_acc", "val_f1", "val_highest"]
    member = argosy.from_lightning("net", module, batch_size=BATCH, metrics=logged)
    weights, figures = by_lightning("net", module, tmp_path)
    trained(tmp_path / "x", member, epochs=2)
    found, reached = trained(tmp_path / "x", member, launcher=launcher)
    equal(found, weights)
    rounded = ("val_f1", "val_highest")  # Lightning rounds plain Python numbers to float32
    for name in ("val_loss", *logged):
        assert reached[name] == pytest.approx(figures[name], abs=1e-6 if name in rounded else 1e-10)
    assert member.hyperparameters["model.lr"] == 0.2


def test_a_module_that_steps_its_optimizers_itself(tmp_path: Path) -> None:
    weights, _ = by_lightning("two", Two, tmp_path)
    trained(tmp_path / "x", argosy.from_lightning("two", Two, batch_size=BATCH), epochs=1)
    found, reached = trained(tmp_path / "x", argosy.from_lightning("two", Two, batch_size=BATCH))
    equal(found, weights)
    assert reached["val_loss"] > 0
    assert not (tmp_path / "x" / "members" / "two" / "log.txt").exists()  # its counts are in the checkpoint


class Sharpened(lightning.LightningModule):
    """Part of another module; its training depends on the progress that its trainer knows."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(6, 4).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) * (1 + self.training * (self.current_epoch + 0.1 * self.global_step))


class OfAModule(Classifier):
    """A module with a module in it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Sharpened()


class Resting(Classifier):
    """Keeps a frozen part in eval() from the first, and another one from its third epoch on."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.later = (nn.Sequential(nn.BatchNorm1d(6), nn.Dropout()).double() for _ in range(2))
        self.frozen.requires_grad_(False).eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(self.frozen(x) + self.later[0](x))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.global_step == 6:
            self.later.eval()
        return functional.cross_entropy(self(batch[0]), batch[1])


def test_parts_that_a_module_keeps_in_eval_stay_there(tmp_path: Path) -> None:
    weights, figures = by_lightning("resting", Resting, tmp_path)
    found, reached = trained(tmp_path / "x", argosy.from_lightning("resting", Resting, batch_size=BATCH))
    equal(found, weights)
    assert reached["val_loss"] == pytest.approx(figures["val_loss"], abs=1e-10)


class Cooling(Classifier):
    """Divides by a temperature that no file has, and which the end of each epoch changes."""

    temperature = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) / self.temperature

    def on_train_epoch_end(self) -> None:
        self.temperature *= 0.8


def test_the_caller_is_warned_of_what_the_end_of_an_epoch_changes_beside_the_file(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="different validation loss, because steps change 'temperature'"):
        trained(tmp_path / "x", argosy.from_lightning("cooling", Cooling, batch_size=BATCH), epochs=1)


def test_modules_within_a_module_know_the_trainer(tmp_path: Path) -> None:
    weights, figures = by_lightning("within", OfAModule, tmp_path)
    found, reached = trained(tmp_path / "x", argosy.from_lightning("within", OfAModule, batch_size=BATCH))
    equal(found, weights)
    assert reached["val_loss"] == pytest.approx(figures["val_loss"], abs=1e-10)


@pytest.mark.parametrize("validated", [True, False])
def test_gradients_of_several_batches_are_those_of_the_trainer(tmp_path: Path, validated: bool) -> None:
    weights, _ = by_lightning("sum", Accumulating, tmp_path, validated=validated)
    member = argosy.from_lightning("sum", Accumulating, batch_size=BATCH)
    trained(tmp_path / "x", member, epochs=1, validated=validated)
    found, reached = trained(tmp_path / "x", member, validated=validated)
    equal(found, weights)
    assert reached["train_loss"] > 0
    often, _ = trained(tmp_path / "often", member, validated=validated, validations_per_epoch=2)
    equal(often, weights)


@pytest.mark.parametrize("validated", [True, False])
@pytest.mark.parametrize(
    ("monitor", "how"),
    [
        ("train_loss", {}),
        ("train_loss", {"on_step": False, "on_epoch": True}),
        ("train_loss", {"on_epoch": True}),
        ("train_loss_epoch", {"on_epoch": True}),
        ("train_loss_step", {"on_epoch": True}),
        ("train_wrong", {}),
    ],
)
def test_a_learning_rate_follows_what_training_logs(
    tmp_path: Path, validated: bool, monitor: str, how: dict[str, bool]
) -> None:
    module = partial(Following, monitor, **how)
    trainer = by_trainer("net", module, tmp_path, validated=validated)
    member = argosy.from_lightning("net", module, batch_size=BATCH)
    weights, _ = trained(tmp_path / "x", member, validated=validated)
    equal(weights, trainer.lightning_module.state_dict())
    (found,) = state_of(tmp_path / "x" / "members" / "net")["schedule"]["loop"]["schedulers"]
    wanted = trainer.lr_scheduler_configs[0].scheduler.state_dict()
    assert found["best"] == pytest.approx(float(wanted["best"]), abs=1e-6 if monitor == "train_wrong" else 1e-10)
    assert found["num_bad_epochs"] == wanted["num_bad_epochs"]
    assert found["_last_lr"] == wanted["_last_lr"]
    assert found["_last_lr"][0] < 0.5


def alive(module: Any) -> LiveMember:
    member = argosy.from_lightning("net", module, batch_size=BATCH)
    return build_member(member, open_backend("cpu:0"), study_seed=0, objective="train_loss", mode="min")


def steps(live: LiveMember, first: int, last: int) -> None:
    solo = Solo(live)
    for number in range(first, last):
        batch = slice(4 * number, 4 * number + 4)
        with solo.active():
            solo.try_step((torch.from_numpy(X[batch]), torch.from_numpy(Y[batch])), 4)


def bits(live: LiveMember) -> str:
    saved = live.state_dict()
    return evidence.fingerprint({name: saved[name] for name in ("model", "optimizer", "schedule", "steps")})


@pytest.mark.parametrize("module", [Accumulating, partial(Following, "train_loss", on_epoch=True)])
def test_what_batches_leave_to_the_next_is_saved_between_them(tmp_path: Path, module: Any) -> None:
    straight, cut, other = alive(module), alive(module), alive(module)
    steps(straight, 0, 9)
    steps(cut, 0, 5)
    checkpoint.save(checkpoint.to_plain(cut.state_dict()), tmp_path / "x.pt")
    other.load_state_dict(checkpoint.load(tmp_path / "x.pt"))
    steps(other, 5, 9)
    for live in (straight, other):
        live.step_schedule(0.0)
    assert bits(other) == bits(straight)


@pytest.mark.parametrize(("monitor", "validated"), [("val_loss", False), ("val_auc", True)])
def test_a_learning_rate_that_follows_nothing_is_told(tmp_path: Path, monitor: str, validated: bool) -> None:
    member = argosy.from_lightning("net", partial(Following, monitor), batch_size=BATCH)
    with pytest.warns(MemberFailed, match="'net' failed: "):
        row = run(tmp_path, member, 2, validated=validated)
    assert row.status == "failed"
    assert f"its learning rate follows '{monitor}', which training did not log; validation logged n" in row.reason


class Summing(Classifier):
    """Its validation sums over samples instead of taking the mean, in what it logs or in what it returns."""

    def __init__(self, *, logs: bool) -> None:
        super().__init__()
        self.logs = logs

    def validation_step(self, batch: Any) -> Tensor:
        loss = functional.cross_entropy(self(batch[0]), batch[1], reduction="sum")
        if self.logs:
            self.log("val_loss", loss)
        return loss

    def on_validation_epoch_end(self) -> None:
        pass


@pytest.mark.parametrize("logs", [True, False])
def test_a_validation_step_that_adds_up_samples_is_refused(tmp_path: Path, logs: bool) -> None:
    member = argosy.from_lightning("net", partial(Summing, logs=logs), batch_size=15)
    with pytest.warns(MemberFailed, match="its validate sums over the samples of a batch"):
        run(tmp_path, member, 1)


class Otherwise(Classifier):
    """Its validation logs a loss under another name, as Lightning's own examples do."""

    def validation_step(self, batch: Any) -> None:
        self.log("valid_loss", functional.cross_entropy(self(batch[0]), batch[1]))

    def on_validation_epoch_end(self) -> None:
        pass


def test_a_validation_without_val_loss_says_what_it_logs(tmp_path: Path) -> None:
    member = argosy.from_lightning("net", Otherwise, batch_size=15)
    with pytest.warns(MemberFailed, match=r"neither logs 'val_loss' nor returns a loss \(it logs valid_loss\)"):
        run(tmp_path, member, 1)


class AtTheEnd(Classifier):
    """Keeps the losses of its batches, and logs their mean at the end, as Lightning's guide to 2.0 shows."""

    def __init__(self, *, returns: bool) -> None:
        super().__init__()
        self.returns, self.losses = returns, list[Tensor]()

    def validation_step(self, batch: Any) -> Tensor | None:
        self.losses.append(functional.cross_entropy(self(batch[0]), batch[1]))
        return self.losses[-1] if self.returns else None

    def on_validation_epoch_end(self) -> None:
        self.log("val_loss", torch.stack(self.losses).mean())
        self.losses.clear()


class Unweighted(Classifier):
    """Logs every batch with the same weight, also the last one, which is smaller."""

    def validation_step(self, batch: Any) -> None:
        self.log("val_loss", functional.cross_entropy(self(batch[0]), batch[1]), batch_size=1)

    def on_validation_epoch_end(self) -> None:
        pass


@pytest.mark.parametrize("module", [partial(AtTheEnd, returns=True), partial(AtTheEnd, returns=False), Unweighted])
def test_val_loss_is_what_the_trainer_has_under_this_name(tmp_path: Path, module: Any) -> None:
    _, figures = by_lightning("net", module, tmp_path)
    _, reached = trained(tmp_path / "x", argosy.from_lightning("net", module, batch_size=BATCH))
    assert reached["val_loss"] == pytest.approx(figures["val_loss"], abs=1e-10)


class Hooked(Classifier):
    """Has a hook between backward pass and step."""

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        raise AssertionError


def test_hooks_that_would_not_be_called_are_refused() -> None:
    with pytest.raises(
        StudyError, match="LightningModule Hooked has on_before_optimizer_step, which Argosy does not call"
    ):
        argosy.from_lightning("net", Hooked, batch_size=8)


def test_an_average_whose_validation_would_be_mixed_with_the_raw_one_is_refused() -> None:
    with pytest.raises(StudyError, match="raw and averaged weights cannot both be validated"):
        argosy.from_lightning("net", Classifier, batch_size=BATCH, metrics=["val_acc"], average=argosy.EMA(0.5))


def test_a_figure_that_is_not_logged_is_missed_before_training(tmp_path: Path) -> None:
    member = argosy.from_lightning("net", Classifier, batch_size=BATCH, metrics=["val_auc"])
    with pytest.warns(MemberFailed, match="does not log 'val_auc'"):
        row = run(tmp_path, member, 1)
    assert "does not log 'val_auc'; it logs val_loss, val_acc, val_f1" in row.reason


@pytest.mark.parametrize("validated", [True, False])
def test_what_a_module_asks_its_trainer_is_answered_as_by_lightnings(tmp_path: Path, validated: bool) -> None:
    """Questions are answered in `configure_optimizers` too; a member on trial asks as well, before it begins."""
    made: list[Asking] = []
    trainer = by_trainer("net", Asking, tmp_path, validated=validated)
    wanted = trainer.lightning_module

    def module() -> Asking:
        made.append(Asking())
        return made[-1]

    member = argosy.from_lightning("net", module, batch_size=BATCH)
    weights, _ = trained(tmp_path / "x", member, validated=validated)
    equal(weights, wanted.state_dict())
    heard = max((one.heard for one in made), key=len)
    assert len(heard) == len(wanted.heard)
    for mine, theirs in zip(heard, wanted.heard, strict=True):
        for (name, answer), (other, expected) in zip(mine[1].items(), theirs[1].items(), strict=True):
            assert (mine[0], name, answer) == (theirs[0], other, expected)
        assert mine[2:-1] == theirs[2:-1]
        assert mine[-1] == pytest.approx(theirs[-1], abs=1e-10)


@pytest.mark.parametrize("where", ["configure_optimizers", "training_step", "validation_step", "on_train_epoch_end"])
@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("self.trainer.datamodule.classes", "reads self.trainer.datamodule, which does not exist"),
        ("self.trainer.callback_metrics['val_loss']", "reads self.trainer.callback_metrics, which does not exist"),
        ("self.trainer.logged_metrics", "reads self.trainer.logged_metrics, which does not exist"),
        ("self.trainer.train_dataloader", "reads self.trainer.train_dataloader, which does not exist"),
        ("self.trainer.fit_loop.epoch_progress", "reads self.trainer.fit_loop, which does not exist"),
        ("self.trainer.strategy.model_sharded_context()", "reads self.trainer.model_sharded_context, which"),
        ("self.trainer.should_stop = True", "sets self.trainer.should_stop, which has no effect"),
        ("self.trainer.max_epochs = 7", "sets self.trainer.max_epochs, which has no effect"),
        ("self.trainer.limit_val_batches = 0", "sets self.trainer.limit_val_batches, which has no effect"),
    ],
)
def test_what_a_trainer_does_not_know_here_is_refused_by_name(
    tmp_path: Path, asked: str, words: str, where: str
) -> None:
    with pytest.warns(MemberFailed):
        row = run(tmp_path, argosy.from_lightning("net", partial(Silent, asked, where), batch_size=BATCH), 1)
    assert row.status == "failed"
    assert words in row.reason
    assert len(row.reason.splitlines()) == 1


def test_what_a_trainer_may_not_know_can_be_asked_for() -> None:
    loop = Loop(Silent())
    assert not hasattr(loop, "datamodule")
    assert getattr(loop, "fit_loop", None) is None
    assert not copy.deepcopy(loop).sanity_checking


@pytest.mark.parametrize(
    ("stop", "words"),
    [
        (argosy.MaxSteps(20), "its stopping rule sets no number of epochs"),
        (argosy.MaxEpochs(1.5), "its stopping rule ends after 1.5 epochs, which is not a whole number"),
    ],
)
def test_an_unknown_length_is_refused(tmp_path: Path, stop: Any, words: str) -> None:
    with pytest.warns(MemberFailed):
        row = run(tmp_path, argosy.from_lightning("net", Asking, batch_size=BATCH, stop=stop), 2)
    assert row.status == "failed"
    assert words in row.reason


def test_the_length_is_that_of_a_members_own_rule_and_samples(tmp_path: Path) -> None:
    """The rule combines two, the member trains on a subset, and the last incomplete batch is dropped."""
    asked = "assert (self.trainer.max_epochs, self.trainer.num_training_batches, self.trainer.num_val_batches) == (3, 2, [2])"
    stop = argosy.MaxEpochs(3) | argosy.Plateau("val_loss", patience=9)
    own: dict[str, Any] = {"stop": stop, "subset": range(40), "val_subset": range(11), "drop_last": True}
    member = argosy.from_lightning("net", partial(Silent, asked), batch_size=BATCH, eval_batch_size=8, **own)
    row = run(tmp_path, member, 9, launcher="processes")
    assert row.status == "done", row.reason
