"""Recognize folders of tables that `traceprof export --to parquet` or ``--to arrow`` wrote."""

from __future__ import annotations

from functools import partial
from typing import Final

from traceprof.formats.contract import Candidate, TraceFormat, import_and_call
from traceprof.formats.shared.files import TABLE_FILES
from traceprof.model.tables import TABLES

MANIFEST: Final = "trace.json"
"""The file of a folder that describes its tables."""


def recognizes(candidate: Candidate) -> bool:
    """Return whether the folder has the description of tables, and at least one table."""
    return MANIFEST in candidate.files and any(
        f"{name}{suffix}" in candidate.files for name in TABLES for suffix in TABLE_FILES
    )


FORMAT: Final = TraceFormat(
    name="tables",
    summary="folder of Parquet or Arrow files exported by traceprof",
    recognizes=recognizes,
    read=partial(import_and_call, "traceprof.formats.tables.folder", "read"),
)
