"""The times of some steps of one rank as rows of the event tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from scripts.nsys_export.schema import KERNEL, MEMCPY, MEMSET, NVTX, OPERATORS, RUNTIME, SYNC
from scripts.nsys_export.step import (
    COMM_STREAM,
    COPY_STREAM,
    MAIN_STREAM,
    Kind,
    Label,
    Range,
    Step,
)
from scripts.nsys_export.strings import Strings
from scripts.nsys_export.timeline import Ints, Times

__all__ = ["Columns", "Rank", "rows_of"]

Columns = dict[str, npt.NDArray[np.generic]]

_STREAMS: Final = {Kind.COLLECTIVE: COMM_STREAM, Kind.H2D: COPY_STREAM}
_COPIES: Final = {Kind.H2D: (1, 1, 2), Kind.D2D: (8, 2, 2), Kind.D2H: (2, 2, 0)}
_EDGE_NS: Final = 150
_DEEPEST: Final = 6


@dataclass
class Rank:
    """One process with its device, and what it has counted so far.

    ``shift_ns`` is what its clock shows when the true one shows 0.
    """

    number: int
    device: int
    context: int
    process: int
    shift_ns: int
    correlation: int = 1000
    grid: int = 0
    operator: int = 300_000
    steps: int = 0

    @property
    def global_process(self) -> int:
        """The process id as exports write it: VM 1 in the bits above it."""
        return 1 << 48 | self.process << 24

    @property
    def threads(self) -> tuple[int, int]:
        """The main thread and autograd's."""
        return self.global_process | self.process, self.global_process | self.process + 101


def pass_over(times: Times, random: np.random.Generator) -> None:
    """Draw what `rows_of` would for a rank that another process writes."""
    _steps_of_correlation(times, random)


def _steps_of_correlation(times: Times, random: np.random.Generator) -> npt.NDArray[np.int64]:
    return random.integers(1, 16, times.start.shape[1:])


def rows_of(
    step: Step, strings: Strings, rank: Rank, times: Times, random: np.random.Generator
) -> Mapping[str, Columns]:
    """Return the rows of what ``rank`` did, by table; its counters move on."""
    clocked = (
        whole[rank.number] + rank.shift_ns
        for whole in (times.call_start, times.call_end, times.start, times.end)
    )
    correlation = rank.correlation + np.cumsum(_steps_of_correlation(times, random)).reshape(
        times.start.shape[1:]
    )
    rank.correlation = int(correlation[-1, -1])
    own = _Own(rank, correlation, *clocked)
    tables = {
        KERNEL: _kernels(step, strings, own),
        RUNTIME: _calls(step, strings, own),
        MEMCPY: _copies(step, own),
        MEMSET: _memsets(step, own),
        SYNC: _syncs(step, own),
        NVTX: _ranges(step, strings, own),
        OPERATORS: _operators(step, strings, own),
    }
    rank.steps += len(own.start)
    return tables


@dataclass(frozen=True, eq=False)
class _Own:
    """What is one rank's: its times on its own clock, by step and operation."""

    rank: Rank
    correlation: Ints
    call_start: Ints
    call_end: Ints
    start: Ints
    end: Ints

    def on_device(self, places: Ints, streams: list[int]) -> Columns:
        """Return what all tables of the device have in common."""
        n_rows = len(self.start) * len(places)
        return {
            "start": self.start[:, places].ravel(),
            "end": self.end[:, places].ravel(),
            "deviceId": np.full(n_rows, self.rank.device),
            "contextId": np.full(n_rows, self.rank.context),
            "streamId": self.every(streams),
            "correlationId": self.correlation[:, places].ravel(),
            "globalPid": np.full(n_rows, self.rank.global_process),
        }

    def around(self, ranges: Sequence[Range]) -> tuple[Ints, Ints]:
        """Return start and end of ``ranges`` by step, inner ones a little within outer ones."""
        edges = _EDGE_NS * (_DEEPEST - np.array([one.depth for one in ranges]))
        starts = self.call_start[:, [one.first for one in ranges]] - edges
        return starts, self.call_end[:, [one.last for one in ranges]] + edges

    def every(self, values: object) -> npt.NDArray[np.int64]:
        """Return the values of one step, once for every step."""
        return np.tile(np.asarray(values, np.int64), len(self.start))


