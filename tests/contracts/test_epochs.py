"""Tests which stream epochs members get under policies that let members at different epochs train together."""

from dataclasses import replace
from pathlib import Path

import living
import pytest
import studies

import argosy
from argosy.planning import POLICIES, Situation
from argosy.plans import Flotilla, Placement
from argosy.profiles import Profile


class Mixing:
    """A policy that lets one member train alone for two epochs, and then all members together."""

    def __init__(self) -> None:
        self.asked = 0

    def launch(self, situation: Situation) -> tuple[Flotilla, ...]:
        """See `Policy.launch`."""
        if len(situation.free) < len(situation.devices):
            return ()
        chosen = situation.waiting if situation.epochs_done.get("plain", 1) else situation.waiting[:1]
        names = [device.name for device in situation.devices]
        placed = [Placement.whole(profile, names[n % len(names)]) for n, profile in enumerate(chosen)]
        return (Flotilla(placements=tuple(placed)),)

    def keeps(self, situation: Situation, started: Flotilla, live: tuple[Profile, ...]) -> bool:
        """See `Policy.keeps`."""
        del situation, live
        self.asked += 1
        return len(started.members) > 1 or self.asked < 2


def test_a_member_that_is_behind_in_a_flotilla_of_fleet_skips_what_the_foremost_has_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(POLICIES, "fleet", Mixing())
    study = studies.study(epochs=3)
    living.run(study, tmp_path, policy="fleet", devices="cpu:2", block_size=32)
    living.equal_alone(study, tmp_path)
    epochs = {
        name: [row.stream_epoch for row in member.sections]
        for name, member in living.state_of(tmp_path).members.items()
    }
    assert epochs.pop("plain") == [0, 1, 2]
    assert set(map(tuple, epochs.values())) == {(2, 3, 4)}


class Pairs:
    """A policy that launches the first pair whose members both wait, else all waiting members, again whenever a member ends."""

    def __init__(self, *pairs: set[str]) -> None:
        self.pairs = pairs

    def launch(self, situation: Situation) -> tuple[Flotilla, ...]:
        """See `Policy.launch`."""
        if len(situation.free) < len(situation.devices):
            return ()
        waiting = {profile.member: profile for profile in situation.waiting}
        chosen = next((pair for pair in self.pairs if pair <= waiting.keys()), waiting.keys())
        free = [device.name for device in situation.free]
        placed = [Placement.whole(waiting[name], free[n]) for n, name in enumerate(sorted(chosen))]
        return (Flotilla(placements=tuple(placed)),)

    def keeps(self, situation: Situation, started: Flotilla, live: tuple[Profile, ...]) -> bool:
        """See `Policy.keeps`."""
        del situation
        return len(live) == len(started.members)


def test_a_member_left_in_the_middle_of_an_epoch_of_fleet_ends_it_before_it_continues_with_the_foremost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(POLICIES, "fleet", Pairs({"ahead", "two"}, {"half", "behind"}))
    epochs = {"ahead": 3, "two": 2, "half": 0.5, "behind": 3}
    members = [studies.member(name, stop=argosy.MaxEpochs(count)) for name, count in epochs.items()]
    study = studies.study(90, fleet=members, validations_per_epoch=2)
    living.run(study, tmp_path, policy="fleet", devices="cpu:2", block_size=16)
    living.equal_alone(study, tmp_path)
    found = living.state_of(tmp_path).members
    assert [row.stream_epoch for row in found["ahead"].sections] == [0, 0, 1, 1, 2, 2]
    # It skips stream epoch 1, which "ahead" had already trained on: "ahead" did not wait for it.
    assert [row.stream_epoch for row in found["behind"].sections] == [0, 0, 2, 2, 3, 3]


class Apart:
    """A policy that trains every member in a flotilla of its own, on one device, and keeps all flotillas."""

    def launch(self, situation: Situation) -> tuple[Flotilla, ...]:
        """See `Policy.launch`."""
        pairs = zip(situation.waiting, situation.free, strict=False)
        return tuple(Flotilla(placements=(Placement.whole(profile, device.name),)) for profile, device in pairs)

    def keeps(self, situation: Situation, started: Flotilla, live: tuple[Profile, ...]) -> bool:
        """See `Policy.keeps`."""
        del situation, started, live
        return True


@pytest.mark.parametrize(("sections", "epochs"), [(2, 1.5), (4, 1.25), (4, 1.75)])
def test_a_member_in_the_middle_of_an_epoch_ends_it_although_another_has_made_room_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sections: int, epochs: float
) -> None:
    monkeypatch.setitem(POLICIES, "fleet-local", Apart())
    stops = {"long": epochs, "short": 1 / sections}
    members = [studies.member(name, stop=argosy.MaxEpochs(count)) for name, count in stops.items()]
    study = studies.study(90, fleet=members, validations_per_epoch=sections)
    # When `short` ends, its device could serve `long`, so `long`'s leg is held for a barrier at the end of the epoch, though
    # its credit already reaches further.
    living.run(study, tmp_path, policy="fleet-local", devices="cpu:2", block_size=16)
    living.equal_alone(study, tmp_path)
    assert {row.status for row in argosy.load(tmp_path, study=study).rows} == {"done"}


@pytest.mark.parametrize("policy", ["fleet", "fleet-local"])
def test_members_under_the_published_policies_are_the_replay_of_their_journaled_epochs(
    tmp_path: Path, policy: str
) -> None:
    stops = (2, 1, 0.5, 1.5)
    members = [replace(m, stop=argosy.MaxEpochs(n)) for m, n in zip(studies.members(), stops, strict=True)]
    study = studies.study(fleet=members, validations_per_epoch=2)
    living.run(study, tmp_path, policy=policy, devices="cpu:2", block_size=32)
    living.equal_alone(study, tmp_path)
    assert {row.status for row in argosy.load(tmp_path, study=study).rows} == {"done"}
