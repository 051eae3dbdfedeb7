"""Certificates for jobs, made with openssl as users make them."""

import shutil
import subprocess
from pathlib import Path

import pytest


def make(path: Path, *more: str) -> Path:
    """Write a private key and its certificate into one file and return it; `more` are words for openssl. Skips the test without openssl."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed here")
    words = "req -x509 -nodes -newkey ec -pkeyopt ec_paramgen_curve:P-256 -days 365 -subj /CN=argosy"
    subprocess.run(["openssl", *words.split(), *more, "-keyout", path, "-out", path], check=True, capture_output=True)
    return path


def make_chains(folder: Path) -> tuple[Path, Path]:
    """Write two files, each with a private key, its certificate and that of the common authority; returns their paths."""
    authority, request, leaf = make(folder / "authority.pem"), folder / "request.pem", folder / "leaf.pem"
    found = []
    for name in ("first", "second"):
        path = folder / f"{name}.pem"
        words = f"req -new -nodes -newkey ec -pkeyopt ec_paramgen_curve:P-256 -subj /CN={name} -keyout {path} -out {request}"
        subprocess.run(["openssl", *words.split()], check=True, capture_output=True)
        words = f"x509 -req -in {request} -CA {authority} -CAkey {authority} -set_serial 0x{len(name)} -days 365 -out {leaf}"
        subprocess.run(["openssl", *words.split()], check=True, capture_output=True)
        _, begin, its = authority.read_text().partition("-----BEGIN CERTIFICATE-----")
        path.write_text(path.read_text() + leaf.read_text() + begin + its)
        found.append(path)
    return found[0], found[1]
