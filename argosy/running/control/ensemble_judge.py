"""The ensemble as a judge: it is selected again after each section, and ends members that it does not need, and finally the run.

A decision covers all members after the same number of sections, so it does not depend on timing; a member that a decision could end waits
for it. The members' outputs are in a file of the run. Decisions are in the journal, and verdicts follow from them.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from argosy.ensembling.select import Losses, bagged_weights, greedy_weights, mean_squared_error, negative_log_likelihood
from argosy.errors import RunError, StudyError
from argosy.protocol.events import EnsembleChosen, SectionEnded
from argosy.results.fold import FAILED_STATUSES, FINAL_STATUSES, MemberState, RunState
from argosy.running.control.verdicts import Fate, Verdict
from argosy.running.directory.answer_file import AnswerFile, parse_answers
from argosy.stopping import EnsemblePlateau
from argosy.stream.order import permutation
from argosy.study import Member, Study
from argosy.training.member.answers import answer_kind

__all__ = ["EnsembleState", "EnsembleJudge", "select_ensemble"]

FILE = "answers.bin"
APART = 2**32 - 1
"""Takes the place of an epoch number in the seed of the order whose first samples are held out."""
AHEAD = 1.5
"""How far a member's loss is extrapolated, as a multiple of the sections that it has trained."""


class EnsembleState:
    """State after all decisions so far: a fold of `EnsembleChosen` events under one rule."""

    def __init__(self, rule: EnsemblePlateau) -> None:
        self.rule = rule
        self.all_end: int = 2 * rule.patience
        """Sections without a better ensemble after which all members end; twice the patience, because noise hides slow gains longer."""
        self.decisions: int = 0
        self.dropped: dict[str, int] = {}
        """By member: the decision that ends it."""
        self.over: int | None = None
        """The decision that ends all members; None so far."""
        self._best, self._since = math.inf, 0
        self._idle: dict[str, int] = {}

    def follow(self, decisions: Sequence[EnsembleChosen]) -> None:
        """Apply new decisions."""
        for event in decisions[self.decisions :]:
            self.decisions = event.section
            if event.loss is None:
                continue  # from before the study had an ensemble: no member could be selected
            value = event.loss if event.held_out is None else event.held_out
            better = value < self._best - self.rule.min_delta
            self._best, self._since = (value, 0) if better else (self._best, self._since + 1)
            if self.over is None and self._since >= self.all_end:
                self.over = event.section
            for name in event.weights:
                self._idle[name] = 0 if name in event.useful else self._idle.get(name, 0) + 1
                if self._idle[name] >= self.rule.patience:
                    self.dropped.setdefault(name, event.section)

    def last(self, member: str) -> int:
        """Return the decision that ends a member, or the first one that may."""
        known = [decision for decision in (self.dropped.get(member), self.over) if decision is not None]
        if known:
            return min(known)
        patience = self.rule.patience
        return self.decisions + min(patience - self._idle.get(member, 0), self.all_end - self._since)

    def reason(self, member: str) -> str:
        """Return why a member ends with `last`."""
        if self.over is not None and self.over <= self.dropped.get(member, self.over):
            return f"the ensemble has not improved for {self.all_end} sections"
        return f"of no use to the ensemble for {self.rule.patience} sections"

    def ends(self, member: str) -> bool:
        """Return whether a known decision ends the member."""
        return self.over is not None or member in self.dropped


