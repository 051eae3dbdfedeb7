"""Tests that an exported network, loaded by the format's own library, gives the same outputs as in the run."""

import json
import sys
import types
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import forked
import numpy as np
import pytest
import studies
import texts
import torch
from disks import fill_up
from torch import Tensor, nn
from torch.utils.data import Dataset

import argosy
from argosy import data
from argosy.ensembling.ensemble import Ensemble
from argosy.errors import DiskError, RunError

X = torch.from_numpy(np.random.RandomState(0).rand(60, 12)).float()
Y = torch.arange(60) % 10


def halved(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Halve the inputs, as the study's `on_device`."""
    inputs, target = batch
    return inputs / 2, target


def trained(directory: Path, given: argosy.Data, *members: argosy.Member) -> argosy.Report:
    """Train two members, unless others are given, for one epoch."""
    members = members or (studies.member("one", batch_size=20), studies.member("two", hidden=8))
    study = argosy.Study(data=given, members=list(members), stop=argosy.MaxEpochs(1))
    return argosy.train(study, directory=directory, launcher="inline", devices="cpu:1")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> argosy.Report:
    """Report of a study that halves its inputs on the device."""
    arrays = argosy.Data(arrays=(X, Y), val_arrays=(X[:30], Y[:30]), on_device=halved)
    return trained(tmp_path_factory.mktemp("run"), arrays)


def by_torch(folder: Path, *inputs: Tensor, **named: Tensor) -> Tensor:
    """Return the output of the program of `torch.export`."""
    said: Tensor = torch.export.load(folder / "model.pt2").module()(*inputs, **named)
    return said


def by_onnx(folder: Path, *inputs: Tensor, **named: Tensor) -> Tensor:
    """Return the output of ONNX Runtime; inputs have the names that ``config.json`` gives them."""
    runtime = pytest.importorskip("onnxruntime", reason="ONNX is run by onnxruntime, of the extra export")
    session = runtime.InferenceSession(folder / "model.onnx")
    names = [leaf["name"] for leaf in json.loads((folder / "config.json").read_text())["inputs"]]
    assert [found.name for found in session.get_inputs()] == names
    given = named or dict(zip(names, inputs, strict=True))
    (said,) = session.run(["output"], {name: tensor.numpy() for name, tensor in given.items()})
    return torch.from_numpy(said)


WAYS: dict[str, Callable[..., Tensor]] = {"torch-export": by_torch, "onnx": by_onnx}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    """Each format that holds the whole network."""
    if request.param == "onnx":
        pytest.importorskip("onnxscript", reason="torch exports to ONNX by onnxscript, of the extra export")
    return str(request.param)


def close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 7])
def test_a_member_says_the_same_for_a_batch_of_any_size(
    tmp_path: Path, report: argosy.Report, way: str, rows: int
) -> None:
    folder = report.export(tmp_path / "x", "two", format=way)  # type: ignore[arg-type]
    close(WAYS[way](folder, X[:rows]), report.member("two").load()(X[:rows]))


def test_an_ensemble_and_its_preparation_say_the_same(tmp_path: Path, report: argosy.Report, way: str) -> None:
    wanted = report.ensemble(preprocess=True)(X[:7])
    for preprocess in (True, False):
        given = report.ensemble(preprocess=not preprocess).train()
        folder = report.export(tmp_path / str(preprocess), given, format=way, preprocess=preprocess)  # type: ignore[arg-type]
        close(WAYS[way](folder, X[:7]), wanted)
        assert json.loads((folder / "config.json").read_text())["preprocessing"]
        assert given.training, "the exported ensemble was changed"


def test_a_member_with_its_preparation_says_the_same(tmp_path: Path, report: argosy.Report, way: str) -> None:
    folder = report.export(tmp_path / "x", format=way, preprocess=True)  # type: ignore[arg-type]
    close(WAYS[way](folder, X[:7]), report.best().load()(X[:7] / 2))


