"""How a study is run: the settings that are keywords of `argosy.train` and flags of ``argosy run``."""

from dataclasses import dataclass, field
from typing import Literal, TypeVar, get_args

from argosy.described import document_fields
from argosy.errors import StudyError
from argosy.errors.checks import check_choice, check_flag, check_number, check_whole, describe_value
from argosy.errors.spelling import known_keywords

__all__ = ["Settings", "Sharing"]

Sharing = Literal["auto", "none", "local", "all-shared", "single-broadcast", "multi-broadcast"]

LARGEST = {"nodes": 120, "loader_workers": 1023}
"""Largest values. A node's ring has two slots for each node, a gigabyte for 120; a heartbeat has slots for 1,023 loader workers."""
SMALLEST = {
    "nodes": 1,
    "loader_workers": 0,
    "keep_bytes": 0,
    "block_size": 1,
    "threads": 1,
    "cores": 1,
    "preparing_nodes": 1,
}
"""Smallest values of settings that are counts."""


T = TypeVar("T")


def _setting(default: T, help: str, *, several_nodes: bool = False) -> T:
    """Return a dataclass field with its help text for the command line."""
    return field(default=default, metadata={"help": help, "several_nodes": several_nodes})


@known_keywords("argosy.Settings")
@document_fields
@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Settings of a run. None of them changes a member's result beyond rounding. Each is a keyword and a command-line flag."""

    devices: str | None = _setting(None, "cpu:2 for two CPU slots, cuda:0,1 for two GPUs; all devices by default.")
    policy: str = _setting("balanced", "balanced: all members share one stream. solo: a pipeline for each.")
    nodes: int = _setting(
        1,
        "Number of nodes, each with these devices; with launcher processes all of them are on this machine.",
        several_nodes=True,
    )
    sharing: Sharing = _setting(  # noqa: RUF009  # a field, with an immutable default
        "auto",
        "How nodes share the stream. all-shared, single-broadcast, multi-broadcast: a pipeline of SC'18; local: each node prepares it; none: each member does; auto: measure.",
        several_nodes=True,
    )
    preparing_nodes: int | None = _setting(
        None,
        "Nodes that prepare samples in single-broadcast (default 1) and multi-broadcast (default all).",
        several_nodes=True,
    )
    packing: Literal["auto", "interleaved"] = _setting(
        "auto", "interleaved: step the members of a device one after another, even if one program would be faster."
    )
    numerics: Literal["equivalent", "exact"] = _setting(
        "equivalent",
        "exact: every step has the bits of a plain loop on a CPU; equivalent: faster steps may differ by rounding.",
    )
    like: str | None = _setting(
        None,
        "Directory of a run whose choice of programs and devices is reused instead of measured, for identical bits.",
    )
    compile: bool = _setting(
        False,
        "Compile each architecture with torch, about half a minute on a CPU, and use the result if it is measured to be faster.",
    )
    time_limit: float | None = _setting(
        None, "Seconds after which the run saves everything and ends; the same command resumes it."
    )
    loader_workers: int | None = _setting(
        None, "Processes that prepare samples on each node; by default one per core, or fewer if these suffice."
    )
    cores: int | None = _setting(None, "Number of CPU cores that the whole run may use; all by default.")
    block_size: int | None = _setting(
        None,
        "Samples per block of the stream; by default about 4 MiB, between 64 and 4096 samples, and fewer if 64 take more than 64 MiB.",
    )
    keep_bytes: int | None = _setting(
        None,
        "Disk space in bytes for the prepared samples of all runs (argosy cache); by default a fifth of the free space.",
    )
    checkpoint_seconds: float = _setting(
        300.0, "Longest training time between two checkpoints of a member: the most that is repeated after a crash."
    )
    hang_seconds: float = _setting(
        120.0,
        "Seconds without any progress after which a worker counts as lost; slow steps and samples count as progress.",
    )
    threads: int = _setting(1, "CPU threads of each CPU device; results depend on it by rounding.")
    retry_failed: bool = _setting(
        False,
        "Let members that failed in an earlier run continue from their latest checkpoints, now that the study is corrected.",
    )
    on_end: str | None = _setting(
        None,
        "Shell command to run at the end, for at most 60 s; its environment describes the run (argosy guide hooks).",
    )
    on_diverged: str | None = _setting(None, "Likewise for each member that diverges, during the run.")

    def __post_init__(self) -> None:
        check_choice("sharing", self.sharing, get_args(Sharing))
        check_choice("packing", self.packing, ("auto", "interleaved"))
        check_choice("numerics", self.numerics, ("equivalent", "exact"))
        if self.devices is not None and not isinstance(self.devices, str):
            raise StudyError(
                f"devices is {describe_value(self.devices)}; it must be a text, for example 'cpu:2' for two CPU slots, or "
                "'cuda:0,1' for two GPUs."
            )
        for name in ("compile", "retry_failed"):
            check_flag(name, getattr(self, name))
        for name in ("on_end", "on_diverged"):
            _check_command(name, getattr(self, name))
        self._check_numbers()
        if self.sharing == "none" and self.policy != "solo":
            raise StudyError(
                "sharing 'none' gives every member its own pipeline, which needs policy 'solo', but policy is "
                f"{self.policy!r}. Choose policy 'solo', or another value of sharing."
            )
        if self.compile and (self.numerics == "exact" or self.packing != "auto"):
            conflict = "numerics 'exact'" if self.numerics == "exact" else f"packing {self.packing!r}"
            raise StudyError(
                f"compile needs programs that may differ from a plain loop by rounding and are chosen by measured time; found {conflict}. "
                "Remove one of them."
            )
        if self.preparing_nodes is not None and not self.sharing.endswith("broadcast"):
            raise StudyError(
                f"preparing_nodes needs sharing 'single-broadcast' or 'multi-broadcast'; found {self.sharing!r}. Choose "
                "one of these, or remove preparing_nodes."
            )
        if self.preparing_nodes is not None and self.preparing_nodes > self.nodes:
            raise StudyError(
                f"preparing_nodes is {self.preparing_nodes}, but there are {self.nodes} nodes (--nodes). Reduce preparing_nodes."
            )

    def _check_numbers(self) -> None:
        for name, least in SMALLEST.items():
            value = getattr(self, name)
            if value is not None or name in ("nodes", "threads"):
                check_whole(name, value, least=least)
        for name, most in LARGEST.items():
            if (getattr(self, name) or 0) > most:
                raise StudyError(f"{name} is {getattr(self, name)}; a run can have at most {most}. Reduce it.")
        check_number("checkpoint_seconds", self.checkpoint_seconds, least=0.0)
        # With 0 seconds every worker would count as lost at once.
        check_number("hang_seconds", self.hang_seconds, above=0.0)
        if self.time_limit is not None:
            check_number("time_limit", self.time_limit, least=0.0)


def _check_command(name: str, value: object) -> None:
    if value is not None and (not isinstance(value, str) or not value.strip() or "\0" in value):
        raise StudyError(
            f"{name} is {describe_value(value)}; it must be a shell command, for example {name}='./notify.sh'."
        )
