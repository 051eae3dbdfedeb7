"""Runs the planner on thousands of random cases: plans must be valid, deterministic, close to the optimum, and never far behind ``solo``.

python benchmarks/planner_random.py [--cases 2000] [--small 200] [--json]
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from claims import Target, report
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from planning.campaign import against_solo, check_first_plan, optimality_gap
from planning.cases import Case, large_cases, small_case


def ratios_of(cases: int, strategy: SearchStrategy[Case], measure: Callable[[Case], float]) -> list[float]:
    """Check the plan of every case, and return its measure."""
    ratios: list[float] = []

    @seed(0)
    @settings(
        max_examples=cases,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def check(case: Case) -> None:
        check_first_plan(case)
        ratios.append(measure(case))

    check()
    return sorted(ratios)


def distribution(ratios: Sequence[float]) -> dict[str, float]:
    """Return quantiles of sorted ratios."""
    at = {"min": 0.0, "10 %": 0.1, "median": 0.5, "90 %": 0.9, "99 %": 0.99, "max": 1.0}
    return {name: round(ratios[int(part * (len(ratios) - 1))], 4) for name, part in at.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the three campaigns and print their distributions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=2000, help="large cases, half of them with known epochs")
    parser.add_argument("--small", type=int, default=200, help="small cases, solved exactly")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    options = parser.parse_args(arguments)
    gaps = sorted(gap for number in range(options.small) if (gap := optimality_gap(small_case(number))) is not None)
    known = ratios_of(
        options.cases // 2, large_cases(efficiency=0.95), lambda case: against_solo(case, epochs_known=True)
    )
    unknown = ratios_of(
        options.cases - options.cases // 2, large_cases(), lambda case: against_solo(case, epochs_known=False)
    )
    figures = {
        f"exact over balanced, {len(gaps)} small cases": {**distribution(gaps), "mean": sum(gaps) / len(gaps)},
        f"balanced over solo, {len(known)} cases, epochs known, split at 0.95": distribution(known),
        f"balanced over solo, {len(unknown)} cases, otherwise": distribution(unknown),
    }
    for name, figure in figures.items():
        print(f"{name}: {figure}")
    targets = [
        Target.at_most("exact over balanced, mean", sum(gaps) / len(gaps), 1.1),
        Target.at_most("exact over balanced, worst", gaps[-1], 1.25),
        Target.at_most("balanced over solo with known epochs, worst", known[-1], 1.0 + 1e-9),
        Target.at_most("balanced over solo otherwise, worst", unknown[-1], 2.0),
    ]
    return report("planner_random", figures, targets, as_json=options.json)


if __name__ == "__main__":
    raise SystemExit(main())
