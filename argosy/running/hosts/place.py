"""The place of a process in a job of ``srun``, ``mpirun``, ``torchrun`` or the like, read from environment variables.

Launchers differ only in the names of the variables, so there is one table. The first row whose variables are all set
counts: a launcher that starts the process itself (``torchrun`` in a Slurm job, ``mpirun`` in its allocation) is above
the one that provides the machines.
"""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace

from argosy.errors import PlanError
from argosy.errors.warned import warn_caller

__all__ = ["JobPlace", "choose_job_place", "find_job_place", "seconds_left"]

RESERVE_SECONDS = 60.0
"""Seconds of a job's time that are reserved for saving."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobPlace:
    """The place of one process in its job. Rank 0 drives; the first process of every other node is its agent."""

    launcher: str
    """The program that started it."""
    rank: int
    size: int
    local_rank: int
    """Rank among the processes of its node."""
    nodes: int
    job: str
    """Name that distinguishes this job from others, if its launcher provides one."""
    store: tuple[str, int] | None = None
    """Host and port of torch's store, which ``torchrun`` keeps."""

    def __post_init__(self) -> None:
        if not (0 <= self.rank < self.size and 0 <= self.local_rank <= self.rank and 1 <= self.nodes <= self.size):
            raise PlanError(
                f"{self.launcher} reports rank {self.rank} of {self.size}, local rank {self.local_rank}, "
                f"{self.nodes} nodes, which is impossible. Start one process on each node, and do not change the "
                "launcher's variables."
            )


@dataclass(frozen=True, slots=True)
class _LauncherVariables:
    """One launcher's names of these variables."""

    launcher: str
    rank: str
    size: str
    local_rank: str
    _: KW_ONLY
    local_size: str = ""
    nodes: str = ""
    job: tuple[str, ...] = ()


TORCHRUN_JOB = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")
"""Variables that together name a job. ``TORCHELASTIC_RESTART_COUNT`` is left out: each node counts its own failures."""
SLURM_JOB = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
SRUN = _LauncherVariables(
    "srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", nodes="SLURM_STEP_NUM_NODES", job=SLURM_JOB
)
TABLE = (
    _LauncherVariables("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", nodes="GROUP_WORLD_SIZE", job=TORCHRUN_JOB),
    # Open MPI
    _LauncherVariables(
        *("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
        local_size="OMPI_COMM_WORLD_LOCAL_SIZE",
        job=("PMIX_NAMESPACE",),
    ),
    _LauncherVariables(
        *("jsrun", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK"),
        local_size="JSM_NAMESPACE_LOCAL_SIZE",
        job=("LSB_JOBID",),
    ),
    # HPE's PALS
    _LauncherVariables(
        "mpiexec", "PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_RANKID", local_size="PMI_LOCAL_SIZE", job=("PALS_APID",)
    ),
    # Hydra, of MPICH and Intel MPI
    _LauncherVariables("mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", local_size="MPI_LOCALNRANKS"),
    # mpirun_rsh of MVAPICH
    _LauncherVariables(
        *("mpirun_rsh", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK"),
        local_size="MV2_COMM_WORLD_LOCAL_SIZE",
    ),
    _LauncherVariables(
        *("flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID"),
        nodes="FLUX_JOB_NNODES",
        job=("FLUX_JOB_ID",),
    ),
    # Cray's PMI
    _LauncherVariables("mpiexec", "PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK", local_size="PMI_LOCAL_SIZE"),
    replace(SRUN, rank="PMIX_RANK"),  # if Slurm starts processes through PMIx
    SRUN,
)


def find_job_place(environment: Mapping[str, str]) -> JobPlace | None:
    """Return the place of this process; None if no launcher started it beside others.

    Raises PlanError for variables that contradict each other.

    >>> find_job_place({"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "0", "SLURM_STEP_NUM_NODES": "4"}).rank
    3
    """
    names = next((names for names in TABLE if _has_all(names, environment)), None)
    if names is None:
        return None
    size = _number(names, names.size, environment)
    if size == 1:
        return None
    store = None
    if names.launcher == "torchrun" and "MASTER_ADDR" in environment:
        store = environment["MASTER_ADDR"], _number(names, "MASTER_PORT", environment)
    return JobPlace(
        launcher=names.launcher,
        rank=_number(names, names.rank, environment),
        size=size,
        local_rank=_number(names, names.local_rank, environment),
        nodes=_nodes(names, size, environment),
        job=".".join(environment[name] for name in names.job if name in environment),
        store=store,
    )


def choose_job_place(launcher: str, environment: Mapping[str, str]) -> JobPlace | None:
    """Return `find_job_place` if the launcher of that name uses it; raises PlanError for ``agents`` outside a job.

    Warns if the script of a batch job uses only one of the job's nodes.
    """
    place = find_job_place(environment) if launcher in ("auto", "agents") else None
    nodes = environment.get("SLURM_JOB_NUM_NODES", "")
    if (
        launcher == "auto"
        and place is None
        and not _has_all(SRUN, environment)
        and nodes.isdecimal()
        and int(nodes) > 1
    ):
        warn_caller(
            f"this Slurm job has {nodes} nodes, but the run uses only one of them. Start it with srun argosy run "
            "study.py to use all, or ask Slurm for one node."
        )
    if place is None and launcher == "agents":
        raise PlanError(
            "launcher agents needs a job of several processes, but no variable of srun, mpirun or torchrun shows "
            "that this is one. Start it with a launcher, for example srun argosy run study.py, or use --launcher "
            "processes."
        )
    return place


def seconds_left(environment: Mapping[str, str], now: float) -> float | None:
    """Return the seconds until Slurm ends the job, less the reserve for saving; None if unknown. `now` is Unix time.

    An end that has passed is ignored: it is that of an earlier job, for example of one in which a tmux was started, or of a job
    that was given more time.
    """
    end = environment.get("SLURM_JOB_END_TIME", "")
    return max(int(end) - now - RESERVE_SECONDS, 0.0) if end.isdecimal() and int(end) > now else None


def _has_all(names: _LauncherVariables, environment: Mapping[str, str]) -> bool:
    wanted = (names.rank, names.size, names.local_rank, names.nodes or names.local_size)
    return all(name in environment for name in wanted)


def _nodes(names: _LauncherVariables, size: int, environment: Mapping[str, str]) -> int:
    if names.nodes:
        return _number(names, names.nodes, environment)
    each = _number(names, names.local_size, environment)
    if each < 1 or size % each:
        raise PlanError(
            f"{names.launcher} started {size} processes, {each} of them on this node, so the nodes have different "
            "numbers of processes. Start one process on each node."
        )
    return size // each


def _number(names: _LauncherVariables, name: str, environment: Mapping[str, str]) -> int:
    text = environment.get(name, "")
    if not text.isdecimal():
        raise PlanError(
            f"{names.launcher} reports {name}={text!r}, which is not a number. Unset it, or start with --launcher "
            "processes."
        )
    return int(text)
