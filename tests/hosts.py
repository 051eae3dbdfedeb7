"""Two hosts on this machine: network namespaces that a pair of devices joins, each with a name and files of its own."""

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
    """This user may not make such hosts, or what makes them is not installed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """One of two."""

    name: str
    address: str
    folder: Path
    """Its own files, as they are seen from outside; it sees nothing of the other's."""
    enter: Sequence[str]
    """What begins a command that is to run there, in its own folder."""


def root(*words: str) -> str:
    """Run an administrator's command."""
    environment = {**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
    return subprocess.run(words, capture_output=True, text=True, check=True, env=environment).stdout


@contextlib.contextmanager
def connected() -> Iterator[tuple[str, str]]:
    """Two network namespaces with a loopback each, joined by a pair of devices of one name; raises NotPermittedError."""
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
    """The same with names and files of their own, below a folder that is theirs; raises NotPermittedError."""
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
    """Every process of one of `two_hosts`, as when it loses its power."""
    while pids := root("ip", "netns", "pids", host.name).split():
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        time.sleep(0.05)


def two_folders(folder: Path) -> tuple[Host, Host]:
    """In the place of hosts, where these are not permitted."""
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