@pytest.mark.parametrize("format", ["safetensors", "hub"])
def test_weights_are_those_of_the_run_and_the_configuration_says_what_they_are(
    tmp_path: Path, report: argosy.Report, format: Any
) -> None:
    library = pytest.importorskip("safetensors.torch", reason="the extra export")
    folder = report.export(tmp_path / "deep" / "x", "two", format=format)
    network = studies.Mlp(hidden=8)
    library.load_model(network.eval(), folder / "model.safetensors")
    assert torch.equal(network(X), report.member("two").load()(X))
    about = json.loads((folder / "config.json").read_text())
    assert about["samples"] == {"train": 60, "val": 30}
    assert about["figures"] == report.member("two").metrics
    assert about["inputs"] == [{"name": "inputs", "dtype": "float32", "shape": ["batch", 12]}]


@pytest.mark.parametrize("format", ["safetensors", "torch-export"])
def test_a_full_disk_is_told_of_and_an_earlier_export_stays(
    small_disk: Path, report: argosy.Report, format: Any
) -> None:
    pytest.importorskip("safetensors", reason="the extra export")
    folder = report.export(small_disk / "x", "one", format=format)
    before = {file: file.read_bytes() for file in folder.iterdir()}
    fill_up(small_disk)
    for name in ("x", "y"):
        with pytest.raises(DiskError, match=r"cannot write .*No space left.*Free disk space"):
            report.export(small_disk / name, "two", format=format)
    assert {file: file.read_bytes() for file in folder.iterdir()} == before
    assert not (small_disk / "y").exists()


class InFolders(studies.Mlp):
    """A network that writes itself into several folders."""

    def save_pretrained(self, folder: Path) -> None:
        (folder / "pooling").mkdir(exist_ok=True)
        (folder / "pooling" / "config.json").write_text(f"{self.state_dict()['layers.0.bias'][0]}")


def test_a_network_that_writes_folders_is_exported_again(tmp_path: Path) -> None:
    members = [studies.member(name, model=InFolders) for name in ("one", "two")]
    report = trained(tmp_path / "run", argosy.Data(arrays=(X, Y)), *members)
    found = set()
    for name in ("one", "two"):
        report.export(tmp_path / "x", name, format="hub")
        found.add((tmp_path / "x" / "pooling" / "config.json").read_text())
    assert len(found) == 2


def test_a_member_of_some_samples_says_how_many_these_were(tmp_path: Path) -> None:
    pytest.importorskip("safetensors.torch", reason="the extra export")
    few = studies.member(subset=[*range(40), 0, 1], val_subset=range(10), batch_size=20)
    report = trained(tmp_path / "run", argosy.Data(arrays=(X, Y), val_arrays=(X[:30], Y[:30])), few)
    folder = report.export(tmp_path / "x", format="hub")
    assert json.loads((folder / "config.json").read_text())["samples"] == {"train": 40, "val": 10}
    assert "40 of train, 10 of val samples" in (folder / "README.md").read_text()


def linear(pattern: str) -> nn.Module:
    """Return a network that has a text among its hyper-parameters."""
    return nn.Linear(12, 10)


def test_bars_and_angle_brackets_stay_in_their_cell_of_the_card(tmp_path: Path) -> None:
    pytest.importorskip("safetensors.torch", reason="the extra export")
    member = studies.member(model=partial(linear, "<pad>|x"), batch_size=20)
    report = trained(tmp_path / "run", argosy.Data(arrays=(X, Y), val_arrays=(X[:30], Y[:30])), member)
    card = (report.export(tmp_path / "x", format="hub") / "README.md").read_text()
    assert r"| model.pattern | \<pad>\|x |" in card


