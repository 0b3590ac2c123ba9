"""What a file says that it was cut from: it covers that window, though no event may be there."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Final

from traceprof.formats.sqlite.copying import DatabaseCopy
from traceprof.formats.sqlite.database import Database
from traceprof.model.cutting import CutRequest
from traceprof.model.window import TimeWindow
from traceprof.version import __version__

__all__ = ["NOTE", "cut_window", "note_cut"]

NOTE: Final = "TRACEPROF_CUT"
"""The table that says what a file was cut from: a row for each cut, times as the file has them."""

_COLUMNS: Final = (
    "source TEXT, windowStart INTEGER, windowEnd INTEGER, windowText TEXT, isClipped INTEGER,"
    " devices TEXT, processes TEXT, tables TEXT, traceprofVersion TEXT"
)


def note_cut(copy: DatabaseCopy, request: CutRequest, window: TimeWindow) -> None:
    """Write down what the copy was cut from; what a cut file says of itself is kept.

    ``window`` is that of the request, in times of the file.
    """
    if not request.is_noted:
        return
    if NOTE not in copy.tables:
        copy.execute(f"CREATE TABLE {NOTE} ({_COLUMNS})")
    row: Mapping[str, object] = {
        "source": request.source,
        "windowStart": window.start_ns,
        "windowEnd": window.end_ns,
        "windowText": request.label,
        "isClipped": int(request.clip),
        "devices": _listed(request.devices),
        "processes": _listed(request.processes),
        "tables": _listed(request.tables),
        "traceprofVersion": __version__,
    }
    marks = ", ".join("?" * len(row))
    copy.execute(f"INSERT INTO {NOTE} ({', '.join(row)}) VALUES ({marks})", list(row.values()))


def cut_window(database: Database) -> TimeWindow | None:
    """Return the window that a file was cut to, in its own times; None where it was not cut."""
    if not {"windowStart", "windowEnd"} <= database.columns(NOTE):
        return None
    rows = database.rows(
        f"SELECT windowStart, windowEnd FROM {NOTE} WHERE typeof(windowStart) = 'integer'"
        " AND typeof(windowEnd) = 'integer' ORDER BY rowid DESC LIMIT 1"
    )
    return TimeWindow(*rows[0]) if rows else None


def _listed(chosen: Collection[int] | Collection[str] | None) -> str | None:
    return None if chosen is None else json.dumps(sorted(chosen))
