"""Folders that ``nsys export --type parquetdir`` or ``arrowdir`` wrote: a file for each table.

The tables, their columns and values are those of the SQLite export, so they are put into a
temporary database, which is read as that export is.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Final

from traceprof.formats.base import Candidate, Outline, ReadOptions, TraceFormat, cutter
from traceprof.formats.nsys.reader import FORMAT as NSYS
from traceprof.formats.nsys.reader import outline as read_outline
from traceprof.formats.nsys.secrets import told_secrets
from traceprof.formats.shared.files import TABLE_FILES
from traceprof.model.cutting import CutProgress, CutReport, CutRequest
from traceprof.model.trace import Trace

__all__ = ["FORMAT"]


def recognises(candidate: Candidate) -> bool:
    """Return whether the folder holds the tables of an nsys export."""
    tables = frozenset(
        Path(name).stem for name in candidate.files if Path(name).suffix in TABLE_FILES
    )
    return NSYS.recognises(replace(candidate, tables=tables))


def read(path: Path, options: ReadOptions) -> Trace:
    """Return the trace in a folder of tables."""
    with _as_database(path) as database:
        trace = NSYS.read(database, options)
    return replace(trace, info=replace(trace.info, path=str(path)))


def outline(path: Path) -> Outline:
    """Return what a folder of tables contains."""
    with _as_database(path) as database:
        found = read_outline(database)
    return replace(found, info=replace(found.info, path=str(path)))


def cut(source: Path, target: Path, request: CutRequest, progress: CutProgress) -> CutReport:
    """Write a part of a folder of tables to the empty file ``target``, as a SQLite export."""
    cut_export = cutter("traceprof.formats.nsys.cut")
    with _as_database(source) as database:
        return cut_export(database, target, request, progress)


def secrets(path: Path) -> Sequence[str]:
    """Return what it tells to be secret."""
    with _as_database(path) as database:
        return told_secrets(database)


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
    read=read,
    outline=outline,
    read_by_export=True,
    cut=cut,
    secrets=secrets,
)
