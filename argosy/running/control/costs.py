"""Converts measurements of trainers to profiles for planners."""

import functools
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from argosy.disk.cached import Cached, cache_folder
from argosy.profiles import Profile
from argosy.protocol.events import SectionEnded
from argosy.protocol.trainer import Measured
from argosy.running.directory.study_json import format_factory
from argosy.study import Member
from argosy.training.programs.shard.parallel import LONG_BYTES
from argosy.version import __version__

__all__ = ["ASSUMED_LINK", "Costs", "Link", "ObservedRates", "fusion_digest", "even_out", "profile_of", "work_digest"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """Cost of an all-reduce over the ranks of a group: in a ring of m ranks, each sends 2 (m - 1) pieces of 1/m of the data."""

    hop_seconds: float
    """Latency of one hop, in seconds."""
    bytes_per_second: float

    @classmethod
    def measured(cls, devices: int, short_seconds: float, long_seconds: float) -> "Link":
        """Fit to the times of two all-reduces over `devices` devices: of almost no bytes, and of `LONG_BYTES`."""
        hops = 2 * (devices - 1)
        spent = max(long_seconds - short_seconds, 1e-9)
        return cls(hop_seconds=short_seconds / hops, bytes_per_second=hops / devices * LONG_BYTES / spent)

    def seconds(self, devices: int, size: int) -> float:
        """Return the seconds of an all-reduce of `size` bytes over a number of devices."""
        hops = 2 * (devices - 1)
        return hops * (self.hop_seconds + size / devices / self.bytes_per_second)


ASSUMED_LINK = Link(hop_seconds=0.0, bytes_per_second=10e9)
"""Used if no link was measured: typical inside a node of GPUs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """Costs of members and of preparation."""

    profiles: tuple[Profile, ...]
    lengths: dict[str, int]
    preparation_seconds_per_sample: float
    """Seconds of one core; 0 if nothing is prepared."""


def profile_of(
    measured: Measured, *, batch_size: int, device_kind: str, node_devices: int, link: Link | None
) -> Profile:
    """Return the profile of one member.

    A group of m devices trains at batch / (step of one shard + all-reduce of the gradients). Without a link, or without measured shards, the
    member may not be split.
    """
    shares = () if link is None else enumerate(measured.shard_seconds, start=2)
    groups = [batch_size / (seconds + link.seconds(m, measured.gradient_bytes)) for m, seconds in shares if link]
    return Profile(
        member=measured.member,
        device_kind=device_kind,
        samples_per_second=(measured.samples_per_second, *groups),
        memory_bytes=measured.memory_bytes,
        activation_bytes=measured.activation_bytes,
        state_bytes=measured.state_bytes,
        splittable=bool(groups) and not measured.whole,
        node_devices=node_devices,
    )


def even_out(profiles: Sequence[Profile], members: Iterable[Member], measured: Mapping[str, Measured]) -> list[Profile]:
    """Give members that do the same work the same profile, the best of theirs, because other load on the machine only adds time.

    A sweep over learning rates is therefore spread evenly, whatever disturbed its measurement. Of members that do the same work some may
    have to stay whole, such as one whose schedule watches a metric.
    """
    known = ((member, measured[member.name]) for member in members if member.name in measured)
    works = {member.name: (*_work_of_steps(member, its), its.memory_bytes, its.whole == "") for member, its in known}
    best: dict[tuple[object, ...], Profile] = {}
    for profile in profiles:
        so_far = best.setdefault(works[profile.member], profile)
        if profile.rate(1) > so_far.rate(1):
            best[works[profile.member]] = profile
    return [replace(best[works[profile.member]], member=profile.member) for profile in profiles]


def fusion_digest(member: Member, measured: Measured) -> str:
    """Return a digest that is equal for members that may become one program, as far as is known before trainers try."""
    metrics = (item for pair in sorted(member.metrics.items()) for item in pair)
    return _digest(_work(member, measured, (member.loss, member.step, member.validate, *metrics)))


def work_digest(member: Member, measured: Measured) -> str:
    """Return a digest of everything that decides the time of a member's steps."""
    return _digest(_work_of_steps(member, measured))


def _work_of_steps(member: Member, measured: Measured) -> tuple[object, ...]:
    """Return what decides the work of a member's steps; learning rates do not."""
    optimizer = member.optimizer or member.optimizers
    optimizer = optimizer.func if isinstance(optimizer, functools.partial) else optimizer
    factories = (member.model, optimizer, member.loss, member.step, member.augment, member.validate)
    return _work(member, measured, factories)


def _work(member: Member, measured: Measured, factories: Iterable[object]) -> tuple[object, ...]:
    """Return a member's given factories, spelled, and its sizes."""
    sizes = (member.batch_size, member.eval_batch_size, member.accumulate, member.precision, type(member.average))
    return (*map(format_factory, factories), measured.parameter_shapes, *sizes)


def _digest(work: tuple[object, ...]) -> str:
    return hashlib.sha256(repr(work).encode()).hexdigest()[:16]


class ObservedRates:
    """Cache of rates that earlier runs on this machine observed, because 30 ms of measurement at the start of a run are noisy.

    The key of a member consists of its factories, hyper-parameters and parameter shapes, the kind of device, the version of torch, and
    whether its steps are `exact`. Only plans depend on it, never a member's result.
    """

    def __init__(self, *, exact: bool = False) -> None:
        self._exact = exact
        self._cache = Cached(folder=cache_folder() / "profiles", kind=Profile)

    def refresh(self, profile: Profile, member: Member, measured: Measured) -> Profile:
        """Return the measured profile at the rate of earlier runs, if there is one."""
        known = self._cache.load(self._key(profile, member, measured))
        return profile if known is None else profile.observed(known.samples_per_second[0], weight=1.0)

    def remember(self, profile: Profile, member: Member, measured: Measured, ended: SectionEnded) -> None:
        """Update the observed rate with that of a section, validation included."""
        if ended.seconds > 0:
            seen = profile.observed(ended.samples / ended.seconds)
            self._cache.save(self._key(profile, member, measured), seen)

    def _key(self, profile: Profile, member: Member, measured: Measured) -> str:
        return self._cache.key(
            f"{format_factory(member.model)} {member.hyperparameters} {member.precision} {measured.parameter_shapes} {self._exact}",
            profile.device_kind,
            torch.__version__,
            __version__,
        )
