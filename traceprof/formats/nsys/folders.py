"""Folders that ``nsys export --type parquetdir`` or ``arrowdir`` wrote: a file for each table.

The tables, their columns and values are those of the SQLite export, so they are put into a
temporary database, which is read as that export is.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Final

from traceprof.formats.base import Candidate, TraceFormat
from traceprof.formats.nsys.reader import FORMAT as NSYS
from traceprof.formats.shared.files import TABLE_FILES

__all__ = ["FORMAT"]


def recognises(candidate: Candidate) -> bool:
    """Return whether the folder holds the tables of an nsys export."""
    tables = frozenset(
        Path(name).stem for name in candidate.files if Path(name).suffix in TABLE_FILES
    )
    return NSYS.recognises(replace(candidate, tables=tables))


def _as_database(folder: Path) -> AbstractContextManager[Path]:
    # Parquet is slow to import, and few traces are such folders.
    found: AbstractContextManager[Path] = import_module(
        "traceprof.formats.nsys.folder_tables"
    ).as_database(folder)
    return found


FORMAT: Final = TraceFormat(
    name="nsys-folder",
    summary="Nsight Systems export to a folder of Parquet or Arrow files (parquetdir, arrowdir)",
    recognises=recognises,
    read=NSYS.read,
    outline=NSYS.outline,
    export=_as_database,
    cut=NSYS.cut,
    secrets=NSYS.secrets,
)
