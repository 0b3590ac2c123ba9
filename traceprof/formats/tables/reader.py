"""Folders of tables that `traceprof export --to parquet` or ``--to arrow`` wrote, as traces."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Final

from traceprof.formats.base import Candidate, Reader, ReadOptions, TraceFormat
from traceprof.formats.tables.manifest import MANIFEST, Storage
from traceprof.model.tables import TABLES
from traceprof.model.trace import Trace

__all__ = ["FORMAT"]


def recognises(candidate: Candidate) -> bool:
    """Return whether the folder has the description of tables, and tables."""
    return MANIFEST in candidate.files and any(
        f"{name}.{storage}" in candidate.files for name in TABLES for storage in Storage
    )


def read(path: Path, options: ReadOptions) -> Trace:
    """Return the trace in a folder of tables."""
    # Parquet is slow to import, and few traces are such folders.
    reader: Reader = import_module("traceprof.formats.tables.folder").read
    return reader(path, options)


FORMAT: Final = TraceFormat(
    name="tables",
    summary="folder of Parquet or Arrow files that traceprof exported",
    recognises=recognises,
    read=read,
)
