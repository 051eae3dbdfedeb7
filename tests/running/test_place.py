"""Tests that a process finds its rank and job whichever launcher started it, and that stray variables do not mislead it."""

import warnings

import pytest

from argosy.errors import PlanError
from argosy.running.hosts.place import JobPlace, choose_job_place, find_job_place, seconds_left

SLURM = {
    "SLURM_JOB_ID": "4711",
    "SLURM_JOB_NUM_NODES": "3",
    "SLURM_NTASKS": "3",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "2",
}
TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29400",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "0",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_NODE_RANK": "1",
    "PMIX_RANK": "3",
    "PMIX_NAMESPACE": "prterun-host-17@1",
}
STARTED = {
    "srun": (SLURM, JobPlace(launcher="srun", rank=2, size=3, local_rank=0, nodes=3, job="4711.0")),
    "srun, requeued": (
        SLURM | {"SLURM_RESTART_COUNT": "2"},
        JobPlace(launcher="srun", rank=2, size=3, local_rank=0, nodes=3, job="4711.0.2"),
    ),
    "srun --mpi=pmix": (
        SLURM | {"PMIX_RANK": "2", "PMIX_NAMESPACE": "slurm.pmix.4711.0"},
        JobPlace(launcher="srun", rank=2, size=3, local_rank=0, nodes=3, job="4711.0"),
    ),
    "srun --mpi=pmi2": (
        SLURM | {"PMI_RANK": "2", "PMI_SIZE": "3"},
        JobPlace(launcher="srun", rank=2, size=3, local_rank=0, nodes=3, job="4711.0"),
    ),
    "torchrun": (
        TORCHRUN,
        JobPlace(
            launcher="torchrun",
            rank=5,
            size=8,
            local_rank=1,
            nodes=2,
            job="none.10.0.0.1.29400",
            store=("10.0.0.1", 29400),
        ),
    ),
    "srun torchrun": (
        SLURM | TORCHRUN,
        JobPlace(
            launcher="torchrun",
            rank=5,
            size=8,
            local_rank=1,
            nodes=2,
            job="none.10.0.0.1.29400",
            store=("10.0.0.1", 29400),
        ),
    ),
    "mpirun": (
        OPEN_MPI,
        JobPlace(launcher="mpirun", rank=3, size=4, local_rank=1, nodes=2, job="prterun-host-17@1"),
    ),
    "mpirun in an allocation of Slurm": (
        SLURM | OPEN_MPI,
        JobPlace(launcher="mpirun", rank=3, size=4, local_rank=1, nodes=2, job="prterun-host-17@1"),
    ),
    "jsrun": (
        {
            "JSM_NAMESPACE_RANK": "1",
            "JSM_NAMESPACE_SIZE": "2",
            "JSM_NAMESPACE_LOCAL_RANK": "0",
            "JSM_NAMESPACE_LOCAL_SIZE": "1",
            "LSB_JOBID": "99",
        },
        JobPlace(launcher="jsrun", rank=1, size=2, local_rank=0, nodes=2, job="99"),
    ),
    "mpiexec of PALS": (
        {
            "PALS_RANKID": "6",
            "PALS_LOCAL_RANKID": "2",
            "PALS_APID": "a1b2",
            "PMI_RANK": "6",
            "PMI_SIZE": "8",
            "PMI_LOCAL_RANK": "2",
            "PMI_LOCAL_SIZE": "4",
        },
        JobPlace(launcher="mpiexec", rank=6, size=8, local_rank=2, nodes=2, job="a1b2"),
    ),
    "mpiexec of MPICH": (
        {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"},
        JobPlace(launcher="mpiexec", rank=1, size=2, local_rank=0, nodes=2, job=""),
    ),
    "mpirun_rsh of MVAPICH": (
        {
            "MV2_COMM_WORLD_RANK": "2",
            "MV2_COMM_WORLD_SIZE": "4",
            "MV2_COMM_WORLD_LOCAL_RANK": "0",
            "MV2_COMM_WORLD_LOCAL_SIZE": "2",
        },
        JobPlace(launcher="mpirun_rsh", rank=2, size=4, local_rank=0, nodes=2, job=""),
    ),
    "flux run in an allocation of Slurm": (
        SLURM
        | {
            "FLUX_TASK_RANK": "1",
            "FLUX_JOB_SIZE": "2",
            "FLUX_TASK_LOCAL_ID": "0",
            "FLUX_JOB_NNODES": "2",
            "FLUX_JOB_ID": "f23BM",
            "PMI_RANK": "1",
            "PMI_SIZE": "2",
        },
        JobPlace(launcher="flux", rank=1, size=2, local_rank=0, nodes=2, job="f23BM"),
    ),
    "srun with Cray's PMI": (
        {"PMI_RANK": "1", "PMI_SIZE": "4", "PMI_LOCAL_RANK": "1", "PMI_LOCAL_SIZE": "2"},
        JobPlace(launcher="mpiexec", rank=1, size=4, local_rank=1, nodes=2, job=""),
    ),
}
ALONE = {
    "nobody": {},
    "the script of a batch job": {
        name: value for name, value in SLURM.items() if not name.startswith("SLURM_STEP") and name != "SLURM_PROCID"
    }
    | {"SLURM_PROCID": "0"},
    "a step of one task": SLURM | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_NUM_NODES": "1", "SLURM_PROCID": "0"},
    "torchrun with one process": TORCHRUN
    | {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "GROUP_WORLD_SIZE": "1"},
    "a rank that somebody exported": {"RANK": "0", "WORLD_SIZE": "2"},
}


@pytest.mark.parametrize("how", STARTED)
def test_every_launcher_says_where_a_process_stands(how: str) -> None:
    environment, place = STARTED[how]
    assert find_job_place(environment) == place
    assert choose_job_place("auto", environment) == choose_job_place("agents", environment) == place
    assert choose_job_place("processes", environment) is None


@pytest.mark.parametrize("how", ALONE)
def test_a_process_that_was_not_started_beside_others_is_alone(how: str) -> None:
    assert find_job_place(ALONE[how]) is None
    with pytest.raises(PlanError, match="launcher agents needs a job of several processes"):
        choose_job_place("agents", ALONE[how])


@pytest.mark.parametrize("how", ALONE)
def test_a_batch_script_that_uses_one_of_several_nodes_is_warned(how: str) -> None:
    several = ALONE[how] | {"SLURM_JOB_NUM_NODES": "4"}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert choose_job_place("auto", several) is None
        assert choose_job_place("processes", several) is None
        assert choose_job_place("auto", several | {"SLURM_JOB_NUM_NODES": "1"}) is None
    said = [str(one.message) for one in caught]
    assert len(said) == (how != "a step of one task")
    assert not said or said[0].startswith(
        "this Slurm job has 4 nodes, but the run uses only one of them. Start it with srun"
    )


def test_nodes_that_torchrun_restarted_are_of_one_job_however_often_each_has_failed() -> None:
    first, second = (find_job_place(TORCHRUN | {"TORCHELASTIC_RESTART_COUNT": count}) for count in "01")
    assert first == second


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(PlanError, match=r"srun reports SLURM_PROCID='two', which is not a number"):
        find_job_place(SLURM | {"SLURM_PROCID": "two"})
    with pytest.raises(PlanError, match="mpirun started 5 processes, 2 of them on this node"):
        find_job_place(OPEN_MPI | {"OMPI_COMM_WORLD_SIZE": "5"})
    with pytest.raises(PlanError, match="srun reports rank 3 of 3"):
        find_job_place(SLURM | {"SLURM_PROCID": "3"})


def test_the_end_of_a_job_of_slurm_leaves_time_to_save() -> None:
    assert seconds_left({"SLURM_JOB_END_TIME": "1000"}, now=640.5) == 299.5
    assert seconds_left({"SLURM_JOB_END_TIME": "1000"}, now=990.0) == 0.0
    assert seconds_left({"SLURM_JOB_END_TIME": "1000"}, now=1001.0) is None  # left over from a job that has ended
    assert seconds_left({"SLURM_JOB_END_TIME": "Unknown"}, now=0.0) is None
    assert seconds_left({}, now=0.0) is None