def test_weights_that_eval_merges_are_not_merged_once_more_where_they_are_loaded(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.torch", reason="the extra export")
    member = studies.member(model=studies.Merging, batch_size=20)
    report = trained(tmp_path / "run", argosy.Data(arrays=(X, Y), val_arrays=(X[:30], Y[:30])), member)
    said, network, ensemble = report.best().load()(X), studies.Merging(), report.ensemble()
    library.load_model(network, report.export(tmp_path / "x", format="safetensors") / "model.safetensors")
    close(network.eval()(X), said)
    ensemble.save(tmp_path / "ensemble.pt")
    close(Ensemble.load(tmp_path / "ensemble.pt", [member]).outputs(X)[0], said)
    close(ensemble.outputs(X)[0], said)
    assert not any(part.training for part in ensemble.networks[0].modules()), "the saved ensemble was changed"


def test_the_card_of_an_ensemble_says_how_its_members_are_combined(tmp_path: Path, report: argosy.Report) -> None:
    pytest.importorskip("safetensors", reason="the extra export")
    ensemble = report.ensemble(calibrate=True)
    card = (report.export(tmp_path, ensemble, format="hub") / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: pytorch\n")
    assert "weighted mean of softmax(logits / temperature)" in card
    for name, warmth in zip(ensemble.names, ensemble.temperatures.tolist(), strict=True):
        assert f"| {name} | 0.5 | {warmth:g} |" in card
    assert f"| nll | {ensemble.scores[0]['nll']:.4g} |" in card


class Vectors(Dataset[tuple[Tensor, Tensor]]):
    """A dataset of the rows of `X` and `Y`."""

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return X[index], Y[index]


class Trunk(nn.Linear):
    """A frozen network whose outputs the members train on."""


def test_of_a_frozen_trunk_the_head_alone_is_exported_and_the_card_says_so(tmp_path: Path) -> None:
    pytest.importorskip("safetensors", reason="the extra export")
    heads = data.features(Vectors(), Trunk(12, 5))
    head = argosy.Member(
        "head", model=partial(nn.Linear, 5, 10), optimizer=studies.member("x").optimizer, batch_size=20
    )
    report = trained(tmp_path / "run", argosy.Data(train=heads, val=heads, keep=False), head)
    folder = report.export(tmp_path / "out", format="hub")
    assert (
        "**Not the whole network**: its inputs are the outputs of a frozen `Trunk`"
        in (folder / "README.md").read_text()
    )
    about = json.loads((folder / "config.json").read_text())
    assert (about["parameters"], about["dataset"]) == (60, "Vectors")
    with pytest.raises(
        RunError, match=r"inputs of shape \[12\], but these networks take \[5\], the output of the study's frozen Trunk"
    ):
        report.predict(X[:7])
    assert torch.equal(report.predict(heads.network(X[:7])), report.best().load()(heads.network(X[:7])))
    assert torch.equal(report.predict(heads), report.predict())


def test_a_network_of_transformers_takes_its_names_and_loads_from_pretrained(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("onnxscript", reason="the extra export")
    config = transformers.BertConfig(
        vocab_size=20,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=8,
        num_labels=2,
        attn_implementation="eager",
    )
    words = torch.randint(0, 20, (40, 6))
    given = [
        {"input_ids": row, "attention_mask": torch.ones(6, dtype=torch.long), "labels": row[0] % 2} for row in words
    ]
    member = argosy.from_huggingface(
        "bert", partial(transformers.BertForSequenceClassification, config), optimizer=torch.optim.AdamW, batch_size=20
    )
    report = trained(tmp_path / "run", argosy.Data(train=given, val=given), member)
    named = {"input_ids": words[:7], "attention_mask": torch.ones(7, 6, dtype=torch.long)}
    with torch.no_grad():
        wanted = report.best().load()(**named).logits
    for format, ask in WAYS.items():
        close(ask(report.export(tmp_path / format, format=format), **named), wanted)  # type: ignore[arg-type]
    folder = report.export(tmp_path / "hub", format="hub")
    with torch.no_grad():
        close(transformers.BertForSequenceClassification.from_pretrained(folder)(**named).logits, wanted)
    assert "from_pretrained" in (folder / "README.md").read_text()


def test_samples_of_unlike_length_are_taken_at_any_length(tmp_path: Path, way: str) -> None:
    report = texts.tagged(tmp_path / "run")
    folder = report.export(tmp_path / "out", format=way)  # type: ignore[arg-type]
    shapes = [leaf["shape"] for leaf in json.loads((folder / "config.json").read_text())["inputs"]]
    assert shapes == [["batch", "length"]] * 2
    for rows, length in ((3, 5), (1, 17)):
        mask = torch.ones(rows, length, dtype=torch.long)
        text = {"ids": torch.ones(rows, length, dtype=torch.long), "mask": mask}
        close(WAYS[way](folder, text) if way == "torch-export" else by_onnx(folder, **text), report.best().load()(text))


class Alike(texts.Texts):
    """Texts of which the first 40 have this many tokens."""

    tokens = 5

    def __getitem__(self, index: int) -> tuple[dict[str, Any], int]:
        text, label = super().__getitem__(index)
        return ({"ids": (text["ids"] * self.tokens)[: self.tokens]} if index < 40 else text), label


class OfOneToken(Alike):
    """Texts of which the first 40 have one token."""

    tokens = 1


@pytest.mark.parametrize("sort", [Alike, OfOneToken])
def test_samples_of_unlike_length_are_known_as_such_if_the_first_ones_are_alike(tmp_path: Path, sort: Any) -> None:
    wanted = texts.study(texts.member("reader"), length=80, sort=sort, stop=argosy.MaxEpochs(1))
    report = argosy.train(wanted, directory=tmp_path / "run", launcher="inline", devices="cpu:1", quiet=True)
    folder = report.export(tmp_path / "out", format="torch-export")
    shapes = [leaf["shape"] for leaf in json.loads((folder / "config.json").read_text())["inputs"]]
    assert shapes == [["batch", "length"]] * 2


class Recurrent(nn.Module):
    """A network whose output depends on the length; torch.export follows its recurrent layer for one length only."""

    def __init__(self) -> None:
        super().__init__()
        self.embedded, self.read = nn.Embedding(20, 2), nn.GRU(2, 2, batch_first=True)

    def forward(self, text: Mapping[str, Tensor]) -> Tensor:
        ids = text["ids"]
        said: Tensor = self.read(self.embedded(ids))[0].sum(1) / ids.shape[1]
        return said


@pytest.mark.filterwarnings("ignore:The tensor attributes:UserWarning")  # torch's, of its own recurrent layers
def test_a_network_that_torch_would_export_for_one_length_only_is_refused(tmp_path: Path) -> None:
    wanted = texts.study(texts.member("gru", model=Recurrent), length=40, stop=argosy.MaxEpochs(1))
    report = argosy.train(wanted, directory=tmp_path / "run", launcher="inline", devices="cpu:1", quiet=True)
    with pytest.raises(RunError, match=r"refuses 'gru': UserError: Constraints violated"):
        report.export(tmp_path / "out", format="torch-export")


def test_a_folder_of_the_hub_is_uploaded(
    tmp_path: Path, report: argosy.Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("safetensors", reason="the extra export")
    calls: list[dict[str, Any]] = []
    api = types.SimpleNamespace(
        create_repo=lambda name, exist_ok: calls.append({"made": name}),
        upload_folder=lambda **given: calls.append(given),
    )
    monkeypatch.setitem(sys.modules, "huggingface_hub", types.SimpleNamespace(HfApi=lambda: api))
    report.export(tmp_path, format="hub", push_to_hub="us/best")
    assert calls == [{"made": "us/best"}, {"repo_id": "us/best", "folder_path": tmp_path}]


def test_the_command_exports_a_member_or_an_ensemble(tmp_path: Path) -> None:
    (tmp_path / "study.py").write_text(
        "import argosy, studies\nstudy = argosy.Study(data=studies.data('arrays', 60), members=studies.members()[:2],"
        " stop=argosy.MaxEpochs(1))\n"
    )
    run = forked.command(tmp_path, ["run", "study.py", "--dir", "x", "--devices", "cpu:1", "--launcher", "inline"])
    assert run.returncode == 0, run.stderr
    names = [member.name for member in studies.members()[:2]]
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").touch()  # the command must not list this file as written
    for words, name in (([names[1]], names[1]), (["--top", "2"], "ensemble")):
        found = forked.command(tmp_path, ["export", "x", *words, "--format", "torch-export", "--to", "out", "--json"])
        assert found.returncode == 0, found.stderr
        assert [Path(file).name for file in json.loads(found.stdout)["files"]] == ["config.json", "model.pt2"]
        assert json.loads((tmp_path / "out" / "config.json").read_text())["name"] == name
