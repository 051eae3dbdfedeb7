"""Tests that students train with the paper's loss, teachers answer each sample once, and validation ignores the teacher."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import studies
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam
from torch.utils.data import TensorDataset

import argosy
from argosy.ensembling.scores import class_scores
from argosy.errors import StudyError
from argosy.stream.order import member_seed, permutation
from argosy.training.member.answers import answer_kind

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(80, 12, generator=GENERATOR)
Y = (X[:, 0] > 0).long() + (X[:, 1] > 0).long()


def data(kind: str, y: Tensor = Y) -> argosy.Data:
    if kind == "arrays":
        return argosy.Data(arrays=(X, y), val_arrays=(X[:40], y[:40]))
    return argosy.Data(
        train=TensorDataset(X, y), val=TensorDataset(X[:40], y[:40]), on_device=halved if kind == "halved" else None
    )


def halved(batch: Any) -> Any:
    """Halve the inputs; used as `Data.on_device`."""
    x, y = batch
    return x / 2, y


def mlp(outputs: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, outputs))


def member(name: str, **rest: Any) -> argosy.Member:
    return studies.member(name, **{"model": mlp, "optimizer": partial(SGD, lr=0.1), "batch_size": 20, **rest})


def taught(tmp_path: Path, kind: str) -> argosy.Report:
    """Train and return two teachers."""
    study = argosy.Study(data=data(kind), members=[member("a"), member("b")], stop=argosy.MaxEpochs(3))
    return argosy.train(study, directory=tmp_path / "teachers", launcher="inline", quiet=True)


def test_a_student_of_a_student_learns_from_the_teachers_run(tmp_path: Path) -> None:
    teachers = taught(tmp_path, "arrays")
    study = argosy.distill(teachers, member("student"), stop=argosy.MaxEpochs(1))
    students = argosy.train(study, directory=tmp_path / "students", launcher="inline", quiet=True)
    with pytest.raises(argosy.ArgosyError, match=r"teacher=students\.best\(\)"):
        argosy.distill(students, member("next"), teacher="student")
    study = argosy.distill(teachers, member("next"), teacher=students.best(), stop=argosy.MaxEpochs(1))
    report = argosy.train(study, directory=tmp_path / "next", launcher="inline", quiet=True)
    assert report.best().status == "done"


def test_the_trials_of_a_search_teach(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    settings: dict[str, Any] = {"scheduler": "random", "n_trials": 2, "max_epochs": 1, "data": data("arrays")}

    def space(trial: Any) -> None:
        trial.suggest_float("lr", 0.1, 0.2)

    search = argosy.tune(lambda _: member("m"), space, directory=tmp_path, launcher="inline", quiet=True, **settings)
    by_search, by_run = (argosy.distill(report, member("student")) for report in (search, search.run))
    assert torch.equal(by_search.data.train.answers, by_run.data.train.answers)


@pytest.mark.parametrize("kind", ["arrays", "datasets", "halved"])
def test_a_student_is_what_a_loop_over_the_papers_loss_makes_of_it(tmp_path: Path, kind: str) -> None:
    teachers = taught(tmp_path, kind)
    ensemble = teachers.ensemble(select="greedy")
    study = argosy.distill(teachers, member("student"), temperature=3.0, weight=0.7, stop=argosy.MaxEpochs(1))
    report = argosy.train(study, directory=tmp_path / "run", launcher="inline", quiet=True, numerics="exact")
    inputs = X / 2 if kind == "halved" else X
    with torch.no_grad():
        teacher = ensemble(inputs).log()
    (student,) = study.members
    torch.manual_seed(member_seed(study.seed, "student"))
    network = student.model()

    def loss(at: Tensor) -> Tensor:
        logits = network(inputs[at])
        soft = functional.kl_div(
            (logits / 3).log_softmax(1), (teacher[at] / 3).log_softmax(1), reduction="batchmean", log_target=True
        )
        return 0.3 * functional.cross_entropy(logits, Y[at]) + 0.7 * 9 * soft

    optimizer = SGD(network.parameters(), lr=0.1)
    for at in torch.from_numpy(permutation(study.seed, 0, 80)).split(20):
        optimizer.zero_grad()
        loss(at).backward()
        optimizer.step()
    found = report.best().load()
    for mine, theirs in zip(found.parameters(), network.parameters(), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-6)
    # Validation uses the labels alone, without the teacher.
    with torch.no_grad():
        logits = found(inputs[:40])
    assert report.best().metrics["val_loss"] == pytest.approx(float(functional.cross_entropy(logits, Y[:40])), abs=1e-6)
    assert report.best().metrics["val_accuracy"] == pytest.approx(float((logits.argmax(1) == Y[:40]).float().mean()))


@pytest.mark.parametrize("kind", ["arrays", "halved", "numbers"])
def test_a_student_of_mixed_inputs_is_what_a_loop_makes_of_it(tmp_path: Path, kind: str) -> None:
    """The loop draws random numbers from the member's own seed, and mixes what `augment` returns."""
    numbers, halves = kind == "numbers", kind == "halved"
    y = X[:, :1] * 2 if numbers else Y
    own = nn.MSELoss(reduction="none") if numbers else nn.CrossEntropyLoss(reduction="none")
    make = partial(member, model=partial(mlp, 1 if numbers else 3), loss=own, metrics={})
    study = argosy.Study(data=data(kind, y), members=[make("a"), make("b")], stop=argosy.MaxEpochs(3))
    teachers = argosy.train(study, directory=tmp_path / "teachers", launcher="inline", quiet=True)
    study = argosy.distill(
        teachers,
        make("student", augment=shifted),
        teacher=teachers.ensemble(preprocess=halves),
        temperature=3.0,
        weight=0.7,
        mix=True,
        stop=argosy.MaxEpochs(2),
    )
    report = argosy.train(study, directory=tmp_path / "run", launcher="inline", quiet=True, numerics="exact")
    inputs, teacher = (X / 2 if halves else X), teachers.ensemble()
    torch.manual_seed(member_seed(study.seed, "student"))
    network = study.members[0].model()
    optimizer = SGD(network.parameters(), lr=0.1)
    for epoch in range(2):
        for at in torch.from_numpy(permutation(study.seed, epoch, 80)).split(20):
            x, target = shifted((inputs[at], y[at]))
            share, order = torch.rand(1), torch.randperm(20)
            mixed = share * x + (1 - share) * x[order]
            with torch.no_grad():
                answer = teacher(mixed)
            output = network(mixed)
            if numbers:
                soft = functional.mse_loss(output, answer)
            else:
                learnt, said = (output / 3).log_softmax(1), (answer.log() / 3).log_softmax(1)
                soft = 9 * functional.kl_div(learnt, said, reduction="batchmean", log_target=True)
            hard = share * own(output, target).mean() + (1 - share) * own(output, target[order]).mean()
            optimizer.zero_grad()
            (0.3 * hard + 0.7 * soft).backward()
            optimizer.step()
    last = torch.load(tmp_path / "run" / "members" / "student" / "last.pt", weights_only=True)["model"]
    for mine, theirs in zip(last.values(), network.state_dict().values(), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-6)
    with torch.no_grad():
        unmixed = own(report.best().load()(inputs[:40]), y[:40]).mean()
    assert report.best().metrics["val_loss"] == pytest.approx(float(unmixed), abs=1e-6)


