"""Decode the events of a JSON array to columns with the compiled ``events.c``.

The C code decodes regular events, which are nearly all. `parse` reads the others, and all events if
the library was not compiled. Both return the same columns.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from traceprof.formats import compiled
from traceprof.formats.compiled import address
from traceprof.formats.kineto import parse
from traceprof.model.tables import ABSENT

_Array: TypeAlias = "npt.NDArray[Any]"
_INT32: Final = np.iinfo(np.int32)

_PLACE: Final = ("start_ns", "duration_ns", "process", "thread", "kind", "shape")
"""The first columns, in the order of the C code."""
_NUMBER, _TEXT, _GRID, _BLOCK, _VALUE = range(5)
_KINDS: Final = {
    **dict.fromkeys(parse.NUMBER_ARGUMENTS, _NUMBER),
    **dict.fromkeys(parse.TEXT_ARGUMENTS, _TEXT),
    "grid": _GRID,
    "block": _BLOCK,
    "registers per thread": _NUMBER,
    "shared memory": _NUMBER,
}
_WITH_INPUTS: Final = _KINDS | dict.fromkeys(parse.VALUE_ARGUMENTS, _VALUE)
_SHAPE_KEYS: Final = np.array(
    list(map(list(_KINDS).index, ("context", "registers per thread", "shared memory"))), np.int64
)
_MIN_EVENT_BYTES: Final = 48
"""An event with a time, a place and a name is at least this long."""
_EXTRA_SLOTS: Final = 16
"""Added to the capacity: a few events can have more distinct texts than events."""
_MAX_METADATA: Final = 1024
_LINE_BREAKS: Final = frozenset(b"\n\r\t")
_TEXTS: Final = msgspec.json.Decoder(list[str])
PHASES_WITH_DURATION: Final = ("X", "B", "b")
"""The phases of events that have a duration, or begin one."""


@dataclass(frozen=True)
class EventColumns:
    """Events of a run in columns, one element per event, and their distinct values.

    Times are in ns, `NO_TIME` if missing. ``kind`` indexes ``kinds``. ``shape`` indexes ``shapes``
    (0 is no shape). ``arguments`` has an array for each argument that an event of the run has:
    whole numbers, or indices of ``texts`` (0 is ""). ``metadata`` are the events of phase M.
    ``left_out`` counts events that were dropped because of an invalid time. ``refused`` counts, by
    category, the events with a duration that were dropped because of their kind.
    """

    start_ns: _Array
    duration_ns: _Array
    process: _Array
    thread: _Array
    kind: _Array
    shape: _Array
    arguments: Mapping[str, _Array]
    kinds: Sequence[parse.Kind]
    texts: Sequence[str]
    shapes: _Array
    metadata: Sequence[parse.KinetoEvent]
    left_out: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.kind)

    def take(
        self,
        rows: npt.NDArray[np.int64],
        kinds: Sequence[int],
        left_out: int,
        refused: Mapping[str, int],
    ) -> EventColumns:
        """Return the events at ``rows``, in this order, which are of these ``kinds``."""
        taken = {name: column[rows] for name, column in self.arguments.items()}
        numbers = {
            name: _narrow(taken[name])
            for name in parse.NUMBER_ARGUMENTS
            if name in taken and (taken[name] != ABSENT).any()
        }
        texts = parse.Codes({"": 0})
        codes = {
            name: self._numbered(taken[name], texts)
            for name in (*parse.TEXT_ARGUMENTS, *parse.VALUE_ARGUMENTS)
            if name in taken and taken[name].any()
        }
        kind_of = np.zeros(len(self.kinds), np.int32)
        kind_of[kinds] = np.arange(len(kinds))
        return EventColumns(
            start_ns=self.start_ns[rows],
            duration_ns=self.duration_ns[rows],
            process=_narrow(self.process[rows]),
            thread=_narrow(self.thread[rows]),
            kind=kind_of[self.kind[rows]],
            shape=self.shape[rows].astype(np.int32),
            arguments={**numbers, **codes},
            kinds=[self.kinds[kind] for kind in kinds],
            texts=list(texts),
            shapes=self.shapes,
            metadata=self.metadata,
            left_out=left_out,
            refused=refused,
        )

    def _numbered(self, codes: _Array, texts: parse.Codes[str]) -> _Array:
        """Return the indices of texts in ``texts``; new texts are added in row order."""
        used, first, of_each = np.unique(codes, return_index=True, return_inverse=True)
        numbers = np.zeros(len(used), np.int32)
        for place in first.argsort().tolist():
            numbers[place] = texts[self.texts[used[place]]]
        return numbers[of_each]


def _narrow(wide: _Array) -> _Array:
    """Return whole numbers as 32 bits if they fit."""
    is_narrow = not len(wide) or (_INT32.min <= wide.min() and wide.max() <= _INT32.max)
    return wide.astype(np.int32) if is_narrow else wide


def columns_of(
    batch: parse.Batch,
    is_kept: Callable[[parse.Kind], bool],
    *,
    with_shapes: bool = True,
    with_inputs: bool = False,
    is_labelled: bool = False,
) -> EventColumns:
    """Return the columns of the events whose kinds are kept, in the format of `decode`.

    ``is_labelled``: labels distinguish processes, too (`parse.labelled_process`).
    """
    kinds, texts = parse.Codes[parse.Kind](), parse.Codes({"": 0})
    all_kinds = list(map(parse.kind_of, batch.events))
    rows = [row for row, kind in enumerate(all_kinds) if is_kept(kind)]
    events = [batch.events[row] for row in rows]
    arguments = [event.args or parse.NO_ARGUMENTS for event in events]
    shapes, shape = _shapes(arguments, with_shapes=with_shapes)
    values_by_name = {
        name: list(map(attrgetter(parse.ATTRIBUTES[name]), arguments))
        for name in (*parse.NUMBER_ARGUMENTS, *parse.TEXT_ARGUMENTS)
    }
    numbers = {
        name: _wholes(values_by_name[name])
        for name in parse.NUMBER_ARGUMENTS
        if values_by_name[name].count(ABSENT) < len(events)
    }
    codes = {
        name: texts.of(str(text) if text else "" for text in values_by_name[name])
        for name in parse.TEXT_ARGUMENTS
        if values_by_name[name].count("") < len(events)
    }
    for name in parse.VALUE_ARGUMENTS if with_inputs else ():
        values = [
            bytes(getattr(event_arguments, parse.ATTRIBUTES[name])) for event_arguments in arguments
        ]
        if any(values):
            codes[name] = texts.of(value.decode("utf-8", "replace") for value in values)
    return EventColumns(
        start_ns=batch.start_ns[rows],
        duration_ns=batch.duration_ns[rows],
        process=np.array([parse.labelled_process(event.pid) for event in events], np.int64)
        if is_labelled
        else _wholes([event.pid for event in events]),
        thread=_wholes([event.tid for event in events]),
        kind=kinds.of(map(parse.kind_of, events)),
        shape=shape,
        arguments={**numbers, **codes},
        kinds=list(kinds),
        texts=list(texts),
        shapes=shapes,
        metadata=[event for event in batch.events if event.ph == parse.METADATA],
        refused=Counter(
            kind[1] or ""
            for kind, start in zip(all_kinds, batch.start_ns.tolist(), strict=True)
            if kind[0] in PHASES_WITH_DURATION and start != parse.NO_TIME and not is_kept(kind)
        ),
    )


def _wholes(values: Sequence[Any]) -> _Array:
    """Return the whole numbers in the values."""
    try:
        return np.frombuffer(array("q", values), np.int64)  # rejects other values
    except (TypeError, OverflowError):
        return np.array([parse.whole(value) for value in values], np.int64)


def _shapes(arguments: Sequence[parse.Arguments], *, with_shapes: bool) -> tuple[_Array, _Array]:
    """Return the distinct launch shapes of kernels, and the index of each event's shape.

    Shapes are compared as they are written, because most kernels repeat the same text. Without
    ``with_shapes`` the shapes are all `NO_SHAPE`, and the index only says whether an event has one.
    """
    if not with_shapes:
        has_shape = [each.grid is not None for each in arguments]
        return np.array([parse.NO_SHAPE, parse.NO_SHAPE], np.int64), np.array(has_shape, np.int32)
    distinct, as_written = parse.Codes({parse.NO_SHAPE: 0}), dict[str, int]()
    codes = np.zeros(len(arguments), np.int32)
    for row, each in enumerate(arguments):
        if each.grid is not None:
            written = repr((each.context, each.grid, each.block, each.registers, each.shared_bytes))
            if written not in as_written:
                as_written[written] = distinct[each.shape]
            codes[row] = as_written[written]
    return np.array(list(distinct), np.int64), codes


class _DecodeBuffers:
    """Memory that the C code fills when it decodes a text."""

    def __init__(self, text: bytes, n_keys: int) -> None:
        self.most = len(text) // _MIN_EVENT_BYTES + _EXTRA_SLOTS
        self.n_buckets = 1 << (self.most + 1).bit_length()
        self.columns = np.empty((len(_PLACE) + n_keys, self.most), np.int64)
        self.filled = np.zeros(len(self.columns), np.int64)
        self.texts = np.empty((self.most, 2), np.int64)
        self.kinds = np.empty((self.most, 3), np.int64)
        self.shapes = np.empty((self.most, len(parse.SHAPE)), np.int64)
        self.buckets = np.zeros(3 * self.n_buckets, np.int32)
        self.metadata = np.empty((_MAX_METADATA, 2), np.int64)
        self.counts = np.array([0, 0, 0, _MAX_METADATA], np.int64)

    def addresses(self) -> tuple[int | None, ...]:
        """Return the arguments of the C function that describe the buffers."""
        return (
            *(self.most, address(self.columns), address(self.filled), address(self.texts)),
            *(address(self.kinds), address(self.shapes), self.n_buckets, address(self.buckets)),
            *(address(self.metadata), address(self.counts)),
        )


def decode(text: bytes, *, with_inputs: bool = False) -> EventColumns | None:
    """Return the events in the JSON array ``text``; None if `parse` has to read them.

    The C code gets the names of requested arguments as one text with their lengths and kinds.
    """
    library = compiled.loaded()
    if library is None:
        return None
    kinds_of = _WITH_INPUTS if with_inputs else _KINDS
    lengths = np.array(list(map(len, kinds_of)), np.int64)
    kind_codes = np.array(list(kinds_of.values()), np.int8)
    buffers = _DecodeBuffers(text, len(kinds_of))
    n = library.traceprof_events(
        *(text, len(text), ABSENT, len(kinds_of), "".join(kinds_of).encode(), address(lengths)),
        *(address(kind_codes), address(_SHAPE_KEYS), *buffers.addresses()),
    )
    if n < 0:
        return None
    n_texts, n_kinds, n_shapes, n_metadata = buffers.counts.tolist()
    named = [text[start:end] for start, end in buffers.metadata[:n_metadata].tolist()]
    try:
        texts = _texts_at(buffers.texts[:n_texts].tolist(), text)
        metadata = parse.decode_events(b"[" + b",".join(named) + b"]")
    except parse.UNREADABLE:
        return None
    nullable = [*texts, None]  # index -1 is null
    place = dict(zip(_PLACE, buffers.columns[:, :n], strict=False))
    filled_columns = zip(
        kinds_of, buffers.columns[len(_PLACE) :], buffers.filled[len(_PLACE) :], strict=True
    )
    return EventColumns(
        **place,
        arguments={name: column[:n] for name, column, n_filled in filled_columns if n_filled},
        kinds=[
            (nullable[phase], nullable[category], nullable[name])
            for phase, category, name in buffers.kinds[:n_kinds].tolist()
        ],
        texts=texts,
        shapes=buffers.shapes[:n_shapes],
        metadata=metadata,
    )


def _texts_at(places: Sequence[Sequence[int]], text: bytes) -> list[str]:
    """Return the texts at these (offset, length) pairs; raises one of `UNREADABLE`."""
    written = (_as_text(text[start : start + n_bytes]) for start, n_bytes in places)
    return _TEXTS.decode(b'["' + b'","'.join(written) + b'"]')


def _as_text(written: bytes) -> bytes:
    """Return the content of a JSON string between its quotes; other values as JSON-escaped text.

    Inside a string every quote follows a backslash, and there are no line breaks.
    """
    quote = written.find(b'"')
    is_text = quote < 0 or written[quote - 1 : quote] == b"\\"
    if is_text and _LINE_BREAKS.isdisjoint(written):
        return written
    return msgspec.json.encode(written.decode("utf-8", "replace"))[1:-1]
