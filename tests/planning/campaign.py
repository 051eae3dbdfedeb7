"""One random case of each planner campaign, checked and measured: the tests run a few cases, a benchmark thousands."""

from argosy.planning import POLICIES, WITH_KNOWN_EPOCHS, make_plan
from argosy.planning.balanced import Balanced
from argosy.planning.choice import simulate_best
from argosy.planning.outcomes import Charges, Workload
from argosy.planning.policy import Moving, Situation
from argosy.planning.simulate import simulate
from planning.cases import Case
from planning.checker import check_plan

CHARGES = Charges(moving=Moving(rebalance_seconds=2.0, bytes_per_second=1e9))
SAMPLES = 20_000


def check_first_plan(case: Case) -> None:
    """Assert that the first plan passes the independent checker, and that the planner returns it again when asked again."""
    plan = make_plan(case.profiles, case.devices)
    paces = check_plan(plan.to_json(), case.profiles, case.devices)
    assert paces == [flotilla.samples_per_second for flotilla in plan.flotillas]
    assert make_plan(case.profiles, case.devices) == plan


def against_solo(case: Case, *, epochs_known: bool) -> float:
    """Return the makespan of ``balanced``, moves included, divided by that of ``solo``."""
    workload = Workload(
        profiles=case.profiles, epochs=case.epochs, samples_per_epoch=SAMPLES, epochs_known=epochs_known
    )
    solo = simulate(POLICIES["solo"], workload, case.devices, charges=CHARGES)
    if epochs_known:
        balanced = simulate_best(WITH_KNOWN_EPOCHS, workload, case.devices, charges=CHARGES)
    else:
        balanced = simulate(POLICIES["balanced"], workload, case.devices, charges=CHARGES)
    return balanced.makespan_seconds / solo.makespan_seconds if solo.makespan_seconds else 1.0


def optimality_gap(case: Case) -> float | None:
    """Return the best pace divided by that of ``balanced`` with even shares; None if memory does not hold all members at once."""
    situation = Situation(waiting=case.profiles, free=case.devices, devices=case.devices)
    heuristic = Balanced(even_shares=True).launch(situation)
    if len(heuristic) > 1 or len(heuristic[0].members) < len(case.profiles):
        return None
    (best,) = POLICIES["exact"].launch(situation)
    return best.samples_per_second / heuristic[0].samples_per_second