def shifted(batch: Any) -> Any:
    """Add noise to the inputs; used as `Member.augment`."""
    x, y = batch
    return x + 0.1 * torch.randn_like(x), y


class BothTargets(nn.CrossEntropyLoss):
    """The loss of mixup with a coefficient for each sample."""

    def forward(self, output: Tensor, target: Any) -> Tensor:
        if isinstance(target, Tensor):
            return super().forward(output, target)
        one, other, share = target
        each = (functional.cross_entropy(output, labels, reduction="none") for labels in (one, other))
        return share * next(each) + (1 - share) * next(each)


def mixed_up(batch: Any) -> Any:
    """Mix each sample with its successor; used as `Member.augment`."""
    x, y = batch
    share = torch.rand(len(x))
    return share[:, None] * x + (1 - share[:, None]) * x.roll(1, 0), (y, y.roll(1), share)


def test_targets_of_an_augmentation_that_mixes_belong_to_the_members_own_loss(tmp_path: Path) -> None:
    teachers = taught(tmp_path, "arrays")
    own = member("student", loss=BothTargets(), augment=mixed_up, metrics={})
    alone = argosy.Study(data=data("arrays"), members=[own], stop=argosy.MaxEpochs(1))
    student = argosy.distill(teachers, own, weight=1e-9, stop=argosy.MaxEpochs(1))
    losses = [
        argosy.train(study, directory=tmp_path / name, launcher="inline", quiet=True).best().metrics["val_loss"]
        for name, study in (("alone", alone), ("student", student))
    ]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)


