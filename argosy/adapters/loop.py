"""Replace a LightningModule's trainer, and call the module's methods in the order of Lightning's own loops.

The member's network is the module itself, so its best weights are the module's. Hooks that would never be called are
refused.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import lightning.pytorch as lightning
import torch
from lightning.pytorch.core.optimizer import (
    LightningOptimizer,
    _configure_optimizers,
    _configure_schedulers_automatic_opt,
    _configure_schedulers_manual_opt,
)
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch.optim import Optimizer
from torchmetrics import Metric

from argosy.adapters.asked import TrainerAttributes
from argosy.adapters.monitored import MEANS, Monitored
from argosy.errors import StudyError
from argosy.stream.trees import flatten
from argosy.training.member.outlook import current_outlook
from argosy.training.member.tally import to_float64

__all__ = ["Logged", "check_hooks", "configured", "schedules", "step", "validate"]

CALLED = {"on_train_epoch_start", "on_train_epoch_end", "on_validation_epoch_start", "on_validation_epoch_end"}
"""Hooks that are called here."""
OTHERS = (
    "backward",
    "configure_callbacks",
    "configure_gradient_clipping",
    "configure_model",
    "optimizer_step",
    "optimizer_zero_grad",
    "setup",
    "transfer_batch_to_device",
)
"""Methods beside ``on_…`` that would change how a module trains, and are not called here."""
PLACES = ("current_epoch", "global_step", "batch_idx", "missed")
"""Attributes of a module's progress, saved in a checkpoint."""


