"""Tests of what a program needs to drive Argosy: fast commands, the guide, JSON and its schemas, queries and hooks."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import forked
import pytest
from schemas import errors

from argosy.cli.schema import schema_of
from argosy.running.watch import hooks
from argosy.views.output import MOST_CHARACTERS, shorten_lists

STUDY = """
from functools import partial
import torch
from torch import nn
import argosy

class Net(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, hidden), nn.ReLU(), nn.Linear(hidden, 3))
    def forward(self, x):
        return self.layers(x)

class Broken(Net):
    def forward(self, x):
        raise RuntimeError("no such layer")

x = torch.randn(150, 6, generator=torch.Generator().manual_seed(0))
y = x[:, :3].argmax(1)
member = partial(argosy.Member, optimizer=partial(torch.optim.SGD, lr=0.1), batch_size=10, metrics={"accuracy": argosy.accuracy})
study = argosy.Study(
    data=argosy.Data(arrays=(x[:100], y[:100]), val_arrays=(x[100:], y[100:])),
    members=[
        *argosy.replicate(member("wide", model=partial(Net, hidden=16)), seeds=3),
        *argosy.replicate(member("thin", model=partial(Net, hidden=2)), seeds=3),
        member("broken", model=partial(Broken, hidden=2)),
        member("wild", model=partial(Net, hidden=4), optimizer=partial(torch.optim.SGD, lr=1e30)),
    ],
    stop=argosy.MaxEpochs(3),
)
"""
SLOW = (
    "torch",
    "numpy",
    "rich.console",
    "psutil",
    "sqlite3",
    "argosy.planning",
    "argosy.stream",
    "argosy.tuning.search",
)
"""Modules that commands which only read a run do not need; importing all takes a third of a second."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table of networks and a study file, and the study's run in ``runs/study``."""
    folder = tmp_path_factory.mktemp("driving")
    (folder / "study.py").write_text(STUDY)
    (folder / "networks.csv").write_text("name,samples_per_second,epochs,model_mb\nmlp,100,2,1\n")
    argosy(folder, "run", "study.py", "--launcher", "inline", "--devices", "cpu:1", code=1)
    return folder


def argosy(folder: Path, *words: str, code: int = 0) -> str:
    """Run the command in a folder, check its exit code, and return what it printed."""
    found = forked.command(folder, words)
    assert found.returncode == code, found.stdout + found.stderr
    return found.stdout


def told(folder: Path, *words: str, code: int = 0) -> Any:
    return json.loads(argosy(folder, *words, "--json", code=code))


@pytest.mark.parametrize("words", ["status runs/study", "report runs/study", "report runs/study --json", "runs"])
def test_commands_that_only_read_import_nothing_slow(folder: Path, words: str) -> None:
    program = (
        "import atexit, sys; from argosy.cli.app import main; "
        f"atexit.register(lambda: print([name for name in {SLOW} if name in sys.modules], file=sys.stderr)); main()"
    )
    done = subprocess.run([sys.executable, "-c", program, *words.split()], cwd=folder, capture_output=True, text=True)
    assert (done.returncode, done.stderr.strip()) == (0, "[]")


JSON = {
    "status": "status runs/study",
    "report": "report runs/study",
    "everything": "report runs/study --verbose",
    "a page": "report runs/study --html",
    "curves": "report runs/study --csv",
    "runs": "runs",
    "audit": "audit runs/study",
    "compare": "compare runs/study wide thin",
    "query": "query runs/study SELECT * FROM events",
    "tables": "query runs/study --schema",
    "simulate": "simulate networks.csv",
    "cache": "cache",
    "doctor": "doctor",
}


@pytest.mark.parametrize("name", JSON)
def test_what_is_printed_is_as_its_schema_says(folder: Path, name: str) -> None:
    """The JSON of every command matches its schema, which `forked.command` checks here and in all other tests."""
    words = JSON[name].split(maxsplit=2) if name == "query" else JSON[name].split()
    assert told(folder, *words)["schema"] == 1


