"""Recognize files of Nsight Systems: SQLite exports, reports, and folders of tables.

Recordings of traceprof are SQLite exports. Reports are exported with nsys before they are read.
``nsys export --type parquetdir`` and ``arrowdir`` write folders with the tables, columns, and
values of a SQLite export; these tables are copied into a temporary database.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from traceprof.formats.contract import Candidate, TraceFormat, import_and_call
from traceprof.formats.shared.files import TABLE_FILES

_MARKS_OF_NSYS: Final = (
    *("CUPTI_ACTIVITY_KIND_", "TARGET_INFO_", "NVTX_EVENTS", "OSRT_API"),
    *("META_DATA_EXPORT", "EXPORT_META_DATA"),
)
_REPORT: Final = b"NVIDIA Tegra Profiler Report"
STREAM: Final = b"NVIDIA Nsight Systems Stream"
"""The first bytes of an unfinished report."""
MAGIC_WITHIN: Final = 64
"""The number of first bytes that contain the magic of a report."""


def recognizes(candidate: Candidate) -> bool:
    """Return whether the file has the tables of an nsys export."""
    return "StringIds" in candidate.tables and any(
        table.startswith(_MARKS_OF_NSYS) for table in candidate.tables
    )


FORMAT: Final = TraceFormat(
    name="nsys",
    summary="Nsight Systems SQLite export, or traceprof recording",
    recognizes=recognizes,
    read=partial(import_and_call, "traceprof.formats.nsys.reader", "read"),
    outline=partial(import_and_call, "traceprof.formats.nsys.reader", "outline"),
    cut=partial(import_and_call, "traceprof.formats.nsys.cut", "cut"),
    secrets=partial(import_and_call, "traceprof.formats.nsys.secrets", "find_secrets"),
)


def recognizes_folder(candidate: Candidate) -> bool:
    """Return whether the folder contains the tables of an nsys export."""
    tables = frozenset(
        Path(name).stem for name in candidate.files if Path(name).suffix in TABLE_FILES
    )
    return FORMAT.recognizes(replace(candidate, tables=tables))


FOLDER_FORMAT: Final = replace(
    FORMAT,
    name="nsys-folder",
    summary="Nsight Systems export as a folder of Parquet or Arrow files (parquetdir, arrowdir)",
    recognizes=recognizes_folder,
    export=partial(import_and_call, "traceprof.formats.nsys.folders", "as_database"),
)


def recognizes_report(candidate: Candidate) -> bool:
    """Return whether the file is a report of nsys, or a stream that is not converted to one yet."""
    return any(magic in candidate.head[:MAGIC_WITHIN] for magic in (_REPORT, STREAM))


REPORT_FORMAT: Final = replace(
    FORMAT,
    name="nsys-report",
    summary="Nsight Systems report (.nsys-rep, .qdrep, .qdstrm); requires nsys",
    recognizes=recognizes_report,
    export=partial(import_and_call, "traceprof.formats.nsys.reports", "exported_report"),
)
