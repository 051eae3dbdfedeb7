"""Tests of attempts: an error is a reason, keeps nothing alive, and is raised where Argosy caused it."""

import weakref

import pytest

from argosy.errors import WorkerError
from argosy.training.device.attempts import attempt
from argosy.training.device.devices import is_poisoned
from argosy.training.programs.program import collecting


class Held:
    """Something that a failing step holds."""


def failing(held: list[weakref.ref[Held]]) -> None:
    inside = Held()
    held.append(weakref.ref(inside))
    raise MemoryError("no room")


def test_an_attempt_that_fails_says_why_and_keeps_nothing_alive() -> None:
    held: list[weakref.ref[Held]] = []
    with attempt() as tried:
        failing(held)
    assert (tried.error, tried.memory) == ("MemoryError: no room", True)
    assert held[0]() is None


def test_a_call_of_sys_exit_is_an_error() -> None:
    faults: dict[str, BaseException] = {}
    with attempt() as tried, collecting(faults, "a"):
        raise SystemExit(2)
    assert list(faults) == ["a"]
    with attempt() as tried:
        raise SystemExit(2)
    assert tried.error == "SystemExit: 2"


def test_a_fault_that_is_dropped_keeps_nothing_alive() -> None:
    held: list[weakref.ref[Held]] = []
    faults: dict[str, BaseException] = {}
    with collecting(faults, "a"):
        failing(held)
    assert held[0]() is not None
    faults.clear()
    assert held[0]() is None


def test_an_error_of_the_device_ends_the_attempt_and_the_process() -> None:
    def check(error: Exception) -> None:
        raise WorkerError(f"the device is lost: {error}")

    with pytest.raises(WorkerError, match="the device is lost: the step"), attempt(check):
        raise ValueError("the step")


def test_a_bug_of_argosy_is_no_reason() -> None:
    with pytest.raises(AttributeError), attempt():
        is_poisoned(None)  # type: ignore[arg-type]  # a line of Argosy asks it for what it lacks
