"""Reads the snapshots of PyTorch's allocator: pickles, which nobody needs to trust.

``torch.cuda.memory._dump_snapshot`` writes plain dicts, lists, texts and numbers (torch 2.0 and
later; c10/cuda/CUDACachingAllocator.h, torch/csrc/cuda/memory_snapshot.cpp). What a pickle would
call or import is refused, and what it may allocate is bounded by its size.
"""

from __future__ import annotations

import gzip
import io
import pickle
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
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
_PER_BYTE, _AT_LEAST_BYTES = 48, 1 << 30
"""An empty list takes one byte of a pickle and 56 of memory, a reference two and eight."""

_NOT_ONE: Final = "no memory snapshot of PyTorch"
_WANTED: Final = "expected what torch.cuda.memory._dump_snapshot or record --memory writes"


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
    """A snapshot: its devices, and how the allocator was set."""

    path: Path
    devices: tuple[DeviceMemory, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)


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
            raise UsageError(f"{other} is no memory snapshot: name snapshots or traces, not both")
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
    """Return the snapshot in a file.

    Raises:
        TraceError: it cannot be read, or is no such snapshot; the message says what is wrong.
    """
    try:
        data = _bytes_of(path)
        with _bounded(len(data)):
            plain = _Plain(io.BytesIO(data)).load()
    except TraceError:
        raise
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from error
    except MemoryError as error:
        raise TraceError(f"{path}: it asks for more memory than a file of its size may") from error
    except Exception as error:  # a damaged pickle raises whatever its opcodes run into
        raise TraceError(f"{path}: {_NOT_ONE} ({_WANTED}): {error}") from error
    if not isinstance(plain, dict) or not isinstance(plain.get("segments"), list):
        raise TraceError(f"{path}: {_NOT_ONE}: {_WANTED}")
    try:
        return _Reader(plain).snapshot(path)
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        raise TraceError(f"{path}: a damaged memory snapshot of PyTorch: {error!r}") from error


def _bytes_of(path: Path) -> bytes:
    if not path.is_file():
        raise TraceError(f"{path}: no such file")
    with path.open("rb") as file:
        is_zipped = file.read(2) == b"\x1f\x8b"
    try:
        with gzip.open(path) if is_zipped else path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except (EOFError, zlib.error) as error:
        raise TraceError(f"{path}: its compression is damaged: {error}") from error
    if len(data) > _MOST_BYTES:
        raise TraceError(f"{path}: a snapshot of more than {_MOST_BYTES >> 30} GiB")
    return data


if sys.platform == "linux":
    _Base: type[pickle.Unpickler] = pickle.Unpickler
else:
    # In C, one opcode makes a table of as many entries as it likes: nothing bounds that here.
    _Base = pickle._Unpickler  # type: ignore[attr-defined]


class _Plain(_Base):  # type: ignore[misc, valid-type]
    """Reads plain values: nothing is imported, nothing is called."""

    def find_class(self, module: str, name: str) -> Any:
        raise TraceError(f"{_NOT_ONE}: it would import {module}.{name}, which no snapshot does")

    def persistent_load(self, _id: Any) -> Any:
        raise TraceError(f"{_NOT_ONE}: it refers to what is elsewhere")


