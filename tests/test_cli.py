"""Tests of the command line as users see it: study files, scripts without a guard, notebooks, messages and exit codes."""

import csv
import errno
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import forked
import pytest
import studies
import torch
from disks import fill_up

from argosy.api import train
from argosy.cli import app as cli
from argosy.disk.files import sha256_of

HEAD = """
from functools import partial
import torch
from torch import nn
import argosy
"""
STUDY = (
    HEAD
    + """
class Net(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, hidden), nn.ReLU(), nn.Linear(hidden, 3))
    def forward(self, x):
        return self.layers(x)

x = torch.randn(90, 6, generator=torch.Generator().manual_seed(0))
member = partial(argosy.Member, optimizer=partial(torch.optim.SGD, lr=0.1), batch_size=10)
study = argosy.Study(
    data=argosy.Data(arrays=(x, torch.arange(90) % 3)),
    members=[member("a", model=partial(Net, 4)), member("b", model=partial(Net, hidden=8))],
    stop=argosy.MaxEpochs(2),
)
"""
)
ARRAYS = "arrays=(x, torch.arange(90) % 3)"


def argosy(folder: Path, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run the command in a folder and check its exit code."""
    found = forked.command(folder, words)
    assert found.returncode == code, found.stdout + found.stderr
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "study.py").write_text(STUDY)
    return tmp_path


def test_run_status_report_audit(folder: Path) -> None:
    ran = json.loads(argosy(folder, "run", "study.py", "--dir", "runs/x", "--devices", "cpu:1", "--json").stdout)
    assert {row["member"]: row["status"] for row in ran["members"]} == {"a": "done", "b": "done"}
    assert {row["optimizer.lr"] for row in ran["members"]} == {0.1}
    assert json.loads(argosy(folder, "report", "runs/x", "--json").stdout)["members"] == ran["members"]
    assert json.loads(argosy(folder, "status", "runs/x", "--json").stdout)["status"] == "done"
    assert json.loads(argosy(folder, "audit", "runs/x", "--json").stdout)["passes"] is True
    assert "There is nothing to do." in argosy(folder, "audit", "runs/x").stdout
    assert "has ended (done)" in argosy(folder, "stop", "runs/x", "a", code=2).stderr
    assert "prepared 1.0 times" not in argosy(folder, "report", "runs/x").stdout
    assert "prepared 1.0 times" in argosy(folder, "report", "runs/x", "--verbose").stdout
    untracked = argosy(folder, "run", "study.py", "--launcher", "inline", "--track", "comet", code=2)
    assert "unknown tracker 'comet'" in untracked.stderr
    elsewhere = argosy(folder, "run", "study.py", "--address", "ray://head:10001", code=2)
    assert "Add --launcher ray, or omit --address." in elsewhere.stderr


def test_curves_and_figures_are_written_of_a_run_that_goes_on_as_well(folder: Path) -> None:
    argosy(folder, "run", "study.py", "--dir", "run", "--launcher", "inline", "--devices", "cpu:1")
    printed = argosy(folder, "report", "run", "--csv").stdout
    rows = [*csv.DictReader(printed.splitlines())]
    journaled = [json.loads(line) for line in (folder / "run" / "journal.jsonl").read_text().splitlines()]
    told = {
        (line["member"], str(line["epoch"] + 1), metric): value
        for line in journaled
        if line["event"] == "SectionEnded"
        for metric, value in line["metrics"].items()
    }
    assert {(row["member"], row["epoch"], row["metric"]): float(row["value"]) for row in rows} == told
    assert argosy(folder, "report", "run", "--csv", "curves.csv").stdout == f"Written: {folder / 'curves.csv'}\n"
    assert (folder / "curves.csv").read_text() == printed
    both = argosy(folder, "report", "run", "--csv", "curves.csv", "--html").stdout.splitlines()
    assert both == [f"Written: {folder / 'curves.csv'}", "Written: run/report.html"]
    assert (folder / "run" / "report.html").exists()
    as_json = json.loads(argosy(folder, "report", "--csv", "run", "--json").stdout)["curves"]
    assert [f"{row['value']}" for row in as_json] == [row["value"] for row in rows]
    # A run in its first epoch gives the same rows: only the journal is read, so a shorter journal stands for it.
    text = "".join(
        f"{json.dumps(line)}\n" for line in journaled if line["event"] != "RunEnded" and line.get("epoch") != 1
    )
    (folder / "run" / "journal.jsonl").write_text(text)
    begun = csv.DictReader(argosy(folder, "report", "run", "--csv").stdout.splitlines())
    assert sorted(map(str, begun)) == sorted(str(row) for row in rows if row["epoch"] == "1") != []

    pytest.importorskip("matplotlib", reason="figures are drawn by matplotlib, the extra report")
    written = json.loads(argosy(folder, "report", "run", "--figures", "figures", "--json").stdout)["figures"]
    names = ["objective", "hyperparameters"]
    assert written == [f"figures/{name}.{kind}" for name in names for kind in ("png", "svg", "pdf")]
    assert all((folder / file).stat().st_size > 1000 for file in written)


def test_curves_are_written_whatever_the_letters_of_the_place(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "study.py").write_text(STUDY.replace('member("a"', 'member("β"'))
    argosy(folder, "run", "study.py", "--dir", "run", "--launcher", "inline", "--devices", "cpu:1")
    monkeypatch.setattr("io.text_encoding", lambda encoding, *_: encoding or "latin-1")
    argosy(folder, "report", "run", "--csv", "curves.csv")
    assert "β,β,,,1,train_loss," in (folder / "curves.csv").read_text(encoding="utf-8")


def test_plan_explains_and_says_how_to_train(folder: Path) -> None:
    said = argosy(folder, "plan", "study.py", "--devices", "cpu:1", "--all").stdout
    assert "predicted pace" in said
    assert "argosy run study.py --devices cpu:1\n" in said


def test_profiles_of_a_study_explain_a_cluster_wherever_the_study_file_goes(folder: Path) -> None:
    (folder / "study.py").write_text(f"import os\nos.chdir('/')\n{STUDY}")
    said = argosy(folder, "profile", "study.py", "--out", "p.json", "--node-devices", "1", "--pairs").stdout
    assert "saved by two" in said
    assert f"argosy plan study.py --cluster 2x4x80GB --profiles {folder / 'p.json'}\n" in said
    said = argosy(
        *(folder, "plan", "study.py", "--cluster", "1x2x8GB", "--profiles", "p.json", "--html", "t.html")
    ).stdout
    assert "profiles: carried, on one cpu" in said
    assert f"{folder / 't.html'}\n" in said and "srun argosy run study.py\n" in said
    assert '"flotillas":[0' in (folder / "t.html").read_text()


def test_a_study_of_which_a_member_fails_has_neither_plan_nor_profiles(folder: Path) -> None:
    (folder / "study.py").write_text(STUDY.replace("hidden=8", "width=8"))
    for command in ("plan", "profile"):
        said = argosy(folder, command, "study.py", "--devices", "cpu:1", code=2).stderr
        assert "1 of 2 members could not be measured: 'b' (TypeError: Net.__init__() got an unexpected keyword" in said
    assert not (folder / "profiles.json").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("plan study.py --profiles p.json", "--profiles and --html need a --cluster, which was not given."),
        ("plan study.py --html t.html", "Set it, for example --cluster 2x4x80GB, or omit them."),
        ("plan study.py --cluster 1x1x8GB --profiles p.json", "cannot read profiles from p.json"),
        ("plan study.py --cluster 1x1x8GB --html nowhere/t.html", "nowhere/t.html cannot be written. Choose a file"),
        (
            "profile study.py --out nowhere/p.json",
            "nowhere/p.json cannot be written. Choose a file in an existing folder",
        ),
        ("profile study.py --out .", "cannot be written. Choose a file"),
        ("profile study.py --node-devices 0", "Invalid value for '--node-devices'"),
    ],
)
def test_what_cannot_be_done_in_the_end_is_said_before_anything_is_measured(
    folder: Path, words: str, says: str
) -> None:
    (folder / "study.py").write_text("open('read', 'w')\n")
    found = argosy(folder, *words.split(), code=2)
    assert says in found.stderr and "Traceback" not in found.stderr
    assert not (folder / "read").exists()


def test_the_help_of_run_does_not_begin_with_several_nodes(folder: Path) -> None:
    first, several = forked.command(folder, ["run", "--help"], first=_as_terminal).stdout.split("Several nodes")
    assert "--devices" in first
    for word in ("flotilla", "leg", "feeder", "ring", "--nodes", "sharing", "preparing"):
        assert not re.search(rf"(?<!\w){word}\b", first), word
    assert all(option in several for option in ("--nodes", "--sharing", "--preparing-nodes"))


def _as_terminal() -> None:
    """Make standard output look like a terminal without colours, because help has its panels on terminals only."""
    sys.stdout.isatty = lambda: True  # type: ignore[method-assign]
    os.environ["TERM"] = "dumb"


def demo(folder: Path, *words: str, code: int = 0, **member: Any) -> subprocess.CompletedProcess[str]:
    """Run ``argosy demo`` with a smaller study in its own process and check its exit code."""

    def smaller() -> None:
        import argosy.cli.demo

        os.environ["KEY"] = "Ctrl-C"
        argosy.cli.demo.study = studies.study(fleet=[studies.member(**member)], epochs=1)
        inline = partial(cli._launcher, "inline")
        cli._launcher = lambda name: inline()

    found = forked.command(folder, ["demo", "--devices", "cpu:1", *words], first=smaller)
    assert found.returncode == code, found.stdout + found.stderr
    return found


def test_a_run_that_another_command_stops_ends_as_by_ctrl_c(folder: Path) -> None:
    (folder / "study.py").write_text(STUDY.replace("MaxEpochs(2)", "MaxEpochs(100_000)"))
    with (folder / "out").open("wb") as out:
        words = ["run", "study.py", "--dir", "run", "--launcher", "inline", "--devices", "cpu:1", "--json"]
        run = forked.started(folder, words, out=out.fileno())
        while not (folder / "run" / "study.json").exists():
            time.sleep(0.05)
        argosy(folder, "status", "run", "--wait")
        said = argosy(folder, "stop", "run").stdout
        assert run.wait() == 130
    assert said == "every member is saved, and the run ends; the same command resumes the run\n"
    told = json.loads((folder / "out").read_text())
    assert told["status"] == "paused"
    assert {row["status"] for row in told["members"]} == {"paused"}
    assert "has ended (paused)" in argosy(folder, "stop", "run", code=2).stderr
    (folder / "study.py").write_text(STUDY.replace("MaxEpochs(2)", f"MaxEpochs({told['members'][0]['epochs'] + 1})"))
    assert json.loads(argosy(folder, *words).stdout)["status"] == "done"


def test_the_demo_compares_in_one_object_and_beside_any_folder(folder: Path) -> None:
    (folder / "here").mkdir()
    told = json.loads(demo(folder / "here", "--compare", "--json", "--dir", ".").stdout)
    assert [told[policy]["status"] for policy in ("balanced", "solo")] == ["done", "done"]
    assert told["times_as_long"] > 0
    assert (folder / "here-solo" / "journal.jsonl").exists()
    assert "times as long" in demo(folder / "here", "--compare", "--dir", ".").stdout


def ctrl_c(batch: Any) -> Any:
    """An augmentation that raises SIGINT in its first call, as if a person had pressed Ctrl-C."""
    if os.environ.pop("KEY", None):
        signal.raise_signal(signal.SIGINT)
    return batch


def test_ctrl_c_in_the_first_of_two_demos_begins_no_second(folder: Path) -> None:
    told = json.loads(demo(folder, "--compare", "--json", "--dir", "run", code=130, augment=ctrl_c).stdout)
    assert told["balanced"]["status"] == "paused"
    assert "solo" not in told and told["times_as_long"] is None
    assert not (folder / "run-solo").exists()


def test_every_keyword_of_train_is_a_flag() -> None:
    import inspect

    import typer

    import argosy.api
    from argosy.cli.app import app

    flags = {
        name
        for parameter in typer.main.get_command(app).commands["run"].params
        for name in parameter.opts
        if name.startswith("--")
    }
    keywords = set(inspect.signature(argosy.api.train).parameters)
    # A command reports failures by its exit code, so it needs no `raise_on_failure`.
    keywords -= {"study", "view", "progress", "directory", "trackers", "raise_on_failure", "quiet"}
    assert {f"--{keyword.replace('_', '-')}" for keyword in keywords} <= flags
    assert {"--dir", "--json", "--track"} <= flags


EPOCHS = "In the file, set stop= of argosy.Study, for example stop=argosy.MaxEpochs(10)."
LR = "In the file, set optimizer= of argosy.Member, for example optimizer=functools.partial(SGD, lr=0.1)."
FLAGS = {
    "run --device cpu study.py": "No such option: --device (did you mean --devices?)",
    "run --loaderworkers=2 study.py": "--loaderworkers (did you mean --loader-workers?)",
    "run --num-workers 2 study.py": "--num-workers (did you mean --loader-workers?)",
    "run study.py --output-dir x": "--output-dir (did you mean --dir?)",
    "run --dri x study.py": "--dri (did you mean --dir?)",
    "run --fresh mlp --devics cpu study.py": "--devics (did you mean --devices?)",
    "run --epochs 3 study.py": f"No such option: --epochs. {EPOCHS}",
    "run --max_epochs 3 study.py": f"--max_epochs. {EPOCHS}",
    "plan --epochs 3 study.py": f"--epochs. {EPOCHS}",
    "run --lr 0.1 study.py": f"--lr. {LR}",
    "run --batch-size 3 study.py": "--batch-size. In the file, set batch_size= of argosy.Member.",
    "tune --epochs 3 search.py": "--epochs. In the file, set max_epochs= of argosy.Search.",
    "tune --n-trials 3 search.py": "--n-trials. In the file, set n_trials= of argosy.Search.",
    "tune --scheduler asha search.py": "--scheduler. In the file, set scheduler= of argosy.Search.",
    "tune search.py --sampler=tpe": "--sampler. In the file, set sampler= of argosy.Search.",
    "run --sampler x study.py": "choose samples with Member.subset. Remove it.",
    "run --resume study.py": "--resume: the same call on the same directory resumes the run. Remove it.",
    "resume runs/x": "No such command 'resume'. Use argosy run or argosy tune; the same command also resumes.",
    "train study.py": "No such command 'train'. Use argosy run or argosy tune; the same command also resumes.",
    "status runs/x --wiat": "--wiat (did you mean --wait?)",
    "clone runs/x a b --st optimizer.lr=1": "--st (did you mean --set?)",
    "simulate --polcy all table.csv": "--polcy (did you mean --policy?)",
    "run --xyzzy study.py": "No such option: --xyzzy",
    "status --epochs runs/x": "No such option: --epochs",
    "simulate --policy balancd table.csv": "unknown policy 'balancd' (did you mean 'balanced'?); choose all",
}


@pytest.mark.parametrize("words", FLAGS)
def test_an_unknown_flag_or_command_gets_the_near_one_or_where_it_belongs(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from argosy.cli.app import main

    monkeypatch.chdir(tmp_path)
    (tmp_path / "table.csv").write_text("name,samples_per_second,epochs,model_mb\na,1,1,1\n")
    monkeypatch.setattr("sys.argv", ["argosy", *words.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    said = " ".join(capsys.readouterr().err.replace("│", " ").replace("╰", " ╰").split())
    assert f"{FLAGS[words]} ╰" in said or said.startswith(f"PlanError: {FLAGS[words]}")


def test_a_removed_working_directory_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from argosy.cli.app import main

    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    monkeypatch.setattr("sys.argv", ["argosy", "run", "study.py"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "the working directory (os.getcwd()) was removed. Change to another one" in " ".join(
        capsys.readouterr().err.split()
    )


def test_what_is_written_behind_two_dashes_or_as_a_value_is_no_flag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from argosy.cli.app import main

    monkeypatch.chdir(tmp_path)
    for words in (
        "status -- --epochs",
        "run --launcher inline --dir=--epochs nothing.py",
        "clone nothing a b --set=--epochs",
    ):
        monkeypatch.setattr("sys.argv", ["argosy", *words.split()])
        with pytest.raises(SystemExit):
            main()
        assert "No such option" not in capsys.readouterr().err, words


def test_train_spells_the_settings_as_they_are_declared() -> None:
    import inspect

    import argosy.api
    from argosy.settings import Settings

    spelled, declared = (inspect.signature(one).parameters for one in (argosy.api.train, Settings))
    for name, parameter in declared.items():
        assert (spelled[name].default, spelled[name].annotation) == (parameter.default, parameter.annotation), name


def test_tune_spells_a_search_as_it_is_declared() -> None:
    import inspect

    import argosy.api
    from argosy.tuning.search import Search

    spelled, declared = (inspect.signature(one).parameters for one in (argosy.api.tune, Search))
    for name in declared.keys() - {"build", "space", "data", "max_epochs"}:  # `tune` takes these from a `Search`, too
        assert (spelled[name].default, spelled[name].annotation) == (declared[name].default, declared[name].annotation)


def run_script(folder: Path, text: str, *, stdin: bool = False, file: str = "script.py") -> str:
    """Run a script from a file, or from standard input, without a source file as in a notebook; return its output."""
    (folder / file).write_text(text)
    command = [sys.executable, "-"] if stdin else [sys.executable, file]
    found = subprocess.run(
        command, cwd=folder, input=text if stdin else None, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


def test_a_script_needs_no_guard_and_runs_once(tmp_path: Path) -> None:
    text = (
        STUDY
        + "print('script runs')\nprint(argosy.train(study, directory='run').best().load().layers[0].in_features)\n"
    )
    said = run_script(tmp_path, text)
    assert said.startswith("script runs\nBest: ")
    assert (said.count("script runs"), said.count("Best: ")) == (1, 1)
    assert said.endswith("\n6\n")


def test_functions_of_a_notebook_travel(tmp_path: Path) -> None:
    text = (
        STUDY.replace("partial(Net, 4)", "lambda: Net(4)")
        + "print(argosy.train(study, directory='run', quiet=True).status)\n"
    )
    assert run_script(tmp_path, text, stdin=True).split() == ["done"]


def test_the_default_directory_of_a_program_on_the_standard_input_has_a_name_that_shells_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "<stdin>", raising=False)  # as `python -` sets it
    monkeypatch.chdir(tmp_path)
    assert (
        train(studies.study(90, fleet=[studies.member()], epochs=1), launcher="inline", quiet=True).directory
        == tmp_path / "runs" / "stdin"
    )


@pytest.mark.parametrize(
    ("error", "words"), [(KeyboardInterrupt(), "interrupted"), (KeyboardInterrupt("x; y"), "x; y")]
)
def test_a_command_that_is_interrupted_says_so(
    capsys: pytest.CaptureFixture[str], error: KeyboardInterrupt, words: str
) -> None:
    with pytest.raises(KeyboardInterrupt), cli._launcher("inline"):
        raise error
    assert capsys.readouterr().err == f"{words}\n"


def test_a_module_beside_the_study_file_is_found(folder: Path) -> None:
    (folder / "beside.py").write_text("from torch import nn\ndef net(hidden):\n    return nn.Linear(6, 3)\n")
    (folder / "study.py").write_text(
        STUDY.replace("import argosy\n", "import argosy\nimport beside\n", 1).replace(
            "partial(Net, 4)", "partial(beside.net, 4)"
        )
    )
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    argosy(elsewhere, "run", "../study.py", "--json")


def test_workers_import_what_an_optimised_interpreter_does_whatever_lies_in_the_folder_it_is_started_in(
    tmp_path: Path,
) -> None:
    """Workers find modules beside the script and none in the current folder, also under ``python -O``."""
    (tmp_path / "beside.py").write_text(
        "from torch import nn\ndef net(hidden):\n    if __debug__:\n        raise ValueError('not optimised')\n    return nn.Linear(6, 3)\n"
    )
    text = STUDY.replace("import argosy\n", "import argosy\nimport beside\n", 1).replace(
        "partial(Net, 4)", "partial(beside.net, 4)"
    )
    (tmp_path / "script.py").write_text(
        text + "argosy.train(study, directory='run', quiet=True, devices='cpu:1', raise_on_failure=True)\n"
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "json.py").write_text("not Python")
    words = [sys.executable, "-O", str(tmp_path / "script.py")]
    found = subprocess.run(words, cwd=elsewhere, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr


def test_a_script_that_trains_while_it_is_imported_does_so_once(tmp_path: Path) -> None:
    text = "argosy.train(study, directory='run', devices='cpu:1', quiet=True, raise_on_failure=True)\nprint('once')\n"
    (tmp_path / "script.py").write_text(STUDY + text)
    assert run_script(tmp_path, "import script", file="other.py") == "once\n"


def test_a_script_without_a_standard_output_trains_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        STUDY + "argosy.train(study, directory='run', devices='cpu:1')\nopen('went on', 'w')\n"
    )
    command = f"exec {shlex.quote(sys.executable)} script.py >&-"
    found = subprocess.run(["sh", "-c", command], cwd=tmp_path, stderr=subprocess.PIPE, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert (tmp_path / "went on").exists()


def test_only_the_driver_runs_a_study_file(folder: Path) -> None:
    (folder / "study.py").write_text(STUDY + "open('imported', 'a').write('x')\n")
    argosy(folder, "run", "study.py", "--json")
    assert (folder / "imported").read_text() == "x"


def with_dataset(sample: str) -> str:
    """Return the study file with a Dataset whose ``__getitem__`` returns this expression."""
    rows = f"""
class Rows(torch.utils.data.Dataset):
    random = torch.Generator().manual_seed(0)
    def __len__(self):
        return 90
    def __getitem__(self, index):
        return {sample}
"""
    return STUDY.replace("member = ", rows + "member = ", 1).replace(ARRAYS, "train=Rows()")


REFUSED = {
    "no study": (HEAD, "must define a variable `study`"),
    "wrong study": ("study = 3\n", "found int"),
    "no validation": (STUDY.replace("stop=", "objective='val_loss', stop="), "needs validation data"),
    "name twice": (STUDY.replace('"b"', '"a"'), "duplicate names: a"),
    "slash": (STUDY.replace('"b"', '"b/c"'), "'b/c' cannot be used as a folder name"),
    "dots": (STUDY.replace('"b"', '"b..c"'), "'b..c' cannot be used as a folder name"),
    "large batch": (
        STUDY.replace("batch_size=10", "batch_size=91, drop_last=True"),
        "batch_size 91 is larger than its 90 training",
    ),
    "iterable": (
        STUDY.replace(
            ARRAYS,
            "train=type('Lines', (torch.utils.data.IterableDataset,), {'__iter__': lambda self: iter([])})()",
        ),
        "is empty: Lines yields no samples",
    ),
    "unpicklable": (
        STUDY.replace("partial(Net, 4)", "partial(Net, 4, lock=__import__('threading').Lock())"),
        "member 'a' cannot be sent to another process",
    ),
    "broken sample": (with_dataset("x[index] / (1 // (index - 17)), 0"), "sample 17 raised ZeroDivisionError"),
    "own generator": (with_dataset("torch.rand(6, generator=self.random), 0"), "its own generator"),
    "unequal shapes": (
        with_dataset("torch.zeros(6 + (index == 17)), 0"),
        "resize them in the dataset, or pad them with Data(ragged=...)",
    ),
    "batch norm": (
        STUDY.replace("nn.ReLU()", "nn.BatchNorm1d(hidden)").replace("batch_size=10", "batch_size=89"),
        "the last batch of each epoch would hold 1 sample",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_gets_one_message_and_exit_code_2(folder: Path, name: str) -> None:
    text, message = REFUSED[name]
    (folder / "study.py").write_text(text)
    found = argosy(folder, "run", "study.py", "--dir", "run", code=2)
    assert message in " ".join(found.stderr.split())
    assert "Traceback" not in found.stderr


INLINE = ("run", "study.py", "--launcher", "inline")
"""Inline, because messages about members do not depend on where they train."""
ENDS = {
    "factory raises": (STUDY.replace("hidden=8", "width=8"), 1, "b failed: TypeError", ("done", "failed")),
    "diverges": (
        STUDY.replace(
            "partial(Net, hidden=8)", "partial(nn.Linear, 6, 3), optimizer=partial(torch.optim.SGD, lr=1e38)"
        ),
        0,
        "b diverged: its training loss is not a number",
        ("done", "diverged"),
    ),
    "all diverge": (
        STUDY.replace("lr=0.1", "lr=1e38")
        .replace("partial(Net, 4)", "partial(nn.Linear, 6, 3)")
        .replace("partial(Net, hidden=8)", "partial(nn.Linear, 6, 3)"),
        1,
        "b diverged: its training loss is not a number",
        ("diverged", "diverged"),
    ),
    "in place": (
        STUDY.replace("return self.layers(x)", "return self.layers(x.mul_(0.5))"),
        0,
        "a: writes into its input: gets private copies",
        ("done", "done"),
    ),
}


@pytest.mark.parametrize("name", ENDS)
def test_how_a_member_ends_is_said_and_the_others_go_on(folder: Path, name: str) -> None:
    text, code, message, statuses = ENDS[name]
    (folder / "study.py").write_text(text)
    assert message in " ".join(argosy(folder, *INLINE, "--dir", "run", code=code).stdout.split())
    rows = json.loads(argosy(folder, "report", "run", "--json").stdout)["members"]
    assert {row["member"]: row["status"] for row in rows} == dict(zip("ab", statuses, strict=True))


def test_a_damaged_checkpoint_and_a_torn_journal_are_survived_and_said(folder: Path) -> None:
    argosy(folder, *INLINE, "--numerics", "exact", "--dir", "run", "--json")
    last, journal = (folder / "run/members/b/last.pt").resolve(), folder / "run" / "journal.jsonl"
    last.write_bytes(last.read_bytes()[:-1])
    journal.write_bytes(journal.read_bytes() + b'{"event": "Sav')
    (folder / "study.py").write_text(STUDY.replace("MaxEpochs(2)", "MaxEpochs(4)"))
    said = " ".join(argosy(folder, *INLINE, "--numerics", "exact", "--dir", "run").stdout.split())
    assert f"b: checkpoint {last.name} is damaged and was skipped" in said
    argosy(folder, "audit", "run")
    argosy(folder, *INLINE, "--numerics", "exact", "--dir", "whole", "--json")
    reports = [json.loads(argosy(folder, "report", name, "--json").stdout)["members"] for name in ("run", "whole")]
    first, second = ({row["member"]: row["train_loss"] for row in report} for report in reports)
    assert first == second


class Trap:
    """An object that creates a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.folder),)


