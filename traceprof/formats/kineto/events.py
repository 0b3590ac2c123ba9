"""The events of a Kineto (torch.profiler) Chrome trace as columns, with exact integer ns.

Kineto writes microseconds with three decimals, counted from ``baseTimeNanoseconds`` (since
1970) where the file has it and from 1970 where it has not. Event times here are always ns
since the base, which `KinetoEvents.base_time_ns` gives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.errors import TraceError
from traceprof.formats.kineto.json_stream import (
    ByteSource,
    JsonArrayStream,
    TooDeepError,
    mend_text,
)
from traceprof.formats.kineto.parse import (
    NO_SHAPE,
    NO_TIME,
    NUMBER_ARGUMENTS,
    TEXT_ARGUMENTS,
    Arguments,
    Batch,
    Event,
    batch_of_items,
    exact_ns,
    parse_batch,
    whole,
)
from traceprof.formats.shared.files import GZIP_MAGIC, GzipSource
from traceprof.model.tables import ABSENT

__all__ = ["KinetoEvents", "exact_ns", "read_kineto_events"]


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
    keep: Callable[[Event], bool] | None = None,
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
    kinds = _Kinds(keep, frozenset(phases))
    columns = _Columns(kinds, _Shapes() if with_shapes else None)
    with path.open("rb") as raw:
        packed = raw.read(2) == GZIP_MAGIC
        raw.seek(0)
        unpacked = GzipSource(raw)
        source: ByteSource = unpacked if packed else raw
        stream = JsonArrayStream(source, "traceEvents")
        try:
            for found in stream.batches(parse_batch):
                columns.add(found if isinstance(found, Batch) else batch_of_items(found))
        except TooDeepError:
            raise TraceError(f"{path}: JSON that nests too deeply to be a trace") from None
    return columns.finish(stream, is_damaged=stream.is_damaged or unpacked.is_damaged)


class _Codes(dict[str, int]):
    """Numbers strings in the order in which they appear."""

    def __missing__(self, text: str) -> int:
        code = self[text] = len(self)
        return code

    def categorical(self, parts: Sequence[npt.NDArray[np.int64]]) -> pd.Categorical:
        """Return the strings whose numbers stand in ``parts``."""
        texts = [mend_text(text) for text in self]
        distinct = list(dict.fromkeys(texts))
        codes = _joined(parts)
        if len(distinct) < len(texts):
            place = {text: code for code, text in enumerate(distinct)}
            codes = np.array([place[text] for text in texts], np.int64)[codes]
        return pd.Categorical.from_codes(codes, pd.Index(distinct, dtype=object))


_Parts = list[npt.NDArray[Any]]


class _Shapes(dict[tuple[int, ...], int]):
    """Numbers the ways of launching kernels, which are few: most events have none."""

    def __init__(self) -> None:
        super().__init__({NO_SHAPE: 0})
        self.parts: _Parts = []
        self._as_written: dict[Any, int] = {}

    def __missing__(self, shape: tuple[int, ...]) -> int:
        code = self[shape] = len(self)
        return code

    def add(self, arguments: Sequence[Arguments]) -> None:
        """Add events with these arguments."""
        codes = [0 if each.grid is None else self._code(each) for each in arguments]
        self.parts.append(np.array(codes, np.int32))

    def _code(self, each: Arguments) -> int:
        try:
            sizes = tuple(each.grid), tuple(each.block)
            key = each.context, *sizes, each.registers, each.shared_bytes
            code = self._as_written.get(key)
        except TypeError:  # no lists, or lists of lists
            return self[each.shape]
        if code is None:
            code = self._as_written[key] = self[each.shape]
        return code

    def rows(self) -> npt.NDArray[np.int64]:
        """Return a row for each event."""
        codes = np.concatenate(self.parts) if self.parts else np.empty(0, np.int32)
        rows: npt.NDArray[np.int64] = np.array(list(self), np.int64)[codes]
        return rows


class _Kinds(dict[tuple[Any, Any, Any], int]):
    """Numbers phase, category and name together: few are distinct, so that each is judged once.

    ``is_kept`` has an element for each: whether its events become rows.
    """

    def __init__(self, keep: Callable[[Event], bool] | None, phases: frozenset[str]) -> None:
        super().__init__()
        self._keep = keep
        self._phases = phases
        self.is_kept: list[bool] = []

    def __missing__(self, kind: tuple[Any, Any, Any]) -> int:
        code = self[kind] = len(self)
        phase, category, name = kind
        is_row = phase in self._phases
        if is_row and self._keep is not None:
            is_row = self._keep(Event(ph=phase, cat=category, name=name))
        self.is_kept.append(is_row)
        return code

    def of(self, events: Sequence[Event]) -> npt.NDArray[np.int64]:
        """Return the number of each event's kind."""
        return np.fromiter(map(self.__getitem__, map(_KIND, events)), np.int64, len(events))

    def categories_and_names(self, parts: _Parts) -> tuple[pd.Categorical, pd.Categorical]:
        """Return the categories and the names of the events whose kinds are in ``parts``."""
        used, firsts, codes = np.unique(_joined(parts), return_index=True, return_inverse=True)
        kinds = list(self)
        in_order = np.argsort(firsts, kind="stable")
        categories, names = _Codes(), _Codes()
        of_kinds = np.empty((2, len(used)), np.int64)
        for place in in_order.tolist():
            _, category, name = kinds[used[place]]
            of_kinds[:, place] = categories[category or ""], names[str(name)]
        category_codes, name_codes = of_kinds[:, codes]
        return categories.categorical([category_codes]), names.categorical([name_codes])


