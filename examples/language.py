"""From JSON lines of text to small language models and their perplexity: `python examples/language.py`. The text is Python's manual."""

import json
import math
from functools import partial
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.nn import functional

import argosy

LENGTH = 256

if not Path("val.jsonl").exists():  # replace these by your own files, with {"text": ...} in each line
    lines = [json.dumps({"text": part}) for topic in topics.values() for part in topic.split("\n\n") if len(part) > 40]
    Path("val.jsonl").write_text("\n".join(lines[::20]))
    Path("train.jsonl").write_text("\n".join(line for number, line in enumerate(lines) if number % 3 == 1))


def windows(record: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Return the bytes of a text, and the bytes that follow them."""
    text = torch.tensor(list(record["text"].encode())[: LENGTH + 1])
    return text[:-1], text[1:]


class Model(nn.Module):
    """A recurrent network that predicts the next byte: ``[B, L]`` -> ``[B, 256, L]``."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.read = nn.GRU(width, width, batch_first=True)
        self.embed, self.tell = nn.Embedding(256, width), nn.Linear(width, 256)

    def forward(self, x_BL: Tensor) -> Tensor:
        return self.tell(self.read(self.embed(x_BL))[0]).transpose(1, 2)


def bytewise(output: Tensor, target: Tensor) -> Tensor:
    """Return the mean loss of each line's bytes, ``[B]``; padding does not count."""
    return functional.cross_entropy(output, target, reduction="none").sum(1) / (target >= 0).sum(1)


def gru(width: int) -> argosy.Member:
    """Return a language model of this width."""
    how = {"batch_size": 16, "loss": bytewise, "optimizer": partial(optim.Adam, lr=0.01)}
    return argosy.Member(f"gru-{width}", model=partial(Model, width), **how)


train, val = (argosy.data.json_lines(f"{split}.jsonl", make=windows) for split in ("train", "val"))
ragged = argosy.Ragged(LENGTH), argosy.Ragged(LENGTH, pad=-100)
study = argosy.Study(
    data=argosy.Data(train=train, val=val, ragged=ragged), members=[gru(16), gru(32)], stop=argosy.MaxEpochs(1)
)

if __name__ == "__main__":
    for row in argosy.train(study, directory="runs/language").rows:
        print(f"{row.name}: perplexity {math.exp(row.metrics['val_loss']):.2f} a byte")
