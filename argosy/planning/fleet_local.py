"""FLEET-L: the local variant, which fills the devices that a converged member releases."""

from dataclasses import dataclass

from argosy.planning.fleet import launch_greedily
from argosy.planning.policy import Situation
from argosy.plans import Flotilla
from argosy.profiles import Profile

__all__ = ["FleetLocal"]


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetLocal:
    """FLEET §4.3.3: the first flotilla by the greedy algorithm, then the same rule over released devices only."""

    delta: float = 20.0
    """As in FLEET-G; samples per second."""

    def launch(self, situation: Situation) -> tuple[Flotilla, ...]:
        """Run Algorithms 2 to 4 over the free devices."""
        return launch_greedily(situation, self.delta)

    def keeps(self, situation: Situation, started: Flotilla, live: tuple[Profile, ...]) -> bool:
        """Return True: the other members train on undisturbed."""
        return True
