"""The rows of a run of events as columns: all that is done once for each event.

What comes of a run is arrays and the few distinct texts in it, so that a run may be read in
another process.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from operator import attrgetter
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traceprof.formats.kineto.arguments import (
    NO_ARGUMENTS,
    NO_SHAPE,
    NUMBER_ARGUMENTS,
    TEXT_ARGUMENTS,
    Arguments,
    whole,
)
from traceprof.formats.kineto.json_stream import mend_text
from traceprof.formats.kineto.parse import NO_TIME, Batch, Event, parse_batch
from traceprof.model.tables import ABSENT
from traceprof.values import dataclass

__all__ = ["ColumnMaker", "Columns", "Kind"]

Kind = tuple[Any, Any, Any]
"""Phase, category and name of an event."""

_Array = npt.NDArray[Any]

_COMPLETE: Final = "X"
_METADATA: Final = "M"
_INT32: Final = np.iinfo(np.int32)
_KIND: Final = attrgetter("ph", "cat", "name")


@dataclass(frozen=True, slots=True)
class Columns:
    """Rows of a run of events, in their order, and what else the run says.

    ``kind`` numbers ``kinds``, ``texts`` has a column of numbers of ``distinct_texts`` for each
    argument that a row has (0 is ""), ``numbers`` one of values; ``shape`` numbers
    ``distinct_shapes``, where they were asked for.
    """

    kinds: Sequence[Kind] = ()
    kind: _Array = field(default_factory=lambda: np.empty(0, np.int32))
    start_ns: _Array = field(default_factory=lambda: np.empty(0, np.int64))
    end_ns: _Array = field(default_factory=lambda: np.empty(0, np.int64))
    process: _Array = field(default_factory=lambda: np.empty(0, np.int64))
    thread: _Array = field(default_factory=lambda: np.empty(0, np.int64))
    numbers: Mapping[str, _Array] = field(default_factory=dict)
    distinct_texts: Sequence[str] = ("",)
    texts: Mapping[str, _Array] = field(default_factory=dict)
    has_shapes: bool = False
    distinct_shapes: Sequence[tuple[int, ...]] = (NO_SHAPE,)
    shape: _Array | None = None
    process_names: Mapping[int, str] = field(default_factory=dict)
    thread_names: Mapping[tuple[int, int], str] = field(default_factory=dict)
    left_out: int = 0

    def __len__(self) -> int:
        return len(self.kind)


@dataclass(frozen=True, slots=True)
class ColumnMaker:
    """Makes columns of the events of some ``phases`` that ``keep`` does not refuse.

    ``keep`` is asked once for each kind.
    """

    keep: Callable[[Event], bool] | None = None
    phases: frozenset[str] = frozenset(_COMPLETE)
    with_shapes: bool = False
    _judged: dict[Kind, bool] = field(default_factory=dict)

    def is_row(self, kind: Kind) -> bool:
        """Return whether events of a kind become rows."""
        known = self._judged.get(kind)
        if known is not None:
            return known
        phase, category, name = kind
        kept = phase in self.phases
        if kept and self.keep is not None:
            kept = self.keep(Event(ph=phase, cat=category, name=name))
        self._judged[kind] = kept
        return kept

    def parse(self, text: bytes) -> Columns | None:
        """Return the columns of the JSON array ``text``; None where it is no array of events."""
        batch = parse_batch(text)
        return None if batch is None else self.columns(batch)

    def columns(self, batch: Batch) -> Columns:
        """Return the columns of some events."""
        events, kinds = batch.events, _Kinds(self)
        codes = np.fromiter(map(kinds.__getitem__, map(_KIND, events)), np.int32, len(events))
        processes, threads = _names_in(events) if kinds.has_metadata else ({}, {})
        candidates = np.flatnonzero(codes >= 0)
        rows = _timed(batch, candidates)
        left_out = len(candidates) - len(rows)
        if not len(rows):
            return Columns(process_names=processes, thread_names=threads, left_out=left_out)
        if len(rows) < len(events):
            events = [events[index] for index in rows.tolist()]
        arguments = [event.args or NO_ARGUMENTS for event in events]
        grids = [each.grid for each in arguments]
        kept, codes = _used(kinds.kept, codes[rows]) if left_out else (kinds.kept, codes[rows])
        starts = batch.start_ns[rows]
        distinct_texts, texts = _texts(arguments)
        distinct_shapes, shape = _shapes(arguments) if self.with_shapes else ((NO_SHAPE,), None)
        return Columns(
            kinds=kept,
            kind=codes,
            start_ns=starts,
            end_ns=starts + np.maximum(batch.duration_ns[rows], 0),
            process=_wholes([event.pid for event in events]),
            thread=_wholes([event.tid for event in events]),
            numbers=_numbers(arguments),
            distinct_texts=distinct_texts,
            texts=texts,
            has_shapes=grids.count(None) < len(grids),
            distinct_shapes=distinct_shapes,
            shape=shape,
            process_names=processes,
            thread_names=threads,
            left_out=left_out,
        )


class _Kinds(dict[Kind, int]):
    """Numbers the kinds that become rows, in the order of a run; all others are -1."""

    def __init__(self, maker: ColumnMaker) -> None:
        super().__init__()
        self.kept: list[Kind] = []
        self.has_metadata = False
        self._maker = maker

    def __missing__(self, kind: Kind) -> int:
        self.has_metadata |= kind[0] == _METADATA
        if not self._maker.is_row(kind):
            self[kind] = -1
            return -1
        code = self[kind] = len(self.kept)
        self.kept.append(kind)
        return code


def _used(kinds: Sequence[Kind], codes: _Array) -> tuple[list[Kind], _Array]:
    """Return the kinds that rows are of, in the order of these, and the number of each row's."""
    used = dict.fromkeys(codes.tolist())
    numbers = np.zeros(len(kinds), np.int32)
    numbers[list(used)] = np.arange(len(used))
    return [kinds[code] for code in used], numbers[codes]


