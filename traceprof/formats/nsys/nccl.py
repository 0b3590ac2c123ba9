"""NCCL's calls in an nsys export: NVTX ranges whose payloads tell sizes and communicators."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.formats.nsys.codes import NVTX_PUSH_POP, NVTX_START_END, process_of, thread_of
from traceprof.formats.nsys.payloads import PayloadSchemas, read_schemas
from traceprof.formats.shared.collectives import (
    ANNOTATING_BACKENDS,
    is_annotated,
    tied_by_launch,
)
from traceprof.formats.sqlite.conditions import AllOf, Among, AnyOf, StartsWith
from traceprof.formats.sqlite.database import ColumnType, Database, distinct_pairs
from traceprof.model.collective_names import collective_op
from traceprof.model.tables import ABSENT, empty_table, make_table

__all__ = [
    "Communication",
    "Communicator",
    "NcclCall",
    "communicators",
    "count_communication",
    "make_nccl_collectives",
    "read_nccl_calls",
]

_CALLS: Final = (
    "ncclAllReduce",
    "ncclAllGather",
    "ncclReduceScatter",
    "ncclBroadcast",
    "ncclBcast",
    "ncclReduce",
    "ncclSend",
    "ncclRecv",
    "ncclAlltoAll",
    "ncclAllToAll",
    "ncclGather",
    "ncclScatter",
)
_NCCL: Final = "nccl[A-Z]*"
_INITS: Final = "ncclCommInit"
_NEEDED: Final = {"start", "end", "eventType", "globalTid", "text", "textId"}
_TELLING: Final = (_NCCL, *(f"{backend}:*" for backend in ANNOTATING_BACKENDS))
"""What names of ranges look like that tell of collectives."""
_GROUP_START: Final = "ncclGroupStart"
_GROUP_END: Final = "ncclGroupEnd"
_COMMUNICATOR: Final = "NCCL communicator ID"
_BYTES: Final = "Message size [bytes]"
_SIZE: Final = "No. of ranks"
_RANK: Final = "Rank"
_PEER: Final = "Peer rank"
_PER_PEER: Final = ("reduce_scatter", "all_to_all", "scatter")
"""Of these NCCL tells the part of one peer: what a rank puts in is that for every rank."""


class Communicator(NamedTuple):
    """One process's place in a group: its rank and how many there are."""

    process: int
    name: str
    rank: int
    size: int


class NcclCall(NamedTuple):
    """One NVTX range of NCCL and the fields of its payload."""

    start_ns: int
    end_ns: int
    process: int
    thread: int
    name: str
    fields: Mapping[str, Any]


class Communication(NamedTuple):
    """How many calls of NCCL and annotations of PyTorch become collectives; how many begin groups.

    ``n_inits`` are NCCL's calls that make a communicator.
    """

    n_calls: int
    n_annotations: int
    n_inits: int


def communicators(calls: Sequence[NcclCall]) -> list[Communicator]:
    """Return the communicators that the processes joined, where payloads tell them."""
    return [
        Communicator(
            call.process,
            _communicator(call.fields),
            _number(call.fields, _RANK),
            _number(call.fields, _SIZE),
        )
        for call in calls
        if call.name.startswith(_INITS) and _SIZE in call.fields
    ]


def make_nccl_collectives(
    calls: Sequence[NcclCall],
    kernels: pd.DataFrame,
    api_calls: pd.DataFrame,
) -> pd.DataFrame:
    """Return NCCL's calls as collectives, tied to their kernels; sizes where payloads tell."""
    issued = [call for call in calls if call.name in _CALLS]
    if not issued:
        return empty_table("collectives")
    places = {(item.process, item.name): item for item in communicators(calls)}
    groups = [_communicator(call.fields) for call in issued]
    joined = [places.get(pair) for pair in zip((c.process for c in issued), groups, strict=True)]
    n_ranks = [ABSENT if item is None else item.size for item in joined]
    op_of = {name: collective_op(name) for name in _CALLS}
    ops = [op_of[call.name] for call in issued]
    table = make_table(
        "collectives",
        {
            "start_ns": [call.start_ns for call in issued],
            "end_ns": [call.end_ns for call in issued],
            "process": [call.process for call in issued],
            "thread": [call.thread for call in issued],
            "op": ops,
            "n_bytes": [
                _input_bytes(call, op, size)
                for call, op, size in zip(issued, ops, n_ranks, strict=True)
            ],
            "group": groups,
            "group_size": n_ranks,
            "backend": ["nccl"] * len(issued),
            "group_rank": [ABSENT if item is None else item.rank for item in joined],
            "peer": [_number(call.fields, _PEER) for call in issued],
        },
    )
    return tied_by_launch(table, kernels, api_calls, _ends_of_groups(table, calls))


def read_nccl_calls(database: Database, *, only_inits: bool = False) -> list[NcclCall]:
    """Return the NVTX ranges of NCCL, by start, with what their payloads say.

    ``only_inits``: those with which communicators begin.
    """
    names_like = f"{_INITS}*" if only_inits else _NCCL
    present = database.columns("NVTX_EVENTS")
    if not present >= _NEEDED or (only_inits and not count_communication(database).n_inits):
        return []
    names = _registered_names(database, [names_like])
    json_text = "jsonText" if "jsonText" in present else "NULL"
    blob = "CAST(binaryData AS BLOB)" if "binaryData" in present else "NULL"
    rows = database.rows(
        f'SELECT start, coalesce("end", start), coalesce(globalTid, 0), text, textId, {json_text}, '
        f"{blob} FROM NVTX_EVENTS WHERE {_are_ranges(names, [names_like])} ORDER BY start"
    )
    schemas = read_schemas(database) if rows else PayloadSchemas({})
    places = np.array([row[2] for row in rows], np.int64)
    where = zip(process_of(places).tolist(), thread_of(places).tolist(), strict=True)
    return [
        NcclCall(start, end, *place, text or names[key], schemas.decode(json_text, payload))
        for (start, end, _, text, key, json_text, payload), place in zip(rows, where, strict=True)
    ]


