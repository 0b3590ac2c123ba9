"""Writes small Kineto files: events as torch.profiler words them, times in ns."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

HOST = 4242
THREAD = 4243


def complete(category: str, name: str, start_ns: int, end_ns: int, **more: Any) -> dict[str, Any]:
    """Return a complete event of the host."""
    times = {"ts": _microseconds(start_ns), "dur": _microseconds(end_ns - start_ns)}
    event = {"ph": "X", "cat": category, "name": name, "pid": HOST, "tid": THREAD, **times}
    return {**event, **more}


def kernel(name: str, start_ns: int, end_ns: int, **args: Any) -> dict[str, Any]:
    """Return a kernel on device 0, stream 7."""
    return on_device("kernel", name, start_ns, end_ns, **args)


def on_device(category: str, name: str, start_ns: int, end_ns: int, **args: Any) -> dict[str, Any]:
    """Return device work, by default on device 0, stream 7; ``args`` are the event's own."""
    arguments = {"device": 0, "context": 1, "stream": 7, "correlation": 9, **args}
    place = {"pid": arguments["device"], "tid": arguments["stream"]}
    return complete(category, name, start_ns, end_ns, **place, args=arguments)


def write(path: Path, events: list[dict[str, Any]], **header: Any) -> Path:
    """Write a Kineto file, gzipped where its name ends so."""
    document = {"schemaVersion": 1, **header, "traceEvents": events, "traceName": "t.json"}
    text = as_json(document).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def as_json(value: Any, **layout: Any) -> str:
    """Return JSON in which times have three decimals, as Kineto writes them."""
    return re.sub(r'"@(-?)(\d*?)(\d{3})@"', _with_point, json.dumps(value, **layout))


def _microseconds(ns: int) -> str:
    return f"@{'-' if ns < 0 else ''}{abs(ns):04d}@"


def _with_point(match: re.Match[str]) -> str:
    sign, full, fraction = match.groups()
    return f"{sign}{int(full or 0)}.{fraction}"
