"""Knowledge distillation: a study whose members learn from a trained network or ensemble as well as from its data.

The loss is that of Hinton, Vinyals and Dean (2015): ``(1 - weight) * loss + weight * T² KL(teacher / T || student / T)`` for classes; for
numbers, the second term is the squared distance between student and teacher. Mixed inputs are those of mixup (Zhang et al. 2018), on which
the teacher is evaluated itself, as in Beyer et al. (2022).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

from argosy.ensembling.answering import answer as answered
from argosy.ensembling.ensemble import Ensemble
from argosy.ensembling.predict import few_inputs
from argosy.ensembling.preparing import Prepared
from argosy.errors import StudyError
from argosy.errors.checks import check_flag, check_number, describe_value, is_map_style
from argosy.errors.spelling import known_keywords
from argosy.ragged import Ragged
from argosy.results.member import MemberResult
from argosy.results.report import Report
from argosy.stopping import Stop
from argosy.stream.copied import copy_network
from argosy.stream.trees import flatten, format_structure, map_leaves
from argosy.study import Data, Member, Study, ignored_class
from argosy.training.member.answers import answer_kind
from argosy.training.programs.solo import cross_entropy
from argosy.tuning.report import SearchReport

__all__ = ["distill"]


@known_keywords("argosy.distill")
def distill(
    report: Report | SearchReport,
    into: Member | Sequence[Member],
    *,
    teacher: nn.Module | MemberResult | str | None = None,
    temperature: float = 2.0,
    weight: float = 0.5,
    mix: bool = False,
    stop: Stop | None = None,
) -> Study:
    """Return a study whose members learn from a run's or search's ensemble as well as from its data; train it as any other.

    The teacher is ``report.ensemble(select="greedy", snapshots=False)`` by default; `teacher` can be a member of the run or its name, a network,
    or an ensemble. Its outputs for the training samples of the run's data, before `Data.then` and `augment`, are computed once, during this call.
    Members are validated by their own loss, as without a teacher. `weight` is the weight of the teacher's term in the loss, and `temperature`
    divides the logits in that term. `stop` is the stopping rule of the new study, by default that of the run. An `augment` that mixes samples
    does not mix the teacher's outputs.

    With `mix`, students learn from mixed inputs: in each step the inputs of the batch, after `Data.on_device` and `augment`, are mixed in
    pairs with one random coefficient, and the teacher is evaluated on the result, on the student's device. The member's own loss is then the
    mean of the losses for both targets, weighted by the coefficient.

    Raises:
        StudyError: if samples are not ``(input, target)`` or targets vary in length, if a member has a custom step or a loss that does not
            determine what its outputs mean, if the teacher has no output for a training sample, if inputs cannot be mixed, or if the run itself trained students.
    """
    check_number("distill: temperature", temperature, above=0)
    check_number("distill: weight", weight, above=0)
    check_flag("distill: mix", mix)
    if weight > 1:
        raise StudyError(f"distill: weight is {weight}; it must be at most 1 (the whole loss).")
    report = _run_of(report)
    members = _students_of(into)
    study: Study = report.networks().known_study()
    if isinstance(study.data.train, SamplesWithAnswers):
        raise StudyError(
            "distill: the report is of students, whose samples already have a teacher's answers. Pass the report of "
            "the teachers' run and a student as teacher=, for example argosy.distill(teachers, into=member, "
            "teacher=students.best())."
        )
    _check_one_length(study.data)
    kinds = {answer_kind(member) for member in members}
    if len(kinds) != 1 or None in kinds:
        raise StudyError(
            "distill: students must all learn classes, with cross-entropy, or all learn numbers, with a loss such as "
            "nn.MSELoss(). Pass into= members of one kind, without a step of their own."
        )
    teacher = _network(report, teacher)
    data, of_classes = study.data, kinds == {"classes"}
    answers = report.predict(data.train if data.arrays is None else tuple(data.arrays), teacher)
    if not isinstance(answers, Tensor):
        raise StudyError(
            f"distill: the teacher has several outputs, {format_structure(flatten(answers)[1])}, but students learn only "
            "one. Pass a teacher that returns the tensor to learn."
        )
    if isinstance(teacher, Ensemble) and (teacher.combine == "mean") == of_classes:
        learn = "classes" if of_classes else "numbers"
        raise StudyError(
            f"distill: the teacher is an ensemble with combine={teacher.combine!r}, but {members[0].name!r} learns "
            f"{learn}. Pass a teacher that answers the same question."
        )
    answers = _as_student_targets(answers, teacher)
    wrong = int((~answers.isfinite()).flatten(1).any(dim=1).sum())
    if wrong:
        raise StudyError(
            f"distill: the teacher's answer to {wrong} of {len(answers)} training samples is not a number. Remove "
            "samples that raise from the data, and diverged members from the ensemble."
        )
    loss = partial(
        _student_loss,
        taught=_class_divergence if of_classes else _squared_distance,
        temperature=temperature,
        weight=weight,
    )
    if mix:
        _check_mixable(few_inputs(study, prepared=True))
    beside = _alone(teacher) if mix else None
    students = [_student(member, loss, beside) for member in members]
    return replace(
        study,
        data=_with_answers(data, answers),
        members=students,
        stop=study.stop if stop is None else stop,
        ensemble=None,
    )


def _run_of(report: Any) -> Report:
    """Return the report of the teachers' run, or raise StudyError if there is none."""
    found = report.run if isinstance(report, SearchReport) else report
    if not isinstance(found, Report):
        raise StudyError(
            f"distill: report is {describe_value(found)}; it must be the report of a run, for example argosy.load('runs/x', study=study). "
            "Pass an ensemble or a network as teacher=."
        )
    return found


