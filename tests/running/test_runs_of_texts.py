"""Tests that runs over samples of different lengths give the results of a plain loop, however they are stepped or interrupted."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import evidence
import forked
import pytest
import splits
import texts
import torch
from torch.nn import functional

import argosy
from argosy.errors import MemberFailed
from argosy.protocol.events import Saved
from argosy.results.fold import RunState
from argosy.running.directory.audit import audit
from argosy.running.directory.journal import read_journal

SCRIPT = """
import sys, argosy, studies, texts
directory, launcher, devices, workers, nodes = sys.argv[1:]
slow = {"augment": studies.dawdle}
study = texts.study(texts.member("a", **slow), texts.member("b", batch_size=3, batch_tokens=60, **slow), sort=texts.Lines, length=400)
argosy.train(study, directory=directory, launcher=launcher, devices=devices, loader_workers=int(workers), nodes=int(nodes),
             numerics="exact", checkpoint_seconds=0.0)
"""


@pytest.mark.parametrize(("sections", "block_size"), [(1, 64), (3, 100)])
def test_members_are_what_a_plain_loop_makes_of_them(tmp_path: Path, sections: int, block_size: int) -> None:
    wanted = texts.study(*texts.fleet(), validations_per_epoch=sections)
    how: dict[str, Any] = {"launcher": "inline", "numerics": "exact", "block_size": block_size}
    argosy.train(wanted, directory=tmp_path, **how)
    assert audit(tmp_path) == []
    for member in wanted.members:
        found = evidence.results_of(tmp_path, member.name)
        weights, losses = texts.reference(member, wanted, 2)
        assert found["weights"] == weights, member.name
        state = RunState.of(read_journal(tmp_path)).members[member.name]
        assert [row.metrics["val_loss"] for row in state.sections][sections - 1 :: sections] == losses


def test_padding_to_the_longest_of_all_gives_the_same_losses(tmp_path: Path) -> None:
    names = [member.name for member in texts.fleet()]
    reports = [
        argosy.train(
            texts.study(
                *(
                    texts.member(m.name, batch_size=m.batch_size, batch_tokens=m.batch_tokens, **more)
                    for m in texts.fleet()
                ),
                length=300,
                stop=argosy.MaxEpochs(1),
            ),
            directory=tmp_path / name,
            launcher="inline",
            numerics="exact",
        )
        for name, more in {"cut": {}, "full": {"augment": texts.filled_up}}.items()
    ]
    for name in names:
        cut, full = (report.member(name).metrics["train_loss"] for report in reports)
        assert cut == pytest.approx(full, abs=1e-9), name


@pytest.mark.parametrize("own", [{"augment": texts.filled_up}, {"val_subset": range(9)}])
def test_members_with_batches_of_their_own_are_what_they_are_alone(tmp_path: Path, own: dict[str, Any]) -> None:
    """Trials of one program step on batches that differ between members and are padded alike, though the lengths of texts differ."""
    subsets = ({} if "augment" in own else {"subset": range(first, first + 60)} for first in range(4))
    members = [texts.member(f"m{n}", attends=False, **own, **subset) for n, subset in enumerate(subsets)]
    losses = []
    for name, fleet in {"together": members, "alone": members[:1]}.items():
        wanted = texts.study(*fleet, length=64, stop=argosy.MaxEpochs(1), seed=2)
        report = argosy.train(wanted, directory=tmp_path / name, launcher="inline", devices="cpu:1")
        losses.append(report.member("m0").metrics["val_loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)


def test_members_that_span_devices_or_share_a_program_are_what_they_are_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = [texts.member(name, batch_size=6, **more) for name, more in {"a": {}, "b": {"batch_tokens": 90}}.items()]
    members += [texts.member(name, attends=False) for name in ("like", "other", "third")]
    wanted = texts.study(*members, validations_per_epoch=2)
    alone = {}
    for member in members:
        one = texts.study(member, validations_per_epoch=2)
        argosy.train(one, directory=tmp_path / member.name, launcher="inline", devices="cpu:1", numerics="exact")
        alone[member.name] = splits.weights(tmp_path / member.name, member.name)

    def shares_of(name: str, asked: int) -> dict[int, float]:
        return {"a": {0: 0.5, 1: 0.3, 2: 0.2}, "b": {0: 0.6, 1: 0.4}}.get(name, {2: 1.0})

    report = splits.train(tmp_path / "run", monkeypatch, shares_of, wanted, packing="auto")
    assert audit(tmp_path / "run") == []
    splits.check(tmp_path / "run", alone)
    assert any({"like", "other", "third"} in map(set, packed.programs) for packed in report.packs), "nothing was fused"


def test_a_stream_of_texts_killed_within_a_window_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    def begun(directory: Path, launcher: str, *place: object) -> forked.Forked:
        return forked.script(SCRIPT, str(directory), launcher, *map(str, place), err=2)

    assert begun(tmp_path / "whole", "inline", "cpu:1", 0, 1).wait() == 0
    run = tmp_path / "run"

    def saved() -> list[Saved]:
        journal = run / "journal.jsonl"
        return [e for e in read_journal(run) if isinstance(e, Saved)] if journal.exists() else []

    for place in [("cpu:2", 2, 1), ("cpu:1", 1, 1), ("cpu:1", 3, 2)]:
        before, process = len(saved()), begun(run, "processes", *place)
        while len(saved()) < before + 8 and process.poll() is None:
            time.sleep(0.02)
        assert process.poll() is None, "the run ended before it was killed"
        process.kill()
        process.wait()
    assert any(event.checkpoint.again for event in saved()), "no kill was within a window"
    assert begun(run, "processes", "cpu:2", 2, 1).wait() == 0
    assert evidence.results(run) == evidence.results(tmp_path / "whole")
    assert audit(run) == []


def dropped(sample: Any) -> Any:
    """A function for `Data.then` that drops random tokens."""
    text, label = sample
    ids = text["ids"]
    return {"ids": ids[torch.rand(len(ids)) < 0.8]} if len(ids) > 4 else text, label


def test_random_work_gets_samples_as_they_are_and_may_change_their_lengths(tmp_path: Path) -> None:
    for sort in (texts.Texts, texts.Lines):
        wanted = texts.study(texts.member("a"), then=dropped, sort=sort)
        argosy.train(wanted, directory=tmp_path / sort.__name__, launcher="inline", numerics="exact")
        assert audit(tmp_path / sort.__name__) == []
    assert evidence.results(tmp_path / "Texts") == evidence.results(tmp_path / "Lines")


def shifted(batch: Any) -> Any:
    """A function for `Data.on_device` that swaps the labels and passes texts through."""
    text, labels = batch
    return text, 1 - labels


def test_work_on_the_device_passes_on_what_is_ragged(tmp_path: Path) -> None:
    for name, on_device in {"as-they-are": None, "shifted": shifted}.items():
        wanted = texts.study(texts.member("a"), stop=argosy.MaxEpochs(1))
        wanted = replace(wanted, data=replace(wanted.data, on_device=on_device))
        report = argosy.train(wanted, directory=tmp_path / name, launcher="inline", numerics="exact")
        predicted = report.predict(wanted.data.val)
        labels = torch.tensor([wanted.data.val[index][1] for index in range(len(wanted.data.val))])
        right = (predicted.argmax(1) == labels).double().mean()
        accuracy = report.member("a").metrics["val_accuracy"]
        assert float(right) == pytest.approx(accuracy if on_device is None else 1 - accuracy)
    assert evidence.results(tmp_path / "shifted") != evidence.results(tmp_path / "as-they-are")


def by_itself(model: Any, batch: Any) -> Any:
    text, label = batch
    return functional.cross_entropy(model(text), label)


def test_a_batch_of_one_text_for_batch_norm_ends_the_member_with_a_sentence(tmp_path: Path) -> None:
    how: dict[str, Any] = {"model": texts.Normed, "batch_size": 8, "batch_tokens": 31}
    own = replace(texts.member("own", **how), step=by_itself, metrics={})
    fleet = [texts.member("norm", **how), own, texts.member("sound")]
    with pytest.warns(MemberFailed):
        report = argosy.train(
            texts.study(*fleet, length=80), directory=tmp_path, launcher="inline", devices="cpu:1", progress=False
        )
    assert {row.name: row.status for row in report.rows} == {"norm": "failed", "own": "failed", "sound": "done"}
    for name in ("norm", "own"):
        assert report.member(name).reason == (
            f"StudyError: member {name!r}: BatchNorm got a batch of 1 sample (batch_tokens=31 may leave a long sample alone), but needs "
            "at least 2 to train. Use LayerNorm or GroupNorm in the network, or remove batch_tokens."
        )
