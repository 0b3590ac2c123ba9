"""Reads the snapshots of PyTorch's allocator: pickles, which nobody needs to trust.

``torch.cuda.memory._dump_snapshot`` writes plain dicts, lists, texts and numbers (torch 2.0 and
later; c10/cuda/CUDACachingAllocator.h, torch/csrc/cuda/memory_snapshot.cpp). What a pickle would
call or import is refused. A few bytes of a pickle can name one list in itself again and again:
values are checked for their types before anything formats, hashes or copies them, and a list that
is named several times is refused. The caller bounds time and memory (`measured.memory`).
"""

from __future__ import annotations

import gzip
import io
import pickle
import sys
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traceprof.errors import TraceError, UsageError
from traceprof.formats.runs.manifest import BESIDE
from traceprof.model.table import Names, Table

ALLOCATED, FREED, COMPLETED = "alloc", "free_requested", "free_completed"
GROWN: Final = ("segment_alloc", "segment_map")
SHRUNK: Final = ("segment_free", "segment_unmap")
OUT_OF_MEMORY: Final = "oom"
NO_STACK: Final = -1
LIVE: Final = "active_allocated"

_OURS: Final = "traceprof"
"""What `traceprof record --memory` adds: the tensors of parameters, gradients and optimizers."""

_MOST_BYTES: Final = 4 << 30
_MOST_RATIO, _SMALL_BYTES = 64, 64 << 20
"""gzip makes snapshots 8 to 20 times smaller, and zeros 1000 times."""
_CHUNK_BYTES: Final = 1 << 20
_MOST_DEVICES: Final = 1024
_MOST_NUMBER: Final = 1 << 15
"""Of a device."""
_MOST_SUM_BYTES: Final = 1 << 61
_MOST_CHARACTERS: Final = 200
"""Of a name in an error."""

_NOT_ONE: Final = "not a PyTorch memory snapshot"
_WANTED: Final = "expected a file from torch.cuda.memory._dump_snapshot or record --memory"


@dataclass(frozen=True, slots=True)
class Frame:
    """One call of a stack."""

    file: str
    line: int
    name: str


Stack = tuple[Frame, ...]
"""Calls from the innermost on."""


@dataclass(frozen=True, slots=True, eq=False)
class DeviceMemory:
    """The allocator of one device.

    ``events``: in the order in which they happened: action, address, size_bytes (as requested),
    at_ns (since 1970; −1 where torch told no time), stack (a row of ``stacks``), free_bytes (what
    the device had left, where memory ran out).
    ``blocks``: what segments hold as the snapshot is taken: address, size_bytes, requested_bytes,
    state, stack. ``segments``: size_bytes, kind ("large", "small"). ``spans``: what the program
    named: name, start_ns, end_ns. ``tensors``: address, size_bytes, kind, name, as our own hooks
    saw them at the end, and ``step_ends_ns`` the ends of steps that they saw (since 1970).
    """

    device: int
    events: Table
    blocks: Table
    segments: Table
    spans: Table
    tensors: Table
    step_ends_ns: npt.NDArray[np.int64]
    stacks: Sequence[Stack]


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """A snapshot: its devices."""

    path: Path
    devices: tuple[DeviceMemory, ...]


def is_snapshot(path: Path) -> bool:
    """Return whether a file begins as a pickle does, gzipped or not; it may be another's."""
    try:
        with path.open("rb") as file:
            head = file.read(1 << 12)
        if head[:2] == b"\x1f\x8b":
            head = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(head, 2)
    except (OSError, ValueError, zlib.error):
        return False
    return len(head) > 1 and head[0] == 0x80 and 2 <= head[1] <= 5


def snapshots_of(paths: Sequence[Path]) -> list[Path]:
    """Return the snapshots among ``paths``, or those that recordings left beside them.

    Raises:
        UsageError: snapshots and traces are named together.
    """
    own = [path for path in paths if is_snapshot(path)]
    if own:
        if len(own) < len(paths):
            other = next(path for path in paths if path not in own)
            raise UsageError(
                f"{other} is not a memory snapshot: specify only snapshots, or only traces"
            )
        return own
    return [one for path in paths for one in _beside(path) if is_snapshot(one)]


def _beside(path: Path) -> list[Path]:
    folder, name = (path, "") if path.is_dir() else (path.parent, f"{path.stem}.")
    if not folder.is_dir():
        return []
    return sorted(
        one for one in folder.iterdir() if one.name.startswith(name) and one.name.endswith(BESIDE)
    )


