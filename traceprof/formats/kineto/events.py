"""The events of a Kineto (torch.profiler) Chrome trace as columns, with exact integer ns.

Kineto writes microseconds with three decimals, counted from ``baseTimeNanoseconds`` (since
1970) where the file has it and from 1970 where it has not. Event times here are always ns
since the base, which `KinetoEvents.base_time_ns` gives.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.errors import TraceError
from traceprof.formats.compiled import library
from traceprof.formats.kineto.compiled import decode
from traceprof.formats.kineto.json_stream import (
    ByteSource,
    JsonArrayStream,
    TooDeepError,
    mend_text,
)
from traceprof.formats.kineto.parse import (
    METADATA,
    NO_SHAPE,
    NO_TIME,
    NUMBER_ARGUMENTS,
    TEXT_ARGUMENTS,
    Details,
    Kind,
    KinetoEvent,
    batch_of_items,
    parse_batch,
    whole,
)
from traceprof.formats.kineto.parsers import Parsers, n_parsers
from traceprof.formats.shared.files import GZIP_MAGIC, GzipSource
from traceprof.model.tables import ABSENT

_Array = npt.NDArray[Any]

_COMPLETE: Final = "X"


class ParsedEvents(Protocol):
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

    keep: Callable[[KinetoEvent], bool] | None = None
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
            kept = self.keep(KinetoEvent(ph=phase, cat=category, name=name))
        self._judged[kind] = kept
        return kept

    def parse(self, text: bytes) -> Columns | None:
        """Return the columns of the JSON array ``text``; None where it is no array of events."""
        events: ParsedEvents | None = decode(text) or parse_batch(text)
        return None if events is None else self.columns(events)

    def columns(self, events: ParsedEvents) -> Columns:
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
    events: ParsedEvents, rows: npt.NDArray[np.int64], is_complete: npt.NDArray[np.bool_]
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


@dataclass(frozen=True, slots=True)
class KinetoEvents:
    """The complete ("X") events of one file, and its instants ("i"), a row each, in file order.

    ``start_ns`` and ``end_ns`` count from ``base_time_ns`` (0 where the file has no base: then
    they count from 1970, or from boot in files of 2023). ``process`` and ``thread`` are `ABSENT`
    where the file has a text there (such as "Spans"). ``arguments`` holds one array for each of
    `NUMBER_ARGUMENTS` (`ABSENT` where the event has none) and one categorical for each of
    `TEXT_ARGUMENTS` ("" where it has none). ``header`` holds the other top-level values of the
    document. ``is_complete`` is False when the document was cut off, ``has_array`` when it has
    no events to begin with, and ``is_damaged`` says that what follows can not be read.
    ``left_out`` counts the events at no time that can be. ``shapes`` has a row of `SHAPE` for
    each event, where they were asked for, and ``has_shapes`` says whether an event has one.
    """

    base_time_ns: int
    start_ns: npt.NDArray[np.int64]
    end_ns: npt.NDArray[np.int64]
    process: npt.NDArray[np.int64]
    thread: npt.NDArray[np.int64]
    category: pd.Categorical
    name: pd.Categorical
    arguments: Mapping[str, Any]
    process_names: Mapping[int, str]
    thread_names: Mapping[tuple[int, int], str]
    header: Mapping[str, Any]
    is_complete: bool
    has_array: bool = True
    is_damaged: bool = False
    left_out: int = 0
    shapes: npt.NDArray[np.int64] | None = None
    has_shapes: bool = False

    def __len__(self) -> int:
        return len(self.start_ns)


def read_kineto_events(
    path: Path,
    keep: Callable[[KinetoEvent], bool] | None = None,
    phases: Sequence[str] = ("X",),
    *,
    with_shapes: bool = False,
) -> KinetoEvents:
    """Return the events of the Chrome trace at ``path`` (plain or gzip), in bounded memory.

    ``keep`` may refuse events by their phase, category and name (all that it is given, once for
    each kind): those for which it returns False are left out. ``phases`` are the kinds of events
    that become rows. ``with_shapes``: also how kernels were launched.

    Raises:
        TraceError: its values nest deeper than can be read.
    """
    maker = ColumnMaker(keep, frozenset(phases), with_shapes)
    joined = _Joined(with_shapes)
    with path.open("rb") as raw:
        packed = raw.read(2) == GZIP_MAGIC
        raw.seek(0)
        unpacked = GzipSource(raw)
        source: ByteSource = unpacked if packed else raw
        stream = JsonArrayStream(source, "traceEvents", _RUN_BYTES)
        n_bytes = os.fstat(raw.fileno()).st_size * (_UNPACKED if packed else 1)
        n_processes = 0 if library.is_there() else n_parsers(n_bytes)
        try:
            with Parsers(maker.parse, n_processes) as parsers:
                ahead = parsers if n_processes else None
                found = stream.batches(maker.parse, ahead)
                for run in _runs(found, maker):
                    joined.add(run)
        except TooDeepError:
            raise TraceError(f"{path}: JSON that nests too deeply to be a trace") from None
    return joined.finish(stream, is_damaged=stream.is_damaged or unpacked.is_damaged)


def _runs(found: Iterable[Columns | list[Any]], maker: ColumnMaker) -> Iterator[Columns]:
    """Yield the columns of runs, and of items that were read by themselves, many at a time."""
    items: list[Any] = []
    for run in found:
        if isinstance(run, list):
            items += run
        if items and (isinstance(run, Columns) or len(items) >= _ITEMS):
            yield maker.columns(batch_of_items(items))
            items = []
        if isinstance(run, Columns):
            yield run
    if items:
        yield maker.columns(batch_of_items(items))


_ITEMS: Final = 1000
_RUN_BYTES: Final = 1 << 21
_NO_TEXT: Final = np.int32(0)
_UNPACKED: Final = 10
"""So many times as large is a Kineto file that gzip packed."""
_Distinct = TypeVar("_Distinct")
_Parts = list[npt.NDArray[Any]]
_PLACE: Final = ("start_ns", "end_ns", "process", "thread")


class _Codes(dict[_Distinct, int]):
    """Numbers what is distinct in the order in which it appears."""

    def __missing__(self, value: _Distinct) -> int:
        code = self[value] = len(self)
        return code

    def of(self, values: Sequence[_Distinct]) -> npt.NDArray[np.int32]:
        """Return the number of each value."""
        return np.array([self[value] for value in values], np.int32)


@dataclass(slots=True)
class _Joined:
    """The columns of all runs, one after another; what is distinct is numbered once for all."""

    with_shapes: bool
    kinds: _Codes[Kind] = field(default_factory=lambda: _Codes({}))
    texts: _Codes[str] = field(default_factory=lambda: _Codes({"": 0}))
    shapes: _Codes[tuple[int, ...]] = field(default_factory=lambda: _Codes({NO_SHAPE: 0}))
    has_shapes: bool = False
    place: dict[str, _Parts] = field(default_factory=lambda: {name: [] for name in _PLACE})
    kind: _Parts = field(default_factory=list)
    shape: _Parts = field(default_factory=list)
    numbers: dict[str, _Parts] = field(
        default_factory=lambda: {name: [] for name in NUMBER_ARGUMENTS}
    )
    text: dict[str, _Parts] = field(default_factory=lambda: {name: [] for name in TEXT_ARGUMENTS})
    process_names: dict[int, str] = field(default_factory=dict)
    thread_names: dict[tuple[int, int], str] = field(default_factory=dict)
    left_out: int = 0

    def add(self, run: Columns) -> None:
        """Add the rows of the next run."""
        self.process_names |= run.process_names
        self.thread_names |= run.thread_names
        self.left_out += run.left_out
        if not len(run):
            return
        details = run.details
        self.has_shapes |= details.has_shapes
        place = run.start_ns, run.end_ns, details.process, details.thread
        for name, column in zip(_PLACE, place, strict=True):
            self.place[name].append(column)
        self.kind.append(self.kinds.of(run.kinds)[run.kind])
        if details.shape is not None:
            self.shape.append(self.shapes.of(details.distinct_shapes)[details.shape])
        absent = np.broadcast_to(np.int64(ABSENT), len(run))
        for name, parts in self.numbers.items():
            parts.append(details.numbers.get(name, absent))
        text_codes = self.texts.of(details.distinct_texts)
        no_text = np.broadcast_to(_NO_TEXT, len(run))
        for name, parts in self.text.items():
            codes = details.texts.get(name)
            parts.append(no_text if codes is None else text_codes[codes])

    def finish(self, stream: JsonArrayStream, *, is_damaged: bool) -> KinetoEvents:
        category, name_of_each = _categories_and_names(
            self.kinds, _concatenated(self.kind, np.int32)
        )
        place = {name: _concatenated(parts) for name, parts in self.place.items()}
        numbers = {name: _concatenated(parts) for name, parts in self.numbers.items()}
        texts = {
            name: _categorical(self.texts, _concatenated(parts, np.int32))
            for name, parts in self.text.items()
        }
        return KinetoEvents(
            base_time_ns=max(0, whole(stream.header.get("baseTimeNanoseconds", 0))),
            **place,
            category=category,
            name=name_of_each,
            arguments={**numbers, **texts},
            process_names=self.process_names,
            thread_names=self.thread_names,
            header=stream.header,
            is_complete=stream.is_complete,
            has_array=stream.has_array,
            is_damaged=is_damaged,
            left_out=self.left_out,
            shapes=self._shapes() if self.with_shapes else None,
            has_shapes=self.has_shapes,
        )

    def _shapes(self) -> npt.NDArray[np.int64]:
        codes = _concatenated(self.shape, np.int32)
        rows: npt.NDArray[np.int64] = np.array(list(self.shapes), np.int64)[codes]
        return rows


def _categorical(distinct: Iterable[str], codes: npt.NDArray[Any]) -> pd.Categorical:
    """Return the texts whose numbers the ``codes`` are."""
    texts = [mend_text(text) for text in distinct]
    mended = list(dict.fromkeys(texts))
    if len(mended) < len(texts):
        place = {text: code for code, text in enumerate(mended)}
        codes = np.array([place[text] for text in texts], np.int32)[codes]
    return pd.Categorical.from_codes(codes, pd.Index(mended, dtype=object))


def _categories_and_names(
    kinds: Iterable[Kind], codes: npt.NDArray[Any]
) -> tuple[pd.Categorical, pd.Categorical]:
    """Return the categories and the names of the events whose numbers of kinds are ``codes``."""
    categories, names = _Codes[str](), _Codes[str]()
    of_kinds = np.array(
        [(categories[category or ""], names[str(name)]) for _, category, name in kinds], np.int32
    ).reshape(-1, 2)
    category_codes, name_codes = (of_kinds[:, place][codes] for place in (0, 1))
    return _categorical(categories, category_codes), _categorical(names, name_codes)


def _concatenated(parts: _Parts, dtype: type[np.generic] = np.int64) -> npt.NDArray[Any]:
    """Return the parts one after another, which are taken; of one value for all no copy."""
    if not parts:
        return np.empty(0, dtype)
    firsts = {int(part[0]) for part in parts}
    if len(firsts) == 1 and all(part.strides == (0,) for part in parts):
        return np.broadcast_to(dtype(firsts.pop()), sum(map(len, parts)))
    column: npt.NDArray[Any] = np.concatenate(parts, dtype=dtype)
    parts.clear()
    return column