def _students_of(into: Any) -> list[Member]:
    """Return the students, or raise StudyError for what is no member."""
    members = [*into] if isinstance(into, Sequence) else [into]
    if not all(isinstance(member, Member) for member in members):
        raise StudyError(f"distill: into is {describe_value(into)}; it must be an argosy.Member, or a list of them.")
    return members


def _check_one_length(data: Data) -> None:
    """Raise StudyError if targets vary in length: in a batch they are shorter than the teacher's answers, which have one length."""
    *_, target = data.ragged if isinstance(data.ragged, Sequence) else (None,)
    if any(isinstance(leaf, Ragged) for leaf in flatten(target)[0]):
        raise StudyError(
            "distill: the targets of the run's samples vary in length (Data.ragged), so a teacher's answers do not fit them. Train the run on "
            "targets of one length: pad inputs and targets in the dataset, classes with -100, and remove ragged=."
        )


def _network(report: Report, teacher: nn.Module | MemberResult | str | None) -> nn.Module:
    """Return the teacher's network: that of a member, given by name or as a result, or by default the run's ensemble."""
    network: nn.Module
    if teacher is None:
        network = report.ensemble(select="greedy", snapshots=False)
    else:
        row = report.member(teacher) if isinstance(teacher, str) else teacher
        network = row.load() if isinstance(row, MemberResult) else row
    return network


def _student(member: Member, loss: partial[Tensor], teacher: nn.Module | None) -> Member:
    """Return the member with this loss around its own; with a teacher, trained on mixed inputs, on which the teacher is evaluated."""
    augment = None if member.augment is None else partial(_apply_beside_answer, member.augment)
    if teacher is not None:
        augment = partial(_mix_batch, teacher=teacher, first=augment)
    return replace(member, loss=partial(loss, students_own_loss=member.loss), augment=augment)


# ---- data


class Taught(NamedTuple):
    """Target of a training sample, and the teacher's answer; validation samples have their target alone."""

    target: Any
    answer: Tensor


class Mixed(NamedTuple):
    """Both targets of mixed inputs, and the share of the first one."""

    one: Any
    other: Any
    share: Tensor
    """``[B]``, all equal."""


class SamplesWithAnswers(Dataset[Any]):
    """Training samples ``(input, Taught(target, answer))``."""

    def __init__(self, dataset: Any, answers: Tensor) -> None:
        self.dataset = dataset
        self.answers = answers

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        sample = self.dataset[index]
        if not isinstance(sample, tuple | list) or len(sample) != 2:
            raise StudyError(
                f"distill: sample {index} is {_form(sample)}; it must be (input, target), so that the teacher's "
                "answer can be added. Return such pairs from the dataset."
            )
        return sample[0], Taught(sample[1], self.answers[index])


def _with_answers(data: Data, answers: Tensor) -> Data:
    return replace(
        data,
        arrays=None,
        train=SamplesWithAnswers(_dataset(data.train, data.arrays), answers),
        then=None if data.then is None else partial(_apply_beside_answer, data.then),
        on_device=None if data.on_device is None else partial(_apply_beside_answer, data.on_device),
    )


def _dataset(dataset: Any, arrays: Sequence[Any] | None) -> Any:
    if arrays is not None:
        return TensorDataset(*map(torch.as_tensor, arrays))
    opened = dataset() if callable(dataset) and not hasattr(dataset, "__getitem__") else dataset
    if opened is not None and not is_map_style(opened):
        raise StudyError(
            f"distill: the run's data is {describe_value(opened)}, whose samples have no index under which answers could be "
            "stored. Train the run on a map-style Dataset, with __len__ and __getitem__."
        )
    return opened


def _form(sample: Any) -> str:
    return f"{len(sample)} values" if isinstance(sample, tuple | list) else describe_value(sample)