def test_a_tampered_checkpoint_is_refused_though_its_sum_was_tampered_with_as_well(folder: Path) -> None:
    argosy(folder, *INLINE, "--dir", "run", "--json")
    last, journal = (folder / "run/members/b/last.pt").resolve(), folder / "run" / "journal.jsonl"
    before = sha256_of(last)
    torch.save({"model": Trap(folder / "trap")}, last)
    journal.write_text(journal.read_text().replace(before, sha256_of(last)))
    (folder / "study.py").write_text(STUDY.replace("MaxEpochs(2)", "MaxEpochs(4)"))
    said = argosy(folder, *INLINE, "--dir", "run", code=1).stdout
    assert "cannot be opened as plain data and is refused" in " ".join(said.split())
    assert not (folder / "trap").exists()
    rows = json.loads(argosy(folder, "report", "run", "--json").stdout)["members"]
    assert {row["member"]: (row["status"], row["epochs"]) for row in rows} == {"a": ("done", 4), "b": ("failed", 2)}


def test_a_full_disk_is_said_and_the_same_command_goes_on(folder: Path, small_disk: Path) -> None:
    command = ("run", "study.py", "--dir", str(small_disk / "run"), "--json")
    argosy(folder, *command)
    (folder / "study.py").write_text(STUDY.replace("MaxEpochs(2)", "MaxEpochs(4)"))
    filling = fill_up(small_disk)
    assert "ree disk space" in " ".join(argosy(folder, *command, code=1).stderr.split())
    filling.unlink()
    rows = json.loads(argosy(folder, *command).stdout)["members"]
    assert {row["member"]: (row["status"], row["epochs"]) for row in rows} == {"a": ("done", 4), "b": ("done", 4)}


