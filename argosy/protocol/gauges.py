"""Gauges of workers, as they stand in the journal."""

from collections.abc import Mapping
from typing import Any, TypedDict

from argosy.disk.json_values import conforming

__all__ = ["check_gauge"]


class Queue(TypedDict):
    """How full a queue was, as `argosy.stream.gauges.QueueGauge` has it."""

    mean: float
    step_seconds: float
    history: tuple[float, ...]


class FeederFigures(TypedDict):
    """Gauge of a feeder, as `argosy.stream.gauges.StreamGauge` has it."""

    cores: int
    loaders: int
    prepared: int
    delivered: int
    exchanged_bytes: int
    seconds: float
    busy_seconds: float
    filling_seconds: float
    preparation_cpu_seconds: float
    to_prepare: Queue
    to_exchange: Queue
    to_train: Queue


class TrainerFigures(TypedDict):
    """Gauge of a trainer, as `argosy.stream.gauges.TrainerGauge` has it."""

    busy_seconds: float
    waiting_seconds: float
    rows: int
    training_seconds: float


def check_gauge(gauge: Mapping[str, Any]) -> None:
    """Raise ValueError for what is neither a feeder's gauge nor a trainer's."""
    conforming(dict(gauge), FeederFigures if "to_train" in gauge else TrainerFigures, "gauge")
