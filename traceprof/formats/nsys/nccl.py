"""NCCL's calls in an nsys export: NVTX ranges whose payloads tell sizes and communicators."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.formats.nsys.codes import process_of, thread_of
from traceprof.formats.nsys.communication import (
    CALLS,
    INITS,
    NCCL,
    NEEDED,
    are_ranges,
    count_communication,
    registered_names,
)
from traceprof.formats.nsys.payloads import read_schemas
from traceprof.formats.shared.collectives import (
    tied_by_launch,
)
from traceprof.formats.sqlite.database import Database, categorical, distinct_pairs
from traceprof.model.grouping import rows_by_values
from traceprof.model.tables import ABSENT, empty_table, make_table
from traceprof.names.messages import collective_op
from traceprof.values import dataclass

__all__ = [
    "Communicator",
    "NcclCall",
    "NcclCalls",
    "communicators",
    "make_nccl_collectives",
    "read_nccl_calls",
]

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
    """What a call of NCCL is: its name, and the fields of its payload."""

    name: str
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class NcclCalls:
    """NVTX ranges of NCCL, by start: when, where, and which of the distinct ``kinds`` each is."""

    start_ns: npt.NDArray[np.int64]
    end_ns: npt.NDArray[np.int64]
    process: npt.NDArray[np.int64]
    thread: npt.NDArray[np.int64]
    kind: npt.NDArray[np.int64]
    kinds: Sequence[NcclCall] = ()

    def __len__(self) -> int:
        return len(self.kind)

    def only(self, names: Container[str]) -> NcclCalls:
        """Return the calls with these names."""
        wanted = np.array([call.name in names for call in self.kinds], np.bool_)
        rows = np.flatnonzero(wanted[self.kind])
        return NcclCalls(
            self.start_ns[rows],
            self.end_ns[rows],
            self.process[rows],
            self.thread[rows],
            self.kind[rows],
            self.kinds,
        )


_NO_ROWS: Final = np.empty(0, np.int64)
_NO_CALLS: Final = NcclCalls(_NO_ROWS, _NO_ROWS, _NO_ROWS, _NO_ROWS, _NO_ROWS)


def communicators(calls: NcclCalls) -> list[Communicator]:
    """Return the communicators that the processes joined, where payloads tell them."""
    inits = {call.name for call in calls.kinds if call.name.startswith(INITS)}
    begun = calls.only(inits)
    joined = ((process, calls.kinds[kind].fields) for process, kind in _pairs(begun))
    return [
        Communicator(process, _communicator(told), _number(told, _RANK), _number(told, _SIZE))
        for process, told in joined
        if _SIZE in told
    ]


def make_nccl_collectives(
    calls: NcclCalls, kernels: pd.DataFrame, api_calls: pd.DataFrame
) -> pd.DataFrame:
    """Return NCCL's calls as collectives, tied to their kernels; sizes where payloads tell."""
    issued = calls.only(CALLS)
    if not len(issued):
        return empty_table("collectives")
    places = {(item.process, item.name): item for item in communicators(calls)}
    # Few of them differ in more than when they are made.
    distinct, place = distinct_pairs(issued.process, issued.kind)
    told = [_described(calls.kinds[kind], process, places) for process, kind in distinct]
    columns = {
        name: np.array(values, object if isinstance(values[0], str) else np.int64)[place]
        for name, values in zip(_DESCRIBED, zip(*told, strict=True), strict=True)
    }
    table = make_table(
        "collectives",
        {
            "start_ns": issued.start_ns,
            "end_ns": issued.end_ns,
            "process": issued.process,
            "thread": issued.thread,
            "backend": categorical(np.zeros(len(issued), np.int64), ["nccl"]),
            **columns,
        },
    )
    return tied_by_launch(table, kernels, api_calls, _ends_of_groups(table, calls))


_DESCRIBED: Final = ("op", "n_bytes", "group", "group_size", "group_rank", "peer")