def test_a_command_that_may_not_write_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(_: Path) -> None:
        raise OSError(errno.EROFS, "Read-only file system", "runs/.report.html.7")

    monkeypatch.setattr("argosy.cli.pages.load_timed", refuse)
    monkeypatch.setattr("sys.argv", ["argosy", "report", "runs", "--html"])
    with pytest.raises(SystemExit, match="1"):
        cli.main()
    said = capsys.readouterr().err
    assert "Read-only file system: 'runs/.report.html.7'. Mount the disk as writable" in said
    assert said.endswith("or choose another directory; then repeat the command.\n")  # a report resumes no run


def test_a_missing_file_and_an_empty_directory(folder: Path) -> None:
    assert "is not a file" in argosy(folder, "run", "nothing.py", code=2).stderr
    assert "holds no run" in " ".join(argosy(folder, "report", "nothing", code=2).stderr.split())


def test_the_folder_above_a_run_names_the_run(folder: Path) -> None:
    argosy(folder, *INLINE, "--dir", "runs/first", "--json")
    assert "runs below it: runs/first." in " ".join(argosy(folder, "audit", "runs", code=2).stderr.split())


def test_another_study_is_refused_and_nothing_is_lost(folder: Path) -> None:
    argosy(folder, *INLINE, "--dir", "run", "--json")
    before = {
        path: path.read_bytes() for path in (folder / "run").rglob("*") if path.suffix in (".json", ".jsonl", ".pt")
    }
    for change, epochs, message in (
        # With 2 epochs the run is finished and needs no data; its study is compared anyway. With 3, the data are compared too.
        (("lr=0.1", "lr=0.2"), 2, "members 'a', 'b', optimizer.lr: was 0.1, is now 0.2"),
        (("ReLU()", "Tanh()"), 2, "members 'a', 'b', model: Net.__init__ changed since the run began"),
        (("manual_seed(0)", "manual_seed(1)"), 3, "Data.train: its samples or labels have changed"),
    ):
        (folder / "study.py").write_text(STUDY.replace(*change).replace("MaxEpochs(2)", f"MaxEpochs({epochs})"))
        found = argosy(folder, *INLINE, "--dir", "run", "--json", code=2)
        said = " ".join(found.stderr.split())
        assert f"run holds the run of a different study: {message}" in said, said
        assert "Undo the change, or choose another directory. Or " in said
        assert {path: path.read_bytes() for path in before} == before


