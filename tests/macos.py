"""A stand-in for macOS: takes from this process what CPython's documentation says that macOS lacks, and hides Linux's files of the kernel."""

import ctypes
import errno
import fcntl
import mmap
import os
import resource
import select
import signal
import socket
import sys
import sysconfig
import tempfile
from typing import Any

import psutil
import torch  # noqa: F401  # before the platform is another one, which has other libraries

__all__ = ["play"]

LACKING = {
    os: "memfd_create MFD_* sched_getaffinity sched_setaffinity O_PATH O_TMPFILE O_DIRECT O_NOATIME fdatasync posix_fadvise "
    "POSIX_FADV_* posix_fallocate pidfd_open waitid WNOWAIT WEXITED eventfd EFD_* splice copy_file_range getxattr setxattr "
    "listxattr pipe2 getresuid setresuid unshare setns getrandom",
    socket: "MSG_CMSG_CLOEXEC TCP_USER_TIMEOUT TCP_QUICKACK SO_PEERCRED SO_BINDTODEVICE AF_NETLINK AF_PACKET SOCK_CLOEXEC SOCK_NONBLOCK",
    select: "epoll EPOLL*",
    signal: "SIGPWR SIGSTKFLT SIGPOLL SIGRTMIN SIGRTMAX sigtimedwait sigwaitinfo pidfd_send_signal",
    fcntl: "F_OFD_* F_ADD_SEALS F_GET_SEALS F_SEAL_* F_SETPIPE_SZ F_NOTIFY",
    mmap: "MAP_POPULATE MADV_DONTFORK MADV_DOFORK MADV_HUGEPAGE MADV_NOHUGEPAGE MADV_REMOVE",
    resource: "prlimit RUSAGE_THREAD",
    psutil.Process: "cpu_affinity io_counters ionice rlimit cpu_num",
}
SYMBOLS = ("prctl", "syncfs", "mallopt", "malloc_trim")
"""Functions of the C library on Linux alone."""
HIDDEN = ("/proc", "/sys")
LIBRARIES = ("psutil", "torch", "multiprocessing")
"""Packages that are another build there, and may still read these files here."""


def play() -> None:
    """Make this process look like one on macOS, for good."""
    sysconfig.get_config_vars()  # which has a file of the platform's name
    tempfile._O_TMPFILE_WORKS = False  # type: ignore[attr-defined]
    for owner, words in LACKING.items():
        for name in [name for word in words.split() for name in vars(owner) if _matches(name, word)]:
            delattr(owner, name)
    symbol = ctypes.CDLL.__getattr__

    def found(library: ctypes.CDLL, name: str) -> Any:
        if name in SYMBOLS:
            raise AttributeError(f"dlsym(RTLD_DEFAULT, {name}): symbol not found")
        return symbol(library, name)

    ctypes.CDLL.__getattr__ = found  # type: ignore[method-assign]
    sys.addaudithook(
        lambda event, given: _refuse_hidden(given[0]) if event in ("open", "os.listdir", "os.scandir") else None
    )
    for name in ("stat", "lstat", "readlink"):
        setattr(os, name, _refusing(getattr(os, name)))
    sys.platform = "darwin"


def _matches(name: str, word: str) -> bool:
    return name.startswith(word[:-1]) if word.endswith("*") else name == word


def _refusing(call: Any) -> Any:
    def called(path: Any, *given: Any, **named: Any) -> Any:
        _refuse_hidden(path)
        return call(path, *given, **named)

    return called


def _refuse_hidden(path: Any) -> None:
    text = "" if path is None or isinstance(path, int) else os.fsdecode(path)
    frame = sys._getframe(2) if text.startswith(HIDDEN) else None
    if frame is None:
        return
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith(LIBRARIES):
            return
        frame = frame.f_back
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), text)