def _described(
    call: NcclCall, process: int, places: Mapping[tuple[int, str], Communicator]
) -> tuple[str, int, str, int, int, int]:
    """Return the columns of `_DESCRIBED` of a call of a process."""
    op, group = collective_op(call.name), _communicator(call.fields)
    joined = places.get((process, group))
    n_ranks, rank = (ABSENT, ABSENT) if joined is None else (joined.size, joined.rank)
    n_bytes = _input_bytes(call.fields, op, n_ranks)
    return op, n_bytes, group, n_ranks, rank, _number(call.fields, _PEER)


def _pairs(calls: NcclCalls) -> Iterator[tuple[int, int]]:
    """Yield process and kind of each call."""
    yield from zip(calls.process.tolist(), calls.kind.tolist(), strict=True)


def read_nccl_calls(database: Database, *, only_inits: bool = False) -> NcclCalls:
    """Return the NVTX ranges of NCCL, by start, with what their payloads say.

    ``only_inits``: those with which communicators begin.
    """
    names_like = f"{INITS}*" if only_inits else NCCL
    present = database.columns("NVTX_EVENTS")
    if not present >= NEEDED or (only_inits and not count_communication(database).n_inits):
        return _NO_CALLS
    names = registered_names(database, [names_like])
    json_text = "jsonText" if "jsonText" in present else "NULL"
    blob = "CAST(binaryData AS BLOB)" if "binaryData" in present else "NULL"
    rows = database.rows(
        f'SELECT start, coalesce("end", start), coalesce(globalTid, 0), text, textId, {json_text}, '
        f"{blob} FROM NVTX_EVENTS WHERE {are_ranges(names, [names_like])} ORDER BY start"
    )
    if not rows:
        return _NO_CALLS
    starts, ends, places, *told = zip(*rows, strict=True)
    told_of = list(zip(*told, strict=True))
    kinds = {one: number for number, one in enumerate(dict.fromkeys(told_of))}
    schemas = read_schemas(database)
    owners = np.array(places, np.int64)
    return NcclCalls(
        np.array(starts, np.int64),
        np.array(ends, np.int64),
        process_of(owners),
        thread_of(owners),
        np.fromiter(map(kinds.__getitem__, told_of), np.int64, len(rows)),
        [
            NcclCall(text or names[key], schemas.decode(json_text, payload))
            for text, key, json_text, payload in kinds
        ],
    )


def _input_bytes(fields: Mapping[str, Any], op: str, size: int) -> int:
    """Return the bytes that one rank puts in."""
    n_bytes = _number(fields, _BYTES)
    if n_bytes == ABSENT or op not in _PER_PEER:
        return n_bytes
    return n_bytes * size if size > 0 else ABSENT


def _ends_of_groups(table: pd.DataFrame, calls: NcclCalls) -> npt.NDArray[np.int64]:
    """Return until when each call may launch its kernel: inside a group, only its end does."""
    latest = table["end_ns"].to_numpy().copy()
    begins = table["start_ns"].to_numpy()
    opening, closing = calls.only((_GROUP_START,)), calls.only((_GROUP_END,))
    opened_by, closed_by = _by_lane(opening), _by_lane(closing)
    for lane, rows in rows_by_values(table["process"], table["thread"]).items():
        opened = opening.start_ns[opened_by.get(lane, _NO_ROWS)]
        closers = closed_by.get(lane, _NO_ROWS)
        following = np.searchsorted(closing.start_ns[closers], begins[rows])
        is_open = np.searchsorted(opened, begins[rows]) > following
        grouped = is_open & (following < len(closers))
        latest[rows[grouped]] = closing.end_ns[closers][following[grouped]]
    return latest


def _by_lane(calls: NcclCalls) -> Mapping[tuple[int, ...], npt.NDArray[np.int64]]:
    """Return the rows of each process and thread."""
    return rows_by_values(calls.process, calls.thread) if len(calls) else {}


def _communicator(fields: Mapping[str, Any]) -> str:
    value = fields.get(_COMMUNICATOR)
    return f"{value:#x}" if isinstance(value, int) else str(value or "")


def _number(fields: Mapping[str, Any], name: str) -> int:
    value = fields.get(name)
    if isinstance(value, str) and value.isdigit():
        return int(value)
    return value if isinstance(value, int) else ABSENT