_KIND: Final = attrgetter("ph", "cat", "name")
_ARGUMENTS: Final = attrgetter("arguments")
_COMPLETE: Final = "X"
_PLACE: Final = ("start", "end", "process", "thread", "kind")


@dataclass(slots=True)
class _Columns:
    kinds: _Kinds
    shapes: _Shapes | None = None
    has_shapes: bool = False
    place: dict[str, _Parts] = field(default_factory=lambda: {name: [] for name in _PLACE})
    numbers: dict[str, _Parts] = field(
        default_factory=lambda: {name: [] for name in NUMBER_ARGUMENTS}
    )
    texts: dict[str, _Parts] = field(default_factory=lambda: {name: [] for name in TEXT_ARGUMENTS})
    text_codes: _Codes = field(default_factory=lambda: _Codes({"": 0}))
    process_names: dict[int, str] = field(default_factory=dict)
    thread_names: dict[tuple[int, int], str] = field(default_factory=dict)
    left_out: int = 0

    def add(self, batch: Batch) -> None:
        events = batch.events
        kinds = self.kinds.of(events)
        self._add_names([event for event in events if event.ph == "M"])
        rows = np.flatnonzero(np.array(self.kinds.is_kept, np.bool_)[kinds])
        rows = self._timed(batch, rows)
        if not len(rows):
            return
        self._add_rows(events if len(rows) == len(events) else [events[i] for i in rows.tolist()])
        starts = batch.start_ns[rows]
        self.place["kind"].append(kinds[rows])
        self.place["start"].append(starts)
        self.place["end"].append(starts + np.maximum(batch.duration_ns[rows], 0))

    def _timed(self, batch: Batch, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return those of ``rows`` that have a time, and a length unless they are instants."""
        starts, lengths = batch.start_ns[rows], batch.duration_ns[rows]
        is_timed = (starts != NO_TIME) & (lengths >= 0)
        if is_timed.all():
            return rows
        is_instant = np.array([batch.events[index].ph != _COMPLETE for index in rows.tolist()])
        is_timed |= (starts != NO_TIME) & is_instant
        self.left_out += int((~is_timed).sum())
        timed: npt.NDArray[np.int64] = rows[is_timed]
        return timed

    def _add_rows(self, events: Sequence[Event]) -> None:
        self.place["process"].append(_wholes([event.pid for event in events]))
        self.place["thread"].append(_wholes([event.tid for event in events]))
        arguments = list(map(_ARGUMENTS, events))
        self.has_shapes = self.has_shapes or any(each.grid is not None for each in arguments)
        if self.shapes is not None:
            self.shapes.add(arguments)
        for name, attribute in NUMBER_ARGUMENTS.items():
            self.numbers[name].append(_numbers(list(map(attrgetter(attribute), arguments))))
        for name, attribute in TEXT_ARGUMENTS.items():
            self.texts[name].append(self._text_codes(list(map(attrgetter(attribute), arguments))))

    def _text_codes(self, values: list[Any]) -> npt.NDArray[np.int64]:
        if values.count("") == len(values):
            return np.broadcast_to(np.int64(0), len(values))
        codes = [self.text_codes[str(value)] if value else 0 for value in values]
        return _compact(np.array(codes, np.int64))

    def _add_names(self, events: Sequence[Event]) -> None:
        for event in events:
            process = whole(event.pid)
            text = mend_text(str(event.arguments.name or ""))
            if event.name == "process_name":
                self.process_names[process] = text
            elif event.name == "thread_name":
                self.thread_names[process, whole(event.tid)] = text

    def finish(self, stream: JsonArrayStream, *, is_damaged: bool) -> KinetoEvents:
        place = {name: _joined(self.place[name]) for name in _PLACE[:4]}
        category, name_of_each = self.kinds.categories_and_names(self.place["kind"])
        numbers = {name: _joined(parts) for name, parts in self.numbers.items()}
        texts = {name: self.text_codes.categorical(parts) for name, parts in self.texts.items()}
        return KinetoEvents(
            base_time_ns=max(0, whole(stream.header.get("baseTimeNanoseconds", 0))),
            start_ns=place["start"],
            end_ns=place["end"],
            process=place["process"],
            thread=place["thread"],
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
            shapes=None if self.shapes is None else self.shapes.rows(),
            has_shapes=self.has_shapes,
        )


def _numbers(values: list[Any]) -> npt.NDArray[np.int64]:
    """Return the whole numbers in the values of an argument, which most events have not."""
    if values.count(ABSENT) == len(values):
        return np.broadcast_to(np.int64(ABSENT), len(values))
    return _compact(_wholes(values))


def _wholes(values: Sequence[Any]) -> npt.NDArray[np.int64]:
    if set(map(type, values)) == {int}:
        try:
            return np.array(values, np.int64)
        except OverflowError:
            pass
    return np.array([whole(value) for value in values], np.int64)


def _compact(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the values, of a single number where they are all the same: most are absent."""
    same = bool((values == values[0]).all())
    return np.broadcast_to(values[0], len(values)) if same else values


def _joined(parts: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    parts = [part for part in parts if len(part)]
    if not parts:
        return np.empty(0, np.int64)
    firsts = {int(part[0]) for part in parts}
    if len(firsts) == 1 and all(part.strides == (0,) for part in parts):
        return np.broadcast_to(parts[0][0], sum(map(len, parts)))
    return np.concatenate(parts).astype(np.int64, copy=False)
