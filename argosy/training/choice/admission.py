"""Admission: which members of a device may be one program, and on which batches the program gives them the bits that they have alone.

Members of one fingerprint may be fused, and MLPs of several fingerprints grouped, once copies of some of them passed the equivalence check
(`fused_check.py`). A fingerprint, or a layer of an MLP, that passed is not checked again.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from argosy.stream.blocks import Block
from argosy.training.choice.fused_check import CheckOutcome, check_together, have_own_batches
from argosy.training.device.attempts import attempt
from argosy.training.member.live import BatchLengths, LiveMember
from argosy.training.programs.fused.fingerprint import Fingerprint, obstacle
from argosy.training.programs.fused.grouped import grouping_key
from argosy.training.programs.fused.waves import layer_sort_key

__all__ = ["Admission", "PassedChecks", "admit"]

CHECKED_MEMBERS = 4
"""Members of a pack that are checked. A few suffice because all share one forward pass, and copies take memory."""
FEW_ALIKE = 4
"""Fewer members of one architecture than this join a program of different members."""
Alike = Mapping[Fingerprint, Sequence[LiveMember]]
PassedChecks = dict[Hashable, BatchLengths | None]
"""Passed checks: the batches that a program makes as one with the bits of each member alone; None if equal up to rounding.

By fingerprint for members of one architecture, and for different ones by what they have in common and a layer.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Admission:
    """The result of the equivalence check."""

    packs: Mapping[tuple[str, ...], BatchLengths | None]
    """Members that may be fused, also single ones if `single` was given, with the batches that their program makes as one with the
    bits of each member alone; None if results are equal up to rounding."""
    grouped: Mapping[tuple[str, ...], BatchLengths | None]
    """Different members that may be one program, likewise."""
    alone: Mapping[str, str]
    """Members that must stay alone, each with the reason."""
    failed: Mapping[tuple[str, ...], str]
    """Members that were checked together and failed, with the error or the difference."""


def admit(
    lives: Sequence[LiveMember],
    block: Block,
    admitted: PassedChecks | None = None,
    *,
    single: bool = False,
    pairs: bool = True,
    before: Mapping[str, bool] | None = None,
) -> Admission:
    """Check which of these members may be one program, on a block of training samples; the members stay unchanged.

    Entries of `admitted` are not checked again, and passed checks are added to it. With `single`, a member alone in its fingerprint is
    checked too, and different members are not. Without `pairs`, two members with single-pass optimizers are not checked. `before` maps
    members that were in such a program to whether it was one of different members; they stay in a program of that sort.
    """
    admitted = {} if admitted is None else admitted
    alike, reasons = _by_fingerprint(lives)
    packs, grouped = (dict[tuple[str, ...], BatchLengths | None]() for _ in range(2))
    failed: dict[tuple[str, ...], str] = {}
    for several in () if single else _groups(alike, before or {}):
        names, tried = _names(several), _check_grouped(several, block, admitted)
        if tried.reason is None:
            grouped[names] = tried.lengths
        else:
            failed[names] = tried.reason
    alike = _without({name for names in grouped for name in names}, alike)
    for fingerprint, pack in alike.items():
        names = _names(pack)
        if len(pack) == 1:
            reasons[names[0]] = _why_alone(fingerprint, alike)
            if not single:
                continue
        elif not pairs and len(pack) == 2 and fingerprint not in admitted and all(live.one_pass for live in pack):
            reasons |= dict.fromkeys(names, "other pairs of members were no faster as one program on this device")
            continue
        tried = _check_fused(fingerprint, pack, block, admitted)
        if tried.reason is None:
            packs[names] = tried.lengths
            continue
        if len(pack) > 1:
            reasons |= dict.fromkeys(names, tried.reason)
        if tried.failed:
            failed[names] = tried.reason
    return Admission(packs=packs, grouped=grouped, alone=reasons, failed=failed)


def _names(lives: Iterable[LiveMember]) -> tuple[str, ...]:
    return tuple(live.member.name for live in lives)


