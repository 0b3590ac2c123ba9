"""Read MPI calls from an nsys export as collectives with sizes."""

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

_CALL_COLUMNS: Final = ("start", "end", "globalTid", "textId")
_OPTIONAL_COLUMNS: Final = ("size", "commHandle", "remoteRank", "tag")


def read_mpi_collectives(database: Database) -> Table:
    """Return collective and point-to-point calls of MPI, with the bytes that a rank sends."""
    find_communicator, ranks = _find_communicators(database), mpi_ranks(database) or {}
    parts = []
    for table in schema.MPI_WITH_SIZES:
        if table not in database.tables:
            continue
        wanted = dict.fromkeys((*_CALL_COLUMNS, *_OPTIONAL_COLUMNS), ColumnType.INTEGER)
        raw = database.read_columns(table, wanted, optional=_OPTIONAL_COLUMNS)
        names = schema.read_names(database, raw["textId"])
        ops = list(map(collective_op, names.texts))
        backends = list(map(_backend, names.texts))
        callers = [
            ranks.get(process, ABSENT) for process in schema.process_of(raw["globalTid"]).tolist()
        ]
        handles = known(raw["commHandle"]).tolist()
        memberships = [
            find_communicator(rank, handle) for rank, handle in zip(callers, handles, strict=True)
        ]
        calls = make_table(
            "collectives",
            {
                **schema.place_on_host(raw),
                "op": Names.coded(ops, names.packed, is_sorted=True),
                "n_bytes": known(raw["size"]),
                "group": [name for name, _, _ in memberships],
                "group_size": [size for _, size, _ in memberships],
                "backend": Names.coded(backends, names.packed, is_sorted=True),
                "group_rank": [rank for _, _, rank in memberships],
                # MPI_ANY_SOURCE, MPI_PROC_NULL and MPI_ANY_TAG are negative.
                "peer": np.maximum(known(raw["remoteRank"]), ABSENT),
                "tag": np.maximum(known(raw["tag"]), ABSENT),
            },
        )
        parts.append(calls.take(calls["op"] != ""))
    return stack("collectives", parts)


def count_mpi_collectives(database: Database) -> int:
    """Return the number of rows that `read_mpi_collectives` returns."""
    tables = [table for table in schema.MPI_WITH_SIZES if table in database.tables]
    answers = database.rows_of_each(
        f"SELECT textId, count(*) FROM {database.stored_name(table)} GROUP BY 1" for table in tables
    )
    counts = [row for rows in answers for row in rows]
    ids = np.array([NULL if key is None else key for key, _ in counts], np.int64)
    names = schema.read_names(database, ids)
    return sum(n for name, (_, n) in zip(names, counts, strict=True) if collective_op(name))


def _backend(name: str) -> str:
    """Return "mpi", or `NON_BLOCKING` for a call that returns before it is complete."""
    return NON_BLOCKING if name.startswith("MPI_I") else "mpi"


_Membership: TypeAlias = tuple[str, int, int]
"""The membership of a process in a communicator: the communicator's name and size, and its rank."""


def _find_communicators(database: Database) -> Callable[[int, int], _Membership]:
    """Return a function (rank, handle) → the membership of this rank in this communicator.

    A communicator is named by its root and the number that the root gave it, which is the same on
    all ranks; if these are unknown, by its handle.
    """
    wanted = ("rank", "commHandle", "size", "localRank", "groupRoot", "groupRootUid")
    present = database.columns("MPI_COMMUNICATORS")
    by_rank: dict[tuple[int, int], _Membership] = {}
    sizes: dict[int, int] = {}
    if {"commHandle", "size"} <= present:
        columns = ", ".join(name if name in present else "NULL" for name in wanted)
        for rank, handle, size, local, root, uid in database.rows(
            f"SELECT {columns} FROM MPI_COMMUNICATORS WHERE commHandle IS NOT NULL ORDER BY size"
        ):
            name = f"{handle:#x}" if root is None or uid is None else f"{root}:{uid}"
            place = ABSENT if local is None else max(local, ABSENT)
            membership = name, size or ABSENT, place
            sizes[handle] = size or ABSENT
            if rank is not None:
                by_rank[rank, handle] = membership

    def find(rank: int, handle: int) -> _Membership:
        """Return the membership; without a known communicator, its name is the handle."""
        if handle == ABSENT:
            return "", ABSENT, ABSENT
        return by_rank.get((rank, handle), (f"{handle:#x}", sizes.get(handle, ABSENT), ABSENT))

    return find


def mpi_ranks(database: Database) -> dict[int, int] | None:
    """Return process → rank in MPI_COMM_WORLD; None if the export has no table of ranks."""
    if not {"globalTid", "rank"} <= database.columns("MPI_RANKS"):
        return None
    owner = schema.process_sql("globalTid")
    sound = schema.are_whole_numbers("globalTid", "rank")
    return dict(database.rows(f"SELECT {owner}, rank FROM MPI_RANKS WHERE {sound}"))
