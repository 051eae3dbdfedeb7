"""Tests that a failed member causes a warning with its reason and the user's own line, or that all of them raise one error."""

import doctest
import inspect
import signal
import sys
import traceback
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import studies
import torch
from torch import Tensor, nn
from torch.optim import SGD

import argosy
from argosy.errors import ArgosyError, MemberError, MemberFailed, RunError, StudyError, wording
from argosy.stopping import History, Stop


class Failing(nn.Module):
    """A network that raises in training after this many batches."""

    def __init__(self, batches: int) -> None:
        super().__init__()
        self.batches, self.layer = batches, studies.Mlp()

    def forward(self, x: Tensor) -> Tensor:
        self.batches -= self.training
        if self.batches < 0:
            raise ValueError("no more\nthan this")
        found: Tensor = self.layer(x)
        return found


LINE = next(
    inspect.getsourcelines(Failing)[1] + number
    for number, line in enumerate(inspect.getsourcelines(Failing)[0])
    if "raise ValueError" in line
)


def fleet() -> list[argosy.Member]:
    """Return three members: one that finishes, one that raises, and one whose loss soon becomes NaN or infinite."""
    wild = studies.member("wild", optimizer=partial(SGD, lr=1e30))
    return [studies.member("good"), studies.member("bad", model=partial(Failing, 0)), wild]


def train(directory: Path, members: list[argosy.Member], *, epochs: int = 1, **rest: Any) -> argosy.Report:
    """Train members inline on a small study."""
    study = studies.study(90, fleet=members, epochs=epochs)
    return argosy.train(study, directory=directory, launcher="inline", devices="cpu:1", **rest)


def test_each_failed_member_is_a_warning_with_its_reason_and_the_users_own_line(tmp_path: Path) -> None:
    for _ in range(2):  # a notebook cell that is run again warns again
        with pytest.warns(MemberFailed) as told:
            report = train(tmp_path, fleet())
        bad, wild = sorted(f"{one.message}" for one in told)
        assert bad == (
            f"member 'bad' failed: ValueError: no more ({__file__}:{LINE}). See {tmp_path}/members/bad/log.txt, fix the cause, "
            "and train with retry_failed=True."
        )
        assert wild.startswith("member 'wild' diverged: its training loss is not a number after ")
        assert wild.endswith(
            ". Lower its learning rate, clip its gradients, or look for NaN among its samples, or for a loss that is a mean over nothing."
        )
        assert {one.filename for one in told} == {__file__}
    shown = report.ending().text(200, 50)
    assert f"'bad' failed: ValueError: no more ({__file__}:{LINE})\n" in shown
    assert "'wild' diverged: its training loss is not a number after " in shown
    argosy.load(tmp_path)  # must not warn, because whoever loads a report reads it


class Exiting(Failing):
    """A network whose code calls sys.exit, as one that parses a command line does, after this many batches."""

    def forward(self, x: Tensor) -> Tensor:
        try:
            return super().forward(x)
        except ValueError:
            sys.exit("usage: train.py --epochs N")


def test_a_member_that_calls_sys_exit_ends_alone(tmp_path: Path) -> None:
    bad = studies.member("late", model=partial(Exiting, 2)), studies.member("never", model=partial(sys.exit, 2))
    with pytest.warns(MemberFailed) as told:
        report = train(tmp_path, [studies.member("good"), *bad])
    assert report.member("good").status == "done"
    assert sorted(f"{one.message}".partition(" (")[0].partition(". See")[0] for one in told) == [
        "member 'late' failed: SystemExit: usage: train.py --epochs N",
        "member 'never' failed: SystemExit: 2; raised by its model, exit",
    ]


def interrupting(batch: Any) -> Any:
    """Interrupt the run as a person would, from within `Member.augment`."""
    signal.raise_signal(signal.SIGUSR1)
    return batch


def test_a_run_that_a_signal_pauses_warns_if_its_report_is_not_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        with pytest.warns(
            UserWarning, match=r"the run in .*run is paused: SIGUSR1; the same command resumes the run\.$"
        ):
            report = train(tmp_path / "run", [studies.member(augment=interrupting)], epochs=99, quiet=True)
        loud = train(tmp_path / "other", [studies.member(augment=interrupting)], epochs=99)
        # As in a notebook, of which further cells run.
        monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
        with pytest.warns(UserWarning, match="cell is paused: SIGUSR1"):
            train(tmp_path / "cell", [studies.member(augment=interrupting)], epochs=99)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert report.status == loud.status == "paused"
    assert train(tmp_path / "late", [studies.member()], epochs=9999, quiet=True, time_limit=0.01).status == "paused"


@pytest.mark.parametrize("signals", [1, 2])
def test_a_handler_that_exits_ends_the_script_and_no_member(tmp_path: Path, signals: int) -> None:
    """The members' code that it interrupts has not called sys.exit."""
    left = signals

    def leave(number: int, frame: Any) -> None:
        nonlocal left
        left -= 1
        if not left:
            sys.exit(7)

    before = signal.signal(signal.SIGUSR1, leave)
    try:
        with pytest.raises(SystemExit, match="7"):
            train(tmp_path, [studies.member(augment=interrupting)])
        assert signal.getsignal(signal.SIGUSR1) is leave
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert [row.status for row in argosy.load(tmp_path).rows] == ["waiting"]


def test_failures_are_raised_at_the_end_where_that_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(MemberError, match="2 of 3 members failed or diverged; the others were trained") as raised:
        train(tmp_path, fleet(), raise_on_failure=True)
    assert "\n  'wild' diverged: its training loss" in str(raised.value)
    assert f"\n  'bad' failed: ValueError: no more ({__file__}:{LINE})" in str(raised.value)
    assert argosy.load(tmp_path).member("good").status == "done"
    assert train(tmp_path / "sound", fleet()[:1], raise_on_failure=True).status == "done"


