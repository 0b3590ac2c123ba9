"""Events of several tables in one shape, and how they become rows of channels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.model.intervals import Int64Array, Intervals
from traceprof.model.tables import ABSENT
from traceprof.render.escape import plain_text
from traceprof.render.palette import CATEGORIES
from traceprof.render.timeline.channels import Channel, Row
from traceprof.render.timeline.packing import assign_lines
from traceprof.values import dataclass

__all__ = [
    "MAX_LINES",
    "Events",
    "NameTable",
    "join_events",
    "make_rows",
    "merge_overlapping",
    "split_by",
]

MAX_LINES: Final = 32
"""How many lines one lane has at most."""

_IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Events:
    """Events as equally long columns; ``categories`` are places in the palette."""

    starts: Int64Array
    ends: Int64Array
    categories: _IntArray
    names: _IntArray
    n_bytes: Int64Array
    correlations: Int64Array

    def __len__(self) -> int:
        return len(self.starts)

    def take(self, rows: npt.NDArray[np.int64]) -> Events:
        """Return the events at the places ``rows``."""
        return Events(*(getattr(self, column)[rows] for column in self.__slots__))


class NameTable:
    """The distinct names of a page, in the order in which they were first needed."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names so far; an id is a place in it."""
        return tuple(self._places)

    def ids(self, names: pd.Categorical) -> _IntArray:
        """Return the id of each name; frequent ones get small ids, which take fewer bytes."""
        codes = np.asarray(names.codes, np.int64)
        counts = np.bincount(codes + 1, minlength=len(names.categories) + 1)[1:]
        place = np.zeros(len(names.categories) + 1, np.int64)
        used = np.flatnonzero(counts)
        used = used[np.argsort(-counts[used], kind="stable")]
        texts = names.categories.to_numpy(object)[used].tolist()
        place[used] = [self.id_of(str(text)) for text in texts]
        if (codes == ABSENT).any():
            place[-1] = self.id_of("")
        return place[codes]

    def id_of(self, name: str) -> int:
        """Return the id of one name."""
        return self._places.setdefault(plain_text(name) or "(no name)", len(self._places))


def join_events(parts: Sequence[Events]) -> tuple[Events, _IntArray]:
    """Return the events of all ``parts`` sorted as a trace's tables are, and where each came from.

    The second array holds, for each event, its place in the concatenation of the parts.
    """
    joined = Events(
        *(np.concatenate([getattr(part, column) for part in parts]) for column in Events.__slots__)
    )
    order = np.lexsort((-joined.ends, joined.starts))
    return joined.take(order), order


def split_by(*keys: _IntArray) -> Iterator[tuple[tuple[int, ...], _IntArray]]:
    """Yield each distinct combination of ``keys``, ascending, with the places that have it.

    The places keep their order.
    """
    if len(keys[0]) == 0:
        return
    order = np.lexsort(keys[::-1])
    table = np.stack([key[order] for key in keys])
    changes = np.flatnonzero((table[:, 1:] != table[:, :-1]).any(axis=0)) + 1
    for places in np.split(order, changes):
        yield tuple(int(key[places[0]]) for key in keys), places


def make_rows(label: str, kind: str, events: Events) -> tuple[Row, ...]:
    """Return the rows of one lane: one, or one for each depth where its events overlap.

    Beyond `MAX_LINES` what overlaps is merged on one last row, whose items say how many events
    they stand for.
    """
    lines = np.minimum(assign_lines(events.starts, events.ends), MAX_LINES)
    return tuple(
        Row(f"merged below {line}", kind, _merged_channels(events.take(places)))
        if line == MAX_LINES
        else Row(label if line == 0 else f"{line}", kind, _channels(events.take(places)))
        for (line,), places in split_by(lines)
    )


def _merged_channels(events: Events) -> tuple[Channel, ...]:
    return tuple(
        merge_overlapping(CATEGORIES[category].key, events.take(places))
        for (category,), places in split_by(events.categories)
    )


def merge_overlapping(category: str, events: Events) -> Channel:
    """Return one item for each stretch without a gap: its events, their number and bytes."""
    stretches = Intervals.union_of(events.starts, np.maximum(events.ends, events.starts + 1))
    first = np.searchsorted(events.starts, stretches.starts, side="left")
    counts = np.diff(np.append(first, len(events)))
    known = np.maximum(events.n_bytes, 0)
    n_bytes = np.where(
        np.maximum.reduceat(events.n_bytes, first) == ABSENT, ABSENT, np.add.reduceat(known, first)
    )
    return Channel(
        category=category,
        starts=stretches.starts,
        ends=stretches.ends,
        names=events.names[first],
        n_bytes=_unless_absent(n_bytes),
        busy_ns=stretches.ends - stretches.starts,
        counts=counts,
    )


def _channels(events: Events) -> tuple[Channel, ...]:
    return tuple(
        _channel(CATEGORIES[category].key, events.take(places))
        for (category,), places in split_by(events.categories)
    )


def _channel(category: str, events: Events) -> Channel:
    return Channel(
        category=category,
        starts=events.starts,
        ends=events.ends,
        names=events.names,
        n_bytes=_unless_absent(events.n_bytes),
        correlations=_unless_absent(events.correlations),
    )


def _unless_absent(values: Int64Array) -> Int64Array | None:
    return values if bool((values != ABSENT).any()) else None