def _apply_beside_answer(work: Callable[[Any], Any], sample: Any) -> Any:
    """Apply work on ``(input, target)``, also beside an answer."""
    if not isinstance(sample[1], Taught):
        return work(sample)
    inputs, target = work((sample[0], sample[1].target))
    return inputs, Taught(target, sample[1].answer)


def _as_student_targets(answers: Tensor, teacher: nn.Module) -> Tensor:
    """Return the teacher's outputs in the form that students learn: numbers or logits; probabilities of an ensemble become logits."""
    if not isinstance(teacher, Ensemble) or teacher.combine == "mean":
        return answers
    return answers.clamp(min=torch.finfo(answers.dtype).tiny).log()


# ---- mixed inputs


def _check_mixable(inputs: Any) -> None:
    """Raise StudyError for inputs that cannot be interpolated."""
    wrong = [leaf.dtype for leaf in flatten(inputs)[0] if not leaf.is_floating_point()]
    if wrong:
        raise StudyError(
            f"distill: mix=True mixes the inputs of two samples, but networks get {wrong[0]}, which cannot be "
            "mixed. Remove mix=True, or train the run on floating-point inputs."
        )


def _alone(teacher: nn.Module) -> nn.Module:
    """Return a copy of a teacher that takes inputs as `Data.on_device` returns them."""
    network = teacher.network if isinstance(teacher, Prepared) else teacher
    copied = copy_network(network)
    if isinstance(copied, Ensemble):
        copied.preparation = None
    return copied.eval().requires_grad_(False)


def _mix_batch(batch: Any, *, teacher: nn.Module, first: Callable[[Any], Any] | None) -> Any:
    """Mix the inputs of a batch in pairs; the target becomes both targets and the coefficient, and the answer the teacher's output."""
    inputs, (target, _) = batch if first is None else first(batch)
    share = torch.rand(1, device=target.device)
    order = torch.randperm(len(target), device=target.device)
    mixed = map_leaves(lambda leaf: torch.lerp(leaf[order], leaf, share.to(leaf.dtype)), inputs)
    with torch.no_grad():
        answer = _as_student_targets(answered(teacher.to(target.device), mixed), teacher)
    return mixed, Taught(Mixed(target, target[order], share.expand(len(target))), answer)


# ---- losses


def _student_loss(
    output: Tensor,
    target: Any,
    *,
    students_own_loss: Callable[[Any, Any], Tensor] | None,
    taught: Callable[[Tensor, Tensor, Any, float, int], Tensor],
    temperature: float,
    weight: float,
) -> Tensor:
    """Return the member's own loss; in training, combined with the teacher's term."""
    answer = None
    if isinstance(target, Taught):
        target, answer = target
        if answer.shape != output.shape:
            raise StudyError(
                f"a student returns {list(output.shape)}, but its teacher returns {list(answer.shape)} for the same "
                "samples. Return the same shape from the student's network."
            )
    hard = _own_loss(output, target, students_own_loss)
    if answer is None:
        return hard
    soft = taught(output, answer, target, temperature, ignored_class(students_own_loss))
    return (1 - weight) * hard + weight * (soft if hard.dim() else soft.mean())


def _own_loss(output: Tensor, target: Any, own: Callable[[Any, Any], Tensor] | None) -> Tensor:
    """Return a member's own loss, ``[B]`` or its mean; for mixed inputs, the weighted mean over both targets."""
    if isinstance(target, Mixed):
        one, other, share = target
        mixed: Tensor = share[0] * _own_loss(output, one, own) + (1 - share[0]) * _own_loss(output, other, own)
        return mixed
    loss = (cross_entropy if own is None else own)(output, target)
    return loss.reshape(len(loss), -1).mean(dim=1) if loss.dim() else loss


def _class_divergence(output: Tensor, answer: Tensor, target: Any, temperature: float, ignored: int) -> Tensor:
    """Return T² times the divergence of a student's logits from a teacher's, ``[B]``. For tokens or pixels it is averaged over each sample,
    without positions of the class that the member's own loss ignores."""
    student, teacher = (functional.log_softmax(one / temperature, dim=1) for one in (output, answer))
    parts = temperature**2 * (teacher.exp() * (teacher - student)).sum(dim=1)
    if parts.dim() == 1:
        return parts
    of_each = isinstance(target, Tensor) and target.shape == parts.shape and not target.is_floating_point()
    counted = target != ignored if of_each else torch.ones_like(parts)
    return (parts * counted).flatten(1).sum(dim=1) / counted.flatten(1).sum(dim=1).clamp(min=1)


def _squared_distance(output: Tensor, answer: Tensor, target: Any, temperature: float, ignored: int) -> Tensor:
    """Return the squared distance between a student's and a teacher's numbers, ``[B]``."""
    del target, temperature, ignored  # only logits have ignored positions and a temperature
    return (output - answer).square().flatten(1).mean(dim=1)
