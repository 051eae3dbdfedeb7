"""The reference for users, docs/reference/, generated from docstrings by ``PYTHONPATH=tests python -m pages``."""

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

import argosy
from argosy import data
from argosy.adapters.arrays import Fitted, fit
from argosy.cli.app import app
from argosy.data.tables import Table
from argosy.described import described_fields
from argosy.ensembling.ensemble import Ensemble
from argosy.estimators.tabular import Shape
from argosy.results.intervals import Interval
from argosy.results.member import MemberResult
from argosy.results.repetitions import Comparison, Leader
from argosy.results.report import Report
from argosy.running.directory.attached import AttachedRun
from argosy.settings import Settings
from argosy.stopping import EnsemblePlateau, MaxEpochs, MaxSamples, MaxSeconds, MaxSteps, Plateau, Target
from argosy.tuning.report import SearchReport
from argosy.tuning.trials import TrialResult

__all__ = ["FOLDER", "NAMES", "pages"]

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
PAGES: dict[str, tuple[str, Sequence[tuple[str, Any]]]] = {
    "study": ("Study", [("argosy.Study", argosy.Study)]),
    "data": (
        "Data",
        [
            ("argosy.Data", argosy.Data),
            ("argosy.Ragged", argosy.Ragged),
            *((f"argosy.data.{name}", getattr(data, name)) for name in data.__all__),
            ("Table", Table),
        ],
    ),
    "member": (
        "Members",
        [(f"argosy.{name}", getattr(argosy, name)) for name in ("Member", "EMA", "SWA", "LastK", "accuracy")],
    ),
    "several": (
        "Repetitions, folds and grids",
        [(f"argosy.{name}", getattr(argosy, name)) for name in ("grid", "replicate", "kfold", "bootstrap")],
    ),
    "rules": (
        "Stopping rules",
        [
            *(
                (f"argosy.{one.__name__}", one)
                for one in (MaxEpochs, MaxSteps, MaxSamples, MaxSeconds, Plateau, Target)
            ),
            ("argosy.EnsemblePlateau", EnsemblePlateau),
        ],
    ),
    "train": (
        "Training",
        [(f"argosy.{name}", getattr(argosy, name)) for name in ("train", "plan", "load")] + [("Settings", Settings)],
    ),
    "attach": ("Live runs", [("argosy.attach", argosy.attach), ("AttachedRun", AttachedRun)]),
    "report": (
        "Results",
        [
            ("argosy.Report", Report),
            ("MemberResult", MemberResult),
            ("Comparison", Comparison),
            ("Leader", Leader),
            ("Interval", Interval),
        ],
    ),
    "ensemble": ("Ensembles", [("Ensemble", Ensemble), ("argosy.distill", argosy.distill)]),
    "tune": (
        "Hyper-parameter search",
        [
            ("argosy.tune", argosy.tune),
            ("argosy.Search", argosy.Search),
            ("SearchReport", SearchReport),
            ("TrialResult", TrialResult),
        ],
    ),
    "fit": ("Fit and predict on arrays", [("argosy.fit", fit), ("Fitted", Fitted)]),
    "tables": (
        "Tables",
        [(f"argosy.{name}", getattr(argosy, name)) for name in ("Classifier", "Regressor", "tabular")]
        + [("Shape", Shape)],
    ),
    "others": (
        "Other libraries",
        [(f"argosy.{name}", getattr(argosy, name)) for name in ("from_huggingface", "from_lightning")],
    ),
}
"""Titles and contents of the pages, by file."""
NAMES = {name for _, things in PAGES.values() for name, _ in things}
INTRODUCTIONS = {
    "rules": "Rules are checked at the end of each section, which is an epoch if `Study.validations_per_epoch` is 1. `rule | other` stops as soon as either "
    "rule holds, `rule & other` as soon as both do.",
    "ensemble": "`report.ensemble(top=5)` returns an ensemble ([ensembling.md](../ensembling.md)).",
    "train": "Each setting is a keyword of `argosy.train`, and an option of `argosy run`: `loader_workers=4` is `--loader-workers 4`. `argosy.plan` and "
    "`argosy.fit` take them too, `argosy.tune` all but `retry_failed`; `argosy tune` also lacks `policy`, `packing` and `preparing_nodes`.",
}
MADE = "Every object and command, generated from the docstrings by `PYTHONPATH=tests python -m pages`; `help()` shows the same text."


def pages() -> dict[str, str]:
    """Return the text of each file by its name."""
    found = {f"{file}.md": _page(file, title, things) for file, (title, things) in PAGES.items()}
    return {"README.md": _index(), **found, "commands.md": _commands()}


def _index() -> str:
    rows = [
        f"| [{title}]({file}.md) | {', '.join(f'`{name}`' for name, _ in things)} |"
        for file, (title, things) in PAGES.items()
    ]
    rows.append(f"| [Commands](commands.md) | {', '.join(f'`argosy {name}`' for name, _ in _commands_of(app))} |")
    return f"# Reference\n\n{MADE}\n\n| page | contents |\n|---|---|\n" + "\n".join(rows) + "\n"


