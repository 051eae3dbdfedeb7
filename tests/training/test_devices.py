"""Tests of the code for GPUs on a stand-in device: see `late`, and docs/internals/training.md for what it leaves out."""

import gc
import math
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import forked
import late
import numpy as np
import pytest
import torch
from blocks import blocks
from elsewhere import Pinning
from torch.utils._python_dispatch import TorchDispatchMode

from argosy.errors import PlanError, StudyError, WorkerError
from argosy.running.launch.discovery import discover
from argosy.settings import Settings
from argosy.stream.blocks import Block, Layout, Place
from argosy.stream.order import Digest
from argosy.stream.ring import Ring, RingReader
from argosy.stream.wire import Peer
from argosy.training.device import devices as kinds
from argosy.training.device import forks
from argosy.training.device.copies import DeviceCopies
from argosy.training.device.devices import (
    Backend,
    PassedEvent,
    is_out_of_memory,
    is_poisoned,
    open_backend,
    wait_for_memory,
)
from argosy.training.device.process_state import preserve_process_state
from argosy.training.member import checkpoint
from argosy.training.member.tally import Tally
from argosy.training.programs.fused.draws import PerMemberDraws
from argosy.training.trainer import guard

pytestmark = pytest.mark.usefixtures("devices")
devices = late.devices

ROWS, WIDTH, SLOTS = 16, 8, 4


class Feed:
    """A feeder for one reader, driven by the test."""

    def __init__(self, backend: Backend) -> None:
        self.layout = Layout.of((torch.zeros(WIDTH), 0))
        self.peer, theirs = Peer.pair()
        self.ring = Ring(slots=SLOTS, slot_bytes=self.layout.block_bytes(ROWS))
        # The reader does not exist yet: the socket buffers the message.
        self.ring.lend(self.peer, {"train": self.layout}, {"train": SLOTS * ROWS})
        self.reader = RingReader(theirs, pin=backend.pin)
        self.arrived: list[Block] = []

    def send(self, slot: int, number: int = 0) -> None:
        """Write a block whose rows hold `number`, and announce it."""
        place = Place(leg=1, split="train", epoch=0, section=0, start=number * ROWS, rows=ROWS, last=False)
        block = self.layout.block(place, self.ring.slot(slot))
        block.indices[:] = np.arange(ROWS)
        block.sound[:] = True
        block.leaves[0].fill_(number)
        block.leaves[1].fill_(number)
        self.peer.send((slot, place, 0, False, ()))

    def released(self) -> list[int]:
        """Return the slots that were released since the last call."""
        gc.collect()
        return self.peer.receive()

    def receive(self) -> Block:
        if not self.arrived:
            self.arrived = [block for block, _ in self.reader.blocks()]
        return self.arrived.pop(0)


@pytest.fixture
def backend() -> Backend:
    found = open_backend("late:1")
    found.activate()
    return found


# ---- discovery


def test_devices_are_found_by_number_and_dealt_to_nodes() -> None:
    one = discover(Settings(devices="late:1,3"))
    assert [(d.name, d.kind, d.memory_bytes) for d in one.devices] == [
        ("late:1", "late", 2**30),
        ("late:3", "late", 2**30),
    ]
    two = discover(Settings(devices="late", nodes=2))
    assert [d.name for d in two.devices] == ["node0/late:0", "node0/late:1", "node1/late:2", "node1/late:3"]
    assert open_backend("node1/late:2").name == "late:2"


@pytest.mark.parametrize("wanted", ["late:7", "late:one", "cpu:many", "abacus", "cuda:99"])
def test_devices_that_are_not_there_are_refused(wanted: str) -> None:
    with pytest.raises(PlanError, match=wanted.partition(":")[0]):
        discover(Settings(devices=wanted))


