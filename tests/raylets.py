"""A Ray cluster of several raylets on this machine, in a process of its own, which does what it is told by lines.

``add`` starts a raylet with one CPU, ``kill 2`` kills the raylet that was the second to be started as when its node fails, and all
are gone when the process has nothing more to read. The first line that it says is the cluster's address and its own number; it
answers each word. The head, with which Ray itself would end, is none of those that can be killed; it has a CPU where that is wanted.
The process is nobody's child, so that a cluster may serve several tests, each of which leaves none behind.
"""

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

TRIES = 3
"""A raylet that is not there after half a minute has failed, as Ray has it: a busy machine may need another one."""
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_enable_worker_prestart": "0", "RAY_prestart_worker_first_driver": "0"}
"""No workers that nobody asked for."""
AS_OTHERS = {"RAY_worker_niceness": "0"}
"""Else whatever else the machine does comes before the agents and all that they start."""


class Raylets:
    """The starting end."""

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
        """Say a line; returns the answer to it."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{words}\n")
        self.process.stdin.flush()
        return self._answer()

    def processes(self) -> list[psutil.Process]:
        """All that the cluster has started, agents and their workers among them."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return self.cluster.children(recursive=True)
        return []

    def close(self) -> None:
        """Let it end, and see to it that nothing is left."""
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
    os._exit(0)  # Ray would ask all of them once more to end


def _added(cluster: Any) -> Any:
    for _ in range(TRIES - 1):
        with contextlib.suppress(Exception):  # Ray raises nothing of its own here
            return cluster.add_node(num_cpus=1)
    return cluster.add_node(num_cpus=1)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
