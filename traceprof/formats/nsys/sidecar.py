"""What nsys has no table for: the TRACEPROF_ tables that `traceprof record` adds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import pandas as pd

from traceprof.formats.nsys.codes import process_of, thread_of
from traceprof.formats.nsys.names import named
from traceprof.formats.sqlite.database import Column, ColumnType, Database, categorical, known
from traceprof.model.tables import empty_table, make_table
from traceprof.model.timing import TimeWindow
from traceprof.names.messages import collective_op

__all__ = [
    "COLLECTIVES",
    "OPERATORS",
    "SAMPLES",
    "read_collectives",
    "read_operators",
    "read_samples",
]

OPERATORS: Final = "TRACEPROF_HOST_OPS"
COLLECTIVES: Final = "TRACEPROF_COLLECTIVES"
SAMPLES: Final = "TRACEPROF_SAMPLES"
_INTEGER: Final = ColumnType.INTEGER
_TEXT: Final = ColumnType.TEXT
_SPAN: Final = {"start": _INTEGER, "end": _INTEGER, "globalTid": _INTEGER}


def read_operators(database: Database, window: TimeWindow | None = None) -> pd.DataFrame:
    """Return the CPU operators of the embedded recorder."""
    if OPERATORS not in database.tables:
        return empty_table("host_ops")
    raw = database.read_columns(
        OPERATORS,
        {**_SPAN, "nameId": _INTEGER, "source": _TEXT, "correlationId": _INTEGER},
        window,
    )
    return make_table(
        "host_ops",
        {
            **_where(raw),
            "source": raw["source"],
            "name": named(database, raw["nameId"]),
            "correlation": known(raw["correlationId"]),
        },
    )


def read_collectives(database: Database) -> pd.DataFrame:
    """Return the collectives with their sizes."""
    if COLLECTIVES not in database.tables:
        return empty_table("collectives")
    numbers = ("bytes", "groupSize", "sequence", "correlationId")
    ends = ("groupRank", "peer", "peerRank", "tag")
    texts = ("op", "dtype", "groupName", "backend")
    raw = database.read_columns(
        COLLECTIVES,
        {**_SPAN, **dict.fromkeys((*numbers, *ends), _INTEGER), **dict.fromkeys(texts, _TEXT)},
        optional=ends,
    )
    return make_table(
        "collectives",
        {
            **_where(raw),
            "op": _plain_ops(raw["op"]),
            "n_bytes": known(raw["bytes"]),
            "dtype": raw["dtype"],
            "group": raw["groupName"],
            "group_size": known(raw["groupSize"]),
            "backend": raw["backend"],
            "sequence": known(raw["sequence"]),
            "correlation": known(raw["correlationId"]),
            "group_rank": known(raw["groupRank"]),
            "peer": known(raw["peer"]),
            "peer_rank": known(raw["peerRank"]),
            "tag": known(raw["tag"]),
        },
    )


def read_samples(database: Database, window: TimeWindow | None = None) -> pd.DataFrame:
    """Return the time series that the samplers took."""
    if SAMPLES not in database.tables:
        return empty_table("samples")
    raw = database.read_columns(
        SAMPLES,
        {"start": _INTEGER, "source": _TEXT, "metric": _TEXT, "value": ColumnType.REAL},
        window,
    )
    return make_table(
        "samples",
        {
            "start_ns": raw["start"],
            "source": raw["source"],
            "metric": raw["metric"],
            "value": raw["value"],
        },
    )


def _plain_ops(names: Column) -> pd.Categorical:
    """Return the operations in our words; one that we have no word for keeps its name."""
    assert isinstance(names, pd.Categorical)
    plain = [collective_op(str(name)) or str(name) for name in names.categories]
    return categorical(names.codes, plain)


def _where(raw: Mapping[str, Column]) -> dict[str, np.ndarray]:
    starts = np.asarray(raw["start"], np.int64)
    return {
        "start_ns": starts,
        "end_ns": np.maximum(starts, np.asarray(raw["end"], np.int64)),
        "process": process_of(np.asarray(raw["globalTid"])),
        "thread": thread_of(np.asarray(raw["globalTid"])),
    }
