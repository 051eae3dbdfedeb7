"""Tiny BERTs on dict batches; nothing is downloaded: ``argosy run examples/tiny_bert.py --dir runs/bert``.

A sentence is right if its second word repeats the first.
"""

from functools import partial

import torch
from torch import Tensor
from torch.optim import AdamW
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification

import argosy


class Sentences(Dataset[dict[str, Tensor]]):
    """Sentences of eight words."""

    def __init__(self, length: int, seed: int) -> None:
        self.words = torch.randint(2, 12, (length, 8), generator=torch.Generator().manual_seed(seed))
        self.labels = torch.arange(length) % 2
        self.words[:, 1] = torch.where(self.labels == 1, self.words[:, 0], self.words[:, 1])
        self.labels = (self.words[:, 0] == self.words[:, 1]).long()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        words = self.words[index]
        return {"input_ids": words, "attention_mask": torch.ones_like(words), "labels": self.labels[index]}


def bert(layers: int) -> BertForSequenceClassification:
    """Return a BERT with random weights."""
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64, "max_position_embeddings": 8}
    return BertForSequenceClassification(BertConfig(vocab_size=12, num_hidden_layers=layers, num_labels=2, **sizes))


study = argosy.Study(
    data=argosy.Data(train=Sentences(2000, seed=0), val=Sentences(500, seed=1)),
    members=[
        argosy.from_huggingface(
            f"bert-{layers}",
            partial(bert, layers),
            optimizer=partial(AdamW, lr=1e-3),
            batch_size=32,
            metrics={"accuracy": argosy.accuracy},
        )
        for layers in (1, 2)
    ],
    stop=argosy.MaxEpochs(8),
)
