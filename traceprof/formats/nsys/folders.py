"""Folders that ``nsys export --type parquetdir`` or ``arrowdir`` wrote: a file for each table.

The tables, their columns and values are those of the SQLite export, so they are put into a
temporary database, which is read as that export is.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from traceprof.formats.base import Candidate, TraceFormat, loaded_late
from traceprof.formats.nsys.format import FORMAT as NSYS
from traceprof.formats.shared.files import TABLE_FILES

__all__ = ["FORMAT"]


def recognises(candidate: Candidate) -> bool:
    """Return whether the folder holds the tables of an nsys export."""
    tables = frozenset(
        Path(name).stem for name in candidate.files if Path(name).suffix in TABLE_FILES
    )
    return NSYS.recognises(replace(candidate, tables=tables))


FORMAT: Final = TraceFormat(
    name="nsys-folder",
    summary="Nsight Systems export to a folder of Parquet or Arrow files (parquetdir, arrowdir)",
    recognises=recognises,
    read=NSYS.read,
    outline=NSYS.outline,
    export=loaded_late("traceprof.formats.nsys.folder_tables", "as_database"),
    cut=NSYS.cut,
    secrets=NSYS.secrets,
)
