"""Export a folder in the layout of the Hugging Face Hub: weights, ``config.json`` and a model card, README.md."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from argosy.errors import RunError
from argosy.errors.optional import optional
from argosy.errors.wording import format_value
from argosy.export import safetensors
from argosy.export.exported import About, Combination, Exported

__all__ = ["push", "write"]


def write(exported: Exported, folder: Path) -> None:
    """Write the folder; a network of Transformers writes its own weights and configuration, for ``from_pretrained``."""
    network: Any = exported.network
    pretrained = hasattr(network, "save_pretrained")
    if pretrained:
        network.save_pretrained(folder)
    else:
        safetensors.write(exported, folder)
    text = "\n\n".join(_card_lines(exported.about, pretrained=pretrained))
    (folder / "README.md").write_bytes(f"{text}\n".encode(errors="backslashreplace"))


def push(folder: Path, repository: str) -> None:
    """Upload a folder as a model of the Hub; raises RunError if huggingface_hub is not installed."""
    with optional(RunError, f"pushing {folder} to {repository!r} needs huggingface_hub", "huggingface_hub"):
        from huggingface_hub import HfApi
    api = HfApi()
    api.create_repo(repository, exist_ok=True)
    api.upload_folder(repo_id=repository, folder_path=folder)


def _card_lines(about: About, *, pretrained: bool) -> Iterator[str]:
    library = "transformers" if pretrained else "pytorch"
    yield f"---\nlibrary_name: {library}\ntags:\n- argosy\n- {library}\n---"
    yield f"# {about.name}"
    yield (
        f"`{about.network}` with {about.parameters:,} parameters, trained by Argosy {about.argosy} together with "
        "other networks on one shared stream of samples."
    )
    if about.trunk:
        yield (
            f"**Not the whole network**: its inputs are the outputs of a frozen `{about.trunk}` for the samples. That "
            "network is not in this folder; run it first."
        )
    if about.ensemble is not None:
        yield _describe_ensemble(about.ensemble)
    yield "## Data"
    counts = ", ".join(f"{count:,} of {split}" for split, count in about.samples.items())
    yield f"{about.dataset}: {counts} samples."
    leaves = ", ".join(f"`{leaf.name}` {leaf.dtype} [{', '.join(map(str, leaf.shape))}]" for leaf in about.inputs)
    yield f"Inputs: {leaves}, prepared as for training."
    if about.figures:
        yield "## Figures"
        trained = "" if about.epochs is None else f", after {about.epochs:g} epochs"
        yield f"On the validation samples{trained}:"
        yield _table("figure", about.figures)
    if about.hyperparameters:
        yield "## Hyper-parameters"
        yield _table("hyper-parameter", about.hyperparameters)
    yield "## Load it"
    if pretrained:
        yield f'```python\nfrom transformers import {about.network}\n\nnetwork = {about.network}.from_pretrained("FOLDER")\n```'
    else:
        yield "Build the network with its own code, then:"
        yield (
            '```python\nfrom safetensors.torch import load_model\n\nload_model(network, "model.safetensors")\nnetwork.eval()\n```'
        )


def _describe_ensemble(ensemble: Combination) -> str:
    rows = zip(ensemble.members, ensemble.weights, ensemble.temperatures, strict=True)
    table = "\n".join(f"| {name} | {weight:g} | {temperature:g} |" for name, weight, temperature in rows)
    ways = {
        "probabilities": "the weighted mean of softmax(logits / temperature)",
        "logits": "softmax of the weighted mean of logits / temperature",
        "votes": "the weighted share of members that predict each class",
        "mean": "the weighted mean of their outputs",
    }
    how = (
        ways[ensemble.combine]
        if isinstance(ensemble.combine, str)
        else f"of several outputs, combined as {ensemble.combine}"
    )
    return (
        f"An ensemble: its prediction is {how}. The networks are a module list `networks`, in this order; weights and "
        f"temperatures are buffers of these names.\n\n| member | weight | temperature |\n|---|---|---|\n{table}"
    )


def _table(kind: str, values: Mapping[str, Any]) -> str:
    rows = "\n".join(f"| {_cell(name)} | {_cell(value)} |" for name, value in values.items())
    return f"| {kind} | value |\n|---|---|\n{rows}"


def _cell(value: Any) -> str:
    """Return a value as a cell of a table, in which a bar would begin the next cell, and an angle bracket HTML."""
    return format_value(value).replace("|", r"\|").replace("<", r"\<")
