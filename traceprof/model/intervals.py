"""The algebra of time: sets of half-open integer intervals ``[start, end)``.

Every breakdown rests on this module. All results are exact ``int64`` nanoseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from traceprof.errors import TraceError

Int64Array: TypeAlias = npt.NDArray[np.int64]

_MIN_INSTANT: Final = np.iinfo(np.int64).min
_MAX_INSTANT: Final = np.iinfo(np.int64).max
_PIECE_INTERVALS: Final = 400_000
"""More intervals than this are put together in pieces."""
_NO_INSTANTS: Final = np.empty(0, np.int64)  # one for all: thousands of processes have many of them
_NO_INSTANTS.flags.writeable = False
_MIN_PAIRS_LIMIT: Final = 1_000_000
_MAX_PAIRS_PER_ROW: Final = 32
"""How many pairs are made of a row, on average: as many as devices that one process may have."""


@dataclass(frozen=True, slots=True, eq=False)
class Intervals:
    """A set of instants, as sorted, disjoint, non-empty, non-touching intervals.

    ``starts`` and ``ends`` are equally long ``int64`` arrays of nanoseconds. Build one with
    `Intervals.union_of` (any intervals, in any order, overlapping or not).
    """

    starts: Int64Array
    ends: Int64Array

    @classmethod
    def empty(cls) -> Intervals:
        """Return the empty set."""
        return cls(_NO_INSTANTS, _NO_INSTANTS)

    @classmethod
    def single(cls, start_ns: int, end_ns: int) -> Intervals:
        """Return the set ``[start_ns, end_ns)``; empty where the end is not after the start."""
        return cls.union_of(np.array([start_ns]), np.array([end_ns]))

    @classmethod
    def union_of(cls, starts: npt.ArrayLike, ends: npt.ArrayLike) -> Intervals:
        """Return the union of the intervals ``[starts[i], ends[i])``; empty ones are ignored."""
        first = np.asarray(starts, np.int64)
        last = np.asarray(ends, np.int64)
        kept = last > first
        if not kept.all():
            first, last = first[kept], last[kept]
        if len(first) == 0:
            return cls.empty()
        if not bool((first[1:] >= first[:-1]).all()):
            order = np.argsort(first, kind="stable")
            first, last = first[order], last[order]
            del order
        if bool((first[1:] > last[:-1]).all()):
            return cls(first, last)
        if len(first) > _PIECE_INTERVALS:
            growing = Growing(len(first))
            for at in range(0, len(first), _PIECE_INTERVALS):
                growing.add(
                    cls.union_of(
                        first[at : at + _PIECE_INTERVALS], last[at : at + _PIECE_INTERVALS]
                    )
                )
            return growing.found()
        reach = np.maximum.accumulate(last)
        opens = np.concatenate(([True], first[1:] > reach[:-1]))
        closes = np.append(np.flatnonzero(opens)[1:] - 1, len(first) - 1)
        return cls(first[opens], reach[closes])

    def __len__(self) -> int:
        return len(self.starts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Intervals):
            return NotImplemented
        return np.array_equal(self.starts, other.starts) and np.array_equal(self.ends, other.ends)

    __hash__ = None  # type: ignore[assignment]  # holds arrays

    def here(self) -> Intervals:
        """Return the set in the memory of this process, wherever it was (here it is itself)."""
        return self

    @property
    def total_ns(self) -> int:
        """The number of nanoseconds in the set."""
        return int((self.ends - self.starts).sum())

    def __or__(self, other: Intervals) -> Intervals:
        if not len(self) or not len(other):
            return self if len(self) else other
        if len(self) + len(other) > _PIECE_INTERVALS:
            return _union_in_pieces(self, other)
        return Intervals.union_of(
            np.concatenate((self.starts, other.starts)), np.concatenate((self.ends, other.ends))
        )

    def __and__(self, other: Intervals) -> Intervals:
        # In time that grows with the smaller set, and the logarithm of both. Neither has intervals
        # that touch, so that no two of what they have in common do.
        few, many = (self, other) if len(self) <= len(other) else (other, self)
        if len(few) == 1:
            return many.clip(int(few.starts[0]), int(few.ends[0]))
        if not len(few) or few.starts[0] >= many.ends[-1] or few.ends[-1] <= many.starts[0]:
            return Intervals.empty()
        found = []
        for at in range(0, len(few), _PIECE_INTERVALS):
            starts, ends = (
                few.starts[at : at + _PIECE_INTERVALS],
                few.ends[at : at + _PIECE_INTERVALS],
            )
            few_rows, many_rows = overlapping_pairs(starts, ends, many.starts, many.ends)
            if len(few_rows):
                common = np.maximum(starts[few_rows], many.starts[many_rows])
                found.append((common, np.minimum(ends[few_rows], many.ends[many_rows])))
        if len(found) < 2:
            return Intervals(*found[0]) if found else Intervals.empty()
        return Intervals(*map(np.concatenate, zip(*found, strict=True)))

    def __sub__(self, other: Intervals) -> Intervals:
        if not len(self) or not len(other):
            return self
        if other.starts[0] >= self.ends[-1] or other.ends[-1] <= self.starts[0]:
            return self
        # What both have of the rest
        return self & Intervals(
            np.append(_MIN_INSTANT, other.ends), np.append(other.starts, _MAX_INSTANT)
        )

    def clip(self, start_ns: int, end_ns: int) -> Intervals:
        """Return the part of the set inside ``[start_ns, end_ns)``, in time that grows with it."""
        first = int(np.searchsorted(self.ends, start_ns, side="right"))
        last = int(np.searchsorted(self.starts, end_ns, side="left"))
        if first >= last or start_ns >= end_ns:
            return Intervals.empty()
        starts, ends = self.starts[first:last], self.ends[first:last]
        if starts[0] < start_ns:
            starts = starts.copy()
            starts[0] = start_ns
        if ends[-1] > end_ns:
            ends = ends.copy()
            ends[-1] = end_ns
        return Intervals(starts, ends)

    def gaps(self, start_ns: int, end_ns: int) -> Intervals:
        """Return what of ``[start_ns, end_ns)`` is not in the set."""
        return Intervals.single(start_ns, end_ns) - self

    def covered_ns(self, starts: npt.ArrayLike, ends: npt.ArrayLike) -> Int64Array:
        """Return, for each interval ``[starts[i], ends[i])``, how many ns of it are in the set.

        O((n + m) log m); the queries may overlap and come in any order.
        """
        first, last = np.asarray(starts, np.int64), np.asarray(ends, np.int64)
        if not len(self) or not len(first):
            return np.zeros(len(first), np.int64)
        before = np.zeros(len(self) + 1, np.int64)
        np.cumsum(self.ends - self.starts, out=before[1:])
        found = np.empty(len(first), np.int64)
        for at in range(0, len(first), _PIECE_INTERVALS):
            piece = slice(at, at + _PIECE_INTERVALS)
            until = []  # how many ns of the set lie before each instant
            for instants in (first[piece], np.maximum(last[piece], first[piece])):
                index = np.searchsorted(self.starts, instants, side="right")
                cut = np.maximum(self.ends[np.maximum(index - 1, 0)] - instants, 0)
                until.append(np.where(index > 0, before[index] - cut, 0))
            found[piece] = until[1] - until[0]
        return found


class Growing:
    """A union of at most ``n_most`` intervals, to which more and more come.

    In the order of their starts these take the memory of the union alone.
    """

    def __init__(self, max_intervals: int) -> None:
        # Of what is not written to of these there is no memory.
        self._starts, self._ends = (np.empty(max_intervals, np.int64) for _ in range(2))
        self._n, self._is_ordered = 0, True

    def add(self, added: Intervals) -> None:
        """Add a set."""
        if not len(added):
            return
        n, at = self._n, 0
        self._is_ordered &= not n or added.starts[0] >= self._starts[n - 1]
        if n and self._is_ordered and added.starts[0] <= self._ends[n - 1]:
            at = int(np.searchsorted(added.starts, self._ends[n - 1], side="right"))
            self._ends[n - 1] = max(self._ends[n - 1], added.ends[at - 1])
        self._n = n + len(added) - at
        self._starts[n : self._n] = added.starts[at:]
        self._ends[n : self._n] = added.ends[at:]

    def found(self) -> Intervals:
        """Return all that was added."""
        starts, ends = self._starts[: self._n], self._ends[: self._n]
        if not self._is_ordered:
            return Intervals.union_of(starts, ends)
        if 2 * self._n < len(self._starts):
            starts, ends = starts.copy(), ends.copy()  # the room of all that did not come is free
        return Intervals(starts, ends)


def _union_in_pieces(first: Intervals, other: Intervals) -> Intervals:
    """Return the union of two large sets, a piece of time after another: sorting takes memory."""
    longer = first if len(first) >= len(other) else other
    cuts = [
        _MIN_INSTANT,
        *longer.starts[_PIECE_INTERVALS // 4 :: _PIECE_INTERVALS // 4].tolist(),
        _MAX_INSTANT,
    ]
    growing = Growing(len(first) + len(other))
    for span in pairwise(cuts):
        growing.add(first.clip(*span) | other.clip(*span))
    return growing.found()


def union_lengths(
    keys: npt.ArrayLike, starts: npt.ArrayLike, ends: npt.ArrayLike, n_keys: int
) -> Int64Array:
    """Return, for each key from 0 to ``n_keys`` - 1, the ns in the union of its intervals.

    Interval ``[starts[i], ends[i])`` belongs to ``keys[i]``; empty ones are ignored. All unions
    are measured in one sorted sweep: O(n log n), however many keys there are.
    """
    key = np.asarray(keys)
    first, last = (np.asarray(values, np.int64) for values in (starts, ends))
    if not len(key):
        return np.zeros(n_keys, np.int64)
    small = key.astype(np.min_scalar_type(max(n_keys - 1, 0)))  # sorted by their digits
    if not bool((first[1:] >= first[:-1]).all()):
        order = np.argsort(first, kind="stable")
        order = order[np.argsort(small[order], kind="stable")]
    else:
        order = np.argsort(small, kind="stable")
    found = np.zeros(n_keys, np.int64)
    latest, until = -1, 0  # the last key so far, and how far its intervals reach
    for at in range(0, len(order), _PIECE_INTERVALS):
        rows = order[at : at + _PIECE_INTERVALS]
        row_keys, starts, ends = key[rows].astype(np.int64), first[rows], last[rows]
        ends[row_keys == latest] = np.maximum(ends[row_keys == latest], until)
        reach = _furthest(row_keys, ends)
        opens = np.concatenate(([row_keys[0] != latest], row_keys[1:] != row_keys[:-1]))
        covered = np.concatenate(([until], reach[:-1]))
        begin = np.where(opens, starts, np.maximum(starts, covered))
        sums = np.concatenate(([0], np.cumsum(np.maximum(last[rows] - begin, 0))))
        edges = np.searchsorted(row_keys, np.arange(n_keys + 1))
        found += np.diff(sums[edges])
        latest, until = int(row_keys[-1]), int(reach[-1])
    return found


def _furthest(keys: Int64Array, ends: Int64Array) -> Int64Array:
    """Return the furthest end so far among those with the same key; the keys ascend."""
    least, n_instants = int(ends.min()), int(ends.max()) - int(ends.min()) + 1
    if (int(keys[-1]) + 1) * n_instants <= _MAX_INSTANT:
        # The keys come in order, so that the ends of an earlier one never count.
        shift = keys * n_instants - least
        return np.asarray(np.maximum.accumulate(ends + shift) - shift, np.int64)
    # Key times ns would overflow: the ranks of the instants do not.
    by_end = np.argsort(ends, kind="stable")
    rank = np.empty(len(ends), np.int64)
    rank[by_end] = np.arange(len(ends))
    furthest = np.maximum.accumulate(keys * len(ends) + rank) % len(ends)
    return np.asarray(ends[by_end][furthest], np.int64)


def nesting_depth(starts: Int64Array, ends: Int64Array) -> Int64Array:
    """Return how many of the intervals are open where each begins (0 = outermost).

    The intervals must be sorted by start and, where starts are equal, by descending end: an
    interval that begins together with a longer one is inside it. One that begins where another
    ends is beside it.
    """
    if len(starts) == 0:
        return np.empty(0, np.int64)
    # Ends are nearly in order: the stable sort takes a tenth of the time of the other.
    closed = np.searchsorted(np.sort(ends, kind="stable"), starts, side="right")
    # An empty interval closes where it opens: it must not count as closed before itself.
    empty = ends == starts
    if empty.any():
        n_empty_before = np.concatenate(([0], np.cumsum(empty)))
        first = np.searchsorted(starts, starts, side="left")
        same_instant_empty = (
            n_empty_before[np.searchsorted(starts, starts, side="right")] - n_empty_before[first]
        )
        already = n_empty_before[np.arange(len(starts))] - n_empty_before[first]
        closed = closed - (same_instant_empty - already)
    depth: Int64Array = np.maximum(np.arange(len(starts)) - closed, 0)
    return depth


def overlapping_pairs(
    starts: Int64Array, ends: Int64Array, of_starts: Int64Array, of_ends: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Return all pairs (i, j) where ``[starts[i], ends[i])`` overlaps the j-th of the others.

    The others must be sorted, disjoint and not empty (they may touch); the first need not be.
    """
    if not len(starts) or not len(of_starts):
        return _NO_INSTANTS, _NO_INSTANTS
    first = np.searchsorted(of_ends, starts, side="right")
    last = np.searchsorted(of_starts, ends, side="left")
    count = np.where(ends > starts, np.maximum(last - first, 0), 0)
    check_pairs(int(count.sum()), len(starts) + len(of_starts))
    left = np.repeat(np.arange(len(starts)), count)
    within = np.arange(len(left)) - np.repeat(np.cumsum(count) - count, count)
    return left, np.repeat(first, count) + within


def check_pairs(n_pairs: int, n_rows: int) -> None:
    """Refuse pairs of rows that would not fit in memory: far more than there are rows.

    Raises:
        TraceError: ``n_pairs`` of ``n_rows`` in all.
    """
    if n_pairs > _MIN_PAIRS_LIMIT + _MAX_PAIRS_PER_ROW * n_rows:
        raise TraceError(
            f"too many overlaps in the trace ({n_rows} rows, {n_pairs} overlapping pairs): "
            "analyze a part of the trace with --window"
        )


def sorted_distinct(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return each of the values once, sorted: np.unique hashes, ten times as slow for millions."""
    each = np.sort(values)
    return each[np.append(True, each[1:] != each[:-1])] if len(each) else each
