"""The events in a JSON array, decoded by ``events.c``, where it was compiled.

It takes what is plain, as nearly all runs of events are; `parse` reads the others, and all where
there is no compiler. What comes of both is the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from traceprof.formats import compiled
from traceprof.formats.compiled import address
from traceprof.formats.kineto.parse import (
    ATTRIBUTES,
    NO_SHAPE,
    NUMBER_ARGUMENTS,
    SHAPE,
    TEXT_ARGUMENTS,
    UNREADABLE,
    Details,
    Kind,
    KinetoEvent,
    decode_events,
    narrow,
)
from traceprof.model.tables import ABSENT

__all__ = ["Decoded", "decode"]

_Array = npt.NDArray[Any]

_PLACE: Final = ("start_ns", "duration_ns", "process", "thread", "kind", "shape")
"""The first columns, as the C names them."""
_NUMBER, _TEXT, _GRID, _BLOCK = range(4)
_KINDS: Final = {
    **dict.fromkeys(NUMBER_ARGUMENTS, _NUMBER),
    **dict.fromkeys(TEXT_ARGUMENTS, _TEXT),
    "grid": _GRID,
    "block": _BLOCK,
    "registers per thread": _NUMBER,
    "shared memory": _NUMBER,
}
_PARTS: Final = ("context", "registers per thread", "shared memory")
_EVENT_BYTES: Final = 48
"""Shorter is no event with a time, a place and a name."""
_FEW: Final = 16
"""Of distinct texts there may be more than of events, where these are few."""
_MOST_METADATA: Final = 1024
_TEXTS: Final = msgspec.json.Decoder(list[str])


@dataclass(frozen=True)
class Decoded:
    """All events of a run, and what is distinct among them.

    Columns have an element for each event: ``kind`` numbers ``kinds``, ``shape`` numbers ``shapes``
    (0 is none), and those of ``arguments``, of each that one of the events has, are whole numbers
    or number ``texts`` (0 is ""). ``metadata`` are the events of phase M.
    """

    start_ns: npt.NDArray[np.int64]
    duration_ns: npt.NDArray[np.int64]
    process: npt.NDArray[np.int64]
    thread: npt.NDArray[np.int64]
    kind: npt.NDArray[np.int64]
    shape: npt.NDArray[np.int64]
    arguments: Mapping[str, npt.NDArray[np.int64]]
    kinds: Sequence[Kind]
    texts: Sequence[str]
    shapes: npt.NDArray[np.int64]
    metadata: Sequence[KinetoEvent]

    def details(self, rows: npt.NDArray[np.int64], *, with_shapes: bool) -> Details:
        """Return what else is told of some of the events, which are in order."""
        taken = {name: column[rows] for name, column in self.arguments.items()}
        distinct, texts = self._texts(taken)
        shape = self.shape[rows]
        shapes = [tuple(row) for row in self.shapes.tolist()]
        return Details(
            process=narrow(self.process[rows]),
            thread=narrow(self.thread[rows]),
            numbers={
                name: narrow(taken[name])
                for name in NUMBER_ARGUMENTS
                if name in taken and (taken[name] != ABSENT).any()
            },
            distinct_texts=distinct,
            texts=texts,
            has_shapes=bool(shape.any()),
            distinct_shapes=shapes if with_shapes else (NO_SHAPE,),
            shape=shape.astype(np.int32) if with_shapes else None,
        )

    def _texts(
        self, taken: Mapping[str, npt.NDArray[np.int64]]
    ) -> tuple[list[str], dict[str, npt.NDArray[np.int32]]]:
        """Return the distinct texts of arguments, and their numbers, in the order of the rows."""
        distinct = {"": 0}
        columns = {}
        for name in TEXT_ARGUMENTS:
            codes = taken.get(name)
            if codes is None or not codes.any():
                continue
            used, first, of_each = np.unique(codes, return_index=True, return_inverse=True)
            numbers = np.zeros(len(used), np.int32)
            for place in first.argsort().tolist():
                text = self.texts[used[place]]
                numbers[place] = distinct.setdefault(text, len(distinct))
            columns[name] = numbers[of_each]
        return list(distinct), columns


@dataclass(frozen=True)
class _Keys:
    """The arguments that are wanted, as the C is told of them."""

    names: Sequence[str]
    text: bytes
    lengths: _Array
    kinds: _Array
    parts: _Array


@cache
def _keys() -> _Keys:
    assert _KINDS.keys() < ATTRIBUTES.keys()
    names = list(_KINDS)
    return _Keys(
        names,
        "".join(names).encode(),
        np.array([len(name) for name in names], np.int64),
        np.array(list(_KINDS.values()), np.int8),
        np.array([names.index(part) for part in _PARTS], np.int64),
    )


class _Room:
    """Memory for what is decoded of a text, as the C fills it."""

    def __init__(self, text: bytes, n_keys: int) -> None:
        self.most = len(text) // _EVENT_BYTES + _FEW
        self.n_buckets = 1 << (self.most + 1).bit_length()
        self.columns = np.empty((len(_PLACE) + n_keys, self.most), np.int64)
        self.filled = np.zeros(len(self.columns), np.int64)
        self.texts = np.empty((self.most, 2), np.int64)
        self.kinds = np.empty((self.most, 3), np.int64)
        self.shapes = np.empty((self.most, len(SHAPE)), np.int64)
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


def decode(text: bytes) -> Decoded | None:
    """Return the events in the JSON array ``text``; None where they have to be read otherwise."""
    if not compiled.is_there():
        return None
    keys = _keys()
    room = _Room(text, len(keys.names))
    n = compiled.loaded().traceprof_events(
        *(text, len(text), ABSENT, len(keys.names), keys.text, address(keys.lengths)),
        *(address(keys.kinds), address(keys.parts), *room.addresses()),
    )
    if n < 0:
        return None
    n_texts, n_kinds, n_shapes, n_metadata = room.counts.tolist()
    named = [text[start:end] for start, end in room.metadata[:n_metadata].tolist()]
    try:
        texts = _texts_at(room.texts[:n_texts].tolist(), text)
        metadata = decode_events(b"[" + b",".join(named) + b"]")
    except UNREADABLE:
        return None
    nullable = [*texts, None]  # -1 stands for null
    place = dict(zip(_PLACE, room.columns[:, :n], strict=False))
    given = zip(keys.names, room.columns[len(_PLACE) :], room.filled[len(_PLACE) :], strict=True)
    return Decoded(
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
    quoted = b'","'.join([text[start : start + n_bytes] for start, n_bytes in places])
    return _TEXTS.decode(b'["' + quoted + b'"]')