def _by_fingerprint(lives: Iterable[LiveMember]) -> tuple[Alike, dict[str, str]]:
    """Return the members by fingerprint, and the reasons of members that cannot be fused, by name."""
    alike: dict[Fingerprint, list[LiveMember]] = {}
    reasons: dict[str, str] = {}
    for live in lives:
        with attempt() as tried:  # a member's objects may not be comparable
            reason = obstacle(live)
            if reason is None:
                alike.setdefault(Fingerprint.of(live), []).append(live)
        if tried.error:
            reason = f"it cannot be compared with others: {tried.error}"
        if reason is not None:
            reasons[live.member.name] = reason
    return alike, reasons


def _without(names: set[str], alike: Alike) -> Alike:
    remaining = {each: [live for live in pack if live.member.name not in names] for each, pack in alike.items()}
    return {each: pack for each, pack in remaining.items() if pack}


def _why_alone(fingerprint: Fingerprint, alike: Alike) -> str:
    """Return why no other member has this fingerprint."""
    for other, lives in alike.items():
        if other != fingerprint:
            return (
                f"no other member is identical in architecture and settings: {lives[0].member.name!r} differs in "
                f"{fingerprint.difference(other)}"
            )
    return "no other member could be fused with it"


# ---- members of one architecture


def _check_fused(
    fingerprint: Fingerprint, lives: Sequence[LiveMember], block: Block, admitted: PassedChecks
) -> CheckOutcome:
    """Check some of these members of one fingerprint, unless it is in `admitted`; a passed check is added there."""
    if fingerprint in admitted:
        return CheckOutcome(reason=None, lengths=admitted[fingerprint])
    attempt = check_together(lives[:CHECKED_MEMBERS], block, alike=True, apart=have_own_batches(lives))
    if attempt.reason is None:
        admitted[fingerprint] = attempt.lengths
    return attempt


# ---- different members


def _groups(alike: Alike, before: Mapping[str, bool]) -> Iterator[Sequence[LiveMember]]:
    """Yield members that `Grouped` may step: those that it stepped before, and new ones that are few of their architecture."""
    by_key: dict[Any, dict[Fingerprint, list[LiveMember]]] = {}
    for fingerprint, pack in alike.items():
        fresh = [live for live in pack if live.member.name not in before]
        # Members that were in a program of one architecture stay there, and new ones join them.
        few = len(fresh) < FEW_ALIKE and all(before.get(live.member.name, True) for live in pack)
        for live in pack:
            if before.get(live.member.name, few) and (key := grouping_key(live)) is not None:
                by_key.setdefault(key, {}).setdefault(fingerprint, []).append(live)
    for packs in by_key.values():
        lives = [live for pack in packs.values() for live in pack]
        grouped = any(live.member.name in before for live in lives)
        if (len(packs) > 1 or grouped) and have_own_batches(lives) == (False, False):
            yield lives


def _check_grouped(lives: Sequence[LiveMember], block: Block, admitted: PassedChecks) -> CheckOutcome:
    """Check enough of these different members to cover each layer that is not in `admitted`; layers that pass are added there."""
    layers = {live.member.name: [(grouping_key(live), layer) for layer in layer_sort_key(live.model)] for live in lives}
    fresh, known = list[LiveMember](), set(admitted)
    for live in lives:
        if not known.issuperset(layers[live.member.name]):
            fresh.append(live)
            known.update(layers[live.member.name])
    if fresh:
        attempt = check_together(fresh, block, alike=False, apart=(False, False))
        if attempt.reason is not None:
            return attempt
        for live in fresh:
            for layer in layers[live.member.name]:
                admitted.setdefault(layer, attempt.lengths)
    of_layers = (admitted[layer] for own in layers.values() for layer in own)
    return CheckOutcome(reason=None, lengths=_common_lengths(of_layers))


def _common_lengths(of_members: Iterable[BatchLengths | None]) -> BatchLengths | None:
    """Return the batch lengths that all have in common; None if one of them is None."""
    lengths = list(of_members)
    some = [one for one in lengths if one is not None]
    if len(some) < len(lengths):
        return None
    train, val, differ = zip(*some, strict=True)
    return BatchLengths(frozenset.intersection(*train), frozenset.intersection(*val), differ[0])