def _page(file: str, title: str, things: Sequence[tuple[str, Any]]) -> str:
    parts = [f"# {title}", *([INTRODUCTIONS[file]] if file in INTRODUCTIONS else [])]
    for name, thing in things:
        parts.append(f"## {name}")
        parts += _of_class(thing) if inspect.isclass(thing) else [_signature(name, thing), _text(thing)]
    return "\n\n".join(parts) + "\n"


def _of_class(kind: type[Any]) -> Iterator[str]:
    yield _text(kind)
    if is_dataclass(kind):
        rows = [
            f"| `{one.name}` | {_cell(one.type)} | {_cell(one.default)} | {_markdown(one.text)} |"
            for one in described_fields(kind)
        ]
        yield "| field | type | default | meaning |\n|---|---|---|---|\n" + "\n".join(rows)
    elif hasattr(kind, "fit"):  # an estimator, whose docstring says what its parameters are
        yield _signature(f"argosy.{kind.__name__}", kind)
    for name, member in vars(kind).items():
        if name.startswith("_") or name in ("of", "reason", "certain", "watches", "max_epochs", "to_json", "forward"):
            continue
        if isinstance(member, property):
            yield f"### {name}\n\n{_text(member.fget)}"
        elif inspect.isfunction(member) or isinstance(member, classmethod):
            function = inspect.unwrap(getattr(kind, name))
            yield f"### {name}\n\n{_signature(name, function)}\n\n{_text(function)}"


def _signature(name: str, function: Callable[..., Any]) -> str:
    """Return a function's parameters as a block of Python, with a line for each if one line is too short."""
    parameters = [one for one in inspect.signature(function).parameters.values() if one.name not in ("self", "cls")]
    shown, starred = [], False
    for one in parameters:
        if one.kind is one.KEYWORD_ONLY and not starred:
            shown, starred = [*shown, "*"], True
        starred |= one.kind is one.VAR_POSITIONAL
        shown.append(
            f"{one.name}={_default(one.default)}" if one.default is not one.empty else str(one).partition(":")[0]
        )
    line = f"{name}({', '.join(shown)})"
    return "```python\n" + (line if len(line) < 120 else f"{name}(\n    " + ",\n    ".join(shown) + ",\n)") + "\n```"


def _default(value: Any) -> str:
    return value.__name__ if inspect.isfunction(value) or inspect.isclass(value) else repr(value)


def _text(thing: Any) -> str:
    return _markdown((inspect.getdoc(thing) or "").partition("\n\nFields:\n")[0].partition("\n\nSettings:\n")[0])


def _markdown(text: str) -> str:
    """Return a docstring as Markdown: code in single backquotes, examples in blocks, entries of `Raises:` as a list."""
    found, example = [], False
    for line in re.sub(r"``(.+?)``", r"`\1`", text, flags=re.DOTALL).splitlines():
        if line.startswith(">>>") if not example else not line.strip():
            found.append("```")
            example = not example
        # MkDocs begins a list only after an empty line.
        found.append(re.sub(r"^    (\w+): ", r"* \1: ", line.replace("Raises:", "Raises:\n")) if not example else line)
    return "\n".join([*found, "```"] if example else found)


def _cell(code: str) -> str:
    return f"`{code}`".replace("|", "\\|") if code else ""


def _commands() -> str:
    parts = ["# Commands", "The text of `argosy --help` and `argosy COMMAND --help`."]
    for name, command in _commands_of(app):
        arguments = [param for param in command.params if isinstance(param, TyperArgument)]
        options = [param for param in command.params if isinstance(param, TyperOption) and not param.hidden]
        words = " ".join(
            (param.name or "").upper() if param.required else f"[{(param.name or '').upper()}]" for param in arguments
        )
        parts += [
            f"## argosy {name}",
            f"```\nargosy {name}{' [OPTIONS]' if options else ''} {words}".rstrip() + "\n```",
        ]
        parts.append(_markdown(inspect.cleandoc(command.help or "")))
        rows = [
            f"| `{', '.join(param.opts)}` | {_of_option(param)} | {_markdown(param.help or '')} |" for param in options
        ]
        parts += ["| option | default | meaning |\n|---|---|---|\n" + "\n".join(rows)] if rows else []
    return "\n\n".join(parts) + "\n"


def _commands_of(application: typer.Typer) -> list[tuple[str, TyperCommand]]:
    group = typer.main.get_command(application)
    assert isinstance(group, TyperGroup)
    return [(name, command) for name, command in group.commands.items() if not command.hidden]


def _of_option(param: TyperOption) -> str:
    default = param.default() if callable(param.default) else param.default
    return "" if default in (None, False, (), []) or "Unset" in type(default).__name__ else f"`{default}`"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for file, text in pages().items():
        (FOLDER / file).write_text(text)
