"""The rows of a run of events as columns.

What comes of a run is arrays and the few distinct texts in it, so that a run may be read in
another process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from traceprof.formats.kineto.arguments import whole
from traceprof.formats.kineto.batch import METADATA, Details, Kind
from traceprof.formats.kineto.compiled import decode
from traceprof.formats.kineto.json_stream import mend_text
from traceprof.formats.kineto.parse import NO_TIME, Event, parse_batch
from traceprof.values import dataclass

__all__ = ["ColumnMaker", "Columns"]

_Array = npt.NDArray[Any]

_COMPLETE: Final = "X"


class Events(Protocol):
    """Events in their order, and what is told of them."""

    @property
    def start_ns(self) -> npt.NDArray[np.int64]:
        """When each began; `NO_TIME` where that is not told."""

    @property
    def duration_ns(self) -> npt.NDArray[np.int64]:
        """How long each took; `NO_TIME` where that is not told."""

    def codes(self, number: Callable[[Kind], int]) -> npt.NDArray[np.int32]:
        """Return the ``number`` of the kind of each event."""

    @property
    def metadata(self) -> Sequence[Any]:
        """The events of phase M."""

    def details(self, rows: npt.NDArray[np.int64], *, with_shapes: bool) -> Details:
        """Return what else is told of some of the events, which are in order."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Rows of a run of events, in their order, and what else the run says.

    ``kind`` numbers ``kinds``.
    """

    kinds: Sequence[Kind] = ()
    kind: _Array = field(default_factory=lambda: np.empty(0, np.int32))
    start_ns: _Array = field(default_factory=lambda: np.empty(0, np.int64))
    end_ns: _Array = field(default_factory=lambda: np.empty(0, np.int64))
    details: Details = field(default_factory=Details)
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
        events: Events | None = decode(text) or parse_batch(text)
        return None if events is None else self.columns(events)

    def columns(self, events: Events) -> Columns:
        """Return the columns of some events."""
        kinds = _Kinds(self)
        codes = events.codes(kinds.__getitem__)
        processes, threads = _names_in(events.metadata) if kinds.has_metadata else ({}, {})
        candidates = np.flatnonzero(codes >= 0)
        rows = _timed(events, candidates, kinds.is_complete[codes[candidates]])
        left_out = len(candidates) - len(rows)
        if not len(rows):
            return Columns(process_names=processes, thread_names=threads, left_out=left_out)
        kept, codes = _used(kinds.kept, codes[rows]) if left_out else (kinds.kept, codes[rows])
        starts = events.start_ns[rows]
        return Columns(
            kinds=kept,
            kind=codes,
            start_ns=starts,
            end_ns=starts + np.maximum(events.duration_ns[rows], 0),
            details=events.details(rows, with_shapes=self.with_shapes),
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
        self.has_metadata |= kind[0] == METADATA
        if not self._maker.is_row(kind):
            self[kind] = -1
            return -1
        code = self[kind] = len(self.kept)
        self.kept.append(kind)
        return code

    @property
    def is_complete(self) -> npt.NDArray[np.bool_]:
        """Of each kind: whether its events have a length."""
        return np.array([phase == _COMPLETE for phase, _, _ in self.kept], np.bool_)


def _used(kinds: Sequence[Kind], codes: _Array) -> tuple[list[Kind], _Array]:
    """Return the kinds that rows are of, in the order of these, and the number of each row's."""
    used = dict.fromkeys(codes.tolist())
    numbers = np.zeros(len(kinds), np.int32)
    numbers[list(used)] = np.arange(len(used))
    return [kinds[code] for code in used], numbers[codes]


def _timed(
    events: Events, rows: npt.NDArray[np.int64], is_complete: npt.NDArray[np.bool_]
) -> npt.NDArray[np.int64]:
    """Return those of ``rows`` that have a time, and a length unless they are instants."""
    has_start = events.start_ns[rows] != NO_TIME
    timed: npt.NDArray[np.int64] = rows[
        has_start & ((events.duration_ns[rows] >= 0) | ~is_complete)
    ]
    return timed


def _names_in(events: Sequence[Any]) -> tuple[dict[int, str], dict[tuple[int, int], str]]:
    """Return the names of processes and threads that events of phase M tell."""
    processes: dict[int, str] = {}
    threads: dict[tuple[int, int], str] = {}
    for event in events:
        process = whole(event.pid)
        text = mend_text(str(event.arguments.name or ""))
        if event.name == "process_name":
            processes[process] = text
        elif event.name == "thread_name":
            threads[process, whole(event.tid)] = text
    return processes, threads
