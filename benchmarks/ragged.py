"""Compares batches of texts of similar length with texts all padded to the longest, for four transformers that predict the next byte.

The texts are the paragraphs of Python's own language reference (`pydoc_data.topics`), of 8 to 512 bytes, or, with
``--corpus sources``, the docstrings of the standard library. The sides take turns in one process on one device
(launcher ``inline``), each with an empty cache:

* ``ragged``: `Data(ragged=...)`.
* ``budget``: the same with `batch_tokens`.
* ``padded``: each text padded to 512 in the Dataset, as people do it.

Then, in float64 and on fewer texts, ``ragged`` is compared with itself with each batch padded to 512 before the step
(`Member.augment`): both see the same samples in the same batches. Padding and the correlation of neighbouring batches
are computed over the batches of every epoch.
"""

import ast
import importlib
import inspect
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import arguments, finish, hardware, target
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import AdamW
from torch.utils.data import Dataset

import argosy
from argosy.running.directory.audit import audit
from argosy.stream.order import Selection, split_order

SHORTEST, LONGEST, BATCH, BUDGET = 8, 512, 16, 4096
RAGGED = argosy.Ragged(LONGEST)


def paragraphs() -> list[str]:
    topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    return [part.strip() for _, text in sorted(topics.items()) for part in text.split("\n\n")]


def docstrings() -> list[str]:
    """Return the docstrings of the standard library's own files, in the order of their names."""
    found = []
    for path in sorted(Path(inspect.getfile(os)).parent.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8", errors="replace"))
        nodes = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef | ast.Module))
        found += [text for node in nodes if (text := ast.get_docstring(node))]
    return found


CORPORA = {"reference": paragraphs, "sources": docstrings}


class Texts(Dataset[Tensor]):
    """The bytes of each text, from 1 up; 0 is padding."""

    def __init__(self, texts: Sequence[str], *, padded: bool = False) -> None:
        self.rows = [torch.tensor(list(text.encode())) + 1 for text in texts]
        self.padded = padded

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Tensor:
        row = self.rows[index]
        return functional.pad(row, (0, LONGEST - len(row))) if self.padded else row


