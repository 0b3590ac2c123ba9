"""Plain readers of mutated files: sqlite3 and json, row by row, sharing nothing with traceprof.

Every kernel that traceprof hands out must be in the file; one that it does not must be one that
cannot be, and then there is a warning.
"""

from __future__ import annotations

import gzip
import json
import math
import shutil
import sqlite3
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from traceprof.formats import open_trace

_HALF: Final = 2**62
_KERNELS: Final = (
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL",
)
_DISPATCHES: Final = ("ROCPD_KERNEL_DISPATCH_",)
"""How the tables begin: each process has one."""
_GRAPHS: Final = ("CUPTI_ACTIVITY_KIND_GRAPH_TRACE",)
_MOST_BYTES: Final = 50_000_000


def wrongs(path: Path) -> Iterator[str]:
    """Yield what is wrong with the kernels that traceprof reads in ``path``.

    Raises:
        Unreadable: the plain reader cannot tell.
    """
    trace = open_trace(path)
    lengths = (trace.kernels.to_frame()["end_ns"] - trace.kernels.to_frame()["start_ns"]).tolist()
    read = Counter(lengths)
    known, doubtful, others = _lengths_in(path, trace.info.format)
    surplus = read - known - doubtful - others
    if surplus:
        yield f"kernels that are not in the file: {dict(list(surplus.items())[:5])}"
    missing = known - read
    if missing and not trace.info.warnings:
        yield f"kernels lost without a word: {dict(list(missing.items())[:5])}"
    n_rows = sum(known.values()) + sum(doubtful.values())
    if sum(read.values()) < n_rows and not trace.info.warnings:
        yield f"{len(lengths)} of {n_rows} kernels read without a word"


class UnreadableError(Exception):
    """Plain sqlite3 or json cannot read the file."""


_UNREADABLE = (
    *(sqlite3.Error, zlib.error, ValueError, EOFError, OSError, RecursionError, KeyError),
)


def _lengths_in(path: Path, kind: str) -> tuple[Counter[int], ...]:
    """Return lengths of kernels, of those that cannot be, and of graphs, read in their place."""
    try:
        with path.open("rb") as file:
            is_packed = file.read(2) == b"\x1f\x8b"
        with gzip.open(path) if is_packed else path.open("rb") as file:  # type: ignore[attr-defined]
            data = file.read(_MOST_BYTES)
        if kind == "kineto":
            return *_told(_of_json(data)), Counter()
        if kind == "rocprofv3-json":
            return *_told(_of_records(data)), Counter()
        if kind == "rocpd":
            return *_told(_of_database(data, _DISPATCHES)), Counter()
        graphs = _told(_of_database(data, _GRAPHS))
        return *_told(_of_database(data, _KERNELS)), graphs[0] + graphs[1]
    except _UNREADABLE as error:
        raise UnreadableError(str(error)) from error


def _told(pairs: list[tuple[Any, Any]]) -> tuple[Counter[int], Counter[int]]:
    known: Counter[int] = Counter()
    doubtful: Counter[int] = Counter()
    for start, end in pairs:
        if not isinstance(start, int) or not isinstance(end, int):
            doubtful[0] += 1
        elif 0 <= start <= end < _HALF:
            known[end - start] += 1
        else:
            doubtful[end - start] += 1
    return known, doubtful


def _of_database(data: bytes, tables: tuple[str, ...]) -> list[tuple[Any, Any]]:
    with tempfile.TemporaryDirectory(prefix="traceprof-plain-") as name:
        path = Path(name, "copy")
        path.write_bytes(data)
        with closing(sqlite3.connect(path)) as database:
            database.text_factory = bytes
            told = database.execute("SELECT name FROM sqlite_master").fetchall()
            names = {one.upper().decode(): one.decode() for (one,) in told}
            rows: list[tuple[Any, Any]] = []
            for known, own in names.items():
                if known in tables or (tables is _DISPATCHES and known.startswith(tables)):
                    rows += database.execute(f'SELECT start, "end" FROM "{own}"')
            return rows


def _of_json(data: bytes) -> list[tuple[Any, Any]]:
    document = json.loads(data.decode("utf-8", "replace"), parse_float=Decimal, parse_int=Decimal)
    events = document["traceEvents"] if isinstance(document, dict) else document
    spans = [
        (_ns(event.get("ts")), _ns(event.get("dur")))
        for event in events
        if isinstance(event, dict)
        and event.get("ph") == "X"
        and str(event.get("cat")).lower() in ("kernel",)
    ]
    return [
        (0, dur) if ts is not None and dur is not None and dur >= 0 else (None, None)
        for ts, dur in spans
    ]


def _of_records(data: bytes) -> list[tuple[Any, Any]]:
    document = json.loads(data.decode("utf-8", "replace"))
    try:
        return [
            (record["start_timestamp"], record["end_timestamp"])
            for process in document["rocprofiler-sdk-tool"]
            for record in process["buffer_records"]["kernel_dispatch"]
        ]
    except TypeError as error:
        raise UnreadableError(str(error)) from error


def _ns(value: Any) -> int | None:
    """Return microseconds as ns; None where it is no time."""
    if isinstance(value, str):
        try:
            value = Decimal(value)
        except ArithmeticError:
            return None
    if not isinstance(value, Decimal) or not math.isfinite(value) or abs(value) > _HALF:
        return None
    return int((value * 1000).to_integral_value())


def copied(path: Path, folder: Path) -> Path:
    """Return a copy of a file or a folder that is kept for later."""
    target = folder / path.name
    if path.is_dir():
        shutil.copytree(path, target)
    else:
        shutil.copyfile(path, target)
    return target