def read_snapshot(path: Path) -> Snapshot:
    """Return the snapshot in a file; call it where time and memory are bounded.

    Raises:
        TraceError: it cannot be read, or is no such snapshot; the message says what is wrong.
    """
    try:
        with _opened(path) as file:
            plain = _Plain(file).load()
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from error
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from error
    except MemoryError as error:
        raise TraceError(f"{path}: reading it takes too much memory for its size") from error
    except Exception as error:  # a damaged pickle raises whatever its opcodes run into
        raise TraceError(f"{path}: {_NOT_ONE} ({_WANTED}): {error}") from error
    if not isinstance(plain, dict) or not isinstance(plain.get("segments"), list):
        raise TraceError(f"{path}: {_NOT_ONE}: {_WANTED}")
    try:
        return _Reader(plain).snapshot(path)
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        raise TraceError(f"{path}: this PyTorch memory snapshot is damaged: {error!r}") from error


def unpacked_bytes(path: Path) -> int:
    """Return the size of the pickle in a file, gzipped or not, in bytes; takes no memory.

    Raises:
        TraceError: the file cannot be read, or holds more than a file of its size may.
    """
    if not path.is_file():
        raise TraceError(f"{path}: no such file")
    n_bytes = 0
    try:
        packed_bytes = path.stat().st_size
        most_bytes = min(_MOST_BYTES, max(_SMALL_BYTES, _MOST_RATIO * packed_bytes))
        with _opened(path) as file:
            while n_bytes <= most_bytes and (chunk := file.read(_CHUNK_BYTES)):
                n_bytes += len(chunk)
    except (EOFError, zlib.error) as error:
        raise TraceError(f"{path}: the compressed data is damaged: {error}") from error
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from error
    if n_bytes > most_bytes:
        raise TraceError(
            f"{path}: the snapshot decompresses to more than {most_bytes >> 20} MiB, too much for "
            f"a file of {packed_bytes} bytes"
        )
    return n_bytes


def _opened(path: Path) -> gzip.GzipFile | io.BufferedReader:
    with path.open("rb") as file:
        is_zipped = file.read(2) == b"\x1f\x8b"
    return gzip.open(path) if is_zipped else path.open("rb")


if sys.platform == "linux":
    _Base: type[pickle.Unpickler] = pickle.Unpickler
else:
    # In C, one opcode makes a table of as many entries as it likes: nothing bounds that here.
    _Base = pickle._Unpickler  # type: ignore[attr-defined]


class _Plain(_Base):  # type: ignore[misc, valid-type]
    """Reads plain values: nothing is imported, nothing is called."""

    def find_class(self, module: str, name: str) -> Any:
        what = f"{module}.{name}"[:_MOST_CHARACTERS]
        raise TraceError(f"{_NOT_ONE}: the pickle imports {what}, which no snapshot does")

    def persistent_load(self, _id: Any) -> Any:
        raise TraceError(f"{_NOT_ONE}: the pickle refers to objects outside the file")


class _Reader:
    """Turns plain values into tables; what is said twice of one list is read once."""

    def __init__(self, plain: Mapping[str, Any]) -> None:
        self.plain = plain
        self.ours = _mapping(plain.get(_OURS) or {})

    def snapshot(self, path: Path) -> Snapshot:
        traces = _each(self.plain.get("device_traces") or [])
        segments = _by_device(self.plain["segments"])
        tensors = _by_device(self.ours.get("tensors", []))
        spans = _by_device(self.plain.get("external_annotations") or [])
        numbers = {*segments, *(number for number, trace in enumerate(traces) if trace)}
        if len(numbers) > _MOST_DEVICES:
            raise ValueError(f"{len(numbers)} devices: expected at most {_MOST_DEVICES}")
        devices = tuple(
            self._device(
                number,
                _each(traces[number]) if 0 <= number < len(traces) else [],
                segments.get(number, []),
                tensors.get(number, []),
                spans.get(number, []),
            )
            for number in sorted(numbers)
        )
        return Snapshot(path, devices)

    def _device(
        self,
        number: int,
        trace: Sequence[Mapping[str, Any]],
        segments: Sequence[Mapping[str, Any]],
        tensors: Sequence[Mapping[str, Any]],
        spans: Sequence[Mapping[str, Any]],
    ) -> DeviceMemory:
        stacks = _Stacks()
        trace = [one for one in trace if one["action"] != "snapshot"]
        events = Table(
            {
                "action": _texts(one["action"] for one in trace),
                "address": _numbers(one.get("addr", one.get("device_free", 0)) for one in trace),
                "size_bytes": _sizes(one["size"] for one in trace),
                "at_ns": _times(one.get("time_us", -1) for one in trace),
                "stack": _numbers(stacks.row(one.get("frames")) for one in trace),
                "free_bytes": _numbers(one.get("device_free", -1) for one in trace),
            }
        )
        blocks = [block for blocks in _blocks(segments) for block in blocks]
        held = Table(
            {
                "address": _numbers(_addresses(segments)),
                "size_bytes": _sizes(block["size"] for block in blocks),
                "requested_bytes": _sizes(one.get("requested_size", one["size"]) for one in blocks),
                "state": _texts(one["state"] for one in blocks),
                "stack": _numbers(stacks.row(_frames_of(one)) for one in blocks),
            }
        )
        own = Table(
            {
                "size_bytes": _sizes(one["total_size"] for one in segments),
                "kind": _texts(one.get("segment_type", "") for one in segments),
            }
        )
        named = Table(
            {
                "address": _numbers(one["address"] for one in tensors),
                "size_bytes": _sizes(one["size"] for one in tensors),
                "kind": _texts(one["kind"] for one in tensors),
                "name": _texts(one["name"] for one in tensors),
            }
        )
        ends = np.sort(_times(_each(self.ours.get("step_ends_us", []), is_flat=True)))
        return DeviceMemory(number, events, held, own, _spans(spans), named, ends, stacks.found)


