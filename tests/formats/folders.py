"""Folders of tables that tests read back."""

from __future__ import annotations

from pathlib import Path

from traceprof.formats.tables.folder import FolderWriter, Storage
from traceprof.model.tables import TABLES
from traceprof.model.trace import Trace


def write_tables(trace: Trace, folder: Path, storage: Storage = Storage.PARQUET) -> None:
    """Write a whole Trace into the empty folder ``folder``."""
    with FolderWriter(folder, storage) as writer:
        for name in TABLES:
            writer.add(name, trace.table(name))
        writer.finish(trace.info, trace.recorded, trace.span)
