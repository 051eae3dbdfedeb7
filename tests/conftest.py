"""Every test leaves the process as it found it: one thread, no stray child."""

import psutil
import pytest
import torch


@pytest.fixture(autouse=True)
def _tidy() -> object:
    torch.set_num_threads(1)
    yield
    left = psutil.Process().children(recursive=True)
    assert not [child.cmdline() for child in left if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo's files go to a folder of this test process."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
