"""Documentation of dataclass fields from the strings under them, for both ``help()`` and the reference pages; and their values in short."""

import ast
import inspect
import reprlib
import textwrap
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, fields
from functools import partial
from typing import Any, TypeVar

__all__ = ["DescribedField", "document_fields", "described_fields", "document_keywords", "short_repr"]

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
WIDTH = 96


@dataclass(frozen=True, kw_only=True, slots=True)
class DescribedField:
    """Documentation of one field of a dataclass."""

    name: str
    type: str
    default: str
    """The default as source text; empty if a value is required."""
    text: str
    """Description in one paragraph; empty if the class has none."""

    def __str__(self) -> str:
        head = f"    {self.name}: {self.type}{f' = {self.default}' if self.default else ''}"
        indent = " " * 8
        lines = textwrap.wrap(self.text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
        return "\n".join([head, *lines])


def document_fields(kind: type[T]) -> type[T]:
    """Make the docstring of a dataclass list its fields; the source is read only when the docstring is accessed.

    Not for subclasses of abstract classes, because ``help()`` bypasses descriptors for their docstrings.
    """
    kind.__doc__ = _Docstring(kind.__doc__ or "")  # type: ignore[assignment]
    return kind


def document_keywords(kind: type[Any], title: str) -> Callable[[F], F]:
    """Make the docstring of a function list the fields of a dataclass that it takes as keywords."""

    def listing(function: F) -> F:
        function.__doc__ = _append_fields(function.__doc__ or "", title, kind)
        return function

    return listing


def described_fields(kind: type[Any]) -> list[DescribedField]:
    """Return the public fields of a dataclass that its constructor takes, with the strings under them in its source."""
    texts, types = _read_fields(kind)
    public = [field for field in fields(kind) if field.init and not field.name.startswith("_")]
    return [
        DescribedField(
            name=field.name,
            type=types.get(field.name, ""),
            default=_default(field),
            text=field.metadata.get("help", texts.get(field.name, "")),
        )
        for field in public
    ]


def short_repr(value: Any) -> str:
    """Return the repr of a dataclass without defaults, with arrays as their shapes and long values cut: a notebook shows it below a cell."""
    given = [(field.name, getattr(value, field.name), field.default) for field in fields(value) if field.repr]
    text = ", ".join(f"{name}={SHORT.repr(held)}" for name, held, default in given if held is not default)
    return f"{type(value).__name__}({text})"


class _Short(reprlib.Repr):
    """Calls ``repr_X`` for an object of a class that is named X."""

    def __init__(self) -> None:
        super().__init__()
        self.maxother = 160

    def repr1(self, x: Any, level: int) -> str:
        shape = getattr(x, "shape", None)  # empty for a single number, such as a learning rate of np.logspace
        text = f"{type(x).__name__}{[*shape]}" if isinstance(shape, tuple) and shape else super().repr1(x, level)
        return " ".join(text.split())

    def repr_function(self, x: Any, level: int) -> str:
        return str(x.__qualname__)

    repr_type = repr_function

    def repr_partial(self, x: "partial[Any]", level: int) -> str:
        arguments = [self.repr1(one, level - 1) for one in x.args]
        named = [f"{name}={self.repr1(one, level - 1)}" for name, one in x.keywords.items()]
        return f"partial({', '.join([self.repr1(x.func, level - 1), *arguments, *named])})"

    def repr_Member(self, x: Any, level: int) -> str:  # noqa: N802  # by the name of the class
        return str(x.name)


SHORT = _Short()


class _Docstring:
    """A docstring that is composed on access: ``__doc__`` of a class may be a descriptor."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __get__(self, instance: object, owner: type[Any]) -> str:
        return _append_fields(self.text, "Fields", owner)


def _append_fields(text: str, title: str, kind: type[Any]) -> str:
    lines = "\n".join(map(str, described_fields(kind)))
    return f"{inspect.cleandoc(text)}\n\n{title}:\n{lines}\n"


def _read_fields(kind: type[Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the strings under the fields of a class, and their types, from its source; nothing if there is no source."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    except (OSError, TypeError):
        return {}, {}
    (node,) = (one for one in tree.body if isinstance(one, ast.ClassDef))
    texts, types, name = {}, {}, ""
    for line in node.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            name = line.target.id
            types[name] = ast.unparse(line.annotation)
        elif isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) and name:
            texts[name] = " ".join(str(line.value.value).split())
            name = ""
        else:
            name = ""
    return texts, types


def _default(field: "Field[Any]") -> str:
    if field.default is not MISSING:
        return repr(field.default)
    if field.default_factory is not MISSING:
        return repr(field.default_factory())
    return ""
