"""Tests that a bad study file added to a live run is refused with the reason and does not disturb the run."""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import evidence
import forked
import living
import pytest
import studies
import torch
from family import Run

import argosy
from argosy.cli import steer
from argosy.errors import RunError
from argosy.running.control import rehearsal
from argosy.running.control.driver import Driver
from argosy.running.control.rehearsal import Rehearsal, RehearsalResult
from argosy.running.directory import inbox
from argosy.running.directory.audit import audit
from argosy.running.directory.study_copy import StudyCopy
from argosy.running.directory.study_json import read_study
from argosy.running.directory.studyfile import load_study
from argosy.running.watch.phase import Phase
from argosy.running.watch.view import Silent

HEAD = "import argosy, studies\n"
FILES = {
    "syntax": ("def study(:\n", "SyntaxError: "),
    "exit": ("import sys\nsys.exit(3)\n", "called sys.exit(3) while it was read. A study file gets no arguments"),
    "arguments": (
        "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('needed')\nparser.parse_args()\n",
        "called sys.exit(2) while it was read",
    ),
    "nothing": ("x = 3\n", "must define a variable `study` that is an argosy.Study; found none."),
    "raises": ("def f():\n    return 1 / 0\nf()\n", "line 2, in f\n    return 1 / 0"),
    "unpicklable": (
        HEAD + "lock = __import__('threading').Lock()\n"
        "study = studies.study(fleet=[studies.member('m', augment=lambda batch: lock and batch)])\n",
        "member 'm' cannot be sent to another process",
    ),
    "prints": (
        HEAD + "import sys, os\nassert len(sys.argv) == 1 and sys.argv[0].endswith('prints.py')\n"
        "print('x', end='')\nos.write(1, b'y')\nstudy = studies.study(fleet=[studies.member('m')])\n",
        "",
    ),
    "beside": (HEAD + "import beside_it\nstudy = studies.study(fleet=[studies.member('m')])\n", ""),
    "ends": ("import os\nos._exit(0)\n", "did not run to its end (exit status 0)"),
    "behind": (HEAD + "study = studies.study(fleet=[studies.member('m')])\n", ""),
}


def rehearsed(copies: dict[str, StudyCopy]) -> dict[str, RehearsalResult]:
    """Return the results of rehearsing these copies, in as many processes as it takes."""
    found: dict[str, RehearsalResult] = {}
    while left := {name: copy for name, copy in copies.items() if name not in found}:
        process = Rehearsal.start(left)
        while (results := process.results()) is None:
            subprocess.run(["sleep", "0.1"], check=True)
        found |= results
    return found


def test_files_are_read_first_where_they_can_do_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "beside_it.py").write_text("")
    copies, folder = {}, tmp_path / "commands"
    folder.mkdir()
    for number, (name, (text, _)) in enumerate(FILES.items()):
        (tmp_path / f"{name}.py").write_text(text)
        copies[name] = StudyCopy.take(tmp_path / f"{name}.py", folder / f"{number}-{name}.py")
        (tmp_path / f"{name}.py").unlink()
    found = rehearsed(copies)
    for name, (_, problem) in FILES.items():
        assert problem in found[name].problem, name
        assert bool(problem) == bool(found[name].problem), found[name].problem
    assert found["beside"].modules == {"beside_it": str(tmp_path / "beside_it.py")}
    monkeypatch.setattr(rehearsal, "LIMIT_SECONDS", 0.5)
    (tmp_path / "ever.py").write_text("while True: pass\n")
    copy = StudyCopy.take(tmp_path / "ever.py", folder / "ever.py")
    assert "(no result within 0.5 s)" in rehearsed({"ever": copy})["ever"].problem


