"""Tests that members that write into shared input late, unseen by torch's version counters, end alone or harm no other."""

import ctypes
import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import evidence
import late
import numpy as np
import pytest
import splits
import studies
import torch
from blocks import blocks
from torch import Tensor, nn

import argosy
from argosy.stream.blocks import Block
from argosy.training.trainer import watch
from argosy.training.trainer.watch import InputWatch

pytestmark = pytest.mark.filterwarnings("ignore::argosy.errors.MemberFailed")  # tests check the reports instead

devices = late.devices


def by_data(x: Tensor) -> None:
    x.data.mul_(0.5)


def by_numpy(x: Tensor) -> None:
    x.numpy()[:, 1] = 0.0


def by_dlpack(x: Tensor) -> None:
    torch.from_dlpack(x.data).zero_()


def by_storage(x: Tensor) -> None:
    x.untyped_storage()[x.storage_offset() * x.element_size()] = 7


def by_address(x: Tensor) -> None:
    ctypes.memset(x.data_ptr(), 1, 1)


WAYS = [by_data, by_numpy, by_dlpack, by_storage, by_address]


class Late(nn.Module):
    """A network that writes into its input after its first `after` batches, of training or of validation."""

    def __init__(self, way: Callable[[Tensor], None], *, training: bool, after: int) -> None:
        super().__init__()
        self.inner, self.way, self.writes, self.left = studies.Mlp(), way, training, after

    def forward(self, x: Tensor) -> Tensor:
        if self.training == self.writes:
            self.left -= 1
            if self.left < 0:
                self.way(x)
        return self.inner(x)


def sampled(batch: Any) -> Any:
    """Return a new tensor, as `Data.on_device` may; the members of a trainer share it."""
    return batch[0] * 1.0, batch[1]


def trained(directory: Path, writer: argosy.Member | None, *, data: argosy.Data, **settings: Any) -> argosy.Report:
    plain = [studies.member("before"), studies.member("behind", lr=0.1)]
    fleet = plain if writer is None else [plain[0], writer, plain[1]]
    settings = {"launcher": "inline", "devices": "cpu:1", "numerics": "exact", "block_size": 32, **settings}
    return argosy.train(studies.study(fleet=fleet, data=data, epochs=6), directory=directory, **settings)


def data_of(kind: str) -> argosy.Data:
    if kind == "arrays":
        x, y = torch.randn(160, 12, generator=torch.Generator().manual_seed(1)), torch.arange(160) % 10
        return argosy.Data(arrays=(x, y), val_arrays=(x[:40].clone(), y[:40]))
    on_device = sampled if kind == "on_device" else None
    return argosy.Data(train=studies.Vectors(160), val=studies.Vectors(40), on_device=on_device)


def check(tmp_path: Path, writer: argosy.Member, *, kind: str = "dataset", ends: bool = True, **settings: Any) -> None:
    """Check that neighbours get what they get without the writer, which fails if `ends`, and otherwise trains to the end."""
    data = data_of(kind)
    given = None if data.arrays is None else data.arrays[0].clone()
    trained(tmp_path / "without", None, data=data, **settings)
    report = trained(tmp_path / "with", writer, data=data, **settings)
    for name in ("before", "behind"):
        assert evidence.results_of(tmp_path / "with", name) == evidence.results_of(tmp_path / "without", name)
    found = report.member("late")
    assert found.status == ("failed" if ends else "done"), found.reason
    if ends:
        assert "member 'late' wrote into its input" in found.reason
        assert "other members have seen none of its changes" in found.reason
    if given is not None:
        assert torch.equal(data.arrays[0], given)


def member(way: Callable[[Tensor], None], *, training: bool = True, after: int = 40, **rest: Any) -> argosy.Member:
    rest = {"batch_size": 16, **rest}
    return studies.member("late", model=partial(Late, way, training=training, after=after), **rest)


def slowly(seconds: float, batch: Any) -> Any:
    """An augmentation that takes this much CPU time."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass
    return batch


@pytest.fixture
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every block be copied, also the first, as if there were time for it."""
    monkeypatch.setattr(watch.InputWatch, "_expected", lambda watched, block: -math.inf)


@pytest.mark.usefixtures("_always")
@pytest.mark.parametrize("way", WAYS)
def test_a_view_of_the_ring(way: Any, tmp_path: Path) -> None:
    check(tmp_path, member(way))


@pytest.mark.usefixtures("_always")
@pytest.mark.parametrize("kind", ["arrays", "on_device"])
def test_arrays_and_what_is_made_on_the_device(kind: str, tmp_path: Path) -> None:
    check(tmp_path, member(by_data), kind=kind)