class Loop(TrainerAttributes):
    """Replacement for a module's trainer; also the state saved beside weights and optimizers."""

    def __init__(self, module: Any) -> None:
        super().__init__(module, current_outlook())
        self.precision_plugin: Precision = Precision()
        self.loss: torch.Tensor | None = None
        """Loss of the current batch."""
        self.missed: str = ""
        """Description of the monitored value that had not been logged by the end of the last epoch."""
        self._monitored = Monitored(())
        self._hook = "training_step"
        """The training hook that is running."""
        self._gradients: dict[str, torch.Tensor] = {}
        """By weight: gradients that a module with manual optimization has left to its next batch."""
        self._validated = False
        """Whether there was a validation since the epoch began."""
        self._logged: dict[str, Any] = {}
        """Values of the current validation: metrics, or (sum, samples)."""
        self._batch_loss: tuple[Any, int] | None = None
        """``val_loss`` logged by the current batch, as (sum, samples); a difference of sums would round differently each time."""
        self._returned: tuple[Any, int] | None = None
        """Losses that validation_step has returned in the current validation, as (sum, samples)."""
        self._metrics: dict[str, Metric] = {}
        """Metrics that training logs; they are reset in each epoch."""
        self._rows = 1
        """Number of samples of a logged value."""
        self._resting: list[Any] = []
        """Parts of the module that it keeps in eval(), such as frozen ones: a Trainer leaves them there, a member's train() does not."""
        self.val_batch_idx: int = 0

    def configure(self) -> None:
        """Let the module create its optimizers and schedulers; its trainer is set before."""
        module, self._sealed = self.module, True
        self._register(module)
        self._note_resting()
        optimizers, schedulers, monitor = _configure_optimizers(module.configure_optimizers())
        self.optimizers: list[Optimizer] = optimizers
        automatic = module.automatic_optimization
        configs = _configure_schedulers_automatic_opt(schedulers, monitor) if automatic else None
        self.lr_scheduler_configs: list[Any] = (
            _configure_schedulers_manual_opt(schedulers) if configs is None else configs
        )
        if automatic and len(self.optimizers) != 1:
            raise StudyError(
                f"{type(module).__name__}.configure_optimizers returned {len(self.optimizers)} optimizers, but "
                "Lightning steps only one automatically. Set automatic_optimization = False and step them in "
                "training_step."
            )
        plateaus = [config for config in self.lr_scheduler_configs if config.reduce_on_plateau]
        if any(config.interval == "step" for config in plateaus):
            raise StudyError(
                f"{type(module).__name__}: its ReduceLROnPlateau has the interval 'step', but metrics are known only "
                "at the end of an epoch. Remove the interval."
            )
        self._monitored = Monitored([config.monitor for config in plateaus])
        module.log = self.log

    # ---- what modules ask of their trainer

    @property
    def _lightning_optimizers(self) -> list[Any]:
        return [LightningOptimizer._to_lightning_optimizer(optimizer, self) for optimizer in self.optimizers]

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any], **rest: Any) -> Any:
        """Step one of the optimizers."""
        result = optimizer.step(closure, **rest)
        self.global_step += 1
        return result

    def backward(self, loss: Any, optimizer: Any, *args: Any, **rest: Any) -> None:
        """Run a module's ``manual_backward``. Its last loss is the batch's if training_step returns none."""
        loss.backward(*args, **rest)
        self.loss = loss.detach()

    def log(
        self,
        name: str,
        value: Any,
        _prog_bar: bool = False,
        _logger: bool | None = None,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: Any = "mean",
        *_: Any,
        batch_size: int | None = None,
        **__: Any,
    ) -> None:
        """Replace the module's own `log`. Of what training logs, only values that learning rates monitor are kept."""
        rows = batch_size or self._rows
        if not self.validating:
            if isinstance(value, Metric):
                self._metrics[name] = value
            self._monitored.add(
                name, value, rows, hook=self._hook, on_step=on_step, on_epoch=on_epoch, reduce_fx=reduce_fx
            )
            return
        if isinstance(value, Metric):
            self._logged[name] = value
            return
        if reduce_fx not in MEANS:
            raise StudyError(
                f"its validation_step logs {name!r} with reduce_fx={reduce_fx!r}, but Argosy averages logged values. "
                "Log a torchmetrics object, or remove reduce_fx."
            )
        value = to_float64(value)
        self._logged[name] = _add_mean(self._logged.get(name), value, rows)
        if name == "val_loss":
            self._batch_loss = _add_mean(self._batch_loss, value, rows)

    def _register(self, module: Any) -> None:
        """Become the trainer of the module, and of LightningModules that it is made of, as their `trainer` does; copies have none."""
        module._trainer = self
        for part in module.children():
            if isinstance(part, lightning.LightningModule):
                self._register(part)

    def _note_resting(self) -> None:
        _, *parts = self.module.modules()  # the module's own mode tells whether it is validated
        self._resting = [part for part in parts if not part.training]

    # ---- a module's steps

    def attach(self, batch: Any) -> None:
        """Become the module's trainer for this batch."""
        self._register(self.module)
        leaves = flatten(batch)[0]
        self._rows, self.loss, self._batch_loss = len(leaves[0]), None, None

    def train(self, batch: Any) -> torch.Tensor:
        """Train one step on a batch, by automatic or manual optimization; returns its loss."""
        self.attach(batch)
        self.end_validation()
        for part in self._resting:
            part.training = False
        with self._gradients_left():
            if self.batch_idx == 0:
                self._check_missed()
                self._epoch_hook("on_train_epoch_start")
            if self.module.automatic_optimization:
                (optimizer,) = self.optimizers
                self.optimizer_step(optimizer, partial(self._closure, batch, optimizer))
                self._move("step", self.batch_idx)
            else:
                self._trained(batch)
        self._note_resting()
        self.batch_idx += 1
        assert self.loss is not None
        return self.loss

    def validate(self, batch: Any) -> torch.Tensor:
        """Validate a batch; returns the logged loss, else the one that the module returns, else 0: the validation's end may log one."""
        self.attach(batch)
        if not self.validating:
            _reset(self._logged)
            self.validating: bool = True
            self._validated = True
            self.val_batch_idx = 0
            self._logged, self._returned = {}, None
            self.module.on_validation_epoch_start()
        loss = _returned_loss(_call_hook(self.module.validation_step, batch, self.val_batch_idx))
        self.val_batch_idx += 1
        if self._batch_loss is not None:
            total, count = self._batch_loss
            mean: torch.Tensor = total / count
            return mean
        if not isinstance(loss, torch.Tensor):
            return torch.zeros((), device=self.module.device)
        self._returned = _add_mean(self._returned, to_float64(loss).mean(), self._rows)
        return loss

    def _trained(self, batch: Any) -> torch.Tensor:
        returned = _returned_loss(_call_hook(self.module.training_step, batch, self.batch_idx))
        loss = self.loss if returned is None else returned
        if not isinstance(loss, torch.Tensor):
            raise StudyError("its training_step returns no loss; return a tensor, or a dict with one under 'loss'.")
        self.loss = loss.detach()
        return loss

    def _closure(self, batch: Any, optimizer: Optimizer) -> torch.Tensor:
        with torch.enable_grad():
            loss = self._trained(batch)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
        return loss

    @contextlib.contextmanager
    def _gradients_left(self) -> Iterator[None]:
        """Restore, for a module with manual optimization, the gradients that it has left, as with a Trainer."""
        weights = {} if self.module.automatic_optimization else dict(self.module.named_parameters())
        for name, weight in weights.items():
            weight.grad = self._gradients.get(name)
        yield
        self._gradients = {name: weight.grad for name, weight in weights.items() if weight.grad is not None}
        for weight in weights.values():
            weight.grad = None

    def _epoch_hook(self, hook: str) -> None:
        self._hook = hook
        getattr(self.module, hook)()
        self._hook = "training_step"

    # ---- ends of validations and epochs

    def end_validation(self) -> None:
        """End the validation after its last batch."""
        if self.validating:
            self._rows = 1
            self.module.on_validation_epoch_end()
            self.validating = False

    def value(self, name: str) -> Any:
        """Return the value that the last validation has logged under that name."""
        self.end_validation()
        logged = self._logged.get(name, self._returned if name == "val_loss" else None)
        if logged is None:
            others = ", ".join(self._logged) or "nothing"
            if name == "val_loss":
                raise StudyError(
                    f"its validation neither logs 'val_loss' nor returns a loss (it logs {others}). Log it, or return "
                    "a tensor, or a dict with one under 'loss', in validation_step."
                )
            raise StudyError(
                f"its validation does not log {name!r}; it logs {others}. Choose one of these in "
                "from_lightning(metrics=…)."
            )
        return logged.compute() if isinstance(logged, Metric) else logged[0] / logged[1]

    def step(self) -> None:
        """End an epoch; see `argosy.training.member.own.OwnSchedules`."""
        self.end_validation()
        self._register(self.module)
        self._rows = 1
        if self._validated:
            self._gradients.clear()  # as a Trainer does before it validates
        with self._gradients_left():
            self._epoch_hook("on_train_epoch_end")
        self._move("epoch", self.current_epoch)
        _reset(self._metrics)
        self._monitored.clear()
        self._validated = False
        self.current_epoch: int = self.current_epoch + 1
        self.batch_idx: int = 0

    def _move(self, interval: str, number: int) -> None:
        """Update the learning rates that are due after this batch or epoch."""
        for config in self.lr_scheduler_configs if self.module.automatic_optimization else ():
            if config.interval != interval or (number + 1) % config.frequency:
                continue
            followed = self._monitored_value(config.monitor) if config.reduce_on_plateau else None
            if not config.reduce_on_plateau or followed is not None:
                self.module.lr_scheduler_step(config.scheduler, followed)
            elif config.strict:
                logged = ", ".join(self._logged) or "nothing"
                self.missed = f"{config.monitor!r}, which training did not log; validation logged {logged}"

    def _monitored_value(self, name: str) -> Any:
        """Return an epoch's value for a learning rate; None if it was not logged."""
        mean = self._monitored.mean(name)
        if mean is None and name in self._logged:
            return self.value(name)
        return self._monitored.last(name) if mean is None else mean

    def _check_missed(self) -> None:
        """Raise StudyError for a missing value. Not at an epoch's end: there a member on trial may have logged less."""
        if self.missed:
            raise StudyError(
                f"its learning rate follows {self.missed}. Log it in training_step, or in validation_step if there is "
                "validation data, or choose another monitor."
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint, which holds no sparse tensors."""
        return {
            **{name: getattr(self, name) for name in PLACES},
            "schedulers": [config.scheduler.state_dict() for config in self.lr_scheduler_configs],
            "monitored": self._monitored.state_dict(),
            "gradients": {name: gradient.to_dense() for name, gradient in self._gradients.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        for name in PLACES:
            setattr(self, name, state[name])
        self._monitored.load_state_dict(state["monitored"])
        devices = {name: weight.device for name, weight in self.module.named_parameters()}
        self._gradients = {name: gradient.to(devices[name]) for name, gradient in state["gradients"].items()}
        for config, saved in zip(self.lr_scheduler_configs, state["schedulers"], strict=True):
            config.scheduler.load_state_dict(saved)


class Logged:
    """A metric of the whole validation set that the module computes itself."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: Loop | None = None

    def update(self, loop: Loop, _: Any) -> None:
        """Keep the loop of a batch."""
        self._loop = loop

    def compute(self) -> Any:
        """Return the value over all batches."""
        assert self._loop is not None
        return self._loop.value(self._name)


class Configured(dict[str, Optimizer]):
    """The optimizers that a module's configure_optimizers has made."""

    loop: Loop


def _add_mean(before: tuple[Any, int] | None, value: Any, rows: int) -> tuple[Any, int]:
    """Return a sum over samples, and their number, with those of a batch's mean."""
    total, count = before or (0.0, 0)
    return total + value * rows, count + rows


def configured(module: Any) -> Configured:
    """Return optimizers by number, and give the module its loop."""
    if not isinstance(module, lightning.LightningModule):
        raise StudyError(
            f"argosy.from_lightning was given a factory of {type(module).__name__}; it must be a factory of a "
            "LightningModule."
        )
    check_hooks(type(module))
    loop = module._argosy_loop = Loop(module)
    loop.configure()
    configured_optimizers = Configured({str(number): optimizer for number, optimizer in enumerate(loop.optimizers)})
    configured_optimizers.loop = loop
    return configured_optimizers


def schedules(optimizers: Configured) -> dict[str, Loop]:
    """Return everything that determines learning rates as one schedule."""
    return {"loop": optimizers.loop}


def step(module: Any, batch: Any, optimizers: Configured) -> torch.Tensor:
    """Train one step with the module's loop."""
    return optimizers.loop.train(batch)


def validate(module: Any, batch: Any) -> tuple[torch.Tensor, Loop, None]:
    """Validate a batch with the module's loop, which metrics ask for logged values."""
    loop: Loop = module._argosy_loop
    return loop.validate(batch), loop, None


def _call_hook(function: Any, batch: Any, number: int) -> Any:
    return function(batch, number) if is_param_in_hook_signature(function, "batch_idx", min_args=2) else function(batch)


def _reset(logged: Mapping[str, Any]) -> None:
    for metric in (value for value in logged.values() if isinstance(value, Metric)):
        metric.reset()


def _returned_loss(returned: Any) -> Any:
    """Return the loss that a step has returned."""
    return returned.get("loss") if isinstance(returned, Mapping) else returned


def check_hooks(kind: type) -> None:
    """Raise StudyError for a module with hooks that would never be called."""
    usual = [hook for hook in dir(lightning.LightningModule) if hook.startswith("on_") or hook in OTHERS]
    own = [hook for hook in usual if getattr(kind, hook, None) is not getattr(lightning.LightningModule, hook)]
    if uncalled := [hook for hook in own if hook not in CALLED and "_test_" not in hook and "_predict_" not in hook]:
        raise StudyError(
            f"LightningModule {kind.__name__} has {', '.join(uncalled)}, which Argosy does not call; it calls only "
            f"{', '.join(sorted(CALLED))}. Move this code into the steps or the constructor, data loading into "
            "Data(train=…, val=…), and callbacks into the study's stopping rules."
        )
