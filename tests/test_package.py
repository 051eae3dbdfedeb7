"""Tests that the built wheel runs the README's study, writes its page and an ensemble, and exports models that load without Argosy."""

import itertools
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import argosy
from argosy.running.doctor.machine import EXTRAS, WANTED_VERSIONS
from argosy.tracking import TRACKERS

ROOT = Path(__file__).parents[1]
BUILT_FROM = ("argosy", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in", "CHANGELOG.md", "CITATION.cff")
STUDY = re.findall(r"```python\n# study\.py\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)[0]
ENSEMBLE = """
import torch, argosy, study
report = argosy.load("runs/digits", study=study.study)
said = {"inputs": study.x[:7], "member": report.best().load()(study.x[:7]), "ensemble": report.ensemble(top=3)(study.x[:7])}
torch.save({name: tensor.detach() for name, tensor in said.items()}, "said.pt")
print(argosy.__file__)
"""
NETWORK = "torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))"
"""The code of the README's network mlp-128."""
WEIGHTS = f"""
from safetensors.torch import load_model
network = {NETWORK}
load_model(network, folder + "/model.safetensors")
found = network.eval()(said["inputs"])
"""
LOADED = {
    "safetensors": WEIGHTS,
    "hub": WEIGHTS,
    "torch-export": 'found = torch.export.load(folder + "/model.pt2").module()(said["inputs"])',
    "onnx": """
import onnxruntime
session = onnxruntime.InferenceSession(folder + "/model.onnx")
found = torch.from_numpy(session.run(None, {"inputs": said["inputs"].numpy()})[0])
""",
}
"""Code that loads an export and sets `found` to its outputs, by format."""
NEEDED = {"torch-export": "torch", "onnx": "onnxscript"}
"""The package that writes a format; safetensors for the others."""
EXPORT = """
import sys
from argosy.cli import app
for words in sys.argv[1:]:
    app.app(["export", "runs/digits", *words.split()], standalone_mode=False)
"""
ALONE = """
import sys
sys.modules["argosy"] = None  # to import it is an error
import torch
said = torch.load("said.pt", weights_only=True)
"""
CLOSE = """
torch.testing.assert_close(found, said[what], rtol=0, atol=1e-5)
"""


def run(folder: Path, *words: str | Path) -> str:
    """Run a command without this checkout on its path, assert that it succeeds, and return its output."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    found = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


@pytest.fixture(scope="module")
def bin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel into a new environment with the dependencies of the present one; returns its folder of programs."""
    source, place = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("venv")
    for name in BUILT_FROM:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)  # copied, because setuptools writes into the folder of the sources
    pip = sys.executable, "-m", "pip"
    build = "wheel", "--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir", "dist", "."
    run(source, *pip, *build)
    venv.create(place, with_pip=False, symlinks=True)
    (wheel,) = (source / "dist").glob("argosy-*.whl")
    run(source, *pip, "--python", place / "bin" / "python", "install", "--quiet", "--no-index", "--no-deps", wheel)
    (packages,) = place.glob("lib/python*/site-packages")
    (packages / "theirs.pth").write_text(sysconfig.get_path("purelib"))
    return place / "bin"


@pytest.fixture(scope="module")
def trained(bin: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the README's study in an empty folder and return the folder."""
    folder = tmp_path_factory.mktemp("empty")
    (folder / "study.py").write_text(STUDY)
    said = run(folder, bin / "argosy", "run", "study.py", "--dir", "runs/digits", "--devices", "cpu:1")
    assert "Best: mlp-128" in said
    return folder


def test_the_page_and_the_ensemble_are_made_of_the_wheel_and_exports_load_where_argosy_cannot_be_imported(
    bin: Path, trained: Path
) -> None:
    run(trained, bin / "argosy", "report", "runs/digits", "--html")
    assert "mlp-128" in (trained / "runs" / "digits" / "report.html").read_text()
    assert run(trained, bin / "python", "-c", ENSEMBLE).strip().startswith(str(bin.parent))
    exports, loads = [], ALONE
    for format, load in LOADED.items():
        if find_spec(NEEDED.get(format, "safetensors")) is None:
            continue
        whats = {"member": "mlp-128"} if load == WEIGHTS else {"member": "mlp-128", "ensemble": "--top 3"}
        for what, words in whats.items():
            folder = f"{format}-{what}"
            exports.append(f"{words} --format {format} --to {folder}")
            loads += f"folder, what = {folder!r}, {what!r}\n{load}{CLOSE}"
    run(trained, bin / "python", "-c", EXPORT, *exports)
    run(trained, bin / "python", "-c", loads)


def test_messages_and_pages_name_extras_that_there_are() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    files = *(ROOT / "argosy").rglob("*.py"), *(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md")
    named = {name for file in files for name in re.findall(r"argosy\[(\w+)\]", file.read_text())}
    assert "export" in named
    assert {*named, *TRACKERS, *EXTRAS.values()} <= extras.keys()


TOO_OLD = {
    "numpy": "1.26.4",  # no lib.array_utils
    "typer": "0.18.0",  # no Literal: every command raised
    "optuna": "4.9.0",  # QMCSampler draws at random until a trial has ended
    "scikit-learn": "1.5.2",  # no validate_data
    "wandb": "0.19.9",  # no reinit="create_new"
}
"""Latest versions that lack something that argosy uses."""


def test_packages_that_lack_something_are_not_admitted() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = [*project["dependencies"], *itertools.chain.from_iterable(project["optional-dependencies"].values())]
    wanted = [Requirement(text) for text in texts]
    assert TOO_OLD.keys() <= {one.name for one in wanted}
    assert [str(one) for one in wanted if one.name in TOO_OLD and TOO_OLD[one.name] in one.specifier] == []


def test_the_citation_is_of_this_version() -> None:
    assert f"\nversion: {argosy.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_doctor_wants_the_versions_that_the_package_requires() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = {one.name: str(one.specifier) for one in map(Requirement, project["dependencies"])}
    wanted = {name: f">={version}" for name, version in WANTED_VERSIONS.items()}
    assert wanted == {"python": project["requires-python"], "torch": required["torch"], "numpy": required["numpy"]}
