"""Which ranges in an nsys export tell of communication, by their names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import pandas as pd

from traceprof.formats.nsys.codes import NVTX_PUSH_POP, NVTX_START_END
from traceprof.formats.shared.collectives import ANNOTATING_BACKENDS, is_annotated
from traceprof.formats.sqlite.conditions import AllOf, Among, AnyOf, StartsWith
from traceprof.formats.sqlite.database import ColumnType, Database, distinct_pairs

__all__ = [
    "CALLS",
    "INITS",
    "NCCL",
    "NEEDED",
    "Communication",
    "are_ranges",
    "count_communication",
    "has_communication",
    "registered_names",
]

CALLS: Final = (
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
NCCL: Final = "nccl[A-Z]*"
INITS: Final = "ncclCommInit"
NEEDED: Final = {"start", "end", "eventType", "globalTid", "text", "textId"}
_TELLING: Final = (NCCL, *(f"{backend}:*" for backend in ANNOTATING_BACKENDS))
"""What names of ranges look like that tell of collectives."""


class Communication(NamedTuple):
    """How many calls of NCCL and annotations of PyTorch become collectives; how many begin groups.

    ``n_inits`` are NCCL's calls that make a communicator.
    """

    n_calls: int
    n_annotations: int
    n_inits: int


def count_communication(database: Database) -> Communication:
    """Return how many ranges tell of communication.

    The ranges are scanned once; only the distinct names among those of NCCL and PyTorch come back.
    """
    if not database.columns("NVTX_EVENTS") >= NEEDED:
        return Communication(0, 0, 0)
    key = (count_communication.__name__,)
    if key not in database.found:
        database.found[key] = _count_communication(database)
    counted: Communication = database.found[key]
    return counted


def _count_communication(database: Database) -> Communication:
    names = registered_names(database, _TELLING)
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
        sum(n for name, n in told if name in CALLS),
        sum(n for name, n in told if is_annotated(name)),
        sum(n for name, n in told if name.startswith(INITS)),
    )


def has_communication(database: Database) -> bool:
    """Return whether `count_communication` counts any; the first one is enough."""
    if not database.columns("NVTX_EVENTS") >= NEEDED:
        return False
    names = registered_names(database, _TELLING)
    found = database.some_rows(
        f"SELECT text, textId FROM NVTX_EVENTS WHERE {are_ranges(names, _TELLING)}"
    )
    told = (text or names[key] for text, key in found)
    return any(name in CALLS or is_annotated(name) for name in told)


def are_ranges(registered: Mapping[int, str], patterns: Sequence[str]) -> str:
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


def registered_names(database: Database, patterns: Sequence[str]) -> dict[int, str]:
    """Return id → text of the registered names that are like one of ``patterns`` (of GLOB)."""
    if "StringIds" not in database.tables:
        return {}
    alike = " OR ".join(f"value GLOB '{pattern}'" for pattern in patterns)
    return dict(database.rows(f"SELECT id, value FROM StringIds WHERE {alike}"))