LATE = HEAD + "study = studies.study(90, fleet=[{fleet}], epochs=2)\n"
REFUSED = {
    "large": (
        "studies.member('large', batch_size=91, drop_last=True)",
        "batch_size 91 is larger than its 90 training samples",
    ),
    "norm": ("studies.member('norm', batch_size=89)", "the last batch of each epoch would hold 1 sample"),
    "factory": (
        "studies.member('factory', model=studies.partial(studies.Mlp, width=3))",
        "member 'factory' failed while it was measured: TypeError: ",
    ),
    "metric": ("studies.member('metric', metrics={})", "does not report the objective 'val_accuracy'"),
    "here": ("studies.member('one')", "all members of the study are already in the run or being added."),
    "twice": (
        "*[studies.member(name, model=studies.partial(studies.Mlp, width=3)) for name in ('bad', 'worse')]",
        "failed while it was measured: TypeError: ",
    ),
    "half": (
        "studies.member('good'), studies.member('half', hidden=9, batch_size=89)",
        "the last batch of each epoch would hold 1 sample",
    ),
}


def answers_of(run: Path) -> dict[str, str]:
    """Return the answers of a run by the path of the added file, or by the command."""
    lines = evidence.event_lines(run, "Answered")
    return {str(line["command"].get("study", line["command"]["command"])): line["answer"] for line in lines}


def test_what_cannot_join_is_refused_in_the_answer_and_what_can_is_read_from_its_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    living.trusting(monkeypatch)
    run, texts = tmp_path / "run", {name: LATE.format(fleet=fleet) for name, (fleet, _) in REFUSED.items()}
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "nets_beside.py").write_text("from studies import Mlp\n")
    texts["sub/good"] = "import nets_beside\n" + LATE.format(
        fleet="studies.member('late', batch_size=9, model=studies.partial(nets_beside.Mlp, 8))"
    )
    left: list[Any] = []

    def act(driver: Driver) -> None:
        if not left:
            for name, text in texts.items():
                file = tmp_path / f"{name}.py"
                file.write_text(text)
                left.append(inbox.write_command(run, {"command": "add", "study": str(file)}))
                file.write_text("raise RuntimeError('nobody reads the file itself again')\n")
            (run / "commands" / "0-noise.json").write_text("{")
            (run / "commands" / "1-dance.json").write_text('{"command": "dance"}')
            (run / "commands" / "2-add.json").write_text('{"command": "add", "study": "/etc/passwd"}')
        elif len(left) == len(texts) and driver.members.addition("late"):
            left.append(inbox.write_command(run, {"command": "stop", "member": "late"}))
            clone = {"member": "late", "name": "later", "set": {"optimizer.lr": 0.1}, "warm": False}
            inbox.write_command(run, {"command": "clone", **clone})

    living.at_every_round(monkeypatch, act)
    fleet = [studies.member("one", batch_size=17), studies.member("two", hidden=8, batch_size=12)]
    study = studies.study(90, val=11, fleet=fleet, epochs=4, objective="val_accuracy", mode="max")
    living.run(study, run, devices="cpu:2", block_size=16)
    answers = answers_of(run)
    for name, (_, message) in REFUSED.items():
        answer = answers[str(tmp_path / f"{name}.py")]
        assert answer.startswith("refused: ")
        assert message in answer
    assert answers[str(tmp_path / "sub" / "good.py")] == "added late"
    assert answers["stop"] == "refused: late is still being added. Stop it once that request is answered."
    assert answers["clone"] == "refused: member 'late' is still being added. Clone it once that request is answered."
    assert answers["dance"].startswith(
        "refused: unknown command 'dance'; choose stop (with or without a member), add or clone."
    )
    assert answers["/etc/passwd"].endswith("does not name a copy of a study file. Use argosy add.")
    assert any("unknown command" in answer and "Expecting" in answer for answer in answers.values())
    assert "TypeError" in (run / "members" / "factory" / "log.txt").read_text()
    state, late = living.state_of(run), studies.member("late", batch_size=9, hidden=8)
    assert {name: member.status for name, member in state.members.items() if member.sections} == {
        "one": "done",
        "two": "done",
        "late": "done",
    }
    assert not [line for line in evidence.event_lines(run, "MemberEnded") if line["status"] == "failed"]
    assert set(read_study(run)["members"]) == {"one", "two", "late"}
    living.equal_alone(studies.study(90, val=11, fleet=[*fleet, late]), run, "one", "two", "late")
    # The same command restores the added members from the copy of their file, which must match its recorded hash.
    (copy,) = (run / "commands").glob("*-good.py")
    text = copy.read_text()
    for change, found in ((lambda: copy.write_text(text + "\n"), "has changed since"), (copy.unlink, "is missing")):
        change()
        before = (run / "journal.jsonl").read_bytes()
        with pytest.raises(RunError, match=f"{copy.name}, from which members were added, {found}"):
            living.run(study, run, devices="cpu:2", block_size=16)
        assert (run / "journal.jsonl").read_bytes() == before
    copy.write_text(text)
    assert {row.status for row in living.run(study, run, devices="cpu:2", block_size=16).rows} == {"done"}


