"""Runs networks on samples; each sample is prepared once for all networks, as the study prepares validation samples."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from argosy.data.features import Features
from argosy.ensembling.answering import answer_in_batches
from argosy.ensembling.preparing import InputPreparation, device_of, inputs_and_target
from argosy.errors import RunError, StudyError
from argosy.errors.checks import check_arrays, check_not_a_loader
from argosy.errors.warned import warn_caller
from argosy.stream.blocks import Block, Layout, Place
from argosy.stream.kept.cache import RowCache
from argosy.stream.kept.proof import Prover
from argosy.stream.kept.spool import Spool
from argosy.stream.opening import Opening, open_kept_rows
from argosy.stream.padding import batch_form, make_stacked_batch
from argosy.stream.sources import Source
from argosy.stream.trees import flatten, map_leaves, unflatten
from argosy.study import IGNORED, Data, Study
from argosy.training.device.moved import copy_held
from argosy.training.device.process_state import preserve_random_states

__all__ = [
    "Predicted",
    "Reduced",
    "check_features",
    "errors_of_samples",
    "example_split",
    "features_of",
    "few_inputs",
    "predict",
    "preparation_of",
    "make_preparer",
    "data_with_samples",
]

ROWS = 256
"""Samples in a batch."""
Reduced = Callable[[Any, Tensor | None], Tensor]
"""Function from a network's output for a batch, and its targets, to what is kept of the output."""
FEW = 16
"""Samples, spread over the study's data, that show whether the inputs from `Data.on_device` depend on targets."""


class Predicted(NamedTuple):
    """The networks' outputs for a set of samples, in the order of the samples."""

    outputs: list[Any]
    """Output of each network on the host, or what was kept of it: a tensor ``[N, …]``, or several in the network's own structure."""
    targets: Any
    """The second part of the samples, or their labels, ``[N, …]``; None if that is not a single tensor."""
    indices: Tensor
    """Numbers of the samples in the dataset, int64 ``[N]``."""
    length: int
    """Number of samples in the whole dataset."""


@contextmanager
def errors_of_samples() -> Iterator[None]:
    """Let errors speak of the samples to predict, which the block reads in place of the study's validation data."""
    try:
        yield
    except StudyError as error:
        if "Data.val" not in str(error):
            raise
        raise StudyError(str(error).replace("Data.val", "report.predict: samples", 1)) from error.__cause__


def data_with_samples(study: Study, samples: Any) -> Data:
    """Return the study's data with these samples for validation.

    Samples are an array, several in a tuple or in dicts by name, a Dataset, or a function that returns one. Raises StudyError for a table,
    whose columns would be read by position and not by name; for arrays of different lengths; and for arrays if the study's samples vary
    in length.
    """
    if any(hasattr(part, "columns") for part in (samples if isinstance(samples, tuple | list) else (samples,))):
        raise StudyError(
            "report.predict was given a table, but it reads columns by position, not by name. Use the predict method "
            "of what argosy.fit returned, or pass the columns in the order of training as an array: "
            "table[columns].to_numpy()."
        )
    check_not_a_loader("samples to predict: the object passed", samples)
    if isinstance(samples, list) and samples and all(map(_is_array, samples)):
        raise StudyError(
            f"report.predict was given a list of {len(samples)} arrays, which may be samples or inputs. Pass torch.stack(samples) for "
            "samples, or a tuple of arrays with one row per sample for inputs."
        )
    if _is_array(samples):
        samples = (samples,)
    if isinstance(samples, Mapping) or (
        isinstance(samples, tuple) and any(isinstance(part, Mapping) for part in samples)
    ):
        samples = RowsByName(samples)
    arrays = isinstance(samples, tuple) and all(map(_is_array, samples))
    if arrays and study.data.ragged is not None:
        raise StudyError(
            "report.predict was given arrays, but the study's samples vary in length (Data.ragged). Pass a Dataset "
            "whose samples have the structure of the study's, each with a target (any value, such as 0, if there is "
            "none)."
        )
    if arrays:
        check_arrays("report.predict: samples", samples)
    return replace(study.data, val=None if arrays else samples, val_arrays=samples if arrays else None)


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")  # a dataset of Hugging Face has a shape, too


class RowsByName:
    """A Dataset over arrays ``[N, …]`` in a dict, or in a tuple that contains dicts."""

    def __init__(self, arrays: Any) -> None:
        self._arrays = arrays
        lengths = {len(array) for array in flatten(arrays)[0]}
        if len(lengths) != 1:
            raise StudyError(
                f"samples to predict: arrays have {' and '.join(f'{length:,}' for length in sorted(lengths)) or 'no'} "
                "rows. Pass arrays with one row for each sample."
            )
        (self._length,) = lengths

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return map_leaves(itemgetter(index), self._arrays)


