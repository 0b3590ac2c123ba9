"""Read NCCL calls from an nsys export: NVTX ranges whose payloads hold sizes and communicators.

Payloads are JSON text, or bytes in the layout of a schema that the file contains.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from traceprof.formats.nsys.schema import ARE_RANGES, NVTX, NVTX_RANGES, place_on_host
from traceprof.formats.shared.collectives import ANNOTATING_BACKENDS, is_annotated, link_by_launch
from traceprof.formats.sqlite.columns import ColumnType
from traceprof.formats.sqlite.conditions import all_of, any_of, is_one_of, starts_with
from traceprof.formats.sqlite.database import Database
from traceprof.model.grouping import groups_of, rows_by_values
from traceprof.model.table import Column, Names, Table, objects
from traceprof.model.tables import ABSENT, empty_table, make_table
from traceprof.names.messages import collective_op

_OPERATIONS: Final = (
    *("AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Bcast", "Reduce", "Send", "Recv"),
    *("AlltoAll", "AllToAll", "Gather", "Scatter"),
)
_CALLS: Final = tuple(f"nccl{operation}" for operation in _OPERATIONS)
_NCCL: Final = "nccl[A-Z]*"
_INITS: Final = "ncclCommInit"
_NEEDED: Final = {"start", "end", "eventType", "globalTid", "text", "textId"}
_NAME_PATTERNS: Final = (_NCCL, *(f"{backend}:*" for backend in ANNOTATING_BACKENDS))
"""GLOB patterns of the names of communication ranges."""
_WILDCARD: Final = re.compile(r"[*?\[]")


class Communication(NamedTuple):
    """Numbers of communication ranges: NCCL calls, PyTorch annotations, and communicator inits.

    ``n_calls`` and ``n_annotations`` count the ranges that become collectives. ``n_inits`` counts
    the NCCL calls that create a communicator.
    """

    n_calls: int
    n_annotations: int
    n_inits: int


def count_communication(database: Database) -> Communication:
    """Return the numbers of communication ranges.

    The ranges are scanned once. Only the distinct names of NCCL and PyTorch ranges leave SQL.
    """
    if not database.columns(NVTX) >= _NEEDED:
        return Communication(0, 0, 0)
    key = (count_communication.__name__,)
    if key not in database.found:
        counts = _count_range_names(database)
        database.found[key] = Communication(
            sum(n for name, n in counts if name in _CALLS),
            sum(n for name, n in counts if is_annotated(name)),
            sum(n for name, n in counts if name.startswith(_INITS)),
        )
    counted: Communication = database.found[key]
    return counted


def _count_range_names(database: Database) -> list[tuple[str, int]]:
    """Return each name of a possible communication range, with its number of ranges."""
    names, _ = _ranges_named(database, _NAME_PATTERNS)
    prefixes = tuple(
        sorted({_WILDCARD.split(pattern, maxsplit=1)[0] for pattern in _NAME_PATTERNS})
    )
    raw = database.read_columns(
        NVTX,
        {"text": ColumnType.TEXT, "textId": ColumnType.INTEGER},
        where=all_of(
            is_one_of("eventType", NVTX_RANGES),
            any_of(starts_with("text", prefixes), is_one_of("textId", tuple(names))),
        ),
    )
    texts = raw["text"]
    assert isinstance(texts, Names)
    groups = groups_of(texts, raw["textId"])
    return [
        (texts.texts[code] or names.get(key, ""), n)
        for (code, key), n in zip(groups.keys, groups.counts.tolist(), strict=True)
    ]


def has_communication(database: Database) -> bool:
    """Return whether `count_communication` counts any range; the search stops at the first one."""
    if not database.columns(NVTX) >= _NEEDED:
        return False
    names, are_ranges = _ranges_named(database, _NAME_PATTERNS)
    found = database.some_rows(
        f"SELECT text, textId FROM {database.stored_name(NVTX)} WHERE {are_ranges}"
    )
    range_names = (text or names[key] for text, key in found)
    return any(name in _CALLS or is_annotated(name) for name in range_names)


def _ranges_named(database: Database, patterns: Sequence[str]) -> tuple[dict[int, str], str]:
    """Return registered names that match GLOB ``patterns`` (id → text), and SQL for their ranges.

    The SQL holds for ranges with an inline or registered name that matches.
    """
    registered: dict[int, str] = {}
    if "StringIds" in database.tables:
        matches = " OR ".join(f"value GLOB '{pattern}'" for pattern in patterns)
        registered = dict(database.rows(f"SELECT id, value FROM StringIds WHERE {matches}"))
    conditions = []
    for pattern in patterns:
        # A comparison of the prefix is faster than GLOB alone: it rejects most names early.
        prefix = _WILDCARD.split(pattern, maxsplit=1)[0]
        after = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        conditions.append(f"(text >= '{prefix}' AND text < '{after}' AND text GLOB '{pattern}')")
    if registered:
        conditions.append(f"textId IN ({', '.join(map(str, registered))})")
    return registered, f"({' OR '.join(conditions)}) AND {ARE_RANGES}"


_HEADER: Final = struct.Struct("<IIIIQQ")
"""Header of a binary payload: domain, reserved, schema, reserved, payload bytes, total bytes."""

_CODES: Final = {
    **dict.fromkeys((5, 15), "<i"),
    **dict.fromkeys((6, 16), "<I"),
    **dict.fromkeys((9, 17), "<q"),
    **dict.fromkeys((10, 18, 22), "<Q"),
    19: "<f",
    20: "<d",
}
"""Type of an NVTX payload field → its code for `struct`."""
_FIRST_CUSTOM_TYPE: Final = 1 << 24  # an enumeration: 32 bits


_Schemas: TypeAlias = Mapping[tuple[int, int], tuple[tuple[str, int, str], ...]]
"""Layouts of payloads: (domain, schema) → (field, offset in bytes, code of `struct`).

