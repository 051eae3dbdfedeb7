"""Random draws of members that run as one program: each draws from its own state what it would draw alone.

Vectorised, one kernel would draw for all members from one generator, and no member would get the masks of its solo run. So
the functions of torch that draw are taken out: for each of them one member after another draws under its own state. What
draws in another way (in place, in C++) makes the vectorised call raise, and its member is refused.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from argosy.stream.trees import flatten, unflatten
from argosy.training.forms import FORMS
from argosy.training.randomness import Randomness
from argosy.training.vectorised import Level

__all__ = ["OwnDraws", "own_rates"]

MASKS = {functional.dropout, functional.dropout1d, functional.dropout2d, functional.dropout3d}
"""They multiply their input by what they draw."""
ALWAYS = {
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
"""They draw where their argument `training` says so."""
ATTENTION = {functional.scaled_dot_product_attention: 4, functional.multi_head_attention_forward: 10}
"""They draw where their argument `dropout_p` is more than nothing; by its place among the arguments."""
HANDLED = {*FORMS, *MASKS, *ALWAYS, *IN_TRAINING, *ATTENTION}


class Rates(float):
    """The rate of a dropout that differs between members."""

    of: tuple[float, ...]

    @classmethod
    def over(cls, rates: Sequence[float]) -> "Rates":
        """The rates of the members, by row."""
        made = cls(max(rates))
        made.of = tuple(rates)
        return made


def own_rates(base: nn.Module, models: Sequence[nn.Module]) -> None:
    """Let the dropouts of a copy of the first of these models have the rate of each of them."""
    for name, module in base.named_modules():
        attribute = rate_of(module)
        if attribute is not None:
            setattr(module, attribute, Rates.over([getattr(m.get_submodule(name), attribute) for m in models]))


def rate_of(module: nn.Module) -> str | None:
    """The attribute of a module that is a dropout's rate."""
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return "p"
    return "dropout" if isinstance(module, nn.MultiheadAttention) else None


class OwnDraws(TorchFunctionMode):
    """Inside a vectorised function: what draws is done member by member.

    `states` are those of the members at hand, `rows` their numbers in what has rates of its own for each member, `number`
    a tensor over which the function is vectorised: it makes a call of functions that take no tensor one over the members.
    """

    def __init__(self, states: Sequence[Randomness], rows: Sequence[int], number: Tensor) -> None:
        super().__init__()
        self._states = states
        self._rows = rows
        self._number = number
        self._level = Level()

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Called in place of every function of torch."""
        kwargs = kwargs or {}
        if function not in HANDLED:
            return function(*args, **kwargs)
        if function in FORMS:
            made = FORMS[function](self._level, *args, **kwargs) if self._level.innermost else None
            return function(*args, **kwargs) if made is None else made
        if function in MASKS:
            return self._masked(function, *args, **kwargs)
        if _draws(function, args, kwargs):
            return self._one_by_one(function, args, kwargs)
        if function in ATTENTION and self._number.device.type == "cpu":
            # Torch's fast one for the CPU would run for one member after another.
            with sdpa_kernel(SDPBackend.MATH):
                return function(*args, **kwargs)
        return function(*args, **kwargs)

    def _masked(
        self, function: Any, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        """Dropout: ones under the same rule are its mask, to the bit."""
        if not training:
            return input
        masks = self._one_by_one(lambda x, rate: function(torch.ones_like(x), rate), (input.detach(), p), {})
        return input.mul_(masks) if inplace else input * masks

    def _one_by_one(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The function with each member's part of the arguments, under its state."""
        leaves, structure = flatten((args, kwargs))
        places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        result: list[Any] = []

        def of(number: int, tensors: Sequence[Tensor]) -> list[Tensor]:
            own = [leaf.of[self._rows[number]] if isinstance(leaf, Rates) else leaf for leaf in leaves]
            for place, tensor in zip(places, tensors, strict=True):
                own[place] = tensor
            own_args, own_kwargs = unflatten(own, structure)
            with self._states[number].active():
                result[:] = flatten(function(*own_args, **own_kwargs))
            return [leaf for leaf in result[0] if isinstance(leaf, Tensor)]

        apply: Callable[..., tuple[Tensor, ...]] = _EachMember.apply
        drawn = iter(apply(of, self._number, *(leaves[place] for place in places)))
        made, made_structure = result
        return unflatten([next(drawn) if isinstance(leaf, Tensor) else leaf for leaf in made], made_structure)


class _EachMember(torch.autograd.Function):
    """A function whose vectorised form is one call for each member; autograd sees these calls."""

    @staticmethod
    def forward(of: Any, number: Tensor, *tensors: Tensor) -> Any:
        raise AssertionError("it is for vectorised calls alone")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is kept."""

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], of: Any, number: Tensor, *tensors: Tensor) -> Any:
        """See `torch.autograd.Function.vmap`."""
        made = [
            of(
                member,
                [t if dim is None else t.select(dim, member) for t, dim in zip(tensors, in_dims[2:], strict=True)],
            )
            for member in range(info.batch_size)
        ]
        return tuple(torch.stack(pieces) for pieces in zip(*made, strict=True)), (0,) * len(made[0])


def _draws(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if function in IN_TRAINING:
        return bool(kwargs["training"])
    if function in ATTENTION:
        place = ATTENTION[function]
        rate = args[place] if len(args) > place else kwargs.get("dropout_p", 0.0)
        return bool(kwargs.get("training", True)) and rate > 0.0
    return function in ALWAYS
