"""Python stacks that nsys sampled (``--python-sampling=true``), as calls of functions.

nsys stores each sample as an NVTX mark with a binary payload: the frames of one Python thread, the
innermost first. SQLite exports of nsys 2023 lack the payload, but JSON exports contain it. The time
from one sample to the next belongs to the functions of the first, unless it is longer than ten
usual intervals: the thread may have done anything then. (At 1 kHz, waits of nsys for the GIL, which
Python hands over every 5 ms, are shorter.)
"""

from __future__ import annotations

import base64
import html
import json
import sqlite3
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from traceprof.formats.nsys import schema
from traceprof.formats.sqlite.inserting import StringIds, insert_columns
from traceprof.names.functions import plain_function

_FRAME: Final = np.dtype([("function", "<u8"), ("file", "<u8"), ("line", "<u4"), ("rest", "<u4")])
_HEADER_BYTES: Final = 16
_MAX_INTERVALS: Final = 10
_STARTS_THREAD: Final = ": _bootstrap"
"""End of the name of the outermost function of every thread but the main thread."""

Stack: TypeAlias = tuple[str, ...]
"""The functions of a thread with the lines that ran, the outermost first."""
Samples: TypeAlias = list[tuple[int, Stack]]
"""Time in ns and stack of each sample of one thread, by time."""


def are_sampled(database: Path) -> bool:
    """Return whether nsys sampled Python stacks: its thread that samples them has a name."""
    with closing(sqlite3.connect(database)) as connection, suppress(sqlite3.Error):
        sql = "SELECT 1 FROM StringIds WHERE value = ?"
        return connection.execute(sql, (schema.PYTHON_SAMPLER,)).fetchone() is not None
    return False


def add_functions(database: Path, exported: Path) -> None:
    """Add the stacks in ``exported``, the JSON export of a report, to its export as SQLite."""
    with exported.open(encoding="utf-8", errors="replace") as lines:
        samples = _read_samples(lines)
    rows = [
        (start, end, schema.global_id(*thread), name)
        for thread, of_thread in _by_thread(samples).items()
        for start, end, name in find_calls(of_thread)
    ]
    if not rows:
        return
    with closing(sqlite3.connect(database)) as connection, connection:
        declared = schema.TRACEPROF_TABLES[schema.FUNCTIONS]
        connection.execute(f"CREATE TABLE {schema.FUNCTIONS} ({declared})")
        starts, ends, threads, names = zip(*rows, strict=True)
        ids = list(map(StringIds(connection).id_of, names))
        columns = {"start": starts, "end": ends, "globalTid": threads, "nameId": ids}
        insert_columns(connection, schema.FUNCTIONS, columns)


def find_calls(samples: Samples) -> Iterator[tuple[int, int, str]]:
    """Yield start, end, and name of the calls that the samples of one thread show.

    A call lasts from the first sample with the function and the same callers to the first sample
    without them.
    """
    times = [time for time, _ in samples]
    intervals = [after - time for time, after in pairwise(times)]
    usual = int(statistics.median(intervals)) if intervals else 0
    opened: list[tuple[int, str]] = []
    intervals.append(_MAX_INTERVALS * usual + 1)  # the last sample has no next one
    for (time, stack), interval in zip(samples, intervals, strict=True):
        names = [name for _, name in opened]
        kept = next(
            (n for n, pair in enumerate(zip(names, stack, strict=False)) if len({*pair}) > 1),
            min(len(names), len(stack)),
        )
        yield from ((start, time, name) for start, name in opened[kept:])
        opened[kept:] = [(time, name) for name in stack[kept:]]
        if interval > _MAX_INTERVALS * usual:
            yield from ((start, time + usual, name) for start, name in opened)
            opened = []


def _by_thread(samples: Mapping[tuple[int, int], Samples]) -> dict[tuple[int, int], Samples]:
    """Return the samples by process and thread, given those by process and number of the thread.

    nsys numbers the Python threads of a process from 1 and stores no thread ID. The first one that
    does not start as a thread is the main thread, whose ID is that of the process. The others keep
    their numbers.
    """
    found: dict[tuple[int, int], Samples] = {}
    for (process, number), of_thread in sorted(samples.items()):
        is_main = (process, process) not in found and not any(
            stack[0].endswith(_STARTS_THREAD) for _, stack in of_thread
        )
        found[process, process if is_main else number] = sorted(of_thread)
    return found


def _read_samples(lines: Iterable[str]) -> dict[tuple[int, int], Samples]:
    """Return the samples by process and number of the Python thread."""
    found: dict[tuple[int, int], Samples] = defaultdict(list)
    strings: Sequence[str] = ()
    stacks: dict[str, Stack] = {}
    for line in lines:
        with suppress(ValueError, KeyError, IndexError, TypeError):
            if not strings and line.startswith('{"data":["'):
                strings = json.loads(line)["data"]
            elif '"BinaryData"' in line:
                event = json.loads(line)["NvtxEvent"]
                payload = event["Payload"]["BinaryData"][0]["Data"]
                stack = stacks[payload] = stacks.get(payload) or _decode(payload, strings)
                process = int(schema.process_of(np.array([int(event["GlobalTid"])]))[0])
                if event["Type"] == schema.NVTX_MARK and stack:
                    found[process, int(event["Category"])].append((int(event["Timestamp"]), stack))
    return found


def _decode(payload: str, strings: Sequence[str]) -> Stack:
    """Return the stack in a payload; () if it has another layout, such as one of NCCL."""
    data: Any = base64.b64decode(payload)
    n_frames = int.from_bytes(data[8:12], "little")
    if not n_frames or len(data) != _HEADER_BYTES + n_frames * _FRAME.itemsize:
        return ()
    frames = np.frombuffer(data, _FRAME, offset=_HEADER_BYTES)[["function", "file", "line"]]
    return tuple(
        plain_function(html.unescape(f"{strings[file]}({line}): {strings[function]}"))
        for function, file, line in frames[::-1].tolist()
    )
