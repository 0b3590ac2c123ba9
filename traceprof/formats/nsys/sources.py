"""Where in an nsys export the rows of each table of the Trace stand, in SQL.

It says of tables that are not read what their readers would make of them: the same rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pandas as pd

from traceprof.formats.nsys.codes import NVTX_MARK, NVTX_PUSH_POP, NVTX_START_END
from traceprof.formats.nsys.device import COPIES, GRAPHS, KERNELS, MEMSETS, SYNCS
from traceprof.formats.nsys.host import API_CALLS, HOST_SOURCES, OVERHEADS
from traceprof.formats.nsys.metrics import metric_sources
from traceprof.formats.nsys.mpi import MPI_TABLES, count_mpi_collectives
from traceprof.formats.nsys.nccl import count_communication, has_communication
from traceprof.formats.nsys.network import network_extent
from traceprof.formats.nsys.sidecar import COLLECTIVES, OPERATORS, SAMPLES
from traceprof.formats.sqlite.database import NULL, Database
from traceprof.formats.sqlite.scan import Extent, Source
from traceprof.formats.sqlite.survey import Survey
from traceprof.model.tables import ABSENT

__all__ = ["survey_of"]

_RANGES: Final = f"eventType IN ({NVTX_PUSH_POP}, {NVTX_START_END})"
_MARKS: Final = f"eventType = {NVTX_MARK}"


def survey_of(
    database: Database, frames: Mapping[str, pd.DataFrame], capture_end_ns: int | None
) -> Survey:
    """Return what the event tables are like, of which ``frames`` were read whole."""

    def closed(ranges: Extent) -> Extent:
        return ranges | Extent(end_ns=max(capture_end_ns or 0, 0)) if ranges.n_open else ranges

    def with_told(own: Extent) -> Extent:
        if own.n_rows:
            return own
        n_calls, n_annotations = count_communication(database)
        if COLLECTIVES not in database.tables:
            n_calls += count_mpi_collectives(database)
            return Extent(n_calls or n_annotations)
        return Extent(n_annotations)

    def tells_of_collectives(database: Database) -> bool:
        return has_communication(database) or bool(count_mpi_collectives(database))

    more = {
        "ranges": closed,
        "collectives": with_told,
        "samples": lambda samples: samples | network_extent(database),
    }
    told = {"collectives": lambda: tells_of_collectives(database)}
    return Survey(database, _sources(database), frames, more, found_elsewhere=told)


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
    process = _process("globalPid")
    return [
        Source(table, process=process, device=device, number="globalPid", number_bits=24)
        for table in tables
    ]


def _on_host(*tables: str, where: str = "", end: str = "[end]") -> list[Source]:
    process = _process("globalTid")
    return [
        Source(table, end=end, process=process, where=where, number="globalTid", number_bits=24)
        for table in tables
    ]


def _process(column: str) -> str:
    """Return SQL of the process in a serialised global id, as `codes.process_of`."""
    return f"coalesce({column} >> 24 & 16777215, {ABSENT})"
