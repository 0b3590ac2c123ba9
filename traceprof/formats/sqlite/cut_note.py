"""What a file says that it was cut from: it covers that window, though no event may be there."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from functools import reduce
from typing import Any, Final

from traceprof.formats.sqlite.copying import DatabaseCopy
from traceprof.formats.sqlite.database import Database
from traceprof.formats.sqlite.table_names import quoted
from traceprof.model.cutting import WHOLE, CutNote, CutRequest, noted_names, noted_numbers
from traceprof.model.timing import TimeWindow
from traceprof.version import __version__

__all__ = ["NOTE", "cut_note", "filled_tables", "note_cut"]

NOTE: Final = "TRACEPROF_CUT"
"""The table that says what a file was cut from: a row for each cut, times as the file has them."""

_COLUMNS: Final = {
    "source": "TEXT",
    "windowStart": "INTEGER",
    "windowEnd": "INTEGER",
    "windowText": "TEXT",
    "isClipped": "INTEGER",
    "devices": "TEXT",
    "processes": "TEXT",
    "tables": "TEXT",
    "traceprofVersion": "TEXT",
    "recordedTables": "TEXT",
    "usedDevices": "TEXT",
}


def note_cut(
    copy: DatabaseCopy,
    request: CutRequest,
    window: TimeWindow,
    recorded: Collection[str],
    devices: Collection[int],
) -> None:
    """Write down what the copy was cut from; what a cut file says of itself is kept.

    ``window`` is that of the request, in times of the file; ``recorded`` are the tables that the
    source has, and ``devices`` those that worked in it, as far as they are kept.
    """
    if not request.is_noted:
        return
    if NOTE not in copy.tables:
        columns = ", ".join(f"{name} {kind}" for name, kind in _COLUMNS.items())
        copy.execute(f"CREATE TABLE {NOTE} ({columns})")
    else:
        before = _notes(copy.execute(f"SELECT * FROM source.{NOTE}"))
        recorded = {*recorded, *before.recorded}
        devices = {*devices, *(_kept(before.devices, request))}
        for name in _COLUMNS.keys() - copy.tables[NOTE].types.keys():
            copy.execute(f"ALTER TABLE {NOTE} ADD COLUMN {name} {_COLUMNS[name]}")
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
        "recordedTables": _listed(recorded),
        "usedDevices": _listed(devices),
    }
    marks = ", ".join("?" * len(row))
    copy.execute(f"INSERT INTO {NOTE} ({', '.join(row)}) VALUES ({marks})", list(row.values()))


def filled_tables(copy: DatabaseCopy) -> list[str]:
    """Return the tables of the source that have rows."""
    return [
        name
        for name in copy.tables
        if copy.execute(f"SELECT EXISTS (SELECT 1 FROM source.{quoted(name)})").fetchone()[0]
    ]


def cut_note(database: Database) -> CutNote:
    """Return what a file says of how it was cut, windows in its own times."""
    if not {"windowStart", "windowEnd"} <= database.columns(NOTE):
        return WHOLE
    wanted = [name for name in _COLUMNS if name in database.columns(NOTE)]
    rows = database.rows(f"SELECT {', '.join(wanted)} FROM {NOTE} ORDER BY rowid")
    return _note_of([dict(zip(wanted, row, strict=True)) for row in rows])


def _notes(cursor: Any) -> CutNote:
    names = [column[0] for column in cursor.description]
    return _note_of([dict(zip(names, row, strict=True)) for row in cursor.fetchall()])


def _note_of(rows: list[dict[str, Any]]) -> CutNote:
    """Return what the notes of all cuts say together: the last window, what all of them kept."""
    is_sound = [isinstance(row[n], int) for row in rows for n in ("windowStart", "windowEnd")]
    if not rows or not all(is_sound) or rows[-1]["windowStart"] > rows[-1]["windowEnd"]:
        return WHOLE
    kept = [noted_names(_list(row["tables"])) for row in rows if row.get("tables") is not None]
    return CutNote(
        TimeWindow(rows[-1]["windowStart"], rows[-1]["windowEnd"]),
        noted_names(_list(rows[-1].get("recordedTables"))),
        noted_numbers(_list(rows[-1].get("usedDevices"))),
        reduce(frozenset.__and__, kept) if kept else None,
    )


def _list(text: object) -> Any:
    try:
        return json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None


def _kept(devices: Collection[int], request: CutRequest) -> list[int]:
    return [one for one in devices if request.devices is None or one in request.devices]


def _listed(chosen: Collection[int] | Collection[str] | None) -> str | None:
    return None if chosen is None else json.dumps(sorted(chosen))
