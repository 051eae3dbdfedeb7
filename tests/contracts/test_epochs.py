"""Which epochs of the stream members get under policies that let members of unlike epochs train together."""

from pathlib import Path

import living
import pytest
import studies

from argosy.planning import POLICIES, Situation
from argosy.plans import Flotilla, Placement
from argosy.profiles import Profile


class Mixing:
    """A policy that lets one member train alone for two epochs, and then with the others."""

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


def test_who_is_behind_in_a_flotilla_of_fleet_skips_what_the_foremost_has_seen(
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
