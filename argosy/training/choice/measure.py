"""Measures a member's costs and finds its peculiarities, on a copy, before its first real step."""

import contextlib
import hashlib
import statistics
import sys
import weakref
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from argosy.errors import StudyError
from argosy.errors.traces import reason_of
from argosy.profiles import PROFILE_BATCHES, TIMED_BATCHES
from argosy.protocol.trainer import Measured
from argosy.stream.blocks import Block
from argosy.stream.order import Selection
from argosy.stream.own_generators import uses_random_modules, writes_in_place
from argosy.stream.padding import make_batch
from argosy.stream.trees import flatten
from argosy.training.choice.copies import ShownBatch
from argosy.training.choice.split_check import NO_SHARE, why_not_split
from argosy.training.choice.unsaved import UnsavedState, changed_by_validations, training_code
from argosy.training.device.clock import Stopwatch
from argosy.training.device.devices import is_out_of_memory
from argosy.training.device.heap import outside_heap
from argosy.training.member.averaging import refusing_broadcasts
from argosy.training.member.checkpoint import check_plain
from argosy.training.member.copied import CALLED, called_objects, called_state
from argosy.training.member.live import LiveMember
from argosy.training.member.own import optimizer_state, schedule_state, strip_given
from argosy.training.programs.fused.fingerprint import hooks_of
from argosy.training.programs.solo import Solo

__all__ = ["LATE", "NUMPY_RANDOM", "PRIVATE", "SOFTMAX", "has_batch_norm", "measure_steps", "state_bytes"]

CHECK_SAMPLES = 8
"""Samples for the check of an own step that is not used for a validation of several batches."""
STEPS = 5
SECONDS = 0.030
PRIVATE = "writes into its input: gets private copies"
NUMPY_RANDOM = "draws from numpy or random: their states are swapped"
COUPLED = (
    "val_loss is not a mean over samples, so it depends on eval_batch_size: return one loss per sample, or "
    "validate all samples in one batch"
)
PARTED = (
    "its loss is not a mean over samples, so micro-batches do not add up to the loss of the whole batch: return one "
    "loss per sample, or remove accumulate"
)
LATE = (
    "its average is one epoch behind, because its BatchNorm statistics are recomputed: it does not include the "
    "weights of the last epoch"
)
SOFTMAX = (
    "its network returns probabilities, but its loss, cross-entropy, applies softmax itself, so that it learns slowly: "
    "return the values before the softmax"
)
UNMOVED = "no optimizer updates them"
UNTRAINED = (
    f"its {{}} has weights that require a gradient, but {UNMOVED}: make them part of the network, or freeze them"
)
OUTSIDE = (
    f"its network holds layers or weights in a list or dict, where {UNMOVED} and no file has them: use nn.ModuleList, "
    "nn.ModuleDict or nn.ParameterList, or freeze them"
)