def test_a_run_or_a_member_begins_anew_in_the_directory_of_the_studys_name(folder: Path) -> None:
    argosy(folder, *INLINE)
    first = (folder / "runs" / "study" / "journal.jsonl").read_bytes()
    (folder / "study.py").write_text(STUDY.replace("hidden=8", "hidden=9"))
    refused = " ".join(argosy(folder, *INLINE, code=2).stderr.split())
    assert "member 'b', model.hidden: was 8, is now 9" in refused
    assert "fresh=['b'] (--fresh b) trains it again" in refused
    one = argosy(folder, *INLINE, "--fresh", "b")
    assert (folder / "runs" / "study" / "members.old" / "b-1").is_dir()
    assert (folder / "runs" / "study" / "journal.jsonl").read_bytes().startswith(first)
    # The study file behind --fresh is not taken for a member's name.
    everything = argosy(folder, "run", "--fresh", *INLINE[1:])
    assert f"are kept in {folder / 'runs' / 'study.old-1'}" in " ".join(everything.stdout.split())
    assert "--fresh" not in one.stdout + everything.stdout
    assert not (folder / "runs" / "study" / "members.old").exists()


def test_a_run_that_its_time_limit_has_paused_is_not_done(folder: Path) -> None:
    (folder / "study.py").write_text(STUDY)
    words = ("run", "study.py", "--dir", "x", "--launcher", "inline")
    assert "paused" in argosy(folder, *words, "--time-limit", "0", code=130).stdout
    argosy(folder, *words)