@contextmanager
def _bounded(n_bytes: int) -> Iterator[None]:
    """Bound the memory that this process may take meanwhile, where the system can."""
    if sys.platform != "linux":
        yield
        return
    import resource  # noqa: PLC0415 - Unix alone has it

    pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    bound = pages * resource.getpagesize() + _AT_LEAST_BYTES + _PER_BYTE * n_bytes
    known = [limit for limit in before if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(bound, *known) if known else bound, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


class _Reader:
    """Turns plain values into tables; what is said twice of one list is read once."""

    def __init__(self, plain: Mapping[str, Any]) -> None:
        self.plain = plain
        self.stacks: list[Stack] = []
        self._rows: dict[int, int] = {}  # the id of a list of frames → its row
        self._alike: dict[Stack, int] = {}

    def snapshot(self, path: Path) -> Snapshot:
        segments = _each(self.plain["segments"])
        traces = _each(self.plain.get("device_traces") or [])
        numbers = {int(one["device"]) for one in segments}
        numbers |= {number for number, trace in enumerate(traces) if trace}
        ours = self.plain.get(_OURS) or {}
        devices = tuple(
            self._device(
                number,
                traces[number] if number < len(traces) else [],
                [one for one in segments if int(one["device"]) == number],
                [one for one in ours.get("tensors", ()) if int(one["device"]) == number],
            )
            for number in sorted(numbers)
        )
        return Snapshot(path, devices, self.plain.get("allocator_settings") or {})

    def _device(
        self,
        number: int,
        trace: Sequence[Mapping[str, Any]],
        segments: Sequence[Mapping[str, Any]],
        tensors: Sequence[Mapping[str, Any]],
    ) -> DeviceMemory:
        trace = [one for one in trace if one["action"] != "snapshot"]
        events = Table(
            {
                "action": _texts([str(one["action"]) for one in trace]),
                "address": _numbers([one.get("addr", one.get("device_free", 0)) for one in trace]),
                "size_bytes": _numbers([one["size"] for one in trace]),
                "at_ns": _times([one.get("time_us", -1) for one in trace]),
                "stack": _numbers([self._stack(one.get("frames")) for one in trace]),
                "free_bytes": _numbers([one.get("device_free", -1) for one in trace]),
            }
        )
        blocks = [block for one in segments for block in _each(one["blocks"])]
        sizes = [block["size"] for block in blocks]
        held = Table(
            {
                "address": _numbers(_addresses(segments)),
                "size_bytes": _numbers(sizes),
                "requested_bytes": _numbers(
                    [one.get("requested_size", one["size"]) for one in blocks]
                ),
                "state": _texts([str(one["state"]) for one in blocks]),
                "stack": _numbers([self._stack(_frames_of(one)) for one in blocks]),
            }
        )
        own = Table(
            {
                "size_bytes": _numbers([one["total_size"] for one in segments]),
                "kind": _texts([str(one.get("segment_type", "")) for one in segments]),
            }
        )
        named = Table(
            {
                "address": _numbers([one["address"] for one in tensors]),
                "size_bytes": _numbers([one["size"] for one in tensors]),
                "kind": _texts([str(one["kind"]) for one in tensors]),
                "name": _texts([str(one["name"]) for one in tensors]),
            }
        )
        spans = _spans(
            [one for one in self.plain.get("external_annotations") or () if one["device"] == number]
        )
        ends = _times((self.plain.get(_OURS) or {}).get("step_ends_us", ()))
        return DeviceMemory(number, events, held, own, spans, named, ends, self.stacks)

    def _stack(self, frames: Any) -> int:
        """Return the row of a stack; equal ones have one."""
        if not frames:
            return NO_STACK
        known = self._rows.get(id(frames))
        if known is None:
            stack = tuple(
                Frame(str(one["filename"]), int(one["line"]), str(one["name"])) for one in frames
            )
            known = self._alike.setdefault(stack, len(self._alike))
            if known == len(self.stacks):
                self.stacks.append(stack)
            self._rows[id(frames)] = known
        return known


def _each(values: Any) -> list[Any]:
    """Return a list whose lists are all its own: one that is said many times would have no end."""
    if not isinstance(values, list):
        raise TypeError(f"expected a list, not {type(values).__name__}")
    if len({*map(id, values)}) < len(values):
        raise ValueError("one part is named several times")
    return values


def _addresses(segments: Sequence[Mapping[str, Any]]) -> Iterator[int]:
    """Yield the address of each block; torch before 2.1 tells those of segments alone."""
    for segment in segments:
        at = segment["address"]
        for block in segment["blocks"]:
            yield block.get("address", at)
            at += block["size"]


def _frames_of(block: Mapping[str, Any]) -> Any:
    """Return the stack of a block; torch before 2.1 has it in its history."""
    history = block.get("history")
    return block.get("frames") or (history[0].get("frames") if history else None)


def _spans(marks: Sequence[Mapping[str, Any]]) -> Table:
    """Return what was named from a start to its end, in the order of the starts."""
    found: list[tuple[str, int, int]] = []
    begun: dict[str, list[int]] = {}
    for mark in marks:
        name, at_ns = str(mark["name"]), int(mark["time_us"]) * 1000
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


def _numbers(values: Any) -> Any:
    return np.array([int(value) for value in values], np.int64)


def _times(values: Sequence[int]) -> Any:
    found = _numbers(values)
    return np.where(found < 0, -1, found * 1000)


def _texts(values: Sequence[str]) -> Names:
    return Names.of(np.array(values, object))
