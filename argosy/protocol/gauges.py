"""Gauges of workers, in the form in which they are journaled."""

from collections.abc import Mapping
from typing import Any, TypedDict

from argosy.disk.json_values import convert

__all__ = ["check_gauge"]


class Queue(TypedDict):
    """How full a queue was, with the fields of `argosy.stream.gauges.QueueGauge`."""

    mean: float
    step_seconds: float
    history: tuple[float, ...]


class FeederFigures(TypedDict):
    """Gauge of a feeder, with the fields of `argosy.stream.gauges.StreamGauge`."""

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
    """Gauge of a trainer, with the fields of `argosy.stream.gauges.TrainerGauge`."""

    busy_seconds: float
    waiting_seconds: float
    rows: int


def check_gauge(gauge: Mapping[str, Any]) -> None:
    """Raise ValueError unless this is the gauge of a feeder or a trainer."""
    convert(dict(gauge), FeederFigures if "to_train" in gauge else TrainerFigures, "gauge")
