"""Checks of values that users pass. Each function raises a StudyError that names the value, what was found and what is allowed."""

import math
import re
from collections.abc import Collection
from functools import partial
from typing import Any

from argosy.bindings import signature_of
from argosy.errors import StudyError
from argosy.errors.spelling import did_you_mean

__all__ = [
    "check_arrays",
    "check_instance",
    "check_callable",
    "check_choice",
    "check_classes",
    "check_dataset",
    "check_factory",
    "check_flag",
    "check_has_values",
    "check_in_memory",
    "check_indices",
    "check_metric",
    "check_name",
    "check_not_an_iterator",
    "check_not_a_loader",
    "check_number",
    "check_same_classes",
    "check_takes",
    "check_whole",
    "is_map_style",
    "describe_value",
]

LONGEST_NAME = 250
"""Most bytes of a member's name. Common file systems allow 255 for a file name; a member that starts over gets a number appended."""

USUAL_PARTS = (
    "NoneType",
    "RandomSampler",
    "SequentialSampler",
    "DistributedSampler",
    "_InfiniteConstantSampler",
    "BatchSampler",
    "default_collate",
    "default_convert",
)
"""What a DataLoader has by default, and what Argosy does itself: shuffling, making batches, and dividing samples between devices."""


def check_name(name: Any) -> None:
    """Raise StudyError unless this can be a folder's name."""
    if not isinstance(name, str) or not re.fullmatch(r"[\w=+-][\w.=+-]*", name) or ".." in name:
        raise StudyError(
            f"member name {name!r} cannot be used as a folder name. Use letters, digits and . _ = + - (no '/', no '..', no leading dot)."
        )
    if len(name.encode()) > LONGEST_NAME:
        raise StudyError(
            f"member name {name[:20]}…{name[-20:]} has {len(name.encode())} bytes; as a folder name it can have at most "
            f"{LONGEST_NAME}. Shorten it, or use fewer axes in a grid."
        )


def check_whole(what: str, value: Any, *, least: int) -> None:
    """Raise StudyError unless the value is an int of at least `least`; bools are refused."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise StudyError(f"{what} is {describe_value(value)}; it must be an int of at least {least}.")


def check_number(what: str, value: Any, *, least: float = -math.inf, above: float = -math.inf) -> None:
    """Raise StudyError unless the value is a finite number within its bounds."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not number or value < least or value <= above:
        bound = (
            f" greater than {above:g}" if above > -math.inf else f" of at least {least:g}" if least > -math.inf else ""
        )
        raise StudyError(f"{what} is {describe_value(value)}; it must be a finite number{bound}.")


def check_choice(what: str, value: Any, choices: Collection[str]) -> None:
    """Raise StudyError unless the value is one of these choices."""
    if not isinstance(value, str) or value not in choices:
        *others, last = map(repr, choices)
        raise StudyError(
            f"{what} is {describe_value(value)}{did_you_mean(value, choices)}; it must be {', '.join(others)} or {last}."
        )


def check_flag(what: str, value: Any) -> None:
    """Raise StudyError unless the value is a bool: any other, such as the text 'no' of a configuration file, would count as true or false."""
    if not isinstance(value, bool):
        raise StudyError(f"{what} is {describe_value(value)}; it must be True or False.")


def check_classes(output: Any, target: Any) -> None:
    """Raise StudyError unless these are outputs ``[B, classes, …]`` and class numbers ``[B, …]``."""
    if not hasattr(output, "argmax") or not hasattr(target, "shape"):
        raise StudyError(
            f"accuracy was given outputs that are {describe_value(output)} and targets that are {describe_value(target)}; each must be one tensor. Pass "
            "a metric that selects the right parts: lambda outputs, targets: argosy.accuracy(outputs[0], targets[0])."
        )
    of_output, of_target = tuple(output.shape), tuple(target.shape)
    if len(of_output) < 2 or of_output[1] == 1:
        raise StudyError(
            f"accuracy was given outputs of shape {list(of_output)}; it needs one output per class, [batch, classes]. The threshold "
            "of a single logit may be 0 or 0.5. Pass a metric: lambda output, target: (output.flatten() > 0) == (target.flatten() > 0.5)."
        )
    if of_target != (of_output[0], *of_output[2:]):
        raise StudyError(
            f"accuracy was given outputs of shape {list(of_output)} and targets of shape {list(of_target)}; it needs one class number per "
            "sample. Pass target.flatten() for a column, target.argmax(1) for one-hot targets, output.movedim(-1, 1) where classes come "
            "last, as those of tokens."
        )


def check_callable(what: str, value: Any, wanted: str) -> None:
    """Raise StudyError unless the value can be called."""
    if not callable(value):
        raise StudyError(f"{what} is {describe_value(value)}; it must be {wanted}.")


