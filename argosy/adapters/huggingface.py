"""Hugging Face networks as members: samples are dicts of tensors, passed to the network by name, ``labels`` too."""

from collections.abc import Callable, Mapping
from typing import Any

from argosy.errors import StudyError
from argosy.study import Member

__all__ = ["from_huggingface"]


def from_huggingface(
    name: str,
    model: Callable[[], Any],
    *,
    optimizer: Callable[[Any], Any],
    batch_size: int,
    metrics: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Member:
    """Return a member that minimises the loss computed by the network itself; metrics get its logits, and the labels.

    A loss that is a mean over something other than samples, such as unmasked tokens, is averaged over batches weighted
    by their samples. `fields` are those of `argosy.Member`.
    """
    return Member(
        name, model=model, optimizer=optimizer, batch_size=batch_size, step=_step, metrics=metrics or {}, **fields
    )


def _step(model: Any, batch: Any) -> tuple[Any, Any, Any]:
    if not isinstance(batch, Mapping) or "labels" not in batch:
        described = f"dicts of {', '.join(map(str, batch))}" if isinstance(batch, Mapping) else type(batch).__name__
        raise StudyError(
            f"a Hugging Face network needs batches that are dicts with labels; these are {described}. Return dicts from "
            "the dataset, for example {'input_ids': …, 'attention_mask': …, 'labels': …}."
        )
    lists = [repr(name) for name, value in batch.items() if isinstance(value, list) and _holds_numbers(value)]
    if lists:
        raise StudyError(
            f"a Hugging Face network needs tensors; samples have lists of numbers as {', '.join(lists)}. Return tensors, "
            "for example from a Hugging Face dataset by dataset.with_format('torch')."
        )
    result = model(**batch)
    return result.loss, result.logits, batch["labels"]


def _holds_numbers(values: list[Any]) -> bool:
    """Whether these are numbers in each sample, of which a batch has a tensor for each place in the list."""
    return all(getattr(value, "ndim", 0) == 1 for value in values)
