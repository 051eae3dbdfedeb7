"""Certificates of jobs, as people make them."""

import shutil
import subprocess
from pathlib import Path

import pytest


def make(path: Path) -> Path:
    """A private key with its certificate, in a file; skips the test where openssl is not there."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed here")
    words = "req -x509 -nodes -newkey ec -pkeyopt ec_paramgen_curve:P-256 -days 365 -subj /CN=argosy"
    subprocess.run(["openssl", *words.split(), "-keyout", path, "-out", path], check=True, capture_output=True)
    return path


def make_chains(folder: Path) -> tuple[Path, Path]:
    """Two private keys whose certificates one authority has signed, each in a file with the authority's certificate."""
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