def check_instance(what: str, value: Any) -> None:
    """Raise StudyError for a class, because calling it would pass an instance's input to the constructor."""
    if isinstance(value, type):
        raise StudyError(
            f"{what} is the class {value.__name__}; it must be an instance, which is then called with its inputs. Pass "
            f"{value.__name__}(...)."
        )


def check_factory(what: str, value: Any, kind: str) -> None:
    """Raise StudyError unless the value builds a new object at each call; an `nn.Module` is refused because it exists already."""
    exists = any(base.__module__.startswith("torch.nn") and base.__name__ == "Module" for base in type(value).__mro__)
    if exists or not callable(value):
        raise StudyError(
            f"{what} must be a factory (a class, a function, a functools.partial) that builds {kind}; found "
            f"{describe_value(value)}. Each member builds its own, under its own seed: pass functools.partial(Class, arguments)."
        )


def check_same_classes(train: Any, val: Any) -> None:
    """Raise StudyError if both Datasets list their classes, as image folders do, and number them differently."""
    train_classes, val_classes = _class_names(train), _class_names(val)
    if train_classes and val_classes and train_classes != val_classes:
        raise StudyError(
            f"Data.val has {len(val_classes)} classes ({_first_few(val_classes)}) and Data.train has {len(train_classes)} ({_first_few(train_classes)}), so the same number would mean "
            "different classes. Use the same classes for both, for example argosy.data.image_folder(..., classes=train.classes)."
        )


def _class_names(dataset: Any) -> list[Any]:
    """Return its ``classes`` if these are distinct names that its numbers stand for.

    In some Datasets the attribute holds the class of each sample, and the `target_transform` of torchvision's may number classes otherwise.
    """
    while type(dataset).__name__ == "Subset" and hasattr(dataset, "dataset"):
        dataset = dataset.dataset
    if getattr(dataset, "target_transform", None) is not None:
        return []
    classes = getattr(dataset, "classes", None)
    names = list(classes) if isinstance(classes, list | tuple) else []
    return names if len({str(one) for one in names}) == len(names) else []


def _first_few(classes: Any) -> str:
    return ", ".join(map(str, classes[:5])) + (", …" if len(classes) > 5 else "")


def check_takes(what: str, function: Any, arguments: int, wanted: str, keywords: Collection[str] = ()) -> None:
    """Raise StudyError unless a function takes this number of arguments and these keywords; functions without a signature pass."""
    check_callable(what, function, wanted)
    bound = function if isinstance(function, partial) else partial(function)
    try:
        signature = signature_of(bound.func)
        signature.bind_partial(*bound.args, **bound.keywords)
    except (TypeError, ValueError):
        return  # a builtin without a signature, or a partial that binds what its function does not take: the call says so
    try:
        signature.bind(*bound.args, *[None] * arguments, **{**bound.keywords, **dict.fromkeys(keywords)})
    except TypeError as error:
        name = getattr(bound.func, "__qualname__", type(bound.func).__name__)
        count = f"{arguments or 'no'} argument{'s' * (arguments != 1)}"
        raise StudyError(
            f"{what} is {name}, which cannot be called with {count} ({error}); it must be {wanted}."
        ) from None


def check_metric(owner: str, name: Any, metric: Any) -> None:
    """Raise StudyError unless this is a metric (a function or an object with `update` and `compute`) and its name can be a column's."""
    if not isinstance(name, str) or not re.fullmatch(r"[^\s,\"][^,\"\r\n]*", name):
        raise StudyError(
            f"{owner}: the metric name {name!r} cannot be part of a column name, val_<name>. Use a word without commas, "
            "quotes or line breaks."
        )
    updates = hasattr(metric, "update") and hasattr(metric, "compute")
    if not callable(metric) and not updates:
        raise StudyError(
            f"{owner}: the metric {name!r} is {describe_value(metric)}; it must be a function: (outputs, targets) -> values."
        )
    if updates and not isinstance(metric, type):
        wanted = "update(outputs, targets). Wrap a metric of Ignite in an object whose update calls update((outputs, targets))"
        check_takes(f"{owner}: update of the metric {name!r}", metric.update, 2, wanted)


