"""The user's objects, pickled for another process: functions and classes of scripts travel by value.

Arrays and tensors lie beside the pickle in the memory file. Each process that unpacks the file maps it, so all
processes share one copy until one of them writes into its own.
"""

import contextlib
import functools
import importlib
import io
import mmap
import os
import pickle
import sys
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from importlib.machinery import ModuleSpec
from types import CodeType, FunctionType, ModuleType
from typing import Any, BinaryIO, ClassVar

import cloudpickle
import numpy as np
import torch

from argosy.errors import StudyError
from argosy.errors.system import system_refused
from argosy.errors.traces import known_sources
from argosy.protocol.trainer import Enlist
from argosy.readings import is_own_module
from argosy.running.launch.launcher import Job
from argosy.stream.imported import digest_imports
from argosy.stream.mapped import MappedFile
from argosy.stream.memory import memory_file
from argosy.study import Data, Member

__all__ = ["ADVICE", "make_blobs", "write_data_blob", "pickle_members", "make_enlist", "load_blob", "write_blob"]

ADVICE = (
    "Pass a factory that opens files, locks and connections itself (a module-level function, a class, a "
    "partial), instead of an object that holds them."
)


ALIGNMENT = 64
"""Alignment in bytes of each array in the file, the same as in NumPy and torch."""
WORD = 8
"""Bytes of the number at the end of a memory file, which says where the table of spans starts."""


def _reduce_code(code: CodeType) -> tuple[Callable[..., CodeType], tuple[Any, ...]]:
    """Reduce code as cloudpickle does, and keep its file name, for which cloudpickle 3.1.3 puts ``<dynamic-code>``."""
    make, arguments = cloudpickle.Pickler.dispatch_table[CodeType](code)
    return _make_code, (make, arguments, code.co_filename)


def _make_code(make: Callable[..., CodeType], arguments: tuple[Any, ...], file: str) -> CodeType:
    return make(*arguments).replace(co_filename=file)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """A cloudpickle that keeps the file names of code, for tracebacks, and avoids three of cloudpickle's faults.

    Cloudpickle takes along submodules that a function seems to name, and fails on the two of torch that are not
    modules. (A network with an attribute ``classes`` seems to name ``torch.classes``.) It would also read an open text
    file to its end and send the text, and copy modules that no import finds, such as ``torch._C._functions``, which
    functions decorated with ``once_differentiable`` name.
    """

    dispatch_table: ClassVar[ChainMap[type, Any]] = ChainMap(
        {CodeType: _reduce_code}, cloudpickle.Pickler.dispatch_table
    )

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, ModuleType) and type(value) is not ModuleType and value.__name__ in sys.modules:
            return importlib.import_module, (value.__name__,)
        if isinstance(value, ModuleType) and value.__name__ not in sys.modules:
            parent, _, name = value.__name__.rpartition(".")
            holder = sys.modules.get(parent)
            # A parent without a spec was made by code, so workers cannot import it.
            if getattr(holder, "__spec__", None) is not None and getattr(holder, name, None) is value:
                return getattr, (holder, name)
        if isinstance(value, io.TextIOWrapper) and value not in (sys.stdout, sys.stderr):
            raise TypeError(f"cannot pickle an open file, {getattr(value, 'name', value)!r}")
        if isinstance(value, ModuleType | FunctionType | type):
            _send_by_value_unless_imported(value.__name__ if isinstance(value, ModuleType) else value.__module__)
        return super().reducer_override(value)


