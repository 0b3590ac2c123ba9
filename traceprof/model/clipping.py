"""Select the rows of a table inside a window, and clip rows that cross its borders."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from traceprof.model.table import RowsOf, Table
from traceprof.model.tables import ABSENT, TableSchema, sort_order
from traceprof.model.timing import TimeWindow


def rows_inside(frame: Table, window: TimeWindow, table: TableSchema) -> tuple[Table, RowsOf]:
    """Return the rows inside ``window``, clipped at its borders and gaps, and their row numbers."""
    found, rows = _clipped(frame, window, table)
    if not window.gaps:
        return found, rows
    found, kept = _without_gaps(found, window, table)
    return found, rows_of_rows(rows, kept)


def _clipped(frame: Table, window: TimeWindow, table: TableSchema) -> tuple[Table, RowsOf]:
    """Return the rows between start and end of ``window``, clipped there, and their row numbers."""
    starts = frame["start_ns"]
    first, last = map(int, np.searchsorted(starts, [window.start_ns, window.end_ns]))
    if not table.has_spans:
        return _rows(frame, slice(first, last))
    # Rows are sorted by start: rows that start in the window are inside, and some earlier ones.
    until = first if window.duration_ns else 0
    before = np.flatnonzero(frame["end_ns"][:until] > window.start_ns)
    rows: RowsOf = slice(first - len(before), last)
    if len(before) and before[0] != first - len(before):
        rows = np.append(before, np.arange(first, last))
    cut, found = _rows(frame, rows)
    starts, ends = cut["start_ns"], cut["end_ns"]
    changed: dict[str, npt.NDArray[np.int64]] = {}
    if len(before):
        changed["start_ns"] = starts.copy()
        changed["start_ns"][: len(before)] = window.start_ns
    if int(ends.max(initial=window.end_ns)) > window.end_ns:
        changed["end_ns"] = np.minimum(ends, window.end_ns)
    if not changed:
        return cut, found
    new_starts, new_ends = changed.get("start_ns", starts), changed.get("end_ns", ends)
    for column in table.pro_rata:
        whole = cut[column]
        changed[column] = _pro_rata(whole, (starts, ends), (new_starts, new_ends))
    cut = cut.assign(**changed)
    # Clipped rows that started before the window now start together: the longest comes first.
    n_first = int(np.searchsorted(new_starts, window.start_ns, side="right"))
    order = sort_order(cut.head(n_first), table) if len(before) else None
    if order is None:
        return cut, found
    places = np.arange(len(cut))
    places[:n_first] = order
    return cut.take(places), rows_of_rows(found, places)


def _without_gaps(frame: Table, window: TimeWindow, table: TableSchema) -> tuple[Table, RowsOf]:
    """Drop the rows of ``frame`` that are inside gaps of ``window``, and clip rows at gaps.

    A row across a whole gap stays one row: it has time on both sides of the gap.
    """
    starts, ends = frame["start_ns"], frame["end_ns"] if table.has_spans else frame["start_ns"]
    rows = rows_where(window.overlaps(starts, ends))
    cut, found = _rows(frame, rows)
    if not table.has_spans:
        return cut, found
    gap_starts, gap_ends = (np.array(edges, np.int64) for edges in zip(*window.gaps, strict=True))
    starts, ends = cut["start_ns"], cut["end_ns"]
    # The last gap that starts before each row starts and ends; -1: none. The end of a gap is not
    # part of it.
    first = np.searchsorted(gap_starts, starts, side="right") - 1
    last = np.searchsorted(gap_starts, ends, side="left") - 1
    begins_in = (first >= 0) & (starts < gap_ends[first])
    ends_in = (last >= 0) & (ends <= gap_ends[last]) & (starts < ends)
    if not begins_in.any() and not ends_in.any():
        return cut, found
    changed = {
        "start_ns": np.where(begins_in, gap_ends[first], starts),
        "end_ns": np.where(ends_in, gap_starts[last], ends),
    }
    parts = changed["start_ns"], changed["end_ns"]
    for column in table.pro_rata:
        changed[column] = _pro_rata(cut[column], (starts, ends), parts)
    cut = cut.assign(**changed)
    order = sort_order(cut, table)
    if order is None:
        return cut, found
    return cut.take(order), rows_of_rows(found, order)


def rows_where(inside: npt.NDArray[np.bool_]) -> RowsOf:
    """Return the selected rows as a slice if they are contiguous, otherwise as row numbers."""
    rows = np.flatnonzero(inside)
    if len(rows) == len(inside):
        return slice(None)
    if len(rows) and rows[-1] - rows[0] == len(rows) - 1:
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows


def _rows(frame: Table, rows: RowsOf) -> tuple[Table, RowsOf]:
    if isinstance(rows, slice):
        is_whole = (rows.start or 0) == 0 and rows.stop in (None, len(frame))
        return (frame if is_whole else frame.take(rows)), rows
    return frame.take_on_disk(rows), rows


def rows_of_rows(rows: RowsOf, inside: RowsOf) -> RowsOf:
    """Return the row numbers in the whole table of the rows ``inside`` its selection ``rows``."""
    if not isinstance(rows, slice):
        return rows[inside]
    offset = rows.start or 0
    if isinstance(inside, slice):
        stop = rows.stop if inside.stop is None else offset + inside.stop
        return slice(offset + (inside.start or 0), stop)
    return inside + offset


def _pro_rata(
    n_bytes: np.ndarray, whole: tuple[np.ndarray, np.ndarray], part: tuple[np.ndarray, np.ndarray]
) -> np.ndarray:
    """Return the bytes of clipped rows in proportion to the remaining duration.

    Uses Python integers, since bytes times ns overflow 64 bits.
    """
    result = n_bytes.copy()
    was_cut = (whole[0] != part[0]) | (whole[1] != part[1])
    for i in np.flatnonzero(was_cut & (n_bytes != ABSENT)):
        total, start = int(n_bytes[i]), int(whole[0][i])
        duration = int(whole[1][i]) - start
        until_end = total * (int(part[1][i]) - start) // duration
        result[i] = until_end - total * (int(part[0][i]) - start) // duration
    return result
