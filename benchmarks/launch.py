"""Measures how soon each launcher reaches the first step, the messages that a driver sustains, and how soon it answers a thousand devices.

* ``start``: seconds from the command to the first step of a training, by launcher: ``inline``, ``processes``,
  ``agents`` (two nodes, as ``srun`` would start them here), and ``ray`` if it is installed, with Ray's own start apart.
* ``conversation``: a real driver with real connections to a thousand workers that only talk (`fake_host.py`), many in
  each process: messages per second from the end of the first epoch to the end of the last. For each epoch a member
  sends ``--words`` progress messages and one report with its figures and its file; reports are journaled.
* ``planning``: the same driver with 1,024 workers in its own process that take no time (`fake_workers.py`): its CPU
  seconds from the end of an epoch until all workers have been answered and may continue. Cases: nothing changes; a
  tenth of the members end and the policy is asked; a node is lost and all members are planned anew. Members cost as
  much as FLEET's hundred networks.

With ``--beside PATH``, another checkout with this benchmark, the two are measured in turn, and the ratios of the rounds
count.
"""

import importlib.util
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fake_host import Hosts
from fake_workers import MEMORY_BYTES, Alone, study_of
from measuring import arguments, finish, hardware, quartiles, target
from start import FEW, STUDY

import argosy
from argosy.cluster import Cluster, Device
from argosy.protocol.events import SectionEnded
from argosy.protocol.trainer import Progress
from argosy.results.fold import RunState
from argosy.running.control.driver import drive
from argosy.running.directory.journal import Journal
from argosy.running.directory.lock import Lock
from argosy.running.launch.blobs import make_blobs
from argosy.running.launch.discovery import make_node
from argosy.running.launch.launcher import Job
from argosy.running.launch.processes import ProcessWorkers
from argosy.running.watch.view import Silent
from argosy.settings import Settings

START_LIMIT = 8.0
"""Seconds, from DESIGN's table; a job of two nodes on one machine starts everything twice."""
RATE = 5000.0
ANSWERED, REPLANNED = 2.0, 10.0
WITHIN = 0.05
"""The share by which one checkout may be slower than the other."""
RAY_STARTS = "import time, ray; began = time.perf_counter(); ray.init(); print(time.perf_counter() - began)"
RAY = all(map(importlib.util.find_spec, ("ray", "argosy.running.hosts.ray_cluster")))


# ---- start


def seconds_to_start(launcher: str) -> float:
    """Return the seconds from the first command to the first member's first step."""
    jobs: list[dict[str, str]] = [{}]
    if launcher == "agents":
        places = ({"SLURM_PROCID": str(rank), "SLURM_LOCALID": "0"} for rank in range(2))
        job = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "2", "SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0"}
        jobs = [{**job, **place} for place in places]
    with tempfile.TemporaryDirectory(prefix="argosy-launch-") as folder:
        (Path(folder) / "study.py").write_text(STUDY.format(count=FEW))
        command = [sys.executable, "-m", "argosy", "run", "study.py", "--dir", "run", "--launcher", launcher, "--json"]
        # Equally many devices for every launcher.
        command += ["--devices", "cpu:1" if launcher == "agents" else "cpu:2"]
        began = time.time()
        started = [
            subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, env={**os.environ, **job}) for job in jobs
        ]
        codes = [process.wait() for process in started]
        if any(codes):
            raise RuntimeError(f"a run by launcher {launcher} failed.")
        journal = (Path(folder) / "run" / "journal.jsonl").read_text().splitlines()
    return min(line["at"] for line in map(json.loads, journal) if line["event"] == "MemberStarted") - began


def start(options: Any, figures: dict[str, Any], targets: list[dict[str, Any]]) -> None:
    """Measure every launcher, interleaved."""
    launchers = ["inline", "processes", "agents", *(["ray"] if RAY else [])]
    found: dict[str, list[float]] = {launcher: [] for launcher in launchers}
    for _ in range(options.rounds):
        for launcher in launchers:
            found[launcher].append(seconds_to_start(launcher))
    for launcher, seconds in found.items():
        targets.append(target(f"{launcher}: seconds to the first step", seconds, at_most=START_LIMIT))
    figures["seconds_to_first_step"] = found
    if RAY:
        told = subprocess.run([sys.executable, "-c", RAY_STARTS], check=True, capture_output=True, text=True).stdout
        figures["seconds_of_ray"] = float(told.splitlines()[-1])
        print(f"of which Ray's own start on this machine: {figures['seconds_of_ray']:.1f} s")
    else:
        print("ray: not installed")


