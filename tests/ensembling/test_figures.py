"""Tests the scores, combinations and selections of ensembles, against scikit-learn, SciPy, hand-computed values and a slow reference."""

import itertools
import math
import time
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from sklearn.metrics import log_loss
from torch import Tensor, nn
from torch.nn import functional

import argosy
from argosy.ensembling import making
from argosy.ensembling.calibrate import SPAN, temperature
from argosy.ensembling.combining import combine_outputs, quantiles, variance
from argosy.ensembling.making import make_ensemble
from argosy.ensembling.predict import Predicted
from argosy.ensembling.scores import class_scores, disagreement, scores_of_classes, scores_of_numbers
from argosy.ensembling.select import BAGS, ROUNDS, How, loss_terms, losses_of, select_weights
from argosy.errors import RunError

CLASSES = ("probabilities", "logits", "votes")


def members(count: int, samples: int = 60, classes: int = 4, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return logits ``[members, N, classes]``, mostly right but each member for other samples, and the targets ``[N]``."""
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(classes, (samples,), generator=generator)
    signal = 1.5 * functional.one_hot(target, classes)
    noise = torch.randn(count, samples, classes, generator=generator, dtype=torch.float64)
    return signal + noise, target


def even(count: int) -> Tensor:
    """Return equal weights."""
    return torch.full((count,), 1 / count)


def test_scores_of_classes() -> None:
    logits, target = members(1)
    probabilities = logits[0].softmax(dim=1)
    found = class_scores(probabilities, target)
    assert found["accuracy"] == pytest.approx(float((logits[0].argmax(1) == target).double().mean()))
    assert found["nll"] == pytest.approx(log_loss(target, probabilities, labels=range(4)))
    truth = functional.one_hot(target, 4).double()
    assert found["brier"] == pytest.approx(float(((probabilities - truth) ** 2).sum() / 60))


def test_calibration_error_is_the_gap_between_confidence_and_accuracy() -> None:
    probabilities = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.9, 0.1], [0.6, 0.4]])
    found = class_scores(probabilities, torch.tensor([0, 0, 1, 0]))
    assert found["ece"] == pytest.approx(3 / 4 * (0.9 - 2 / 3) + 1 / 4 * 0.4)
    assert class_scores(torch.eye(3), torch.arange(3))["ece"] == 0.0


@pytest.mark.parametrize("combine", CLASSES)
def test_outputs_of_many_classes_are_combined_a_part_at_a_time(combine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    logits_MNC, target_N = members(5)
    predicted = Predicted([*logits_MNC], target_N, torch.arange(60), 60)
    fleet = {f"m{number}": nn.Linear(1, 1) for number in range(5)}

    def scores() -> Any:
        return make_ensemble(fleet, range(5), predicted, combine=combine, select=None, calibrate=False).scores

    whole, sizes = scores(), list[int]()
    monkeypatch.setattr(making, "PART", 100)
    monkeypatch.setattr(
        making, "combine_outputs", lambda part, *how: sizes.append(part.numel()) or combine_outputs(part, *how)
    )
    for found, wanted in zip(scores(), whole, strict=True):
        assert {**found, "network": 0} == pytest.approx({**wanted, "network": 0})
    assert len(sizes) == 12 and max(sizes) == 100


def test_disagreement_of_thousands_of_members_compares_no_pairs() -> None:
    said = torch.nn.functional.one_hot(torch.arange(6000).reshape(3000, 2) // 2 % 4, 4).double()
    began = time.process_time()
    assert disagreement(said) == pytest.approx(1 - 749 / 2999)
    assert time.process_time() - began < 2.0, (
        "too slow: comparing all four and a half million pairs takes half a minute"
    )


def test_disagreement_is_a_mean_over_pairs() -> None:
    said = functional.one_hot(torch.tensor([[0, 1, 2, 0], [0, 1, 2, 1], [0, 2, 2, 1]]), 3).double()
    assert disagreement(said) == pytest.approx((1 / 4 + 2 / 4 + 1 / 4) / 3)
    assert disagreement(said[:1]) == 0.0


def test_scores_of_numbers() -> None:
    found = scores_of_numbers(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0]))
    assert found == pytest.approx({"rmse": math.sqrt(2), "mae": 1.0})


def test_scores_of_what_is_no_prediction_of_each_sample_are_refused() -> None:
    logits, target = members(1)
    probabilities = logits[0].softmax(dim=1)
    gone = probabilities.clone()
    gone[:6] = torch.nan
    for given, wanted, said in (
        (probabilities, target[:, None], r"targets of shape \[60, 1\]"),
        (probabilities[0], target, "one class number per sample"),
        (gone, target, "6 of 60 rows with NaN"),
        (logits[0], target, "60 of 60 rows that do not sum to 1"),
        (probabilities, target + 100, f"60 of 60 targets that are not among the {probabilities.shape[1]} classes"),
        (probabilities, target + 0.5, "60 of 60 targets"),
    ):
        with pytest.raises(RunError, match=said):
            class_scores(given, wanted)
    assert class_scores(probabilities.bfloat16(), target.int().numpy())["accuracy"] > 0


def test_an_output_with_nan_is_wrong() -> None:
    output = torch.tensor([[torch.nan, 1.0], [torch.nan, torch.nan], [3.0, 1.0], [torch.inf, 0.0]])
    for right in (argosy.accuracy, torch.vmap(lambda o, t: argosy.accuracy(o[None], t[None])[0])):
        assert right(output, torch.zeros(4, dtype=torch.long)).tolist() == [0, 0, 1, 1]
    assert scores_of_classes(output.softmax(dim=1), torch.zeros(4, dtype=torch.long))["accuracy"] == 0.25


def test_ways_to_combine() -> None:
    logits, weights = torch.tensor([[[2.0, 0.0]], [[0.0, 1.0]], [[0.0, 3.0]]]), torch.tensor([0.5, 0.25, 0.25])
    temperatures = torch.tensor([2.0, 1.0, 1.0])
    cooled = logits / temperatures[:, None, None]
    expected = {
        "probabilities": (cooled.softmax(2) * weights[:, None, None]).sum(0),
        "logits": (cooled * weights[:, None, None]).sum(0).softmax(1),
        "votes": torch.tensor([[0.5, 0.5]]),
        "mean": (logits * weights[:, None, None]).sum(0),
    }
    for combine, values in expected.items():
        torch.testing.assert_close(combine_outputs(logits, weights, temperatures, combine), values)
    pixels = torch.randn(3, 2, 4, 5, 5)
    for combine in CLASSES:
        together = combine_outputs(pixels, weights, temperatures, combine)
        torch.testing.assert_close(together.sum(dim=1), torch.ones(2, 5, 5))


def test_spread_of_numbers() -> None:
    outputs = torch.tensor([4.0, 1.0, 2.0, 3.0])[:, None]
    torch.testing.assert_close(variance(outputs, even(4)), torch.tensor([1.25]))
    found = quantiles(outputs, even(4), [0.0, 0.25, 0.5, 0.51, 1.0])
    assert found.flatten().tolist() == [1.0, 1.0, 2.0, 3.0, 4.0]
    heavy = quantiles(outputs, torch.tensor([0.7, 0.1, 0.1, 0.1]), [0.3, 0.5])
    assert heavy.flatten().tolist() == [3.0, 4.0]
    ten = torch.arange(10.0)[:, None]
    assert quantiles(ten, even(10), [k / 10 for k in range(1, 11)]).flatten().tolist() == list(range(10))


def test_temperature_has_the_least_negative_log_likelihood() -> None:
    logits, target = members(1, samples=200)
    for scale in (0.3, 1.0, 4.0):
        found = temperature(logits[0] * scale, target)

        def loss(log_temperature: float, logits: Tensor = logits[0] * scale) -> float:
            return functional.cross_entropy(logits / math.exp(log_temperature), target).item()

        best = minimize_scalar(loss, bounds=(-3, 3), method="bounded", options={"xatol": 1e-9})
        assert math.log(found) == pytest.approx(best.x, abs=1e-5)


def test_the_temperature_of_a_network_that_is_never_or_always_wrong_is_bounded() -> None:
    logits = 3.0 * torch.eye(4)
    assert temperature(logits, torch.arange(4)) == pytest.approx(1 / SPAN)
    assert temperature(logits, torch.arange(4).roll(1)) == pytest.approx(SPAN)


def test_the_temperature_of_logits_that_are_not_finite() -> None:
    logits, target = members(1)
    ruled_out = torch.cat([logits[0], torch.full((60, 1), -math.inf, dtype=torch.float64)], dim=1)
    assert temperature(ruled_out, target) == temperature(logits[0], target)
    for value in (math.nan, math.inf, -math.inf):
        logits[0, 0, target[0]] = value
        assert temperature(logits[0], target) == 1.0


def test_an_ensemble_is_worth_what_its_members_with_a_weight_are() -> None:
    logits, target = members(3)
    logits[1] = math.nan
    networks: dict[str, nn.Module] = {name: nn.Identity() for name in ("one", "two", "three")}
    predicted = Predicted(list(logits), target, torch.arange(60), 60)
    ensemble = make_ensemble(networks, [0, 0, 0], predicted, combine="probabilities", select="greedy", calibrate=False)
    own, *alone = ensemble.scores
    found = combine_outputs(logits[[0, 2]], ensemble.weights, ensemble.temperatures, "probabilities")
    assert own["nll"] == pytest.approx(class_scores(found, target)["nll"], rel=1e-6)
    assert [math.isnan(row["nll"]) for row in alone] == [False, True, False]


def loss_of(weights: list[float], outputs: Tensor, target: Tensor, combine: str) -> float:
    """Return the loss that greedy selection minimizes."""
    together = combine_outputs(outputs, torch.tensor(weights, dtype=torch.float64), torch.ones(len(outputs)), combine)
    if combine == "mean":
        return (together - target).pow(2).mean().item()
    if combine == "votes":
        return (together.argmax(1) != target).double().mean().item()
    return functional.nll_loss(together.log(), target).item()


def greedy(outputs: Tensor, target: Tensor, combine: Any, how: How = "greedy") -> list[float]:
    """Return the weights that are selected."""
    return select_weights(loss_terms(outputs, target, combine), losses_of(target, combine), how)


def slow_greedy(outputs: Tensor, target: Tensor, combine: str) -> list[float]:
    """Return the weights of greedy selection, computed from its definition."""
    counts, tried = np.zeros(len(outputs), int), []
    for _ in range(ROUNDS):
        options = [counts + np.eye(len(outputs), dtype=int)[number] for number in range(len(outputs))]
        losses = [loss_of(list(option / option.sum()), outputs, target, combine) for option in options]
        counts = options[int(np.argmin(losses))]
        tried.append((min(losses), counts / counts.sum()))
    return list(min(tried, key=lambda one: one[0])[1])


@pytest.mark.parametrize("combine", ["probabilities", "logits", "mean"])
def test_greedy_selection_is_that_of_its_definition(combine: str) -> None:
    outputs, target = members(5)
    truth = torch.randn(60, 4, dtype=torch.float64) if combine == "mean" else target
    assert greedy(outputs, truth, combine) == pytest.approx(slow_greedy(outputs, truth, combine))


@pytest.mark.parametrize("combine", ["probabilities", "logits", "mean"])
def test_a_bagged_selection_is_the_mean_of_greedy_ones_from_random_halves(combine: str) -> None:
    outputs, target = members(10)
    truth = torch.randn(60, 4, dtype=torch.float64) if combine == "mean" else target
    outputs[3] = math.nan  # a member that has diverged is in no half
    draws, wanted, sound = np.random.RandomState(0), np.zeros(10), np.array([0, 1, 2, 4, 5, 6, 7, 8, 9])
    for _ in range(BAGS):
        half = sound[draws.permutation(9)[:4]]
        wanted[half] += greedy(outputs[torch.from_numpy(half)], truth, combine)
    assert greedy(outputs, truth, combine, "bagged") == pytest.approx(list(wanted / BAGS))
    assert greedy(outputs, truth, combine) != pytest.approx(list(wanted / BAGS))
    assert greedy(outputs[:8], truth, combine, "bagged") == greedy(outputs[:8], truth, combine), (
        "two selections from seven members differ"
    )


@pytest.mark.parametrize(("combine", "seed"), list(itertools.product((*CLASSES, "mean"), range(5))))
def test_greedy_selection_is_never_worse_than_the_best_alone(combine: str, seed: int) -> None:
    outputs, target = members(6, seed=seed)
    truth = outputs[0] * 0.9 if combine == "mean" else target
    weights = greedy(outputs, truth, combine)
    assert sum(weights) == pytest.approx(1.0)
    alone = [loss_of([float(n == number) for n in range(6)], outputs, truth, combine) for number in range(6)]
    assert loss_of(weights, outputs, truth, combine) <= min(alone) + 1e-12


def test_greedy_selection_leaves_out_what_says_nothing() -> None:
    outputs, target = members(3)
    outputs[1] = math.nan
    assert greedy(outputs, target, "probabilities")[1] == 0.0
    assert greedy(outputs[:1], target, "probabilities") == [1.0]