def check_indices(what: str, subset: Any) -> None:
    """Raise StudyError unless this is a one-dimensional list, range, array or tensor of integers of at least 0."""
    if isinstance(subset, str) or not (hasattr(subset, "__len__") and hasattr(subset, "__getitem__")):
        raise StudyError(f"{what} is {describe_value(subset)}; it must be a list, an array or a tensor of indices.")
    shape = tuple(getattr(subset, "shape", (len(subset),)))
    if len(shape) != 1:
        raise StudyError(f"{what} has shape {shape}; indices must be one-dimensional. Flatten it.")
    if not len(subset):
        raise StudyError(f"{what} is empty. Pass the indices of at least one sample.")
    kinds = [str(subset.dtype).removeprefix("torch.")] if hasattr(subset, "dtype") else _kinds(subset)
    if any(kind.startswith("bool") for kind in kinds):
        raise StudyError(
            f"{what} is a mask of True and False, which would be read as samples 1 and 0. Pass the indices that it selects: "
            "mask.nonzero()[0] for an array, mask.nonzero().flatten() for a tensor."
        )
    if wrong := [kind for kind in kinds if not kind.startswith(("int", "uint"))]:
        raise StudyError(f"{what} holds values of type {wrong[0]}; indices must be ints, for example subset=[0, 3, 5].")
    least = int(subset.min() if hasattr(subset, "min") else min(subset))
    if least < 0:
        raise StudyError(f"{what} has the index {least}; indices must be at least 0 (the first sample).")


def check_arrays(what: str, arrays: Any) -> None:
    """Raise StudyError unless these are arrays of numbers with equal lengths; None passes."""
    if arrays is None:
        return
    if not isinstance(arrays, list | tuple):
        raise StudyError(
            f"{what} is {describe_value(arrays)}; it must be a tuple of tensors or arrays with one row per sample: "
            "(inputs, targets), or (inputs,)."
        )
    for number, array in enumerate(arrays):
        if getattr(array, "is_nested", False) is True:  # a strided one raises when asked for its shape
            raise StudyError(
                f"{what}[{number}] is a nested tensor; it must be a dense tensor in host memory. Pass "
                "array.to_padded_tensor(0.0), or a Dataset of its rows as train= with Data(ragged=...)."
            )
        if not hasattr(array, "__len__") or getattr(array, "shape", (1,)) == ():
            raise StudyError(
                f"{what}[{number}] is {describe_value(array)}; it must be a tensor or an array with one row per sample."
            )
        parts = array.values() if isinstance(array, dict) else array if isinstance(array, tuple) else ()
        if any(getattr(part, "shape", ()) for part in parts):
            raise StudyError(
                f"{what}[{number}] is a {type(array).__name__} of {len(array)} arrays, but a sample is one row of each array. Pass the arrays one after "
                "another, for example (images, table, classes), or nest them in the samples of a Dataset: train=."
            )
        check_has_values(f"{what}[{number}]", array)
        tensor = array[0] if isinstance(array, list | tuple) and array else array
        # Here and not by workers, to which such tensors would have to be sent. A DataFrame may have a column "layout".
        if hasattr(tensor, "requires_grad") and (str(tensor.layout) != "torch.strided" or tensor.device.type != "cpu"):
            raise StudyError(
                f"{what}[{number}] is a tensor of layout {tensor.layout} on {tensor.device}; it must be a dense tensor in host "
                "memory. Pass tensor.cpu() or tensor.to_dense()."
            )
        if hasattr(type(array), "toarray"):
            raise StudyError(
                f"{what}[{number}] is a sparse {type(array).__name__} of SciPy; it must be a dense array. Pass array.toarray() or, if "
                "that is too large, a Dataset as train= whose samples are dense rows, array[index].toarray()[0]."
            )
        if getattr(getattr(array, "dtype", None), "kind", "f") in "OSU":
            raise StudyError(
                f"{what}[{number}] has dtype {array.dtype}, but samples must be numbers. Encode strings and objects first, "
                "for example as class numbers."
            )
    lengths = [len(array) for array in arrays]
    if len(set(lengths)) != 1 or 0 in lengths:
        described = ", ".join(map(str, lengths)) or "no"
        raise StudyError(
            f"{what}: its arrays have {described} rows; all must have the same number of rows, at least 1."
        )


def check_has_values(what: str, array: Any) -> None:
    """Raise StudyError for a masked array, and for a query whose rows are not in memory."""
    if hasattr(type(array), "filled"):  # a DataFrame has its columns as attributes
        raise StudyError(
            f"{what} is a masked array. Tensors have no masks, so the masked values would be trained on. Pass array.filled(value), or "
            "remove the masked samples."
        )
    check_in_memory(what, array)


def check_in_memory(what: str, array: Any) -> None:
    """Raise StudyError for a query of Spark, DuckDB or Polars, or a reader of Arrow, whose rows are not in memory."""
    if fetch := next((one for one in ("toPandas", "df", "read_all", "collect") if hasattr(type(array), one)), None):
        raise StudyError(f"{what} is {describe_value(array)}, whose rows are not in memory. Pass its {fetch}().")


