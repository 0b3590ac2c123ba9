"""Folders of tables that `traceprof export --to parquet` or ``--to arrow`` wrote, as traces."""

from __future__ import annotations

from typing import Final

from traceprof.formats.base import Candidate, TraceFormat, loaded_late
from traceprof.formats.tables.manifest import MANIFEST, Storage
from traceprof.model.tables import TABLES

__all__ = ["FORMAT"]


def recognises(candidate: Candidate) -> bool:
    """Return whether the folder has the description of tables, and tables."""
    return MANIFEST in candidate.files and any(
        f"{name}.{storage}" in candidate.files for name in TABLES for storage in Storage
    )


FORMAT: Final = TraceFormat(
    name="tables",
    summary="folder of Parquet or Arrow files that traceprof exported",
    recognises=recognises,
    read=loaded_late("traceprof.formats.tables.folder", "read"),
)
