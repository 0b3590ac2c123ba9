"""How files of Nsight Systems are recognised: SQLite exports, reports, and folders of tables.

Recordings of traceprof are such exports. Reports are read through nsys's own export. What
``nsys export --type parquetdir`` or ``arrowdir`` wrote has the tables, columns and values of the
SQLite export: it is put into a temporary database, which is read as that export is.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from traceprof.formats.contract import Candidate, TraceFormat, loaded_late
from traceprof.formats.shared.files import TABLE_FILES

_MARKS_OF_NSYS: Final = (
    *("CUPTI_ACTIVITY_KIND_", "TARGET_INFO_", "NVTX_EVENTS", "OSRT_API"),
    *("META_DATA_EXPORT", "EXPORT_META_DATA"),
)
_REPORT: Final = b"NVIDIA Tegra Profiler Report"
STREAM: Final = b"NVIDIA Nsight Systems Stream"
"""What a report begins with that is not finished."""
MAGIC_WITHIN: Final = 64


def recognises(candidate: Candidate) -> bool:
    """Return whether the file has the tables of an nsys export."""
    return "StringIds" in candidate.tables and any(
        table.startswith(_MARKS_OF_NSYS) for table in candidate.tables
    )


FORMAT: Final = TraceFormat(
    name="nsys",
    summary="Nsight Systems SQLite export, or traceprof recording",
    recognises=recognises,
    read=partial(loaded_late, "traceprof.formats.nsys.reader", "read"),
    outline=partial(loaded_late, "traceprof.formats.nsys.reader", "outline"),
    cut=partial(loaded_late, "traceprof.formats.nsys.cut", "cut"),
    secrets=partial(loaded_late, "traceprof.formats.nsys.secrets", "told_secrets"),
)


def recognises_folder(candidate: Candidate) -> bool:
    """Return whether the folder holds the tables of an nsys export."""
    tables = frozenset(
        Path(name).stem for name in candidate.files if Path(name).suffix in TABLE_FILES
    )
    return FORMAT.recognises(replace(candidate, tables=tables))


FOLDER_FORMAT: Final = replace(
    FORMAT,
    name="nsys-folder",
    summary="Nsight Systems export as a folder of Parquet or Arrow files (parquetdir, arrowdir)",
    recognises=recognises_folder,
    export=partial(loaded_late, "traceprof.formats.nsys.folders", "as_database"),
)


def recognises_report(candidate: Candidate) -> bool:
    """Return whether the file is a report of nsys, or a stream not yet made into one."""
    return any(magic in candidate.head[:MAGIC_WITHIN] for magic in (_REPORT, STREAM))


REPORT_FORMAT: Final = replace(
    FORMAT,
    name="nsys-report",
    summary="Nsight Systems report (.nsys-rep, .qdrep, .qdstrm); requires nsys",
    recognises=recognises_report,
    export=partial(loaded_late, "traceprof.formats.nsys.reports", "exported_report"),
)
