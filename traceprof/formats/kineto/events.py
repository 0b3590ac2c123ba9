"""The events of a Kineto (torch.profiler) Chrome trace as columns, with exact integer ns.

Kineto writes microseconds with three decimals, counted from ``baseTimeNanoseconds`` (since
1970) where the file has it and from 1970 where it has not. Event times here are always ns
since the base, which `KinetoEvents.base_time_ns` gives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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
    Batch,
    Event,
    batch_of_items,
    exact_ns,
    parse_batch,
    whole,
)
from traceprof.formats.shared.files import GZIP_MAGIC, GzipSource

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

    ``keep`` may refuse events: those for which it returns False are left out. ``phases`` are
    the kinds of events that become rows. ``with_shapes``: also how kernels were launched.

    Raises:
        TraceError: its values nest deeper than can be read.
    """
    columns = _Columns(keep, frozenset(phases), _Shapes() if with_shapes else None)
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

    def __missing__(self, shape: tuple[int, ...]) -> int:
        code = self[shape] = len(self)
        return code

    def add(self, arguments: Sequence[Any]) -> None:
        """Add events with these arguments."""
        self.parts.append(np.array([self[each.shape] for each in arguments], np.int32))

    def rows(self) -> npt.NDArray[np.int64]:
        """Return a row for each event."""
        codes = np.concatenate(self.parts) if self.parts else np.empty(0, np.int32)
        rows: npt.NDArray[np.int64] = np.array(list(self), np.int64)[codes]
        return rows


_COMPLETE: Final = "X"
_PLACE: Final = ("start", "end", "process", "thread", "category", "name")


@dataclass(slots=True)
class _Columns:
    keep: Callable[[Event], bool] | None
    phases: frozenset[str]
    shapes: _Shapes | None = None
    has_shapes: bool = False
    place: dict[str, _Parts] = field(default_factory=lambda: {name: [] for name in _PLACE})
    numbers: dict[str, _Parts] = field(
        default_factory=lambda: {name: [] for name in NUMBER_ARGUMENTS}
    )
    texts: dict[str, _Parts] = field(default_factory=lambda: {name: [] for name in TEXT_ARGUMENTS})
    category_codes: _Codes = field(default_factory=_Codes)
    name_codes: _Codes = field(default_factory=_Codes)
    text_codes: _Codes = field(default_factory=lambda: _Codes({"": 0}))
    process_names: dict[int, str] = field(default_factory=dict)
    thread_names: dict[tuple[int, int], str] = field(default_factory=dict)
    left_out: int = 0

    def add(self, batch: Batch) -> None:
        rows = [index for index, event in enumerate(batch.events) if event.ph in self.phases]
        if self.keep is not None:
            keep = self.keep
            rows = [index for index in rows if keep(batch.events[index])]
        self._add_names([event for event in batch.events if event.ph == "M"])
        rows = self._timed(batch, rows)
        if rows:
            self._add_rows([batch.events[index] for index in rows])
            starts = batch.start_ns[rows]
            self.place["start"].append(starts)
            self.place["end"].append(starts + np.maximum(batch.duration_ns[rows], 0))

    def _timed(self, batch: Batch, rows: list[int]) -> list[int]:
        """Return those of ``rows`` that have a time, and a length unless they are instants."""
        starts, lengths = batch.start_ns[rows], batch.duration_ns[rows]
        is_timed = (starts != NO_TIME) & (lengths >= 0)
        if is_timed.all():
            return rows
        is_instant = np.array([batch.events[index].ph != _COMPLETE for index in rows])
        is_timed |= (starts != NO_TIME) & is_instant
        self.left_out += int((~is_timed).sum())
        return [index for index, is_kept in zip(rows, is_timed.tolist(), strict=True) if is_kept]

    def _add_rows(self, events: Sequence[Event]) -> None:
        categories, names, texts = self.category_codes, self.name_codes, self.text_codes
        self.place["process"].append(_wholes([event.pid for event in events]))
        self.place["thread"].append(_wholes([event.tid for event in events]))
        self.place["category"].append(np.array([categories[event.cat or ""] for event in events]))
        self.place["name"].append(np.array([names[str(event.name)] for event in events]))
        arguments = [event.arguments for event in events]
        self.has_shapes = self.has_shapes or any(item.grid is not None for item in arguments)
        if self.shapes is not None:
            self.shapes.add(arguments)
        for name, attribute in NUMBER_ARGUMENTS.items():
            numbers = _wholes([getattr(item, attribute) for item in arguments])
            self.numbers[name].append(_compact(numbers))
        for name, attribute in TEXT_ARGUMENTS.items():
            values = [getattr(item, attribute) for item in arguments]
            codes = [texts[str(value)] if value else 0 for value in values]
            self.texts[name].append(_compact(np.array(codes, np.int64)))

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
        numbers = {name: _joined(parts) for name, parts in self.numbers.items()}
        texts = {name: self.text_codes.categorical(parts) for name, parts in self.texts.items()}
        return KinetoEvents(
            base_time_ns=max(0, whole(stream.header.get("baseTimeNanoseconds", 0))),
            start_ns=place["start"],
            end_ns=place["end"],
            process=place["process"],
            thread=place["thread"],
            category=self.category_codes.categorical(self.place["category"]),
            name=self.name_codes.categorical(self.place["name"]),
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


def _wholes(values: Sequence[Any]) -> npt.NDArray[np.int64]:
    if all(type(value) is int for value in values):
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
    if not parts:
        return np.empty(0, np.int64)
    firsts = {int(part[0]) for part in parts}
    if len(firsts) == 1 and all(part.strides == (0,) for part in parts):
        return np.broadcast_to(parts[0][0], sum(map(len, parts)))
    return np.concatenate(parts).astype(np.int64, copy=False)
