"""Tests that each block of code in the docs runs, or that a comment before it says why not: ``<!-- not run: why -->``.

A block of Python that begins with a file name is run as a file by the tests of its page. All other Python blocks of a page run here, one
after another, with the names that a reader would have at that point. Blocks of commands are not run, but their options must exist. Printed
output and drawings are blocks of ``text``.
"""

import ast
import doctest
import re
import runpy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from site_pages import DOCS, ROOT
from torch import nn
from torch.optim import Adam, AdamW
from torch.utils.data import Dataset
from typer.testing import CliRunner

import argosy
from argosy import api
from argosy.cli.app import app

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<why>.+?) -->\n)?```(?P<language>\w*)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE
)
FILES = {"README.md", "docs/tutorial.md", "docs/how-to.md", "docs/coming-from", "docs/internals/adding.md"}
"""Pages, and a folder of pages, whose files are run by `test_first_hour`, `test_how_to`, `test_coming_from` and `test_adding`."""


@dataclass(frozen=True, kw_only=True)
class Code:
    """A block of a page."""

    page: str
    why_not: str | None
    language: str
    text: str

    @property
    def is_file(self) -> bool:
        return re.match(r"# \w+\.\w+\n", self.text) is not None


def blocks() -> Iterator[Code]:
    """Yield the blocks of all pages."""
    for path in PAGES:
        for match in BLOCK.finditer(path.read_text()):
            page = path.relative_to(ROOT).as_posix()
            yield Code(page=page, why_not=match["why"], language=match["language"], text=match["code"])


ALL = list(blocks())
REFERENCE = [block for block in ALL if block.page.startswith("docs/reference/")]
PYTHON = [block for block in ALL if block.language == "python" and block not in REFERENCE and not block.is_file]
COMMANDS = [
    block for block in ALL if block.language in ("", "bash") and block.why_not is None and block not in REFERENCE
]
RUN = sorted({block.page for block in PYTHON if block.why_not is None})


def test_each_block_is_of_a_kind_that_runs_or_says_why_not() -> None:
    assert {block.language for block in ALL} == {"", "bash", "python", "text", "yaml"}
    for block in ALL:
        assert block.language != "yaml" or block.is_file, block
        known = block.page in FILES or Path(block.page).parent.as_posix() in FILES
        assert known or block in REFERENCE or not block.is_file, block
    fences = sum(len(re.findall(r"(?m)^```", path.read_text())) for path in PAGES)
    assert fences == 2 * len(ALL), "a block that does not end, or is indented"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train the tutorial's study in ``runs/x`` and return the folder."""
    pytest.importorskip("sklearn")
    folder = tmp_path_factory.mktemp("blocks")
    settings: dict[str, Any] = {"launcher": "inline", "devices": "cpu:1", "quiet": True}
    argosy.train(names()["study"], directory=folder / "runs" / "x", **settings)
    return folder


def names() -> dict[str, Any]:
    """Return the names that the study of the tutorial defines; it trains 2 epochs instead of 10."""
    text = next(block.text for block in ALL if block.page == "docs/tutorial.md" and block.text.startswith("# study.py"))
    found: dict[str, Any] = {}
    exec(text.replace("MaxEpochs(10)", "MaxEpochs(2)"), found)
    return found


def named(page: str, folder: Path) -> dict[str, Any]:
    """Return the names that the blocks of a page assume."""
    found = names()
    x, y = found["x"], found["y"]
    report = argosy.load(folder / "runs" / "x", study=found["study"])
    lightning = runpy.run_path(str(ROOT / "examples" / "lightning_module.py"))
    members = [argosy.Member("linear", model=partial(nn.Linear, 64, 10), optimizer=Adam, batch_size=64)]
    more: dict[str, dict[str, Any]] = {
        "README.md": {"report": report},
        "docs/ensembling.md": {"report": report, "x": x[1200:], "x_test": x[1200:]},
        "docs/how-to.md": {"images": x[1200:1300]},
        "docs/kept.md": {"Dataset": Dataset, "Path": Path, "islice": islice, "torch": torch},
        "docs/tables.md": {"X": x[:60, ::8].numpy(), "y": y[:60].numpy() % 2, "X_new": x[60:62, ::8].numpy()},
        "docs/libraries.md": {
            "Adam": Adam,
            "AdamW": AdamW,
            "partial": partial,
            "Gan": nn.Module,
            "validate": lambda gan, batch: torch.zeros(()),
            "LitClassifier": partial(lightning["Classifier"], hidden=16),
            "make_bert": lambda layers: nn.Module(),
            "accuracy": argosy.accuracy,
            "X": x[:200].numpy(),
            "y": y[:200].numpy(),
            "members": members,
            "X_new": x[200:210].numpy(),
        },
    }
    return {**found, **more[page]}


@pytest.mark.parametrize("page", RUN)
def test_blocks_of_python_run(page: str, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("sklearn", "lightning.pytorch", "pandas", "matplotlib"):
        pytest.importorskip(package)
    monkeypatch.chdir(run)
    monkeypatch.setattr(api, "train", partial(api.train, launcher="inline", devices="cpu:1", quiet=True))
    known = named(page, run)
    for block in PYTHON:
        if block.page == page and block.why_not is None:
            exec(compile(block.text, f"{page}: {block.text.splitlines()[0]}", "exec"), known)


@pytest.mark.parametrize("block", PYTHON, ids=lambda block: f"{block.page}: {block.text.splitlines()[0]}")
def test_blocks_of_python_that_do_not_run_are_python(block: Code) -> None:
    ast.parse(block.text)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_values_and_calls_in_sentences_work_after_import_argosy(path: Path) -> None:
    """A module such as ``argosy.tuning.thompson`` is no attribute of argosy before it is imported."""
    for name in re.findall(r"(?<==argosy\.)\w+(?=\.)|(?<=`argosy\.)\w+(?=\.[\w.]+\()", path.read_text()):
        assert name in dir(argosy), name


@pytest.mark.parametrize("block", COMMANDS, ids=lambda block: f"{block.page}: {block.text.splitlines()[0]}")
def test_blocks_of_commands_have_words_that_these_know(block: Code) -> None:
    for line in block.text.splitlines():
        program, *words = line.removeprefix("srun ").partition("#")[0].split()
        if program == "make":
            assert re.search(rf"(?m)^{words[0]}:", (ROOT / "Makefile").read_text()), line
            continue
        assert program == "argosy", f"{line}: say why it is not run"
        command = app_help(words[0])
        assert all(word in command for word in words if word.startswith("--")), line


def app_help(command: str) -> str:
    """Return the output of ``argosy COMMAND --help``."""
    found = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"})
    assert found.exit_code == 0, found.output
    return found.output


def test_examples_of_the_reference_run_and_signatures_are_calls() -> None:
    found = {name: getattr(argosy, name) for name in argosy.__all__}
    examples = 0
    for block in REFERENCE:
        if ">>>" in block.text:
            example = doctest.DocTestParser().get_doctest(block.text, dict(found), block.page, None, None)
            examples += len(example.examples)
            assert not doctest.DocTestRunner().run(example).failed, block
        elif block.language == "python":
            # A signature, in which a bare `*` may stand, so it is not always valid Python.
            assert re.match(r"[\w.]+\(", block.text), block
        else:
            assert block.page == "docs/reference/commands.md", block
            assert app_help(block.text.split()[1]), block
    assert examples == 7