def check_dataset(what: str, dataset: Any) -> None:
    """Raise StudyError unless this is a map-style or iterable Dataset, or a function without arguments that returns one."""
    if dataset is None:
        return
    check_not_a_loader(what, dataset)
    check_not_an_iterator(what, dataset)
    named = type(dataset) is dict and 0 not in dataset
    parts = dataset.values() if named else dataset if type(dataset) is tuple else ()
    shapes: list[Any] = [getattr(part, "shape", ()) for part in parts]
    if len(shapes) > 1 and all(shape and shape[0] == shapes[0][0] > len(shapes) for shape in shapes):
        field = "val_arrays" if what.endswith("val") else "arrays"
        wrapper = "StackDataset(**arrays)" if named else "TensorDataset"
        raise StudyError(
            f"{what} is a {type(dataset).__name__} of {len(shapes)} arrays of {shapes[0][0]} rows each, which would be read as {len(shapes)} samples. "
            f"Pass the rows as samples: Data({field}=(x, y)), or a torch.utils.data.{wrapper}."
        )
    if not isinstance(dataset, type) and (is_map_style(dataset) or hasattr(dataset, "__iter__")):
        return
    if hasattr(dataset, "train_dataloader"):
        raise StudyError(
            f"{what} is {describe_value(dataset)}, a DataModule; it must be a Dataset. Pass the DataModule's own: Data(train=dm.train, val=dm.val) after "
            "dm.setup('fit'), or dm.train_dataloader().dataset."
        )
    check_callable(
        what, dataset, "a Dataset, with __len__ and __getitem__ or with __iter__, or a function that returns one"
    )
    check_takes(what, dataset, 0, "a factory without arguments, for example a functools.partial, or a Dataset")


def is_map_style(dataset: Any) -> bool:
    """Return whether the Dataset has samples by index; `IterableDataset` inherits torch's ``__getitem__``, which only raises."""
    by_index = getattr(dataset, "__getitem__", None)
    name = f"{getattr(by_index, '__module__', '')}.{getattr(by_index, '__qualname__', '')}"
    only_raises = (
        name == "torch.utils.data.dataset.Dataset.__getitem__"
    )  # a class of another module may be called so too
    return by_index is not None and not only_raises and hasattr(dataset, "__len__")


def check_not_a_loader(what: str, dataset: Any) -> None:
    """Raise StudyError for a DataLoader, because it returns batches instead of samples."""
    transforms = hasattr(dataset, "after_batch")  # fastai's, whose DataLoaders have their loaders by index
    loader = not is_map_style(dataset) and hasattr(dataset, "__iter__") and hasattr(dataset, "batch_size")
    if (transforms or loader) and hasattr(dataset, "dataset"):
        batches = getattr(dataset, "batch_sampler", None)
        # The loader's own sampler is unused if it was given one of batches.
        sampler = getattr(batches, "sampler", getattr(dataset, "sampler", None))
        parts = sampler, batches, getattr(dataset, "collate_fn", None)
        lost = [name for part in parts if (name := getattr(part, "__name__", type(part).__name__)) not in USUAL_PARTS]
        lost += ["drawing with replacement"] if getattr(sampler, "replacement", False) and not lost else []
        drops = getattr(batches, "drop_last", getattr(dataset, "drop_last", False)) is True
        batch_size = "batch_size and drop_last=True" if drops else "batch_size"
        instead = (
            f" This leaves out its {' and '.join(lost)}: choose samples with subset= of the member, such as argosy.data.by_weight(weights) for "
            "rare classes; what a collate_fn does to a batch is for augment= of the member, and padding for Data(ragged=...)."
        ) * bool(lost)
        instead += " Its item_tfms and batch_tfms are left out: apply them in the Dataset, or in augment=." * transforms
        both = hasattr(type(dataset), "valid_ds")  # of a single loader, reading it raises an IndexError
        own = "its datasets, train=dls.train_ds and val=dls.valid_ds," if both else "its dataset, loader.dataset,"
        raise StudyError(
            f"{what} is a {type(dataset).__name__}, which makes batches, but the stream needs single samples. Pass {own} and set "
            f"{batch_size} on each member.{instead}"
        )


def check_not_an_iterator(what: str, dataset: Any) -> None:
    """Raise StudyError for an iterator, which only this process can read, and only once."""
    if isinstance(dataset, set | frozenset):
        raise StudyError(f"{what} is a set, whose order differs between processes. Pass sorted(...).")
    if hasattr(dataset, "__next__") and not isinstance(dataset, type) and not is_map_style(dataset):
        raise StudyError(
            f"{what} is a {type(dataset).__name__}, which can be read only once and only by this process. Pass a function without arguments "
            "that returns it, or an object with __iter__."
        )


def describe_value(value: Any) -> str:
    """Return the repr of a plain value or a scalar of numpy or torch, or the type of any other value, for a message."""
    if value is None or isinstance(value, bool | int | float | str) or getattr(value, "shape", None) == ():
        return repr(value)
    return f"an instance of {type(value).__name__}"


def _kinds(values: Any) -> list[str]:
    return sorted({kind.__name__ for kind in set(map(type, values))})