def measure_steps(
    live: LiveMember, block: Block, *, thorough: bool = False, groups: int = 1, validated: int = 0
) -> Generator[None, None, Measured]:
    """Measure a copy's steps on the first block: up to 5 steps or 30 ms; if `thorough`, 48 steps of which the last 20 count (FLEET §6.1).

    Code that would run only later is tried here: the end of an epoch, and a validation of `validated` samples (0 for none), if they
    look like training samples. So its errors come before any training. The network gets only batch sizes that it will see later.
    Yields between steps, for other work; returns the measurement.

    A group of m devices is measured by steps on one of m even shares of the batch, if the member may be split or all members are
    measured thoroughly. If the device counts its memory, activations are what a step takes beyond weights, optimizer state and
    gradients, including kernels' work space; otherwise they are what autograd keeps.
    """
    trial, buffers, frozen = Solo(live.trial()), _buffers(live), _frozen(live)
    state, before = UnsavedState(trial.live), trial.live.randomness.copy()
    samples = Selection.of(live.member.val_subset, validated).length if validated else 0
    size = min(live.member.eval_batch_size or live.member.batch_size, samples)
    with outside_heap():
        coupled, softmax = (False, False) if live.member.step is not None else _try_loss(trial, block)
        wrote = bool(size) and _try_validation(trial, block, size)
        if live.member.step is not None:
            coupled = _try_own(trial, live, block, samples, size)
    parted = coupled and live.member.validate is None  # an own validation has another loss
    found = [*([PARTED] if parted and live.member.accumulate > 1 else []), *([SOFTMAX] if softmax else [])]
    yield
    batch, saved = ShownBatch(block, live.usual_batch), _SavedBytes()
    with _record_norms(trial.live.model, -(-batch.rows // live.member.accumulate)) as lone:
        trial, warm_up = _first_step(trial, live, batch, saved)
    yield
    # A per-step schedule may have a fixed number of steps, and measured steps must not count.
    schedule, trial.live.schedule = trial.live.schedule, None
    gradients = _bytes(p for p in live.model.parameters() if p.requires_grad)
    activations = max(saved.peak, _step_memory(trial, batch) - gradients)
    _check_apart(live, buffers)
    state.note_first_step(trial.live, schedule)
    seconds = yield from _step_seconds(trial, batch, warm_up, thorough=thorough)
    whole, shard_seconds = yield from _measure_shares(trial, live, block, groups, thorough=thorough)
    trial.live.schedule = schedule
    trial.live.step_schedule(1.0)
    _check_unturned(live, frozen)
    state.note_further_steps(trial.live, schedule)
    _check_saved(trial.live)
    wrote, drew = wrote or batch.was_written, not trial.live.randomness.others_equal(before)
    found += state.warnings(trial, live, block, size)
    found += changed_by_validations(trial, block, size) if size else []
    resident = state_bytes(trial.live)
    return Measured(
        member=live.member.name,
        samples_per_second=batch.rows / seconds,
        shard_seconds=shard_seconds,
        memory_bytes=resident + gradients + activations,
        activation_bytes=activations,
        state_bytes=resident,
        gradient_bytes=gradients,
        parameter_shapes=_shapes(live.model),
        whole=whole,
        batch_norm=any(lone) if lone else has_batch_norm(live.model),
        notes=tuple(_notes(live, wrote=wrote, drew=drew, coupled=coupled, apart=samples > size, found=found)),
        if_divided=PARTED if parted else "",
    )


def _check_saved(live: LiveMember) -> None:
    """Raise CheckpointError for state that no checkpoint can hold, which otherwise only the end of the first epoch would show."""
    schedule = None if live.schedule is None else schedule_state(live.schedule)
    parts = {"optimizer": strip_given(optimizer_state(live.optimizer)), "schedule": schedule}
    check_plain({"model": live.model.state_dict(), **parts, "called": called_state(live.member, live.model)})


def _notes(
    live: LiveMember, *, wrote: bool, drew: bool, coupled: bool, apart: bool, found: Sequence[str]
) -> Iterator[str]:
    """Yield what is unusual about a member, given what its copy was seen to do; `apart` is whether it validates several batches."""
    drew = drew or any(map(uses_random_modules, [*training_code(live), *hooks_of(live.model)]))
    # Code that draws, such as CutMix on a share of the batches, may write into its input for the first time later.
    if wrote or (drew and any(writes_in_place(getattr(live.member, name)) for name in CALLED)):
        yield PRIVATE
    if drew:
        yield NUMPY_RANDOM
    if live.average is not None and live.average.waits:
        yield LATE
    if coupled and apart:
        yield COUPLED
    yield from found
    for what, part in called_objects(live.member).items():
        if isinstance(part, nn.Module) and any(weight.requires_grad for weight in part.parameters()):
            yield UNTRAINED.format(what)
    if _holds_unregistered(live):
        yield OUTSIDE


def _holds_unregistered(live: LiveMember) -> bool:
    """Return whether the network's lists or dicts hold trainable weights that are not among its parameters.

    Those on the device "meta" have no values: they are how `torch.func.functional_call` hides a network whose weights it is given.
    """
    own = {id(p) for p in live.model.parameters()}
    boxes = [value for module in live.model.modules() for value in vars(module).values()]
    inside = [
        part
        for box in boxes
        for part in (box.values() if isinstance(box, dict) else box if isinstance(box, list) else ())
    ]
    weights = [p for part in inside for p in (part.parameters() if isinstance(part, nn.Module) else [part])]
    return any(isinstance(p, nn.Parameter) and p.requires_grad and not p.is_meta and id(p) not in own for p in weights)


def _try_loss(trial: Solo, block: Block) -> tuple[bool, bool]:
    """Check the loss on a batch, and all labels of the first block, or of the augmented batch if the member augments.

    Returns what `Solo.try_loss` does.
    """
    batch = ShownBatch(block, trial.live.usual_batch)
    with trial.active():
        if trial.live.member.augment:
            data = trial.augmented(batch.data)
            return trial.try_loss(data, batch.rows, data)
        if block.whole:
            return trial.try_loss(batch.data, batch.rows, make_batch(block.leaves, block.tree))
        return trial.try_loss(batch.data, batch.rows, ShownBatch(block, int(block.sound.sum())).data)


def _try_validation(trial: Solo, block: Block, size: int) -> bool:
    """Try a validation on a batch of the block; returns whether it wrote into its input."""
    batch = ShownBatch(block, size)
    # A metric may warn about training samples, for example all of one class, but not about those that are validated.
    with trial.active(), refusing_broadcasts(trial.live.member, repeats=False):
        trial.try_validation(batch.data, batch.rows)
    return batch.was_written


def _try_own(trial: Solo, live: LiveMember, block: Block, samples: int, size: int) -> bool:
    """Check an own step, and an own validation of `samples` samples in batches of `size`, on a copy.

    Returns whether the mean over these batches depends on their sizes. A step that moves the weights itself is not called, and an
    own validation of a single batch is not checked. A network that accepts only its own batch sizes is checked on those.
    """
    member, copied, several = live.member, Solo(live.trial()), samples > size
    coupled: bool | None = False
    with copied.active(), _without_compiling():
        if member.optimizers is None:
            rows = min(CHECK_SAMPLES, -(-member.batch_size // member.accumulate))
            if several and member.validate is None:  # it validates as well, so it will see this size
                rows = size
            coupled = copied.try_own("step", ShownBatch(block, rows).data, rows)
        if member.validate is not None and several:
            coupled = copied.try_own("validate", ShownBatch(block, size).data, size)
    if coupled is None and several and samples % size:
        alike = [ShownBatch(block, rows, different=1) for rows in (size, samples % size)]
        with trial.active():
            trial.try_sizes([(shown.data, shown.rows) for shown in alike])
    return bool(coupled)


def _without_compiling() -> contextlib.AbstractContextManager[Any]:
    """Return a context in which torch compiles nothing: each new batch size would add compiled code to the member's own functions."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else contextlib.nullcontext()


def _first_step(trial: Solo, live: LiveMember, batch: "ShownBatch", saved: "_SavedBytes") -> tuple[Solo, float]:
    """Make the first step, counting the bytes that autograd keeps; returns its program and seconds.

    Some code, such as `torch.func.grad`, does not allow counting; then another copy makes the step without it. There an error of the
    member's own code is raised again. A bug of Argosy raises here.
    """
    try:
        with saved, refusing_broadcasts(live.member):
            return trial, _timed_step(trial, batch)
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        reason_of(error)  # raises the error again if it is a bug of Argosy
    # Outside of the handler, because its traceback keeps the step's tensors alive.
    again = Solo(live.trial())
    again.live.randomness = trial.live.randomness
    return again, _timed_step(again, batch)


def _step_memory(trial: Solo, batch: "ShownBatch") -> int:
    """Return the peak memory of a step in bytes, beyond the memory in use before it; 0 if the device does not count memory.

    Do not use it for the first step, which creates optimizer state and work space of libraries for the whole process.
    """
    backend = trial.live.backend
    trial.drop_gradients()
    before = backend.memory_in_use()
    if before is None:
        return 0
    backend.reset_peak()
    _timed_step(trial, batch)
    return (backend.peak_memory() or 0) - before


def _step_seconds(trial: Solo, batch: "ShownBatch", warm_up: float, *, thorough: bool) -> Generator[None, None, float]:
    """Return the seconds of a step: the median of FLEET's 20, or the minimum of a few, with at least one after the first.

    The first step sets up kernels, which may take longer than all others. The minimum is used because loader workers fill the
    ring on the same cores at the start of a run, which only makes steps slower.
    """
    seconds: list[float] = []
    while len(seconds) + 1 < PROFILE_BATCHES if thorough else _needs_step(warm_up, seconds):
        seconds.append(_timed_step(trial, batch))
        yield
    return statistics.median(seconds[-TIMED_BATCHES:]) if thorough else min(seconds)


def _measure_shares(
    trial: Solo, live: LiveMember, block: Block, groups: int, *, thorough: bool
) -> Generator[None, None, tuple[str, tuple[float, ...]]]:
    """Return why the member must not be split (empty if it may be), and the seconds of a step on one of m even shares, for m = 2 … `groups`."""
    if groups < 2:
        return "", ()
    with outside_heap(), _without_compiling():
        tried = ShownBatch(block, live.usual_batch)
        whole = why_not_split(live, tried.data, tried.rows, distinct=int(block.sound.sum()))
    seconds: list[float] = []
    # A member that stays whole is still of interest to a thorough profile, unless its step raises on a share.
    for m in range(2, groups + 1) if not whole or (thorough and not whole.startswith(NO_SHARE)) else ():
        share = ShownBatch(block, -(-live.usual_batch // m))
        first = _timed_step(trial, share)
        seconds.append((yield from _step_seconds(trial, share, first, thorough=thorough)))
    return whole, tuple(seconds)


def _needs_step(warm_up: float, seconds: list[float]) -> bool:
    """Return whether another step is due after the warm-up step and those in `seconds`."""
    return not seconds or (len(seconds) + 1 < STEPS and warm_up + sum(seconds) < SECONDS)


def _timed_step(trial: Solo, batch: "ShownBatch") -> float:
    backend = trial.live.backend
    backend.synchronize()
    watch = Stopwatch(backend)
    with trial.active():
        trial.try_step(batch.data, batch.rows)
    backend.synchronize()
    return watch.seconds


def has_batch_norm(model: nn.Module) -> bool:
    """Return whether a batch of one sample may be too small for the model."""
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())


@contextlib.contextmanager
def _record_norms(model: nn.Module, samples: int) -> Iterator[list[bool]]:
    """Record, for each pass of `samples` samples through BatchNorm inside, whether one sample would be too few.

    It is enough for layers in eval(), such as those of a frozen trunk, and if it has several rows, such as a graph of nodes.
    """
    sound: list[bool] = []

    def note_pass(norm: nn.Module, inputs: tuple[Any, ...]) -> None:
        several = inputs and not samples >= inputs[0].shape[0] == inputs[0].numel() // max(inputs[0].shape[1], 1)
        sound.append(norm.training and not several)

    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    handles = [norm.register_forward_pre_hook(note_pass) for norm in norms]
    try:
        yield sound
    finally:
        for handle in handles:
            handle.remove()


def _buffers(live: LiveMember) -> dict[str, Any]:
    """Return, by name, the identity of each buffer of the network and the number of writes into it."""
    named = live.model.named_buffers()
    return {name: (id(buffer), buffer.is_inference() or buffer._version) for name, buffer in named}


def _check_apart(live: LiveMember, buffers: Mapping[str, Any]) -> None:
    """Raise StudyError if a copy's step has affected the member's own network, whose buffers were `buffers` before."""
    reached = [name for name, weight in live.model.named_parameters() if weight.grad is not None]
    reached += [name for name, state in _buffers(live).items() if state != buffers.get(name)]
    scripted = any(isinstance(module, torch.jit.ScriptModule) for module in live.model.modules())
    if reached and not scripted:  # copies of ScriptModules have their own values, but the original's gradients
        raise StudyError(
            f"member {live.member.name!r}: a copy of its network still uses {reached[0]!r} of the original, so its "
            "steps cannot be tried before training. This happens if a stored function refers to `self` from "
            "outside, self.acts = [lambda x: self.layer(x)]: make it a method. Or if a step resets all layers of a class, "
            "as snntorch.utils.reset does: call layer.reset_mem() for those in model.modules()."
        )


def _check_unturned(live: LiveMember, frozen: set[str]) -> None:
    """Raise StudyError if a copy's schedule has affected which of the member's own weights are frozen."""
    if turned := sorted(frozen ^ _frozen(live)):
        raise StudyError(
            f"member {live.member.name!r}: a copy of its schedule froze or unfroze {turned[0]!r} of the original, so the end of an "
            "epoch cannot be tried before training. A function that LambdaLR calls holds the weights themselves: make a class derived "
            "from LRScheduler that finds them in self.optimizer."
        )


def _frozen(live: LiveMember) -> set[str]:
    return {name for name, weight in live.model.named_parameters() if not weight.requires_grad}


def state_bytes(live: LiveMember) -> int:
    """Return the bytes of weights, buffers, optimizer state, the average of the weights, and future snapshots in host memory."""
    model = [*live.model.parameters(), *live.model.buffers()]
    # Optimizers may have the state of those inside them: each tensor counts once.
    optimizer = {t for t in flatten(optimizer_state(live.optimizer))[0] if isinstance(t, torch.Tensor)}
    average = 0
    if live.average is not None:
        average = live.average.copies * _bytes(live.average.values) + _bytes([*live.average.buffers.values()])
    snapshots = 0
    if live.snapshots is not None and not live.backend.apart:
        snapshots = live.snapshots.sections(_bytes(model)) * _bytes(model)
    return _bytes(model) + _bytes(optimizer) + average + snapshots


class _SavedTensor:
    """A tensor that autograd keeps."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor: torch.Tensor | None = tensor


class _SavedBytes:
    """Counts the bytes that autograd keeps for backward passes at one time, each storage once.

    Micro-batches run one after another, so the peak is what counts.

    On exit it drops all tensors that are still kept. Otherwise the graph of a failed step would keep itself alive, since a kept
    tensor may be the result of the operation that keeps it.
    """

    def __init__(self) -> None:
        self.peak = 0
        self._now = 0
        self._holders: Counter[int] = Counter()
        """Numbers of kept tensors, by address of their storage."""
        self._held: weakref.WeakSet[_SavedTensor] = weakref.WeakSet()
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda held: held.tensor)

    def _pack(self, tensor: torch.Tensor) -> _SavedTensor:
        saved = _SavedTensor(tensor)
        self._held.add(saved)
        if tensor.layout is torch.strided:  # a sparse tensor has no storage
            self._count(tensor.untyped_storage(), saved)
        return saved

    def _count(self, storage: torch.UntypedStorage, held: _SavedTensor) -> None:
        address, size = storage.data_ptr(), storage.nbytes()
        if not self._holders[address]:
            self._now += size
            self.peak = max(self.peak, self._now)
        self._holders[address] += 1
        # Not at exit, when nothing is counted any more.
        weakref.finalize(held, self._let_go, address, size).atexit = False

    def _let_go(self, address: int, size: int) -> None:
        self._holders[address] -= 1
        if not self._holders[address]:
            self._now -= size

    def __enter__(self) -> None:
        self._hooks.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._hooks.__exit__(*error)
        for saved in self._held:
            saved.tensor = None


def _bytes(tensors: Any) -> int:
    return sum(tensor.numel() * tensor.itemsize for tensor in tensors)


def _shapes(model: nn.Module) -> str:
    text = ";".join(f"{name}{tuple(p.shape)}{p.dtype}" for name, p in model.named_parameters())
    return hashlib.sha256(text.encode()).hexdigest()[:16]