def test_a_member_that_fails_gives_exit_code_1_and_its_log(folder: Path) -> None:
    (folder / "study.py").write_text(STUDY.replace("nn.Linear(6, hidden)", "nn.Linear(6 + (hidden == 8), hidden)"))
    found = argosy(folder, *INLINE, "--dir", "run", code=1)
    assert "members/b/log.txt" in "".join(found.stdout.split())
    assert "b failed: RuntimeError" in found.stdout


@pytest.mark.parametrize(
    ("statuses", "of_a_run", "of_a_search"), [("df", 1, 0), ("dx", 0, 0), ("fx", 1, 1), ("x", 1, 1)]
)
def test_a_search_has_exit_code_1_if_no_trial_is_left(statuses: str, of_a_run: int, of_a_search: int) -> None:
    named = {"d": "done", "f": "failed", "x": "diverged"}
    rows = [SimpleNamespace(status=named[letter], failed=letter != "d") for letter in statuses]
    for is_search, code in {False: of_a_run, True: of_a_search}.items():
        report: Any = SimpleNamespace(status="done", is_search=is_search, rows=rows)
        assert cli._exit_code(report) == code


def test_no_terminal_no_progress_bar(folder: Path) -> None:
    text = argosy(folder, "run", "study.py", "--dir", "run").stdout
    assert "\x1b" not in text
    assert os.linesep * 3 not in text