def count_communication(database: Database) -> Communication:
    """Return how many ranges tell of communication.

    The ranges are scanned once; only the distinct names among those of NCCL and PyTorch come back.
    """
    if not database.columns("NVTX_EVENTS") >= _NEEDED:
        return Communication(0, 0, 0)
    key = (count_communication.__name__,)
    if key not in database.found:
        database.found[key] = _count_communication(database)
    counted: Communication = database.found[key]
    return counted


def _count_communication(database: Database) -> Communication:
    names = _registered_names(database, _TELLING)
    prefixes = tuple(sorted({_prefix(pattern) for pattern in _TELLING}))
    raw = database.read_columns(
        "NVTX_EVENTS",
        {"text": ColumnType.TEXT, "textId": ColumnType.INTEGER},
        where=AllOf(
            Among("eventType", (NVTX_PUSH_POP, NVTX_START_END)),
            AnyOf(StartsWith("text", prefixes), Among("textId", tuple(names))),
        ),
    )
    texts = raw["text"]
    assert isinstance(texts, pd.Categorical)
    pairs, place = distinct_pairs(texts.codes, raw["textId"])
    told = [
        (str(texts.categories[code]) or names.get(key, ""), n)
        for (code, key), n in zip(pairs, np.bincount(place).tolist(), strict=True)
    ]
    return Communication(
        sum(n for name, n in told if name in _CALLS),
        sum(n for name, n in told if is_annotated(name)),
        sum(n for name, n in told if name.startswith(_INITS)),
    )


def has_communication(database: Database) -> bool:
    """Return whether `count_communication` counts any; the first one is enough."""
    if not database.columns("NVTX_EVENTS") >= _NEEDED:
        return False
    names = _registered_names(database, _TELLING)
    found = database.some_rows(
        f"SELECT text, textId FROM NVTX_EVENTS WHERE {_are_ranges(names, _TELLING)}"
    )
    told = (text or names[key] for text, key in found)
    return any(name in _CALLS or is_annotated(name) for name in told)


def _are_ranges(registered: Mapping[int, str], patterns: Sequence[str]) -> str:
    """Return SQL that holds for the ranges with such names, of which some are registered."""
    alike = " OR ".join(f"({_is_like('text', pattern)})" for pattern in patterns)
    kinds = f"eventType IN ({NVTX_PUSH_POP}, {NVTX_START_END})"
    if registered:
        alike += f" OR textId IN ({', '.join(map(str, registered))})"
    return f"({alike}) AND {kinds}"


def _is_like(column: str, pattern: str) -> str:
    """Return SQL that holds where ``column`` is like ``pattern``: most differ in a few bytes."""
    prefix = _prefix(pattern)
    after = prefix[:-1] + chr(ord(prefix[-1]) + 1)
    return f"{column} >= '{prefix}' AND {column} < '{after}' AND {column} GLOB '{pattern}'"


def _prefix(pattern: str) -> str:
    return re.split(r"[*?\[]", pattern, maxsplit=1)[0]


def _registered_names(database: Database, patterns: Sequence[str]) -> dict[int, str]:
    if "StringIds" not in database.tables:
        return {}
    alike = " OR ".join(f"value GLOB '{pattern}'" for pattern in patterns)
    return dict(database.rows(f"SELECT id, value FROM StringIds WHERE {alike}"))


def _input_bytes(call: NcclCall, op: str, size: int) -> int:
    """Return the bytes that one rank puts in."""
    n_bytes = _number(call.fields, _BYTES)
    if n_bytes == ABSENT or op not in _PER_PEER:
        return n_bytes
    return n_bytes * size if size > 0 else ABSENT


def _ends_of_groups(table: pd.DataFrame, calls: Sequence[NcclCall]) -> npt.NDArray[np.int64]:
    """Return until when each call may launch its kernel: inside a group, only its end does."""
    latest = table["end_ns"].to_numpy().copy()
    begins = table["start_ns"].to_numpy()
    for lane, rows in table.groupby(["process", "thread"]).indices.items():
        mine = [call for call in calls if (call.process, call.thread) == lane]
        opened = np.array([call.start_ns for call in mine if call.name == _GROUP_START], np.int64)
        closing = [call for call in mine if call.name == _GROUP_END]
        closed = np.array([call.start_ns for call in closing], np.int64)
        following = np.searchsorted(closed, begins[rows])
        is_open = np.searchsorted(opened, begins[rows]) > following
        grouped = is_open & (following < len(closed))
        ends = np.array([call.end_ns for call in closing], np.int64)
        latest[rows[grouped]] = ends[following[grouped]]
    return latest


def _communicator(fields: Mapping[str, Any]) -> str:
    value = fields.get(_COMMUNICATOR)
    return f"{value:#x}" if isinstance(value, int) else str(value or "")


def _number(fields: Mapping[str, Any], name: str) -> int:
    value = fields.get(name)
    if isinstance(value, str) and value.isdigit():
        return int(value)
    return value if isinstance(value, int) else ABSENT
