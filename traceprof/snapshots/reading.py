"""Read the snapshots of PyTorch's allocator, which are untrusted pickles.

``torch.cuda.memory._dump_snapshot`` writes plain dicts, lists, texts, and numbers (torch 2.0 and
later; c10/cuda/CUDACachingAllocator.h, torch/csrc/cuda/memory_snapshot.cpp). A pickle that calls or
imports anything is rejected. A few bytes of a pickle can nest one list in itself many times.
Therefore the types of values are checked before anything formats, hashes, or copies them, and a
list that occurs several times is rejected. The caller limits time and memory (`measured.memory`).
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

_OUR_KEY: Final = "traceprof"
"""Key of the data that `traceprof record --memory` adds: named tensors and ends of steps."""

_MAX_BYTES: Final = 4 << 30
_MAX_RATIO, _SMALL_BYTES = 64, 64 << 20
"""gzip compresses snapshots by a factor of 8 to 20, and zeros by a factor of 1000."""
_CHUNK_BYTES: Final = 1 << 20
_MAX_DEVICES: Final = 1024
_MAX_DEVICE_NUMBER: Final = 1 << 15
"""Limit of a device number."""
_MAX_SUM_BYTES: Final = 1 << 61
_MAX_NAME_CHARS: Final = 200
"""Maximum length of a name in an error."""

_NOT_A_SNAPSHOT: Final = "not a PyTorch memory snapshot"
_WANTED: Final = "expected a file from torch.cuda.memory._dump_snapshot or record --memory"


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a stack."""

    file: str
    line: int
    name: str


Stack = tuple[Frame, ...]
"""Frames, innermost first."""


@dataclass(frozen=True, slots=True, eq=False)
class DeviceMemory:
    """The allocator of one device.

    Attributes:
        device: the number of the device.
        events: in order: action, address, size_bytes (as requested), at_ns (since 1970; −1 if torch
            recorded no time), stack (a row of ``stacks``), free_bytes (free GPU memory when memory
            ran out, otherwise −1).
        blocks: contents of segments at the time of the snapshot: address, size_bytes,
            requested_bytes, state, stack.
        segments: size_bytes, kind ("large", "small").
        spans: named parts of the program: name, start_ns, end_ns.
        tensors: address, size_bytes, kind, name, as our own hooks saw them at the end.
        step_ends_ns: ends of the steps that our own hooks saw (since 1970).
        stacks: the distinct stacks.
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
    """A snapshot with its devices."""

    path: Path
    devices: tuple[DeviceMemory, ...]


def is_snapshot(path: Path) -> bool:
    """Return whether a file begins like a pickle, gzipped or not.

    It may be another kind of pickle.
    """
    try:
        with path.open("rb") as file:
            head = file.read(1 << 12)
        if head[:2] == b"\x1f\x8b":
            head = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(head, 2)
    except (OSError, ValueError, zlib.error):
        return False
    return len(head) > 1 and head[0] == 0x80 and 2 <= head[1] <= 5


def snapshots_of(paths: Sequence[Path]) -> list[Path]:
    """Return the snapshots among ``paths``, or those that recordings left beside the given traces.

    Raises:
        UsageError: ``paths`` contains both snapshots and traces.
    """
    snapshots = [path for path in paths if is_snapshot(path)]
    if snapshots:
        if len(snapshots) < len(paths):
            trace = next(path for path in paths if path not in snapshots)
            raise UsageError(
                f"{trace} is not a memory snapshot: specify only snapshots, or only traces"
            )
        return snapshots
    return [file for path in paths for file in _files_beside(path) if is_snapshot(file)]


def _files_beside(path: Path) -> list[Path]:
    folder, name = (path, "") if path.is_dir() else (path.parent, f"{path.stem}.")
    if not folder.is_dir():
        return []
    return sorted(
        file
        for file in folder.iterdir()
        if file.name.startswith(name) and file.name.endswith(BESIDE)
    )


def read_snapshot(path: Path) -> Snapshot:
    """Return the snapshot in a file; call this only with limits on time and memory.

    Raises:
        TraceError: the file cannot be read or is not a snapshot; the message contains the reason.
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
    except Exception as error:  # a damaged pickle can raise any exception
        raise TraceError(f"{path}: {_NOT_A_SNAPSHOT} ({_WANTED}): {error}") from error
    if not isinstance(plain, dict) or not isinstance(plain.get("segments"), list):
        raise TraceError(f"{path}: {_NOT_A_SNAPSHOT}: {_WANTED}")
    try:
        return _Reader(plain).snapshot(path)
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        raise TraceError(f"{path}: this PyTorch memory snapshot is damaged: {error!r}") from error


