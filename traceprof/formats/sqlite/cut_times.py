"""The columns of a table that say when its rows were, as conditions in SQL."""

from __future__ import annotations

from typing import Final

from traceprof.formats.sqlite.copying import DatabaseCopy, StoredTable
from traceprof.formats.sqlite.table_names import quoted
from traceprof.model.timing import TimeWindow
from traceprof.values import dataclass

__all__ = ["Times", "times_of"]

_STARTS: Final = ("start", "timestamp")
_FOREIGN_STARTS: Final = ("start", "timestamp", "start_ns", "startns", "timestamp_ns", "ts", "time")
_FOREIGN_ENDS: Final = ("end", "end_ns", "endns")
_LOOKED_AT: Final = 1000


@dataclass(frozen=True, slots=True)
class Times:
    """The columns of a table's times, in ns; ``end`` is "" where rows are instants."""

    start: str
    end: str = ""

    @property
    def names(self) -> str:
        """The columns, as one reads them."""
        return ", ".join(filter(None, (self.start, self.end)))

    def overlap(self, window: TimeWindow) -> str:
        """Return the condition on rows of which a part is in the window."""
        start = f"t.{quoted(self.start)}"
        inside = f"{start} >= {window.start_ns}"
        if self.end:
            inside = f"({inside} OR t.{quoted(self.end)} > {window.start_ns})"
        return f"({start} < {window.end_ns} AND {inside})"

    def clipped(self, window: TimeWindow, first_ns: int | None = None) -> dict[str, str]:
        """Return the SQL of the times of what crosses a border: only its part inside.

        What lies wholly outside stays as it is. ``first_ns`` is the lower border where launches
        before the window are kept, too.
        """
        if not self.end:
            return {}
        lower = window.start_ns if first_ns is None else min(first_ns, window.start_ns)
        start, end = quoted(self.start), quoted(self.end)
        return {
            self.start: f"CASE WHEN {end} > {lower} THEN max({start}, {lower}) ELSE {start} END",
            self.end: f"CASE WHEN {start} < {window.end_ns} THEN min({end}, {window.end_ns})"
            f" ELSE {end} END",
        }

    def is_on_clock(self, copy: DatabaseCopy, table: StoredTable, span: TimeWindow | None) -> bool:
        """Return whether the first rows lie where the trace does, give or take its length."""
        start = quoted(self.start)
        first, last, n_rows, n_whole = copy.execute(
            f"SELECT min({start}), max({start}), count(*), total(typeof({start}) = 'integer')"
            f" FROM (SELECT {start} FROM source.{quoted(table.name)} LIMIT {_LOOKED_AT})"
        ).fetchone()
        if not n_rows or n_whole < n_rows:
            return not n_rows
        if span is None:
            return True
        reach = span.duration_ns
        return bool(span.start_ns - reach <= first and last <= span.end_ns + reach)


def times_of(table: StoredTable, *, foreign: bool = False) -> Times | None:
    """Return the columns of a table's times, None where it has none.

    ``foreign``: of a table that nobody knows, by more names.
    """
    if not foreign:
        start = next((column for column in _STARTS if table.has(column)), None)
        if start is None:
            return None
        return Times(start, "end" if start == "start" and table.has("end") else "")
    names = {column.lower(): column for column in table.types}
    start = next((names[name] for name in _FOREIGN_STARTS if name in names), None)
    end = next((names[name] for name in _FOREIGN_ENDS if name in names), "")
    return None if start is None else Times(start, end)