def preparation_of(study: Study, device: torch.device | str = "cpu") -> InputPreparation | None:
    """Return the study's preparation of batches on the device; None if it has none. Raises StudyError if its samples cannot be opened."""
    if study.data.on_device is None:
        return None
    with preserve_random_states():
        source = _open_source(study.data, study.seed, example_split(study))
        block = _read_block(source, np.unique(np.linspace(0, source.length - 1, FEW, dtype=np.int64)))
        on_device = copy_held(study.data.on_device, torch.device(device))
        return InputPreparation.of(on_device, source.layout, _leaves(block, torch.device(device)))


def example_split(study: Study) -> str:
    """Return the split from which to take example inputs."""
    return "val" if study.data.has_val else "train"


def features_of(study: Study) -> Features | None:
    """Return the study's samples from `argosy.data.features`, with their frozen network; None if it uses none."""
    with preserve_random_states():
        source = Opening(data=study.data, seed=study.seed).open(example_split(study))
    return source if isinstance(source, Features) else None


def check_features(study: Study, samples: Data) -> None:
    """Raise RunError for samples that have not been run through the study's frozen network, or through one cut at other layers."""
    features = features_of(study)
    if features is None or (isinstance(samples.val, Features) and samples.val.unfreeze == features.unfreeze):
        return
    with preserve_random_states():
        known, given = (
            _open_source(data, study.seed, split).layout
            for data, split in ((study.data, example_split(study)), (samples, "val"))
        )
    known_inputs, given_inputs = (_shapes_of_inputs(layout) for layout in (known, given))
    if given_inputs != known_inputs:
        name = type(features.network).__name__
        argument = "" if features.unfreeze is None else f", unfreeze={features.unfreeze}"
        of_a_tensor = ", or trunk(x) for a tensor" if features.unfreeze is None else ""
        raise RunError(
            f"samples to predict have inputs of shape {given_inputs}, but these networks take {known_inputs}, the "
            f"output of the study's frozen {name}. Pass argosy.data.features(samples, trunk{argument}), with a Dataset and "
            f"the {name}{of_a_tensor}."
        )


def _shapes_of_inputs(layout: Layout) -> Any:
    """Return the shape of the first part of a sample, or the shapes by name if it is a dict."""
    sample = unflatten([list(shape) for shape in layout.shapes], layout.tree)
    return inputs_and_target(sample)[0]


def few_inputs(study: Study, *, prepared: bool, other_lengths: bool = False) -> Any:
    """Return the inputs of two samples on the CPU: as networks take them if `prepared`, otherwise as the dataset returns them.

    What varies in length has 2 elements or more, and with `other_lengths` another number. Raises StudyError if the study's samples cannot be opened.
    """
    with preserve_random_states():
        source = _open_source(study.data, study.seed, example_split(study))
        block = _read_block(source, np.arange(2) % source.length)
        form = batch_form(block.tree)
        for lengths in () if form is None else (block.leaves[number] for number in form.lengths):
            lengths.clamp_(min=2)  # a size of 1 is a fixed one for torch.export
            if other_lengths:
                lengths.fill_(lengths.max() - 1)
        inputs = _batch(block, study.data.on_device if prepared else None, torch.device("cpu"))[0]
    return {name: leaf for name, leaf in inputs.items() if name != "labels"} if isinstance(inputs, Mapping) else inputs


def make_preparer(study: Study, device: torch.device | str) -> Callable[[Any], Any] | None:
    """Return a function that applies `Data.on_device` to batches; it opens the study's samples if a batch has no target."""
    on_device = copy_held(study.data.on_device, torch.device(device))
    if on_device is None:
        return None
    prepare = cache(partial(preparation_of, study, device))

    def prepared(batch: Any) -> Any:
        if inputs_and_target(batch)[1] is not None:
            return on_device(batch)
        is_first = not prepare.cache_info().currsize
        preparation = prepare()
        assert preparation is not None
        if is_first:
            _warn_of_fractions(batch, preparation.layout)
        return (preparation.inputs(batch),)

    return prepared


def _warn_of_fractions(inputs: Any, layout: Layout) -> None:
    """Warn of fractions where the study has whole numbers only: `Data.on_device` would scale images that are scaled already."""
    wanted = flatten(inputs_and_target(unflatten([*layout.dtypes], layout.tree))[0])[0]
    given = [leaf for leaf in flatten(inputs)[0] if leaf.is_floating_point() and (leaf % 1).any()]
    if given and not any(dtype.is_floating_point for dtype in wanted):
        warn_caller(
            f"samples to predict have fractions ({given[0].dtype}), but Data.on_device takes the whole numbers of the study's samples "
            f"({wanted[0]}). Pass them as the study's dataset returns them, for example images that are not scaled."
        )


