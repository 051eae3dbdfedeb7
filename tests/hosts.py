"""Two hosts on this machine: network namespaces joined by a pair of virtual devices, each with its own host name and files."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Host", "NotPermittedError", "connected", "kill", "root", "two_folders", "two_hosts"]

ENTER = """set -e
mount --make-rprivate /
hostname {name}
mount --bind {folder}/hosts /etc/hosts
mount --bind {folder}/{number} {folder}/own
mount -t tmpfs none {folder}/0
mount -t tmpfs none {folder}/1
cd {folder}/own
exec "$@"
"""


class NotPermittedError(Exception):
    """This user may not create such hosts, or a program for it is not installed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """One of the two hosts."""

    name: str
    address: str
    folder: Path
    """The folder of its files, as seen from outside; it does not see the other host's."""
    enter: Sequence[str]
    """The words before a command that runs it on this host, in its folder."""


def root(*words: str) -> str:
    """Run a command of an administrator and return its output."""
    environment = {**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
    return subprocess.run(words, capture_output=True, text=True, check=True, env=environment).stdout


@contextlib.contextmanager
def connected() -> Iterator[tuple[str, str]]:
    """Create two network namespaces, each with a loopback, joined by a pair of devices of the same name; raises NotPermittedError."""
    pair = (f"argosy-{os.getpid()}-a", f"argosy-{os.getpid()}-b")
    made: list[str] = []
    try:
        try:
            _connect(pair, made)
        except FileNotFoundError as error:
            raise NotPermittedError(f"iproute2 is not installed here: {error}") from error
        except subprocess.CalledProcessError as error:
            raise NotPermittedError(f"{' '.join(error.cmd)} is not permitted here: {error.stderr.strip()}") from error
        yield pair
    finally:
        for host in made:
            root("ip", "netns", "delete", host)


def _connect(pair: tuple[str, str], made: list[str]) -> None:
    for host in pair:
        root("ip", "netns", "add", host)
        made.append(host)
    root("ip", "link", "add", "veth0", "netns", pair[0], "type", "veth", "peer", "name", "veth0", "netns", pair[1])
    for number, host in enumerate(pair, start=1):
        root("ip", "-n", host, "link", "set", "lo", "up")
        root("ip", "-n", host, "address", "add", f"10.77.0.{number}/24", "dev", "veth0")
        root("ip", "-n", host, "link", "set", "veth0", "up")


@contextlib.contextmanager
def two_hosts(folder: Path) -> Iterator[tuple[Host, Host]]:
    """Create two hosts: namespaces as in `connected` with their own names and files; raises NotPermittedError."""
    with connected() as pair:
        for name in ("0", "1", "own"):
            (folder / name).mkdir(exist_ok=True)
        (folder / "hosts").write_text(f"127.0.0.1 localhost\n10.77.0.1 {pair[0]}\n10.77.0.2 {pair[1]}\n")
        hosts = [_host(name, number, folder) for number, name in enumerate(pair)]
        try:
            for host in hosts:
                root(*host.enter, "true")
        except subprocess.CalledProcessError as error:
            raise NotPermittedError(f"mounts are not permitted here: {error.stderr.strip()}") from error
        yield hosts[0], hosts[1]


def kill(host: Host) -> None:
    """Kill every process of one of `two_hosts`, as if it had lost power."""
    while pids := root("ip", "netns", "pids", host.name).split():
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        time.sleep(0.05)


def two_folders(folder: Path) -> tuple[Host, Host]:
    """Return two folders of this machine as hosts, for users who may not create real ones."""
    return _folder(folder / "0"), _folder(folder / "1")


def _folder(folder: Path) -> Host:
    folder.mkdir(exist_ok=True)
    return Host(name="localhost", address="127.0.0.1", folder=folder, enter=["env", f"--chdir={folder}"])


def _host(name: str, number: int, folder: Path) -> Host:
    script = ENTER.format(name=name, number=number, folder=folder)
    return Host(
        name=name,
        address=f"10.77.0.{number + 1}",
        folder=folder / str(number),
        enter=["ip", "netns", "exec", name, "unshare", "--mount", "--uts", "sh", "-c", script, "sh"],
    )
