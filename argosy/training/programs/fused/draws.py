"""Random draws of members in one program: each member draws from its own state what it would draw alone.

A vectorised kernel would draw for all members from one generator, and no member would get the masks of its solo run. So torch's
drawing functions are intercepted and run for one member after another, each under its own state. Other draws (in place, in C++)
make the vectorised call raise, and the member is refused.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from argosy.stream.trees import flatten, unflatten
from argosy.training.device.kernel_forms import MaskDraw
from argosy.training.member.randomness import Randomness
from argosy.training.programs.fused.device_draws import DeviceDraws, States
from argosy.training.programs.fused.vectorised import Level
from argosy.training.programs.fused.vmap_overrides import OVERRIDES

__all__ = ["PerMemberDraws", "draw_masks", "has_dropout", "set_own_rates", "rate_of_row"]

MASKS = {functional.dropout, functional.dropout1d, functional.dropout2d, functional.dropout3d}
"""Functions that multiply their input by a random mask."""
ALWAYS: set[Callable[..., Any]] = {
    torch.rand,
    torch.randn,
    torch.randint,
    torch.randperm,
    torch.rand_like,
    torch.randn_like,
    torch.randint_like,
    torch.bernoulli,
    torch.multinomial,
    torch.normal,
    torch.poisson,
    torch.Tensor.bernoulli,
    torch.Tensor.multinomial,
    functional.gumbel_softmax,
}
IN_TRAINING = {functional.alpha_dropout, functional.feature_alpha_dropout}
"""Functions that draw if their argument `training` is true."""
ATTENTION: Mapping[Callable[..., Any], int] = {
    functional.scaled_dot_product_attention: 4,
    functional.multi_head_attention_forward: 10,
}
"""Functions that draw if their argument `dropout_p` is positive, with its position among the arguments."""
HANDLED: set[Callable[..., Any]] = {*OVERRIDES, *MASKS, *ALWAYS, *IN_TRAINING, *ATTENTION}
Made = TypeVar("Made")


class Rates(float):
    """A dropout rate per member; as a float it is the largest of them."""

    of: tuple[float, ...]

    @classmethod
    def over(cls, rates: Sequence[float]) -> "Rates":
        """Return the given rates, one per row."""
        largest = cls(max(rates))
        largest.of = tuple(rates)
        return largest


def set_own_rates(base: nn.Module, models: Sequence[nn.Module]) -> None:
    """Give the dropouts of `base`, a copy of the first model, the rates of all models."""
    for name, module in base.named_modules():
        attribute = rate_of(module)
        if attribute is not None:
            setattr(module, attribute, Rates.over([getattr(m.get_submodule(name), attribute) for m in models]))


def rate_of(module: nn.Module) -> str | None:
    """Return the attribute that holds the dropout rate of a torch module; None for other modules, which may use theirs differently."""
    if not type(module).__module__.startswith("torch."):
        return None
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return "p"
    return "dropout" if isinstance(module, nn.MultiheadAttention) else None


def has_dropout(model: nn.Module) -> bool:
    """Return whether a network has torch modules with a positive dropout rate."""
    return any((attribute := rate_of(m)) is not None and getattr(m, attribute) > 0 for m in model.modules())


def rate_of_row(rate: float, row: int) -> float:
    """Return a row's dropout rate from a single rate or from `Rates`."""
    return rate.of[row] if isinstance(rate, Rates) else rate


def draw_masks(states: Iterable[Randomness], masks: Iterable[Sequence[tuple[float, Tensor]]]) -> None:
    """Draw each member's dropout masks in place from its state, all of one member before the next, with the bits of dropout applied to ones.

    Masks are given with the share of elements that is kept.
    """
    for state, own in zip(states, masks, strict=True):
        if not own:
            continue
        with state.active():
            for kept, mask in own:
                if not 0 < kept < 1:
                    mask.fill_(kept)  # nothing is drawn
                elif mask.device.type == "cpu":
                    mask.bernoulli_(kept).div_(kept)
                else:
                    mask.copy_(functional.dropout(torch.ones_like(mask), 1 - kept))