class _BufferPickler(_Pickler):
    """A pickler that passes the memory of tensors and arrays as separate buffers; torch's would copy it."""

    def __init__(self, file: BinaryIO, buffers: list[pickle.PickleBuffer]) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffers.append)
        self.files: list[MappedFile] = []
        """Files to map again in the process that unpacks."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is np.memmap:
            return self._mapped(value) or np.ascontiguousarray(value).__reduce_ex__(5)
        if type(value) is np.ndarray and not value.flags.c_contiguous:
            return np.ascontiguousarray(value).__reduce_ex__(5)
        if type(value) is torch.Tensor and _is_plain(value):
            flat = value.contiguous().reshape(-1)
            return _tensor, (flat.view(torch.uint8).numpy(), value.dtype, tuple(value.shape))
        return super().reducer_override(value)

    def _mapped(self, array: Any) -> tuple[Any, tuple[Any, ...]] | None:
        """Return a call that maps the same part of the same file; None for an array that differs from the file."""
        mapped = MappedFile.of(array) if array.flags.c_contiguous else None
        if mapped is None:
            return None
        file, offset = mapped
        self.files.append(file)
        return _map, (file, array.dtype, array.mode.replace("w", "r"), offset, array.shape)


def _send_by_value_unless_imported(name: str) -> None:
    """Pickle a user's module by value, like a script, if a worker would not find it, or if importing it would start a training run."""
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if file is None or name == "__main__" or not is_own_module(name) or type(module) is not ModuleType:
        return
    if getattr(module.__spec__, "_initializing", False) or not _is_found(name, file):
        cloudpickle.register_pickle_by_value(module)


@functools.cache  # called for each class and function that is pickled, with each member
def _is_found(module: str, file: str) -> bool:
    """Return whether importing the module finds this file; it may have been loaded from a path, or be the script of the parent process."""
    spec, package = _spec(module), _spec(module.partition(".")[0])
    same = spec is not None and spec.origin is not None and os.path.realpath(spec.origin) == os.path.realpath(file)
    return same and package is not None


def _spec(module: str) -> ModuleSpec | None:
    """Return the spec that an import would find in another process; `importlib.util.find_spec` returns that of a module loaded here."""
    folders = getattr(sys.modules.get(module.rpartition(".")[0]), "__path__", None)
    return next(filter(None, (finder.find_spec(module, folders) for finder in sys.meta_path)), None)


def pickle_members(members: Iterable[Member]) -> bytes:
    """Pickle members; raises StudyError naming the first one that cannot be sent to another process."""
    members = tuple(members)
    return _dumps(members, lambda: (_first_unpicklable(members), ADVICE))


def make_enlist(members: tuple[Member, ...]) -> Enlist:
    """Return the message that defines members for another process; raises StudyError for one that cannot be sent."""
    return Enlist(
        definitions=pickle_members(members),
        path=tuple(sys.path),
        sources=known_sources(),
        imported=digest_imports(members),
    )


def make_blobs(job: Job) -> dict[str, int]:
    """Return descriptors of the blobs: one per role, the process state (unpacked first), and the data (for feeders)."""
    study = job.study
    common = (job.settings, study.seed, study.validations_per_epoch)
    with contextlib.ExitStack() as undone:
        sent = replace(study.data, on_device=None)  # trainers alone call it
        data, files = write_data_blob(sent)
        undone.callback(os.close, data)
        feeder = write_blob((*common, files, digest_imports([sent])), "the input of a feeder")
        undone.callback(os.close, feeder)
        trainer = write_blob((study.terms, job.settings, digest_imports([study.data.on_device])), "Data.on_device")
        undone.callback(os.close, trainer)
        state = write_blob(job.process_state, "a warnings filter")
        undone.pop_all()
    return {"data": data, "feeder": feeder, "trainer": trainer, "state": state}


def write_blob(value: Any, what: str) -> int:
    """Write a value into an anonymous memory file; raises StudyError if it cannot be sent to another process."""
    return _blob(value, lambda: (what, ADVICE))[0]


def write_data_blob(data: Data) -> tuple[int, tuple[MappedFile, ...]]:
    """Write the data into an anonymous memory file.

    Returns its descriptor, and the files that the data map; raises StudyError if the data cannot be sent.
    """

    def describe() -> tuple[str, str]:
        split = "val" if _is_picklable(data.train) else "train"
        name = type(getattr(data, split)).__name__
        return f"Data.{split} ({name})", (
            "Each process that reads data needs its own files and connections. Pass a function that opens them, "
            f"Data({split}=lambda: {name}(...)), or open them with the first sample."
        )

    return _blob(data, describe)


