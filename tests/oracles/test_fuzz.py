"""Tests random studies over the whole API: valid ones equal a plain loop, invalid ones are refused with one sentence."""

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from fuzzing import BAD, Asked, Samples, differences, doubled, invalid, moving, network, refusal, spoilt, table, valid
from hypothesis import HealthCheck, Phase, given, seed, settings
from torch.optim import ASGD, SGD, Adafactor, NAdam, RAdam, Rprop

import argosy

PARTS, EXAMPLES = 4, 12
"""Number of tests, so that several test processes can share them, and studies in each; `make fuzz` tries many more."""
GENERATE = {
    "database": None,
    "deadline": None,
    "suppress_health_check": list(HealthCheck),
    "phases": (Phase.explicit, Phase.generate),
}


@pytest.mark.parametrize("part", range(PARTS))
def test_valid_studies_equal_a_plain_loop(part: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    @seed(part)
    @settings(max_examples=EXAMPLES, derandomize=False, **GENERATE)
    @given(valid())
    def equal(asked: object) -> None:
        with tempfile.TemporaryDirectory(dir=tmp_path_factory.getbasetemp()) as folder:
            assert differences(asked, Path(folder)) == [], repr(asked)

    equal()


@seed(0)
@settings(max_examples=4, derandomize=False, **GENERATE)
@given(asked=valid(launcher="processes"))
def test_valid_studies_in_processes_equal_a_plain_loop(tmp_path_factory: pytest.TempPathFactory, asked: object) -> None:
    with tempfile.TemporaryDirectory(dir=tmp_path_factory.getbasetemp()) as folder:
        assert differences(asked, Path(folder)) == [], repr(asked)


@pytest.mark.parametrize("kind", [ASGD, NAdam, RAdam, Rprop, Adafactor])
@pytest.mark.parametrize("by_itself", [False, True])
def test_an_optimizer_that_keeps_float32_beside_float64_weights_is_resumed_to_the_bit(
    tmp_path: Path, kind: Any, by_itself: bool
) -> None:
    own: dict[str, Any] = {"model": partial(network, "mlp", 3, 0.0, torch.float64), "batch_size": 8}
    if by_itself:
        own |= {"step": moving, "validate": doubled, "optimizers": lambda model: {"all": kind(model.parameters())}}
    data = argosy.Data(arrays=table(40), val_arrays=table(7))
    members = [argosy.Member("m", **own, **({} if by_itself else {"optimizer": kind}))]
    first, study = (argosy.Study(data=data, members=members, stop=argosy.MaxEpochs(epochs)) for epochs in (1, 3))
    settings = {"launcher": "inline", "devices": "cpu:1", "numerics": "exact"}
    assert differences(Asked(study, settings, first), tmp_path) == []


@pytest.mark.parametrize("accumulate", [1, 3])
def test_batch_norm_over_images_trains_on_one_sample(tmp_path: Path, accumulate: int) -> None:
    """BatchNorm accepts one image as last batch or micro-batch, since an image has several values per channel."""
    model = partial(network, "cnn2d", 3, 0.0, torch.float64)
    own = {"model": model, "optimizer": partial(SGD, lr=0.1), "batch_size": 8, "accumulate": accumulate}
    data = argosy.Data(arrays=table(25), val_arrays=table(7))
    study = argosy.Study(data=data, members=[argosy.Member("m", **own)], stop=argosy.MaxEpochs(2))
    settings = {"launcher": "inline", "devices": "cpu:1", "numerics": "exact"}
    assert differences(Asked(study, settings), tmp_path) == []


@pytest.mark.parametrize("part", range(2))
def test_invalid_studies_are_refused_in_a_sentence(part: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    @seed(part)
    @settings(max_examples=60, derandomize=False, **GENERATE)
    @given(invalid())
    def refused(asked: object) -> None:
        words, run = asked
        with tempfile.TemporaryDirectory(dir=tmp_path_factory.getbasetemp()) as folder:
            assert refusal(run, Path(folder)) == [], words

    refused()


@pytest.mark.parametrize("where", sorted(BAD))
def test_every_invalid_value_by_itself_is_refused_in_a_sentence(
    where: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    own = {"model": partial(network, "mlp", 3, 0.0, torch.float64), "optimizer": partial(SGD, lr=0.1), "batch_size": 8}
    arrays, datasets = table(25), Samples(25, torch.float64)
    for name, values in BAD[where].items():
        given = (
            {"train": datasets, "val": datasets}
            if name in ("train", "val")
            else {"arrays": arrays, "val_arrays": arrays}
        )
        members = [argosy.Member(name, **own) for name in "ab"]
        study = argosy.Study(data=argosy.Data(**given), members=members, stop=argosy.MaxEpochs(1))
        asked = Asked(study, {"launcher": "inline", "devices": "cpu:1"})
        for value in values:
            run, directory = spoilt(asked, where, name, value), tmp_path_factory.mktemp("run")
            assert refusal(run, directory, ends=where != "Member") == [], (where, name, value)
