"""Recomputes everything that a plan claims from its JSON, without the code that made the plan."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from argosy.cluster import Device
from argosy.profiles import Profile


def check_plan(plan: Mapping[str, Any], profiles: Iterable[Profile], devices: Iterable[Device]) -> list[float]:
    """Raise AssertionError unless the plan is right; return the pace of every flotilla."""
    costs = {p.member: p.to_json() for p in profiles}
    memory = {d.name: d.memory_bytes for d in devices}
    started = [p["member"] for f in plan["flotillas"] for p in f["placements"]]
    assert sorted([*started, *plan["waiting"]]) == sorted(costs), "every member starts once or waits"
    used = [name for f in plan["flotillas"] for name in {d for p in f["placements"] for d in p["devices"]}]
    assert len(used) == len(set(used)), "flotillas run on disjoint devices"
    assert set(used) <= set(memory), "all devices exist"
    return [_check_flotilla(flotilla, costs, memory) for flotilla in plan["flotillas"]]


def _check_flotilla(flotilla: Mapping[str, Any], costs: Mapping[str, Any], memory: Mapping[str, int]) -> float:
    load: dict[str, float] = {}
    packs: dict[str, list[str]] = {}
    for placement in flotilla["placements"]:
        cost, group = costs[placement["member"]], placement["devices"]
        shares = placement["shares"] or [1 / len(group)] * len(group)
        assert len(set(group)) == len(group) == len(shares)
        assert math.isclose(sum(shares), 1.0, abs_tol=1e-6) and min(shares) > 0
        assert len(group) == 1 or cost["splittable"], "only splittable members are split"
        claimed = placement["device_seconds"] or [placement["seconds_per_sample"]] * len(group)
        for name, share, seconds in zip(group, shares, claimed, strict=True):
            assert math.isclose(seconds, expected_seconds(cost, len(group), share), rel_tol=1e-6)
            load[name] = load.get(name, 0.0) + seconds
            packs.setdefault(name, []).append(placement["member"])
    for name, pack in packs.items():
        resident = sum(costs[m]["memory_bytes"] - costs[m]["activation_bytes"] for m in pack)
        assert resident + max(costs[m]["activation_bytes"] for m in pack) <= memory[name], "the pack fits in memory"
    return 1 / max(load.values())


def expected_seconds(cost: Mapping[str, Any], devices: int, share: float) -> float:
    """Return the seconds per sample that one shard works, from the measured rates."""
    rates = list(cost["samples_per_second"])
    if devices == 1:
        return 1 / rates[0]
    groups = range(2, len(rates) + 1)
    if len(groups) < 2:
        proportional = min(m / rate for m, rate in enumerate(rates, start=1))
    else:
        slope = np.polyfit([1 / m for m in groups], [1 / rates[m - 1] for m in groups], 1)[0]
        ceiling = min(m / rates[m - 1] for m in groups)
        proportional = min(max(slope, 0.01 * ceiling), ceiling)
    overhead = max(0.0, 1 / _rate(cost, devices) - proportional / devices)
    return overhead + share * proportional


def _rate(cost: Mapping[str, Any], devices: int) -> float:
    """Return the measured rate, or FLEET's Equation 5 beyond the measured ones."""
    rates = cost["samples_per_second"]
    if devices <= len(rates):
        return rates[devices - 1]
    anchor = min(2 * cost["node_devices"], len(rates))
    at, before = rates[anchor - 1], rates[anchor - 2]
    return devices * at / anchor * min(1.0, at / before * (anchor - 1) / anchor) ** (devices - anchor)
