"""Events that `parse` read, as columns: all that is done once for each event.

Where the C does not read them (`compiled`), which makes the same of them.
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
from traceprof.model.tables import ABSENT
from traceprof.values import dataclass

__all__ = ["METADATA", "Batch", "Details", "Kind", "narrow"]

Kind = tuple[Any, Any, Any]
"""Phase, category and name of an event."""
METADATA: Final = "M"
"""The phase of events that name processes and threads."""

_Array = npt.NDArray[Any]

_INT32: Final = np.iinfo(np.int32)
_KIND: Final = attrgetter("ph", "cat", "name")


@dataclass(frozen=True, slots=True)
class Details:
    """Where events were and their arguments, a row each, in columns.

    ``texts`` has a column of numbers of ``distinct_texts`` for each argument that a row has (0 is
    ""), ``numbers`` one of values; ``shape`` numbers ``distinct_shapes``, where they were asked
    for, and ``has_shapes`` says whether a row has one.
    """

    process: _Array = field(default_factory=lambda: np.empty(0, np.int64))
    thread: _Array = field(default_factory=lambda: np.empty(0, np.int64))
    numbers: Mapping[str, _Array] = field(default_factory=dict)
    distinct_texts: Sequence[str] = ("",)
    texts: Mapping[str, _Array] = field(default_factory=dict)
    has_shapes: bool = False
    distinct_shapes: Sequence[tuple[int, ...]] = (NO_SHAPE,)
    shape: _Array | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """Events, and their exact times in ns, an element each; `NO_TIME` where there is none."""

    events: Sequence[Any]
    start_ns: npt.NDArray[np.int64]
    duration_ns: npt.NDArray[np.int64]

    def codes(self, number: Callable[[Kind], int]) -> npt.NDArray[np.int32]:
        """Return the ``number`` of the kind of each event."""
        return np.fromiter(map(number, map(_KIND, self.events)), np.int32, len(self.events))

    @property
    def metadata(self) -> Sequence[Any]:
        """The events of phase M."""
        return [event for event in self.events if event.ph == METADATA]

    def details(self, rows: npt.NDArray[np.int64], *, with_shapes: bool) -> Details:
        """Return what else is told of some of the events, which are in order."""
        events = self.events
        if len(rows) < len(events):
            events = [events[index] for index in rows.tolist()]
        arguments = [event.args or NO_ARGUMENTS for event in events]
        grids = [each.grid for each in arguments]
        distinct_texts, texts = _texts(arguments)
        distinct_shapes, shape = _shapes(arguments) if with_shapes else ((NO_SHAPE,), None)
        return Details(
            process=_wholes([event.pid for event in events]),
            thread=_wholes([event.tid for event in events]),
            numbers=_numbers(arguments),
            distinct_texts=distinct_texts,
            texts=texts,
            has_shapes=grids.count(None) < len(grids),
            distinct_shapes=distinct_shapes,
            shape=shape,
        )


def narrow(wide: npt.NDArray[np.int64]) -> _Array:
    """Return whole numbers, one or more, in 32 bits where these are enough."""
    is_narrow = _INT32.min <= wide.min() and wide.max() <= _INT32.max
    return wide.astype(np.int32) if is_narrow else wide


def _numbers(arguments: Sequence[Arguments]) -> dict[str, _Array]:
    """Return the whole numbers of each argument that one of the events has."""
    numbers = {}
    for name, get in NUMBER_ARGUMENTS.items():
        values = get(arguments)
        if values.count(ABSENT) < len(values):
            numbers[name] = _wholes(values)
    return numbers


def _wholes(values: Sequence[Any]) -> _Array:
    """Return the whole numbers in the values."""
    try:
        wide = np.frombuffer(array("q", values), np.int64)  # refuses what is no whole number
    except (TypeError, OverflowError):
        wide = np.array([whole(value) for value in values], np.int64)
    return narrow(wide)


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
