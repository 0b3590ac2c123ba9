"""Read host events from an nsys export: API calls, NVTX, operators, profiler overheads."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import partial
from itertools import compress
from typing import Final

import numpy as np
import numpy.typing as npt

from traceprof.formats.nsys import schema
from traceprof.formats.nsys.sidecar import read_traceprof_table
from traceprof.formats.shared import cupti
from traceprof.formats.sqlite import conditions
from traceprof.formats.sqlite.columns import NULL, ColumnType, known
from traceprof.formats.sqlite.database import Database
from traceprof.model.clipping import rows_where
from traceprof.model.grouping import groups_of
from traceprof.model.names import PackedTexts
from traceprof.model.table import Column, Names, Table, objects
from traceprof.model.tables import ABSENT, empty_table, make_table, stack
from traceprof.model.timing import TimeWindow

_INTEGER: Final = ColumnType.INTEGER
_SPAN: Final = ("start", "end", "globalTid")
_STEP_NAME_PARTS: Final = ("tep", "ter", "batch")
"""Parts of "step", "iter", and "batch" that case folding leaves unchanged in every alphabet."""
_PASS_NAME_PARTS: Final = ("ward", "wd")
_DECORATION_PARTS: Final = ("= ",)
"""A name with this part may be a step but is no pass; operators of the backward pass have it."""
_OCCASION_NAME_PARTS: Final = (
    *("val", "test", "generat", "rollout", "checkpoint", "ckpt", "save"),
    *("compil", "nvrtc", "codegen", "autotun", "dynamo"),
)
"""Parts of the names of what makes single steps longer: evaluation, checkpoints, compilation."""
_NUMBER_COLUMNS: Final = (*_SPAN, "eventType", "textId", "domainId", "category")
_PAYLOAD_COLUMNS: Final = tuple(
    f"{kind}Value" for kind in ("int64", "uint64", "int32", "uint32", "double", "float")
)


def read_api_calls(
    database: Database, window: TimeWindow | None = None, where: str | None = None
) -> Table:
    """Return the calls of the CUDA runtime and driver that meet the SQL condition ``where``."""
    if schema.API_CALLS not in database.tables:
        return empty_table("api_calls")
    wanted = dict.fromkeys((*_SPAN, "nameId", "correlationId"), _INTEGER)
    raw = database.read_columns(schema.API_CALLS, wanted, window, where=where)
    names = schema.read_names(database, raw["nameId"])
    plain = Names.coded(map(cupti.plain_api_name, names.texts), names.packed, is_sorted=True)
    return make_table(
        "api_calls",
        {**schema.place_on_host(raw), "correlation": known(raw["correlationId"]), "name": plain},
    )


def read_launches(database: Database, before_ns: int, work: Sequence[Table]) -> Table:
    """Return start, process, and correlation of the API calls that may have launched ``work``.

    Only calls that began before ``before_ns`` are returned. The result may contain other calls
    whose correlations are in the same range.
    """
    numbers = np.concatenate([table["correlation"] for table in work])
    numbers = numbers[numbers != ABSENT]
    if schema.API_CALLS not in database.tables or not len(numbers):
        return empty_table("api_calls")
    raw = database.read_columns(
        schema.API_CALLS,
        dict.fromkeys(("start", "globalTid", "correlationId"), _INTEGER),
        where=conditions.all_of(
            conditions.between("start", None, before_ns - 1),
            conditions.between("correlationId", int(numbers.min()), int(numbers.max())),
        ),
    )
    return Table(
        {
            "start_ns": np.asarray(raw["start"], np.int64),
            "process": schema.process_of(raw["globalTid"]),
            "correlation": np.asarray(raw["correlationId"], np.int64),
        }
    )


def read_host_ops(database: Database, window: TimeWindow | None = None) -> Table:
    """Return calls of the operating system, libraries, MPI, and UCX, and CPU operators."""
    parts = []
    for sources, name in ((schema.HOST_SOURCES, "nameId"), (schema.MPI_SOURCES, "textId")):
        if tables := [table for table in sources if table in database.tables]:
            spans, table_number = _named_spans(database, tables, window, name)
            source = Names.coded([sources[table] for table in tables], table_number, is_sorted=True)
            parts.append(make_table("host_ops", {**spans, "source": source}))
    return stack("host_ops", [*parts, read_traceprof_table(database, "host_ops", window)])


def read_overheads(database: Database, window: TimeWindow | None = None) -> Table:
    """Return the intervals that the profiler reports as its own overhead."""
    tables = [table for table in schema.OVERHEADS if table in database.tables]
    if not tables:
        return empty_table("overheads")
    return make_table("overheads", _named_spans(database, tables, window)[0])


def _named_spans(
    database: Database, tables: Sequence[str], window: TimeWindow | None, name: str = "nameId"
) -> tuple[dict[str, Column], npt.NDArray[np.int64]]:
    """Return the rows of all ``tables`` with names, and the index of the table of each row."""
    wanted = (*_SPAN, name)
    parts = [
        database.read_columns(table, dict.fromkeys(wanted, _INTEGER), window) for table in tables
    ]
    stacked = {
        column: np.concatenate([np.asarray(raw[column]) for raw in parts]) for column in wanted
    }
    table_number = np.repeat(np.arange(len(parts)), [len(raw["start"]) for raw in parts])
    return {
        **schema.place_on_host(stacked),
        "name": schema.read_names(database, stacked[name]),
    }, table_number


def read_annotations(
    database: Database, capture_end_ns: int | None, *, only_steps: bool = False
) -> cupti.Annotations:
    """Return the NVTX ranges and marks. A range that was never closed ends with the capture.

    ``only_steps``: return only ranges in domains, and ranges with names that steps, passes, and
    occasional work (evaluation, checkpoints, compilation) can have.
    """
    if schema.NVTX not in database.tables:
        return cupti.NO_ANNOTATIONS
    payloads = [name for name in _PAYLOAD_COLUMNS if name in database.columns(schema.NVTX)]
    raw = database.read_columns(
        schema.NVTX,
        {
            **dict.fromkeys(_NUMBER_COLUMNS, _INTEGER),
            **dict.fromkeys(payloads, ColumnType.REAL),
            "text": ColumnType.TEXT,
        },
        optional=("category", "domainId"),
        where=_step_condition(database) if only_steps else None,
    )
    names = _event_names(database, raw["text"], raw["textId"])
    payload = np.full(len(names), np.nan)
    for name in payloads:  # the first known payload counts
        np.copyto(payload, np.asarray(raw[name], np.float64), where=np.isnan(payload))
    events = Table(
        {
            **{name: np.asarray(raw[name], np.int64) for name in _NUMBER_COLUMNS},
            "process": schema.process_of(raw["globalTid"]),
            "thread": schema.thread_of(raw["globalTid"]),
            "name": names,
            "payload": payload,
        }
    )
    events = events.assign(domain=_domains(events))
    # Ranges are usually one contiguous block of rows; rows_where then avoids a copy.
    spans = events.take(rows_where(np.isin(events["eventType"], schema.NVTX_RANGES)))
    ends = spans["end"].copy()
    unclosed = ends == NULL
    if unclosed.any():
        last = max(int(ends.max(initial=0)), int(spans["start"].max()), capture_end_ns or 0)
        ends[unclosed] = last
    return cupti.make_annotations(
        {**_event_columns(spans), "category": known(spans["category"])},
        ends,
        spans["eventType"] == schema.NVTX_PUSH_POP,
        _event_columns(events.take(events["eventType"] == schema.NVTX_MARK)),
        int(unclosed.sum()),
    )


def _step_condition(database: Database) -> conditions.Condition:
    """Return the condition for events that may define or explain steps, or that are in a domain."""
    found: list[conditions.Condition] = [
        conditions.is_one_of("eventType", (schema.NVTX_DOMAIN,)),
        conditions.contains("text", _STEP_NAME_PARTS),
        conditions.contains("text", _PASS_NAME_PARTS, but_none_of=_DECORATION_PARTS),
        # The backward engine "evaluates" functions: these are no evaluations.
        conditions.contains("text", _OCCASION_NAME_PARTS, but_none_of=("autograd::",)),
    ]
    if "domainId" in database.columns(schema.NVTX):
        found.append(conditions.differs("domainId", 0))
    if "StringIds" in database.tables:
        matches = conditions.contains(
            "value", _STEP_NAME_PARTS + _PASS_NAME_PARTS + _OCCASION_NAME_PARTS
        ).sql
        rows = database.rows(f"SELECT id FROM StringIds WHERE {matches}")
        found.append(conditions.is_one_of("textId", tuple(key for (key,) in rows)))
    return conditions.any_of(*found)


def _event_columns(events: Table) -> dict[str, Column]:
    """Return the columns that ranges and marks have in common."""
    return {
        "start_ns": events["start"],
        **{name: events[name] for name in ("process", "thread", "payload", "domain", "name")},
    }


def _event_names(database: Database, texts: Column, ids: Column) -> Names:
    """Return the name of each event: its inline text, or the registered string if it has an id."""
    assert isinstance(texts, Names)
    registered = schema.read_names(database, ids)
    has_no_id = np.asarray(ids, np.int64) == NULL
    # Insert the few registered names into the many inline names; both are sorted.
    many, few = texts.texts, registered.texts.tolist()
    place = np.array([bisect_left(many, name) for name in few], np.int64)
    is_new = np.array(
        [at == len(many) or many[at] != name for at, name in zip(place.tolist(), few, strict=True)],
        np.bool_,
    )
    before: npt.NDArray[np.int64] = np.cumsum(is_new) - is_new
    shift = np.searchsorted(place[is_new], np.arange(len(many)), side="right")
    new = list(compress(few, is_new.tolist()))
    insert = many.inserted if isinstance(many, PackedTexts) else partial(np.insert, many)
    all_names = insert(place[is_new], objects(new)) if new else many
    of_many = (np.arange(len(many)) + shift)[texts.codes]
    return Names(np.where(has_no_id, of_many, (place + before)[registered.codes]), all_names)


def _domains(events: Table) -> Names:
    """Return the domain name of each event; "" is the default domain.

    Domain ids count per process. A cut file may lack the rows that name domains; the domain of NCCL
    is then recognized by the names of its events.
    """
    created = events.take(events["eventType"] == schema.NVTX_DOMAIN)
    titles = {(row["process"], row["domainId"]): row["name"] for row in created.rows()}
    groups = groups_of(events["process"], events["domainId"])
    number, names = groups.packed, []
    for index, (process, domain) in enumerate(groups.keys):
        if domain in (0, NULL):
            names.append("")
        elif (process, domain) in titles:
            names.append(titles[process, domain])
        else:
            inside = events["name"][number == index].distinct()
            is_nccl = all(name.startswith("nccl") for name in inside)
            names.append("NCCL" if is_nccl else f"domain {domain}")
    return Names.coded(names, number, is_sorted=True)
