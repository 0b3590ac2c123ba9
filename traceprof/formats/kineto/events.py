"""The events of a Kineto (torch.profiler) Chrome trace as columns, with exact integer ns.

Kineto writes microseconds with three decimals, relative to ``baseTimeNanoseconds`` (since 1970) if
the file contains it, otherwise since 1970. Event times here are always ns since the base, which is
`KinetoEvents.base_time_ns`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from traceprof.formats.kineto.columns import PHASES_WITH_DURATION, EventColumns, columns_of, decode
from traceprof.formats.kineto.parse import (
    NO_SHAPE,
    NO_TIME,
    NUMBER_ARGUMENTS,
    TEXT_ARGUMENTS,
    VALUE_ARGUMENTS,
    Batch,
    Codes,
    Kind,
    KinetoEvent,
    batch_of_items,
    label_of,
    labelled_process,
    parse_batch,
    whole,
)
from traceprof.formats.shared import json_stream
from traceprof.formats.shared.files import GzipSource
from traceprof.model.table import Names
from traceprof.model.tables import ABSENT

_Array: TypeAlias = "npt.NDArray[Any]"
_Parts: TypeAlias = "list[npt.NDArray[Any]]"

_COMPLETE: Final = "X"
_ITEMS_PER_RUN: Final = 1000
_RUN_BYTES: Final = 1 << 21
_NO_TEXT: Final = np.int32(0)
_NEVER_NS: Final = int(np.iinfo(np.int64).max)
_INPUT_KEYS: Final = (b'"Input Dims"', b'"Input dims"', b'"kernel_num_gb"')
_PLACE: Final = ("start_ns", "end_ns", "process", "thread")
_TEXT_COLUMNS: Final = (*TEXT_ARGUMENTS, *VALUE_ARGUMENTS)


@dataclass(frozen=True, slots=True)
class ColumnMaker:
    """Makes rows of the events of some ``phases`` that ``keep`` accepts.

    ``keep`` is called once for each kind. It returns the least duration in ns of the events that
    become rows, or None if no event of the kind does.
    """

    keep: Callable[[KinetoEvent], int | None] | None = None
    phases: frozenset[str] = frozenset(_COMPLETE)
    with_shapes: bool = False
    is_labelled: bool = False
    with_inputs: bool = False
    _decisions: dict[Kind, int] = field(default_factory=dict)
    _found_keys: set[bytes] = field(default_factory=set)

    def is_row(self, kind: Kind) -> bool:
        """Return whether events of a kind become rows, if they last long enough."""
        return self._least_ns(kind) != _NEVER_NS

    def _least_ns(self, kind: Kind) -> int:
        """Return the least duration of the events of a kind that become rows."""
        known = self._decisions.get(kind)
        if known is None:
            phase, category, name = kind
            least_ns: int | None = NO_TIME
            if phase not in self.phases:
                least_ns = None
            elif self.keep is not None:
                least_ns = self.keep(KinetoEvent(ph=phase, cat=category, name=name))
            known = self._decisions[kind] = _NEVER_NS if least_ns is None else least_ns
        return known

    @property
    def has_inputs(self) -> bool:
        """Whether operators record their inputs."""
        return bool(self._found_keys)

    def parse(self, text: bytes) -> EventColumns | None:
        """Return the rows of the JSON array ``text``; None if it is not an array of events."""
        if not self._found_keys:
            self._found_keys.update(key for key in _INPUT_KEYS if key in text)
        events = None if self.is_labelled else decode(text, with_inputs=self.with_inputs)
        if events is not None:
            return self.rows(events)
        batch = parse_batch(text)
        return None if batch is None else self.rows_of(batch)

    def rows_of(self, batch: Batch) -> EventColumns:
        """Return the rows of events that msgspec parsed."""
        options = {
            name: getattr(self, name) for name in ("with_shapes", "with_inputs", "is_labelled")
        }
        return self.rows(columns_of(batch, self.is_row, **options))

    def rows(self, events: EventColumns) -> EventColumns:
        """Return the events that become rows."""
        least_ns = np.array([self._least_ns(kind) for kind in events.kinds], np.int64)
        is_row = least_ns != _NEVER_NS
        has_length = np.array([phase != _COMPLETE for phase, _, _ in events.kinds], np.bool_)
        is_kept = is_row[events.kind]
        if (least_ns[is_row] > 0).any():
            is_kept &= events.duration_ns >= least_ns[events.kind]
        rows = np.flatnonzero(is_kept)
        has_length = has_length[events.kind[rows]] | (events.duration_ns[rows] >= 0)
        timed = rows[(events.start_ns[rows] != NO_TIME) & has_length]
        kinds = np.flatnonzero(is_row).tolist()
        if len(timed) < np.count_nonzero(is_row[events.kind]):
            kinds = list(dict.fromkeys(events.kind[timed].tolist()))
        refused = Counter(events.refused)
        if len(rows) < len(events):
            dropped = events.kind[~is_kept & (events.start_ns != NO_TIME)]
            counts = np.bincount(dropped, minlength=len(events.kinds)).tolist()
            for (phase, category, _), n in zip(events.kinds, counts, strict=True):
                if n and phase in PHASES_WITH_DURATION:
                    refused[category or ""] += n
        return events.take(timed, kinds, len(rows) - len(timed), refused)


def _names_in(
    events: Sequence[Any], *, is_labelled: bool
) -> tuple[dict[int, str], dict[tuple[int, int], str]]:
    """Return the names of processes and threads from events of phase M."""
    processes: dict[int, str] = {}
    threads: dict[tuple[int, int], str] = {}
    for event in events:
        process = labelled_process(event.pid) if is_labelled else whole(event.pid)
        text = json_stream.mend_text(str(event.arguments.name or ""))
        if event.name == "process_name":
            label = label_of(event.pid) if is_labelled else ""
            processes[process] = f"{label} {text}".strip()
        elif event.name == "thread_name":
            threads[process, whole(event.tid)] = text
    return processes, threads


@dataclass(frozen=True, slots=True)
class KinetoEvents:
    """The complete ("X") and instant ("i") events of one file, one row each, in file order.

    ``start_ns`` and ``end_ns`` count from ``base_time_ns``. The base is 0 if the file has none:
    times then count from 1970, or from boot in files of 2023. ``process`` and ``thread`` are
    `ABSENT` if the file has a text there (such as "Spans"). ``arguments`` has an array for each of
    `NUMBER_ARGUMENTS` (`ABSENT` if the event has none), and `Names` for each of `TEXT_ARGUMENTS`
    and `VALUE_ARGUMENTS` ("" if the event has none). ``header`` contains the other top-level values
    of the document. ``is_complete`` is False if the document is truncated. ``has_array`` is False
    if it contains no list of events. ``is_damaged``: the rest of the file cannot be read.
    ``bytes_behind`` counts bytes after the document. ``left_out`` counts events with an invalid
    time. ``shapes`` has a row of `SHAPE` for each event, if requested. ``has_shapes``: an event has
    a shape. ``has_inputs``: operators record their inputs. ``unread`` counts, by category, the
    events with a duration that became no row.
    """

    base_time_ns: int
    start_ns: npt.NDArray[np.int64]
    end_ns: npt.NDArray[np.int64]
    process: npt.NDArray[np.int64]
    thread: npt.NDArray[np.int64]
    category: Names
    name: Names
    arguments: Mapping[str, Any]
    process_names: Mapping[int, str]
    thread_names: Mapping[tuple[int, int], str]
    header: Mapping[str, Any]
    is_complete: bool
    has_array: bool = True
    is_damaged: bool = False
    bytes_behind: int = 0
    left_out: int = 0
    shapes: npt.NDArray[np.int64] | None = None
    has_shapes: bool = False
    unread: Mapping[str, int] = field(default_factory=dict)
    has_inputs: bool = False

    def __len__(self) -> int:
        return len(self.start_ns)


def read_kineto_events(
    path: Path,
    keep: Callable[[KinetoEvent], int | None] | None = None,
    phases: Sequence[str] = ("X",),
    *,
    with_shapes: bool = False,
    is_labelled: bool = False,
    with_inputs: bool = False,
) -> KinetoEvents:
    """Return the events of the Chrome trace at ``path`` (plain or gzip), in bounded memory.

    ``keep`` may reject events by phase, category and name. It receives only these, once per kind,
    and returns the least duration in ns, or None to drop the events. ``phases`` are the phases of
    events that become rows. ``with_shapes``: also return how kernels were launched.
    ``is_labelled``: process IDs may have a label as prefix, which distinguishes processes.
    ``with_inputs``: also return the inputs of operators (`VALUE_ARGUMENTS`).

    Raises:
        TraceError: the JSON is nested too deeply.
    """
    maker = ColumnMaker(keep, frozenset(phases), with_shapes, is_labelled, with_inputs)
    joined = _EventJoiner(with_shapes, is_labelled)
    with json_stream.open_chrome_trace(path, _RUN_BYTES) as (stream, _):
        for run in _runs(stream.batches(maker.parse), maker):
            joined.add(run)
    is_gzip_damaged = isinstance(stream.file, GzipSource) and stream.file.is_damaged
    events = joined.finish(stream, is_damaged=stream.is_damaged or is_gzip_damaged)
    return replace(events, has_inputs=maker.has_inputs)


def _runs(found: Iterable[EventColumns | list[Any]], maker: ColumnMaker) -> Iterator[EventColumns]:
    """Yield the columns of runs, and of single items in groups of `_ITEMS_PER_RUN` or fewer."""
    items: list[Any] = []
    for run in found:
        if isinstance(run, list):
            items += run
        if items and (isinstance(run, EventColumns) or len(items) >= _ITEMS_PER_RUN):
            yield maker.rows_of(batch_of_items(items))
            items = []
        if isinstance(run, EventColumns):
            yield run
    if items:
        yield maker.rows_of(batch_of_items(items))


@dataclass(slots=True)
class _EventJoiner:
    """Concatenates the columns of all runs; distinct values get one numbering for the file."""

    with_shapes: bool
    is_labelled: bool = False
    kinds: Codes[Kind] = field(default_factory=lambda: Codes({}))
    texts: Codes[str] = field(default_factory=lambda: Codes({"": 0}))
    shapes: Codes[tuple[int, ...]] = field(default_factory=lambda: Codes({NO_SHAPE: 0}))
    has_shapes: bool = False
    place: dict[str, _Parts] = field(default_factory=lambda: {name: [] for name in _PLACE})
    kind: _Parts = field(default_factory=list)
    shape: _Parts = field(default_factory=list)
    numbers: dict[str, _Parts] = field(
        default_factory=lambda: {name: [] for name in NUMBER_ARGUMENTS}
    )
    text: dict[str, _Parts] = field(default_factory=lambda: {name: [] for name in _TEXT_COLUMNS})
    process_names: dict[int, str] = field(default_factory=dict)
    thread_names: dict[tuple[int, int], str] = field(default_factory=dict)
    left_out: int = 0
    unread: Counter[str] = field(default_factory=Counter)

    def add(self, run: EventColumns) -> None:
        """Add the events of a run."""
        processes, threads = _names_in(run.metadata, is_labelled=self.is_labelled)
        self.process_names |= processes
        self.thread_names |= threads
        self.left_out += run.left_out
        self.unread.update(run.refused)
        if not len(run):
            return
        self.has_shapes |= bool(run.shape.any())
        self.place["start_ns"].append(run.start_ns)
        self.place["end_ns"].append(run.start_ns + np.maximum(run.duration_ns, 0))
        self.place["process"].append(run.process)
        self.place["thread"].append(run.thread)
        self.kind.append(self.kinds.of(run.kinds)[run.kind])
        if self.with_shapes:
            self.shape.append(self.shapes.of(map(tuple, run.shapes.tolist()))[run.shape])
        absent = np.broadcast_to(np.int64(ABSENT), len(run))
        for name, parts in self.numbers.items():
            parts.append(run.arguments.get(name, absent))
        text_codes = self.texts.of(run.texts)
        no_text = np.broadcast_to(_NO_TEXT, len(run))
        for name, parts in self.text.items():
            codes = run.arguments.get(name)
            parts.append(no_text if codes is None else text_codes[codes])

    def finish(self, stream: json_stream.JsonArrayStream, *, is_damaged: bool) -> KinetoEvents:
        """Return all events, with the document's other properties from ``stream``."""
        kind = _concatenated(self.kind, np.int32)
        categories, names = Codes[str](), Codes[str]()
        of_kinds = np.array(
            [(categories[category or ""], names[str(name)]) for _, category, name in self.kinds],
            np.int32,
        ).reshape(-1, 2)
        numbers = {name: _concatenated(parts) for name, parts in self.numbers.items()}
        every_text = _names(self.texts, np.arange(len(self.texts)))
        texts = {
            name: every_text[_concatenated(parts, np.int32)] for name, parts in self.text.items()
        }
        shapes = None
        if self.with_shapes:
            shapes = np.array(list(self.shapes), np.int64)[_concatenated(self.shape, np.int32)]
        places: dict[str, Any] = {name: _concatenated(parts) for name, parts in self.place.items()}
        return KinetoEvents(
            base_time_ns=max(0, whole(stream.header.get("baseTimeNanoseconds", 0))),
            **places,
            category=_names(categories, of_kinds[:, 0][kind]),
            name=_names(names, of_kinds[:, 1][kind]),
            arguments={**numbers, **texts},
            process_names=self.process_names,
            thread_names=self.thread_names,
            header=stream.header,
            is_complete=stream.is_complete,
            has_array=stream.has_array,
            is_damaged=is_damaged,
            bytes_behind=stream.bytes_behind,
            left_out=self.left_out,
            shapes=shapes,
            has_shapes=self.has_shapes,
            unread=self.unread,
        )


def _names(distinct: Iterable[str], codes: _Array) -> Names:
    """Return the texts at the indices ``codes``."""
    return Names.coded(map(json_stream.mend_text, distinct), codes)


def _concatenated(parts: _Parts, dtype: type[np.generic] = np.int64) -> _Array:
    """Concatenate the parts, and free them; one value broadcast to all rows is not copied."""
    if len(parts) <= 1:
        return parts.pop().astype(dtype, copy=False) if parts else np.empty(0, dtype)
    firsts = {int(part[0]) for part in parts}
    if len(firsts) == 1 and all(part.strides == (0,) for part in parts):
        return np.broadcast_to(dtype(firsts.pop()), sum(map(len, parts)))
    column: _Array = np.concatenate(parts, dtype=dtype)
    parts.clear()
    return column
