"""Shared operations on tables: columns as arrays, unions of times, rows by value and by name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from traceprof.model.grouping import (
    Groups,
    codes_of,
    groups_of,
    pieces_of,
    places_of,
    rows_by_value,
    rows_by_values,
)
from traceprof.model.intervals import Growing, Intervals, overlapping_pairs
from traceprof.model.packed import Packed
from traceprof.model.table import Column, Names, Table, in_memory, spill_to_disk
from traceprof.names.ranges import are_matched

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Texts = npt.NDArray[np.object_]
_Column = TypeVar("_Column", bound="Array | Packed")


def ints(table: Table, *names: str, rows: Array | slice = slice(None)) -> list[Ints]:
    """Return columns as int64 arrays, of all or some rows."""
    return [np.asarray(table[name], np.int64)[rows] for name in names]


def floats(table: Table, *names: str, rows: Any = slice(None)) -> list[Floats]:
    """Return columns as float64 arrays, NaN if unknown, of all or some rows."""
    return [np.asarray(table[name][rows], np.float64) for name in names]


def bounds(table: Table) -> tuple[Ints, Ints]:
    """Return the start and end of each row, in ns."""
    return np.asarray(table["start_ns"], np.int64), np.asarray(table["end_ns"], np.int64)


def lengths_of(table: Table) -> Ints:
    """Return the duration of each row, in ns."""
    starts, ends = bounds(table)
    return ends - starts


def union_of(table: Table) -> Intervals:
    """Return the union of the times of all rows."""
    return Intervals.union_of(*bounds(table))


def rows_by(table: Table, column: str) -> dict[int, Ints]:
    """Return the row indices of each value of an integer column, sorted by value."""
    return dict(rows_by_value(table[column]))


def moved_to_disk(values: _Column) -> _Column:
    """Return ``values``, moved to disk if large, because all columns together take much memory."""
    found: _Column = in_memory(spill_to_disk(values))
    return found


def picked(values: Array, rows: Array) -> Array:
    """Return the values of the ascending ``rows``, without a copy if these are all rows."""
    return values if len(rows) == len(values) else values[rows]


def grouped(keys: Mapping[str, Column]) -> tuple[Groups, dict[str, Array]]:
    """Return the groups of rows with equal keys, sorted by key, and the keys of each group.

    Keys are integers or Names. For Names, the returned keys are texts, in the order of their codes.
    """
    groups = groups_of(*map(codes_of, keys.values()))
    firsts = ((name, column[groups.first_rows]) for name, column in keys.items())
    return groups, {
        name: column.plain() if isinstance(column, Names) else np.asarray(column, np.int64)
        for name, column in firsts
    }


def unions_by(table: Table, column: str = "process") -> dict[int, Intervals]:
    """Return the union of the times of the rows by process, or by another ``column``."""
    return {keys[0]: time for keys, time in unions_of(*bounds(table), table[column]).items()}


def unions_of(
    starts: Ints, ends: Ints, *keys: Array, where: Bools | None = None
) -> dict[tuple[int, ...], Intervals]:
    """Return the union of the times of the rows by ``keys`` (integers), sorted by key.

    ``where`` selects rows. Long tables are processed in pieces.
    """
    pieces = [*pieces_of(len(starts))]
    if len(pieces) < 2 and where is None:
        return {
            key: Intervals.union_of(starts[rows], ends[rows])
            for key, rows in rows_by_values(*keys).items()
        }
    groups = groups_of(*keys)
    found: dict[int, Growing] = {}
    for piece in pieces:
        rows = np.arange(piece.start, piece.stop)
        rows = rows if where is None else rows[where[piece]]
        for number, at in rows_by_value(groups.packed[rows]).items():
            if number not in found:
                found[number] = Growing(int(groups.counts[number]))
            members = rows[at]
            found[number].add(Intervals.union_of(starts[members], ends[members]))
    values = groups.keys
    return {values[number]: found[number].found() for number in sorted(found)}


def covered_ns(spans: Table, times: Mapping[int, Intervals]) -> Floats:
    """Return the part of each span that the times of its process cover, in ns; NaN if none."""
    starts, ends = bounds(spans)
    found = np.full(len(spans), np.nan)
    for process, rows in rows_by(spans, "process").items():
        if process in times:
            found[rows] = times[process].covered_ns(starts[rows], np.maximum(starts, ends)[rows])
    return found


def span_at(starts: Ints, ends: Ints, instants: Ints) -> Ints:
    """Return the index of the span that contains each instant, -1 if none does.

    ``starts`` are sorted. Only the span that began last before the instant is considered.
    """
    place = np.searchsorted(starts, instants, side="right") - 1
    inside = np.append(ends, 0)[place] > instants
    return np.where(inside & (place >= 0), place, -1)


def count_within(instants: Ints, starts: Ints, ends: Ints) -> Ints:
    """Return the number of the sorted ``instants`` in each half-open span."""
    return np.asarray(np.searchsorted(instants, ends) - np.searchsorted(instants, starts), np.int64)


def owner_of(steps: Table, process: Ints, instants: Ints) -> Ints:
    """Return the row of the step whose host span contains each instant of a process; -1 if none."""
    owner = np.full(len(instants), -1, np.int64)
    starts, ends = bounds(steps)
    of_process = rows_by_value(process)
    for key, rows in rows_by(steps, "process").items():
        process_rows = of_process.get(key)
        if process_rows is None:
            continue
        place = span_at(starts[rows], ends[rows], instants[process_rows])
        owner[process_rows] = np.where(place >= 0, rows[place], -1)
    return owner


def overlaps(
    starts: Ints, ends: Ints, other_starts: Ints, other_ends: Ints
) -> tuple[Ints, Ints, Ints, Ints]:
    """Return the pairs of overlapping spans, and the start and end of each overlap.

    For the pairs see `overlapping_pairs`.
    """
    one, other = overlapping_pairs(starts, ends, other_starts, other_ends)
    first = np.maximum(starts[one], other_starts[other])
    return one, other, first, np.minimum(ends[one], other_ends[other])


def are_first(*columns: Array | Packed) -> Bools:
    """Return which rows differ from the previous row in any of the columns."""
    found = np.ones(len(columns[0]), np.bool_)
    found[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return found


def busiest_lanes(lanes: Mapping[tuple[int, ...], Ints]) -> dict[int, tuple[int, ...]]:
    """Return the key of the lane with the most rows by process, the first element of each key.

    If lanes have the same number of rows, the smallest key wins.
    """
    found: dict[int, tuple[int, ...]] = {}
    for lane in sorted(lanes, key=lambda key: -len(lanes[key])):
        found.setdefault(lane[0], lane)
    return found


def where_known(values: Array, known: Bools) -> Array:
    """Return ``values`` with NaN where not ``known``; the unchanged array if all are known."""
    return values if known.all() else np.where(known, values, np.nan)


def ratio_of(part: npt.ArrayLike, whole: npt.ArrayLike) -> Floats:
    """Return part / whole by row; NaN if a value is unknown or the whole is not positive."""
    wholes = np.asarray(whole, np.float64)
    return np.asarray(part, np.float64) / np.where(wholes > 0, wholes, np.nan)


def mean_of(values: Array) -> float:
    """Return the mean of the known values; NaN if none is known."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else np.nan