def unpacked_bytes(path: Path) -> int:
    """Return the size of the pickle in a file, gzipped or not, in bytes, with constant memory.

    Raises:
        TraceError: the file cannot be read, or is too large for its compressed size.
    """
    if not path.is_file():
        raise TraceError(f"{path}: no such file")
    n_bytes = 0
    try:
        packed_bytes = path.stat().st_size
        most_bytes = min(_MAX_BYTES, max(_SMALL_BYTES, _MAX_RATIO * packed_bytes))
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
    # In C, one opcode can allocate a table of any size; only Linux limits the memory here.
    _Base = pickle._Unpickler  # type: ignore[attr-defined]


class _Plain(_Base):  # type: ignore[misc, valid-type]
    """Unpickle plain values only: nothing is imported or called."""

    def find_class(self, module: str, name: str) -> Any:
        what = f"{module}.{name}"[:_MAX_NAME_CHARS]
        raise TraceError(f"{_NOT_A_SNAPSHOT}: the pickle imports {what}, which no snapshot does")

    def persistent_load(self, _id: Any) -> Any:
        raise TraceError(f"{_NOT_A_SNAPSHOT}: the pickle refers to objects outside the file")


class _Reader:
    """Convert plain values into tables; a list that occurs twice is read once."""

    def __init__(self, plain: Mapping[str, Any]) -> None:
        self.plain = plain
        self.ours = _checked_dict(plain.get(_OUR_KEY) or {})

    def snapshot(self, path: Path) -> Snapshot:
        traces = _checked_list(self.plain.get("device_traces") or [])
        segments = _by_device(self.plain["segments"])
        tensors = _by_device(self.ours.get("tensors", []))
        spans = _by_device(self.plain.get("external_annotations") or [])
        numbers = {*segments, *(number for number, trace in enumerate(traces) if trace)}
        if len(numbers) > _MAX_DEVICES:
            raise ValueError(f"{len(numbers)} devices: expected at most {_MAX_DEVICES}")
        devices = tuple(
            self._device(
                number,
                _checked_list(traces[number]) if 0 <= number < len(traces) else [],
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
        trace = [event for event in trace if event["action"] != "snapshot"]
        events = Table(
            {
                "action": _texts(event["action"] for event in trace),
                "address": _numbers(
                    event.get("addr", event.get("device_free", 0)) for event in trace
                ),
                "size_bytes": _sizes(event["size"] for event in trace),
                "at_ns": _times(event.get("time_us", -1) for event in trace),
                "stack": _numbers(stacks.row(event.get("frames")) for event in trace),
                "free_bytes": _numbers(event.get("device_free", -1) for event in trace),
            }
        )
        blocks = [block for blocks in _blocks(segments) for block in blocks]
        block_table = Table(
            {
                "address": _numbers(_addresses(segments)),
                "size_bytes": _sizes(block["size"] for block in blocks),
                "requested_bytes": _sizes(
                    block.get("requested_size", block["size"]) for block in blocks
                ),
                "state": _texts(block["state"] for block in blocks),
                "stack": _numbers(stacks.row(_frames_of(block)) for block in blocks),
            }
        )
        segment_table = Table(
            {
                "size_bytes": _sizes(segment["total_size"] for segment in segments),
                "kind": _texts(segment.get("segment_type", "") for segment in segments),
            }
        )
        tensor_table = Table(
            {
                "address": _numbers(tensor["address"] for tensor in tensors),
                "size_bytes": _sizes(tensor["size"] for tensor in tensors),
                "kind": _texts(tensor["kind"] for tensor in tensors),
                "name": _texts(tensor["name"] for tensor in tensors),
            }
        )
        ends = np.sort(_times(_checked_list(self.ours.get("step_ends_us", []), is_flat=True)))
        return DeviceMemory(
            number,
            events,
            block_table,
            segment_table,
            _spans(spans),
            tensor_table,
            ends,
            stacks.found,
        )


class _Stacks:
    """The distinct stacks of a device; equal stacks share a row, and each frame is read once."""

    def __init__(self) -> None:
        self.found: list[Stack] = []
        self._frames: dict[int, Frame] = {}  # the id of a dict → the frame
        self._row_of_id: dict[int, int] = {}  # the id of a list of frames → its row
        self._row_of_stack: dict[Stack, int] = {}

    def row(self, frames: Any) -> int:
        """Return the row of a stack."""
        if not frames:
            return NO_STACK
        known = self._row_of_id.get(id(frames))
        if known is None:
            stack = tuple(map(self._frame, _checked_list(frames, is_flat=True)))
            known = self._row_of_stack.setdefault(stack, len(self._row_of_stack))
            if known == len(self.found):
                self.found.append(stack)
            self._row_of_id[id(frames)] = known
        return known

    def _frame(self, plain: Any) -> Frame:
        known = self._frames.get(id(plain))
        if known is None:
            known = Frame(_text(plain["filename"]), _number(plain["line"]), _text(plain["name"]))
            self._frames[id(plain)] = known
        return known


def _checked_dict(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"expected a dict, not {type(value).__name__}")
    return value


def _by_device(values: Any) -> dict[int, list[Mapping[str, Any]]]:
    """Return dicts grouped by their device number."""
    found: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for entry in _checked_list(values):
        number = _number(_checked_dict(entry)["device"])
        if not -_MAX_DEVICE_NUMBER <= number < _MAX_DEVICE_NUMBER:
            raise ValueError(f"a device number has {number.bit_length()} bits: expected at most 15")
        found[number].append(entry)
    return found


def _blocks(segments: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """Return the blocks of each segment; segments share no blocks."""
    return _checked_list([_checked_list(segment["blocks"]) for segment in segments])


def _checked_list(values: Any, *, is_flat: bool = False) -> list[Any]:
    """Return a list after a check that no part occurs twice.

    A few bytes of a pickle can repeat one part without end. ``is_flat`` skips the check: parts are
    numbers or frames, which may be equal.

    Raises:
        TypeError: the value is not a list.
        ValueError: a part occurs twice.
    """
    if not isinstance(values, list):
        raise TypeError(f"expected a list, not {type(values).__name__}")
    if not is_flat and len({*map(id, values)}) < len(values):
        raise ValueError("the same part occurs several times")
    return values


def _addresses(segments: Sequence[Mapping[str, Any]]) -> Iterator[Any]:
    """Yield the address of each block; torch before 2.1 records only the addresses of segments."""
    for segment in segments:
        at = segment["address"]
        for block in segment["blocks"]:
            yield block.get("address", at)
            at += _number(block["size"])


def _frames_of(block: Mapping[str, Any]) -> Any:
    """Return the stack of a block; torch before 2.1 stores it in the history of the block."""
    history = block.get("history")
    return block.get("frames") or (history[0].get("frames") if history else None)


def _spans(marks: Sequence[Mapping[str, Any]]) -> Table:
    """Return the named spans, ordered by start."""
    found: list[tuple[str, int, int]] = []
    begun: dict[str, list[int]] = {}
    for mark in marks:
        name, at_ns = _text(mark["name"]), _number(mark["time_us"]) * 1000
        if mark["stage"] == "START":
            begun.setdefault(name, []).append(at_ns)
        elif begun.get(name):
            found.append((name, begun[name].pop(), at_ns))
    found.sort(key=lambda span: span[1])
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
    """Return sizes in bytes, whose sums are exact in 64 bits.

    Raises:
        ValueError: a size is negative, or the sum is too large.
    """
    found = [_number(value) for value in values]
    if min(found, default=0) < 0 or sum(found) >= _MAX_SUM_BYTES:
        raise ValueError("sizes are negative, or larger than any memory")
    return np.array(found, np.int64)


def _times(values: Iterable[Any]) -> npt.NDArray[np.int64]:
    return np.array([max(_number(value) * 1000, -1) for value in values], np.int64)


def _texts(values: Iterable[Any]) -> Names:
    return Names.of(np.array([_text(value) for value in values], object))
