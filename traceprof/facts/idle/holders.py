"""Which of the threads a gap is charged to at each moment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.facts.host.lanes import Doing, Lane, Lanes
from traceprof.model.grouping import compact, rows_by_value
from traceprof.model.intervals import Intervals, overlapping_pairs
from traceprof.values import dataclass

__all__ = ["BY", "LAUNCHING", "OTHER", "Chosen", "chosen_pieces", "pieces_of_parts"]

_Int64Array = npt.NDArray[np.int64]

BY: Final = ("", "launching", "other")
"""Whose name is charged: of the thread that launches what ends the gap, or of another one."""

LAUNCHING: Final = BY.index("launching")
OTHER: Final = BY.index("other")


def pieces_of_parts(parts: pd.DataFrame, lanes: Lanes) -> pd.DataFrame:
    """Return what every thread was in during each of the ``parts`` of gaps.

    ``parts`` have start_ns, end_ns, process and thread (that launches what ends the gap). Columns:
    part (its row), start_ns, end_ns, name, operator, lane, is_own (of that thread) and doing.
    """
    starts, ends, thread = (
        parts[name].to_numpy(np.int64) for name in ("start_ns", "end_ns", "thread")
    )
    of_processes = {
        process: _Parts.of(rows, starts, ends)
        for process, rows in rows_by_value(parts["process"]).items()
    }
    none = np.empty(0, np.int64)
    found = [(compact(none), none, none, *(compact(none) for _ in range(3)), none.astype(np.bool_))]
    for number, lane in enumerate(lanes.lanes):
        if lane.process not in of_processes:
            continue
        rows = of_processes[lane.process].within(lane)
        place, piece = overlapping_pairs(starts[rows], ends[rows], lane.starts, lane.ends)
        part = rows[place]
        found.append(
            (
                compact(part),
                np.maximum(starts[part], lane.starts[piece]),
                np.minimum(ends[part], lane.ends[piece]),
                compact(lane.name)[piece],
                compact(lane.operator)[piece],
                np.full(len(part), number, np.min_scalar_type(-number - 1)),
                thread[part] == lane.thread,
            )
        )
    names = ("part", "start_ns", "end_ns", "name", "operator", "lane", "is_own")
    columns = map(np.concatenate, zip(*found, strict=True))
    pieces = pd.DataFrame(dict(zip(names, columns, strict=True)), copy=False)
    return pieces.assign(doing=lanes.doing[pieces["name"].to_numpy()])


@dataclass(frozen=True, slots=True, eq=False)
class _Parts:
    """The parts of gaps of a process by their starts, and how far those up to each reach."""

    rows: _Int64Array
    starts: _Int64Array
    reach: _Int64Array

    @classmethod
    def of(cls, rows: _Int64Array, starts: _Int64Array, ends: _Int64Array) -> Self:
        """Return the parts ``rows``."""
        rows = rows[np.argsort(starts[rows], kind="stable")]
        return cls(rows, starts[rows], np.maximum.accumulate(ends[rows]))

    def within(self, lane: Lane) -> _Int64Array:
        """Return the parts, in their order, that can overlap what a thread was in."""
        if not len(lane.starts):
            return self.rows[:0]
        first = np.searchsorted(self.reach, lane.starts[0], side="right")
        last = np.searchsorted(self.starts, lane.ends[-1], side="left")
        return np.sort(self.rows[first:last])


class Chosen(NamedTuple):
    """What is charged, row by row: part, start, end, name and operator (-1: none), place in `BY`.

    Of the smallest types that hold them: there are as many rows as launches.
    """

    part: npt.NDArray[Any]
    start_ns: _Int64Array
    end_ns: _Int64Array
    name: npt.NDArray[Any]
    operator: npt.NDArray[Any]
    by: npt.NDArray[np.int8]


def chosen_pieces(parts: pd.DataFrame, pieces: pd.DataFrame) -> Chosen:
    """Return what is charged.

    It is looked for on an axis on which all parts stand one behind the other (``offset_ns``):
    there the gaps of several devices do not overlap. First what comes first takes its time, the
    next what that left free, and so on.
    """
    offset = parts["offset_ns"].to_numpy(np.int64)
    starts, ends = parts["start_ns"].to_numpy(np.int64), parts["end_ns"].to_numpy(np.int64)
    lengths = ends - starts
    columns = ("part", "start_ns", "name", "operator", "is_own")
    part, begin, name, operator, is_own = (pieces[own].to_numpy() for own in columns)
    first = offset[part] + begin - starts[part]
    last = first + (pieces["end_ns"].to_numpy(np.int64) - begin)
    free = Intervals.single(0, int(lengths.sum()))
    found = []
    for layer in _layers(parts, pieces):
        rows = layer[np.argsort(first[layer])]
        row, of_free = overlapping_pairs(first[rows], last[rows], free.starts, free.ends)
        row = rows[row]
        x0, x1 = (
            np.maximum(first[row], free.starts[of_free]),
            np.minimum(last[row], free.ends[of_free]),
        )
        by = np.where(is_own[row], np.int8(LAUNCHING), np.int8(OTHER))
        found.append((compact(part[row]), x0, x1, name[row], operator[row], by))
        free = free - Intervals.union_of(first[rows], last[rows])
    row, of_free = overlapping_pairs(offset, offset + lengths, free.starts, free.ends)
    x0 = np.maximum(offset[row], free.starts[of_free])
    x1 = np.minimum(offset[row] + lengths[row], free.ends[of_free])
    nothing = np.full(len(row), -1, np.int8)
    found.append((compact(row), x0, x1, nothing, nothing, np.zeros(len(row), np.int8)))
    part, x0, x1, name, operator, by = map(np.concatenate, zip(*found, strict=True))
    to_time = (starts - offset)[part]
    return Chosen(part, x0 + to_time, x1 + to_time, name, operator, by)


def _layers(parts: pd.DataFrame, pieces: pd.DataFrame) -> Iterator[_Int64Array]:
    """Yield the rows of ``pieces`` that are charged first, then those behind them, and so on."""
    is_own, doing = pieces["is_own"].to_numpy(np.bool_), pieces["doing"].to_numpy()
    yield np.flatnonzero(is_own & (doing != Doing.WAITS))
    others = np.flatnonzero(~is_own & (doing == Doing.RUNS))
    rank = _ranks(parts, pieces.take(others))
    for place in range(int(rank.max(initial=-1)) + 1):
        yield others[rank == place]
    yield np.flatnonzero(is_own & (doing == Doing.WAITS))


def _ranks(parts: pd.DataFrame, pieces: pd.DataFrame) -> _Int64Array:
    """Return which thread of its gap each piece is of, by the time that they cover of it."""
    gap = parts["gap"].to_numpy(np.int64)[pieces["part"].to_numpy()]
    lane = pieces["lane"].to_numpy(np.int64)
    n_lanes = int(lane.max(initial=0)) + 1
    pairs, place = np.unique(gap * n_lanes + lane, return_inverse=True)
    covered = np.zeros(len(pairs), np.int64)
    np.add.at(covered, place, (pieces["end_ns"] - pieces["start_ns"]).to_numpy(np.int64))
    order = np.lexsort((-covered, pairs // n_lanes))
    owner = (pairs // n_lanes)[order]
    opens = np.flatnonzero(np.append(True, owner[1:] != owner[:-1])) if len(owner) else owner
    rank = np.empty(len(pairs), np.int64)
    rank[order] = np.arange(len(pairs)) - np.repeat(opens, np.diff(np.append(opens, len(pairs))))
    return rank[place]
