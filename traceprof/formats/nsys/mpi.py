"""MPI's calls in an nsys export, as host operations and as collectives with their sizes."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.formats.base import ReadOptions
from traceprof.formats.collective_names import collective_op
from traceprof.formats.nsys.codes import process_of, thread_of
from traceprof.formats.nsys.names import named
from traceprof.formats.sqlite.database import (
    NULL,
    Column,
    ColumnType,
    Database,
    categorical,
    known,
)
from traceprof.model.frames import stack
from traceprof.model.tables import ABSENT, empty_table, make_table

__all__ = ["read_mpi_calls", "read_mpi_collectives"]

_WITH_SIZES: Final = ("MPI_COLLECTIVES_EVENTS", "MPI_P2P_EVENTS")
_TABLES: Final = (*_WITH_SIZES, "MPI_START_WAIT_EVENTS", "MPI_OTHER_EVENTS", "UCP_EVENTS")
_CALL: Final = ("start", "end", "globalTid", "textId")


def read_mpi_calls(database: Database, options: ReadOptions) -> pd.DataFrame:
    """Return all calls of MPI and UCX as host operations."""
    parts = []
    for table in _TABLES:
        if table in database.tables:
            raw = _read(database, table, _CALL, options)
            source = "ucx" if table.startswith("UCP") else "mpi"
            parts.append(
                make_table(
                    "host_ops",
                    {
                        **_place(raw),
                        "source": categorical(np.zeros(len(raw["start"]), np.int64), [source]),
                        "name": named(database, raw["textId"]),
                    },
                )
            )
    return stack("host_ops", parts)


def read_mpi_collectives(database: Database, options: ReadOptions) -> pd.DataFrame:
    """Return the collective and point-to-point calls of MPI with the bytes that a rank sends."""
    sizes = _communicator_sizes(database)
    parts = []
    for table in _WITH_SIZES:
        if table not in database.tables:
            continue
        raw = _read(database, table, (*_CALL, "size", "commHandle"), options)
        names = named(database, raw["textId"])
        ops = [collective_op(str(name)) for name in names.categories]
        handles, place = np.unique(known(raw["commHandle"]), return_inverse=True)
        groups = ["" if handle == ABSENT else f"{handle:#x}" for handle in handles.tolist()]
        group_sizes = np.array([sizes.get(handle, ABSENT) for handle in handles.tolist()], np.int64)
        frame = make_table(
            "collectives",
            {
                **_place(raw),
                "op": categorical(names.codes, ops),
                "n_bytes": known(raw["size"]),
                "group": categorical(place.ravel(), groups or [""]),
                "group_size": group_sizes[place.ravel()],
                "backend": categorical(np.zeros(len(names), np.int64), ["mpi"]),
            },
        )
        parts.append(frame[frame["op"] != ""])
    return stack("collectives", parts) if parts else empty_table("collectives")


def _read(
    database: Database, table: str, columns: tuple[str, ...], options: ReadOptions
) -> dict[str, Column]:
    wanted = dict.fromkeys(columns, ColumnType.INTEGER)
    return database.read_columns(table, wanted, options.window, optional=("size", "commHandle"))


def _place(raw: dict[str, Column]) -> dict[str, npt.NDArray[np.int64]]:
    start, end = np.asarray(raw["start"], np.int64), np.asarray(raw["end"], np.int64)
    return {
        "start_ns": start,
        "end_ns": np.maximum(start, np.where(end == NULL, start, end)),
        "process": process_of(raw["globalTid"]),
        "thread": thread_of(raw["globalTid"]),
    }


def _communicator_sizes(database: Database) -> dict[int, int]:
    if not {"commHandle", "size"} <= database.columns("MPI_COMMUNICATORS"):
        return {}
    rows = database.rows("SELECT commHandle, max(size) FROM MPI_COMMUNICATORS GROUP BY 1")
    return {handle: size for handle, size in rows if handle is not None and size is not None}
