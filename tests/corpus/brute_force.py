"""What the files of the corpus hold, read the plain way: row by row, without our readers."""

from __future__ import annotations

import gzip
import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

__all__ = ["kernel_ns", "union_ns"]

_LATEST_NS = 1 << 62
_KERNELS = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL")


def kernel_ns(path: Path) -> int:
    """Return how long kernels ran, of all devices: what cannot be a kernel's time is left out."""
    is_sqlite = path.read_bytes().startswith(b"SQLite format 3")
    rows = _of_sqlite(path) if is_sqlite else _of_json(path)
    by_device: dict[Any, list[tuple[int, int]]] = {}
    for device, start, end in rows:
        by_device.setdefault(device, []).append((start, end))
    return sum(map(union_ns, by_device.values()))


def union_ns(spans: Iterable[tuple[int, int]]) -> int:
    """Return how long at least one of ``spans`` lasts, in Python's own whole numbers."""
    total, reach = 0, -_LATEST_NS
    for start, end in sorted(spans):
        total += max(0, end - max(start, reach))
        reach = max(reach, end)
    return total


def _of_sqlite(path: Path) -> Iterator[tuple[Any, int, int]]:
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
        for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'"):
            if table.upper() not in _KERNELS:
                continue
            for row in connection.execute(f'SELECT deviceId, start, [end] FROM "{table}"'):
                if None not in row and all(abs(time) < _LATEST_NS for time in row[1:]):
                    device, start, end = row
                    if end >= start:
                        yield device, start, end


def _of_json(path: Path) -> Iterator[tuple[Any, int, int]]:
    data = path.read_bytes()
    if data.startswith(b"\x1f\x8b"):
        data = gzip.decompress(data)
    text = data.decode("utf-8-sig", "replace")
    document = json.loads(text, parse_float=Decimal, parse_int=_whole, strict=False)
    events = document if isinstance(document, list) else document["traceEvents"]
    for event in events:
        if not isinstance(event, dict) or (event.get("ph"), event.get("cat")) != ("X", "kernel"):
            continue
        start, length = _ns(event.get("ts")), _ns(event.get("dur"))
        if start is not None and length is not None and length >= 0:
            yield _device(event), start, start + length


def _device(event: dict[str, Any]) -> Any:
    arguments = event.get("args")
    return arguments.get("device") if isinstance(arguments, dict) else None


def _whole(digits: str) -> Decimal:
    return Decimal(digits)


def _ns(microseconds: Any) -> int | None:
    """Return a time in ns; None for what is none."""
    if isinstance(microseconds, str):  # numbers in quotes are numbers
        with suppress(ArithmeticError):
            microseconds = Decimal(microseconds)
    if not isinstance(microseconds, Decimal) or not microseconds.is_finite():
        return None
    with suppress(ArithmeticError):
        ns = microseconds * 1000
        return int(ns.to_integral_value()) if abs(ns) < _LATEST_NS else None
    return None
