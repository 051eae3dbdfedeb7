"""Tests that code is compiled once for all members of an architecture, with the results that they have without it."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import evidence
import packs
import pytest
import torch
from packs import difference, member
from torch import Tensor, nn
from torch.func import vmap
from torch.optim import SGD, Adam

import argosy
from argosy.study import Member
from argosy.training.choice.fusion_group import FusionGroup
from argosy.training.programs.fused.compiled import Compilation, Pass
from argosy.training.programs.fused.fused import Fused

EXACT = 1e-10


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give the tests of this file their own cache of compiled code on disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("inductor")))
        patch.setattr("torch._inductor.config.compile_threads", 1)  # compile in this process, and start no others
        yield


def compilations() -> tuple[int, int]:
    """Return the numbers of compilations made in this process and of those found on disk."""
    from torch._dynamo.utils import counters  # imported here because it takes seconds

    found = counters["inductor"]
    return found["fxgraph_cache_miss"], found["fxgraph_cache_hit"]


def network(hidden: int = 12) -> nn.Module:
    return nn.Sequential(
        nn.Linear(16, hidden), nn.BatchNorm1d(hidden), packs.Masked(hidden), nn.Tanh(), nn.Linear(hidden, 4)
    )


def members(**rest: Any) -> list[Member]:
    """Return four members with different optimizers, of two kernels."""
    optimizers = [partial(SGD, lr=0.1, momentum=0.9), partial(SGD, lr=0.2), Adam, partial(Adam, lr=0.002)]
    return [
        member(f"m{n}", **{"model": network, "optimizer": optimizer, **rest}) for n, optimizer in enumerate(optimizers)
    ]


def compiled(fleet: list[Member], epochs: int, compilation: Compilation, **how: Any) -> tuple[Any, Any]:
    lives = [packs.live(one) for one in fleet]
    return lives, packs.train(Fused.of(lives, compilation), epochs, **how)


@pytest.mark.usefixtures("cache")
def test_there_are_as_many_compilations_as_architectures_and_none_after_a_restart() -> None:
    made, found = compilations()
    # The last batch of an epoch is short, and one member leaves: neither needs another compilation.
    how: dict[str, Any] = {"data": packs.samples(train=90), "ends": {"m1": 1}}
    plain, history = packs.together(members(), 3, **how)
    compilation = Compilation()
    lives, known = compiled(members(), 3, compilation, **how)
    assert compilation.refused == ""
    assert compilations() == (made + 1, found)
    assert difference([one.model.state_dict() for one in plain], [one.model.state_dict() for one in lives]) <= EXACT
    assert difference(history, known) <= EXACT
    compiled(members(model=partial(network, 13)), 1, Compilation())
    assert compilations() == (made + 2, found)
    again = compiled(members(), 3, Compilation(), **how)[0]
    assert compilations() == (made + 2, found + 1)
    assert difference([one.model.state_dict() for one in again], [one.model.state_dict() for one in lives]) == 0.0


def halfway(model: nn.Module, batch: Any) -> Any:
    """Return a loss that does not use the last layer."""
    return model[0](batch[0]).square().mean(1)  # type: ignore[index, operator]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"model": partial(packs.mlp, 0.2)}, "it cannot be compiled: RuntimeError: vmap: called random operation"),
        ({"step": halfway, "metrics": {}}, "the weight '1.weight' does not affect its loss"),
    ],
    ids=["dropout", "idle weights"],
)
@pytest.mark.usefixtures("cache")
def test_what_cannot_be_compiled_goes_the_plain_way(fields: dict[str, Any], reason: str) -> None:
    compilation = Compilation()
    lives, known = compiled(members(**fields), 1, compilation)
    plain, history = packs.together(members(**fields), 1)
    assert reason in compilation.refused
    assert difference([one.model.state_dict() for one in plain], [one.model.state_dict() for one in lives]) == 0.0
    assert history == known


@pytest.mark.parametrize("wrong", [None, 0, 1, 2], ids=["nothing", "gradients", "losses", "buffers"])
def test_code_that_gives_something_else_is_not_used(monkeypatch: pytest.MonkeyPatch, wrong: int | None) -> None:
    """An error of 0.05 % is more than rounding of float32."""

    def miscompiled(of: Pass, inputs: Sequence[Tensor]) -> Callable[..., Sequence[Tensor]]:
        samples = [None, None]  # all members get the same batch
        sound = vmap(of.derive_one, in_dims=(*[0] * (len(inputs) - len(samples)), *samples))

        def run(*given: Tensor) -> Sequence[Tensor]:
            found = sound(*given)
            return [1.0005 * tensor if number == wrong else tensor for number, tensor in enumerate(found)]

        return run

    monkeypatch.setattr(Pass, "compiled", miscompiled)
    compilation = Compilation()
    compiled(members(dtype=torch.float32), 1, compilation, dtype=torch.float32)
    assert (" different" in compilation.refused) == (wrong is not None), compilation.refused


@pytest.mark.falls_back
@pytest.mark.usefixtures("cache")
def test_a_run_compiles_where_it_is_asked_to_and_goes_on_with_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def note(fusion_group: FusionGroup, seconds: float, samples: int, need: int | None = None) -> None:
        costs = {"plain": 1.0, "graphed": 1.0, "compiled": 0.1}
        fusion_group.tries[fusion_group.now] = [costs[fusion_group.now.kind] / fusion_group.now.size]

    monkeypatch.setattr(FusionGroup, "note", note)
    train, val = packs.samples(train=320)
    odd = member("odd", model=partial(packs.mlp, 0.2))

    def run(epochs: int, **settings: Any) -> argosy.Report:
        study = argosy.Study(
            data=argosy.Data(arrays=train, val_arrays=val), members=[*members(), odd], stop=argosy.MaxEpochs(epochs)
        )
        settings = {"launcher": "inline", "devices": "cpu:1", "block_size": 100, **settings}
        return argosy.train(study, directory=tmp_path, **settings)

    before = compilations()
    run(3, compile=True)
    report = run(4, compile=True)
    assert {row.status for row in report.rows} == {"done"}
    told = [(e["kind"], e["settled"]) for e in evidence.event_lines(tmp_path, "Packed") if len(e["programs"][0]) == 4]
    assert told[-1] == ("compiled", True) and len(told) == 3
    (alone,) = {pack.refused["compiled"] for pack in report.packs if pack.refused}
    assert "random operation" in alone
    # Both runs find the code on disk; if this test runs alone, the first one compiles it.
    assert sum(compilations()) - sum(before) == 2