def test_the_check_of_schemas_sees_what_is_not_described() -> None:
    schema = schema_of("runs")
    row = {"run": "x", "status": "done", "changed": "2026-01-01 10:00", "best": "mlp"}
    for runs, wrong in (
        ([row], ""),
        ([{**row, "best": 1}], "no string"),
        ([{**row, "new": 1}], "not described"),
        ([{}], "missing"),
    ):
        found = [*errors({"schema": 1, "runs": runs}, schema, schema["$defs"])]
        assert (wrong in found[0]) if wrong else not found
    assert [*errors({"schema": 2, "runs": []}, schema, schema["$defs"])] == [".schema: 2 is not 1"]


def test_lists_are_cut_at_their_ends_until_an_output_is_short() -> None:
    value = {"best": {"interval": [0.1, 0.2]}, "members": [{"member": f"mlp-{n}", "x": "x" * 90} for n in range(500)]}
    short = shorten_lists(value)
    assert len(json.dumps(short)) <= MOST_CHARACTERS
    kept = short["members"]
    assert kept == value["members"][: len(kept)] and len(kept) + short["left_out"]["members"] == 500
    assert len(kept) > 20 and short["best"] == value["best"]
    assert shorten_lists({"rows": [1, 2]}) == {"rows": [1, 2]}


def test_members_with_many_metrics_are_cut_to_their_first_ones_and_what_ends_the_row() -> None:
    members = [{"member": f"mlp-{n}", **{f"val_{m}": m for m in range(2000)}, "reason": "2 epochs"} for n in range(60)]
    short = shorten_lists({"members": members})
    assert len(json.dumps(short)) <= MOST_CHARACTERS
    kept = short["members"]
    assert all(row["val_0"] == 0 and row["reason"] == "2 epochs" for row in kept)
    assert len(kept) > 1 and short["left_out"].keys() == {"members", "fields of members"}
    few = {"members": [{f"val_{m}": m for m in range(2000)}]}
    assert shorten_lists(few, most=10**6) == few


def test_long_texts_have_no_middle_and_take_no_rows() -> None:
    reason = f"RuntimeError: {'Missing key, ' * 1000}the end"
    short = shorten_lists({"members": [{"member": str(number), "reason": reason} for number in range(4)]})
    assert [row["member"] for row in short["members"]] == ["0", "1", "2", "3"]
    text = short["members"][0]["reason"]
    assert re.fullmatch(r"RuntimeError: Missing key, .*\[12021 characters left out\].*, the end", text)


def test_a_table_is_shortened_by_whole_rows() -> None:
    table = {"columns": [f"column-{n}" for n in range(300)], "rows": [[*range(300)] for _ in range(20)]}
    short = shorten_lists(table, only="rows")
    assert short["columns"] == table["columns"]
    kept = short["rows"]
    assert kept == table["rows"][: len(kept)] and short["left_out"] == {"rows": 20 - len(kept)}


@pytest.mark.parametrize("command", ["run", "tune", "simulate"])
def test_a_program_reads_help_without_frames(folder: Path, command: str) -> None:
    said = argosy(folder, command, "--help")
    assert "--json" in said and "\u2500" not in said and len(said) <= MOST_CHARACTERS


def test_the_guide_is_short_and_each_part_can_be_had_alone(folder: Path) -> None:
    text = argosy(folder, "guide")
    assert len(text) <= MOST_CHARACTERS
    topics = re.findall(r"(?m)^## (\w+)$", text)
    assert f": {', '.join(topics).lower()}." in text
    assert "".join(argosy(folder, "guide", topic) for topic in topics).split() == text[text.index("## ") :].split()


REFUSED = {
    "DELETE FROM members": "not authorized",
    "CREATE TABLE mine (x)": "not authorized",
    "ATTACH 'mine.db' AS mine": "not authorized",
    "PRAGMA writable_schema = 1": "not authorized",
    "VACUUM INTO 'mine.db'": "cannot VACUUM",
    "SELECT load_extension('mine')": "not authorized",
    "SELECT 1; SELECT 2": "one statement",
    'SELECT "val_los" FROM members': "no such column: val_los",
    'SELECT member FROM members WHERE "optimizer.lrr" < 1': "no such column: optimizer.lrr",
}


