"""Checks of the values that a member computes from a batch: that they can be averaged over batches, and do not broadcast by mistake.

A loss that sums its samples, or that compares outputs with the targets of other samples, trains without an error, but its meaning depends
on the batch size.
"""

import contextlib
import math
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from argosy.bindings import unwrap_partials
from argosy.errors import StudyError
from argosy.stream.trees import flatten, map_leaves, unflatten
from argosy.study import Member
from argosy.training.member.mistakes import format_tensor, same_shape

__all__ = ["check_halves", "check_loss", "check_pairs", "check_sizes", "check_step", "refusing_broadcasts"]

SAMPLES = 2
"""Samples that are repeated in one batch; few, because the outputs for a sample may be large."""
TIMES = (2, 4, 6)
"""Numbers of repetitions; not 1, because a loss that compares samples of one class would have no pairs."""
PAIRED = 8
"""Samples that are compared in several orders."""
TOLERANCE = 1e-3
"""Relative difference up to which values count as equal."""
ORDER_TOLERANCE = 1e-4
"""The same for values of one batch in two orders."""
RANDOM_TOLERANCE = 0.1
"""The same for values that draw random numbers."""
ROUNDING_TOLERANCE = 1e-2
"""The same in lower precisions, in which kernels may round so differently for two batch sizes."""
Value = Callable[[Any], Any]
"""Samples, a tree of leaves ``[rows, …]`` -> a tensor of values per sample, or a scalar."""
SHAPES: tuple[Callable[[Tensor], Tensor], ...] = (
    torch.squeeze,
    lambda leaf: leaf[:, None],
    lambda leaf: leaf[..., None],
)
"""Other shapes of targets: without dimensions of size 1, and with an additional one."""
BROADCAST = re.compile(r"Using a target size \(torch.Size\(\[(.*?)\]\)\).*input size \(torch.Size\(\[(.*?)\]\)\)")


def check_loss(member: Member, output: Any, target: Any, rows: int) -> bool:
    """Check a member's loss without its network; returns whether its mean over batches depends on their sizes. Raises StudyError."""
    loss = member.loss
    if loss is None:
        return False
    function = unwrap_partials(loss)
    of_probabilities = function is nn.functional.nll_loss or (
        isinstance(function, nn.NLLLoss) and type(function).forward is nn.NLLLoss.forward  # a subclass may take logits
    )
    if of_probabilities and isinstance(output, Tensor) and bool((output > TOLERANCE).any()):
        raise StudyError(
            f"member {member.name!r}: its network returns {float(output.max()):.3g}, but its loss, NLLLoss, takes logarithms of "
            "probabilities, which are at most 0. Use the default loss or nn.CrossEntropyLoss(), or end the network with "
            "nn.LogSoftmax(dim=1)."
        )
    arguments = member, "loss", lambda pair: loss(*pair), (output, target), rows
    check_pairs(*arguments)
    known = _check_sum(*arguments)
    return check_halves(*arguments) and known


