"""Interval algebra: sets of half-open integer intervals ``[start, end)``.

Every time breakdown uses this module. All results are exact ``int64`` nanoseconds.
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
"""Larger sets are processed in pieces of this many intervals."""
_NO_INSTANTS: Final = np.empty(0, np.int64)  # shared: thousands of processes use many empty sets
_NO_INSTANTS.flags.writeable = False
_MIN_PAIRS_LIMIT: Final = 1_000_000
_MAX_PAIRS_PER_ROW: Final = 32
"""Allowed average number of pairs per row: as many as a process may have devices."""


@dataclass(frozen=True, slots=True, eq=False)
class Intervals:
    """A set of instants, as sorted, disjoint, non-empty, non-touching intervals.

    ``starts`` and ``ends`` are ``int64`` arrays of nanoseconds of the same length. Create one from
    any intervals, in any order, with `Intervals.union_of`.
    """

    starts: Int64Array
    ends: Int64Array

    @classmethod
    def empty(cls) -> Intervals:
        """Return the empty set."""
        return cls(_NO_INSTANTS, _NO_INSTANTS)

    @classmethod
    def single(cls, start_ns: int, end_ns: int) -> Intervals:
        """Return the set ``[start_ns, end_ns)``; empty if the end is not after the start."""
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
        """Return the set in the memory of this process. For a local set, that is the set itself."""
        return self

    @property
    def total_ns(self) -> int:
        """The total length in nanoseconds."""
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
        # The cost grows with the smaller set and the logarithm of both. The intersection has no
        # touching intervals, since neither set has any.
        few, many = (self, other) if len(self) <= len(other) else (other, self)
        if len(few) == 1:
            return many.clip(int(few.starts[0]), int(few.ends[0]))
        if not len(few) or few.starts[0] >= many.ends[-1] or few.ends[-1] <= many.starts[0]:
            return few if few is self and not len(few) else Intervals.empty()
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
        # Intersect with the complement of the other set
        return self & Intervals(
            np.append(_MIN_INSTANT, other.ends), np.append(other.starts, _MAX_INSTANT)
        )

    def clip(self, start_ns: int, end_ns: int) -> Intervals:
        """Return the part of the set inside ``[start_ns, end_ns)``; the cost grows with it."""
        first = int(np.searchsorted(self.ends, start_ns, side="right"))
        last = int(np.searchsorted(self.starts, end_ns, side="left"))
        if first >= last or start_ns >= end_ns:
            return Intervals.empty()
        if last - first == len(self) and self.starts[0] >= start_ns and self.ends[-1] <= end_ns:
            return self
        starts, ends = self.starts[first:last], self.ends[first:last]
        if starts[0] < start_ns:
            starts = starts.copy()
            starts[0] = start_ns
        if ends[-1] > end_ns:
            ends = ends.copy()
            ends[-1] = end_ns
        return Intervals(starts, ends)

    def gaps(self, start_ns: int, end_ns: int) -> Intervals:
        """Return the part of ``[start_ns, end_ns)`` that is not in the set."""
        return Intervals.single(start_ns, end_ns) - self

    def covered_ns(self, starts: npt.ArrayLike, ends: npt.ArrayLike) -> Int64Array:
        """Return the covered ns of each interval ``[starts[i], ends[i])``.

        O((n + m) log m). The queries may overlap and have any order.
        """
        first, last = np.asarray(starts, np.int64), np.asarray(ends, np.int64)
        if not len(self) or not len(first):
            return np.zeros(len(first), np.int64)
        before = np.zeros(len(self) + 1, np.int64)
        np.cumsum(self.ends - self.starts, out=before[1:])
        found = np.empty(len(first), np.int64)
        for at in range(0, len(first), _PIECE_INTERVALS):
            piece = slice(at, at + _PIECE_INTERVALS)
            until = []  # ns of the set before each instant
            for instants in (first[piece], np.maximum(last[piece], first[piece])):
                index = np.searchsorted(self.starts, instants, side="right")
                cut = np.maximum(self.ends[np.maximum(index - 1, 0)] - instants, 0)
                until.append(np.where(index > 0, before[index] - cut, 0))
            found[piece] = until[1] - until[0]
        return found


class Growing:
    """A growing union of at most ``max_intervals`` intervals.

    If sets are added in order of their starts, it needs only the memory of the union.
    """

    def __init__(self, max_intervals: int) -> None:
        # The system allocates memory only for the parts that are written.
        self._starts, self._ends = (np.empty(max_intervals, np.int64) for _ in range(2))
        self._n, self._is_ordered = 0, True

    def add(self, added: Intervals) -> None:
        """Add a set to the union."""
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
        """Return the union of all added sets."""
        starts, ends = self._starts[: self._n], self._ends[: self._n]
        if not self._is_ordered:
            return Intervals.union_of(starts, ends)
        if 2 * self._n < len(self._starts):
            starts, ends = starts.copy(), ends.copy()  # frees the unused part
        return Intervals(starts, ends)


def _union_in_pieces(first: Intervals, other: Intervals) -> Intervals:
    """Return the union of two large sets, by time ranges, since sorting needs memory."""
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
    """Return the length in ns of the union of the intervals of each key, from 0 to ``n_keys`` - 1.

    Interval ``[starts[i], ends[i])`` belongs to ``keys[i]``; empty intervals are ignored. All
    unions are measured in one sorted sweep: O(n log n), independent of the number of keys.
    """
    key = np.asarray(keys)
    first, last = (np.asarray(values, np.int64) for values in (starts, ends))
    if not len(key):
        return np.zeros(n_keys, np.int64)
    small = key.astype(np.min_scalar_type(max(n_keys - 1, 0)))  # enables radix sort
    if not bool((first[1:] >= first[:-1]).all()):
        order = np.argsort(first, kind="stable")
        order = order[np.argsort(small[order], kind="stable")]
    else:
        order = np.argsort(small, kind="stable")
    found = np.zeros(n_keys, np.int64)
    latest, until = -1, 0  # last key of the previous piece, and the end of its union
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
    """Return the running maximum of ``ends`` within each key; ``keys`` ascend."""
    least, n_instants = int(ends.min()), int(ends.max()) - int(ends.min()) + 1
    if (int(keys[-1]) + 1) * n_instants <= _MAX_INSTANT:
        # Keys ascend: after the shift, ends of earlier keys are always smaller.
        shift = keys * n_instants - least
        return np.asarray(np.maximum.accumulate(ends + shift) - shift, np.int64)
    # Key times ns would overflow; key times rank of the end does not.
    by_end = np.argsort(ends, kind="stable")
    rank = np.empty(len(ends), np.int64)
    rank[by_end] = np.arange(len(ends))
    furthest = np.maximum.accumulate(keys * len(ends) + rank) % len(ends)
    return np.asarray(ends[by_end][furthest], np.int64)


def nesting_depth(starts: Int64Array, ends: Int64Array) -> Int64Array:
    """Return how many intervals are open at the start of each interval (0 = outermost).

    The intervals must be sorted by start and, for equal starts, by descending end: an interval that
    starts together with a longer one is inside it. An interval that starts at the end of another is
    not inside it.
    """
    if len(starts) == 0:
        return np.empty(0, np.int64)
    # Ends are nearly sorted: the stable sort is ten times faster.
    closed = np.searchsorted(np.sort(ends, kind="stable"), starts, side="right")
    # An empty interval ends where it starts: it must not count as closed before itself.
    empty = ends == starts
    if empty.any():
        n_empty_before = np.concatenate(([0], np.cumsum(empty)))
        first = np.searchsorted(starts, starts, side="left")
        same_instant_empty = (
            n_empty_before[np.searchsorted(starts, starts, side="right")] - n_empty_before[first]
        )
        already = n_empty_before[np.arange(len(starts))] - n_empty_before[first]
        closed = closed - (same_instant_empty - already)
    return np.asarray(np.maximum(np.arange(len(starts)) - closed, 0), np.int64)


def overlapping_pairs(
    starts: Int64Array, ends: Int64Array, of_starts: Int64Array, of_ends: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Return all pairs (i, j) of overlapping intervals, i of the first and j of the second list.

    The second intervals must be sorted, disjoint, and non-empty (they may touch); the first need
    not.

    Raises:
        TraceError: there are too many pairs (`check_pairs`).
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
    """Check that pairs of rows fit in memory: not many more pairs than rows.

    Raises:
        TraceError: ``n_pairs`` exceed the limit for ``n_rows``.
    """
    if n_pairs > _MIN_PAIRS_LIMIT + _MAX_PAIRS_PER_ROW * n_rows:
        raise TraceError(
            f"too many overlaps in the trace ({n_rows} rows, {n_pairs} overlapping pairs): "
            "analyze a part of the trace with --window"
        )


def sorted_distinct(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the sorted distinct values; np.unique is ten times slower for millions of values."""
    each = np.sort(values)
    return each[np.append(True, each[1:] != each[:-1])] if len(each) else each