class _Stacks:
    """The stacks of one device; equal ones have one row, and each frame is read once."""

    def __init__(self) -> None:
        self.found: list[Stack] = []
        self._frames: dict[int, Frame] = {}  # the id of a dict → the frame
        self._rows: dict[int, int] = {}  # the id of a list of frames → its row
        self._alike: dict[Stack, int] = {}

    def row(self, frames: Any) -> int:
        """Return the row of a stack."""
        if not frames:
            return NO_STACK
        known = self._rows.get(id(frames))
        if known is None:
            stack = tuple(map(self._frame, _each(frames, is_flat=True)))
            known = self._alike.setdefault(stack, len(self._alike))
            if known == len(self.found):
                self.found.append(stack)
            self._rows[id(frames)] = known
        return known

    def _frame(self, plain: Any) -> Frame:
        known = self._frames.get(id(plain))
        if known is None:
            known = Frame(_text(plain["filename"]), _number(plain["line"]), _text(plain["name"]))
            self._frames[id(plain)] = known
        return known


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"expected a dict, not {type(value).__name__}")
    return value


def _by_device(values: Any) -> dict[int, list[Mapping[str, Any]]]:
    """Return dicts by the number of the device that each names."""
    found: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for one in _each(values):
        number = _number(_mapping(one)["device"])
        if not -_MOST_NUMBER <= number < _MOST_NUMBER:
            raise ValueError(f"a device number has {number.bit_length()} bits: expected at most 15")
        found[number].append(one)
    return found


def _blocks(segments: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """Return the blocks of each segment; segments share none."""
    return _each([_each(one["blocks"]) for one in segments])


def _each(values: Any, *, is_flat: bool = False) -> list[Any]:
    """Return a list whose parts are each named once: a few bytes can name one part without end.

    ``is_flat``: parts are numbers or frames, which may be the same.
    """
    if not isinstance(values, list):
        raise TypeError(f"expected a list, not {type(values).__name__}")
    if not is_flat and len({*map(id, values)}) < len(values):
        raise ValueError("the same part occurs several times")
    return values


def _addresses(segments: Sequence[Mapping[str, Any]]) -> Iterator[Any]:
    """Yield the address of each block; torch before 2.1 tells those of segments alone."""
    for segment in segments:
        at = segment["address"]
        for block in segment["blocks"]:
            yield block.get("address", at)
            at += _number(block["size"])


def _frames_of(block: Mapping[str, Any]) -> Any:
    """Return the stack of a block; torch before 2.1 has it in its history."""
    history = block.get("history")
    return block.get("frames") or (history[0].get("frames") if history else None)


def _spans(marks: Sequence[Mapping[str, Any]]) -> Table:
    """Return what was named from a start to its end, in the order of the starts."""
    found: list[tuple[str, int, int]] = []
    begun: dict[str, list[int]] = {}
    for mark in marks:
        name, at_ns = _text(mark["name"]), _number(mark["time_us"]) * 1000
        if mark["stage"] == "START":
            begun.setdefault(name, []).append(at_ns)
        elif begun.get(name):
            found.append((name, begun[name].pop(), at_ns))
    found.sort(key=lambda one: one[1])
    return Table(
        {
            "name": _texts([name for name, _, _ in found]),
            "start_ns": _numbers([start for _, start, _ in found]),
            "end_ns": _numbers([end for _, _, end in found]),
        }
    )


def _number(value: Any) -> int:
    if not isinstance(value, int):
        raise TypeError(f"expected an integer, not {type(value).__name__}")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a string, not {type(value).__name__}")
    return value


def _numbers(values: Iterable[Any]) -> npt.NDArray[np.int64]:
    return np.array([_number(value) for value in values], np.int64)


def _sizes(values: Iterable[Any]) -> npt.NDArray[np.int64]:
    """Return sizes in bytes, whose sums are exact in 64 bits."""
    found = [_number(value) for value in values]
    if min(found, default=0) < 0 or sum(found) >= _MOST_SUM_BYTES:
        raise ValueError("sizes are negative, or larger than any memory")
    return np.array(found, np.int64)


def _times(values: Iterable[Any]) -> npt.NDArray[np.int64]:
    return np.array([max(_number(value) * 1000, -1) for value in values], np.int64)


def _texts(values: Iterable[Any]) -> Names:
    return Names.of(np.array([_text(value) for value in values], object))
