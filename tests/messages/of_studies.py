"""What is wrong with a study, its settings or its file."""

import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import studies
import torch
from scipy import sparse
from sklearn.model_selection import KFold
from torch import nn
from torch.optim import SGD
from torch.utils.data import IterableDataset, TensorDataset

import argosy
from argosy.running.directory.studyfile import load_study
from argosy.running.launch.blobs import pickle_members, write_blob, write_data_blob
from argosy.running.watch.view import Silent
from argosy.settings import Settings

__all__ = ["CASES"]

ARRAYS = (np.zeros((40, 12), np.float32), np.zeros(40, np.int64))
VALIDATED = argosy.Data(arrays=ARRAYS, val_arrays=ARRAYS)


class Query(list[int]):
    """A table whose rows are read later, like DuckDB's relations, which have a length and columns too."""

    columns = ("a", "b")

    def df(self) -> None: ...


def trained(*members: argosy.Member, **rest: Any) -> argosy.Report:
    """Train them in this process, on 40 samples."""
    data = rest.pop("data", VALIDATED)
    rule = rest.pop("ensemble", None)
    study = argosy.Study(data=data, members=members, stop=rest.pop("stop", argosy.MaxEpochs(1)), ensemble=rule)
    return argosy.train(study, directory="runs/x", launcher="inline", devices="cpu:1", **rest)


def study(**rest: Any) -> argosy.Study:
    """One that is sound but for this."""
    given = {"data": argosy.Data(arrays=ARRAYS), "members": [studies.member("mlp")], **rest}
    return argosy.Study(**given)


def study_file(text: str, name: str = "study.py") -> argosy.Study:
    """A study file with this text, read."""
    path = Path(name)
    path.write_text(text)
    return load_study(path)


class Flag(argosy.stopping.Stop):
    """A rule that returns whether to stop, where the reason is wanted."""

    def reason(self, history: Any) -> Any:
        """A bool."""
        return len(history) > 0 or None


class Counting(argosy.stopping.Stop):
    """A rule that counts sections by itself."""

    waited = 0

    def reason(self, history: Any) -> Any:
        """Count a section."""
        self.waited += len(history)


class Lines(IterableDataset):
    """Records of a file, one after another."""

    def __iter__(self) -> Any:
        return iter(())


