"""The state that the parts of a driver share: the inputs of a run, and what is known about it.

A `Run` itself decides nothing, journals nothing and sends nothing.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from argosy.cluster import Cluster
from argosy.planning.policy import NamedPolicy
from argosy.protocol.feeder import Opened
from argosy.results.fold import RunState
from argosy.running.control.choices import Choices
from argosy.running.control.cost_table import CostTable
from argosy.running.control.costs import work_digest
from argosy.running.control.ensemble_judge import EnsembleJudge
from argosy.running.control.legs import Legs
from argosy.running.control.members import Members
from argosy.running.control.planner import Planner
from argosy.running.control.positions import Positions
from argosy.running.control.tolerance import Tolerance
from argosy.running.control.verdicts import Bringer, Judge, StoppingRules
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
    """Shared state of one run of the driver."""

    def __init__(
        self,
        job: Job,
        cluster: Cluster,
        workers: Workers,
        journal: Journal,
        state: RunState,
        view: View,
        cost_table: CostTable,
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
        self.ensemble_judge: EnsembleJudge | None = (
            None if rule is None else EnsembleJudge(job.study, rule, job.directory)
        )
        """The judge that follows the ensemble; None if the study has none."""
        self.judges: tuple[Judge, ...] = (
            StoppingRules(),
            *judges,
            *([] if self.ensemble_judge is None else [self.ensemble_judge]),
        )
        self.bringers = bringers
        self.packs = packs
        """A policy that replaces the one of the settings."""
        self.began: float = time.monotonic()
        self.cpu_before: float = tree_cpu_seconds()
        self.phase = Phase.OPENING
        self.pause_reason: str | None = None
        """Why the run is being paused; None if it is not."""
        self.begun = False
        """Whether the directory was found to be empty or to belong to this study."""
        self.lengths: Mapping[str, int] = {}
        """Number of samples of each split."""
        self.data: Opened | None = None
        """The first feeder's description of its data; those of other nodes must be equal."""
        self.positions: Positions = Positions(job, state, self.judges)
        self.members: Members = Members(self.positions)
        self.legs: Legs = Legs()
        self.pool: WorkerPool = WorkerPool(workers, cluster, state.shards)
        self.cost_table = cost_table
        self.choices: Choices = Choices.of(self.settings, cluster, state, self._work_of)
        self.planner: Planner = Planner.of(cluster, self.settings, self.choices.wrap_policy, packs)
        self.identity: Identity = Identity(job.directory, state.members, job.process_state, of_search=bool(bringers))
        self.metrics: Metrics = Metrics(job.directory)
        self.tolerance: Tolerance = Tolerance(job.directory / "workers", of_search=bool(bringers))
        self.commands: dict[str, Mapping[str, Any]] = {}
        """Unanswered commands of the user, by file name."""
        self.wants_plan = False
        """Whether members wait or devices are free since the policy was last asked."""
        self.costs_settled = False
        """Whether costs of a member have become known, or are no longer needed, since this was last checked."""

    def close(self) -> None:
        """Close the file of the members' outputs."""
        if self.ensemble_judge is not None:
            self.ensemble_judge.close()

    @property
    def study(self) -> Study:
        """The study, including added members."""
        return self.positions.job.study

    @property
    def per_epoch(self) -> int:
        """Number of sections per epoch."""
        return self.study.validations_per_epoch

    def _work_of(self, member: str) -> str:
        return work_digest(self.study.member(member), self.cost_table.measured[member])

    def study_properties(self) -> dict[str, Any]:
        """Return the properties of the study that are only known once data are open and networks are built."""
        assert self.data is not None
        fingerprints, shapes = self.data.fingerprints, self.cost_table.shapes
        return {"lengths": self.lengths, "fingerprints": fingerprints, "shapes": shapes}

    def write_study(self) -> None:
        """Write ``study.json``; raises RunError if the directory belongs to another study."""
        self.identity.write(self.study, **self.study_properties())


class DriverPart:
    """Base class of the parts of a driver: the run, and those of its fields that most parts use."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.state: RunState = run.state
        self.members: Members = run.members
        self.positions: Positions = run.positions
        self.legs: Legs = run.legs
        self.pool: WorkerPool = run.pool
        self.cost_table: CostTable = run.cost_table
        self.planner: Planner = run.planner
