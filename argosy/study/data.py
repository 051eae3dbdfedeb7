"""The data that all members of a study share. Plain values; nothing here reads a sample or imports torch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from argosy.described import document_fields, short_repr
from argosy.errors import StudyError
from argosy.errors.checks import (
    check_arrays,
    check_choice,
    check_dataset,
    check_flag,
    check_instance,
    check_same_classes,
    check_takes,
)
from argosy.errors.spelling import known_keywords
from argosy.ragged import check_ragged

__all__ = ["Data"]


@known_keywords("argosy.Data")
@document_fields
@dataclass(frozen=True, kw_only=True, slots=True)
class Data:
    """The dataset that all members of a study share. A sample is a pytree of tensors; each tensor has the same dtype in every sample and,
    unless it is declared `ragged`, the same shape."""

    train: Any = None
    """A Dataset, or a function without arguments that returns one, such as ``partial(Pictures, "train")``; the function is called in the
    process that reads the samples. Data without random access, such as an IterableDataset, are read once into a file before training begins,
    or in every epoch with ``keep=False``."""
    val: Any = None
    """The validation data, given like `train`. If both are the same Dataset, as cross-validation needs it, its samples are prepared once."""
    arrays: Sequence[Any] | None = None
    """Tensors or arrays of equal length, such as ``(x, y)``, instead of `train`; a sample is one row of each."""
    val_arrays: Sequence[Any] | None = None
    """Validation data like `arrays`, instead of `val`."""
    then: Callable[[Any], Any] | None = None
    """Random transform of a training sample, sample -> sample, applied after the kept part: `train` decodes, `then` augments. It
    needs `train=`, gets the sample's leaves as tensors and may draw from `random`, NumPy or torch, which are seeded for each sample."""
    keep: bool = True
    """Whether samples whose preparation draws no random numbers are prepared only once. Later epochs, validation and other runs read them
    from a file (``argosy cache`` lists it)."""
    ragged: Any = None
    """Which tensors vary in length: a tree shaped like a sample, with an `argosy.Ragged` in place of each such tensor and None elsewhere,
    such as ``(Ragged(512), None)``. Samples of similar length are then batched together and padded to the longest of the batch."""
    on_device: Callable[[Any], Any] | None = None
    """Deterministic per-sample transform, batch -> batch, applied on the device once per block for all its members. A `ragged` tensor
    is passed as a pair of values, padded to `max_length`, and lengths ``[batch]``."""
    on_error: Literal["raise", "skip"] = "raise"
    """What happens if preparing a sample raises: the run ends, or the sample is left out and the report counts it."""

    __repr__ = short_repr

    def __post_init__(self) -> None:
        if (self.train is None) == (self.arrays is None):
            raise StudyError("Data needs training samples exactly once. Pass either train= or arrays=.")
        if self.val is not None and self.val_arrays is not None:
            raise StudyError("Data has validation samples twice. Pass either val= or val_arrays=.")
        for name in ("train", "val"):
            check_dataset(f"Data.{name}", getattr(self, name))
        check_same_classes(self.train, self.val)
        for name in ("arrays", "val_arrays"):
            check_arrays(f"Data.{name}", getattr(self, name))
        if self.on_device is not None:
            check_instance("Data.on_device", self.on_device)
            check_takes("Data.on_device", self.on_device, 1, "a function: batch -> batch")
        if self.then is not None:
            check_takes("Data.then", self.then, 1, "a function: sample -> sample")
            if self.train is None:
                raise StudyError(
                    "Data.then transforms samples of a Dataset, but Data has arrays=. Pass train=TensorDataset(x, y), "
                    "or use augment= of the members, which gets whole batches."
                )
        if self.ragged is not None:
            check_ragged(self.ragged)
            if self.train is None or self.val_arrays is not None:
                raise StudyError(
                    "Data.ragged is for samples of a Dataset, but Data has arrays, whose rows all have one shape. Pass train= and val=."
                )
        check_flag("Data.keep", self.keep)
        check_choice("Data.on_error", self.on_error, ("raise", "skip"))

    @property
    def has_val(self) -> bool:
        """Whether there are validation data."""
        return self.val is not None or self.val_arrays is not None