class Locked(studies.Vectors):
    """A dataset that holds what no other process can have."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.lock = threading.Lock()


def plain_step(model: nn.Module, batch: Any) -> torch.Tensor:
    """A step that computes its loss itself."""
    return model(batch[0]).sum()


def misspelt() -> nn.Module:
    """A factory with a mistake."""
    raise ValueError("no width 'hiden'")


def locked() -> argosy.Member:
    """A member that holds what no other process can have."""
    return studies.member("mlp", model=partial(studies.Mlp, lock=threading.Lock()))


def late() -> None:
    """Members whose optimizers read the variable of the loop that made them."""
    rates = (0.1, 0.2)
    members = [studies.member(f"lr={lr}", optimizer=lambda given: SGD(given, lr=lr)) for lr in rates]  # noqa: B023, what is refused
    argosy.Study(data=VALIDATED, members=members)


def reading_settings() -> None:
    """Members whose optimizers read settings that the loop which made them has set."""
    settings, members = SimpleNamespace(lr=0.1), []
    for lr in (0.1, 0.2):
        settings.lr = lr
        members.append(studies.member(f"lr={lr}", optimizer=lambda given: SGD(given, lr=settings.lr)))
    argosy.Study(data=VALIDATED, members=members)


CASES = {
    "a view and a progress bar at once": lambda: trained(studies.member("mlp"), view=Silent(), progress=True),
    "a function that reads a loop variable": late,
    "a function that reads settings changed in a loop": reading_settings,
    "Data has no training samples": lambda: argosy.Data(),
    "Data has validation samples twice": lambda: argosy.Data(arrays=ARRAYS, val=[1], val_arrays=ARRAYS),
    "a single array as arrays": lambda: argosy.Data(arrays=ARRAYS[0]),
    "a number among the arrays": lambda: argosy.Data(arrays=(ARRAYS[0], 3)),
    "pairs of arrays as arrays": lambda: argosy.Data(arrays=((ARRAYS[0], ARRAYS[0]), (ARRAYS[1], ARRAYS[1]))),
    "a masked array": lambda: argosy.Data(arrays=(np.ma.array(ARRAYS[0], mask=ARRAYS[0] > 1), ARRAYS[1])),
    "a query among the arrays": lambda: argosy.Data(arrays=(Query(), ARRAYS[1])),
    "a sparse matrix of SciPy": lambda: argosy.Data(arrays=(sparse.csr_matrix(ARRAYS[0]), ARRAYS[1])),
    "an array of strings": lambda: argosy.Data(arrays=(np.array(["cat", "dog"]),)),
    "arrays of different lengths": lambda: argosy.Data(arrays=(ARRAYS[0], ARRAYS[1][1:])),
    "a dataset class that needs arguments": lambda: argosy.Data(train=studies.Vectors),
    "an unknown Data.on_error": lambda: argosy.Data(arrays=ARRAYS, on_error="ignore"),
    "an iterator as Data.train": lambda: argosy.Data(train=iter([1])),
    "a set as Data.train": lambda: argosy.Data(train={1, 2}),
    "Data.then with arrays": lambda: argosy.Data(arrays=ARRAYS, then=len),
    "Data.keep that is not a bool": lambda: argosy.Data(arrays=ARRAYS, keep="disk"),
    "a number as Data.train": lambda: argosy.Data(train=3),
    "a pair of arrays as Data.val": lambda: argosy.Data(
        train=TensorDataset(torch.zeros(9)), val=(torch.zeros(9, 3), np.zeros(9))
    ),
    "arrays by name as Data.train": lambda: argosy.Data(train={"x": torch.zeros(9, 3), "y": torch.zeros(9)}),
    "a member name that cannot be a folder name": lambda: studies.member("a/b"),
    "a batch size of 0": lambda: studies.member("mlp", batch_size=0),
    "a network instead of a factory": lambda: studies.member("mlp", model=studies.Mlp().state_dict()),
    "a member with a custom step and a loss": lambda: studies.member("mlp", step=plain_step, loss=nn.MSELoss()),
    "a member name that is too long for a file name": lambda: studies.member("mlp" * 100),
    "a seed that is too large": lambda: studies.member("mlp", seed=2**63),
    "an average that is a number": lambda: studies.member("mlp", average=0.999),
    "an average that never moves": lambda: argosy.EMA(1.0),
    "an average that starts after training ends": lambda: study(
        data=VALIDATED, members=[studies.member("mlp", average=argosy.SWA(from_epoch=20))], stop=argosy.MaxEpochs(10)
    ),
    "an average with a training objective": lambda: study(members=[studies.member("mlp", average=argosy.EMA())]),
    "a negative clip_grad_norm": lambda: studies.member("mlp", clip_grad_norm=-1.0),
    "a number as drop_last": lambda: studies.member("mlp", drop_last=1),
    "a loss that is not a function": lambda: studies.member("mlp", loss="mse"),
    "a loss with one argument": lambda: studies.member("mlp", loss=lambda output: output),
    "a loss that is a class": lambda: studies.member("mlp", loss=nn.MSELoss),
    "a member and its own repetitions": lambda: argosy.Study(
        data=VALIDATED, members=[studies.member("mlp"), *argosy.replicate(studies.member("mlp"), 2)]
    ),
    "metrics without names": lambda: studies.member("mlp", metrics=[argosy.accuracy]),
    "a metric with a comma in its name": lambda: studies.member("mlp", metrics={"f1, macro": argosy.accuracy}),
    "a metric named loss": lambda: studies.member("mlp", metrics={"loss": argosy.accuracy}),
    "a metric that is not a function": lambda: studies.member("mlp", metrics={"f1": 3}),
    "a subset that is not a list of indices": lambda: studies.member("mlp", subset="first half"),
    "a two-dimensional subset": lambda: studies.member("mlp", subset=np.zeros((2, 2), int)),
    "an empty subset": lambda: studies.member("mlp", subset=[]),
    "a mask as a subset": lambda: studies.member("mlp", subset=np.ones(40, bool)),
    "a subset of floats": lambda: studies.member("mlp", subset=[0.5, 1.5]),
    "a negative index": lambda: studies.member("mlp", subset=[-1]),
    "a number as a stopping rule": lambda: studies.member("mlp", stop=10),
    "an unknown precision": lambda: studies.member("mlp", precision="float8"),
    "an unknown schedule_per": lambda: studies.member("mlp", schedule_per="batch"),
    "a grid over a member instead of a function": lambda: argosy.grid(studies.member("mlp"), lr=[0.1, 0.01]),
    "a grid axis that is a single value": lambda: argosy.grid(studies.member, lr=0.1),
    "a grid axis without values": lambda: argosy.grid(studies.member, lr=[]),
    "a grid over something that is not a member": lambda: argosy.grid(studies.Mlp, hidden=[16, 32]),
    "a grid value that cannot be part of a folder name": lambda: argosy.grid(studies.member, metrics=[{}, {"f1": max}]),
    "replicates of several members at once": lambda: argosy.replicate([studies.member("mlp")]),
    "replicates of a member with a seed": lambda: argosy.replicate(studies.member("mlp", seed=3)),
    "two replicates with one seed": lambda: argosy.replicate(studies.member("mlp"), seeds=[0, 1, 1]),
    "folds of something that is not a member": lambda: argosy.kfold("mlp", samples=10),
    "folds of a member with a subset": lambda: argosy.kfold(studies.member("mlp", subset=[1]), samples=10),
    "folds of an unknown number of samples": lambda: argosy.kfold(studies.member("mlp")),
    "folds with too few samples of a label": lambda: argosy.kfold(studies.member("mlp"), stratify=[0] * 9 + [1]),
    "folds of groups with repeats": lambda: argosy.kfold(studies.member("mlp"), 2, groups=[0, 1, 2, 3], repeats=2),
    "folds of too few groups": lambda: argosy.kfold(studies.member("mlp"), groups=[0] * 9 + [1]),
    "folds of samples without labels": lambda: argosy.kfold(studies.member("mlp"), stratify=["cat", None, "dog"] * 9),
    "fold labels of two types": lambda: argosy.kfold(studies.member("mlp"), stratify=["cat", 1] * 9),
    "fold labels of varying length": lambda: argosy.kfold(studies.member("mlp"), stratify=[[0], [0, 1]] * 9),
    "fold labels that NumPy cannot read": lambda: argosy.kfold(
        studies.member("mlp"), stratify=torch.zeros(10, dtype=torch.bfloat16)
    ),
    "folds that are a splitter": lambda: argosy.kfold(studies.member("mlp"), KFold(5)),
    "folds of no pairs": lambda: argosy.kfold(studies.member("mlp"), iter(())),
    "folds that are no pairs": lambda: argosy.kfold(studies.member("mlp"), [[0, 1, 2], [3, 4, 5]]),
    "folds as pairs, and labels": lambda: argosy.kfold(
        studies.member("mlp"), [([0], [1]), ([1], [0])], stratify=[0, 1]
    ),
    "folds that share samples": lambda: argosy.kfold(studies.member("mlp"), [([0, 1, 2], [2]), ([1], [0])]),
    "two-dimensional fold labels": lambda: argosy.kfold(studies.member("mlp"), stratify=np.zeros((10, 2))),
    "a study without members": lambda: study(members=[]),
    "two members with one name": lambda: study(members=[studies.member("mlp")] * 2),
    "an unknown Study.mode": lambda: study(mode="lowest"),
    "Study.validations_per_epoch is 0": lambda: study(validations_per_epoch=0),
    "data that is not an argosy.Data": lambda: study(data=ARRAYS),
    "a member instead of a list of members": lambda: study(members=studies.member("mlp")),
    "a string among the members": lambda: study(members=[studies.member("mlp"), "vit"]),
    "an objective that is not a name": lambda: study(objective=3),
    "an objective with an unknown direction": lambda: study(
        data=VALIDATED, members=[studies.member("mlp", metrics={"score": argosy.accuracy})], objective="val_score"
    ),
    "a stopping rule for a metric that no member reports": lambda: study(stop=argosy.Target("val_f1", 0.9)),
    "a val_subset without validation data": lambda: study(members=[studies.member("mlp", val_subset=[0, 1])]),
    "a mask of 0 and 1 as a subset": lambda: trained(studies.member("mlp", subset=[0, 1] * 20)),
    "a validation objective without validation data": lambda: study(objective="val_accuracy"),
    "an objective that a member does not report": lambda: study(data=VALIDATED, objective="val_f1"),
    "a member that is not in the study": lambda: study().member("mpl"),
    "a stopping rule for a misspelt metric": lambda: argosy.Plateau("val_acuracy", patience=3),
    "a stopping rule without a metric": lambda: argosy.Plateau(3, patience=3),  # type: ignore[arg-type]
    "a stopping rule that returns whether to stop": lambda: trained(studies.member("mlp"), stop=Flag()),
    "a stopping rule that counts sections by itself": lambda: trained(studies.member("mlp"), stop=Counting()),
    "rules combined by a word of Python": lambda: argosy.MaxEpochs(9) or argosy.Plateau("val_loss"),
    "MaxEpochs of 0": lambda: argosy.MaxEpochs(0),
    "a stopping rule for a metric that the history lacks": lambda: argosy.Target("f1", 0.9).reason([{"val_loss": 0.5}]),
    "a keyword of another library": lambda: studies.member("mlp", gradient_clip_val=1.0),
    "a keyword that belongs elsewhere": lambda: argosy.Data(arrays=ARRAYS, batch_size=32),
    "a misspelt keyword": lambda: studies.member("mlp", eval_batchsize=7),
    "values without their keywords": lambda: argosy.Study(argosy.Data(arrays=ARRAYS), []),  # type: ignore[misc]
    "a grid axis that build does not accept": lambda: argosy.grid(lambda lr: studies.member(), rate=[0.1]),
    "devices that are not text": lambda: Settings(devices=2),
    "a command that is not a string": lambda: Settings(on_end=["notify.sh"]),
    "an unknown value of sharing": lambda: Settings(sharing="broadcast"),
    "sharing 'none' with another policy": lambda: Settings(sharing="none"),
    "compile with exact numerics": lambda: Settings(compile=True, numerics="exact"),
    "compile with interleaved members": lambda: Settings(compile=True, packing="interleaved"),
    "preparing_nodes without a broadcast": lambda: Settings(preparing_nodes=2, nodes=2),
    "a setting below its minimum": lambda: Settings(threads=0),
    "more nodes than a run can have": lambda: Settings(nodes=200),
    "more preparing_nodes than nodes": lambda: Settings(sharing="multi-broadcast", nodes=2, preparing_nodes=3),
    "a study file that does not exist": lambda: load_study(Path("study.py")),
    "a study file that is not Python": lambda: study_file("study: 1\n", "study.yaml"),
    "a study file named like a module": lambda: study_file("study = 3\n", "random.py"),
    "a study file that calls sys.exit": lambda: study_file("import sys\nsys.exit('usage')\n"),
    "a study file with an error": lambda: study_file("study = argosy.Study()\n"),
    "a study file without a study": lambda: study_file("studie = 3\n"),
    "a file of a search as a study file": lambda: study_file(
        "import argosy, torch\n"
        "data = argosy.Data(arrays=(torch.zeros(9, 1),))\n"
        "search = argosy.Search(build=lambda found: None, space={'lr': None}, data=data, max_epochs=1)\n"
    ),
    "a member that cannot be sent to another process": lambda: pickle_members([locked()]),
    "data that cannot be sent to another process": lambda: write_data_blob(
        argosy.Data(train=TensorDataset(torch.zeros(3)), val=Locked(9))
    ),
    "Data.on_device that cannot be sent to another process": lambda: write_blob(threading.Lock(), "Data.on_device"),
    "a subset with indices beyond the data": lambda: trained(studies.member("mlp", subset=[3, 99])),
    "a batch that is larger than the data": lambda: trained(studies.member("mlp", batch_size=64, drop_last=True)),
    "BatchNorm and a last batch of one sample": lambda: trained(studies.member("mlp", batch_size=13)),
    "batches that the standard step cannot use": lambda: trained(
        studies.member("mlp", batch_size=20), data=argosy.Data(train=TensorDataset(torch.zeros(40, 12)))
    ),
    "a metric with two values per sample": lambda: trained(
        studies.member("mlp", batch_size=20, metrics={"twice": lambda output, target: torch.cat([target, target])})
    ),
}
