"""Tests that a tiny BERT on dict batches trains like a plain loop over the same order."""

from functools import partial
from pathlib import Path
from typing import Any

import evidence
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.optim import AdamW
from torch.utils.data import Dataset

import argosy
from argosy.stream.order import member_seed, permutation

transformers = pytest.importorskip("transformers")

BERT = {
    "vocab_size": 20,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 8,
    "num_labels": 2,
}


def bert() -> Any:
    return transformers.BertForSequenceClassification(transformers.BertConfig(**BERT))


class Sentences(Dataset[dict[str, Tensor]]):
    """Sentences labelled with which of two words they contain."""

    def __init__(self, length: int) -> None:
        random = np.random.RandomState(length)
        self.words = torch.from_numpy(random.randint(2, 20, size=(length, 6)))
        self.labels = torch.arange(length) % 2
        self.words[:, 3] = self.labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        words = self.words[index]
        return {"input_ids": words, "attention_mask": torch.ones_like(words), "labels": self.labels[index]}


def right(logits: Tensor, labels: Tensor) -> Tensor:
    return (logits.argmax(dim=1) == labels).float()


def by_hand(name: str, data: Sentences, epochs: int) -> str:
    torch.manual_seed(member_seed(0, name))
    model = bert()
    optimizer = AdamW(model.parameters(), lr=0.01)
    model.train()
    for epoch in range(epochs):
        for indices in _parts(epoch, len(data)):
            samples = [data[index] for index in indices]
            batch = {key: torch.stack([sample[key] for sample in samples]) for key in samples[0]}
            optimizer.zero_grad()
            model(**batch).loss.backward()
            optimizer.step()
    return evidence.fingerprint(model.state_dict())


def _parts(epoch: int, length: int) -> list[list[int]]:
    order = permutation(0, epoch, length).tolist()
    return [order[start : start + 10] for start in range(0, length, 10)]


def test_a_tiny_bert_is_what_a_plain_loop_makes_of_it(tmp_path: Path) -> None:
    train = Sentences(45)
    how = {"optimizer": partial(AdamW, lr=0.01), "batch_size": 10, "metrics": {"accuracy": right}}
    fleet = [argosy.from_huggingface("bert", bert, **how), argosy.from_huggingface("other", bert, **how)]
    study = argosy.Study(
        data=argosy.Data(train=train, val=Sentences(20)),
        members=fleet,
        stop=argosy.MaxEpochs(3),
        objective="val_accuracy",
    )
    report = argosy.train(study, directory=tmp_path, launcher="inline", devices="cpu:1", numerics="exact")
    assert [row.status for row in report.rows] == ["done", "done"], report.rows
    found = evidence.results(tmp_path)
    for member in fleet:
        assert found[member.name]["weights"] == by_hand(member.name, train, 3)
    held_out = Sentences(20)
    with torch.no_grad():
        logits = report.best().load()(held_out.words).logits
    assert report.best().metrics["val_accuracy"] == pytest.approx(float(right(logits, held_out.labels).mean()))
    torch.testing.assert_close(report.predict(held_out), logits)
    ensemble = report.ensemble(combine="probabilities")
    own, *alone = ensemble.scores
    assert alone[0]["accuracy"] == pytest.approx(report.best().metrics["val_accuracy"])
    assert float(right(report.predict(held_out, ensemble), held_out.labels).mean()) == pytest.approx(own["accuracy"])


def test_what_the_page_says_of_the_defaults_of_transformers_trainer() -> None:
    """The page of libraries lists these, with torch's own default of weight decay, for members that train the same."""
    defaults = {name: field.default for name, field in transformers.TrainingArguments.__dataclass_fields__.items()}
    found = [defaults[name] for name in ("weight_decay", "max_grad_norm", "lr_scheduler_type", "warmup_steps")]
    assert found == [0.0, 1.0, "linear", 0]
    assert AdamW([torch.zeros(1)]).defaults["weight_decay"] == 0.01
