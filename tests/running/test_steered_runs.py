"""Tests runs steered by an ensemble: decisions depend only on the members' answers, and members get the same results as alone."""

import math
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import evidence
import forked
import numpy as np
import pytest
import studies
import torch
from living import equal_alone, run, state_of
from torch import nn
from torch.optim import SGD

import argosy
from argosy import EnsemblePlateau, MaxEpochs
from argosy.ensembling.select import negative_log_likelihood
from argosy.errors import RunError, StudyError
from argosy.protocol.events import EnsembleChosen, Saved
from argosy.running.control.ensemble_judge import APART, EnsembleJudge, EnsembleState, extrapolate_loss, select_ensemble
from argosy.running.directory.answer_file import AnswerFile, parse_answers
from argosy.running.directory.journal import read_journal
from argosy.stream.order import permutation
from argosy.training.device.devices import open_backend
from argosy.training.member.answers import Answers

SCRIPT = """
import sys, argosy, studies
directory, launcher, devices = sys.argv[1:]
argosy.train(studies.steered(augment=studies.dawdle), directory=directory, launcher=launcher, devices=devices, numerics="exact",
             checkpoint_seconds=0.0, quiet=True)
"""
study = studies.steered


def decisions(directory: Path) -> list[EnsembleChosen]:
    """Return the ensemble's decisions in the order of the journal."""
    return state_of(directory).ensembles


def test_members_that_the_ensemble_does_without_end_and_all_are_what_they_are_alone(tmp_path: Path) -> None:
    wanted = study()
    run(wanted, tmp_path)
    equal_alone(wanted, tmp_path)
    found, state = decisions(tmp_path), state_of(tmp_path)
    assert [one.section for one in found] == list(range(1, len(found) + 1))
    for name, here in state.members.items():
        idle = [one.section for one in found if name not in one.useful]
        gone = next((n for n in idle if n - 1 in idle), None)
        if "no use to the ensemble" in here.reason:
            assert len(here.sections) == gone, name
        else:
            assert gone is None or len(here.sections) <= gone, name
    assert len({len(here.sections) for here in state.members.values()}) > 1, "no member ended before the others"


def test_a_decision_is_of_the_best_sections_so_far_and_what_is_held_out_takes_no_part(tmp_path: Path) -> None:
    x, y = PAIRS
    wanted = replace(study(patience=20, epochs=3), data=argosy.Data(arrays=PAIRS, val_arrays=PAIRS))
    report = run(wanted, tmp_path)
    last, terms = decisions(tmp_path)[-1], {}
    for name in wanted.names:
        with torch.no_grad():
            terms[name] = report.member(name).load().eval()(x).softmax(1).gather(1, y[:, None]).numpy()
    again = select_ensemble(last.section, terms, {}, negative_log_likelihood, holdout=0.25, seed=wanted.seed)
    assert again.weights == pytest.approx(last.weights)
    assert again.loss == pytest.approx(last.loss, abs=1e-5)
    assert again.held_out == pytest.approx(last.held_out, abs=1e-5)
    # Changed answers to held-out samples change no weight; changed answers to the other samples do.
    apart = permutation(wanted.seed, APART, 40)[:10]
    worst = min(last.weights, key=lambda name: last.weights[name])
    for rows, same in ((apart, True), (np.setdiff1d(np.arange(40), apart), False)):
        better = terms[worst].copy()
        better[rows] = 1.0
        other = select_ensemble(
            last.section, {**terms, worst: better}, {}, negative_log_likelihood, holdout=0.25, seed=wanted.seed
        )
        assert (other.weights == again.weights) is same
    assert (
        select_ensemble(last.section, terms, {}, negative_log_likelihood, holdout=0.0, seed=wanted.seed).held_out
        is None
    )


def test_a_loss_that_falls_by_one_power_comes_to_where_that_leads_and_one_that_rises_stays() -> None:
    losses = [3.0 * section**-0.7 for section in range(1, 26)]
    assert extrapolate_loss(losses[9], losses[4], section=10, back=5) == pytest.approx(losses[24])
    assert extrapolate_loss(losses[9], losses[8], section=10, back=1) == pytest.approx(losses[24])
    assert extrapolate_loss(2.0, 1.0, section=100_000, back=5) == 2.0
    assert extrapolate_loss(0.0, 0.0, section=10, back=5) == 0.0


def test_of_use_is_also_a_member_that_is_on_its_way_and_one_of_which_nothing_is_known() -> None:
    # Enough good members that every drawn half contains one.
    answers = {**{f"good{number}": 0.9 for number in range(6)}, "late": 0.2, "slow": 0.2, "young": 0.2}
    terms = {name: np.full((20, 1), right, dtype=np.float32) for name, right in answers.items()}
    reach = -math.log(0.9)
    expected = {**dict.fromkeys(terms, math.inf), "late": 0.99 * reach, "slow": 1.01 * reach}
    del expected["young"]
    found = select_ensemble(4, terms, expected, negative_log_likelihood, holdout=0.25, seed=0)
    assert {*found.useful} & {"late", "slow", "young"} == {"late", "young"}
    assert not any(found.weights[name] for name in ("late", "slow", "young"))


