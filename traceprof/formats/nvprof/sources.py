"""Where in a file of nvprof the rows of each table of the Trace stand, in SQL.

It says of tables that are not read what their readers would make of them: the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import pandas as pd

from traceprof.formats.nvprof.device import MIGRATIONS
from traceprof.formats.nvprof.file import NvprofFile, object_ids, whole
from traceprof.formats.nvprof.format import PREFIX
from traceprof.formats.nvprof.host import END, MARK, START
from traceprof.formats.shared.collectives import is_annotated
from traceprof.formats.sqlite.scan import Extent, Source
from traceprof.formats.sqlite.survey import Survey
from traceprof.model.tables import ABSENT

__all__ = ["count_annotations", "last_ns", "survey_of"]

_WITH_ENDS: Final = ("kernels", "copies", "api_calls", "syncs", "overheads")
_IS_KEPT: Final = f"{whole('start')} > 0 AND {whole('end')} > 0"
"""Records whose times are 0, or none, were lost by the profiler."""
_DEVICE: Final = f"coalesce(deviceId, {ABSENT})"


def survey_of(file: NvprofFile, frames: Mapping[str, pd.DataFrame]) -> Survey:
    """Return what the event tables are like, of which ``frames`` were read whole."""
    corrections: dict[str, Callable[[Extent], Extent]] = {
        "collectives": lambda _: Extent(count_annotations(file)),
    }
    survey = Survey(file.database, _sources(file), frames, corrections, file.zero_ns)
    corrections["ranges"] = lambda _: _ranges(file, survey)
    return survey


def last_ns(survey: Survey) -> int:
    """Return when the last record ends that is no marker."""
    return max(survey.extent(name).end_ns or 0 for name in _WITH_ENDS)


def count_annotations(file: NvprofFile) -> int:
    """Return how many ranges are annotations of PyTorch that become collectives."""
    if not file.has("MARKER"):
        return 0
    rows = file.database.rows(
        f"SELECT {whole('name')}, count(*) FROM {PREFIX}MARKER "
        f"WHERE {whole('flags')} & {START} GROUP BY 1"
    )
    return sum(n_rows for key, n_rows in rows if is_annotated(file.strings.get(key, "")))


def _ranges(file: NvprofFile, survey: Survey) -> Extent:
    """Return the extent of the ranges: starts, and the ends with the same id and turn."""
    if not file.has("MARKER"):
        return Extent()
    flags, time = whole("flags"), whole("timestamp")
    ((n_rows, n_ended, first, last, last_end),) = file.database.rows(
        f"WITH turns AS (SELECT {whole('id')} AS id, {flags} & {START | END} AS kind, "
        f"{time} AS time, row_number() OVER (PARTITION BY {whole('id')}, {flags} & {START | END} "
        f"ORDER BY {time}, _id_) AS turn FROM {PREFIX}MARKER) "
        "SELECT count(*), count(b.time), min(a.time), max(a.time), max(b.time) FROM turns a "
        f"LEFT JOIN turns b ON b.kind & {END} AND b.id = a.id AND b.turn = a.turn "
        f"WHERE a.kind & {START}"
    )
    if not n_rows:
        return Extent()
    ends = [last - file.zero_ns]
    ends += [last_end - file.zero_ns] if n_ended else []
    ends += [max(last_ns(survey), 0)] if n_ended < n_rows else []
    return Extent(n_rows, n_rows - n_ended, first - file.zero_ns, max(ends))


def _sources(file: NvprofFile) -> dict[str, list[Source]]:
    process = str(file.process)
    ends_of_migration = "CASE WHEN counterKind = 2 THEN srcId ELSE dstId END"
    migrations = Source(
        PREFIX + "UNIFIED_MEMORY_COUNTER",
        whole("start"),
        whole("end"),
        process,
        f"coalesce({ends_of_migration}, {ABSENT})",
        f"{_IS_KEPT} AND counterKind IN ({', '.join(map(str, MIGRATIONS))})",
    )
    found = {
        "kernels": _activities(process, "CONCURRENT_KERNEL", "KERNEL", "GRAPH_TRACE"),
        "copies": [*_activities(process, "MEMCPY", "MEMCPY2", "MEMSET"), migrations],
        "syncs": _activities(process, "SYNCHRONIZATION"),
        "api_calls": _activities(whole("processId"), "RUNTIME", "DRIVER"),
        "overheads": [
            Source(
                PREFIX + "OVERHEAD",
                whole("start"),
                whole("end"),
                "hex(objectId)",
                where=_IS_KEPT,
                process_of=_process_of,
            )
        ],
        "ranges": [_markers(START)],
        "marks": [_markers(MARK)],
    }
    return {
        name: [source for source in sources if source.table in file.database.tables]
        for name, sources in found.items()
    }


def _activities(process: str, *tables: str) -> list[Source]:
    times = whole("start"), whole("end")
    return [Source(PREFIX + table, *times, process, _DEVICE, _IS_KEPT) for table in tables]


def _markers(flag: int) -> Source:
    return Source(
        PREFIX + "MARKER",
        whole("timestamp"),
        "",
        "hex(objectId)",
        where=f"{whole('flags')} & {flag}",
        process_of=_process_of,
    )


def _process_of(digits: str) -> int:
    return int(object_ids([digits])[0][0])