@pytest.mark.parametrize("mix", [False, True])
def test_students_are_validated_predict_and_are_combined_as_other_members(tmp_path: Path, mix: bool) -> None:
    """Their validation samples have their targets alone, so that labels are those of the data and an ensemble of students has scores."""
    teachers = taught(tmp_path, "halved")
    ignoring = nn.CrossEntropyLoss(ignore_index=2, reduction="none")
    study = argosy.distill(teachers, [member("one"), member("other")], mix=mix, stop=argosy.MaxEpochs(2))
    study = replace(study, ensemble=argosy.EnsemblePlateau())
    report = argosy.train(study, directory=tmp_path / "students", launcher="inline", quiet=True)
    assert torch.equal(report.predict((X, Y)), report.predict(X))
    ensemble = report.ensemble(select="greedy", calibrate=True)
    found = class_scores(ensemble(X[:40] / 2), Y[:40])
    assert {name: ensemble.scores[0][name] for name in found} == pytest.approx(found)
    assert report.ensembles[-1].weights.keys() == {"one", "other"}
    ignored = argosy.distill(teachers, member("one", loss=ignoring, metrics={}), mix=mix, stop=argosy.MaxEpochs(1))
    report = argosy.train(ignored, directory=tmp_path / "ignored", launcher="inline", quiet=True)
    known = Y[:40] != 2
    found = class_scores(report.best().load()(X[:40][known] / 2).softmax(1), Y[:40][known])
    assert report.ensemble().scores[1]["nll"] == pytest.approx(found["nll"])
    pytest.importorskip("safetensors", reason="the extra export")
    card = (report.export(tmp_path / "card", format="hub") / "config.json").read_text()
    assert json.loads(card)["dataset"] == type(teachers.networks().known_study().data.train).__name__


@pytest.mark.parametrize("mix", [False, True])
def test_students_share_a_program_and_are_what_they_are_alone(tmp_path: Path, mix: bool) -> None:
    teachers = taught(tmp_path, "arrays")
    study = argosy.distill(teachers, [member("one"), member("other")], mix=mix)
    assert study.members[0].hyperparameters["loss.temperature"] == 2.0
    losses = []
    for packing in ("auto", "interleaved"):
        report = argosy.train(
            study, directory=tmp_path / packing, launcher="inline", devices="cpu:1", quiet=True, packing=packing
        )
        losses.append([report.member(name).metrics["val_loss"] for name in ("one", "other")])
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)


def test_a_student_of_mixed_inputs_goes_on_as_if_it_had_not_ended(tmp_path: Path) -> None:
    """A student trained in two runs equals the same student trained in one run beside another; the teacher is sent to trainer processes."""
    teachers = taught(tmp_path, "arrays")

    def weights(*students: str, directory: str, epochs: int) -> list[Tensor]:
        into = [member(name) for name in students]
        study = argosy.distill(teachers, into, mix=True, stop=argosy.MaxEpochs(epochs))
        argosy.train(study, directory=tmp_path / directory, devices="cpu:1", quiet=True)
        saved = torch.load(tmp_path / directory / "members" / "one" / "last.pt", weights_only=True)
        return [*saved["model"].values()]

    begun = weights("one", directory="in parts", epochs=1)
    resumed = weights("one", directory="in parts", epochs=3)
    whole = weights("one", "other", directory="whole", epochs=3)
    assert all(map(torch.equal, resumed, whole))
    assert not any(map(torch.equal, begun, resumed))