Schemas are numbered within a domain.
"""


def _decoded(schemas: _Schemas, text: str | None, blob: bytes | None) -> dict[str, Any]:
    """Return the fields of a payload, name → value; empty if it cannot be decoded."""
    if text:
        try:
            return dict(_leaves(json.loads(text)))
        except (ValueError, RecursionError):
            return {}
    if not blob or len(blob) <= _HEADER.size:
        return {}
    domain, _, schema, *_ = _HEADER.unpack_from(blob)
    payload = blob[_HEADER.size :]
    return {
        name: struct.unpack_from(code, payload, offset)[0]
        for name, offset, code in schemas.get((domain, schema), ())
        if offset + struct.calcsize(code) <= len(payload)
    }


def _read_schemas(database: Database) -> _Schemas:
    """Return the payload schemas that the export contains."""
    wanted = {"domainId", "schemaId", "idx", "type", "name", "offset"}
    if not wanted <= database.columns("NVTX_PAYLOAD_SCHEMA_ENTRIES"):
        return {}
    rows = database.rows(
        "SELECT DISTINCT domainId, schemaId, idx, CAST(type AS INTEGER), name, "
        "max(0, coalesce(CAST([offset] AS INTEGER), 0)) FROM NVTX_PAYLOAD_SCHEMA_ENTRIES "
        "WHERE type IS NOT NULL AND name IS NOT NULL ORDER BY domainId, schemaId, idx"
    )
    fields: dict[tuple[int, int], tuple[tuple[str, int, str], ...]] = {}
    for domain, schema, _, kind, name, offset in rows:
        code = "<I" if kind >= _FIRST_CUSTOM_TYPE else _CODES.get(kind)
        if code is not None:
            fields[domain, schema] = (*fields.get((domain, schema), ()), (str(name), offset, code))
    return fields


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (name, value) for each value in nested JSON."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, str(key))
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner, name)
    elif name:
        yield name, value


_GROUP: Final = ("ncclGroupStart", "ncclGroupEnd")
_COMMUNICATOR: Final = "NCCL communicator ID"
_BYTES: Final = "Message size [bytes]"
_SIZE: Final = "No. of ranks"
_RANK: Final = "Rank"
_PEER: Final = "Peer rank"
_PER_PEER: Final = ("reduce_scatter", "all_to_all", "scatter")
"""Operations for which NCCL reports the bytes per peer; the buffer of a rank holds all peers."""


class Communicator(NamedTuple):
    """The membership of a process in a communicator: its rank, and the number of ranks."""

    process: int
    name: str
    rank: int
    size: int


NcclCall: TypeAlias = tuple[str, Mapping[str, Any]]
"""A call of NCCL: its name, and the fields of its payload."""


@dataclass(frozen=True, slots=True, eq=False)
class NcclCalls:
    """NVTX ranges of NCCL, ordered by start.

    ``rows`` has the columns start_ns, end_ns, process, thread, and kind: an index into ``kinds``.
    """

    rows: Table
    kinds: Sequence[NcclCall] = ()

    def only(self, names: Container[str]) -> Table:
        """Return the rows of the calls with these names."""
        wanted = np.array([name in names for name, _ in self.kinds], np.bool_)
        return self.rows.take(wanted[self.rows["kind"]])


_PLACE: Final = ("start_ns", "end_ns", "process", "thread")
_NO_ROWS: Final = np.empty(0, np.int64)
_NO_CALLS: Final = NcclCalls(Table(dict.fromkeys((*_PLACE, "kind"), _NO_ROWS)))


def communicators(calls: NcclCalls) -> list[Communicator]:
    """Return the communicators that the processes joined, as far as payloads contain them."""
    begun = calls.only({name for name, _ in calls.kinds if name.startswith(_INITS)})
    return [
        Communicator(process, _communicator(fields), _number(fields, _RANK), _number(fields, _SIZE))
        for process, kind in zip(begun["process"].tolist(), begun["kind"].tolist(), strict=True)
        if _SIZE in (fields := calls.kinds[kind][1])
    ]


def make_nccl_collectives(calls: NcclCalls, kernels: Table, api_calls: Table) -> Table:
    """Return NCCL calls as collectives, linked to kernels; with sizes if payloads have them."""
    issued = calls.only(_CALLS)
    if issued.empty:
        return empty_table("collectives")
    places = {(item.process, item.name): item for item in communicators(calls)}
    # Most calls of a process repeat an earlier call at another time.
    groups = groups_of(issued["process"], issued["kind"])
    descriptions = [
        _describe_call(calls.kinds[kind], process, places) for process, kind in groups.keys
    ]
    columns: dict[str, Column] = {
        name: (objects(values) if isinstance(values[0], str) else np.array(values, np.int64))[
            groups.number
        ]
        for name, values in zip(_CALL_COLUMNS, zip(*descriptions, strict=True), strict=True)
    }
    columns |= issued.select(*_PLACE).columns
    columns["backend"] = Names.repeated("nccl", len(issued))
    table = make_table("collectives", columns)
    return link_by_launch(table, kernels, api_calls, _latest_launch_ends(table, calls))


_CALL_COLUMNS: Final = ("op", "n_bytes", "group", "group_size", "group_rank", "peer")


def _describe_call(
    call: NcclCall, process: int, places: Mapping[tuple[int, str], Communicator]
) -> tuple[str, int, str, int, int, int]:
    """Return the values of `_CALL_COLUMNS` for one call of a process."""
    name, fields = call
    op, group = collective_op(name), _communicator(fields)
    joined = places.get((process, group))
    n_ranks, rank = (ABSENT, ABSENT) if joined is None else (joined.size, joined.rank)
    n_bytes = _number(fields, _BYTES)
    if n_bytes != ABSENT and op in _PER_PEER:
        n_bytes = n_bytes * n_ranks if n_ranks > 0 else ABSENT
    return op, n_bytes, group, n_ranks, rank, _number(fields, _PEER)


def read_nccl_calls(database: Database, *, only_inits: bool = False) -> NcclCalls:
    """Return the NVTX ranges of NCCL with their payloads, ordered by start.

    ``only_inits``: return only the calls that create communicators.
    """
    names_like = f"{_INITS}*" if only_inits else _NCCL
    present = database.columns(NVTX)
    if not present >= _NEEDED or (only_inits and not count_communication(database).n_inits):
        return _NO_CALLS
    names, are_ranges = _ranges_named(database, [names_like])
    json_text = "jsonText" if "jsonText" in present else "NULL"
    blob = "CAST(binaryData AS BLOB)" if "binaryData" in present else "NULL"
    rows = database.rows(
        f'SELECT start, coalesce("end", start), coalesce(globalTid, 0), text, textId, {json_text}, '
        f"{blob} FROM {NVTX} WHERE {are_ranges} ORDER BY start"
    )
    if not rows:
        return _NO_CALLS
    starts, ends, places, *descriptions = zip(*rows, strict=True)
    calls = list(zip(*descriptions, strict=True))
    kinds = {call: number for number, call in enumerate(dict.fromkeys(calls))}
    schemas = _read_schemas(database)
    raw = {"start": starts, "end": ends, "globalTid": places}
    place = place_on_host({name: np.array(values, np.int64) for name, values in raw.items()})
    place["kind"] = np.fromiter(map(kinds.__getitem__, calls), np.int64, len(rows))
    return NcclCalls(
        Table(place),
        [
            (text or names[key], _decoded(schemas, json_text, payload))
            for text, key, json_text, payload in kinds
        ],
    )


def _latest_launch_ends(table: Table, calls: NcclCalls) -> npt.NDArray[np.int64]:
    """Return until when each call may launch its kernel, in ns.

    A call inside an NCCL group launches its kernel when the group ends.
    """
    latest: npt.NDArray[np.int64] = table["end_ns"].copy()
    begins = table["start_ns"]
    opening, closing = (_by_lane(calls.only((name,))) for name in _GROUP)
    for lane, rows in rows_by_values(table["process"], table["thread"]).items():
        opened, _ = opening.get(lane, (_NO_ROWS, _NO_ROWS))
        closed, ends = closing.get(lane, (_NO_ROWS, _NO_ROWS))
        following = np.searchsorted(closed, begins[rows])
        is_open = np.searchsorted(opened, begins[rows]) > following
        grouped = is_open & (following < len(closed))
        latest[rows[grouped]] = ends[following[grouped]]
    return latest


_Times: TypeAlias = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]


def _by_lane(calls: Table) -> Mapping[tuple[int, ...], _Times]:
    """Return starts and ends of the calls of each (process, thread)."""
    starts, ends, processes, threads = (calls[name] for name in _PLACE)
    lanes = rows_by_values(processes, threads)
    return {lane: (starts[rows], ends[rows]) for lane, rows in lanes.items()}


def _communicator(fields: Mapping[str, Any]) -> str:
    """Return the communicator ID in a payload as text: hexadecimal for a number; "" if missing."""
    value = fields.get(_COMMUNICATOR)
    return f"{value:#x}" if isinstance(value, int) else str(value or "")


def _number(fields: Mapping[str, Any], name: str) -> int:
    """Return the whole number in a payload field; `ABSENT` if it is missing."""
    value = fields.get(name)
    if isinstance(value, str) and value.isdigit():
        return int(value)
    return value if isinstance(value, int) else ABSENT