def test_networks_of_members_that_joined_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clones are known from the journal; the study of an added file is the user's code, and only the user passes it."""
    living.trusting(monkeypatch)
    run, file = tmp_path / "run", tmp_path / "more.py"
    file.write_text(LATE.format(fleet="studies.member('late', hidden=8)"))
    commands: list[dict[str, Any]] = [
        {"command": "add", "study": str(file)},
        {"command": "clone", "member": "one", "name": "cold", "set": {"optimizer.lr": 0.1}, "warm": False},
        {"command": "clone", "member": "late", "name": "later", "set": {"optimizer.lr": 0.1}, "warm": False},
    ]

    def act(driver: Driver) -> None:
        needed = commands[0].get("member", "one") if commands else ""
        if needed in driver.run.study.names and not driver.members.addition(needed):
            inbox.write_command(run, commands.pop(0))

    living.at_every_round(monkeypatch, act)
    study = studies.study(90, val=11, fleet=[studies.member("one")], epochs=4)
    report = argosy.train(study, directory=run, launcher="inline")
    names = {"one", "late", "cold", "later"}
    assert {row.name for row in report.rows} == names
    weights = {name: report.member(name).load().state_dict() for name in names}
    assert "study=[study, added]).member(" in str(report)
    alone = argosy.load(run, study=study)
    assert alone.member("cold").load().state_dict().keys() == weights["cold"].keys()
    with pytest.raises(RunError, match=r"'late', only one, cold\. Pass the run's own study or"):
        alone.member("late").load()
    added = load_study(file)
    together = argosy.load(run, study=[study, added, added])  # files of two additions may name the same member
    for name in names:
        found = together.member(name).load().state_dict()
        assert all(map(torch.equal, found.values(), weights[name].values()))
    assert len(together.ensemble().scores) == 5  # its own, and those of four members


def arrays(length: int) -> argosy.Data:
    rows = torch.arange(12 * length).reshape(length, 12)
    return argosy.Data(arrays=(rows / rows.max(), rows[:, 0] % 4))


def test_members_of_another_seed_or_other_samples_are_not_trained_as_if_they_were_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = "[studies.member('late')]"
    files = {
        "seed": f"study = studies.study(data=arrays(40), fleet={fleet}, seed=3)",
        "data": f"study = studies.study(data=arrays(41), fleet={fleet})",
        "same": f"study = studies.study(data=arrays(40), fleet={fleet})",
    }
    monkeypatch.setattr(inbox, "POLL_SECONDS", 0.0)
    (tmp_path / "run").mkdir()
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(f"{HEAD}from test_additions import arrays\n{text}\n")
        inbox.write_command(tmp_path / "run", {"command": "add", "study": str(tmp_path / f"{name}.py")})
    argosy.train(
        studies.study(data=arrays(40), fleet=[studies.member()]), directory=tmp_path / "run", launcher="inline"
    )
    answers = {Path(file).stem: answer for file, answer in answers_of(tmp_path / "run").items()}
    ways = ". All members of a run share seed and data. Create it from the run's study: dataclasses.replace(study, members=[...])."
    assert answers["seed"] == f"refused: its study has seed 3 (the run: 0){ways}"
    assert answers["data"] == f"refused: its study has different samples in Data.train{ways}"
    assert answers["same"] == "added late"