def _kernels(step: Step, strings: Strings, own: _Own) -> Columns:
    places = step.places(Kind.KERNEL, Kind.COLLECTIVE)
    launched = [step.operations[place] for place in places]
    kernels = [one.kernel for one in launched if one.kernel is not None]
    columns = own.on_device(places, [_STREAMS.get(one.kind, MAIN_STREAM) for one in launched])
    names = {column: own.every(ids) for column, ids in strings.of_kernels(kernels).items()}
    grids = own.rank.grid + 1 + np.arange(len(columns["start"]))
    own.rank.grid += len(grids)
    return {
        **columns,
        **names,
        "registersPerThread": own.every([kernel.registers for kernel in kernels]),
        "gridX": own.every([kernel.grid[0] for kernel in kernels]),
        "gridY": own.every([kernel.grid[1] for kernel in kernels]),
        "blockX": own.every([kernel.block for kernel in kernels]),
        "staticSharedMemory": own.every([kernel.static_bytes for kernel in kernels]),
        "dynamicSharedMemory": own.every([kernel.dynamic_bytes for kernel in kernels]),
        "gridId": grids,
    }


def _copies(step: Step, own: _Own) -> Columns:
    places = step.places(*_COPIES)
    copied = [step.operations[place] for place in places]
    codes = np.array([_COPIES[one.kind] for one in copied])
    return {
        **own.on_device(places, [_STREAMS.get(one.kind, MAIN_STREAM) for one in copied]),
        "bytes": own.every([one.n_bytes for one in copied]),
        "copyKind": own.every(codes[:, 0]),
        "srcKind": own.every(codes[:, 1]),
        "dstKind": own.every(codes[:, 2]),
    }


def _memsets(step: Step, own: _Own) -> Columns:
    places = step.places(Kind.MEMSET)
    n_bytes = [step.operations[place].n_bytes for place in places]
    return {**own.on_device(places, [MAIN_STREAM] * len(places)), "bytes": own.every(n_bytes)}


def _syncs(step: Step, own: _Own) -> Columns:
    places = step.places(Kind.WAIT, Kind.SYNC)
    is_wait = step.kinds[places] == Kind.WAIT
    columns = own.on_device(places, [COMM_STREAM if wait else MAIN_STREAM for wait in is_wait])
    n_rows = len(columns["start"])
    first = own.rank.steps * len(places)
    columns |= {
        "start": own.call_start[:, places].ravel() + 300,
        "end": own.call_end[:, places].ravel() - 300,
        "syncType": own.every(np.where(is_wait, 2, 3)),
        "eventId": np.where(own.every(is_wait), first + np.arange(n_rows), 4294967295),
        "eventSyncId": first + np.arange(n_rows),
    }
    return columns


def _calls(step: Step, strings: Strings, own: _Own) -> Columns:
    threads = np.array(own.rank.threads)[[one.thread for one in step.operations]]
    return {
        "start": own.call_start.ravel(),
        "end": own.call_end.ravel(),
        "globalTid": own.every(threads),
        "correlationId": own.correlation.ravel(),
        "nameId": own.every(strings.of_api(step)),
    }


def _ranges(step: Step, strings: Strings, own: _Own) -> Columns:
    """Return the NVTX rows; a range begins a little before its first call, inner ones later."""
    ranges, n_steps = step.ranges, len(own.start)
    starts, ends = own.around(ranges)
    texts = np.array([[one.name for one in ranges]] * n_steps, object)
    is_numbered = [one.label is Label.NUMBERED for one in ranges]
    texts[:, is_numbered] = _numbered(texts[:, is_numbered], own.rank)
    is_step = [one.label is Label.STEP for one in ranges]
    texts[:, is_step] = [[f"step {own.rank.steps + i}"] for i in range(n_steps)]
    texts[:, [one.label is Label.REGISTERED for one in ranges]] = None
    threads = np.array(own.rank.threads)[[one.thread for one in ranges]]
    return {
        "start": starts.ravel(),
        "end": ends.ravel(),
        "eventType": np.full(texts.size, 59),
        "text": texts.ravel(),
        "globalTid": own.every(threads),
        "textId": np.array([_text_id(strings, one) for one in ranges] * n_steps, object),
        "domainId": own.every([one.domain for one in ranges]),
    }


def _operators(step: Step, strings: Strings, own: _Own) -> Columns:
    """Return the operators of PyTorch, which stand where their ranges are."""
    ranges = [one for one in step.ranges if one.label is Label.NUMBERED]
    starts, ends = own.around(ranges)
    threads = np.array(own.rank.threads)[[one.thread for one in ranges]]
    return {
        "start": starts.ravel(),
        "end": ends.ravel(),
        "globalTid": own.every(threads),
        "nameId": own.every([strings.of_range(one.name) for one in ranges]),
        "source": np.full(starts.size, "cpu_op", object),
    }


def _numbered(names: npt.NDArray[np.object_], rank: Rank) -> npt.NDArray[np.object_]:
    first = rank.operator
    rank.operator += names.size
    texts = [f"{name}, op_id = {first + i}" for i, name in enumerate(names.flat)]
    return np.array(texts, object).reshape(names.shape)


def _text_id(strings: Strings, one: Range) -> int | None:
    return strings.of_range(one.name) if one.label is Label.REGISTERED else None