def _check_sum(member: Member, what: str, value: Value, samples: Any, rows: int) -> bool:
    """Raise StudyError for a value that adds up samples, or is a power of such a sum; returns False if this cannot be determined.

    A few samples are repeated twice, four and six times. A mean does not change, a sum grows linearly, and a power of a sum grows with this
    power of the number of samples. A value that grows in another way (for example a contrastive loss, logarithmically) is accepted. So is a sum
    over pairs divided by the number of samples, although its pairs of a sample with itself make it grow linearly too.

    Some values change between calls or with the order of samples: a variational autoencoder draws random numbers, a loss may keep a memory of
    targets, a diffusion model may draw noise with a fixed seed. For these a sum is recognized only if such changes are small. For values that
    raise on such batches, nothing can be determined.
    """
    numbers = range(min(PAIRED, rows))
    some = _take_samples(samples, rows, numbers)
    first = _mean_of(value, some)
    turned = _mean_of(value, _take_samples(samples, rows, numbers[::-1]))
    few = list(range(max(1, min(SAMPLES, rows // 4))))
    values = [_mean_of(value, _take_samples(samples, rows, few * times)) for times in TIMES]
    silent = not any(values)  # a hinge may be zero for the first samples
    if silent:
        few = list(numbers)
        values = [_mean_of(value, _take_samples(samples, rows, few * times)) for times in TIMES]
    once, twice, thrice = values
    if not all(map(math.isfinite, values)):
        return False
    # Compared last: observers of a network trained for quantization change its value with some calls only.
    drawn = first != _mean_of(value, some) or not _close(first, turned, ORDER_TOLERANCE)
    if drawn:
        again = _mean_of(value, _take_samples(samples, rows, few * TIMES[0]))
        grows = all(_close(n * once, one, RANDOM_TOLERANCE) for n, one in ((1, again), (2, twice), (3, thrice)))
    else:
        grows = _adds_up(once, twice, thrice) or _is_power(once, twice, thrice)
        # Hinges of pairs or triplets are often zero for repetitions of two samples.
        if grows and (silent or rows >= 4) and _close(twice - once, thrice - twice):
            grows = not _depends_on_batch(value, samples, rows, _tolerance(member), silent=silent)
    if grows:
        raise _sum(member, what, {len(few) * times: one for times, one in zip(TIMES[:2], values, strict=False)})
    return not drawn


def _depends_on_batch(value: Value, samples: Any, rows: int, tolerance: float, *, silent: bool) -> bool:
    """Return whether a value depends on which samples are in one batch; a sum of per-sample values does not.

    If `silent`, the value of all samples counts too. Otherwise it may contain a constant, which two batches contain twice.
    """
    numbers = range(min(PAIRED, rows))
    half = len(numbers) // 2
    splits = [(numbers[:half], numbers[half:]), (numbers[::2], numbers[1::2]), (numbers,)]
    found = [[_mean_of(value, _take_samples(samples, rows, part)) for part in parts] for parts in splits[: 2 + silent]]
    sums = [sum(values) for values in found]
    return max(sums) - min(sums) > tolerance * sum(abs(one) for values in found for one in values)


def check_halves(member: Member, what: str, value: Value, samples: Any, rows: int) -> bool:
    """Compare the value of a batch with those of its halves; returns whether the mean of the halves differs.

    Raises StudyError for values ``[rows, rows]``, which compare each sample with every other.
    """
    half = rows // 2
    parts = [range(rows), range(half), range(half, rows)]
    whole, first, _ = values = [_value(value, _take_samples(samples, rows, part)) for part in parts]
    if whole is not None and first is not None:
        sides = zip(whole.shape[1:], first.shape[1:], strict=False)
        if half and whole.shape[:1] == (rows,) and (rows, half) in sides:
            raise StudyError(
                f"member {member.name!r}: its {what} gives {list(whole.shape)} for {rows} samples and "
                f"{list(first.shape)} for {half}, so it compares samples of a batch with each other. Return one "
                "value per sample, [batch], or one number."
            )
    together, one, other = map(_mean, values)
    apart = (one * half + other * (rows - half)) / rows
    return abs(together - apart) > _tolerance(member) * max(abs(together), abs(apart))


def _tolerance(member: Member) -> float:
    return TOLERANCE if member.precision == "float32" else ROUNDING_TOLERANCE


def check_sizes(member: Member, value: Value, batches: Iterable[tuple[Any, int]]) -> None:
    """Raise StudyError if a member's own step sums samples, judged by its losses for two batch sizes in which all samples are equal.

    A step that fails on such a batch, for example because it needs negatives, is not checked.
    """
    losses = {rows: _value(value, data) for data, rows in batches}
    values = {size: float(one) for size, one in losses.items() if one is not None and not one.dim() and one.isfinite()}
    if len(values) == 2:
        (size, one), (other_size, other) = values.items()
        if not _close(one, other) and _close(one / size, other / other_size):
            raise _sum(member, "step" if member.validate is None else "validate", values)


@contextlib.contextmanager
def refusing_broadcasts(member: Member, *, repeats: bool = True) -> Iterator[None]:
    """Turn torch's warning that targets broadcast against outputs of other samples into StudyError; repeat other warnings if it `repeats`."""
    with warnings.catch_warnings(record=True, action="always") as caught:
        yield
    for warning in caught:
        sizes = BROADCAST.search(str(warning.message))
        if sizes and sizes[1].count(",") != sizes[2].count(","):
            target, output = ([int(size) for size in group.split(",") if size.strip()] for group in sizes.groups())
            raise _broadcast(member, "loss", str(output), str(target), same_shape(output, target))
        if repeats:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


def check_pairs(member: Member, what: str, value: Value, pair: tuple[Any, Any], rows: int) -> None:
    """Raise StudyError for a loss or metric of (output, target) that compares each output with all targets because of their shapes."""
    output, target = pair
    tensors = isinstance(output, Tensor) and isinstance(target, Tensor) and output.numel() == target.numel()
    if tensors and output.shape == target.shape:
        return  # a value of all pairs, such as the distance of two distributions, is meant so
    # Outputs of an untrained network may be so similar that no order matters, so targets are tried as outputs too.
    like = [target.reshape(output.shape).to(output.dtype)] if tensors else []
    if any(_broadcasts(value, outputs, target, rows) for outputs in (output, *like)):
        column = isinstance(target, Tensor) and target.shape == (rows, 1)
        other = "target[:, 0]" if column else "output[:, 0], or target[:, None]"
        advice = same_shape(output.shape, target.shape) if tensors else other
        raise _broadcast(member, what, _shapes(output), _shapes(target), advice)


def check_step(member: Member, what: str, value: Value, samples: Any, rows: int) -> bool | None:
    """Check a member's own step or validation as `_check_sum` and `check_halves` do, and that its targets do not broadcast.

    All leaves but the first count as targets, unless they have the shape of the first. Returns whether the mean over batches depends on
    their sizes; None if this cannot be determined. Raises StudyError.
    """
    (first, *rest), tree = flatten(samples)
    # The distance of two sets of samples is one of all pairs, so it depends on all targets as it should.
    sets = first.dim() > 1 and all(leaf.shape == first.shape for leaf in rest)
    if rest and not sets and _broadcasts(lambda pair: value(unflatten([pair[0], *pair[1]], tree)), first, rest, rows):
        raise StudyError(
            f"member {member.name!r}: its {what} gets {_shapes(rest)} and compares each output with the targets of "
            "other samples too, because their shapes differ. Give both the same shape, for example with "
            "target.reshape_as(output)."
        )
    known = _check_sum(member, what, value, samples, rows)
    return check_halves(member, what, value, samples, rows) if known else None


def _broadcasts(value: Value, output: Any, target: Any, rows: int) -> bool:
    """Return whether a value of (output, target) ignores the order of targets as they are, but depends on it if they have another shape.

    A value that reshapes its arguments depends on the order as they are. A value that compares samples on purpose depends on it in no shape.
    Returns False for a value that draws random numbers, because it cannot be determined.
    """
    few = list(range(min(PAIRED, rows)))
    outputs = _take_samples(output, rows, few)
    targets = [_take_samples(target, rows, few[turn:] + few[:turn]) for turn in range(min(4, len(few)))]
    pair = outputs, targets[0]
    once = _mean_of(value, pair)
    if once != _mean_of(value, pair) or _depends_on_order(value, outputs, targets, lambda leaf: leaf) is not False:
        return False
    depends = any(_depends_on_order(value, outputs, targets, shaped) for shaped in SHAPES)
    # The last comparison excludes values that change with every call, for example by an adaptive threshold.
    return depends and once == _mean_of(value, pair)


def _depends_on_order(
    value: Value, outputs: Any, targets: Iterable[Any], shaped: Callable[[Tensor], Tensor]
) -> bool | None:
    """Return whether a value depends on the order of targets in this shape; None if it is not finite."""
    first = math.nan
    for number, one in enumerate(targets):
        mean = _mean_of(value, (outputs, map_leaves(partial(_of_rows, shaped), one)))
        if not math.isfinite(mean):
            return None
        if number and not _close(first, mean):
            return True
        first = mean
    return False


def _of_rows(shaped: Callable[[Tensor], Tensor], leaf: Any) -> Any:
    return shaped(leaf) if isinstance(leaf, Tensor) and leaf.dim() else leaf


def _value(value: Value, samples: Any) -> Tensor | None:
    """Return a value; None if it raises or is no tensor."""
    try:
        with warnings.catch_warnings(action="ignore"):
            result = value(samples)
    except Exception:  # boundary to a member's code; an error that training raises too is reported there
        return None
    return result.detach() if isinstance(result, Tensor) else None


def _mean(value: Tensor | None) -> float:
    return math.nan if value is None else float(value.double().mean())


def _mean_of(value: Value, samples: Any) -> float:
    return _mean(_value(value, samples))


def _take_samples(samples: Any, rows: int, numbers: Iterable[int]) -> Any:
    """Return copies of these samples of a tree."""
    index = torch.tensor([*numbers], dtype=torch.long)

    def taken(leaf: Any) -> Any:
        of_samples = isinstance(leaf, Tensor) and leaf.dim() and len(leaf) == rows
        return leaf[index.to(leaf.device)] if of_samples else leaf

    return map_leaves(taken, samples)


def _adds_up(once: float, twice: float, thrice: float) -> bool:
    """Return whether each repetition adds at least as much as the one before."""
    first, second = twice - once, thrice - twice
    return abs(first) > TOLERANCE * abs(thrice) and second / first > 1 - TOLERANCE


def _is_power(once: float, twice: float, thrice: float) -> bool:
    """Return whether these are proportional to 1, 2 and 3 to some power above 0.1."""
    if not once or twice / once <= 0 or thrice / once <= 0:
        return False
    power = math.log2(twice / once)
    return power > 0.1 and abs(math.log(thrice / once, 3) - power) <= TOLERANCE * power


def _close(one: float, other: float, tolerance: float = TOLERANCE) -> bool:
    return abs(one - other) <= tolerance * max(abs(one), abs(other))


def _sum(member: Member, what: str, losses: Mapping[int, float]) -> StudyError:
    described = " and ".join(f"{loss:.4g} of {samples} samples" for samples, loss in losses.items())
    return StudyError(
        f"member {member.name!r}: its {what} sums over the samples of a batch ({described}, with the same samples), so "
        "val_loss would grow with eval_batch_size, and steps with batch_size. Return the mean over the samples, "
        "or one loss per sample: set reduction='mean' or 'none', or divide by the number of samples."
    )


def _shapes(tree: Any) -> str:
    return ", ".join(format_tensor(leaf) for leaf in flatten(tree)[0] if isinstance(leaf, Tensor))


def _broadcast(member: Member, what: str, output: str, target: str, advice: str) -> StudyError:
    return StudyError(
        f"member {member.name!r}: its network returns {output} and targets are {target}, so its {what} compares "
        f"each output with the targets of other samples too. Give both the same shape: {advice}."
    )
