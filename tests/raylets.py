"""A Ray cluster of several raylets on this machine, in its own process, which reads commands from standard input.

``add`` starts a raylet with one CPU. ``kill 2`` kills the second raylet that was started, as if its node had failed. At the end of input
the whole cluster ends. The first line of output is the cluster's address and the process's id; each command gets an answer. The head
cannot be killed, because Ray would end with it; it may have CPUs. The process is detached, so it is no child of the tests' process: several
tests can share a cluster although no test may leave a child behind.
"""

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

TRIES = 3
"""Attempts to start a raylet: Ray gives up on one after half a minute, which may be too short on a busy machine."""
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_enable_worker_prestart": "0", "RAY_prestart_worker_first_driver": "0"}
"""No reports of usage, and no workers started in advance."""
AS_OTHERS = {"RAY_worker_niceness": "0"}
"""Ray's default would give agents, and the processes that they start, a lower priority than everything else on the machine."""


class Raylets:
    """Starts the process of the cluster and sends it commands."""

    def __init__(self, count: int, *, head_cpus: int = 0) -> None:
        self.process = subprocess.Popen(
            ["setsid", "--fork", sys.executable, "-W", "ignore", str(Path(__file__)), str(count), str(head_cpus)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | QUIET | AS_OTHERS,
        )
        self.process.wait()
        self.address, pid = self._answer().split()
        self.cluster = psutil.Process(int(pid))

    def tell(self, words: str) -> str:
        """Send a command and return its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{words}\n")
        self.process.stdin.flush()
        return self._answer()

    def processes(self) -> list[psutil.Process]:
        """Return all processes of the cluster, including agents and their workers."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return self.cluster.children(recursive=True)
        return []

    def close(self) -> None:
        """End the cluster, and kill whatever is left after 30 s."""
        assert self.process.stdin is not None and self.process.stdout is not None
        below = [*self.processes(), self.cluster]
        self.process.stdin.close()
        with contextlib.suppress(psutil.TimeoutExpired):
            self.cluster.wait(30)
        self.process.stdout.close()
        for process in below:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def _answer(self) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("raylets: "):
                return line.removeprefix("raylets: ").strip()
        raise AssertionError("the cluster has ended")


def main(count: int, head_cpus: int) -> None:
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": head_cpus, "include_dashboard": False})
    nodes = [_added(cluster) for _ in range(count)]
    print("raylets:", cluster.address, os.getpid(), flush=True)
    for line in sys.stdin:
        match line.split():
            case ["add"]:
                nodes.append(_added(cluster))
            case ["kill", number]:
                cluster.remove_node(nodes[int(number) - 1], allow_graceful=False)
        print("raylets: done", flush=True)
    for node in (*cluster.worker_nodes, cluster.head_node):
        node.kill_all_processes(check_alive=False, allow_graceful=False)
    os._exit(0)  # a normal exit would let Ray ask all processes to end again


def _added(cluster: Any) -> Any:
    for _ in range(TRIES - 1):
        with contextlib.suppress(Exception):  # Ray has no exception class of its own for this
            return cluster.add_node(num_cpus=1)
    return cluster.add_node(num_cpus=1)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
