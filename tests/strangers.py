"""Actions of another user of the machine, which only root can take."""

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import forked
import pytest

__all__ = ["STRANGER", "as_stranger", "public"]

STRANGER = 65534


def as_stranger(deed: Callable[[], object], *, for_now: bool = False) -> None:
    """Call `deed` as another user, in another process, and assert that it raises nothing; skips the test without root.

    With `for_now` the process could become root again.
    """
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")

    def become() -> None:
        os.setgroups([])
        (os.setegid if for_now else os.setgid)(STRANGER)
        (os.seteuid if for_now else os.setuid)(STRANGER)
        os.umask(0o022)
        deed()

    assert forked.fork(become).wait(30) == 0


@pytest.fixture
def public() -> Iterator[Path]:
    """Create a folder that all users can see and write to, as in ``/tmp``."""
    with tempfile.TemporaryDirectory(prefix="argosy-test-", dir="/tmp") as folder:
        Path(folder).chmod(0o1777)
        yield Path(folder)