class Reader(nn.Module):
    """A network that predicts each byte from those before it."""

    def __init__(self, width: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(257, width, padding_idx=0), nn.Embedding(LONGEST, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.next = nn.Linear(width, 257)
        self.to(dtype)

    def forward(self, ids_BL: Tensor) -> Tensor:
        length = ids_BL.shape[1]
        unseen = nn.Transformer.generate_square_subsequent_mask(length, dtype=self.next.weight.dtype)
        found = self.bytes(ids_BL) + self.places.weight[:length]
        output: Tensor = self.next(self.layers(found, mask=unseen, is_causal=True))
        return output


def step(model: nn.Module, ids_BL: Tensor) -> Tensor:
    """Return the mean loss over the bytes of each text ``[B]``."""
    output, wanted = model(ids_BL[:, :-1]), ids_BL[:, 1:]
    losses = functional.cross_entropy(output.transpose(1, 2), wanted, reduction="none", ignore_index=0)
    return losses.sum(1) / (wanted > 0).sum(1)


def filled_up(ids_BL: Tensor) -> Tensor:
    return functional.pad(ids_BL, (0, LONGEST - ids_BL.shape[1]))


def fleet(dtype: torch.dtype = torch.float32, **rest: Any) -> list[argosy.Member]:
    return [
        argosy.Member(
            f"width-{width}-lr-{lr}",
            model=partial(Reader, width, dtype),
            optimizer=partial(AdamW, lr=lr),
            batch_size=BATCH,
            step=step,
            **rest,
        )
        for width in (32, 48)
        for lr in (1e-3, 3e-3)
    ]


def trained(texts: Sequence[str], members: Sequence[argosy.Member], *, ragged: bool) -> tuple[float, dict[str, float]]:
    """Return the seconds, and the training loss of each member; raise SystemExit if the audit finds anything."""
    data = argosy.Data(train=Texts(texts, padded=not ragged), ragged=RAGGED if ragged else None)
    study = argosy.Study(data=data, members=members, stop=argosy.MaxEpochs(1))
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as cache:
        os.environ["ARGOSY_CACHE"] = cache
        began = time.perf_counter()
        report = argosy.train(study, directory=folder, launcher="inline", devices="cpu:1", quiet=True)
        seconds = time.perf_counter() - began
        if found := audit(Path(folder)):
            sys.exit("\n".join(found))
    return seconds, {row.name: row.metrics["train_loss"] for row in report.rows}


def shapes(texts: Sequence[str], tokens: int | None) -> dict[str, float]:
    """Return the share of padding in the batches of an epoch, and the correlation of neighbouring ones."""
    from argosy.stream.blocks import ALIGNMENT, Place
    from argosy.stream.by_length import ByLengthCutter
    from argosy.stream.opening import open_sources

    source = open_sources(argosy.Data(train=Texts(texts), ragged=RAGGED, keep=False), seed=0)["train"]
    order = split_order(0, "train", 0, len(texts))
    cutter = ByLengthCutter(
        selection=Selection.of(None, len(texts)),
        order=order,
        batch_size=BATCH,
        drop_last=False,
        tokens=tokens,
        drawn=(0, 0),
    )
    place = Place(leg=0, split="train", epoch=0, section=0, start=0, rows=len(texts), last=True)
    memory = np.empty(source.layout.block_bytes(len(texts)) + ALIGNMENT, np.uint8)
    block = source.layout.block(place, memory[-memory.ctypes.data % ALIGNMENT :])
    source.fill(block, 0, order)
    found = [batch.data for batch in cutter.take(block)]
    longest = np.array([ids.shape[1] for ids in found], dtype=float)
    kept, whole = sum(int((ids > 0).sum()) for ids in found), sum(ids.numel() for ids in found)
    return {"padding": 1 - kept / whole, "correlation": float(np.corrcoef(longest[:-1], longest[1:])[0, 1])}


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--corpus", choices=sorted(CORPORA), default="reference")
    parser.add_argument("--texts", type=int, default=2000)
    parser.add_argument("--exact", type=int, default=160, help="texts in the comparison in float64")
    options = parser.parse_args()
    fitting = [text for text in CORPORA[options.corpus]() if SHORTEST <= len(text.encode()) <= LONGEST]
    texts = fitting[:: max(len(fitting) // options.texts, 1)][: options.texts]
    mean = np.mean([len(text.encode()) for text in texts])
    print(f"{hardware()}; {len(texts)} texts of {mean:.0f} bytes in the mean", flush=True)
    rounds = []
    for number in range(options.rounds):
        seconds = {
            "ragged": trained(texts, fleet(), ragged=True)[0],
            "padded": trained(texts, fleet(), ragged=False)[0],
            "budget": trained(texts, fleet(batch_tokens=BUDGET), ragged=True)[0],
        }
        rounds.append(seconds)
        print(f"round {number}: {', '.join(f'{name} {value:.4g}' for name, value in seconds.items())}", flush=True)
    few = texts[:: max(len(texts) // options.exact, 1)]
    cut, full = (trained(few, fleet(torch.float64, **more), ragged=True)[1] for more in ({}, {"augment": filled_up}))
    differ = max(abs(cut[name] - full[name]) for name in cut)
    cuts = {"ragged": shapes(texts, None), "budget": shapes(texts, BUDGET)}
    targets = [
        target(
            "all padded to 512, batches of like length = 1", [f["padded"] / f["ragged"] for f in rounds], at_least=2
        ),
        target("the same, of at most 4,096 tokens", [f["padded"] / f["budget"] for f in rounds], at_least=2),
        target("share of padding", [found["padding"] for found in cuts.values()], at_most=0.05),
        target("correlation of neighbours", [abs(found["correlation"]) for found in cuts.values()], at_most=0.15),
        target("losses in float64 differ from those padded by", [differ], at_most=1e-6),
    ]
    finish("ragged", {"rounds": rounds, "cuts": cuts}, targets, as_json=options.json)


if __name__ == "__main__":
    main()
