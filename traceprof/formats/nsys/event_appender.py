"""Adding ranges, marks and what a recording has beside them to an export, some rows at a time."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

import numpy as np
import pandas as pd

from traceprof.formats.nsys.schema import NSYS_TABLES, global_id
from traceprof.formats.nsys.sidecar_rows import append_traceprof_events, global_ids
from traceprof.formats.sqlite.rows import StringIds, insert_columns, without_absent
from traceprof.model.timing import TimeWindow

__all__ = ["EventAppender", "EventTables"]

_PUSH_POP: Final = 59
_START_END: Final = 60
_MARK: Final = 34
_DOMAIN: Final = 75
_LAST_DOMAINS: Final = """
    SELECT globalTid >> 24 & 0xFFFFFF, max(domainId) FROM NVTX_EVENTS GROUP BY 1"""

EventTables: TypeAlias = Mapping[str, pd.DataFrame]
"""Tables of events by name: ranges, marks, collectives, samples."""


class EventAppender:
    """Adds events to a database, with the domains and the strings that they need."""

    def __init__(self, connection: sqlite3.Connection, strings: StringIds) -> None:
        self._connection = connection
        self._strings = strings
        self._domains: dict[tuple[int, str], int] = {}
        self._last: dict[int, int] | None = None

    def append_all(self, events: Iterable[EventTables], span: TimeWindow) -> TimeWindow:
        """Add all ``events``; return ``span`` widened to hold them."""
        starts, ends = [span.start_ns], [span.end_ns]
        is_empty = span.duration_ns == 0
        for tables in events:
            self.append(tables)
            append_traceprof_events(self._connection, tables, self._strings)
            for table in tables.values():
                if len(table):
                    starts.append(int(table["start_ns"].min()))
                    last = "end_ns" if "end_ns" in table else "start_ns"
                    ends.append(int(table[last].max()))
        if is_empty and len(starts) > 1:
            starts, ends = starts[1:], ends[1:]
        return TimeWindow(min(starts), max(ends))

    def append(self, tables: EventTables) -> None:
        """Add ranges and marks to ``NVTX_EVENTS``."""
        ranges, marks = tables.get("ranges"), tables.get("marks")
        if ranges is not None and len(ranges):
            is_pair = (ranges["kind"] == "start_end").to_numpy(np.bool_)
            self._append(ranges, np.where(is_pair, _START_END, _PUSH_POP))
        if marks is not None and len(marks):
            self._append(marks, _MARK)

    def _append(self, frame: pd.DataFrame, event_type: np.ndarray | int) -> None:
        if self._last is None:
            self._last = self._prepare()
        is_span = "end_ns" in frame
        insert_columns(
            self._connection,
            "NVTX_EVENTS",
            {
                "start": frame["start_ns"],
                "end": frame["end_ns"] if is_span else None,
                "eventType": event_type,
                "category": without_absent(frame["category"]) if is_span else None,
                "globalTid": global_ids(frame),
                "textId": self._strings.ids_of(frame["name"]),
                "domainId": self._domains_of(frame),
                **_payloads(frame["payload"].to_numpy()),
            },
        )

    def _prepare(self) -> dict[int, int]:
        """Make the table; return process → the last id of a domain that it has there."""
        self._connection.execute(
            f"CREATE TABLE IF NOT EXISTS NVTX_EVENTS ({NSYS_TABLES['NVTX_EVENTS']})"
        )
        return dict(self._connection.execute(_LAST_DOMAINS))

    def _domains_of(self, frame: pd.DataFrame) -> list[int]:
        """Return the id of the domain of each row; ids count per process."""
        codes, domains = pd.factorize(frame["domain"])
        keys = frame["process"].to_numpy(np.int64) * len(domains) + codes
        _, first, place = np.unique(keys, return_index=True, return_inverse=True)
        processes = frame["process"].to_numpy(np.int64)[first].tolist()
        pairs = zip(processes, (str(domains[code]) for code in codes[first]), strict=True)
        ids = np.array([self._domain(*pair) for pair in pairs], np.int64)
        listed: list[int] = ids[place].tolist()
        return listed

    def _domain(self, process: int, domain: str) -> int:
        key = (process, domain)
        if key not in self._domains and not domain:
            self._domains[key] = 0
        if key not in self._domains and self._last is not None:
            number = (self._last.get(process) or 0) + 1
            self._domains[key] = self._last[process] = number
            self._connection.execute(
                "INSERT INTO NVTX_EVENTS (start, eventType, text, globalTid, domainId)"
                " VALUES (0, ?, ?, ?, ?)",
                (_DOMAIN, domain, global_id(process, process), number),
            )
        return self._domains[key]


def _payloads(values: Any) -> dict[str, Any]:
    """Return the payload columns: whole numbers apart from the others, as NVTX has them."""
    is_known = ~np.isnan(values)
    is_whole = is_known & (np.abs(values) < 2.0**63) & (np.floor(values) == values)
    if is_whole.all():
        return {"int64Value": values.astype(np.int64)}
    whole = np.full(len(values), None, object)
    whole[is_whole] = values[is_whole].astype(np.int64)
    return {"int64Value": whole, "doubleValue": np.where(is_known & ~is_whole, values, np.nan)}