@pytest.mark.usefixtures("_always")
@pytest.mark.parametrize("kind", ["arrays", "dataset"])
def test_validation(kind: str, tmp_path: Path) -> None:
    check(tmp_path, member(by_data, training=False, after=10, eval_batch_size=16), kind=kind)


@pytest.mark.usefixtures("_always", "devices")
def test_copies_on_a_device(tmp_path: Path) -> None:
    check(tmp_path, member(by_data), devices="late:0")


@pytest.mark.parametrize("share", [0.0, 1e9])
@pytest.mark.parametrize("own", ["across blocks", "of a subset", "of a member with private copies"])
def test_memory_of_its_own(own: str, share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A member may write into a batch that was gathered or copied for it, whether the write is noticed or not."""
    monkeypatch.setattr(watch, "WATCHING_SHARE", share)
    rest: dict[str, Any] = {"of a subset": {"subset": [*range(0, 160, 2)]}, "across blocks": {"batch_size": 160}}.get(
        own, {}
    )
    after = 0 if own == "of a member with private copies" else 4
    check(tmp_path, member(by_data, after=after, **rest), ends=False)


def test_trainers_of_a_node_share_a_ring(tmp_path: Path) -> None:
    """With the default share of time, steps that take long leave enough to copy each block."""
    writer = member(by_numpy, after=12, augment=partial(slowly, 0.15))
    check(tmp_path, writer, launcher="processes", devices="cpu:2", loader_workers=1)


class LateShare(splits.Double):
    """A network that writes late, by a count in its class: a count in the network itself would keep it from being split."""

    forwards = 0

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            LateShare.forwards += 1
            if LateShare.forwards > 12:
                by_data(x)
        return super().forward(x)


@pytest.mark.usefixtures("_always", "devices")
@pytest.mark.parametrize("kind", ["cpu", "late"])
def test_shares_of_split_members(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def places(name: str, asked: int) -> Mapping[int, float]:
        del asked
        return {0: 0.4, 1: 0.6} if name == "late" else {int(name == "behind"): 1.0}

    def run(folder: str, *members: argosy.Member) -> argosy.Report:
        wanted = splits.study(members=[splits.member("before"), *members, splits.member("behind", batch_size=20)])
        return splits.train(
            tmp_path / folder, monkeypatch, places, wanted, devices=f"{kind}:{'2' if kind == 'cpu' else '0,1'}"
        )

    run("without")
    report = run("with", studies.member("late", model=LateShare, batch_size=16, stop=argosy.MaxEpochs(6)))
    (split,) = evidence.event_lines(tmp_path / "with", "Split")
    assert (split["member"], len(split["devices"])) == ("late", 2)
    for name in ("before", "behind"):
        assert evidence.results_of(tmp_path / "with", name) == evidence.results_of(tmp_path / "without", name)
    found = report.member("late")
    assert (found.status, "other members have seen none of its changes" in found.reason) == ("failed", True), (
        found.reason
    )


def test_blocks_are_copied_as_often_as_time_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies take at most their share of the time, and the first uncopied block since the last comparison is remembered."""
    clock = [0.0]
    monkeypatch.setattr(watch, "time", type("Clock", (), {"thread_time": lambda: clock[0]}))
    monkeypatch.setattr(watch, "same_bits", lambda *_: bool(clock.__setitem__(0, clock[0] + 1.0)) or not wrote)
    wrote, watched, copied = False, InputWatch(), []

    def steps(block: Block) -> bool:
        shown = watched.shown(block, apart=False)
        copied.extend([] if shown is block else [block.place.start])
        with watched:
            clock[0] += 50.0
        return watched.restore_if_written(shown, block)

    found = blocks(np.arange(1000), 1)
    assert not any(map(steps, found))
    assert copied[:3] == [1, 8, 12]
    assert watched.seconds <= watch.WATCHING_SHARE * watched.stepping_seconds
    assert len(copied) == pytest.approx(1000 / 4, abs=2)
    wrote, last = True, copied[-1]
    assert any(map(steps, found[:5]))
    assert watched.shared_from == found[(last + 1) % 1000].place


def test_nothing_is_claimed_of_blocks_that_were_not_compared() -> None:
    first, second, third = blocks(np.arange(3), 1)
    watched = InputWatch()
    assert watched.shown(first, apart=False) is first, "the duration of steps is not known yet"
    with pytest.raises(argosy.errors.MemberError, match="may have trained on its changes since sample 0 "):
        watched.refuse("late")
    watched.stepping_seconds = 1e9
    for block in (second, third):
        assert not watched.restore_if_written(watched.shown(block, apart=False), block)
    with pytest.raises(
        argosy.errors.MemberError, match="have seen none of its changes since sample 1 of train epoch 1"
    ):
        watched.refuse("late")
