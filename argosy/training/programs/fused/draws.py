"""Random draws of members that run as one program: each draws from its own state what it would draw alone.

Vectorised, one kernel would draw for all members from one generator, and no member would get the masks of its solo run. So
the functions of torch that draw are taken out: for each of them one member after another draws under its own state. What
draws in another way (in place, in C++) makes the vectorised call raise, and its member is refused.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from argosy.stream.trees import flatten, unflatten
from argosy.training.member.randomness import Randomness
from argosy.training.programs.fused.vectorised import Level
from argosy.training.programs.fused.vmap_overrides import FORMS

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
Made = TypeVar("Made")


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
    """The attribute of a module of torch's that is a dropout's rate: who knows what one's own does with it."""
    if not type(module).__module__.startswith("torch."):
        return None
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return "p"
    return "dropout" if isinstance(module, nn.MultiheadAttention) else None


class OwnDraws(TorchFunctionMode):
    """Inside a vectorised function: what draws is done member by member.

    `states` are those of the members at hand, `rows` their numbers in what has rates of its own for each member.
    """

    def __init__(self, states: Sequence[Randomness], rows: Sequence[int]) -> None:
        super().__init__()
        self._states = states
        self._rows = rows
        self._level = Level()

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Called in place of every function of torch."""
        kwargs = kwargs or {}
        if function not in HANDLED or not self._level.innermost:
            return function(*args, **kwargs)
        if function in FORMS:
            made = FORMS[function](self._level, *args, **kwargs)
            return function(*args, **kwargs) if made is None else made
        if function in MASKS:
            return self._masked(function, *args, **kwargs)
        if _draws(function, args, kwargs):
            return self._one_by_one(function, args, kwargs)
        if function in ATTENTION:
            # Torch's fast ones: for the CPU, it would run for one member after another; for others, it would keep nothing for
            # a backward pass, of which vmap does not let it know (pytorch#134784).
            with sdpa_kernel(SDPBackend.MATH):
                return function(*args, **kwargs)
        return function(*args, **kwargs)

    def _masked(
        self, function: Any, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        """Dropout: ones under the same rule are its mask, to the bit."""
        if not training or p == 0.0:  # the largest of the members' rates, where they differ
            return input
        stacked, members = self._level.stacked(input)
        with self._level.outside(), torch.no_grad():
            ones = torch.ones_like(stacked if members is None else stacked.select(members, 0))
            masks = torch.stack(self._each(lambda number: function(ones, self._own(p, None, number))))
        drawn = self._level.one(masks)
        return input.mul_(drawn) if inplace else input * drawn

    def _one_by_one(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The function with each member's part of the arguments; autograd sees these calls."""
        leaves, structure = flatten((args, kwargs))
        stacked = [self._level.stacked(leaf) if isinstance(leaf, Tensor) else (leaf, None) for leaf in leaves]

        def one(number: int) -> Any:
            own_args, own_kwargs = unflatten([self._own(leaf, members, number) for leaf, members in stacked], structure)
            return function(*own_args, **own_kwargs)

        with self._level.outside():
            made = [flatten(result) for result in self._each(one)]
            columns = list(zip(*(parts for parts, _ in made), strict=True))
            found = [torch.stack(column) if isinstance(column[0], Tensor) else column[-1] for column in columns]
        return unflatten([self._level.one(one) if isinstance(one, Tensor) else one for one in found], made[-1][1])

    def _each(self, function: Callable[[int], Made]) -> list[Made]:
        """What the function makes for each member, under its state."""
        made = []
        for number, state in enumerate(self._states):
            with state.active():
                made.append(function(number))
        return made

    def _own(self, leaf: Any, members: int | None, number: int) -> Any:
        """A member's part of a leaf of which a dimension may be the members."""
        if isinstance(leaf, Rates):
            return leaf.of[self._rows[number]]
        return leaf if members is None else leaf.select(members, number)


def _draws(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if function in IN_TRAINING:
        return bool(kwargs["training"])
    if function in ATTENTION:
        place = ATTENTION[function]
        rate = args[place] if len(args) > place else kwargs.get("dropout_p", 0.0)
        return bool(kwargs.get("training", True)) and rate > 0.0
    return function in ALWAYS
