"""Several judges: the gravest fate counts, and only what is certain to all is certain."""

from dataclasses import dataclass

import studies
from hypothesis import given
from hypothesis import strategies as st

import argosy
from argosy.fold import RunState
from argosy.running.verdicts import GO_ON, Fate, Rules, Verdict, judge

VERDICTS = st.builds(Verdict, st.sampled_from(Fate), st.sampled_from(["", "a", "b"]), st.integers(1, 5))


@dataclass
class Says:
    """Always the same."""

    answer: Verdict

    def verdict(self, member: str, state: RunState, study: argosy.Study) -> Verdict:
        return self.answer

    def called(self, resting: object, state: RunState, study: argosy.Study) -> tuple[str, ...]:
        return ()


@given(st.lists(VERDICTS, min_size=1, max_size=5))
def test_the_gravest_fate_counts_and_what_is_certain_to_all(verdicts: list[Verdict]) -> None:
    study = studies.study(fleet=[studies.member("m")])
    found = judge([Says(verdict) for verdict in verdicts], "m", RunState(), study)
    fates = [verdict.fate for verdict in verdicts]
    if Fate.END in fates:
        assert found == next(verdict for verdict in verdicts if verdict.fate is Fate.END)
    elif Fate.REST in fates:
        assert found == next(verdict for verdict in verdicts if verdict.fate is Fate.REST)
    else:
        assert found == Verdict(Fate.GO_ON, certain=min(verdict.certain for verdict in verdicts))


def test_rules_are_the_members_own_or_the_studys() -> None:
    fleet = [studies.member("own", stop=argosy.MaxEpochs(3)), studies.member("other")]
    study, state = studies.study(fleet=fleet, epochs=7, validations_per_epoch=4), RunState()
    assert Rules().verdict("own", state, study) == Verdict(Fate.GO_ON, certain=12)
    assert judge([Rules(), Says(GO_ON)], "own", state, study).certain == 1
    state.member("other").history.extend({"epochs": (n + 1) / 4, "seconds": 1.0} for n in range(28))
    assert Rules().verdict("other", state, study) == Verdict(Fate.END, "7 epochs")
    assert Rules().called({"own"}, state, study) == ()
