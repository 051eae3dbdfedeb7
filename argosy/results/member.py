"""The result of one member: its best section, its curves, and its network."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from argosy.disk.json_values import convert
from argosy.errors.wording import cause_of
from argosy.protocol.events import SectionEnded
from argosy.results.bands import Band, Curve, Spread
from argosy.results.fold import FAILED_STATUSES, MemberState
from argosy.study import Repetition

__all__ = ["LEFT_OUT", "MemberResult", "Networks", "band_of", "best_epochs", "format_best_epochs"]

LEFT_OUT = "left out"
"""Status of a member that has trained but has been removed from the study."""


class Networks(Protocol):
    """The trained networks of a run, from an object that imports torch and may have the study."""

    def load(self, name: str, *, preprocess: bool) -> Any:
        """Return a member's network with its best weights, in ``eval()`` on the CPU.

        With `preprocess` it is behind `Data.on_device`.
        """

    def known_study(self) -> Any:
        """Return the run's study; raises RunError where it is not known."""

    def predict(self, network: Any, samples: Any) -> Any:
        """Return a network's output for each sample; None means the validation samples."""

    def out_of_fold(self, names: Sequence[str]) -> Any:
        """Return the outputs of these members for their own validation samples."""

    def ensemble(
        self, names: Sequence[str], *, combine: Any, select: Any, snapshots: bool, calibrate: bool, preprocess: bool
    ) -> Any:
        """Return one network made of several members' networks; with `preprocess` behind `Data.on_device`."""

    def export(
        self,
        network: Any,
        row: "MemberResult | None",
        folder: Path,
        *,
        format: str,
        preprocess: bool,
        push_to_hub: str | None,
    ) -> None:
        """Write a network into a folder: that of the member `row`, or the module `network`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemberResult:
    """The result of one member."""

    name: str
    status: str
    reason: str
    epochs: float
    """Finished epochs: a whole number, or with several validations an epoch also a fraction."""
    metrics: dict[str, float]
    """Metrics of the section with the best objective; empty before the first section's end."""
    best_epoch: int | None
    """Epoch of that section, from 1."""
    hyperparameters: dict[str, Any]
    repetition: Repetition | None
    """Which repetition of a network it is; None for a member that repeats none."""
    seed: int | None
    """The member's own seed; None if it is derived from the study's seed and the member's name."""
    as_alone: bool
    """Whether its results are bit for bit those of training alone on its device: no program of several members and no split has rounded differently."""
    device: str
    parameters: int
    """Number of elements in its network's parameters; 0 before it has started."""
    seconds: float
    """Seconds in the member's own steps and validation."""
    folder: Path
    sections: tuple[SectionEnded, ...] = field(repr=False)
    """Finished sections that it trained itself, in order."""
    networks: Callable[[], Networks] = field(repr=False)

    @classmethod
    def of(
        cls,
        state: MemberState,
        described: Mapping[str, Any],
        *,
        directory: Path,
        networks: Callable[[], Networks],
        at_work: bool,
    ) -> "MemberResult":
        """Build the result from a member's fold and its description in ``study.json``; `at_work` says that the run has a driver."""
        best, repetition = state.best, described["repetition"]
        # A driver that was killed has journaled no pause.
        status = "paused" if state.status == "training" and not at_work else state.status
        return cls(
            name=state.name,
            status=LEFT_OUT if described.get("left_out") else status,
            reason=state.reason,
            epochs=state.epochs,
            metrics=dict(best.metrics) if best else {},
            best_epoch=best.epoch + 1 if best else None,
            hyperparameters=described["hyperparameters"],
            repetition=None if repetition is None else convert(repetition, Repetition, "repetition"),
            seed=described["seed"],
            as_alone=state.as_alone,
            device=state.device,
            parameters=state.parameters,
            seconds=sum(ended.seconds for ended in state.own_sections),
            folder=directory / "members" / state.name,
            sections=tuple(state.own_sections),
            networks=networks,
        )

    @property
    def failed(self) -> bool:
        """Whether its code raised, or its loss was no longer a number."""
        return self.status in FAILED_STATUSES

    @property
    def counts(self) -> bool:
        """Whether its result counts: it has finished an epoch, did not fail, and is in the study."""
        return bool(self.metrics) and not self.failed and self.status != LEFT_OUT

    @property
    def repeats(self) -> str | None:
        """Name of the configuration that it repeats; None for a member that repeats none."""
        return None if self.repetition is None else self.repetition.of

    @property
    def identity(self) -> dict[str, Any]:
        """Table columns that identify the member and its configuration."""
        repetition = self.repetition
        return {
            "member": self.name,
            "configuration": self.name if repetition is None else repetition.of,
            "seed": self.seed,
            "fold": None if repetition is None else repetition.fold,
        }

    @property
    def failure(self) -> str:
        """One line that describes the failure of a member."""
        return f"{self.name!r} {self.status}: {cause_of(self.reason).removesuffix('.')}"

    def curve(self, metric: str) -> Curve:
        """Return the values of a metric by finished epochs."""
        return {ended.epochs: ended.metrics[metric] for ended in self.sections if metric in ended.metrics}

    def load(self, *, preprocess: bool = False) -> Any:
        """Return the member's network with its best weights, in ``eval()`` on the CPU.

        Its input is what `Data.on_device` returns. With `preprocess` its input is what the dataset has, and the network
        does that step itself, also when it is exported.
        """
        return self.networks().load(self.name, preprocess=preprocess)


def band_of(name: str, rows: Sequence[MemberResult], metric: str, spread: Spread | None) -> Band:
    """Return the band of a metric of several members, under a name."""
    overlap = max((row.repetition.overlap for row in rows if row.repetition is not None), default=0.0)
    # By a hyper-parameter, members of several configurations are in one band.
    draws = [row.name if row.repetition is None else (row.repetition.of, row.repetition.draw) for row in rows]
    return Band.of(name, [row.curve(metric) for row in rows], spread, overlap=overlap, draws=draws)


def best_epochs(row: MemberResult) -> float | None:
    """Return after how many epochs a member was best; may be a fraction with several validations per epoch."""
    return next((ended.epochs for ended in reversed(row.sections) if ended.best), None)


def format_best_epochs(row: MemberResult) -> str:
    """Return the same as text, with the epochs that the member has finished."""
    return f"{best_epochs(row):g} of {row.epochs:g}"
