"""The events in a JSON array as columns: decoded by ``events.c``, where it was compiled.

It takes what is plain, as nearly all runs of events are; `parse` reads the others, and all where
there is no compiler. What comes of both is the same.
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
"""The first columns, as the C names them."""
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
_PARTS: Final = np.array(
    list(map(list(_KINDS).index, ("context", "registers per thread", "shared memory"))), np.int64
)
_EVENT_BYTES: Final = 48
"""Shorter is no event with a time, a place and a name."""
_FEW: Final = 16
"""Of distinct texts there may be more than of events, where these are few."""
_MOST_METADATA: Final = 1024
_LINES: Final = frozenset(b"\n\r\t")
_TEXTS: Final = msgspec.json.Decoder(list[str])
LASTING: Final = ("X", "B", "b")
"""The phases of events that have a length, or begin one."""


@dataclass(frozen=True)
class EventColumns:
    """Events of a run in columns, an element for each, and what is distinct among them.

    Times are in ns, `NO_TIME` where there is none. ``kind`` numbers ``kinds``, ``shape`` numbers
    ``shapes`` (0 is none), and those of ``arguments``, of each that one of the events has, are
    parse.whole numbers or number ``texts`` (0 is ""). ``metadata`` are the events of phase M.
    ``left_out`` counts what is not there because its time cannot be, ``refused`` by category the
    events with a length that are not there because of their kind.
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
        """Return some of the events, in their order, which are of these ``kinds``."""
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
        """Return the numbers that texts have in ``texts``, in which they come as the rows do."""
        used, first, of_each = np.unique(codes, return_index=True, return_inverse=True)
        numbers = np.zeros(len(used), np.int32)
        for place in first.argsort().tolist():
            numbers[place] = texts[self.texts[used[place]]]
        return numbers[of_each]


def _narrow(wide: _Array) -> _Array:
    """Return parse.whole numbers in 32 bits where these are enough."""
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
    """Return the columns of those events whose kinds are kept, as `decode` does of all.

    ``is_labelled``: processes are told by labels, too (`parse.labelled_process`).
    """
    kinds, texts = parse.Codes[parse.Kind](), parse.Codes({"": 0})
    every = list(map(parse.kind_of, batch.events))
    rows = [row for row, kind in enumerate(every) if is_kept(kind)]
    events = [batch.events[row] for row in rows]
    arguments = [event.args or parse.NO_ARGUMENTS for event in events]
    shapes, shape = _shapes(arguments, with_shapes=with_shapes)
    given = {
        name: list(map(attrgetter(parse.ATTRIBUTES[name]), arguments))
        for name in (*parse.NUMBER_ARGUMENTS, *parse.TEXT_ARGUMENTS)
    }
    numbers = {
        name: _wholes(given[name])
        for name in parse.NUMBER_ARGUMENTS
        if given[name].count(ABSENT) < len(events)
    }
    codes = {
        name: texts.of(str(text) if text else "" for text in given[name])
        for name in parse.TEXT_ARGUMENTS
        if given[name].count("") < len(events)
    }
    for name in parse.VALUE_ARGUMENTS if with_inputs else ():
        values = [bytes(getattr(own, parse.ATTRIBUTES[name])) for own in arguments]
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
            for kind, start in zip(every, batch.start_ns.tolist(), strict=True)
            if kind[0] in LASTING and start != parse.NO_TIME and not is_kept(kind)
        ),
    )


def _wholes(values: Sequence[Any]) -> _Array:
    """Return the parse.whole numbers in the values."""
    try:
        return np.frombuffer(array("q", values), np.int64)  # refuses what is no parse.whole number
    except (TypeError, OverflowError):
        return np.array([parse.whole(value) for value in values], np.int64)