def predict(
    networks: Sequence[nn.Module],
    data: Data,
    *,
    seed: int,
    indices: Sequence[int] | None = None,
    preparation: Callable[[Any], Any] | None = None,
    sizes: Sequence[int] = (),
    reduced: Reduced | None = None,
    ignored: Collection[int] = (),
) -> Predicted:
    """Run networks on the validation samples of the data, or on those at `indices`.

    All networks are on one device, where the preparation runs as well, and are put into ``eval()``. A network that does not accept the
    batches gets batches of one of the `sizes`. Samples that raise are left out if the study skips them. With `reduced`, its result for
    each output and the targets is kept instead of the output. Targets of an `ignored` class become `IGNORED`. Raises StudyError if the samples cannot be opened, and RunError
    if all of them raise and are skipped.
    """
    device = device_of(networks[0])
    preparation = copy_held(preparation, device)
    with preserve_random_states(), torch.no_grad():
        for network in networks:
            network.eval()
        source = _open_source(data, seed, "val")
        chosen = np.arange(source.length) if indices is None else np.asarray(indices, dtype=np.int64)
        sizes = [*sizes, *(min(size, len(chosen)) for size in sizes)]  # validation samples may be fewer than a batch
        outputs: list[list[Any]] = [[] for _ in networks]
        targets, kept = [], []
        for start in range(0, len(chosen), ROWS):
            block = _read_block(source, chosen[start : start + ROWS])
            if not block.sound.any():
                continue
            inputs, target = _batch(block, preparation, device)
            target = _mark_ignored(target, ignored)
            for number, network in enumerate(networks):
                output = map_leaves(Tensor.cpu, answer_in_batches(network, inputs, sizes))
                outputs[number].append(output if reduced is None else reduced(output, target))
            targets.append(target)
            kept.append(torch.from_numpy(block.indices[block.sound]))
    if not kept:
        raise RunError(
            f"all samples to predict ({len(chosen):,}) raised in the Dataset. Pass samples that it can prepare."
        )
    whole = None if targets[0] is None else _join_outputs(targets, "targets")
    return Predicted([_join_outputs(parts, "outputs") for parts in outputs], whole, torch.cat(kept), source.length)


def _mark_ignored(target: Any, ignored: Collection[int]) -> Any:
    if isinstance(target, Tensor) and not target.is_floating_point():
        for number in {*ignored} - {IGNORED}:
            target = target.long().masked_fill(target == number, IGNORED)  # bytes hold no negative numbers
    return target


def _join_outputs(parts: list[Any], what: str) -> Any:
    """Join the rows of several batches, for each output; raises RunError if their samples differ in shape."""
    leaves = zip(*(flatten(part)[0] for part in parts), strict=True)
    return unflatten([_join_rows(of_one, what) for of_one in leaves], flatten(parts[0])[1])


def _join_rows(parts: tuple[Tensor, ...], what: str) -> Tensor:
    shapes = list(dict.fromkeys(tuple(part.shape[1:]) for part in parts))
    if len(shapes) > 1:
        raise RunError(
            f"{what} of samples of varying length have shapes {list(shapes[0])} and {list(shapes[1])}, which cannot "
            "be joined into one tensor. Use a network with one shape for all samples, or run member(name).load() on "
            "batches of your own."
        )
    return torch.cat(parts)


def _open_source(data: Data, seed: int, split: str) -> Source:
    opening = Opening(data=data, seed=seed)
    opened = opening.open(split)
    # Read samples that a run has kept, but keep no more: only runs have a budget for that.
    cache = RowCache(most_bytes=None if isinstance(opened, Spool) else 0) if data.keep else None
    source = opening.probed(opened, split, Prover(cache))
    open_kept_rows({split: source}, most_bytes=0)
    return source


def _batch(block: Block, preparation: Callable[[Any], Any] | None, device: torch.device) -> tuple[Any, Any]:
    """Return the inputs, and the target on the host; None if samples have no target."""
    batch = unflatten(_leaves(block, device), block.tree)
    inputs, target = inputs_and_target(make_stacked_batch(batch if preparation is None else preparation(batch)))
    return inputs, target.cpu() if isinstance(target, Tensor) else None


def _leaves(block: Block, device: torch.device) -> list[Tensor]:
    """Return the block's leaves on the device, without holes."""
    sound = torch.from_numpy(block.sound)
    return [(leaf if block.whole else leaf[sound]).to(device) for leaf in block.leaves]


def _read_block(source: Source, indices: np.ndarray[Any, Any]) -> Block:
    """Read these samples as in the first epoch."""
    rows = len(indices)
    place = Place(leg=0, split="val", epoch=0, section=0, start=0, rows=rows, last=True)
    block = source.layout.block(place, source.layout.memory(rows))
    source.fill(block, 0, indices)
    return block
