"""Tests that tracebacks show the user's line that raised, from whatever process, file or notebook cell it comes."""

import linecache
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import studies
import torch
from torch import nn

import argosy
from argosy.errors import ArgosyError, MemberError
from argosy.errors.traces import known_sources, register_sources, trace_of
from argosy.running.launch.blobs import load_blob, write_blob

STUDY = """
import os
from pathlib import Path
import torch
from torch import nn
import argosy

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(6, 3), nn.Linear(4, 3))
    def forward(self, x):
        Path(PATH).write_text("# edited since\\n" * 99)
        return self.layer(x)  # a line of the person's own

PATH = os.path.abspath(__file__)
os.chdir("/")

def member(name, model):
    return argosy.Member(name, model=model, optimizer=torch.optim.Adam, batch_size=10)

study = argosy.Study(
    data=argosy.Data(arrays=(torch.randn(90, 6), torch.arange(90) % 3)),
    members=[member("shapes", Net), member("sound", lambda: nn.Linear(6, 3))],
    stop=argosy.MaxEpochs(1),
)
"""


def test_a_failed_member_shows_its_own_lines(tmp_path: Path) -> None:
    """A command shows the user's own frames of a failed member; frames of torch are only in the member's log."""
    (tmp_path / "study.py").write_text(STUDY)
    command = [sys.executable, "-m", "argosy", "run", "study.py", "--dir", str(tmp_path / "run"), "--devices", "cpu:1"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 1, ran.stderr
    told = ran.stdout[ran.stdout.index("shapes failed: RuntimeError: mat1 and mat2") : ran.stdout.index("log: ")]
    assert f'File "{tmp_path}/study.py", line 14, in forward' in told.replace("\n", "")
    assert "return self.layer(x)  # a line of the person's own" in told
    assert "linear.py" not in told
    log = (tmp_path / "run" / "members" / "shapes" / "log.txt").read_text()
    assert "linear.py" in log
    assert "return self.layer(x)  # a line of the person's own" in log


def no_disk() -> Any:
    raise OSError("no such disk")  # a line of its own


def a_cause() -> None:
    try:
        no_disk()
    except OSError as error:
        raise ValueError("a study") from error


def test_frames_of_ours_are_left_out_of_every_link() -> None:
    with pytest.raises(ValueError, match="a study") as caught:
        argosy.grid(lambda lr: a_cause(), lr=[1])
    trace = trace_of(caught.value)
    assert trace.count("Traceback") == 2
    assert "no such disk" in trace
    assert "argosy/study/" not in trace
    assert trace_of(MemberError("a sentence.")) == "MemberError: a sentence."
    with pytest.raises(RuntimeError, match="mat1") as of_torch:
        nn.Linear(3, 4)(torch.ones(2, 2))
    assert "in test_frames_of_ours" in trace_of(of_torch.value)


def test_a_cell_that_is_no_file_is_known_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    cell, text = "<cell 7 of a notebook>", "def broken():\n    raise KeyError('in a cell')  # the cell's line\n"
    monkeypatch.setattr(linecache, "cache", {cell: (len(text), None, text.splitlines(True), cell)})
    told = known_sources()
    assert told[cell] == text
    monkeypatch.setattr(linecache, "cache", {})
    register_sources(told)
    space: dict[str, Any] = {}
    exec(compile(text, cell, "exec"), space)
    with pytest.raises(KeyError) as caught:
        space["broken"]()
    assert "# the cell's line" in trace_of(caught.value)


def test_files_may_be_read_by_another_thread_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linecache, "cache", {"<a cell>": (4, None, ["x()\n"], "<a cell>")})
    monkeypatch.setattr(Path, "exists", lambda path: linecache.cache.setdefault(f"{path} 2", (0, None, [], "")) is None)
    assert known_sources()["<a cell>"] == "x()\n"


def test_a_factory_of_data_shows_its_own_line(tmp_path: Path) -> None:
    study = studies.study(data=argosy.Data(train=partial(no_disk)), fleet=[studies.member(metrics={})])
    with pytest.raises(ArgosyError, match=r"(?s)no_disk raised OSError: no such disk.*a line of its own"):
        argosy.train(study, directory=tmp_path)


FORMS = """
import functools

def broken(x):
    raise KeyError(x)

def outer(x):
    def inner():
        return [broken(y) for y in (x,)]
    return inner()

short = lambda x: broken(x)

class Net:
    def method(self, x):
        return broken(x)
    @classmethod
    def of_class(cls, x):
        return broken(x)
    @staticmethod
    def static(x):
        return broken(x)
    @property
    def value(self):
        return broken("value")

class Child(Net):
    def method(self, x):
        return super().method(x)

def logged(function):
    @functools.wraps(function)
    def call(*given):
        return function(*given)
    return call

@logged
def decorated(x):
    return broken(x)

def counted(n):
    def count(x):
        yield broken(x + n)
    return count

FORMS = [outer, short, Net().method, Net.of_class, Net.static, Child().method, decorated, functools.partial(broken, "x"),
         lambda x: next(counted(x)(x)), lambda x: Net().value]
"""


@pytest.mark.parametrize("file", ["/home/me/study.py", "/tmp/ipykernel_7/12.py", "<ipython-input-1-0a>"])
def test_code_of_every_form_keeps_its_file_and_lines(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions that cloudpickle carries to another process keep their file and lines in tracebacks.

    The forms are nested functions, lambdas, methods, properties, decorators and generators.
    """
    monkeypatch.setattr(linecache, "cache", dict(linecache.cache))
    register_sources({file: FORMS})
    script = ModuleType("a_script")  # no module of that name can be imported
    exec(compile(FORMS, file, "exec"), script.__dict__)
    descriptor = write_blob(script.FORMS, "functions")
    try:
        arrived = load_blob(descriptor)
    finally:
        os.close(descriptor)
    lines = FORMS.splitlines()
    for form, call in zip(script.FORMS, arrived, strict=True):
        arguments = () if isinstance(call, partial) else ("x",)
        with pytest.raises(KeyError) as there:
            form(*arguments)
        with pytest.raises(KeyError) as here:
            call(*arguments)
        trace = trace_of(here.value)
        assert trace.partition(f'File "{file}"')[2] == trace_of(there.value).partition(f'File "{file}"')[2]
        assert f'File "{file}", line 5, in broken\n    {lines[4].strip()}' in trace
