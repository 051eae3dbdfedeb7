"""What is wrong with a study, its settings or its file."""

import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import studies
import torch
from torch import nn
from torch.utils.data import IterableDataset, TensorDataset

import argosy
from argosy.running.blobs import dump, to_descriptor
from argosy.running.studyfile import load_study
from argosy.settings import Settings

__all__ = ["CASES"]

ARRAYS = (np.zeros((40, 12), np.float32), np.zeros(40, np.int64))


def trained(*members: argosy.Member, **rest: Any) -> argosy.Report:
    """Train them in this process, on 40 samples."""
    data = rest.pop("data", None) or argosy.Data(arrays=ARRAYS, val_arrays=ARRAYS)
    study = argosy.Study(data=data, members=members, stop=rest.pop("stop", argosy.MaxEpochs(1)))
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


class Lines(IterableDataset):
    """Records of a file, one after another."""

    def __iter__(self) -> Any:
        return iter(())


def plain_step(model: nn.Module, batch: Any) -> torch.Tensor:
    """A step that computes its loss itself."""
    return model(batch[0]).sum()


def misspelt() -> nn.Module:
    """A factory with a mistake."""
    raise ValueError("no width 'hiden'")


def locked() -> argosy.Member:
    """A member that holds what no other process can have."""
    return studies.member("mlp", model=partial(studies.Mlp, lock=threading.Lock()))


CASES = {
    "Data has no training samples": lambda: argosy.Data(),
    "Data has validation samples twice": lambda: argosy.Data(arrays=ARRAYS, val=[1], val_arrays=ARRAYS),
    "Data.on_error is something else": lambda: argosy.Data(arrays=ARRAYS, on_error="ignore"),
    "Data.train has no length": lambda: argosy.Data(train=Lines()),
    "Data.train is no dataset": lambda: argosy.Data(train=3),
    "a member's name cannot be a folder's": lambda: studies.member("a/b"),
    "a batch size of 0": lambda: studies.member("mlp", batch_size=0),
    "a network instead of a factory": lambda: studies.member("mlp", model=studies.Mlp().state_dict()),
    "a member with a step of its own and metrics": lambda: studies.member("mlp", step=plain_step),
    "an unknown precision": lambda: studies.member("mlp", precision="float16"),
    "an unknown schedule_per": lambda: studies.member("mlp", schedule_per="batch"),
    "a study without members": lambda: study(members=[]),
    "two members of one name": lambda: study(members=[studies.member("mlp")] * 2),
    "Study.mode is something else": lambda: study(mode="lowest"),
    "Study.validations_per_epoch is 0": lambda: study(validations_per_epoch=0),
    "an objective of validation data that is not there": lambda: study(objective="val_accuracy"),
    "an objective that a member does not report": lambda: study(
        data=argosy.Data(arrays=ARRAYS, val_arrays=ARRAYS), objective="val_f1"
    ),
    "MaxEpochs below 0": lambda: argosy.MaxEpochs(-1),
    "a stopping rule watches what is not reported": lambda: argosy.Target("val_f1", 0.9).reason([{"val_loss": 0.5}]),
    "an unknown way of sharing": lambda: Settings(sharing="broadcast"),
    "sharing 'none' with another policy": lambda: Settings(sharing="none"),
    "preparing_nodes without a broadcast": lambda: Settings(preparing_nodes=2, nodes=2),
    "a setting below what is possible": lambda: Settings(threads=0),
    "more nodes than a run can have": lambda: Settings(nodes=200),
    "more preparing nodes than nodes": lambda: Settings(sharing="multi-broadcast", nodes=2, preparing_nodes=3),
    "a study file that is not there": lambda: load_study(Path("study.py")),
    "a study file that is not Python": lambda: study_file("study: 1\n", "study.yaml"),
    "a study file without a study": lambda: study_file("studie = 3\n"),
    "a member that cannot be sent to a process": lambda: dump([locked()]),
    "data that cannot be sent to a process": lambda: to_descriptor(threading.Lock(), "the data"),
    "a subset beyond the data": lambda: trained(studies.member("mlp", subset=[3, 99])),
    "a batch larger than the data": lambda: trained(studies.member("mlp", batch_size=64)),
    "BatchNorm and a last batch of one": lambda: trained(studies.member("mlp", batch_size=13)),
    "batches that the standard step cannot take": lambda: trained(
        studies.member("mlp", batch_size=20), data=argosy.Data(train=TensorDataset(torch.zeros(40, 12)))
    ),
    "a metric with two values per sample": lambda: trained(
        studies.member("mlp", batch_size=20, metrics={"twice": lambda output, target: torch.cat([target, target])})
    ),
}