def test_numbers_are_learnt_from_a_network_of_ones_own_and_metrics_that_are_objects_see_targets(tmp_path: Path) -> None:
    y = X[:, :1] * 2
    line = partial(argosy.Member, model=partial(nn.Linear, 12, 1), optimizer=partial(Adam, lr=0.05), batch_size=20)
    study = argosy.Study(data=data("datasets", y), members=[line("a", loss=nn.MSELoss())], stop=argosy.MaxEpochs(1))
    report = argosy.train(study, directory=tmp_path / "teacher", launcher="inline", quiet=True)
    teacher = nn.Linear(12, 1)
    nn.init.zeros_(teacher.weight)
    nn.init.constant_(teacher.bias, 5.0)
    student = line("s", loss=nn.MSELoss(), metrics={"most": Most, "object": Count(), "made": partial(Count, 2)})
    taught_wrong = argosy.distill(report, student, teacher=teacher, weight=1.0, stop=argosy.MaxEpochs(40))
    found = argosy.train(taught_wrong, directory=tmp_path / "student", launcher="inline", quiet=True)
    last = torch.load(tmp_path / "student" / "members" / "s" / "last.pt", weights_only=True)["model"]
    assert last["weight"].abs().max() < 0.2 and float(last["bias"]) == pytest.approx(5.0, abs=0.5)
    assert found.best().metrics["val_most"] == pytest.approx(float(y[:40].max()))
    assert [found.best().metrics[f"val_{name}"] for name in ("object", "made")] == [40, 42]


class Most:
    """A metric that is an object: the greatest target."""

    def __init__(self) -> None:
        self.found = -torch.inf

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        self.found = max(self.found, float(targets.max()))

    def compute(self) -> float:
        return self.found


class Count(Most):
    """A metric that counts samples."""

    def __init__(self, found: int = 0) -> None:
        self.found = found

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        self.found += len(targets)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"weight": 1.5}, "at most 1"),
        ({"temperature": 0.0}, "temperature"),
        ({"into": member("own", loss=lambda output, target: output.sum(1) * 0)}, "all learn numbers"),
    ],
)
def test_what_cannot_be_learnt_is_refused(tmp_path: Path, wrong: dict[str, Any], said: str) -> None:
    report = taught(tmp_path, "arrays")
    with pytest.raises(StudyError, match=said):
        argosy.distill(report, **{"into": member("student"), **wrong})


@pytest.mark.parametrize("ignored", [-100, 0])
def test_a_student_of_tokens_weighs_both_parts_alike_and_padding_counts_in_neither(
    tmp_path: Path, ignored: int
) -> None:
    y = torch.stack([Y, (X[:, 2] > 0).long(), torch.zeros_like(Y), Y], dim=1)
    y[::2, 2:] = ignored
    loss = None if ignored < 0 else nn.CrossEntropyLoss(ignore_index=ignored)
    make = partial(member, model=tagger, metrics={}, loss=loss)
    study = argosy.Study(data=data("arrays", y), members=[make("teacher")], stop=argosy.MaxEpochs(3))
    teachers = argosy.train(study, directory=tmp_path / "teachers", launcher="inline", quiet=True)
    teacher = teachers.best().load()
    study = argosy.distill(teachers, make("student"), teacher="teacher", temperature=2.0, weight=0.5)
    report = argosy.train(
        argosy.Study(data=study.data, members=study.members, stop=argosy.MaxEpochs(1)),
        directory=tmp_path / "run",
        launcher="inline",
        quiet=True,
        numerics="exact",
    )
    torch.manual_seed(member_seed(0, "student"))
    network = tagger()
    optimizer = SGD(network.parameters(), lr=0.1)
    for at in torch.from_numpy(permutation(0, 0, 80)).split(20):
        logits, answers, known = network(X[at]), teacher(X[at]).detach(), y[at] != ignored
        soft = functional.kl_div((logits / 2).log_softmax(1), (answers / 2).softmax(1), reduction="none").sum(1)
        soft = (4 * soft * known).sum(1) / known.sum(1).clamp(min=1)
        hard = functional.cross_entropy(logits, y[at], reduction="none", ignore_index=ignored)
        hard = (hard * known).sum(1) / known.sum(1) if loss is None else loss(logits, y[at])
        optimizer.zero_grad()
        (0.5 * hard + 0.5 * soft).mean().backward()
        optimizer.step()
    found = report.best().load()
    for mine, theirs in zip(found.parameters(), network.parameters(), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-6)


def tagger() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 12), nn.Unflatten(1, (3, 4)))


def scaled(output: Tensor, target: Tensor, own: Any) -> Tensor:
    return functional.mse_loss(output, functional.one_hot(target, 3).float())


def test_a_loss_that_binds_a_keyword_called_own_is_not_taken_for_that_of_a_student() -> None:
    assert answer_kind(member("m", loss=partial(scaled, own=None))) is None