TALKATIVE = (
    """
import os, argparse, subprocess
os.chdir("/")
argparse.ArgumentParser().parse_args()
print("x", end="")
os.write(1, b"y")
subprocess.run(["echo", "of a program"], check=True)
"""
    + STUDY
)


def test_json_stands_alone_on_stdout_whatever_a_study_does(folder: Path) -> None:
    (folder / "study.py").write_text(TALKATIVE)
    found = argosy(folder, "run", "study.py", "--dir", "runs/x", "--json", "--launcher", "inline")
    assert json.loads(found.stdout)["status"] == "done"
    assert found.stdout.count("\n") == 1
    assert "of a program" in found.stderr
    assert (folder / "runs" / "x" / "study.json").exists()


def test_training_continues_when_the_reader_of_its_output_is_gone(folder: Path) -> None:
    (folder / "study.py").write_text(STUDY.replace("hidden=8", "width=8"))
    command = f"set -o pipefail; {sys.executable} -W error -m argosy run study.py --launcher inline --dir "
    endings = {"pipe": "| true", "full": "> /dev/full", "closed": ">&-"}
    runs = {
        name: subprocess.Popen(
            ["bash", "-c", f"{command}{name} {ending}"], cwd=folder, stderr=subprocess.PIPE, text=True
        )
        for name, ending in endings.items()
    }
    for name, run in runs.items():
        said = run.communicate()[1]
        assert ("cannot be written" if name == "full" else "") in said
        assert (bool(said), run.returncode) == (name == "full", 1)
        rows = {row["member"]: row["status"] for row in report_of(folder, name)["members"]}
        assert rows == {"a": "done", "b": "failed"}
        (folder / name / "workers" / "view.log").unlink(missing_ok=True)


