"""Windows of a file of nvprof: device work with its launches, ranges by both their markers."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.formats.nvprof_database import NvprofDatabase, object_id
from traceprof.formats import cut, open_trace
from traceprof.model.cutting import CutRequest, no_progress
from traceprof.model.timing import TimeWindow

ZERO = 1_600_000_000_000_000_000
WINDOW = TimeWindow(100, 200)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file whose first record is at time 0."""
    path = tmp_path / "whole.nvprof"
    with NvprofDatabase(path) as file:
        for number, (name, start, end) in enumerate(
            [("early", 10, 20), ("crosses", 90, 110), ("inside", 120, 130), ("late", 300, 310)], 1
        ):
            times = {"start": ZERO + start, "end": ZERO + end}
            file.add("CONCURRENT_KERNEL", **times, correlationId=number, name=file.string(name))
        for number, start in ((1, 0), (2, 5), (3, 115), (4, 160)):
            times = {"start": ZERO + start, "end": ZERO + start + 2}
            # nvprof writes the 32 bits of a thread with a sign here, and without in markers.
            file.add("RUNTIME", **times, cbid=211, processId=7, threadId=-5, correlationId=number)
        _range(file, 1, "encloses the launch", 4, 9)
        _range(file, 2, "on another thread", 4, 9, thread=8)
        _range(file, 3, "before", 30, 40)
        _range(file, 3, "the same id, inside", 150, 160)
        _range(file, 4, "around", 1, 400)
        _range(file, 5, "left open", 50, None)
        mark = {"objectKind": 2, "objectId": object_id(7, -5), "flags": 1}
        file.add("MARKER", timestamp=ZERO + 99, id=6, name=file.string("then"), **mark)
        file.add("MARKER", timestamp=ZERO + 100, id=7, name=file.string("now"), **mark)
        file.add("MARKER_DATA", id=1, category=3)
        file.add("MARKER_DATA", id=6, category=3)
        file.add("CONCURRENT_KERNEL", start=0, end=0, name=file.string("lost"))
    return path


def _range(
    file: NvprofDatabase, number: int, name: str, start: int, end: int | None, thread: int = -5
) -> None:
    of = {"id": number, "objectKind": 2, "objectId": object_id(7, thread)}
    file.add("MARKER", flags=2, timestamp=ZERO + start, name=file.string(name), **of)
    if end is not None:
        file.add("MARKER", flags=4, timestamp=ZERO + end, **of)


def cut_to(path: Path, **more: Any) -> Path:
    target = path.with_name("part.nvprof")
    target.touch()
    cut(path, target, CutRequest(**{"window": WINDOW, **more}), no_progress)
    return target


def rows(path: Path, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


def test_kernels_and_their_launches_are_kept(path: Path) -> None:
    part = cut_to(path)
    kernels = "SELECT start, correlationId FROM CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL"
    assert rows(part, kernels) == [(ZERO + 90, 2), (ZERO + 120, 3)]
    calls = "SELECT start FROM CUPTI_ACTIVITY_KIND_RUNTIME ORDER BY 1"
    assert rows(part, calls) == [(ZERO + 5,), (ZERO + 115,), (ZERO + 160,)]


def test_ranges_keep_both_ends(path: Path) -> None:
    trace = open_trace(cut_to(path))
    ranges = {
        str(row.name): row.end_ns - row.start_ns for row in trace.ranges.to_frame().itertuples()
    }
    assert set(ranges) == {
        "encloses the launch",
        "the same id, inside",
        "around",
        "left open",
    }
    assert (ranges["encloses the launch"], ranges["around"]) == (5, 399)
    assert list(trace.marks.to_frame()["name"]) == ["now"]


def test_details_and_strings_are_those_of_what_is_kept(path: Path) -> None:
    part = cut_to(path)
    assert rows(part, "SELECT id FROM CUPTI_ACTIVITY_KIND_MARKER_DATA") == [(1,)]
    values = {value for (value,) in rows(part, "SELECT value FROM StringTable")}
    assert {"crosses", "inside", "now"} <= values
    assert values.isdisjoint({"early", "late", "then", "before", "lost"})


def test_clipping_moves_the_markers(path: Path) -> None:
    part = cut_to(path, clip=True)
    kernels = "SELECT start, end FROM CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL"
    assert rows(part, kernels)[0] == (ZERO + 100, ZERO + 110)
    around = "SELECT timestamp FROM CUPTI_ACTIVITY_KIND_MARKER WHERE id = 4 ORDER BY 1"
    assert rows(part, around) == [(ZERO + 5,), (ZERO + 200,)]


def test_the_note_has_the_times_of_the_file(path: Path) -> None:
    part = cut_to(path, window=TimeWindow(50, 95), source="whole.nvprof")
    note = "SELECT source, windowStart, windowEnd FROM TRACEPROF_CUT"
    assert rows(part, note) == [("whole.nvprof", ZERO + 50, ZERO + 95)]


def test_tables_can_be_chosen(path: Path) -> None:
    trace = open_trace(cut_to(path, tables=frozenset({"ranges"})))
    assert (
        len(trace.kernels.to_frame()),
        len(trace.ranges.to_frame()),
        len(trace.marks.to_frame()),
    ) == (0, 3, 0)