class PerMemberDraws(TorchFunctionMode):
    """A mode for use inside a vectorised function; it runs drawing functions member by member, each from its random state."""

    def __init__(self, states: States) -> None:
        super().__init__()
        self._states = states
        self._level = Level()

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Handle a call of a torch function inside the mode."""
        kwargs = kwargs or {}
        if function not in HANDLED or not self._level.innermost:
            return function(*args, **kwargs)
        if function in OVERRIDES:
            result = OVERRIDES[function](self._level, *args, **kwargs)
            return function(*args, **kwargs) if result is None else result
        if function in MASKS:
            return self._masked(function, *args, **kwargs)
        if _draws(function, args, kwargs):
            return self._one_by_one(function, args, kwargs)
        if function in ATTENTION:
            # Torch's fast kernels would run for one member after another on the CPU. On other devices they would save
            # nothing for the backward pass, because vmap hides it from them (pytorch#134784).
            with sdpa_kernel(SDPBackend.MATH):
                return function(*args, **kwargs)
        return function(*args, **kwargs)

    def _masked(
        self, function: Any, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        """Apply dropout by a mask, which has the bits of the same dropout applied to ones."""
        if not training or p == 0.0:  # `Rates` compare as their largest rate
            return input
        stacked, members = self._level.stacked(input)
        with self._level.outside(), torch.no_grad():
            ones = torch.ones_like(stacked if members is None else stacked.select(members, 0))
            draws = self._states.on_device
            # Our own kernels draw in the order of a tensor's dimensions, torch in the order of its memory.
            if draws is not None and function is functional.dropout and ones.is_contiguous():
                masks = self._on_device(draws, ones, p)
            else:
                masks = torch.stack(self._each(lambda number: function(ones, self._own(p, None, number))))
        drawn = self._level.one(masks)
        return input.mul_(drawn) if inplace else input * drawn

    def _on_device(self, draws: DeviceDraws, one: Tensor, p: float) -> Tensor:
        """Draw the masks of all members at once, each of the shape of `one`."""
        masks = one.new_empty(len(self._states), *one.shape)
        count = one.numel()
        draws.masks([MaskDraw(row, row * count, count, 1 - rate_of_row(p, row)) for row in range(len(masks))], masks)
        return masks

    def _one_by_one(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the function with each member's part of the arguments; autograd records these calls."""
        leaves, structure = flatten((args, kwargs))
        stacked = [self._level.stacked(leaf) if isinstance(leaf, Tensor) else (leaf, None) for leaf in leaves]

        def one(number: int) -> Any:
            own_args, own_kwargs = unflatten([self._own(leaf, members, number) for leaf, members in stacked], structure)
            return function(*own_args, **own_kwargs)

        with self._level.outside():
            results = [flatten(result) for result in self._each(one)]
            columns = list(zip(*(parts for parts, _ in results), strict=True))
            columns_stacked = [
                torch.stack(column) if isinstance(column[0], Tensor) else column[-1] for column in columns
            ]
        return unflatten(
            [self._level.one(one) if isinstance(one, Tensor) else one for one in columns_stacked], results[-1][1]
        )

    def _each(self, function: Callable[[int], Made]) -> list[Made]:
        """Call the function for each member, under its random state."""
        results = []
        for number, state in enumerate(self._states):
            with state.active():
                results.append(function(number))
        return results

    def _own(self, leaf: Any, members: int | None, number: int) -> Any:
        """Return a member's part of a leaf; `members` is the member dimension, or None."""
        if isinstance(leaf, Rates):
            return rate_of_row(leaf, number)
        return leaf if members is None else leaf.select(members, number)


def _draws(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if function in IN_TRAINING:
        return bool(kwargs["training"])
    if function in ATTENTION:
        place = ATTENTION[function]
        rate = args[place] if len(args) > place else kwargs.get("dropout_p", 0.0)
        return bool(kwargs.get("training", True)) and rate > 0.0
    return function in ALWAYS