def report_of(folder: Path, name: str) -> dict:
    """Return a run's report as JSON, read in this process."""
    from argosy.running.directory.loading import load_report

    return load_report(folder / name).to_json()


UNREADABLE = {
    "syntax": ("def study(:\n", "study.py cannot be read: File"),
    "exit": ("raise SystemExit('no')\n", "called sys.exit('no') while it was read"),
    "raises": ("1 / 0\n", "line 1, in <module> 1 / 0"),
    "relative": ("from .data import x\n", "Instead, pass a file beside its package"),
}


def test_a_study_file_that_cannot_be_read_is_one_message_with_its_own_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from argosy.cli.app import main

    for name, (text, message) in UNREADABLE.items():
        (tmp_path / f"{name}_study.py").write_text(text)
        monkeypatch.setattr(
            "sys.argv",
            [
                "argosy",
                "run",
                str(tmp_path / f"{name}_study.py"),
                "--dir",
                str(tmp_path / "run"),
                "--launcher",
                "inline",
            ],
        )
        with pytest.raises(SystemExit) as ended:
            main()
        said = " ".join(capsys.readouterr().err.split())
        assert ended.value.code == 2
        assert message in said
        assert "importlib" not in said
        assert not (tmp_path / "run").exists()


def test_a_warning_of_a_run_has_no_place_in_a_library(tmp_path: Path) -> None:
    (tmp_path / "study.py").write_text(NOISY)
    several = {**os.environ, "SLURM_JOB_NUM_NODES": "4", "SLURM_JOB_ID": "7"}
    command = [sys.executable, "-m", "argosy", "run", "study.py", "--dir", "run", "--launcher", "auto"]
    found = subprocess.run(command, cwd=tmp_path, env=several, capture_output=True, text=True, check=True)
    assert "\nWarning: this Slurm job has 4 nodes" in f"\n{found.stderr}"
    assert "study.py:1: UserWarning: of the study itself\n" in found.stderr


NOISY = """import warnings; warnings.warn("of the study itself")
from functools import partial
import torch
import argosy
x, y = torch.randn(20, 3), torch.arange(20) % 2
member = argosy.Member("a", model=partial(torch.nn.Linear, 3, 2), optimizer=partial(torch.optim.SGD, lr=0.1), batch_size=5)
study = argosy.Study(data=argosy.Data(arrays=(x, y)), members=[member], stop=argosy.MaxEpochs(1))
"""
