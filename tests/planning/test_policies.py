"""Tests every policy alike: its plans are valid and deterministic, and a simulated run comes to its end."""

import pytest

from argosy.errors import PlanError
from argosy.planning import POLICIES, make_plan
from argosy.planning.outcomes import Charges, Workload
from argosy.planning.policy import Moving
from argosy.planning.rounds import Rounds
from argosy.planning.simulate import simulate
from planning.cases import GB, devices, profile
from planning.checker import check_plan

MEMBERS = tuple(
    profile(f"m{number}", *(rate * m * (0.9 if m > 1 else 1) for m in range(1, 5)), splittable=number % 2 == 0)
    for number, rate in enumerate((80.0, 60.0, 45.0, 30.0, 25.0, 20.0))
)
EPOCHS = {f"m{number}": epochs for number, epochs in enumerate((3, 1, 4, 1, 5, 0))}
CHARGES = Charges(moving=Moving(rebalance_seconds=1.0, bytes_per_second=1e9))


@pytest.mark.parametrize("policy", POLICIES)
def test_the_first_plan_is_valid_and_the_same_when_asked_again(policy: str) -> None:
    plan = make_plan(MEMBERS, devices(4), policy=policy)
    assert plan.flotillas
    check_plan(plan.to_json(), MEMBERS, devices(4))
    assert make_plan(MEMBERS, devices(4), policy=policy) == plan


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("count", [1, 4])
def test_every_member_gets_its_epochs(policy: str, count: int) -> None:
    workload = Workload(profiles=MEMBERS, epochs=EPOCHS, samples_per_epoch=1000)
    run = simulate(POLICIES[policy], workload, devices(count), charges=CHARGES)
    assert set(run.finished_seconds) == {member for member, epochs in EPOCHS.items() if epochs}
    assert run.makespan_seconds == max(run.finished_seconds.values()) >= run.bound_seconds * (1 - 1e-9)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_member_that_no_device_holds_is_refused(policy: str) -> None:
    with pytest.raises(PlanError, match="largest device"):
        make_plan([profile("huge", 1.0, memory_bytes=20 * GB)], devices(2), policy=policy)


@pytest.mark.parametrize("policy", POLICIES)
def test_nothing_to_do_is_an_empty_plan(policy: str) -> None:
    assert make_plan([], devices(2), policy=policy).flotillas == ()


def test_rounds_draw_by_seed_and_remaining_members() -> None:
    workload = Workload(profiles=MEMBERS, epochs=EPOCHS, samples_per_epoch=1000)
    seconds = {simulate(Rounds(seed=seed), workload, devices(2)).makespan_seconds for seed in range(8)}
    assert len(seconds) > 1
    again = [simulate(Rounds(seed=3), workload, devices(2)).makespan_seconds for _ in range(2)]
    assert again[0] == again[1]


def test_exact_refuses_what_it_would_take_hours_for() -> None:
    members = [profile(f"m{number}", 10.0) for number in range(7)]
    with pytest.raises(PlanError, match="balanced"):
        make_plan(members, devices(4), policy="exact")


def test_exact_finds_the_optimum_of_a_case_worked_by_hand() -> None:
    # Work 3, 3, 2, 2, 2 on two devices: 6 and 6. Largest-first list scheduling finds 7 and 5.
    members = [profile(name, 1 / work) for name, work in zip("abcde", (3.0, 3.0, 2.0, 2.0, 2.0), strict=True)]
    (flotilla,) = make_plan(members, devices(2), policy="exact").flotillas
    assert flotilla.samples_per_second == pytest.approx(1 / 6)


def test_exact_says_when_memory_is_what_is_missing() -> None:
    members = [profile(name, 1.0, memory_bytes=10 * GB) for name in "abc"]
    with pytest.raises(PlanError, match="memory at once"):
        make_plan(members, devices(2), policy="exact")
