"""Tests that groups form, add up to equal bits on all ranks, and notice that a rank has left, so that no rank hangs."""

import datetime
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from argosy.training.programs.shard import ends
from argosy.training.programs.shard.ends import HOST
from argosy.training.programs.shard.parallel import Group


def until(true: Callable[[], bool], seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while not true() and time.monotonic() < deadline:
        time.sleep(0.002)
    return true()


def formed(path: Path, size: int) -> list[Group]:
    groups = [Group.form(str(path), rank, size, on=HOST) for rank in range(size)]
    assert until(lambda: all(group.formed for group in groups))
    return groups


def test_every_rank_gets_the_same_sum_and_several_groups_go_on_at_once(tmp_path: Path) -> None:
    some, others = formed(tmp_path / "some", 3), formed(tmp_path / "others", 2)
    parts = [torch.randn(1001, generator=torch.Generator().manual_seed(n)) for n in range(3)]
    expected = sum(parts[1:], parts[0])
    sums = [group.add_up(part) for group, part in zip(some, parts, strict=True)]
    ones = [group.add_up(torch.ones(3)) for group in others]
    assert until(lambda: all(s.done for s in (*sums, *ones)))
    assert torch.allclose(parts[0], expected) and all(torch.equal(parts[0], part) for part in parts)
    for group in (*some, *others):
        group.leave()


def test_waiting_for_a_rank_that_has_left_raises(tmp_path: Path) -> None:
    first, second, third = formed(tmp_path / "m", 3)
    under_way = first.add_up(torch.ones(8))
    assert not until(lambda: under_way.done, 0.1) and not first.broken
    second.leave()
    third.leave()
    assert until(lambda: not under_way.done and bool(first.broken))
    before = threading.active_count()
    first.leave()
    assert until(lambda: threading.active_count() <= before)


def test_leaving_in_the_middle_of_a_sum_does_not_wait(tmp_path: Path) -> None:
    first, second = formed(tmp_path / "m", 2)
    under_way = first.add_up(torch.ones(8))
    started = time.monotonic()
    first.leave()
    assert time.monotonic() - started < 20.0 and not under_way.done
    second.leave()
    assert until(lambda: not under_way.done and bool(first.broken))


def test_a_group_waits_for_its_ranks_as_long_as_they_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ends, "FORMING", datetime.timedelta(seconds=0.3))
    first = Group.form(str(tmp_path / "m"), 0, 2, on=HOST)
    time.sleep(0.5)
    second = Group.form(str(tmp_path / "m"), 1, 2, on=HOST)
    assert until(lambda: first.formed and second.formed)
    early = first.add_up(torch.ones(8))
    time.sleep(0.5)
    late = second.add_up(torch.ones(8))
    assert until(lambda: early.done and late.done)
    first.leave()
    second.leave()


def test_a_rank_may_leave_before_its_group_has_formed(tmp_path: Path) -> None:
    before = threading.active_count()
    group = Group.form(str(tmp_path / "m"), 0, 2, on=HOST)
    time.sleep(0.05)
    assert not group.formed
    group.leave()
    assert until(lambda: threading.active_count() <= before)


def test_nccl_ends_no_process_where_a_peer_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL's error handling, monitoring and dumps on timeout are disabled, because the driver decides what ends."""
    watches = [f"TORCH_NCCL_{name}" for name in ("ASYNC_ERROR_HANDLING", "ENABLE_MONITORING", "DUMP_ON_TIMEOUT")]
    for name in watches:
        monkeypatch.setenv(name, "")  # so that monkeypatch restores it, even if it was unset
        monkeypatch.delenv(name)
    told: list[dict[str, str]] = []

    class Silent:
        Options = SimpleNamespace

        def __init__(self, *_: object) -> None:
            told.append({name: os.environ.get(name, "") for name in watches})

        def eager_connect_single_device(self, device: torch.device) -> None:
            pass

    monkeypatch.setattr(ends.dist, "ProcessGroupNCCL", Silent, raising=False)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(ends, "_stream_of_sums", lambda device: None)
    ends.Nccl(None, 0, 2, torch.device("cuda", 0))
    assert told == [dict.fromkeys(watches, "0")]
