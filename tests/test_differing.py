"""Tests that a failed comparison of runs says which member differs first, in which section, in what, and by how much."""

from collections.abc import Callable
from typing import Any

import differing
import pytest
import torch
from evidence import Bits

Change = Callable[[dict[str, Any]], None]


def member(change: Change = lambda plain: None) -> dict[str, Any]:
    """Return results like those of `evidence.results_of`, of two epochs with two sections, after `change`."""
    plain: dict[str, Any] = {
        "weights": {"0.weight": torch.ones(2, 3), "0.bias": torch.zeros(2)},
        "optimizer": {"state": {0: {"step": 4, "exp_avg": torch.ones(2)}}},
        "random": torch.arange(4),
        "epochs": [
            [epoch, epoch, {"val_loss": 0.5 - 0.25 * epoch}, (8, 1, 1), None, 2, 8 * section]
            for epoch in range(2)
            for section in (1, 2)
        ],
        "decision": ("done", "after 2 epochs"),
    }
    change(plain)
    return {part: value if part in ("epochs", "decision") else Bits.of(value) for part, value in plain.items()}


def worse(plain: dict[str, Any]) -> None:
    """Change the losses of the last two sections, and the weights."""
    plain["epochs"][2][2]["val_loss"] = 0.375
    plain["epochs"][3][2]["val_loss"] = 9.0
    plain["weights"]["0.weight"][1, 2] += 0.125
    plain["weights"]["0.bias"] -= 1.0


def put(*path: Any) -> Change:
    """Return a change that puts a value, the last argument, at the path of the other arguments."""

    def change(plain: dict[str, Any]) -> None:
        *keys, last, value = path
        for key in keys:
            plain = plain[key]
        plain[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            worse,
            "epoch 1, section 0: val_loss 0.375 instead of 0.25 (by 1.2e-01, 5.0e-01 of it); "
            "weights: '0.weight' by at most 1.2e-01 (and 1 more)",
        ),
        (put("epochs", 1, 5, 3), "epoch 0, section 1: steps 3 instead of 2 (by 1.0e+00, 5.0e-01 of it)"),
        (put("epochs", 0, 3, (7, 1, 1)), "epoch 0, section 0: digest (7, 1, 1) instead of (8, 1, 1)"),
        (put("epochs", []), "its number of sections: 0 instead of 4"),
        (put("weights", "0.weight", torch.ones(2, 3).double()), "weights: '0.weight' is torch.float64 of shape (2, 3) "
            "instead of torch.float32 of shape (2, 3)"),
        (put("weights", "0.bias", -torch.zeros(2)), "weights: '0.bias' by at most 0.0e+00"),
        (put("optimizer", "state", 0, "step", 5), "optimizer: 'state.0.step' is 5 instead of 4 (by 1.0e+00, 2.5e-01 of it)"),
        (put("weights", "1.bias", 0), "weights: '1.bias' is 0 instead of None"),
        (put("decision", ("failed", "")), "decision ('failed', '') instead of ('done', 'after 2 epochs')"),
    ],
)  # fmt: skip
def test_the_first_difference_is_told(change: Change, words: str) -> None:
    wanted = {"cnn": member(), "mlp": member(), "adam": member()}
    found = {"adam": member(worse), "mlp": member(change), "cnn": member()}
    assert differing.first_difference(found, wanted) == f"member 'mlp' differs first in {words}"
    assert differing.explained(found["mlp"], wanted["mlp"]) == f"the member differs first in {words}"
    assert differing.first_difference(wanted, dict(wanted)) == differing.explained(wanted, dict(wanted)) == ""


def test_a_member_that_is_missing_or_there_for_nothing_is_named() -> None:
    one, two = {"a": member()}, {"a": member(), "b": member()}
    assert differing.first_difference(one, two) == "member 'b' is missing"
    assert differing.first_difference(two, one) == "member 'b' is there, and should not be"


def test_an_assertion_that_fails_has_the_sentence() -> None:
    found, wanted = {"mlp": member(worse)}, {"mlp": member()}
    with pytest.raises(AssertionError, match=r"member 'mlp' differs first in epoch 1, section 0: val_loss 0\.375"):
        assert found == wanted
    with pytest.raises(AssertionError, match=r"the member differs first in epoch 1, section 0"):
        assert found["mlp"] == wanted["mlp"]
    with pytest.raises(AssertionError, match=r"the state differs first in '0\.weight' by at most 1\.2e-01"):
        assert found["mlp"]["weights"] == wanted["mlp"]["weights"]


@pytest.mark.parametrize(
    ("losses", "words"),
    [
        ([0.5, 0.5, 0.2, 0.1], r"epoch 1, section 0: val_loss 0\.25 instead of 0\.2 \(by 5\.0e-02, 2\.5e-01 of it\)$"),
        ([0.5, 0.5, 0.25], r"its number of sections: 4 instead of 3$"),
        ([0.5, 0.5, 0.25, 0.25, 0.1], r"its number of sections: 4 instead of 5$"),
    ],
)
def test_a_member_that_is_not_what_a_loop_made_of_it_is_told(losses: list[float], words: str) -> None:
    one = member()
    differing.assert_equals_loop("mlp", one, one["weights"], [0.5, 0.5, 0.25, 0.25])
    with pytest.raises(AssertionError, match=f"member 'mlp' differs first in {words}"):
        differing.assert_equals_loop("mlp", one, one["weights"], losses)
    with pytest.raises(AssertionError, match=r"member 'mlp' differs first in weights: '0\.weight' by"):
        differing.assert_equals_loop("mlp", one, member(worse)["weights"], [0.5, 0.5, 0.25, 0.25])
