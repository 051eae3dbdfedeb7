"""Tests the pipelines as values: which node prepares and receives which block, and which pipeline is chosen for which measurements."""

import math
from dataclasses import replace
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy.planning.pipeline import NEAR_BEST, Exchange, Needs, choose_pipeline
from argosy.stream.sharing import PIPELINES, Pipeline, Turn, candidates

MOST = 6
CASES = [(name, nodes, p) for name in PIPELINES for nodes in range(1, MOST + 1) for p in range(1, nodes + 1)]
every_pipeline = pytest.mark.parametrize(("name", "nodes", "preparing"), CASES)


def whole(pipeline: Pipeline, blocks: int) -> list[Turn]:
    """Return the turns of the first blocks, with all their hops."""
    return [pipeline.turns[number % len(pipeline.turns)] for number in range(blocks)]


@every_pipeline
def test_owners_take_turns_and_each_block_has_one(name: str, nodes: int, preparing: int) -> None:
    # In all-shared, every node prepares, whatever number is given.
    preparing = nodes if name == "all-shared" else preparing
    pipeline = PIPELINES[name](nodes, preparing)
    blocks = 3 * preparing + 1
    for rank in range(nodes):
        seen = list(islice(pipeline.seen_by(rank), blocks))
        assert [own for own, _ in seen] == [number % preparing == rank for number in range(blocks)]


@every_pipeline
def test_every_block_reaches_every_node_from_one_that_has_it(name: str, nodes: int, preparing: int) -> None:
    pipeline = PIPELINES[name](nodes, preparing)
    for turn in pipeline.turns:
        have = {turn.owner}
        for hop in turn.hops:
            group = pipeline.groups[hop.group]
            assert hop.root in have
            assert hop.root in group
            have.update(group)
        assert have == set(range(nodes))


@every_pipeline
def test_no_node_receives_a_block_twice(name: str, nodes: int, preparing: int) -> None:
    pipeline = PIPELINES[name](nodes, preparing)
    for turn in pipeline.turns:
        received = [rank for hop in turn.hops for rank in pipeline.groups[hop.group] if rank != hop.root]
        assert sorted(received) == sorted(set(range(nodes)) - {turn.owner})


@every_pipeline
def test_members_of_a_group_see_its_broadcasts_in_one_order(name: str, nodes: int, preparing: int) -> None:
    pipeline = PIPELINES[name](nodes, preparing)
    blocks = 3 * len(pipeline.turns) + 1
    for number, ranks in enumerate(pipeline.groups):
        expected = [
            (block, hop)
            for block, turn in enumerate(whole(pipeline, blocks))
            for hop in turn.hops
            if hop.group == number
        ]
        for rank in range(nodes):
            seen = [
                (block, hop)
                for block, (_, hops) in enumerate(islice(pipeline.seen_by(rank), blocks))
                for hop in hops
                if hop.group == number
            ]
            assert seen == (expected if rank in ranks else [])


@every_pipeline
def test_a_node_starts_the_broadcasts_of_a_group_from_one_place(name: str, nodes: int, preparing: int) -> None:
    """On a node, all broadcasts of a group follow the same earlier hops.

    An exchange process starts a block's first hop when its feeder says so, and each later hop when the hop before has ended. If
    a group's broadcasts were started sometimes by one and sometimes by the other, nothing would keep them in order.
    """
    pipeline = PIPELINES[name](nodes, preparing)
    for rank in range(nodes):
        for group in range(len(pipeline.groups)):
            ways = [tuple(hop.group for hop in hops) for _, hops in islice(pipeline.seen_by(rank), len(pipeline.turns))]
            before = {way[: way.index(group)] for way in ways if group in way}
            assert len(before) <= 1


@given(st.integers(2, 40))
def test_candidates_are_pipelines_of_so_many_nodes(nodes: int) -> None:
    found = candidates(nodes)
    assert len(set(found)) == len(found)
    assert {name for name, _ in found} <= set(PIPELINES)
    assert all(1 <= preparing <= nodes for _, preparing in found)
    assert ("all-shared", nodes) in found
    assert ("single-broadcast", 1) in found


# ---- the choice


def needs(**changed: float) -> Needs:
    """Return the needs of four nodes with eight cores, for samples of 50 kB that take 2 ms, with these changes."""
    usual = Needs(
        nodes=4,
        cores=8,
        preparation_seconds=2e-3,
        sample_bytes=50_000,
        demand_samples_per_second=20_000.0,
        training_cpu_seconds=0.0,
    )
    return replace(usual, **changed)


def exchanges(bytes_per_second: float, cpu_seconds_per_byte: float = 1e-10) -> list[Exchange]:
    """Return the measurements of a link that all pipelines use equally well."""
    return [
        Exchange(
            sharing=name,
            preparing=preparing,
            bytes_per_second=bytes_per_second,
            cpu_seconds_per_byte=cpu_seconds_per_byte,
        )
        for name, preparing in candidates(4)
    ]


def test_a_slow_link_makes_every_node_prepare_for_itself() -> None:
    choice = choose_pipeline(needs(), exchanges(25e6))
    assert (choice.sharing, choice.preparing) == ("local", 4)
    assert choice.samples_per_second == pytest.approx(8 / 2e-3)


def test_a_fast_link_and_expensive_preparation_are_shared() -> None:
    choice = choose_pipeline(needs(), exchanges(10e9))
    # 4 nodes · 8 cores / 2 ms: only all nodes together prepare as much.
    assert (choice.sharing, choice.preparing) == ("all-shared", 4)
    assert choice.samples_per_second == pytest.approx(4 * 8 / 2e-3)


