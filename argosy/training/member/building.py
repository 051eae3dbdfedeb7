"""Builds a member: its network, optimizer and schedule, under its own seed, with the checks that need nothing but these."""

import functools
from typing import Any

from torch import nn
from torch.optim import Optimizer

from argosy.stopping import Mode
from argosy.stream.order import member_seed
from argosy.study import Member
from argosy.training.device.devices import Backend
from argosy.training.device.process_state import check_settings_kept
from argosy.training.member.checks import (
    check_average_of,
    check_generators,
    check_network,
    check_optimizer,
    check_own,
    check_schedule,
    collect_registered,
)
from argosy.training.member.copied import (
    CALLED,
    ensure_own_memory,
    may_thaw,
    move_called,
    optimizers_of,
    with_own_buffers,
    with_own_callables,
)
from argosy.training.member.live import LiveMember
from argosy.training.member.mistakes import naming_part
from argosy.training.member.own import build_own_optimizers, ensure_own_settings
from argosy.training.member.randomness import Randomness
from argosy.training.member.snapshots import Snapshots
from argosy.training.optim.one_pass import can_step_in_one_pass
from argosy.training.optim.optimizer_list import OptimizerList

__all__ = ["build_member", "effective_seed"]


def build_member(
    member: Member,
    backend: Backend,
    *,
    study_seed: int,
    objective: str,
    mode: Mode,
    exact: bool = True,
    answering: bool = False,
    snapshot_bytes: int = 0,
) -> LiveMember:
    """Build a member's network, optimizer and schedule with its own seed. Raises StudyError.

    With `exact`, its steps equal its optimizer's own bit for bit. `answering` is as in `LiveMember`, `snapshot_bytes` as in `EnsemblePlateau`.
    """
    check_generators(member, [(name, getattr(member, name)) for name in ("model", *CALLED)])
    check_generators(member, [(f"metric {name!r}", metric) for name, metric in member.metrics.items()])
    seed = effective_seed(member, study_seed)
    randomness = Randomness.seeded(seed, backend)
    own = with_own_callables(member, {})
    with check_settings_kept(member.name), randomness.building():
        with collect_registered() as registered, naming_part("model", own.model):
            model = own.model()
        check_network(member, model)
        again = functools.cache(functools.partial(randomness.unmoved, member.model))
        check_own(member, model, registered, again)
        model = with_own_buffers(model, registered, again)
        ensure_own_memory(model, again)
        kinds = dict.fromkeys(map(type, model.modules()))
        check_generators(member, [(f"layer {kind.__name__}", kind) for kind in kinds])
        model = model.to(backend.device)
        move_called(own, backend.device)
        several = member.optimizers is not None
        optimizer, schedule = build_own_optimizers(own, model, mode) if several else _optimizer(own, model, mode)
        check_generators(member, [(f"optimizer {type(one).__name__}", one) for one in optimizers_of(optimizer)])
        thaws = may_thaw(optimizer, schedule) != ""
        if thaws:  # not for each step of a member's own, which seldom unfreezes: many members may share one large frozen network
            ensure_own_memory(model, again, frozen=True)
    check_average_of(member, model)
    model.train()  # as before each epoch: a `train` of its own may keep layers in eval(), and copies are tried before the first one
    trained = model, optimizer, schedule, randomness
    live = LiveMember(own, backend, *trained, objective, mode, answering=answering, thaws=thaws or own.step is not None)
    live.snapshots = Snapshots(snapshot_bytes) if snapshot_bytes else None
    live.one_pass = not exact and can_step_in_one_pass(optimizer)
    return live


def _optimizer(member: Member, model: nn.Module, mode: Mode) -> tuple[Any, Any]:
    """Build and check a member's optimizer and schedule."""
    assert member.optimizer is not None
    with naming_part("optimizer", member.optimizer):
        returned = member.optimizer(list(model.parameters()))  # a list, because the factory may read it several times
    several = (
        isinstance(returned, list | tuple) and bool(returned) and all(isinstance(part, Optimizer) for part in returned)
    )
    parts = returned if several else [returned]
    for part in parts:
        check_optimizer(member, model, part)
    ensure_own_settings(parts, model)
    optimizer = parts[0] if len(parts) == 1 else OptimizerList(parts)
    with naming_part("schedule", member.schedule):
        schedule = None if member.schedule is None else member.schedule(optimizer)
    check_schedule(member, optimizer, schedule, mode)
    return optimizer, schedule


def effective_seed(member: Member, study_seed: int) -> int:
    """Return the member's own seed, or else one derived from the study's seed and its name."""
    return member_seed(study_seed, member.name) if member.seed is None else member.seed
