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
