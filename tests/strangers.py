"""Another user of the machine, where this one is root and can become anybody."""

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import forked
import pytest

__all__ = ["STRANGER", "as_stranger", "public"]

STRANGER = 65534


def as_stranger(deed: Callable[[], object]) -> None:
    """Do this as another user, in a process of its own; an error of it is raised here."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")

    def become() -> None:
        os.setgroups([])
        os.setgid(STRANGER)
        os.setuid(STRANGER)
        os.umask(0o022)
        deed()

    assert forked.fork(become).wait(30) == 0


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that all users see, and where all may write, as ``/tmp`` is."""
    with tempfile.TemporaryDirectory(prefix="argosy-test-", dir="/tmp") as folder:
        Path(folder).chmod(0o1777)
        yield Path(folder)