def test_devices_are_counted_by_what_a_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before CUDA is initialized, torch counts GPUs, here two; afterwards it counts one, the MIG instance of this process."""
    count = [2]

    def properties(number: int) -> SimpleNamespace:
        module.init()
        assert number < count[0], "Invalid device id"
        return SimpleNamespace(name="H100 MIG 1g.10gb", total_memory=2**30)

    module = SimpleNamespace(
        device_count=lambda: count[0], init=lambda: count.__setitem__(0, 1), get_device_properties=properties
    )
    monkeypatch.setattr(torch, "get_device_module", lambda kind: module)
    assert [found.memory_bytes for found in kinds.Accelerator.hardware("cuda")] == [2**30]


class Products(TorchDispatchMode):
    """Records the device of matrix products, and whether they belong to a backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, bool]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in late.PRODUCTS:
            self.seen.append((args[0].device.type, torch._C._current_autograd_node() is not None))
        return function(*args, **(kwargs or {}))


def test_libraries_have_their_work_space_before_a_member_has_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening a device allocates work space for forward and backward, so that a lack of memory for it is blamed on no member."""
    module = SimpleNamespace(set_device=lambda device: None, Stream=lambda device: None)
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    with Products() as products:
        kinds.Accelerator.open("meta:0")
    assert {*products.seen} == {("meta", False), ("meta", True)}


def test_steps_are_waited_for_and_no_sum_whose_rank_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum with a lost rank hangs on its own stream, as with NCCL; a trainer that waited for it would miss the driver's message."""
    steps, passed = SimpleNamespace(synchronize=lambda: passed.append("steps")), list[str]()

    def whole_device(device: torch.device) -> None:
        raise AssertionError("waits until hang_seconds have passed")

    module = SimpleNamespace(current_stream=lambda device: steps, synchronize=whole_device)
    accelerator = kinds.Accelerator("meta:0", torch.device("meta:0"), module, copying=None)
    accelerator.synchronize()
    assert not kinds.is_poisoned(accelerator)
    assert passed == ["steps"] * 2