# ---- a real driver and fake workers


@dataclass(kw_only=True, slots=True)
class Count(Silent):
    """A view that counts messages between the end of the first epoch and the end of the last."""

    began: tuple[float, float] = (0.0, 0.0)
    """Wall and CPU seconds of this process when the first epoch had ended."""
    ended: tuple[float, float] = (0.0, 0.0)
    reports: int = 0
    signs: int = 0
    """Progress messages."""

    def handle(self, worker: str, message: Any) -> None:
        """See `View.handle`: a view hears a report as the one event of its member's epoch."""
        if isinstance(message, SectionEnded):
            self.ended = time.perf_counter(), time.process_time()
            self.began = self.began if any(self.began) else self.ended
            self.reports += 1
        elif isinstance(message, Progress) and any(self.began):
            self.signs += 1


def cluster_of(nodes: int, devices: int) -> Cluster:
    """Return a made-up cluster of `nodes` nodes with `devices` devices each."""
    slots = [Device(name=f"cpu:{slot}", node="local", kind="cpu", memory_bytes=MEMORY_BYTES) for slot in range(devices)]
    return Cluster(nodes=tuple(make_node(f"node{number}", tuple(slots), devices) for number in range(nodes)))


def drive_fakes(study: argosy.Study, cluster: Cluster, directory: Path, workers_of: Any, *, view: Any) -> Any:
    """Run a study on fake workers and return them; raise AssertionError if a member is not done."""
    settings = Settings(nodes=len(cluster.nodes), sharing="local")
    with Lock(directory / "run.lock") as lock, Journal(directory / "journal.jsonl") as journal:
        job = Job(study=study, settings=settings, directory=directory, lock=lock.descriptor)
        state, workers = RunState.of([]), workers_of(job)
        drive(job, cluster, workers, journal, state, view)
    statuses = {state.member(member.name).status for member in study.members}
    assert statuses == {"done"}, statuses
    return workers