def test_a_module_of_another_folder_is_not_taken_for_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "studies.py").write_text("from argosy import *\n")
    (tmp_path / "module_of_the_folder.py").write_text("")
    both = {"module_of_the_folder": str(tmp_path / "module_of_the_folder.py"), "studies": str(tmp_path / "studies.py")}
    monkeypatch.setattr(living, "RehearsalResult", lambda: RehearsalResult(modules=both))
    living.trusting(monkeypatch)
    (tmp_path / "newcomers.py").write_text(LATE.format(fleet="studies.member('late')"))
    run, left = tmp_path / "run", list[str]()

    class Adding(Silent):
        def tick(self, phase: Phase) -> None:
            if not left:
                left.append(inbox.write_command(run, {"command": "add", "study": str(tmp_path / "newcomers.py")}))

    living.run(studies.study(90, fleet=[studies.member()], epochs=1), run, view=Adding())
    (answer,) = answers_of(run).values()
    assert answer == (
        f"refused: its module 'studies' is {tmp_path / 'studies.py'}, but in the run a module of that name is "
        f"{studies.__file__}. Rename it."
    )


def test_a_module_that_was_changed_since_the_run_began_is_not_taken_for_what_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, answers = tmp_path / "of_newcomers.py", list[str]()
    file.write_text("def turned(batch):\n    return batch\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "of_newcomers", sys)  # so that the undo removes the module after the test
    monkeypatch.delitem(sys.modules, "of_newcomers")
    importlib.import_module("of_newcomers")
    monkeypatch.setattr(inbox, "POLL_SECONDS", 0.0)
    for name in ("late", "later"):
        run = tmp_path / name
        run.mkdir()
        text = LATE.format(fleet=f"studies.member({name!r}, augment=of_newcomers.turned)")
        (tmp_path / f"{name}.py").write_text(f"import of_newcomers\n{text}")
        inbox.write_command(run, {"command": "add", "study": str(tmp_path / f"{name}.py")})
        argosy.train(studies.study(90, fleet=[studies.member()], epochs=2), directory=run, launcher="inline")
        answers += answers_of(run).values()
        file.write_text("def turned(batch):\n    return batch[0] * 2, batch[1]\n")
    assert answers[0] == "added late"
    assert answers[1].startswith("refused: of_newcomers.turned: not the same in all processes of the run")


def test_where_no_process_can_be_started_an_addition_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(copies: Any) -> Rehearsal:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(Rehearsal, "start", refuse)
    monkeypatch.setattr(inbox, "POLL_SECONDS", 0.0)
    (tmp_path / "newcomers.py").write_text("")
    (tmp_path / "run").mkdir()
    inbox.write_command(tmp_path / "run", {"command": "add", "study": str(tmp_path / "newcomers.py")})
    study = studies.study(90, fleet=[studies.member()], epochs=1)
    assert argosy.train(study, directory=tmp_path / "run", launcher="inline").status == "done"
    (answer,) = answers_of(tmp_path / "run").values()
    assert answer.startswith("refused: no process could be started to read it ([Errno 11]")


def test_commands_print_their_answers(tmp_path: Path) -> None:
    def argosy_command(*words: str) -> tuple[int, str, str]:
        found = forked.command(tmp_path, words)
        return found.returncode, found.stdout, found.stderr

    run, file = Run(tmp_path / "run", epochs=400), tmp_path / "more.py"
    run.wait_for("SectionEnded", 1)
    (tmp_path / "beside_it.py").write_text("from studies import Mlp\n")
    file.write_text("def study(:\n")
    where = str(run.directory)
    code, out, _ = argosy_command("add", where, str(file), "--json")
    assert (code, json.loads(out)["refused"]) == (2, True)
    assert "SyntaxError" in json.loads(out)["answer"]
    assert f'{file} cannot be read:\n  File "{file}", line 1' in json.loads(out)["answer"]
    text = (
        HEAD
        + "import beside_it\nstudy = studies.study(fleet=[studies.member('late', model=beside_it.Mlp)], epochs=1)\n"
    )
    file.write_text(text)
    assert argosy_command("add", where, str(file)) == (0, "added late\n", "")
    assert argosy.load(where).status == "running"
    words = ("clone", where, "plain", "twin", "--set", "optimizer.lr=0.01", "--warm", "--json")
    code, out, _ = argosy_command(*words)
    assert (code, json.loads(out)) == (0, {"schema": 1, "answer": "added twin", "refused": False})
    ended = sum(line["event"] == "SectionEnded" for line in run.lines())
    rows = json.loads(argosy_command("status", where, "--wait", "--json")[1])["members"]
    assert {row["member"] for row in rows} > {"plain", "late", "twin"}
    assert sum(line["event"] == "SectionEnded" for line in run.lines()) > ended
    code, out, _ = argosy_command("stop", where, "nobody")
    assert code == 2
    assert out.startswith("refused: no member 'nobody' is training; members that can be stopped: ")
    code, out, _ = argosy_command("stop", where, "slow", "nobody", "--json")
    said = json.loads(out)
    assert (code, said["refused"]) == (2, True), "one of two stops was refused"
    assert said["answer"].startswith("slow has been saved and stopped\nrefused: no member 'nobody' is training"), (
        "the other stop was carried out"
    )
    run.process.terminate()
    assert run.end() in (0, 130, -15), run.errors
    code, _, errors = argosy_command("stop", where, "plain")
    assert code == 2
    assert "Start it again before you send it a request" in " ".join(errors.split())
    assert audit(run.directory) == []
    assert living.state_of(run.directory).member("late").stream_epoch(0), (
        "the added member did not join members that were training"
    )


def test_a_command_to_a_run_that_ends_says_so_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = studies.study(90, fleet=[studies.member("m")], epochs=1)
    argosy.train(study, directory=tmp_path, launcher="inline")
    with pytest.raises(
        RunError,
        match="has ended \\(done\\)\\. To train more members, write them into its study file, and start it again",
    ):
        inbox.send_commands(tmp_path, {"command": "stop", "member": "m"})
    (tmp_path / "more.py").write_text("")
    works = iter([True, True, False])
    monkeypatch.setattr(inbox, "has_driver", lambda directory: next(works))
    monkeypatch.setattr(
        inbox, "_read_answers", lambda journal, start: {names[0]: "m has been saved and stopped"} if names else {}
    )
    names, leave = list[str](), inbox.write_command

    def noted(directory: Path, command: dict[str, Any]) -> str:
        names.append(leave(directory, command))
        return names[-1]

    monkeypatch.setattr(inbox, "write_command", noted)
    with pytest.raises(RunError, match=r"and only this was done: m has been saved and stopped\. Start it again"):
        inbox.send_commands(tmp_path, *({"command": "stop", "member": member} for member in "mn"))
    assert [path.name for path in (tmp_path / "commands").iterdir()] == names[:1], (
        "a command without an answer left a file"
    )
    (tmp_path / "commands" / names[0]).unlink()
    monkeypatch.undo()
    works = iter([True, True, False])
    monkeypatch.setattr(inbox, "has_driver", lambda directory: next(works))
    with pytest.raises(RunError, match="ended before it carried out this request, and nothing was changed"):
        inbox.send_commands(tmp_path, {"command": "add", "study": str(tmp_path / "more.py")})
    assert not list((tmp_path / "commands").iterdir())


def test_a_command_that_is_interrupted_says_that_its_request_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    argosy.train(
        studies.study(90, fleet=[studies.member("m")], epochs=1), directory=tmp_path, launcher="inline", quiet=True
    )
    file = tmp_path / ("\u8239" * 84 + ".py")  # 255 bytes, as many as a name may have
    file.write_text("")
    works = iter([True, KeyboardInterrupt()])

    def has_driver(directory: Path) -> bool:
        if isinstance(answer := next(works), KeyboardInterrupt):
            raise answer
        return answer

    monkeypatch.setattr(inbox, "has_driver", has_driver)
    with pytest.raises(KeyboardInterrupt):
        steer.add(tmp_path, file)
    assert "will still carry out the request, or its next driver will" in " ".join(capsys.readouterr().err.split())
    assert sorted(path.suffix for path in (tmp_path / "commands").iterdir()) == [".json", ".py"]