def test_members_end_by_sections_of_no_use_and_all_by_twice_as_many_without_a_better_ensemble() -> None:
    standing, found = EnsembleState(EnsemblePlateau(patience=3)), []
    for section in range(1, 9):
        of_use = ("a", "b", "c") if section == 1 else ("a", "b") if section == 3 else ("a",)
        found.append(
            EnsembleChosen(
                section=section,
                weights={"a": 1.0, "b": 0.0, "c": 0.0},
                useful=of_use,
                loss=0.5,
                held_out=1.0 / min(section, 2),
            )
        )
        standing.follow(found)
        assert (standing.dropped.get("c"), standing.dropped.get("b")) == (
            4 if section >= 4 else None,
            6 if section >= 6 else None,
        )
        assert standing.over == (8 if section >= 8 else None)
        assert standing.last("a") >= section
    assert standing.reason("a") == "the ensemble has not improved for 6 sections"
    assert standing.reason("b") == "of no use to the ensemble for 3 sections"


def test_what_is_decided_follows_from_the_answers_in_the_file(tmp_path: Path) -> None:
    rates = [*(0.05 - 0.0001 * number for number in range(8)), 0.042, 0.036, 0.03]
    fleet = [studies.member(f"m{number}", optimizer=partial(SGD, lr=rate)) for number, rate in enumerate(rates)]
    back, on_the_way = 3, 0
    wanted = studies.study(
        fleet=fleet, length=120, val=60, epochs=12, ensemble=EnsemblePlateau(patience=back, holdout=0.25)
    )
    run(wanted, tmp_path)
    file, state = AnswerFile(tmp_path / "answers.bin"), state_of(tmp_path)
    answers = file.read()
    file.close()
    on = np.setdiff1d(np.arange(60), permutation(wanted.seed, APART, 60)[:15])
    for one in decisions(tmp_path):
        terms, expected = {}, {}
        for name in wanted.names:
            here = state.members[name]
            best = [
                max(n for n, row in enumerate(here.sections[:end], 1) if row.best)
                for end in (one.section, max(one.section - back, 1))
            ]
            terms[name] = answers[name, best[0]]
            now, then = (float(-np.log(answers[name, at][on]).mean()) for at in best)
            if one.section > 1:
                expected[name] = extrapolate_loss(now, then, section=one.section, back=min(back, one.section - 1))
        again = select_ensemble(one.section, terms, expected, negative_log_likelihood, holdout=0.25, seed=wanted.seed)
        assert again == one, one.section
        without = select_ensemble(
            one.section, terms, dict.fromkeys(terms, math.inf), negative_log_likelihood, holdout=0.25, seed=wanted.seed
        )
        on_the_way += one.section > 1 and 0 < len(one.useful) - len(without.useful) < len(one.useful)
    assert on_the_way, "no member was kept for its extrapolated loss alone"


def test_decisions_depend_on_no_device_and_members_that_take_turns_are_what_they_are_alone(tmp_path: Path) -> None:
    found = []
    for devices in ("cpu:1", "cpu:2"):
        run(study(), tmp_path / devices, devices=devices)
        found.append((decisions(tmp_path / devices), evidence.results(tmp_path / devices)))
    assert found[0] == found[1]
    run(study(), tmp_path / "turns", devices="cpu:1", policy="rounds")
    equal_alone(study(), tmp_path / "turns")
    assert any("no use" in here.reason for here in state_of(tmp_path / "turns").members.values())


def test_a_run_that_is_killed_decides_as_if_nothing_had_been(tmp_path: Path) -> None:
    assert forked.script(SCRIPT, str(tmp_path / "whole"), "inline", "cpu:1", err=2).wait() == 0
    killed = tmp_path / "killed"

    def saved() -> int:
        return (
            sum(isinstance(event, Saved) for event in read_journal(killed))
            if (killed / "journal.jsonl").exists()
            else 0
        )

    for _ in range(3):
        before, process = saved(), forked.script(SCRIPT, str(killed), "processes", "cpu:2", err=2)
        while saved() < before + 6 and process.poll() is None:
            time.sleep(0.01)
        if process.poll() is None:
            process.kill()
            process.wait()
    assert forked.script(SCRIPT, str(killed), "processes", "cpu:2", err=2).wait() == 0
    # A decision that an earlier driver journaled is not made again.
    assert decisions(killed) == decisions(tmp_path / "whole")
    assert evidence.results(killed) == evidence.results(tmp_path / "whole")