def load_blob(descriptor: int) -> Any:
    """Unpack the value of a memory file.

    Its arrays are views of the file; a page that is written becomes private (copy-on-write).
    """
    memory = memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY))
    spans = pickle.loads(memory[int.from_bytes(memory[-WORD:], "little") :])
    first, *buffers = (memory[start:stop] for start, stop in spans)
    return pickle.loads(first, buffers=buffers)


def _write(value: Any, file: BinaryIO) -> tuple[MappedFile, ...]:
    """Write the pickle, its buffers, their spans, and where the spans start; returns the files that the value maps."""
    buffers: list[pickle.PickleBuffer] = []
    pickler = _BufferPickler(file, buffers)
    pickler.dump(value)
    spans = [(0, file.tell())]
    for buffer in buffers:
        start = -(-file.tell() // ALIGNMENT) * ALIGNMENT
        file.seek(start)
        file.write(buffer.raw())
        spans.append((start, file.tell()))
    table = file.tell()
    pickle.dump(spans, file)
    file.write(table.to_bytes(WORD, "little"))
    return tuple(dict.fromkeys(pickler.files))


def _is_plain(tensor: torch.Tensor) -> bool:
    """Return whether memory, dtype and shape describe the tensor completely; not for an expanded one, which is smaller in memory."""
    return (
        tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and not (tensor.requires_grad or tensor.is_conj() or tensor.is_neg() or tensor.is_quantized or vars(tensor))
        and tensor.untyped_storage().nbytes() >= tensor.nbytes
    )


def _tensor(memory: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.from_numpy(memory).view(dtype).view(shape)


def _map(file: MappedFile, dtype: Any, mode: Any, offset: int, shape: tuple[int, ...]) -> Any:
    file.check()
    return np.memmap(file.path, dtype, mode, offset, shape)


@contextlib.contextmanager
def _refusing(describe: Callable[[], tuple[str, str]]) -> Iterator[None]:
    """Raise StudyError for an object that cannot be pickled; `describe` returns which one it is, and what to do.

    Raises WorkerError or DiskError if the system refuses the memory to write it to.
    """
    try:
        yield
    except StudyError:
        raise
    except Exception as error:  # boundary to the user's objects, which raise anything when they are pickled
        # An error that names a file is the object's own: the memory file has no name.
        own = isinstance(error, OSError) and error.filename is not None
        refused = None if own else system_refused(error, "the study cannot be sent to other processes")
        if refused is not None:
            raise refused from error
        what, advice = describe()
        raise StudyError(f"{what} cannot be sent to another process: {error!r}. {advice}") from error


def _blob(value: Any, describe: Callable[[], tuple[str, str]]) -> tuple[int, tuple[MappedFile, ...]]:
    """Write a value into a memory file; returns its descriptor, and the files that the value maps. Raises what `_refusing` does."""
    descriptor = memory_file("argosy-blob")
    with contextlib.ExitStack() as undone:
        undone.callback(os.close, descriptor)
        with _refusing(describe), os.fdopen(os.dup(descriptor), "wb") as file:
            files = _write(value, file)
        undone.pop_all()
    return descriptor, files


def _dumps(value: Any, describe: Callable[[], tuple[str, str]]) -> bytes:
    buffer = io.BytesIO()
    with _refusing(describe):
        _Pickler(buffer).dump(value)
    return buffer.getvalue()


def _first_unpicklable(members: Iterable[Member]) -> str:
    """Return the first member that cannot be pickled."""
    unsendable = (member for member in members if not _is_picklable(member))
    return next((f"member {member.name!r}" for member in unsendable), "the members")


def _is_picklable(value: Any) -> bool:
    try:
        _dumps(value, lambda: ("it", ADVICE))
    except StudyError:
        return False
    return True