@pytest.mark.parametrize("known", [False, True])
def test_an_accelerator_of_an_unknown_kind_is_told(known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(
        torch.accelerator, "current_accelerator", lambda: SimpleNamespace(type="late" if known else "mtia")
    )
    with (
        nullcontext()
        if known
        else pytest.warns(UserWarning, match=r"accelerator of kind mtia, .* members train on CPU devices\. Set")
    ):
        assert kinds.default_kind() == ("late" if known else "cpu")
    discover(Settings(devices="cpu:1"))  # no warning: CPU devices were asked for


def test_another_process_learns_of_a_kind_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    program = (
        "from argosy.training.device.devices import open_backend; print(type(open_backend('node0/late:1')).__name__)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    told = subprocess.run(
        [sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True
    ).stdout
    assert told.strip() == "Late"


# ---- blocks


@pytest.mark.parametrize("name", ["cpu:0", "late:1"])
def test_a_slot_is_held_until_the_copy_has_passed_and_no_longer(name: str) -> None:
    backend = open_backend(name)
    feed, copies = Feed(backend), DeviceCopies(backend)
    for slot in range(3):
        feed.send(slot, number=slot + 1)
    there = [copies.start(feed.receive()) for _ in range(3)]
    assert feed.released() == []
    assert [block.leaves[0].unique().tolist() for block in there] == [[1.0], [2.0], [3.0]]
    if backend.apart:
        for _ in range(10 * late.QUERIES):
            copies.release_done()
        assert sorted(feed.released()) == [0, 1, 2], "the block on the device must not hold the slot"
        feed.send(0, number=9)
        assert there[0].leaves[0].unique().tolist() == [1.0]
        assert there[0].indices.tolist() == list(range(ROWS))
    assert copies.release_done() == 0
    del there
    assert sorted(feed.released()) == ([] if backend.apart else [0, 1, 2])
    assert late.state.lost == 0


def test_release_done_never_waits_and_goes_in_order(backend: Backend) -> None:
    feed, copies = Feed(backend), DeviceCopies(backend)
    feed.send(0)
    block = copies.start(feed.receive())
    assert copies.release_done() == 1, "an event that has not passed was waited for"
    assert feed.released() == []
    copies.finish()
    assert copies.release_done() == 0
    assert feed.released() == [0]
    assert late.state.waits == 0
    assert not block.leaves[0].isnan().any()


def test_the_stand_in_shows_a_copy_that_was_not_followed(backend: Backend) -> None:
    source = [torch.ones(3), torch.ones(3, dtype=torch.int64)]
    copied, event = backend.copy(source)
    assert copied[0].isnan().all()
    assert copied[1].tolist() == [113] * 3
    backend.follow(event, copied)
    assert [tensor.tolist() for tensor in copied] == [[1.0] * 3, [1] * 3]
    assert not event.query(), "the host should see the event later than the device"


def test_the_double_shows_a_slot_that_was_given_back_too_early(backend: Backend) -> None:
    feed = Feed(backend)
    feed.send(0)
    source = feed.receive()
    copied, event = backend.copy(source.leaves)
    backend.follow(event, copied)
    del source
    assert feed.released() == [0]
    assert late.state.lost == 2
    assert copied[0].isnan().all()


def test_the_ring_is_pinned_while_it_is_open() -> None:
    backend = open_backend("late:0")
    feed = Feed(backend)
    assert len(late.state.pinned) == 1
    feed.reader.close()
    assert not late.state.pinned
    feed.reader.close()


# ---- the study's on_device


def scaled(batch):
    return batch[0] * 2, batch[1]


def scaled_in_place(batch):
    return batch[0].mul_(2), batch[1]


def scaled_unseen(batch):
    batch[0].data.mul_(2)
    return batch


def scaled_in_numpy(batch):
    values = batch[0].numpy()
    values *= 2
    return batch


def in_place_later(batch):
    return (batch[0].mul_(2) if batch[0].flatten()[0] > 1 else batch[0] * 2), batch[1]


@pytest.mark.parametrize("name", ["cpu:0", "late:1"])
@pytest.mark.parametrize("on_device", [scaled, scaled_in_place, scaled_unseen, scaled_in_numpy])
def test_work_on_the_device_never_reaches_the_shared_slot(name: str, on_device) -> None:
    backend = open_backend(name)
    feed, copies = Feed(backend), DeviceCopies(backend, on_device)
    for number in (1, 2, 3):
        feed.send(number, number)
        block = copies.start(feed.receive())
        assert block.leaves[0].unique().tolist() == [2.0 * number]
        assert not block.touched
        shared = feed.layout.block(block.place, feed.ring.slot(number))
        assert shared.leaves[0].unique().tolist() == [float(number)]


def test_work_in_place_that_begins_later_is_refused() -> None:
    backend = open_backend("cpu:0")
    feed, copies = Feed(backend), DeviceCopies(backend, in_place_later)
    feed.send(0, 1)
    copies.start(feed.receive())
    feed.send(1, 2)
    with pytest.raises(StudyError, match="on_device wrote into its input at sample 32 of train"):
        copies.start(feed.receive())


def test_work_on_the_device_that_loses_rows_is_refused(backend: Backend) -> None:
    feed = Feed(backend)
    feed.send(0, 1)
    with pytest.raises(StudyError, match="one row per sample"):
        DeviceCopies(backend, lambda batch: (batch[0][1:], batch[1])).start(feed.receive())


# ---- numbers that are fetched to the host


@pytest.mark.parametrize("name", ["cpu:0", "late:0"])
def test_numbers_are_on_the_host_when_their_event_has_passed(name: str) -> None:
    backend = open_backend(name)
    losses = torch.tensor([1.5, 2.5], dtype=torch.float64)
    host, event = backend.fetch(losses)
    assert host.isnan().all() == backend.apart, "a number that is read too early should be NaN"
    losses.zero_()
    event.synchronize()
    assert host.tolist() == [1.5, 2.5]
    assert late.state.waits == 0


class Lazy(TorchDispatchMode):
    """Notes whether a copy that nothing waits for has a source that is conjugated or negated when it is read."""

    seen = False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten.copy_.default and args[2:]:
            self.seen |= args[1].is_conj() or args[1].is_neg()
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("lazily", [torch.conj, lambda one: one.conj().imag], ids=["conjugated", "negated"])
def test_a_fetched_tensor_is_conjugated_before_it_is_copied(lazily: Any) -> None:
    """CUDA's copy would do it on the host at once, before the numbers have arrived there."""
    module = SimpleNamespace(current_stream=lambda device: SimpleNamespace(record_event=PassedEvent))
    accelerator = kinds.Accelerator("cpu:0", torch.device("cpu"), module, copying=None)
    numbers = lazily(torch.tensor([1 + 2j, 3 - 4j]))
    with Pinning(), Lazy() as lazy:
        host, _ = accelerator.fetch(numbers)
    assert not lazy.seen
    assert torch.equal(host, numbers)


def batch_of(tally: Tally, loss: float) -> None:
    """Add a batch of two samples with this mean loss."""
    tally.add(2, Digest(), {"loss": torch.tensor(2 * loss, dtype=torch.float64)})


def block_of(tally: Tally, loss: float) -> late.LateEvent:
    """Add two samples like a program that sums losses on the device; return the event of the copy to the host."""
    totals, event = tally.backend.fetch(torch.tensor([2 * loss], dtype=torch.float64))
    tally.bring(2, Digest(), "loss", totals, event)
    return event


def test_a_mean_of_what_has_been_told_waits_for_nothing(backend: Backend) -> None:
    tally = Tally(backend)
    assert math.isnan(tally.mean_by_now("loss"))
    batch_of(tally, 1.0)
    tally.fetch()
    batch_of(tally, 3.0)
    told = [tally.mean_by_now("loss") for _ in range(2 * late.QUERIES)]
    assert math.isnan(told[0])
    assert sorted(set(told[late.QUERIES :])) == [1.0, 2.0]
    assert tally.means(["loss"]) == {"loss": 2.0}
    here = Tally(open_backend("cpu:0"))
    batch_of(here, 4.0)
    assert here.mean_by_now("loss") == 4.0


def test_whether_sums_are_numbers_is_asked_without_waiting_for_the_steps_at_hand(backend: Backend) -> None:
    tally = Tally(backend)
    events = [block_of(tally, 1.0)]
    assert tally.finite
    assert not events[0].passed
    events.append(block_of(tally, math.nan))
    assert tally.finite
    assert [event.passed for event in events] == [True, False]
    assert not tally.finite


class Asked(TorchDispatchMode):
    """Records the names of the operators that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names = list[str]()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(function.name())
        return function(*args, **(kwargs or {}))


def test_attention_of_several_takes_no_kernel_that_keeps_nothing_for_a_backward_pass() -> None:
    gpu = SimpleNamespace(backend=SimpleNamespace(device=torch.device("cuda:0")))

    def attended(query: torch.Tensor) -> torch.Tensor:
        with PerMemberDraws([gpu, gpu]):
            return torch.nn.functional.scaled_dot_product_attention(query, query, query)

    with Asked() as asked:
        torch.vmap(attended)(torch.randn(2, 3, 1, 4, 8, requires_grad=True))
    assert "aten::_safe_softmax" in asked.names
    assert not any("attention" in name for name in asked.names)


# ---- random states


def test_random_states_are_the_devices_own_and_lie_on_the_cpu(backend: Backend) -> None:
    first, second = backend.seeded_state(1), backend.seeded_state(2)
    drawn = []
    for state in (first, second, first):
        backend.set_random_state(state)
        drawn.append(late.noise((torch.zeros(3), 0))[0].tolist())
    assert drawn[0] == drawn[2] != drawn[1]
    assert not torch.equal(backend.random_state(), first)
    torch.manual_seed(5)
    before = torch.default_generator.get_state()
    late.noise((torch.zeros(3), 0))
    assert torch.equal(before, torch.default_generator.get_state())
    backend.set_random_state(None)
    assert open_backend("cpu:0").seeded_state(1) is None


class Elsewhere(torch.Tensor):
    """A tensor that claims to lie on a GPU without free memory."""

    @property
    def device(self) -> torch.device:
        return torch.device("cuda:0")

    def clone(self, **_: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("no memory")


def test_what_is_saved_of_a_device_is_on_the_host() -> None:
    whole = torch.arange(6.0).as_subclass(Elsewhere)
    saved = checkpoint.to_plain({"whole": whole, "tied": whole, "view": whole[2:4]})
    assert [values.tolist() for values in saved.values()] == [[*range(6)], [*range(6)], [2, 3]]
    assert len({values.untyped_storage().data_ptr() for values in (whole, *saved.values())}) == 3
    assert saved["whole"].device.type == "cpu"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_file_of_a_gpu_opens_without_one(tmp_path: Path) -> None:
    matrix = torch.arange(6.0, device="cuda").view(2, 3)
    before = torch.cuda.memory_allocated()
    state = checkpoint.to_plain({"whole": matrix, "view": matrix[1]})
    assert torch.cuda.memory_allocated() == before
    checkpoint.save(state, tmp_path / "state.pt")
    command = "import sys, torch; print(torch.load(sys.argv[1], weights_only=True)['view'].tolist())"
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    arguments = [sys.executable, "-c", command, str(tmp_path / "state.pt")]
    done = subprocess.run(arguments, env=environment, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[3.0, 4.0, 5.0]"


def test_a_saved_optimizer_goes_to_its_parameters_and_its_step_stays_on_the_cpu() -> None:
    """Adam reads `step` on the host in every step, which would wait for a device. Checkpoints are loaded to the CPU, so `step` stays there."""
    saved = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(saved.parameters())
    saved(torch.zeros(1, 2)).sum().backward()
    optimizer.step()
    elsewhere = torch.optim.Adam(torch.nn.Linear(2, 2, device="meta").parameters())
    elsewhere.load_state_dict(optimizer.state_dict())
    for state in elsewhere.state.values():
        assert state["step"].device.type == "cpu"
        assert state["exp_avg"].device.type == "meta"


# ---- memory


def test_memory_is_counted_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LATE_BYTES", "1000000")
    backend = open_backend("late:0")
    backend.activate()
    tensor = torch.zeros(1000)
    view = tensor[10:].view(-1)
    assert backend.memory_in_use() == 4000
    backend.reset_peak()
    doubled = tensor * 2 + 1
    assert backend.peak_memory() == 12000
    del doubled, tensor
    assert backend.memory_in_use() == 4000
    del view
    assert backend.memory_in_use() == 0
    with pytest.raises(torch.OutOfMemoryError) as caught:
        torch.zeros(10**6)
    assert is_out_of_memory(caught.value)
    assert not is_poisoned(backend)


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (MemoryError(), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("CUDA driver error: out of memory"), True),
        (RuntimeError("HIP error: out of memory"), True),
        (RuntimeError("cuFFT error: CUFFT_ALLOC_FAILED"), True),
        (RuntimeError("level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(handle)`"), False),
        (RuntimeError("CUDA error: device-side assert triggered"), False),
    ],
)
def test_errors_that_say_memory_has_run_out(error: Exception, is_one: bool) -> None:
    assert is_out_of_memory(error) is is_one


def hold(go: int, holds: int) -> None:
    """Run a process that allocates device memory when it is told to, and keeps it until it is killed."""
    os.read(go, 1)
    open_backend("late:0").activate()
    _held = torch.zeros(200_000)
    os.write(holds, b".")
    signal.pause()


def test_memory_of_a_killed_process_comes_back_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LATE_BYTES", "1000000")
    monkeypatch.setenv("LATE_LEDGER", str(tmp_path))
    (told, tells), (heard, holds) = os.pipe(), os.pipe()
    other = forked.fork(partial(hold, told, holds), keep=[told, holds])
    os.close(holds)
    backend = open_backend("late:0")
    backend.activate()
    assert not wait_for_memory(backend, patience=1), "no process holds memory, so there is nothing to wait for"
    os.write(tells, b".")
    assert os.read(heard, 1)
    assert backend.foreign_memory() == 800_000
    assert not wait_for_memory(backend, patience=0.1)
    other.kill()
    other.wait()
    started = time.monotonic()
    with pytest.raises(torch.OutOfMemoryError, match="800000 elsewhere"):
        torch.zeros(100_000)
    assert wait_for_memory(backend, patience=20)
    assert time.monotonic() - started > 0.2
    torch.zeros(100_000)
    for number in (told, tells, heard):
        os.close(number)


# ---- errors that end a process


def test_a_sticky_error_is_told_from_one_that_a_member_raised(backend: Backend) -> None:
    assert not is_poisoned(backend)
    with pytest.raises(RuntimeError, match="device-side assert"):
        late.poison()
    assert is_poisoned(backend)
    assert not is_poisoned(open_backend("cpu:0"))


def test_what_ran_out_of_memory_is_gone_when_it_is_tried_again(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(guard, "wait_for_memory", lambda backend, patience: True)
    made = list[weakref.ref[torch.Tensor]]()

    def build() -> str:
        if made:
            return "there is room" if made[0]() is None else "what was made first is still there"
        half = torch.zeros(8)
        made.append(weakref.ref(half))
        raise torch.OutOfMemoryError("no memory")

    assert guarded(backend, tmp_path, [])("m", build, again=True) == "there is room"


def guarded(backend: Any, folder: Path, emitted: list[Any]) -> guard.Guard:
    """Return a guard of members that run out of memory or fail."""
    drop = lambda name, failed=False: None  # noqa: E731
    return guard.Guard("late:1", backend, folder, emitted.append, drop, lambda _: [], lambda _: False)


def test_a_tensor_that_was_left_on_the_host_is_told_how_to_be_placed(tmp_path: Path) -> None:
    here, there = torch.ones(2), torch.ones(2, device="meta")
    gpu: Any = SimpleNamespace(device=there.device, apart=False, synchronize=lambda: None)
    emitted = list[Any]()
    guarded(gpu, tmp_path, emitted)("m", lambda: here + there)
    assert "batches and networks are on meta: make tensors there (device=x.device)" in repr(emitted)
    copies = DeviceCopies(gpu, lambda batch: (here + there, batch[1]))
    with pytest.raises(RuntimeError, match="device") as caught:
        copies.start(blocks(np.arange(4), 4)[0])
    assert "batches and networks are on meta" in caught.value.__notes__[0]


def test_a_device_that_was_used_before_the_fork_is_refused_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "_initialised", lambda: "cuda")
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            kinds.Accelerator.open("cuda:0")
        except WorkerError as error:
            os.write(theirs, str(error).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(theirs)
    with os.fdopen(ours) as told:
        assert f"cuda was initialised in process {os.getpid()} before" in told.read()
    assert open_backend("late:0").name == "late:0", "the process that initialised it may use it"


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_trains_while_a_thread_of_its_parent_does() -> None:
    holds, ends = threading.Event(), threading.Event()

    def run() -> None:
        with preserve_process_state():
            holds.set()
            ends.wait()

    thread = threading.Thread(target=run)
    thread.start()
    holds.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        with preserve_process_state():
            os._exit(0)
    ends.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_nothing_is_initialised_by_looking() -> None:
    discover(Settings(devices="cpu:1"))
    assert forks._initialised() == ("cuda" if torch.cuda.is_initialized() else "")


KERNELS = """
import resource, torch
from argosy.errors import WorkerError
from argosy.training.device.devices import open_backend
limits = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
try:
    open_backend("cpu:0")
except WorkerError as error:
    print(error)
"""


def test_a_process_that_cannot_see_its_cpu_trains_no_member() -> None:
    """Otherwise torch would use other kernels, which round differently, for as long as the process lives."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    told = subprocess.run([sys.executable, "-c", KERNELS], env=environment, capture_output=True, text=True, check=True)
    assert told.stdout.startswith(
        "cpu:0: [Errno 24] Too many open files. Allow each process more open files: ulimit -n"
    )
