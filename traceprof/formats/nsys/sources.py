"""Where in an nsys export the rows of each table of the Trace stand, in SQL.

It says of tables that are not read what their readers would make of them: the same rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pandas as pd

from traceprof.formats.nsys.codes import NVTX_MARK, NVTX_PUSH_POP, NVTX_START_END, process_of
from traceprof.formats.nsys.device import COPIES, GRAPHS, KERNELS, MEMSETS, SYNCS
from traceprof.formats.nsys.host import API_CALLS, HOST_SOURCES, OVERHEADS
from traceprof.formats.nsys.metrics import metric_sources
from traceprof.formats.nsys.mpi import MPI_TABLES, count_mpi_collectives
from traceprof.formats.nsys.nccl import count_communication, has_communication
from traceprof.formats.nsys.network import network_extent
from traceprof.formats.nsys.sidecar import COLLECTIVES, OPERATORS, SAMPLES
from traceprof.formats.sqlite.conditions import Among
from traceprof.formats.sqlite.database import NULL, Database
from traceprof.formats.sqlite.pages.totals import Counted
from traceprof.formats.sqlite.scan import Extent, Source
from traceprof.formats.sqlite.survey import Survey
from traceprof.model.tables import ABSENT

__all__ = ["survey_of"]

_BITS: Final = 24
_RANGES: Final = Among("eventType", (NVTX_PUSH_POP, NVTX_START_END))
_MARKS: Final = Among("eventType", (NVTX_MARK,))


def survey_of(
    database: Database, frames: Mapping[str, pd.DataFrame], capture_end_ns: int | None
) -> Survey:
    """Return what the event tables are like, of which ``frames`` were read whole."""

    def closed(ranges: Extent) -> Extent:
        return ranges | Extent(end_ns=max(capture_end_ns or 0, 0)) if ranges.n_open else ranges

    def with_told(own: Extent) -> Extent:
        if own.n_rows:
            return own
        n_calls, n_annotations, _ = count_communication(database)
        if COLLECTIVES not in database.tables:
            n_calls += count_mpi_collectives(database)
            return Extent(n_calls or n_annotations)
        return Extent(n_annotations)

    more = {
        "ranges": closed,
        "collectives": with_told,
        "samples": lambda samples: samples | network_extent(database),
    }
    told = {"collectives": lambda: tells_of_collectives(database)}
    return Survey(database, _sources(database), frames, more, found_elsewhere=told)


def tells_of_collectives(database: Database) -> bool:
    """Return whether ranges, or calls of MPI, are collectives."""
    return has_communication(database) or bool(count_mpi_collectives(database))


def _sources(database: Database) -> dict[str, list[Source]]:
    found = {
        "kernels": _on_devices(KERNELS, GRAPHS),
        "copies": _on_devices(COPIES, MEMSETS),
        "syncs": _on_devices(SYNCS),
        "api_calls": _on_host(API_CALLS),
        "ranges": _on_host("NVTX_EVENTS", where=_RANGES),
        "marks": _on_host("NVTX_EVENTS", where=_MARKS, end=""),
        "host_ops": _on_host(*HOST_SOURCES, *MPI_TABLES, OPERATORS),
        "overheads": _on_host(*OVERHEADS),
        "collectives": _on_host(COLLECTIVES),
        "samples": [Source(SAMPLES, end=""), *metric_sources(database)],
    }
    return {
        name: [source for source in sources if source.table in database.tables]
        for name, sources in found.items()
    }


def _on_devices(*tables: str) -> list[Source]:
    device = f"coalesce(deviceId, {NULL})"
    return [_source(table, "globalPid", device=device) for table in tables]


def _on_host(*tables: str, where: Among | None = None, end: str = "end") -> list[Source]:
    return [_source(table, "globalTid", where=where, end=end) for table in tables]


def _source(
    table: str, number: str, device: str = "", where: Among | None = None, end: str = "end"
) -> Source:
    return Source(
        table,
        end=f"[{end}]" if end else "",
        process=f"coalesce({number} >> {_BITS} & 16777215, {ABSENT})",  # as `process_of`
        device=device,
        where=where.sql() if where else "",
        number=number,
        number_bits=_BITS,
        counted=Counted(
            "start",
            end,
            number,
            "deviceId" if device else "",
            process_of,
            _BITS,
            where,
            _sought(table, end),
        ),
    )


def _sought(table: str, end: str) -> tuple[str, ...]:
    """Return the columns by which rows of a table are looked up."""
    if table == "NVTX_EVENTS":  # always read as a whole
        return ()
    times = ("start", end) if end else ("start",)
    return (*times, "correlationId") if table == API_CALLS else times