def test_where_members_are_slow_the_pipeline_that_costs_least_is_taken() -> None:
    found = [replace(e, cpu_seconds_per_byte=1e-11) if e.preparing == 1 else e for e in exchanges(10e9)]
    choice = choose_pipeline(needs(demand_samples_per_second=100.0), found)
    assert (choice.sharing, choice.preparing, choice.samples_per_second) == ("single-broadcast", 1, 100.0)


def test_where_preparation_costs_less_than_an_exchange_nothing_is_exchanged() -> None:
    found = exchanges(10e9, cpu_seconds_per_byte=1e-9)
    # Preparing on every node costs 4 · 10 us; preparing once costs 10 us, and exchanging the bytes 50 us.
    choice = choose_pipeline(needs(preparation_seconds=1e-5, demand_samples_per_second=100.0), found)
    assert choice.sharing == "local"


def test_arrays_cost_nothing_to_prepare_and_stay_where_they_are() -> None:
    choice = choose_pipeline(needs(preparation_seconds=0.0), exchanges(10e9))
    assert (choice.sharing, choice.loader_workers) == ("local", 1)
    assert choice.samples_per_second == 20_000.0
    assert "at no cost" in choice.reason


def test_one_node_alone_shares_nothing() -> None:
    choice = choose_pipeline(needs(nodes=1), [])
    assert (choice.sharing, choice.preparing, choice.reason) == ("local", 1, "one node")


def test_loader_workers_are_as_many_as_the_rate_needs_with_some_to_spare() -> None:
    # 1000 samples/s · 2 ms need 2 cores; half as many are added.
    assert choose_pipeline(needs(nodes=1, demand_samples_per_second=1000.0), []).loader_workers == 3
    # Each of four nodes that share the stream needs a quarter of them.
    assert choose_pipeline(needs(demand_samples_per_second=1000.0), exchanges(10e9, 0.0)).loader_workers == 1
    # There are never more workers than cores.
    assert choose_pipeline(needs(nodes=1), []).loader_workers == 8
    # Beside trainers on the same cores, a worker gets only part of a core, so there is one worker for every core.
    beside = needs(nodes=1, demand_samples_per_second=1000.0, training_cpu_seconds=1e-3)
    assert choose_pipeline(beside, []).loader_workers == 8


def test_training_on_the_same_cores_is_counted() -> None:
    free, busy = (choose_pipeline(needs(nodes=1, training_cpu_seconds=s), []) for s in (0.0, 2e-3))
    assert busy.samples_per_second == pytest.approx(free.samples_per_second / 2)


def test_the_reason_names_what_was_measured() -> None:
    slow, fast = (choose_pipeline(needs(), exchanges(rate)).reason for rate in (25e6, 10e9))
    for reason in (slow, fast):
        assert "4 nodes of 8 cores prepare 500 samples/s a core" in reason
        assert "members could take 20,000 samples/s" in reason
        assert "samples of 50,000 bytes" in reason
        assert "local of 4 would feed 4,000" in reason
    # The link is named even if it was too slow to be used.
    assert "all-shared carries 25 MB/s" in slow
    assert "all-shared of 4 would feed 500 " in slow
    assert "all-shared carries 10,000 MB/s" in fast
    assert "all-shared of 4 would feed 16,000 " in fast


measured = st.builds(
    Exchange,
    sharing=st.sampled_from(sorted(PIPELINES)),
    preparing=st.integers(1, 4),
    bytes_per_second=st.floats(1e5, 1e11),
    cpu_seconds_per_byte=st.floats(0, 1e-8),
)
wanted = st.builds(
    needs,
    cores=st.integers(1, 64),
    preparation_seconds=st.one_of(st.just(0.0), st.floats(1e-7, 1.0)),
    sample_bytes=st.integers(0, 10**7),
    demand_samples_per_second=st.floats(1.0, 1e6),
    training_cpu_seconds=st.one_of(st.just(0.0), st.floats(1e-7, 1.0)),
)


def rate_of(needs: Needs, found: Exchange | None) -> float:
    """Return the rate that a pipeline would feed, computed independently: the least of what is prepared, carried and consumed."""
    part = 1.0 if found is None else 1 / found.preparing
    busy = part * needs.preparation_seconds + needs.training_cpu_seconds
    carried = math.inf if found is None or not needs.sample_bytes else found.bytes_per_second / needs.sample_bytes
    return min(needs.cores / busy if busy else math.inf, carried, needs.demand_samples_per_second)


@given(wanted, st.lists(measured, max_size=5))
def test_the_choice_is_about_the_fastest_and_possible(needs: Needs, found: list[Exchange]) -> None:
    choice = choose_pipeline(needs, found)
    rates = [rate_of(needs, one) for one in (None, *found)]
    assert NEAR_BEST * max(rates) <= choice.samples_per_second * (1 + 1e-9)
    assert any(choice.samples_per_second == pytest.approx(rate) for rate in rates)
    assert choice.sharing == "local" or (choice.sharing, choice.preparing) in {(e.sharing, e.preparing) for e in found}
    assert 1 <= choice.loader_workers <= needs.cores


@given(wanted, st.lists(measured, max_size=5))
def test_nothing_that_is_as_fast_costs_less(needs: Needs, found: list[Exchange]) -> None:
    choice = choose_pipeline(needs, found)

    def cost(one: Exchange | None) -> float:
        carried = 0.0 if one is None else one.cpu_seconds_per_byte * needs.sample_bytes
        return (needs.nodes if one is None else 1) * needs.preparation_seconds + carried

    mine = [e for e in found if (e.sharing, e.preparing) == (choice.sharing, choice.preparing)]
    paid = min(cost(one) for one in (mine or [None]))
    faster = [one for one in (None, *found) if rate_of(needs, one) >= choice.samples_per_second * (1 + 1e-9)]
    assert all(paid <= cost(one) * (1 + 1e-9) for one in faster)
