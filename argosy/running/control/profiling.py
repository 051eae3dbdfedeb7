"""A run that only measures: what the members of a job cost, and preparation."""

from argosy.cluster import Cluster
from argosy.errors import PlanError
from argosy.errors.wording import last_line
from argosy.results.fold import RunState
from argosy.running.control.costs import ASSUMED_LINK, Costs
from argosy.running.control.driver import Driver
from argosy.running.control.measuring import Measuring
from argosy.running.control.run import Run
from argosy.running.control.verdicts import Rules
from argosy.running.directory.journal import Journal
from argosy.running.launch.launcher import Job, Workers
from argosy.running.watch.view import Silent

__all__ = ["measure"]


def measure(
    job: Job, cluster: Cluster, workers: Workers, journal: Journal, *, node_devices: int | None = None
) -> Costs:
    """What the members of a job cost, on copies that are thrown away; with `node_devices` as FLEET measures.

    Raises PlanError where a member fails: a plan of the others would look like one of the study.
    """
    kind, exact = cluster.devices[0].kind, job.settings.numerics == "exact"
    measuring = Measuring(device_kind=kind, node_devices=node_devices, link=ASSUMED_LINK, exact=exact)
    run = Run(job, cluster, workers, journal, RunState(), Silent(), measuring, judges=(Rules(),))
    driver = Driver(run, only_measure=True)
    with workers:
        try:
            driver.drive()
        finally:
            driver.stop_workers()
    waiting = run.members.waiting
    ended = [run.state.member(member.name) for member in run.study.members if member.name not in waiting]
    if ended:
        reasons = ", ".join(f"{member.name!r} ({last_line(member.reason)})" for member in ended)
        raise PlanError(
            f"{len(ended)} of {len(run.study.members)} members could not be measured: {reasons}. Mend what they raised, or leave "
            "them out of the study."
        )
    return Costs(
        profiles=tuple(measuring.profiles(waiting, run.study)),
        notes=measuring.notes,
        lengths=dict(run.lengths),
        preparation_seconds_per_sample=run.data.seconds_per_sample if run.data else 0.0,
    )