def test_pixels_of_one_sample_are_held_out_together_and_those_without_a_class_count_for_nothing() -> None:
    member = argosy.Member("a", model=partial(nn.Conv2d, 1, 3, 1), optimizer=SGD, batch_size=4)
    answers = Answers(member, open_backend("cpu"))
    output = torch.randn(6, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    target = torch.randint(0, 3, (6, 2, 2), generator=torch.Generator().manual_seed(1))
    target[:, 0, 0] = -100
    answers.add(output[:4], target[:4])
    answers.add(output[4:], target[4:])
    told = answers.whole()
    assert told is not None and told[0] == 4
    found = select_ensemble(1, {"a": parse_answers(*told)}, {}, negative_log_likelihood, holdout=0.5, seed=3)
    apart = torch.from_numpy(permutation(3, APART, 6)[:3])
    loss = nn.functional.cross_entropy(output[apart], target[apart])
    assert found.held_out == pytest.approx(float(loss), abs=1e-6)


def test_a_run_that_began_without_an_ensemble_is_not_ended_by_sections_of_which_nothing_is_known(
    tmp_path: Path,
) -> None:
    wanted = study(epochs=10)
    run(replace(wanted, ensemble=None, stop=MaxEpochs(5)), tmp_path)
    report = run(wanted, tmp_path)
    assert all(len(here.sections) > 5 for here in state_of(tmp_path).members.values())
    assert any(one.useful for one in report.ensembles) and not report.ensembles[0].useful


def test_a_member_that_answers_another_question_is_not_added(tmp_path: Path) -> None:
    rule, member = EnsemblePlateau(), studies.member("a")
    steering = EnsembleJudge(
        argosy.Study(data=studies.data("drawn", 40), members=[member], ensemble=rule), rule, tmp_path
    )
    steering.check([studies.member("b")])
    with pytest.raises(StudyError, match=r"'c'.*all predict numbers"):
        steering.check([studies.member("c", loss=nn.MSELoss(), metrics={})])
    steering.close()


def test_numbers_are_compared_by_their_squared_error(tmp_path: Path) -> None:
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    data = argosy.Data(arrays=(x, x[:, :1]), val_arrays=(x[:32], x[:32, :1]))
    members = [
        argosy.Member(
            name, model=partial(nn.Linear, 4, 1), optimizer=partial(SGD, lr=rate), batch_size=16, loss=nn.MSELoss()
        )
        for name, rate in (("a", 0.3), ("b", 0.1))
    ]
    rule = EnsemblePlateau(patience=3, holdout=0)
    run(argosy.Study(data=data, members=members, stop=MaxEpochs(3), ensemble=rule), tmp_path)
    last, state = decisions(tmp_path)[-1], state_of(tmp_path)
    alone = min(here.best.metrics["val_loss"] for here in state.members.values() if here.best is not None)
    assert last.held_out is None and last.loss <= alone * (1 + 1e-6)


def test_a_record_that_a_crash_has_torn_is_cut_off_and_another_file_is_refused(tmp_path: Path) -> None:
    run(study(epochs=2), tmp_path)
    file = tmp_path / "answers.bin"
    whole = file.read_bytes()
    file.write_bytes(whole + b'{"member": "a", "section": 9, "each": 1, "bytes": 40}\nhalf')
    run(study(epochs=2), tmp_path)
    assert file.read_bytes() == whole
    file.write_bytes(b"{}\n" + whole)
    with pytest.raises(argosy.ArgosyError, match="is not the answer file"):
        run(study(epochs=3), tmp_path)


def test_answers_that_are_lost_or_damaged_are_refused_when_they_are_needed(tmp_path: Path) -> None:
    run(study(epochs=2), tmp_path)
    file = tmp_path / "answers.bin"
    whole = file.read_bytes()
    for damaged in (b"", whole[: whole.rindex(b"{")], whole[:-1] + bytes([whole[-1] ^ 1])):
        file.write_bytes(damaged)
        run(study(epochs=2), tmp_path)  # nothing is left to decide
        with pytest.raises(
            RunError, match=r"lacks sound answers of member '.' in its section \d, .* Restore that file, omit"
        ):
            run(study(epochs=3), tmp_path)
    file.write_bytes(whole)
    run(study(epochs=3), tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"ensemble": 5}, "must be an argosy.EnsemblePlateau"),
        ({"stop": EnsemblePlateau()}, "Set it as Study"),
        ({"data": argosy.Data(train=studies.Vectors(40))}, "Data has none"),
    ],
)
def test_what_an_ensemble_cannot_steer_is_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises(StudyError, match=said):
        replace(study(), **change)  # type: ignore[arg-type]


PAIRS = (torch.randn(40, 12, generator=torch.Generator().manual_seed(1)), torch.arange(40) % 10)