class EnsembleJudge:
    """The `Judge` of a study with an ensemble."""

    def __init__(self, study: Study, rule: EnsemblePlateau, directory: Path) -> None:
        self.seed: int = study.seed
        self.rule = rule
        self._kind = answer_kind(study.members[0])
        self.check(study.members)
        self._losses: Losses = negative_log_likelihood if self._kind == "classes" else mean_squared_error
        self._standing = EnsembleState(rule)
        self._file = AnswerFile(directory / FILE)
        self._answers: dict[tuple[str, int], npt.NDArray[np.float32]] = {}
        self._alone: dict[tuple[str, int], float] = {}
        """Loss of each member alone in each of its best sections so far, on the samples that ensembles are selected on."""
        self._add_answers(self._file.read())

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def check(self, members: Iterable[Member]) -> None:
        """Raise StudyError for members that cannot be combined with those of the study."""
        for member in members:
            if self._kind is None or answer_kind(member) != self._kind:
                raise StudyError(
                    f"member {member.name!r}: Study.ensemble combines members that all predict classes, under "
                    "cross-entropy, or all predict numbers, under a loss such as nn.MSELoss(). Give all members "
                    "such losses, or omit ensemble."
                )

    # ---- outputs of members

    def keep(self, ended: Iterable[SectionEnded], answers: Mapping[str, tuple[int, bytes]], per_epoch: int) -> None:
        """Write the members' outputs of ended sections, before these are journaled."""
        kept = [
            (event.member, event.epoch * per_epoch + event.section + 1, *answers[event.member])
            for event in ended
            if event.member in answers
        ]
        self._file.append(kept)
        self._add_answers({(name, section): parse_answers(each, form) for name, section, each, form in kept})

    def check_kept(self, state: RunState, study: Study) -> None:
        """Raise RunError if the next decision needs answers, of a member that earlier ones knew, that are lost or damaged."""
        section = len(state.ensembles) + 1
        back = section - min(self.rule.patience, section - 1)
        known = {event.section: event.weights for event in state.ensembles}
        for one in map(state.member, study.names):
            for at in (section, back):
                best = _best(one, at)
                if best and one.name in known.get(min(at, section - 1), ()) and (one.name, best) not in self._alone:
                    raise RunError(
                        f"{self._file.path} lacks sound answers of member {one.name!r} in its section {best}, which the next ensemble "
                        "needs: it is not the file that the run wrote, or that section was trained without ensemble. Restore that "
                        "file, omit ensemble from the study, or start over with --fresh."
                    )

    def _add_answers(self, answers: Mapping[tuple[str, int], npt.NDArray[np.float32]]) -> None:
        self._answers.update(answers)
        for at, terms in answers.items():
            on = _selection_mask(len(terms), self.rule.holdout, self.seed)
            self._alone[at] = float(self._losses(torch.tensor(terms, dtype=torch.float64)[None, on]))

    def decide(self, state: RunState, study: Study) -> EnsembleChosen | None:
        """Return the next decision, to be journaled, once all training members have reached its section."""
        self._standing.follow(state.ensembles)
        section = self._standing.decisions + 1
        states = [state.member(name) for name in study.names]
        if self._standing.over is not None or not any(len(one.sections) >= section for one in states):
            return None
        if any(len(one.sections) < section and one.status not in FINAL_STATUSES for one in states):
            return None
        best = {one.name: _best(one, section) for one in states if one.status not in FAILED_STATUSES}
        terms = {name: self._answers[name, at] for name, at in best.items() if (name, at) in self._answers}
        # Earlier best sections are in no later ensemble.
        self._answers = {(name, at): answer for (name, at), answer in self._answers.items() if at >= best.get(name, 0)}
        return select_ensemble(
            section, terms, self._expected(section, states), self._losses, holdout=self.rule.holdout, seed=self.seed
        )

    def _expected(self, section: int, members: Iterable[MemberState]) -> dict[str, float]:
        """Return the extrapolated loss of each member alone, if its history allows it."""
        back = min(self.rule.patience, section - 1)
        expected = {}
        for one in members:
            now, then = (self._alone.get((one.name, _best(one, at))) for at in (section, section - back))
            if back and now is not None and then is not None:
                expected[one.name] = extrapolate_loss(now, then, section=section, back=back)
        return expected

    # ---- the judge

    def verdict(self, member: str, state: RunState, study: Study) -> Verdict:
        """Implement `Judge.verdict`: a member that the next decision could end waits for it."""
        self._standing.follow(state.ensembles)
        sections, last = len(state.member(member).sections), self._standing.last(member)
        if sections < last:
            return Verdict(Fate.GO_ON, certain=last - sections)
        if self._standing.ends(member):
            return Verdict(Fate.END, self._standing.reason(member))
        return Verdict(Fate.REST, f"waits for the ensemble of section {last}")

    def called(self, resting: Collection[str], state: RunState, study: Study) -> Sequence[str]:
        """Return the resting members for which a decision has been made."""
        return [name for name in resting if self.verdict(name, state, study).fate is not Fate.REST]


def _best(member: MemberState, section: int) -> int:
    """Return the number of a member's best section among the first `section` ones; 0 if there is none."""
    rows = member.sections[:section]
    return next((number for number in range(len(rows), 0, -1) if rows[number - 1].best), 0)


def extrapolate_loss(now: float, then: float, *, section: int, back: int) -> float:
    """Return the loss `AHEAD` times `section` further sections from now, if it keeps falling by the same power of the number of sections as
    over the last `back` sections, before which it was `then`."""
    if not then:
        return now
    further = math.log(1 + AHEAD) / math.log(section / (section - back))
    return float(now * min(now / then, 1.0) ** further)


def _selection_mask(rows: int, holdout: float, seed: int) -> Tensor:
    """Return a mask of the samples that ensembles are selected on."""
    on = torch.ones(rows, dtype=torch.bool)
    on[torch.from_numpy(permutation(seed, APART, rows)[: int(rows * holdout)])] = False
    return on


def select_ensemble(
    section: int,
    terms: Mapping[str, npt.NDArray[np.float32]],
    expected: Mapping[str, float],
    losses: Losses,
    *,
    holdout: float,
    seed: int,
) -> EnsembleChosen:
    """Select an ensemble from members' outputs ``[N, K]`` on a part of the samples; the fraction `holdout` of them is held out.

    Useful members are those in it, those in ensembles of random halves of the members, and those whose extrapolated loss is below the mean
    loss of the selected members or cannot be extrapolated. Members with outputs that are not finite, or with fewer samples than others
    because some were broken, cannot be selected.
    """
    shape = max((term.shape for term in terms.values()), default=(0, 0))
    finite = {name: term for name, term in terms.items() if term.shape == shape and np.isfinite(term).all()}
    if not finite:
        return EnsembleChosen(section=section, weights=dict.fromkeys(terms, 0.0), useful=(), loss=None, held_out=None)
    terms_MNK = torch.from_numpy(np.stack([*finite.values()])).double()
    on = _selection_mask(shape[0], holdout, seed)
    weights = greedy_weights(terms_MNK[:, on], losses)
    names, halves = [*finite], bagged_weights(terms_MNK[:, on], losses, seed + section)
    weights_M = torch.tensor(weights, dtype=torch.float64)
    reach = float(weights_M @ losses(terms_MNK[:, on]))
    mean_1NK = torch.einsum("m,mnk->nk", weights_M, terms_MNK)[None]
    held_out = float(losses(mean_1NK[:, ~on])) if not on.all() else None
    weight_of = dict(zip(names, weights, strict=True))
    return EnsembleChosen(
        section=section,
        weights={name: weight_of.get(name, 0.0) for name in terms},
        useful=tuple(
            name
            for number, name in enumerate(names)
            if halves[number] or weight_of[name] or expected.get(name, -math.inf) < reach
        ),
        loss=float(losses(mean_1NK[:, on])),
        held_out=held_out,
    )
