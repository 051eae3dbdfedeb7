"""A LightningModule as a member: its training_step, validation_step and configure_optimizers, on Argosy's stream."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from argosy.errors import StudyError
from argosy.study import Member

__all__ = ["from_lightning"]


def from_lightning(
    name: str, module: Callable[[], Any], *, batch_size: int, metrics: Sequence[str] = (), **fields: Any
) -> Member:
    """Return a member that trains a LightningModule as Lightning's Trainer would; needs the extra ``lightning``.

    `module` builds the module: its class, or a partial of it. `metrics` names values logged by validation_step that are reported, such as
    ``["val_acc"]``. ``val_loss`` is always reported: the logged value, else the return value of validation_step. `fields` are other fields
    of `argosy.Member`, except `average`. Raises StudyError for hooks that would not be called.
    """
    try:
        from argosy.adapters import loop  # imports lightning
    except ModuleNotFoundError as error:
        raise StudyError(
            "argosy.from_lightning needs lightning and torchmetrics. Install them: pip install 'argosy[lightning]'."
        ) from error

    if fields.get("average") is not None:
        # One validation of a module logs into one place, and keeps what it likes in its attributes.
        raise StudyError(
            f"argosy.from_lightning: member {name!r} has average={fields['average']}, but a LightningModule logs one "
            "validation, so raw and averaged weights cannot both be validated. Remove average, or train the network "
            "without Lightning."
        )
    kind = module.func if isinstance(module, partial) else module
    if isinstance(kind, type):
        loop.check_hooks(kind)
    return Member(
        name,
        model=module,
        batch_size=batch_size,
        optimizers=loop.configured,
        schedule=loop.schedules,
        step=loop.step,
        validate=loop.validate,
        metrics={metric.removeprefix("val_"): partial(loop.Logged, metric) for metric in ("val_loss", *metrics)},
        **fields,
    )
