"""The attributes of ``self.trainer`` that a LightningModule may read; all others raise an error that names them.

Answers are those of a Trainer with one device, no logger and no callbacks. Before the first batch, in
`configure_optimizers` too, answers that depend on the study follow from its stopping rule and its data.
"""

from typing import Any

from torch.optim import Optimizer

from argosy.errors import StudyError
from argosy.training.member.outlook import TrainingOutlook

__all__ = ["TrainerAttributes"]

ADVICE = {
    "datamodule": "samples come from argosy.Data; pass the module the values that it needs in its factory",
    "train_dataloader": "samples come from argosy.Data; read the number of batches from trainer.num_training_batches",
    "val_dataloaders": "samples come from argosy.Data; read the number of batches from trainer.num_val_batches",
    "callback_metrics": "keep what you need in an attribute when you log it",
    "logged_metrics": "keep what you need in an attribute when you log it",
    "progress_bar_metrics": "keep what you need in an attribute when you log it",
    "should_stop": "pass a stopping rule: from_lightning(..., stop=argosy.Plateau('val_loss', patience=3))",
    "save_checkpoint": "each member's best.pt and last.pt are saved in its folder",
    "default_root_dir": "each member has its folder in the run's directory",
    "log_dir": "each member has its folder in the run's directory",
}
"""Alternatives to unavailable attributes, by their names."""
OTHERWISE = "remove it, or pass the value to the module in its factory"


class Unavailable(StudyError, AttributeError):  # noqa: N818
    """Error for an unavailable attribute; `hasattr` returns False."""


class TrainerAttributes:
    """The public attributes and methods of Lightning's Trainer, and of its strategy, that have an answer."""

    validating = sanity_checking = testing = predicting = fast_dev_run = barebones = False
    interrupted = received_sigterm = False
    is_global_zero = True
    world_size = num_devices = num_nodes = 1
    global_rank = local_rank = node_rank = 0
    accumulate_grad_batches = check_val_every_n_epoch = 1
    max_steps = -1
    min_steps = None
    precision = "32-true"
    logger = ckpt_path = progress_bar_callback = gradient_clip_val = gradient_clip_algorithm = None
    early_stopping_callback = checkpoint_callback = None

    def __init__(self, module: Any, outlook: TrainingOutlook | None) -> None:
        self.module = module
        self.lightning_module = module
        self.model = module
        self.strategy = self
        self.optimizers: list[Optimizer] = []
        self.lr_scheduler_configs: list[Any] = []
        self.loggers: list[Any] = []
        self.callbacks: list[Any] = []
        self.early_stopping_callbacks: list[Any] = []
        self.checkpoint_callbacks: list[Any] = []
        self.current_epoch = self.global_step = self.batch_idx = 0
        self._outlook = outlook
        self._sealed = False
        """Whether all attributes are set."""

    def __getattr__(self, name: str) -> Any:
        """Raise `Unavailable` for an unknown name; Python calls this only for missing attributes."""
        if name.startswith("_"):
            raise AttributeError(name)  # Python's own protocols probe these
        raise _unavailable(name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Raise an error if a module sets an attribute that has no effect on its training."""
        known = name in vars(self) or not isinstance(getattr(type(self), name, property()), property)
        if vars(self).get("_sealed") and not known and not name.startswith("_"):
            raise StudyError(
                f"the module sets self.trainer.{name}, which has no effect in an Argosy run; {ADVICE.get(name, OTHERWISE)}."
            )
        super().__setattr__(name, value)

    # ---- state

    @property
    def training(self) -> bool:
        """Whether it trains."""
        return not self.validating

    @property
    def evaluating(self) -> bool:
        """Whether it validates."""
        return self.validating

    @property
    def is_last_batch(self) -> bool:
        """Whether the current batch is the last one of the epoch."""
        return self.batch_idx + 1 >= self.num_training_batches

    # ---- length of training

    @property
    def num_training_batches(self) -> int:
        """Batches of an epoch."""
        return self._known("num_training_batches").train_batches

    @property
    def num_val_batches(self) -> list[int]:
        """Batches of a validation, for each of its dataloaders."""
        batches = self._known("num_val_batches").val_batches
        return [batches] if batches else []

    @property
    def enable_validation(self) -> bool:
        """Whether there are validation samples."""
        return bool(self._known("enable_validation").val_batches)

    @property
    def max_epochs(self) -> int:
        """Epochs of the stopping rule."""
        return self._epochs("max_epochs")

    @property
    def estimated_stepping_batches(self) -> int:
        """Batches of all epochs."""
        return self._epochs("estimated_stepping_batches") * self.num_training_batches

    def _epochs(self, name: str) -> int:
        most = self._known(name).max_epochs
        if most is None or most != int(most):
            problem = (
                "sets no number of epochs"
                if most is None
                else f"ends after {most:g} epochs, which is not a whole number"
            )
            raise StudyError(
                f"the module reads self.trainer.{name}, but its stopping rule {problem}. Set argosy.MaxEpochs(n) for "
                "the member or the study."
            )
        return int(most)

    def _known(self, name: str) -> TrainingOutlook:
        if self._outlook is None:
            raise StudyError(
                f"the module reads self.trainer.{name}, which is known only in a run. Train it in a study."
            )
        return self._outlook

    # ---- a strategy of one process

    @property
    def root_device(self) -> Any:
        """The member's device."""
        return self.module.device

    def barrier(self, name: str | None = None) -> None:
        """Do nothing: no other process trains the member."""

    def broadcast(self, value: Any, src: int = 0) -> Any:
        """Return the value itself."""
        return value

    def reduce(self, tensor: Any, *_: Any, **__: Any) -> Any:
        """Return the value itself."""
        return tensor

    def all_gather(self, tensor: Any, *_: Any, **__: Any) -> Any:
        """Return the value itself, as Lightning does on one device."""
        return tensor

    def print(self, *words: Any, **how: Any) -> None:
        """Call `print`."""
        print(*words, **how)


def _unavailable(name: str) -> Unavailable:
    advice = ADVICE.get(name, OTHERWISE)
    return Unavailable(f"the module reads self.trainer.{name}, which does not exist in an Argosy run; {advice}.")
