"""What the parts of a driver share: what a run was started with, and what it knows.

A `Run` decides nothing, journals nothing and sends nothing: the parts that take it do.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from argosy.cluster import Cluster
from argosy.planning import POLICIES
from argosy.planning.policy import NamedPolicy
from argosy.protocol.feeder import Opened
from argosy.results.fold import RunState
from argosy.running.control.choices import Choices
from argosy.running.control.costs import work_digest
from argosy.running.control.launching import Launching
from argosy.running.control.legs import Legs
from argosy.running.control.measuring import Measuring
from argosy.running.control.members import Members
from argosy.running.control.positions import Positions
from argosy.running.control.steering import Steering
from argosy.running.control.tolerance import Tolerance
from argosy.running.control.verdicts import Bringer, Judge, Rules, Verdict, judge
from argosy.running.control.worker_pool import WorkerPool
from argosy.running.directory.identity import Identity
from argosy.running.directory.journal import Journal
from argosy.running.directory.records import Metrics, tree_cpu_seconds
from argosy.running.launch.launcher import Job, Workers
from argosy.running.watch.phase import Phase
from argosy.running.watch.view import View
from argosy.settings import Settings
from argosy.study import Study

__all__ = ["DriverPart", "Run"]


class Run:
    """One run of a driver."""

    def __init__(
        self,
        job: Job,
        cluster: Cluster,
        workers: Workers,
        journal: Journal,
        state: RunState,
        view: View,
        measuring: Measuring,
        *,
        judges: Sequence[Judge] = (),
        bringers: Sequence[Bringer] = (),
        packs: NamedPolicy | None = None,
    ) -> None:
        self.directory: Path = job.directory
        self.settings: Settings = job.settings
        self.cluster = cluster
        self.journal = journal
        self.state = state
        """The fold of the journal."""
        self.view = view
        rule = job.study.ensemble
        self.steering: Steering | None = None if rule is None else Steering(job.study, rule, job.directory)
        """One of the judges, where the study has an ensemble."""
        self.judges: tuple[Judge, ...] = (Rules(), *judges, *([] if self.steering is None else [self.steering]))
        self.bringers = bringers
        self.packs = packs
        """A policy in the place of that of the settings."""
        self.began: float = time.monotonic()
        self.cpu_before: float = tree_cpu_seconds()
        self.phase = Phase.OPENING
        self.pausing: str | None = None
        """Why the run is being saved to end."""
        self.begun = False
        """Whether the directory was found to be this study's, or empty."""
        self.lengths: Mapping[str, int] = {}
        """Samples of each split."""
        self.data: Opened | None = None
        """What the first feeder said of its node's data; that of other nodes must be the same."""
        self.positions: Positions = Positions(job, state, self.judges)
        self.members: Members = Members(self.positions)
        self.legs: Legs = Legs()
        self.pool: WorkerPool = WorkerPool(workers, cluster, state.shards)
        self.measuring = measuring
        self.choices: Choices = Choices.of(self.settings, cluster, state, self._work_of)
        name = self.settings.policy
        # With one device there is one answer, and in exact numerics none shows in bits; packs of a search follow from what it proposes.
        shows = len(cluster.devices) > 1 and self.settings.numerics != "exact"
        repeating = self.choices.repeating if shows else lambda policy: policy
        self.launching: Launching = Launching(
            cluster=cluster,
            policy_name=packs.name if packs else name,
            policy=packs or repeating(POLICIES[name]),
            repeating=repeating,
        )
        self.identity: Identity = Identity(job.directory, state.members, job.process_state, of_search=bool(bringers))
        self.metrics: Metrics = Metrics(job.directory)
        self.tolerance: Tolerance = Tolerance(job.directory / "workers", of_search=bool(bringers))
        self.commands: dict[str, Mapping[str, Any]] = {}
        """Commands of people that are not answered yet, by the name of the file of each."""
        self.wants_plan = False
        """Whether members wait or devices are free that the policy has not been asked about."""
        self.costs_settled = False
        """Whether the costs of a member have become known, or are wanted no more, since that was last looked at."""

    def close(self) -> None:
        """Close the file of members' answers."""
        if self.steering is not None:
            self.steering.close()

    @property
    def study(self) -> Study:
        """With the members that were added."""
        return self.positions.study

    @property
    def per_epoch(self) -> int:
        """Sections of an epoch."""
        return self.positions.study.validations_per_epoch

    def _work_of(self, member: str) -> str:
        return work_digest(self.study.member(member), self.measuring.measured[member])

    def verdict(self, member: str) -> Verdict:
        """What the judges say of a member where its history ends."""
        return judge(self.judges, member, self.state, self.study)

    def known_of_study(self) -> dict[str, Any]:
        """What only open data and built networks tell of it."""
        assert self.data is not None
        fingerprints, shapes = self.data.fingerprints, self.measuring.shapes
        return {"lengths": self.lengths, "fingerprints": fingerprints, "shapes": shapes}

    def write_study(self) -> None:
        """Write ``study.json``; raises RunError where the directory holds another study's run."""
        self.identity.write(self.study, **self.known_of_study())


class DriverPart:
    """Base of the parts of a driver: its run, and what most parts use of it."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.state: RunState = run.state
        self.members: Members = run.members
        self.positions: Positions = run.positions
        self.legs: Legs = run.legs
        self.pool: WorkerPool = run.pool
        self.measuring: Measuring = run.measuring
        self.launching: Launching = run.launching