def sums_at(places: Ints, values: npt.ArrayLike, n: int) -> Ints:
    """Return the sum of integer ``values`` at each of ``n`` places; place -1 is ignored."""
    found = np.zeros(n, np.int64)
    kept = places >= 0
    np.add.at(found, places[kept], np.broadcast_to(values, places.shape)[kept])
    return found


def looked_up(column: Array, values: Mapping[int, Any], missing: Any) -> Array:
    """Return the entry of ``values`` for each integer of ``column``; ``missing`` if it has none."""
    place, distinct = places_of(column)
    return place.pick(np.array([*(values.get(key, missing) for key in distinct), missing]))


def are_named(names: Names, pattern: re.Pattern[str]) -> Bools:
    """Return which rows have a name in which ``pattern`` is found."""
    return names.by_text(are_matched(names.texts, pattern))


def cap_for_total(lengths: Ints, total_ns: float) -> int:
    """Return the cap in ns for which the capped ``lengths`` add up to ``total_ns``."""
    if total_ns <= 0 or not len(lengths):
        return 0
    lengths = np.sort(lengths)
    # Totals if the cap equals each length: shorter lengths in full, longer ones cut to the cap.
    taken = np.cumsum(lengths) + lengths * np.arange(len(lengths) - 1, -1, -1)
    place = int(np.searchsorted(taken, total_ns))
    if place == len(lengths):
        return int(lengths[-1])
    return round((total_ns - int(lengths[:place].sum())) / (len(lengths) - place))
