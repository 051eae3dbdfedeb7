"""The results of a run in a form that can be compared bit for bit."""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch

from argosy.results.fold import MemberState, RunState
from argosy.running.directory.audit import audit
from argosy.running.directory.journal import read_journal
from argosy.running.directory.study_json import read_study


def fingerprint(state: Any) -> str:
    """Return the SHA-256 hash of the bytes of all tensors and the text of all scalars in a nested state."""
    digest = hashlib.sha256()

    def feed(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            value = value if value.layout is torch.strided else value.to_dense()
            digest.update(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        elif isinstance(value, dict):
            for key, item in value.items():
                digest.update(str(key).encode())
                feed(item)
        elif isinstance(value, list | tuple):
            for item in value:
                feed(item)
        else:
            digest.update(repr(value).encode())

    feed(state)
    return digest.hexdigest()


class Bits(str):
    """A fingerprint that keeps its state, so that a failed comparison can say where two states differ."""

    state: Any

    @classmethod
    def of(cls, state: Any) -> "Bits":
        """Take the fingerprint of a state, which must not change afterwards."""
        bits = cls(fingerprint(state))
        bits.state = state
        return bits


def results(directory: Path) -> dict[str, Any]:
    """Return, by member in the study's order, the bits of its final state, the metrics and digests of its sections, and how it ended."""
    assert audit(directory) == []
    members = RunState.of(read_journal(directory)).members
    asked = (read_study(directory) or {"members": {}})["members"]
    names = [name for name in asked if name in members]
    return {name: _result(directory, members[name]) for name in dict.fromkeys([*names, *members])}


def results_of(directory: Path, name: str) -> dict[str, Any]:
    """Return the results of one member; others may have saved nothing."""
    return _result(directory, RunState.of(read_journal(directory)).members[name])


def _result(directory: Path, member: MemberState) -> dict[str, Any]:
    saved = torch.load(directory / "members" / member.name / "last.pt", weights_only=True)
    epochs = [
        (
            *(e.epoch, e.stream_epoch, dict(e.metrics), tuple(e.digest), e.val_digest and tuple(e.val_digest)),
            *(row["steps"], row["samples"]),
        )
        for e, row in zip(member.sections, member.history, strict=True)
    ]
    return {
        "weights": Bits.of(saved["model"]),
        "optimizer": Bits.of(saved["optimizer"]),
        "random": Bits.of(saved["random"]["torch"]),
        "epochs": epochs,
        "decision": (member.status, member.reason),
    }


def event_lines(directory: Path, kind: str) -> list[dict[str, Any]]:
    """Return the journal's lines of one kind."""
    lines = [json.loads(line) for line in (directory / "journal.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == kind]