def conversation(options: Any, figures: dict[str, Any], targets: list[dict[str, Any]]) -> None:
    """Measure messages per second."""
    rates, costs = [], []
    cluster = cluster_of(options.hosts, options.workers // options.hosts)
    study = study_of(len(cluster.devices), argosy.MaxEpochs(options.epochs))
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory(prefix="argosy-launch-") as folder:

            def workers_of(job: Job) -> ProcessWorkers:
                hosts: Any = Hosts([node.name for node in cluster.nodes], options.words)
                return ProcessWorkers(hosts, make_blobs(job), directory=job.directory, lock=job.lock)

            view = Count()
            drive_fakes(study, cluster, Path(folder), workers_of, view=view)
        wall, cpu = (after - before for before, after in zip(view.began, view.ended, strict=True))
        messages = view.reports + view.signs
        rates.append(messages / wall)
        costs.append(1e6 * cpu / messages)
        print(
            f"{len(cluster.devices)} connections: {messages} messages, {view.reports} of them reports, in {wall:.1f} s, "
            f"{rates[-1]:.0f} a second; {costs[-1]:.0f} us CPU of the driver each",
            flush=True,
        )
    figures["conversation"] = {"per_second": rates, "driver_us_each": costs}
    what = f"messages per second of {len(cluster.devices)} workers"
    targets.append(target(what, rates, at_least=RATE))


def planning(options: Any, figures: dict[str, Any], targets: list[dict[str, Any]]) -> None:
    """Measure answers to a thousand devices."""
    cluster = cluster_of(options.nodes, options.devices // options.nodes)
    study = study_of(options.members, argosy.Plateau("train_loss", patience=1) | argosy.MaxEpochs(9))
    found: dict[str, list[float]] = {"nothing changes": [], "a tenth ends": [], "a node is lost": []}
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory(prefix="argosy-launch-") as folder:
            began = time.perf_counter()
            workers = drive_fakes(
                study, cluster, Path(folder), lambda job: Alone(cluster, job.directory, loses=7), view=Silent()
            )
            whole = time.perf_counter() - began
        for question in workers.answered:
            what = "a node is lost" if question.lost else "a tenth ends" if question.ends else "nothing changes"
            print(
                f"    epoch {question.section}: {what}; {question.changed_devices} devices get other members; {question.seconds:.2f} s"
            )
            found[what].append(question.seconds)
        print(f"{whole:.1f} s in all, {workers.driver_seconds:.1f} s of it the driver's", flush=True)
    figures["planning"] = found
    size = f"{options.members} members on {len(cluster.devices)} devices"
    for what, seconds in found.items():
        limit = ANSWERED if what == "nothing changes" else REPLANNED
        targets.append(target(f"{size}: seconds until all are answered where {what}", seconds, at_most=limit))


# ---- two checkouts


def measured(checkout: Path, options: Any) -> dict[str, float]:
    """Run one round of the parts with the code of a checkout; return every figure by its part and name, and CPU seconds in all."""
    command = [sys.executable, "launch.py", "--json", "--rounds", "1", "--parts", *options.parts]
    for name in ("workers", "hosts", "epochs", "words", "devices", "nodes", "members"):
        command += [f"--{name}", str(getattr(options, name))]
    where: dict[str, Any] = {"cwd": checkout / "benchmarks", "env": {**os.environ, "PYTHONPATH": str(checkout)}}
    before = cpu_of_children()
    told = subprocess.run(command, check=True, capture_output=True, text=True, **where).stdout
    used = cpu_of_children() - before
    parts = json.loads(told.splitlines()[-1])["figures"]
    named = {part: names for part, names in parts.items() if isinstance(names, dict)}
    found = {f"{part}, {name}": quartiles(each)[1] for part, names in named.items() for name, each in names.items()}
    return {**found, "CPU seconds": used}


def cpu_of_children() -> float:
    """Return the CPU time of all processes that were waited for, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def beside(options: Any, figures: dict[str, Any], targets: list[dict[str, Any]]) -> None:
    """Measure this checkout and the other, which comes first in every second round."""
    here, there = Path(__file__).parents[1], options.beside.resolve()
    rounds = []
    for number in range(options.rounds):
        turns = (here, there) if number % 2 else (there, here)
        found = {checkout: measured(checkout, options) for checkout in turns}
        rounds.append((found[here], found[there]))
        print(
            "; ".join(f"{what}: {one:.4g} and {found[there][what]:.4g}" for what, one in found[here].items()),
            flush=True,
        )
    for what in rounds[0][0]:
        limit = {"at_least": 1 - WITHIN} if what.endswith("per_second") else {"at_most": 1 + WITHIN}
        targets.append(target(f"{what}, here / there", [one[what] / other[what] for one, other in rounds], **limit))
    figures["beside"] = rounds


PARTS: Mapping[str, Any] = {"start": start, "conversation": conversation, "planning": planning}


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.set_defaults(rounds=3)
    parser.add_argument("--workers", type=int, default=1000, help="workers that talk at a time")
    parser.add_argument("--hosts", type=int, default=4, help="processes that hold the workers")
    parser.add_argument("--epochs", type=int, default=5, help="epochs of each of their members")
    parser.add_argument(
        "--words", type=int, default=20, help="progress messages in an epoch, as in a section of five seconds"
    )
    parser.add_argument("--devices", type=int, default=1024, help="devices to plan for")
    parser.add_argument("--nodes", type=int, default=64, help="nodes that hold these devices")
    parser.add_argument("--members", type=int, default=1000, help="members on these devices")
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=list(PARTS), help="only these parts")
    parser.add_argument("--beside", type=Path, help="another checkout, measured in turn with this one")
    options = parser.parse_args()
    print(hardware(), flush=True)
    figures: dict[str, Any] = {}
    targets: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="argosy-launch-cache-") as cache:
        os.environ["XDG_CACHE_HOME"] = cache  # no rates of earlier runs may be used
        for measure in [PARTS[part] for part in options.parts] if options.beside is None else [beside]:
            measure(options, figures, targets)
    finish("launch", figures, targets, as_json=options.json)


if __name__ == "__main__":
    main()
