"""Options that several commands share; those of a run's settings are generated from `argosy.settings.Settings`."""

import inspect
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

import typer
from typer.core import TyperGroup

from argosy.errors.spelling import OWNERS, did_you_mean_flag, keyword_of_flag
from argosy.settings import Settings

__all__ = [
    "Address",
    "Commands",
    "Directory",
    "Fresh",
    "LauncherName",
    "SearchFile",
    "Track",
    "Verbose",
    "takes_settings",
]

Command = TypeVar("Command", bound=Callable[..., None])

SEVERAL_NODES = "Several nodes"
"""Panel of ``--help`` that users with one machine may skip."""
Directory = Annotated[
    Path | None,
    typer.Option(
        "--dir", help="Directory of the run, by default runs/ and the file's name; the same command resumes it."
    ),
]
Fresh = Annotated[
    list[str] | None,
    typer.Option(
        "--fresh",
        metavar="[MEMBER]",
        help="Start over, entirely or only this member or configuration; repeatable. Old files are kept.",
    ),
]
LauncherName = Annotated[
    Literal["auto", "processes", "inline", "agents", "ray"],
    typer.Option(
        help="inline: everything in one process. agents: nodes of a job of srun, mpirun or torchrun, which auto detects. ray: a Ray cluster."
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        help="Address of the Ray cluster of --launcher ray: auto, ray://host:10001 or local.",
        rich_help_panel=SEVERAL_NODES,
    ),
]
Track = Annotated[
    list[str] | None, typer.Option("--track", help="Send metrics to tensorboard, mlflow, wandb or trackio; repeatable.")
]
Verbose = Annotated[
    bool, typer.Option("--verbose", help="Show all rows, and costs with their reasons: programs, waits, predictions.")
]
SearchFile = Annotated[Path, typer.Argument(help="Python file with a variable `search`.")]
OF_MEMBERS = {owner: OWNERS[owner] for owner in ("argosy.Data", "argosy.Member")}
OF_SEARCHES = "scheduler sampler eta objective mode constraints enqueue seed packs warm brackets at_once"
OF_FILES = {
    "study_file": {"argosy.Study": OWNERS["argosy.Study"], **OF_MEMBERS},
    "search_file": {"argosy.Search": f"{OWNERS['argosy.tune']} {OF_SEARCHES}", **OF_MEMBERS},
}
"""By argument of a command: classes that its file uses, with their keywords."""
TO_TRAIN = {"train", "fit", "start", "resume", "continue"}
"""Commands of other tools for what `run` and `tune` do."""


class Commands(TyperGroup):
    """All commands; for an unknown flag, the error suggests what was meant, also for spellings with other dashes."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """See `click.Group.resolve_command`."""
        if args[0] in TO_TRAIN:
            ctx.fail(f"No such command {args[0]!r}. Use argosy run or argosy tune; the same command also resumes.")
        resolved: tuple[Any, Any, list[str]] = super().resolve_command(ctx, args)
        name, command, words = resolved
        if not sys.stdout.isatty():
            command.rich_markup_mode = None  # frames around options would be half of the output for programs
        options = [param for param in command.params if param.param_type_name == "option"]
        flags = {one: param.opts[-1] for param in options for one in (param.name, keyword_of_flag(param.opts[-1]))}
        known = {flag for param in command.get_params(ctx) for flag in (*param.opts, *param.secondary_opts)}
        owners = next((OF_FILES[param.name] for param in command.params if param.name in OF_FILES), {})
        for word in words[: words.index("--") if "--" in words else None]:
            flag = word.partition("=")[0]
            if flag.startswith("--") and flag not in known:
                message = f"No such option: {flag}{did_you_mean_flag(flag, flags, owners)}"
                command.context_class(command, info_name=name, parent=ctx).fail(message)
        return resolved


def takes_settings(*names: str, but: tuple[str, ...] = ()) -> Callable[[Command], Command]:
    """Replace the ``**settings`` of a command by an option for each named setting, or for all settings except `but`."""

    def decorated(command: Command) -> Command:
        signature = inspect.signature(command)
        options = [_option(name) for name in names or ALL if name not in but]
        own = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
        own_options = [one.replace(kind=one.KEYWORD_ONLY) for one in own]
        # The last one is ``--json``, and stays there.
        command.__signature__ = signature.replace(parameters=[*own_options[:-1], *options, own_options[-1]])  # type: ignore[attr-defined]
        return command

    return decorated


def _option(name: str) -> inspect.Parameter:
    field, kind = ALL[name], get_type_hints(Settings)[name]
    flag = f"--{name.replace('_', '-')}"  # a boolean flag without a --no- counterpart
    panel = SEVERAL_NODES if field.metadata["several_nodes"] else None
    option = typer.Option(flag, help=field.metadata["help"], rich_help_panel=panel)
    kinds = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kinds, default=field.default, annotation=Annotated[kind, option])


ALL = {field.name: field for field in fields(Settings)}
"""Fields of the settings, by name."""