def _timed(batch: Batch, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return those of ``rows`` that have a time, and a length unless they are instants."""
    starts, lengths = batch.start_ns[rows], batch.duration_ns[rows]
    is_timed = (starts != NO_TIME) & (lengths >= 0)
    if is_timed.all():
        return rows
    is_instant = np.array([batch.events[index].ph != _COMPLETE for index in rows.tolist()])
    timed: npt.NDArray[np.int64] = rows[is_timed | ((starts != NO_TIME) & is_instant)]
    return timed


def _names_in(events: Sequence[Event]) -> tuple[dict[int, str], dict[tuple[int, int], str]]:
    """Return the names of processes and threads that are told among the events."""
    processes: dict[int, str] = {}
    threads: dict[tuple[int, int], str] = {}
    for event in events:
        if event.ph != _METADATA:
            continue
        process = whole(event.pid)
        text = mend_text(str(event.arguments.name or ""))
        if event.name == "process_name":
            processes[process] = text
        elif event.name == "thread_name":
            threads[process, whole(event.tid)] = text
    return processes, threads


def _numbers(arguments: Sequence[Arguments]) -> dict[str, _Array]:
    """Return the whole numbers of each argument that one of the events has."""
    numbers = {}
    for name, get in NUMBER_ARGUMENTS.items():
        values = get(arguments)
        if values.count(ABSENT) < len(values):
            numbers[name] = _wholes(values)
    return numbers


def _wholes(values: Sequence[Any]) -> _Array:
    """Return the whole numbers in the values, in 32 bits where these are enough."""
    try:
        wide = np.frombuffer(array("q", values), np.int64)  # refuses what is no whole number
    except (TypeError, OverflowError):
        wide = np.array([whole(value) for value in values], np.int64)
    is_narrow = _INT32.min <= wide.min() and wide.max() <= _INT32.max
    return wide.astype(np.int32) if is_narrow else wide


def _texts(arguments: Sequence[Arguments]) -> tuple[list[str], dict[str, _Array]]:
    """Return the distinct texts, and their numbers for each argument that one of the events has."""
    distinct = {"": 0}
    columns = {}
    for name, get in TEXT_ARGUMENTS.items():
        values = get(arguments)
        if values.count("") < len(values):
            codes = [distinct.setdefault(str(v), len(distinct)) if v else 0 for v in values]
            columns[name] = np.array(codes, np.int32)
    return list(distinct), columns


def _shapes(arguments: Sequence[Arguments]) -> tuple[list[tuple[int, ...]], _Array]:
    """Return the distinct ways in which kernels were launched, and the number of each event's.

    Both are found by what is written, which is the same for most.
    """
    distinct = {NO_SHAPE: 0}
    as_written: dict[Any, int] = {}
    codes = np.zeros(len(arguments), np.int32)
    for row, each in enumerate(arguments):
        if each.grid is None:
            continue
        key = _as_written(each)
        code = as_written.get(key)
        if code is None:
            code = distinct.setdefault(each.shape, len(distinct))
            if key is not None:
                as_written[key] = code
        codes[row] = code
    return list(distinct), codes


def _as_written(each: Arguments) -> tuple[Any, ...] | None:
    """Return what a kernel's shape is made of; None where that is no list of plain values."""
    if not isinstance(each.grid, list) or not isinstance(each.block, list):
        return None
    key = each.context, tuple(each.grid), tuple(each.block), each.registers, each.shared_bytes
    try:
        hash(key)
    except TypeError:
        return None
    return key
