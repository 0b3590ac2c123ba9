"""Writes small Kineto files: events as torch.profiler words them, times in ns."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from traceprof.formats.kineto.events import KinetoEvents
from traceprof.model.table import Names

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


def document(n_events: int) -> bytes:
    """Return the text of a trace whose events are as different as events can be."""
    rng = random.Random(0)
    makers: tuple[Callable[[int], Any], ...] = (
        lambda t: complete("cpu_op", rng.choice(["aten::mm", "}, {", 'a"b', "é"]), t, t + 5),
        lambda t: kernel(f"k{rng.randrange(50)}", t, t + 7, grid=[1, 2, 3], block=[t % 9, 1, 1]),
        lambda t: kernel("odd", t, t + 1, correlation=str(t), grid="no", stream=None),
        lambda t: on_device("gpu_memcpy", "Memcpy HtoD", t, t + 2, bytes=2**40 + t, kind="copy"),
        lambda t: complete("python_function", f"file.py({t}): f", t, t + 3),
        lambda t: complete("cpu_op", "spans", t, t + 3, pid="Spans", tid=2**70),
        lambda t: {"ph": "M", "name": "thread_name", "pid": 1, "tid": t % 7, "args": {"name": t}},
        lambda t: complete("cpu_op", "no time", t, t, ts=None),
        lambda t: complete("cpu_op", "list", t, t + 1, args={"x": [{"a": 1}, {"b": t}]}),
        lambda t: complete("cpu_op", "record_param_comms", t, t + 1, args={"dtype": f"d{t % 3}"}),
        lambda t: complete("cpu_op", "args", t, t + 1, args=[1]) if t % 999 == 0 else None,
    )
    events = [rng.choice(makers)(10**6 + number) for number in range(n_events)]
    known = [event for event in events if event is not None]
    return as_json({"traceEvents": known, "deviceProperties": [{"id": 0}, {"id": 1}]}).encode()


def columns_of(events: KinetoEvents) -> dict[str, Any]:
    """Return everything that was read, in what can be compared."""
    told = {field.name: getattr(events, field.name) for field in fields(events)}
    told |= told.pop("arguments")
    return {name: _plain(value) for name, value in told.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Names):
        return value.texts.tolist(), value.codes.tolist()
    return (value.dtype, value.tolist()) if isinstance(value, np.ndarray) else value


def _microseconds(ns: int) -> str:
    return f"@{'-' if ns < 0 else ''}{abs(ns):04d}@"


def _with_point(match: re.Match[str]) -> str:
    sign, full, fraction = match.groups()
    return f"{sign}{int(full or 0)}.{fraction}"