@pytest.mark.parametrize("sql", REFUSED)
def test_a_query_can_only_read(folder: Path, sql: str) -> None:
    before = sorted(path.name for path in folder.iterdir())
    found = forked.command(folder, ["query", "runs/study", sql])
    assert found.returncode == 2
    assert re.search(f"the query failed: .*{REFUSED[sql]}", found.stderr)
    assert sorted(path.name for path in folder.iterdir()) == before


def test_a_query_joins_what_members_sections_and_events_say(folder: Path) -> None:
    sql = (
        "SELECT members.member, count(*), min(sections.val_loss), json_extract(facts, '$.status') FROM members "
        "JOIN sections USING (member) JOIN events USING (member) WHERE event = 'MemberEnded' GROUP BY 1 ORDER BY 3"
    )
    rows = told(folder, "query", "runs/study", sql)["rows"]
    report = told(folder, "report", "runs/study")["members"]
    wanted = [[row["member"], 3, row["val_loss"], "done"] for row in report if row["status"] == "done"]
    assert rows == wanted
    sql = 'SELECT member, "seed" AS "its seed", \'"x"\' FROM "members" /* "y */ LIMIT 1 -- "z"'
    assert told(folder, "query", "runs/study", sql)["rows"] == [[report[0]["member"], report[0]["seed"], '"x"']]
    table = argosy(folder, "query", "runs/study", "SELECT member, seed FROM members LIMIT 1")
    assert table.split() == ["member", "seed", report[0]["member"], str(report[0]["seed"])]
    wide = told(
        folder, "query", "runs/study", "SELECT members.*, sections.* FROM members JOIN sections USING (member), events"
    )
    assert wide["left_out"].keys() == {"rows"} and {len(row) for row in wide["rows"]} == {len(wide["columns"])}
    as_csv = argosy(folder, "query", "runs/study", "SELECT event, facts FROM events", "--csv", "--all")
    assert len(as_csv.splitlines()) == 1 + len((folder / "runs/study/journal.jsonl").read_text().splitlines())
    assert argosy(folder, "query", "runs/study", "SELECT 'a' || char(8232) || 'b' AS x", "--csv") == "x\na\\u2028b\n"


BROKEN = "members=[member(str(n), model=partial(Broken, hidden=2)) for n in range(3)],\n    stop"
HOOK = 'echo "$ARGOSY_EVENT $ARGOSY_STATUS $ARGOSY_MEMBER$ARGOSY_BEST" >> told.txt; cat "$ARGOSY_FACTS" > $ARGOSY_EVENT.json'


def test_commands_run_where_a_member_diverges_and_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "study.py").write_text(STUDY)
    words = ("run", "study.py", "--dir", "x", "--launcher", "inline", "--devices", "cpu:1")
    argosy(tmp_path, *words, "--on-end", HOOK, "--on-diverged", HOOK, code=1)
    assert (tmp_path / "told.txt").read_text().splitlines() == ["diverged diverged wild", "end done wide"]
    assert "told.txt" not in (tmp_path / "x" / "journal.jsonl").read_text(), "a command may hold a token"
    diverged, end = (json.loads((tmp_path / f"{event}.json").read_text()) for event in ("diverged", "end"))
    assert re.fullmatch(
        r"its training loss is not a number after \d+ steps", diverged["reason"]
    )  # the number of steps depends on rounding
    assert end["best"] == told(tmp_path, "report", "x")["best"]
    # A command that fails or hangs causes one line at the end of the run, and does not change its exit code.
    found = forked.command(
        tmp_path, [*words, "--fresh", "--on-diverged", "exit 3", "--on-end", "sleep 60"], first=_hurried
    )
    assert found.returncode == 1 and "done after" in found.stdout
    assert "on_diverged: the command 'exit 3' ended with exit code 3 (see " in found.stderr
    assert "on_end: the command 'sleep 60' took longer than 0.3 s and was killed." in found.stderr
    # The command also runs if an error ends the run.
    (tmp_path / "study.py").write_text(re.sub(r"(?s)members=\[.*\],\n    stop", BROKEN, STUDY))
    argosy(tmp_path, *words, "--fresh", "--on-end", HOOK, code=1)
    assert (tmp_path / "told.txt").read_text().splitlines()[2:] == ["end failed "]