def test_what_a_failed_member_had_reached_is_never_the_best(tmp_path: Path) -> None:
    members = [studies.member("slow", lr=1e-5), studies.member("bad", model=partial(Failing, 12), lr=0.1)]
    study = studies.study(90, fleet=members, epochs=4)
    with pytest.warns(MemberFailed, match="'bad' failed"):
        report = argosy.train(study, directory=tmp_path, launcher="inline", devices="cpu:1")
    slow, bad = report.rows
    assert bad.metrics["val_loss"] < slow.metrics["val_loss"]
    assert report.best() is slow
    assert report.leader is not None and report.leader.name == "slow"
    assert report.ensemble().names == ("slow",)
    assert report.ensemble(members=["bad", "slow"]).names == ("slow", "bad")
    with pytest.raises(RunError, match="2 members, but only 1 of"):
        report.ensemble(top=2)


class Flag(Stop):
    """A rule that returns whether to stop, where the reason is wanted."""

    def reason(self, history: History) -> Any:
        """Return a bool after the first section."""
        return True if history else None


class Misspelt(Stop):
    """A rule that reads a column which there is not."""

    def reason(self, history: History) -> str | None:
        """Raise after the first section."""
        return f"{history[-1]['val_los']}" if history else None


class Waiting(Stop):
    """A rule that counts sections by itself, as callbacks of other libraries do."""

    def __init__(self) -> None:
        self.worse = 0

    def reason(self, history: History) -> str | None:
        """Count a call after a section."""
        self.worse += bool(history)
        return "three sections" if self.worse > 2 else None


WRONG = {
    "returned True; it must return": Flag(),
    "raised:.*val_los": Misspelt(),
    r"changes its attributes \(worse\) when it is asked": Waiting(),
}


@pytest.mark.parametrize(("told", "rule"), WRONG.items())
def test_a_run_goes_on_after_a_stopping_rule_that_was_wrong_is_mended(told: str, rule: Stop, tmp_path: Path) -> None:
    study = studies.study(90, fleet=[studies.member("one")], epochs=2)
    with pytest.raises(StudyError, match=f"(?s)^member 'one': its stopping rule {told}.*Fix the rule"):
        argosy.train(replace(study, stop=study.stop | rule), directory=tmp_path, launcher="inline", devices="cpu:1")
    assert argosy.load(tmp_path).status == "failed"
    assert argosy.train(study, directory=tmp_path, launcher="inline", devices="cpu:1").best().epochs == 2


def test_fit_and_tune_say_it_as_well(tmp_path: Path) -> None:
    x, y = torch.randn(60, 12).numpy(), torch.arange(60).remainder(10).numpy()
    members = [studies.member("good"), studies.member("bad", model=partial(Failing, 0))]
    terms = {"launcher": "inline", "devices": "cpu:1", "stop": argosy.MaxEpochs(1)}
    with pytest.warns(MemberFailed, match="'bad' failed"):
        argosy.fit(x, y, members, **terms)
    with pytest.raises(MemberError, match="1 of 2 members failed or diverged"):
        argosy.fit(x, y, members, raise_on_failure=True, **terms)


def test_a_cause_is_what_was_raised_and_the_users_own_line() -> None:
    found = doctest.testmod(wording)
    assert found.attempted and not found.failed
    lines = [
        "Traceback (most recent call last):",
        '  File "/home/me/net.py", line 3, in forward',
        "    return self.layers(x)",
        "           ^^^^^^^^^^^^^^",
        '  File "/usr/lib/python3/site-packages/timm/layers.py", line 7, in forward',
        "    raise ValueError",
    ]
    assert wording.cause_of("\n".join([*lines, "ValueError: bad\n  twice"])) == "ValueError: bad (/home/me/net.py:3)"
    again = [*lines, "KeyError: 'x'", "", "The above exception was the direct cause:", "", *lines[:3], "RuntimeError"]
    assert wording.cause_of("\n".join(again)) == "RuntimeError (/home/me/net.py:3)"
    assert wording.cause_of("\n".join([lines[0], *lines[4:], "ValueError: bad"])).endswith("timm/layers.py:7)")
    alone = traceback.format_exception_only(SyntaxError("bad", ("net.py", 3, 1, "x = (")))
    assert wording.cause_of("".join(alone)) == "SyntaxError: bad (net.py:3)"
    assert wording.cause_of("StudyError: member 'x': its model factory returned None.") == (
        "StudyError: member 'x': its model factory returned None."
    )


def test_a_notebook_shows_the_cells_own_frames_and_those_of_a_cause() -> None:
    def mine() -> None:
        raise ValueError("no such picture")

    def cell() -> None:
        try:
            mine()
        except ValueError as error:
            raise ArgosyError("a sample raised") from error

    def refused() -> None:
        argosy.attach("nothing")

    for runs, frames, last in (
        (refused, ["refused"], "argosy.errors.RunError: nothing holds no run"),
        (cell, ["cell", "mine", "cell"], "argosy.errors.ArgosyError: a sample raised"),
    ):
        with pytest.raises(ArgosyError) as caught:  # this test's frame takes the place of IPython's
            runs()
        lines = caught.value._render_traceback_()
        assert [line.rpartition(", in ")[2] for line in lines if line.startswith("  File ")] == frames
        assert lines[-1].startswith(last)


def test_a_plan_that_fails_has_nothing_to_retry() -> None:
    fleet = [studies.member(name, model=partial(studies.Mlp, width=8)) for name in "abc"]
    with pytest.raises(MemberError, match=r"Fix the study, and repeat this command or call\.$"):
        argosy.plan(studies.study(fleet=fleet), launcher="inline")
