"""MPI's calls in an nsys export, as collectives with their sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np

from traceprof.formats.nsys import schema
from traceprof.formats.sqlite.columns import NULL, ColumnType, known
from traceprof.formats.sqlite.database import Database
from traceprof.model.table import Names, Table
from traceprof.model.tables import ABSENT, make_table, stack
from traceprof.names.messages import NON_BLOCKING, collective_op

_CALL: Final = ("start", "end", "globalTid", "textId")
_FACTS: Final = ("size", "commHandle", "remoteRank", "tag")


def read_mpi_collectives(database: Database) -> Table:
    """Return the collective and point-to-point calls of MPI with the bytes that a rank sends."""
    joined, ranks = _joined(database), mpi_ranks(database) or {}
    parts = []
    for table in schema.MPI_WITH_SIZES:
        if table not in database.tables:
            continue
        wanted = dict.fromkeys((*_CALL, *_FACTS), ColumnType.INTEGER)
        raw = database.read_columns(table, wanted, optional=_FACTS)
        names = schema.named(database, raw["textId"])
        ops = list(map(collective_op, names.texts))
        backends = list(map(_backend, names.texts))
        callers = [
            ranks.get(process, ABSENT) for process in schema.process_of(raw["globalTid"]).tolist()
        ]
        handles = known(raw["commHandle"]).tolist()
        used = [joined(rank, handle) for rank, handle in zip(callers, handles, strict=True)]
        calls = make_table(
            "collectives",
            {
                **schema.placed(raw),
                "op": Names.coded(ops, names.packed, is_sorted=True),
                "n_bytes": known(raw["size"]),
                "group": [name for name, _, _ in used],
                "group_size": [size for _, size, _ in used],
                "backend": Names.coded(backends, names.packed, is_sorted=True),
                "group_rank": [rank for _, _, rank in used],
                # MPI_ANY_SOURCE, MPI_PROC_NULL and MPI_ANY_TAG are negative.
                "peer": np.maximum(known(raw["remoteRank"]), ABSENT),
                "tag": np.maximum(known(raw["tag"]), ABSENT),
            },
        )
        parts.append(calls.take(calls["op"] != ""))
    return stack("collectives", parts)


def count_mpi_collectives(database: Database) -> int:
    """Return how many rows `read_mpi_collectives` gives."""
    tables = [table for table in schema.MPI_WITH_SIZES if table in database.tables]
    answers = database.rows_of_each(
        f"SELECT textId, count(*) FROM {database.stored_name(table)} GROUP BY 1" for table in tables
    )
    counts = [row for rows in answers for row in rows]
    ids = np.array([NULL if key is None else key for key, _ in counts], np.int64)
    names = schema.named(database, ids)
    return sum(n for name, (_, n) in zip(names, counts, strict=True) if collective_op(name))


def _backend(name: str) -> str:
    """Return "mpi" or, of a call that does not wait until it is done, `NON_BLOCKING`."""
    return NON_BLOCKING if name.startswith("MPI_I") else "mpi"


_Place: TypeAlias = tuple[str, int, int]
"""A process's place in a communicator: its name, how many it has, which of them this one is."""


def _joined(database: Database) -> Callable[[int, int], _Place]:
    """Return what tells the communicator of a rank's handle.

    Its root and the number that the root gave it name it on all ranks; else the handle does.
    """
    wanted = ("rank", "commHandle", "size", "localRank", "groupRoot", "groupRootUid")
    present = database.columns("MPI_COMMUNICATORS")
    by_rank: dict[tuple[int, int], _Place] = {}
    sizes: dict[int, int] = {}
    if {"commHandle", "size"} <= present:
        columns = ", ".join(name if name in present else "NULL" for name in wanted)
        for rank, handle, size, local, root, uid in database.rows(
            f"SELECT {columns} FROM MPI_COMMUNICATORS WHERE commHandle IS NOT NULL ORDER BY size"
        ):
            name = f"{handle:#x}" if root is None or uid is None else f"{root}:{uid}"
            place = ABSENT if local is None else max(local, ABSENT)
            own = name, size or ABSENT, place
            sizes[handle] = size or ABSENT
            if rank is not None:
                by_rank[rank, handle] = own

    def joined(rank: int, handle: int) -> _Place:
        if handle == ABSENT:
            return "", ABSENT, ABSENT
        return by_rank.get((rank, handle), (f"{handle:#x}", sizes.get(handle, ABSENT), ABSENT))

    return joined


def mpi_ranks(database: Database) -> dict[int, int] | None:
    """Return the rank in the whole job of each process; None where no table tells."""
    if not {"globalTid", "rank"} <= database.columns("MPI_RANKS"):
        return None
    owner = schema.process_sql("globalTid")
    sound = schema.are_whole("globalTid", "rank")
    return dict(database.rows(f"SELECT {owner}, rank FROM MPI_RANKS WHERE {sound}"))
