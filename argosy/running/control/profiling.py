"""A run that only measures: what the members of a job cost, and preparation."""

from argosy.cluster import Cluster
from argosy.errors import PlanError
from argosy.errors.wording import last_line
from argosy.results.fold import RunState
from argosy.running.control.costs import Costs
from argosy.running.control.driver import Driver
from argosy.running.directory.journal import Journal
from argosy.running.launch.launcher import Job, Workers
from argosy.running.watch.view import Silent

__all__ = ["measure"]


def measure(
    job: Job, cluster: Cluster, workers: Workers, journal: Journal, *, node_devices: int | None = None
) -> Costs:
    """What the members of a job cost, on twins that are thrown away; with `node_devices` as FLEET measures.

    Raises PlanError where a member fails: a plan of the others would look like one of the study.
    """
    driver = Driver(job, cluster, workers, journal, RunState(), Silent(), node_devices=node_devices, only_measure=True)
    with workers:
        try:
            driver.run()
        finally:
            driver.stop_workers()
    member_table, measuring = driver.member_table, driver.measuring
    ended = [
        driver.state.member(one.name) for one in member_table.study.members if one.name not in member_table.waiting
    ]
    if ended:
        reasons = ", ".join(f"{member.name!r} ({last_line(member.reason)})" for member in ended)
        raise PlanError(
            f"{len(ended)} of {len(member_table.study.members)} members could not be measured: {reasons}. Mend what they raised, or leave "
            "them out of the study."
        )
    return Costs(
        profiles=tuple(measuring.profiles(member_table.waiting, member_table.study)),
        notes=measuring.notes,
        lengths=dict(driver.lengths),
        preparation_seconds_per_sample=driver.data.seconds_per_sample if driver.data else 0.0,
    )