def _hurried() -> None:
    hooks.SECONDS = 0.3


class Program:
    """A program that uses only commands of ``argosy --help``, options of ``argosy guide``, and printed JSON."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.help, self.guide = argosy(folder, "--help"), argosy(folder, "guide")
        self.printed = [self.help, self.guide]
        self.running: forked.Forked

    def asks(self, *words: str, code: int = 0) -> Any:
        """Return the JSON that a command prints."""
        assert re.search(rf"(?m)^. {words[0]} ", self.help), words
        assert all(word in self.guide for word in words[1:] if word.startswith("--")), words
        self.printed.append(argosy(self.folder, *words, "--json", code=code))
        return json.loads(self.printed[-1])

    def starts(self, *words: str) -> forked.Forked:
        """Start a command without waiting for its end, and return its process."""
        with (self.folder / "printed.txt").open("ab") as printed:
            return forked.started(self.folder, [*words, "--json"], out=printed.fileno(), err=printed.fileno())

    def waits(self, running: forked.Forked, *statuses: str) -> None:
        """Wait until a started run has one of these states; `status` fails until its data is open."""
        deadline = time.monotonic() + 120
        while running.poll() is None or statuses == ("done",):
            found = forked.command(self.folder, ["status", "runs/x", "--wait", "--json"])
            if found.returncode == 0 and json.loads(found.stdout)["status"] in statuses:
                return
            assert time.monotonic() < deadline, found.stdout + found.stderr
        raise AssertionError((self.folder / "printed.txt").read_text())

    def computes(self, lines: str) -> Any:
        """Return the JSON that these lines of Python print."""
        done = subprocess.run([sys.executable, "-c", lines], cwd=self.folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


def test_twenty_tasks_of_a_program(tmp_path: Path) -> None:
    text = STUDY.replace("MaxEpochs(3)", "MaxEpochs(40)").replace("return self.layers(x)", SLOWLY)
    late = "members=[member('late', model=partial(Net, hidden=3))],\n    stop"
    (tmp_path / "study.py").write_text(text)
    (tmp_path / "more.py").write_text(re.sub(r"(?s)members=\[.*\],\n    stop", late, text))
    program, run = Program(tmp_path), ("run", "study.py", "--dir", "runs/x", "--devices", "cpu:1")
    for task in TASKS:
        task(program, run)
    assert len(TASKS) == 20
    assert max(map(len, program.printed)) <= MOST_CHARACTERS


SLOWLY = "__import__('time').sleep(0.003 * self.training); return self.layers(x)"


def _checks_the_machine(program: Program, run: Any) -> None:
    assert program.asks("doctor")["ok"]


def _starts(program: Program, run: Any) -> None:
    program.running = program.starts(*run)
    program.waits(program.running, "running")


def _waits_for_a_section(program: Program, run: Any) -> None:
    found = program.asks("status", "runs/x", "--wait")
    assert found["status"] == "running" and any(row["epochs"] > 0 for row in found["members"])


def _clones_with_another_rate(program: Program, run: Any) -> None:
    assert not program.asks("clone", "runs/x", "wide-seed=0", "slower", "--set", "optimizer.lr=0.001")["refused"]


def _adds_a_member(program: Program, run: Any) -> None:
    assert not program.asks("add", "runs/x", "more.py")["refused"]


def _stops_one(program: Program, run: Any) -> None:
    assert not program.asks("stop", "runs/x", "thin-seed=2")["refused"]


def _sees_a_refusal(program: Program, run: Any) -> None:
    found = program.asks("stop", "runs/x", "nobody", code=2)
    assert found["refused"] and "nobody" in found["answer"]


def _pauses(program: Program, run: Any) -> None:
    program.asks("stop", "runs/x")
    assert program.running.wait(60) == 130 and program.asks("status", "runs/x")["status"] == "paused"


def _resumes_to_the_end(program: Program, run: Any) -> None:
    program.running = program.starts(*run)
    program.waits(program.running, "done")
    assert program.running.wait(60) == 1, "members have failed"


def _lists_runs(program: Program, run: Any) -> None:
    assert [row["run"] for row in program.asks("runs")["runs"] if row["status"] == "done"] == ["x"]


def _finds_the_best_configuration(program: Program, run: Any) -> None:
    found = program.asks("report", "runs/x")
    first = found["configurations"][0]
    low, high = first["intervals"][found["objective"]]
    assert first["configuration"] == "wide" and low < first[found["objective"]] < high


def _finds_the_best_member_and_its_epoch(program: Program, run: Any) -> None:
    first = program.asks("status", "runs/x")["members"][0]
    assert 1 <= first["best_epoch"] <= 40 and first["val_accuracy"] > 0.5


def _compares_with_an_interval(program: Program, run: Any) -> None:
    found = program.asks("compare", "runs/x", "wide", "thin")
    low, high = found["interval"]
    assert found["pairs"] == 2 and low < found["first_minus_second"] < high
    assert found["distinguishable"] is (high < 0 or low > 0)


def _lists_failures_with_their_reasons(program: Program, run: Any) -> None:
    rows = program.asks("report", "runs/x")["members"]
    failed = {row["member"]: row["reason"] for row in rows if row["status"] in ("failed", "diverged")}
    assert "no such layer" in failed["broken"] and "not a number" in failed["wild"] and len(failed) == 2


def _reads_hyperparameters(program: Program, run: Any) -> None:
    rows = {row["member"]: row for row in program.asks("report", "runs/x")["members"]}
    assert (rows["slower"]["optimizer.lr"], rows["wide-seed=0"]["optimizer.lr"]) == (0.001, 0.1)
    assert rows["thin-seed=2"]["status"] == "stopped" and rows["late"]["epochs"] == 40


def _asks_in_sql(program: Program, run: Any) -> None:
    columns = program.asks("query", "runs/x", "--schema")["tables"]["sections"]
    assert {"member", "epoch", "val_loss"} <= {*columns}
    sql = "SELECT member, count(*) FROM sections WHERE configuration = 'wide' GROUP BY member"
    assert program.asks("query", "runs/x", sql)["rows"] == [[f"wide-seed={seed}", 40] for seed in range(3)]


def _asks_when_it_happened(program: Program, run: Any) -> None:
    sql = "SELECT at, json_extract(facts, '$.reason') FROM events WHERE event = 'MemberEnded' AND member = 'wild'"
    ((at, reason),) = program.asks("query", "runs/x", sql)["rows"]
    assert at > 0 and "not a number" in reason


def _writes_learning_curves(program: Program, run: Any) -> None:
    file = Path(program.asks("report", "runs/x", "--csv", "curves.csv")["csv"])
    assert file.read_text().startswith("member,configuration,seed,fold,epoch,metric,value\n")


def _audits(program: Program, run: Any) -> None:
    assert program.asks("audit", "runs/x")["passes"]


def _makes_an_ensemble_and_predicts(program: Program, run: Any) -> None:
    """Run the guide's own lines on how to use a run's networks."""
    lines = "".join(
        re.findall(r"(?m)^    (.*\n)", program.guide[program.guide.index("## Use") : program.guide.index("## Hooks")])
    )
    shown = program.computes(
        f"import json, torch\nsamples = torch.zeros(4, 6)\n{lines}\nprint(json.dumps([len(outputs), outputs.shape[-1]]))"
    )
    assert shown == [4, 3]


TASKS = (
    *(_checks_the_machine, _starts, _waits_for_a_section, _clones_with_another_rate, _adds_a_member, _stops_one),
    *(_sees_a_refusal, _pauses, _resumes_to_the_end, _lists_runs, _finds_the_best_configuration),
    *(_finds_the_best_member_and_its_epoch, _compares_with_an_interval, _lists_failures_with_their_reasons),
    *(_reads_hyperparameters, _asks_in_sql, _asks_when_it_happened, _writes_learning_curves, _audits),
    _makes_an_ensemble_and_predicts,
)
