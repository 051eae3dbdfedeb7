"""Averages of weights: what torch's AveragedModel keeps, in every program, beside raw weights that do not depend on them."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import evidence
import packs
import pytest
import replays
import studies
import test_bits
import test_member
import torch
from blocks import blocks
from groups import Seated, sail
from packs import ResNet, Transformer, convnet, mlp
from test_graphed import DEVICES
from torch import nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, get_swa_multi_avg_fn

import argosy
from argosy import EMA, SWA, LastK
from argosy.errors import StudyError
from argosy.stream.schedule import Orders
from argosy.study import Member
from argosy.training.choice.measure import state_bytes
from argosy.training.member import checkpoint
from argosy.training.member.live import LiveMember
from argosy.training.programs.fused.fused import Fused
from argosy.training.programs.graphed.graphed import Graphed
from argosy.training.programs.solo import Solo

replayable = replays.replayable
RULES = {"ema": EMA(0.9), "swa": SWA(from_epoch=2), "last": LastK(2)}


def member(name: str = "m", **rest: Any) -> Member:
    """A member in float32, of which the averages are better than the weights."""
    return packs.member(name, dtype=torch.float32, **{"optimizer": partial(SGD, lr=0.5, momentum=0.9), **rest})


def followed(one: Member, epochs: int) -> tuple[LiveMember, dict[str, nn.Module], list[dict[str, float]]]:
    """Train it, and have torch's own averages follow it: by steps, by ends of epochs from the second on, of the last two."""
    live = packs.live(one)
    program, ema = Solo(live), AveragedModel(live.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    swa = AveragedModel(live.model, multi_avg_fn=get_swa_multi_avg_fn())
    ends, rows = [], []
    arrays, val = packs.samples(torch.float32)
    orders = Orders(0, {"train": len(arrays[0]), "val": len(val[0])})
    for epoch in range(epochs):
        live.begin_epoch(orders, epoch)
        for block in blocks(orders.epoch("train", epoch), 40, arrays=arrays, epoch=epoch):
            with program.active():
                for batch in program.cut(block):
                    program.begin(batch)
                    program.finish()
                    ema.update_parameters(live.model)
        ends.append(packs.live(one).model)
        ends[-1].load_state_dict(live.model.state_dict())
        if epoch:
            swa.update_parameters(live.model)
        for block in blocks(orders.epoch("val", epoch), 40, arrays=val, split="val"):
            with program.active(keep=True):
                for _ in program.evaluate(block):
                    pass
        rows.append(live.end_section(1))
    last = AveragedModel(live.model, multi_avg_fn=get_swa_multi_avg_fn())
    for model in ends[-2:]:
        last.update_parameters(model)
    return live, {"ema": ema.module, "swa": swa.module, "last": last.module}, rows


@pytest.mark.parametrize(
    ("rule", "model"), [("ema", mlp), ("ema", ResNet), ("ema", Transformer), ("swa", mlp), ("last", Transformer)]
)
def test_it_is_torchs_averaged_model_bit_for_bit(rule: str, model: Any) -> None:
    live, torchs, rows = followed(member(model=model, average=RULES[rule]), 3)
    assert live.average is not None
    with live.average.held():
        found = {name: value.clone() for name, value in live.model.state_dict().items()}
    assert packs.difference(found, dict(torchs[rule].state_dict())) == 0.0
    val = packs.samples(torch.float32)[1]
    torchs[rule].eval()
    with torch.no_grad():
        loss = nn.functional.cross_entropy(torchs[rule](val[0]), val[1]).item()
    assert rows[-1]["average_val_loss"] == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize("rule", RULES)
def test_raw_weights_are_those_of_a_member_without_an_average(rule: str) -> None:
    plateau = partial(ReduceLROnPlateau, patience=0)
    noisy = {"model": convnet, "optimizer": partial(SGD, lr=0.5), "schedule": plateau, "metrics": DRAWING}
    (with_it,), one = packs.alone([member(average=RULES[rule], **noisy)], 4, dtype=torch.float32)
    (without,), other = packs.alone([member(**noisy)], 4, dtype=torch.float32)
    apart = {"average": None, "best": None}
    assert packs.difference({**packs.state(with_it), **apart}, {**packs.state(without), **apart}) == 0.0
    assert [row["raw_val_drawing"] for row in one["m"]] == [row["val_drawing"] for row in other["m"]]


def drawing(output: Any, target: Any) -> Any:
    """A metric that draws."""
    return torch.rand(len(target)) + output.detach().argmax(1)


DRAWING = {"drawing": drawing}


def test_the_objective_chooses_between_raw_and_averaged_weights() -> None:
    (live,), history = packs.alone([member(average=EMA(0.9))], 6, dtype=torch.float32)
    chosen = set()
    for row in history["m"]:
        averaged = row["average_val_loss"] < row["raw_val_loss"]
        kind = "average" if averaged else "raw"
        assert row["averaged"] == averaged
        assert (row["val_loss"], row["val_accuracy"]) == (row[f"{kind}_val_loss"], row[f"{kind}_val_accuracy"])
        chosen.add(kind)
    assert chosen == {"average", "raw"}
    assert live.best is not None and live.best.value == min(row["val_loss"] for row in history["m"])


def test_before_there_is_an_average_it_is_not_a_number_and_never_chosen() -> None:
    _, history = packs.alone([member(average=SWA(from_epoch=3))], 4, dtype=torch.float32)
    assert [row["average_val_loss"] == row["average_val_loss"] for row in history["m"]] == [False, False, True, True]
    assert [row["averaged"] for row in history["m"]][:2] == [0.0, 0.0]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("model", [mlp, convnet, Transformer])
def test_in_a_fused_program_it_is_that_of_alone(rule: str, model: Any) -> None:
    averages = {
        "ema": [EMA(0.9), EMA(0.99), EMA(0.9)],
        "swa": [SWA(1), SWA(3), SWA(10)],
        "last": [LastK(1), LastK(3), LastK(9)],
    }
    fleet = [
        packs.member(f"m{n}", model=model, average=average, subset=packs.FOLD if n == 1 else None, metrics=DRAWING)
        for n, average in enumerate(averages[rule])
    ]
    (found, rows), (wanted, others) = packs.together(fleet, 4), packs.alone(fleet, 4)
    for one, other in zip(found, wanted, strict=True):
        assert packs.difference(packs.state(one), packs.state(other)) <= 1e-10
    assert packs.difference(rows, others) <= 1e-10


def test_of_networks_that_have_the_bits_of_alone_it_has_them_too() -> None:
    fleet = packs.pack(test_bits.mlp, average=EMA(0.9))
    fleet[1] = replace(fleet[1], average=EMA(0.95))
    admission = packs.admission(fleet)
    (names,) = admission.packs
    assert admission.lengths[names] is not None
    lives = [packs.live(one) for one in fleet]
    rows = packs.train(Fused.of(lives, lengths=admission.lengths[names]), 3, dtype=torch.float32)
    wanted, others = packs.alone(fleet, 3, dtype=torch.float32)
    assert packs.difference([packs.state(live) for live in lives], [packs.state(live) for live in wanted]) == 0.0
    assert packs.difference(rows, others) == 0.0


@pytest.mark.usefixtures("replayable")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("count", [1, 3])
def test_behind_captured_steps_it_is_that_of_alone(rule: str, count: int, device: str) -> None:
    fleet = [packs.member(f"m{n}", average=RULES[rule], optimizer=partial(SGD, lr=0.1)) for n in range(count)]
    lives = [packs.live(one, device) for one in fleet]
    program = Graphed.of(Solo(lives[0]) if count == 1 else Fused.of(lives))
    history = packs.train(program, 3)
    assert program.replays
    program.release()
    wanted, rows = packs.alone(fleet, 3)
    for one, other in zip(lives, wanted, strict=True):
        assert one.average is not None and other.average is not None
        assert one.average.count == other.average.count
        assert packs.difference(one.average.state_dict(), other.average.state_dict()) <= 1e-9
        assert history[one.member.name][-1]["average_val_loss"] == pytest.approx(
            rows[one.member.name][-1]["average_val_loss"], rel=1e-9
        )


@pytest.mark.parametrize("rule", RULES)
def test_each_rank_of_a_split_member_has_it(rule: str, tmp_path: Path) -> None:
    one = packs.member("m", average=RULES[rule])
    ranks = sail([Seated(one, (0, 1), (0.3, 0.7))], tmp_path, epochs=3)["m"]
    (alone,), _ = packs.alone([one], 3)
    assert alone.average is not None
    for live in ranks:
        assert live.average is not None
        assert live.average.count == alone.average.count
        assert packs.difference(live.average.values, alone.average.values) <= 1e-9
    assert packs.difference(ranks[0].average.values, ranks[1].average.values) == 0.0


@pytest.mark.parametrize("rule", RULES)
def test_resumed_is_uninterrupted(rule: str, tmp_path: Path) -> None:
    one = member(average=RULES[rule], optimizer=Adam)
    (wanted,), rows = packs.alone([one], 5, dtype=torch.float32)
    live, history = packs.live(one), []
    for number in range(5):
        history += packs.train(Solo(live), 1, dtype=torch.float32)["m"]
        digest = checkpoint.save(checkpoint.plain(live.state_dict()), tmp_path / f"{number}.pt")
        live = packs.live(one)
        live.load_state_dict(checkpoint.load(tmp_path / f"{number}.pt", digest))
    assert packs.difference(packs.state(live), packs.state(wanted)) == 0.0
    assert packs.difference(history, rows["m"]) == 0.0


@pytest.mark.parametrize("rule", RULES)
def test_it_depends_on_no_sections(rule: str) -> None:
    one = studies.member("m", model=partial(nn.Linear, 12, 10), batch_size=16, average=RULES[rule])
    whole, cut = test_member.start(one), test_member.start(one)
    rows, of_sections = test_member.run(whole, 3), test_member.run(cut, 3, sections=4)
    assert test_member.outcome(whole.live) == test_member.outcome(cut.live)
    assert packs.difference(rows, of_sections[3::4]) == 0.0


def test_a_run_that_goes_on_is_one_that_was_never_interrupted(tmp_path: Path) -> None:
    data = packs.samples(torch.float32)
    given = argosy.Data(arrays=data[0], val_arrays=data[1])
    fleet = [member(f"m{number}", average=EMA(0.9 + number / 100)) for number in range(3)] + [member(average=LastK(2))]
    for directory, epochs in (("whole", 4), ("parts", 1), ("parts", 2), ("parts", 4)):
        study = argosy.Study(data=given, members=fleet, stop=argosy.MaxEpochs(epochs))
        argosy.train(study, directory=tmp_path / directory, launcher="inline", devices="cpu:1", progress=False)
    whole, parts = (evidence.results(tmp_path / directory) for directory in ("whole", "parts"))
    assert parts == whole
    for one in fleet:
        saved = [checkpoint.load(tmp_path / way / "members" / one.name / "last.pt") for way in ("whole", "parts")]
        assert packs.difference(*(state["average"] for state in saved)) == 0.0


@pytest.mark.parametrize("epochs", [1, 6])
def test_the_file_of_the_best_weights_holds_the_averaged_ones_where_these_are_better(
    epochs: int, tmp_path: Path
) -> None:
    data = packs.samples(torch.float32)
    averages = {"ema": EMA(0.9), "raw": None}
    fleet = [member(name, seed=0, optimizer=partial(SGD, lr=8.0), average=one) for name, one in averages.items()]
    study = argosy.Study(
        data=argosy.Data(arrays=data[0], val_arrays=data[1]), members=fleet, stop=argosy.MaxEpochs(epochs)
    )
    report = argosy.train(study, directory=tmp_path / "run", launcher="inline", devices="cpu:1", progress=False)
    rows = {row.name: row for row in report.rows}
    assert rows["ema"].metrics["averaged"] == 1.0 and "averaged" not in rows["raw"].metrics
    for row in rows.values():
        loss = nn.functional.cross_entropy(row.load()(data[1][0]), data[1][1]).item()
        assert loss == pytest.approx(row.metrics["val_loss"], rel=1e-5)
    assert rows["ema"].metrics["val_loss"] < rows["raw"].metrics["val_loss"]
    assert {"averaged", "raw_val_loss", "average_val_loss"} <= report.table()[0].keys()


def test_statistics_of_batchnorm_are_refused_for_means_of_epochs() -> None:
    for rule in (SWA(from_epoch=2), LastK()):
        with pytest.raises(StudyError, match="has BatchNorm and average="):
            packs.live(member(model=ResNet, average=rule))
    packs.live(member(model=ResNet, average=EMA()))


@pytest.mark.parametrize(("rule", "copies"), [(EMA(), 1), (SWA(1), 1), (LastK(3), 4)])
def test_what_an_average_holds_is_part_of_the_memory_that_plans_go_by(rule: Any, copies: int) -> None:
    plain, averaged = (packs.live(member(average=one)) for one in (None, rule))
    weights = sum(weight.numel() * weight.itemsize for weight in plain.model.parameters())
    assert state_bytes(averaged) - state_bytes(plain) == copies * weights
