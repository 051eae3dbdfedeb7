"""The best pace of one flotilla by mixed-integer programming, to measure how far ``balanced`` is from the optimum."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from argosy.cluster import Device
from argosy.errors import PlanError
from argosy.errors.optional import optional
from argosy.planning.memory import check_memory_fit
from argosy.planning.policy import Situation
from argosy.planning.rebalancing import keeps_unless_it_pays
from argosy.plans import Flotilla, Placement
from argosy.profiles import Profile

__all__ = ["Exact"]

Choices = Mapping[tuple[int, int, int], Any]
"""By (member, size of its group, device): a binary variable, 1 if the member has a group of that size that includes the device."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Exact:
    """Optimal packs and even splits under the cost model of ``balanced``, for small cases only; needs the extra ``exact``."""

    most_members: int = 6
    most_devices: int = 4

    def launch(self, situation: Situation) -> tuple[Flotilla, ...]:
        """Return one flotilla of all waiting members with the highest possible pace."""
        members, devices = situation.waiting, situation.free
        if not members or not devices:
            return ()
        check_memory_fit(members, devices)
        if len(members) > self.most_members or len(devices) > self.most_devices:
            raise PlanError(
                f"policy 'exact' solves at most {self.most_members} members on {self.most_devices} devices; found "
                f"{len(members)} on {len(devices)}. Use policy 'balanced'."
            )
        groups = _solve(members, devices)
        placements = (
            Placement.even(profile, (devices[position].name for position in group))
            for profile, group in zip(members, groups, strict=True)
        )
        return (Flotilla(placements=tuple(placements)),)

    def keeps(self, situation: Situation, started: Flotilla, live: tuple[Profile, ...]) -> bool:
        """Return False when another plan for the live members is worth its moves, or when others wait for their turn."""
        return keeps_unless_it_pays(self.launch, situation, started, live)


def _solve(members: Sequence[Profile], devices: Sequence[Device]) -> list[list[int]]:
    """Return the positions of each member's devices that minimise the largest load within the devices' memory.

    Σ_m size[i,m] = 1;  Σ_d choice[i,m,d] = m · size[i,m];  Σ_i,m choice[i,m,d] / r_i(m) ≤ T;  memory of d;  min T.
    """
    model = _model()
    longest = model.addVariable(lb=0.0)
    choices: dict[tuple[int, int, int], Any] = {}
    for number, profile in enumerate(members):
        sizes = range(1, profile.largest_group(len(devices)) + 1)
        is_size = {size: model.addBinary() for size in sizes}
        for size, position in product(sizes, range(len(devices))):
            choices[number, size, position] = model.addBinary()
        model.addConstr(sum(is_size.values()) == 1)
        for size in sizes:
            group = sum(choices[number, size, position] for position in range(len(devices)))
            model.addConstr(group == size * is_size[size])
    for position, device in enumerate(devices):
        _limit_device(model, position, device, members, choices, longest)
    model.minimize(longest)
    status = model.modelStatusToString(model.getModelStatus())
    if status != "Optimal":
        raise PlanError(
            f"policy 'exact' found no plan ({status}): the members need more memory at once than the devices have. Use "
            "policy 'balanced'."
        )
    chosen = [key for key, variable in choices.items() if model.val(variable) > 0.5]
    return [[position for number, _, position in chosen if number == member] for member in range(len(members))]


def _limit_device(
    model: Any, position: int, device: Device, members: Sequence[Profile], choices: Choices, longest: Any
) -> None:
    """Limit the work of the device to ``longest``, and its pack to its memory."""
    here = [(members[number], size, variable) for (number, size, at), variable in choices.items() if at == position]
    model.addConstr(sum(variable / profile.rate(size) for profile, size, variable in here) <= longest)
    # In GiB, so that all coefficients have a similar magnitude.
    gib = 2.0**30
    activation = model.addVariable(lb=0.0)
    for profile, _, variable in here:
        model.addConstr(activation >= profile.activation_bytes / gib * variable)
    resident = sum(profile.resident_bytes / gib * variable for profile, _, variable in here)
    model.addConstr(resident + activation <= device.memory_bytes / gib)


def _model() -> Any:
    with optional(PlanError, "policy 'exact' needs the solver HiGHS", "'argosy[exact]'"):
        import highspy
    model: Any = highspy.Highs()  # type: ignore[no-untyped-call]
    model.setOptionValue("output_flag", False)
    model.setOptionValue("threads", 1)
    model.setOptionValue("mip_rel_gap", 1e-6)
    return model
