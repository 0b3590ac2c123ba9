"""Write status files as the processes of a live run write them."""

from __future__ import annotations

import json
import struct
import time
import zlib
from collections.abc import Sequence
from pathlib import Path

from traceprof.recording.live.status import (
    HEADER_BYTES,
    MAGIC,
    N_STEPS,
    STEP_FIELDS,
    LiveRun,
    current_boot,
)
from traceprof.recording.live.view import RunView, view_of

MS = 1_000_000
_STEP = struct.Struct("<12q")


def step(duration_ms: float, **fields: float) -> dict[str, int]:
    """Return a step; the times in ``fields`` are ms: wait, data, forward, backward, optimizer."""
    values = dict.fromkeys(STEP_FIELDS, 0)
    values["duration_ns"] = round(duration_ms * MS)
    for name, value in fields.items():
        if name == "samples":
            values["samples"] = int(value)
        else:
            values[f"{name}_ns"] = round(value * MS)
    return values


def header(rank: int | None, n_steps: int, **fields: object) -> dict[str, object]:
    now = time.monotonic_ns()
    return {
        "version": 1,
        "pid": 100 + (rank or 0),
        "host": "node1",
        "boot": current_boot(),
        "started_ns": 1,
        "offset_ns": 0,
        "now_ns": now,
        "n_steps": n_steps,
        "last_step_ns": now,
        "rank": rank,
    } | fields


def encode(document: object) -> bytes:
    text = json.dumps(document).encode()
    return (struct.pack("<8sII", MAGIC, len(text), zlib.crc32(text)) + text).ljust(
        HEADER_BYTES, b"\0"
    )


def write_status(
    run: Path,
    rank: int | None,
    steps: Sequence[dict[str, int]],
    *,
    first: int = 0,
    name: str = "",
    **fields: object,
) -> Path:
    """Write a status file with ``steps``, the first of which has the number ``first``."""
    (run / "live").mkdir(parents=True, exist_ok=True)
    path = run / "live" / f"status.{name or 100 + (rank or 0)}"
    data = bytearray(HEADER_BYTES + N_STEPS * _STEP.size)
    data[:HEADER_BYTES] = encode(header(rank, first + len(steps), **fields))
    end_ns = 0
    for number, values in enumerate(steps, first):
        end_ns += values["duration_ns"]
        filled = values | {"index": number, "number": number, "end_ns": end_ns}
        offset = HEADER_BYTES + number % N_STEPS * _STEP.size
        _STEP.pack_into(data, offset, *(filled[field] for field in STEP_FIELDS))
    path.write_bytes(data)
    return path


def look(run: Path) -> RunView:
    """Return the view of a run, read once."""
    live = LiveRun(run)
    return view_of(live.refresh(), live.n_damaged)
