"""Checks that losses can be averaged over batches. A loss that sums its samples, or compares outputs with targets of other samples,
trains without error, and means something else at each batch size."""

import contextlib
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from argosy.errors import StudyError
from argosy.stream.trees import map_leaves
from argosy.study import Member
from argosy.training.member.mistakes import same_shape, shown

__all__ = ["check_loss", "check_sizes", "refusing_broadcasts"]

SAMPLES = 4
"""Samples on which a loss is checked, repeated several times; few, because outputs of a sample may be large."""
TOLERANCE = 1e-3
"""Relative difference up to which losses count as equal."""
Loss = Callable[[Any, Any], Any]
BROADCAST = re.compile(r"Using a target size \(torch.Size\(\[(.*?)\]\)\).*input size \(torch.Size\(\[(.*?)\]\)\)")


def check_loss(member: Member, output: Any, target: Any, rows: int) -> None:
    """Raise StudyError for a loss that sums the samples of a batch, or broadcasts outputs against targets of other samples.

    The loss alone is computed, on the same samples once, twice and three times: a mean stays, a sum grows by as much each time. A
    loss that grows by less (a contrastive one), draws random numbers, or takes no other batch size is accepted.
    """
    loss = member.loss
    if loss is None:
        return
    once = _value(loss, output, target)
    if once is None or not once.isfinite().all() or not _equal(once, _value(loss, output, target)):
        return
    if isinstance(output, Tensor) and isinstance(target, Tensor) and output.shape != target.shape:
        _check_broadcast(member, loss, output, target)
    if once.dim():
        return
    several = [
        _value(loss, *(map_leaves(lambda leaf: _repeated(leaf, rows, times), tree) for tree in (output, target)))  # noqa: B023
        for times in (1, 2, 3)
    ]
    values = [float(value) for value in several if value is not None]
    if len(values) == 3 and _adds_up(*values):
        few = min(rows, SAMPLES)
        raise _sum(member, "loss", {few: values[0], 2 * few: values[1]})


def check_sizes(member: Member, losses: Mapping[int, Tensor]) -> None:
    """Raise StudyError where a member's own step sums samples, by its losses of two batch sizes in which all samples are equal."""
    values = {size: float(loss) for size, loss in losses.items() if not loss.dim() and loss.isfinite()}
    if len(values) == 2:
        (size, one), (other_size, other) = values.items()
        if not _close(one, other) and _close(one / size, other / other_size):
            raise _sum(member, "step" if member.validate is None else "validate", values)


@contextlib.contextmanager
def refusing_broadcasts(member: Member) -> Iterator[None]:
    """Turn torch's warning about targets that are broadcast against outputs of other samples into StudyError."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        yield
    for warning in told:
        sizes = BROADCAST.search(str(warning.message))
        if sizes and sizes[1].count(",") != sizes[2].count(","):
            target, output = ([int(size) for size in group.split(",") if size.strip()] for group in sizes.groups())
            raise _broadcast(member, str(output), str(target), same_shape(output, target))
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


def _check_broadcast(member: Member, loss: Loss, output: Tensor, target: Tensor) -> None:
    """Raise StudyError where the loss of a few samples is not the mean of their single losses, but is with equal shapes.

    A loss that reshapes for itself gives that mean anyway; one that compares samples on purpose gives it in neither case.
    """
    if output.numel() != target.numel() or not output.dim() or not target.dim() or len(output) < 2:
        return
    output, target = output[:SAMPLES], target[:SAMPLES]
    singles = [_value(loss, output[i : i + 1], target[i : i + 1]) for i in range(len(output))]
    found = [_value(loss, output, target), _value(loss, output.reshape(target.shape), target), *singles]
    together, alike, *apart = (math.nan if value is None else float(value.double().mean()) for value in found)
    if _close(alike, sum(apart) / len(apart)) and abs(together - alike) > TOLERANCE * abs(alike):
        raise _broadcast(member, shown(output), shown(target), same_shape(output.shape, target.shape))


def _value(loss: Loss, output: Any, target: Any) -> Tensor | None:
    """Return the value of a loss; None where it raises, or gives no tensor."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = loss(output, target)
    except (
        Exception
    ):  # boundary between a member's code and ours: an error that training raises as well is reported there
        return None
    return value.detach() if isinstance(value, Tensor) else None


def _repeated(leaf: Any, rows: int, times: int) -> Any:
    if not isinstance(leaf, Tensor) or not leaf.dim() or len(leaf) != rows:
        return leaf
    return torch.cat([leaf[:SAMPLES]] * times)


def _adds_up(once: float, twice: float, thrice: float) -> bool:
    """Whether each repetition adds at least as much as the one before."""
    first, second = twice - once, thrice - twice
    return abs(first) > TOLERANCE * abs(thrice) and second / first > 1 - TOLERANCE


def _equal(one: Tensor, other: Tensor | None) -> bool:
    return other is not None and torch.equal(one, other)


def _close(one: float, other: float) -> bool:
    return abs(one - other) <= TOLERANCE * max(abs(one), abs(other))


def _sum(member: Member, what: str, losses: Mapping[int, float]) -> StudyError:
    found = " and ".join(f"{loss:.4g} of {samples} samples" for samples, loss in losses.items())
    return StudyError(
        f"member {member.name!r}: its {what} adds up the samples of a batch ({found} that are the same ones), so val_loss would grow "
        "with eval_batch_size, and steps with batch_size. Give the mean over the samples, or one loss per sample: reduction='mean' or "
        "'none', or divide by the number of samples."
    )


def _broadcast(member: Member, output: str, target: str, advice: str) -> StudyError:
    return StudyError(
        f"member {member.name!r}: its network gives {output} and targets are {target}, so its loss compares each output with the targets "
        f"of other samples as well. Give both one shape: {advice}."
    )