def _shapes(arguments: Sequence[parse.Arguments], *, with_shapes: bool) -> tuple[_Array, _Array]:
    """Return the distinct ways in which kernels were launched, and the number of each event's.

    Both are found by what is written, which is the same for most; or else not at all.
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


class _Room:
    """Memory for what is decoded of a text, as the C fills it."""

    def __init__(self, text: bytes, n_keys: int) -> None:
        self.most = len(text) // _EVENT_BYTES + _FEW
        self.n_buckets = 1 << (self.most + 1).bit_length()
        self.columns = np.empty((len(_PLACE) + n_keys, self.most), np.int64)
        self.filled = np.zeros(len(self.columns), np.int64)
        self.texts = np.empty((self.most, 2), np.int64)
        self.kinds = np.empty((self.most, 3), np.int64)
        self.shapes = np.empty((self.most, len(parse.SHAPE)), np.int64)
        self.buckets = np.zeros(3 * self.n_buckets, np.int32)
        self.metadata = np.empty((_MOST_METADATA, 2), np.int64)
        self.counts = np.array([0, 0, 0, _MOST_METADATA], np.int64)

    def addresses(self) -> tuple[int | None, ...]:
        """Return what the C is told of it."""
        return (
            *(self.most, address(self.columns), address(self.filled), address(self.texts)),
            *(address(self.kinds), address(self.shapes), self.n_buckets, address(self.buckets)),
            *(address(self.metadata), address(self.counts)),
        )


def decode(text: bytes, *, with_inputs: bool = False) -> EventColumns | None:
    """Return the events in the JSON array ``text``; None where they have to be read otherwise.

    The arguments that are wanted the C is told by text, lengths, kinds and parts.
    """
    library = compiled.loaded()
    if library is None:
        return None
    kinds_of = _WITH_INPUTS if with_inputs else _KINDS
    lengths = np.array(list(map(len, kinds_of)), np.int64)
    wanted = np.array(list(kinds_of.values()), np.int8)
    room = _Room(text, len(kinds_of))
    n = library.traceprof_events(
        *(text, len(text), ABSENT, len(kinds_of), "".join(kinds_of).encode(), address(lengths)),
        *(address(wanted), address(_PARTS), *room.addresses()),
    )
    if n < 0:
        return None
    n_texts, n_kinds, n_shapes, n_metadata = room.counts.tolist()
    named = [text[start:end] for start, end in room.metadata[:n_metadata].tolist()]
    try:
        texts = _texts_at(room.texts[:n_texts].tolist(), text)
        metadata = parse.decode_events(b"[" + b",".join(named) + b"]")
    except parse.UNREADABLE:
        return None
    nullable = [*texts, None]  # -1 stands for null
    place = dict(zip(_PLACE, room.columns[:, :n], strict=False))
    given = zip(kinds_of, room.columns[len(_PLACE) :], room.filled[len(_PLACE) :], strict=True)
    return EventColumns(
        **place,
        arguments={name: column[:n] for name, column, n_filled in given if n_filled},
        kinds=[
            (nullable[phase], nullable[category], nullable[name])
            for phase, category, name in room.kinds[:n_kinds].tolist()
        ],
        texts=texts,
        shapes=room.shapes[:n_shapes],
        metadata=metadata,
    )


def _texts_at(places: Sequence[Sequence[int]], text: bytes) -> list[str]:
    """Return the texts at some places; raises one of `UNREADABLE`."""
    written = (_as_text(text[start : start + n_bytes]) for start, n_bytes in places)
    return _TEXTS.decode(b'["' + b'","'.join(written) + b'"]')


def _as_text(written: bytes) -> bytes:
    """Return what stands between the quotes of a text; of a value the text that it is written as.

    Within a text no quote stands without a backslash before it, and no line ends.
    """
    quote = written.find(b'"')
    is_text = quote < 0 or written[quote - 1 : quote] == b"\\"
    if is_text and _LINES.isdisjoint(written):
        return written
    return msgspec.json.encode(written.decode("utf-8", "replace"))[1:-1]
