"""Runs that only measure: the costs of a job's members and of preparation, and the first plan."""

import contextlib

from argosy.cluster import Cluster
from argosy.errors import PlanError
from argosy.errors.wording import cause_of
from argosy.plans import Plan
from argosy.results.fold import RunState
from argosy.running.control.cost_table import CostTable
from argosy.running.control.costs import ASSUMED_LINK, Costs, ObservedRates
from argosy.running.control.driver import Driver
from argosy.running.control.run import Run
from argosy.running.directory.journal import Journal
from argosy.running.launch.launcher import Job, Workers
from argosy.running.watch.view import Silent

__all__ = ["first_plan", "measure"]


def measure(
    job: Job, cluster: Cluster, workers: Workers, journal: Journal, *, node_devices: int | None = None
) -> Costs:
    """Measure the costs of a job's members on copies that are discarded; with `node_devices`, as FLEET does.

    Raises PlanError if a member fails, because a plan of the others would look like a plan of the study.
    """
    kind, observed = cluster.devices[0].kind, ObservedRates(exact=job.settings.numerics == "exact")
    cost_table = CostTable(device_kind=kind, node_devices=node_devices, link=ASSUMED_LINK, observed=observed)
    run = _measured(job, cluster, workers, journal, cost_table).run
    return Costs(
        profiles=tuple(cost_table.profiles(run.members.waiting, run.study)),
        lengths=dict(run.lengths),
        preparation_seconds_per_sample=run.data.seconds_per_sample if run.data else 0.0,
    )


def first_plan(job: Job, cluster: Cluster, workers: Workers, journal: Journal) -> Plan:
    """Measure, and return the plan with which a run of the job would start; raises PlanError like `measure`."""
    cost_table = CostTable.of(job.settings, cluster, side_by_side=workers.side_by_side)
    return _measured(job, cluster, workers, journal, cost_table).starts.plan()


def _measured(job: Job, cluster: Cluster, workers: Workers, journal: Journal, cost_table: CostTable) -> Driver:
    """Return a driver that has measured all members of a job and started none."""
    run = Run(job, cluster, workers, journal, RunState(), Silent(), cost_table)
    driver = Driver(run, only_measure=True)
    with contextlib.closing(run), workers:
        try:
            driver.drive()
        finally:
            driver.stop_workers()
    waiting = run.members.waiting
    ended = [run.state.member(member.name) for member in run.study.members if member.name not in waiting]
    if ended:
        reasons = ", ".join(f"{member.name!r} ({cause_of(member.reason)})" for member in ended)
        raise PlanError(
            f"{len(ended)} of {len(run.study.members)} members could not be measured: {reasons}. Fix these "
            "errors, or remove the members from the study."
        )
    return driver
