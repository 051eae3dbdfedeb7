"""Arguments bound in a `functools.partial`, by parameter name."""

import inspect
from functools import lru_cache, partial
from types import CodeType
from typing import Any

__all__ = ["bound_arguments", "unwrap_partials", "rebind", "signature_of"]


def unwrap_partials(factory: Any) -> Any:
    """Return the function inside a partial, however deeply nested; anything else is returned as it is."""
    while isinstance(factory, partial):
        factory = factory.func
    return factory


def bound_arguments(factory: partial[Any]) -> dict[str, Any]:
    """Return the bound arguments by name, positional ones first; arguments of unnamed parameters have numbers.

    >>> bound_arguments(partial(lambda hidden, *rest, depth: ..., 128, 3, depth=2))
    {'hidden': 128, '1': 3, 'depth': 2}
    """
    return {**dict(zip(_positions(factory), factory.args, strict=True)), **factory.keywords}


def rebind(factory: partial[Any], name: str, value: Any) -> partial[Any]:
    """Return the partial with another value for the argument that `bound_arguments` lists under this name.

    >>> bound_arguments(rebind(partial(lambda hidden, depth: ..., 128, 3), "hidden", 16))
    {'hidden': 16, 'depth': 3}
    """
    if name in factory.keywords:
        return partial(factory, **{name: value})
    arguments = list(factory.args)
    arguments[_positions(factory).index(name)] = value
    return partial(factory.func, *arguments, **factory.keywords)


def _positions(factory: partial[Any]) -> list[str]:
    """Return the names of the positional arguments."""
    numbered = [str(number) for number in range(len(factory.args))]
    try:
        parameters = signature_of(factory.func).parameters.values() if numbered else ()
    except (TypeError, ValueError):
        return numbered  # a builtin without a signature
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [parameter.name for parameter in parameters if parameter.kind in kinds][: len(numbered)]
    return [*names, *numbered[len(names) :]]


def signature_of(function: Any) -> inspect.Signature:
    """Return `inspect.signature`, cached for classes because a search asks for the same few with each trial."""
    init = vars(function).get("__init__") if isinstance(function, type) else None
    code = getattr(init, "__code__", None)
    return inspect.signature(function) if code is None else _signature(function, code)


@lru_cache(maxsize=256)
def _signature(kind: type, init: CodeType) -> inspect.Signature:
    """Cached by the code too, because notebooks replace the methods of a class whose module was edited."""
    return inspect.signature(kind)
