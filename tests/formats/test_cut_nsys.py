"""Windows of an nsys export: which rows are kept, and what must not be passed on."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.builders import TraceBuilder
from traceprof.errors import TraceError
from traceprof.formats import cut, open_trace, outline
from traceprof.formats.nsys.schema import global_id
from traceprof.formats.nsys.writer import write_nsys
from traceprof.model.cutting import REMOVED, CutReport, CutRequest, no_progress
from traceprof.model.timing import TimeWindow

SECRET = "hunter2-and-more"
WINDOW = TimeWindow(100, 200)

MORE = f"""
CREATE TABLE GPU_METRICS (timestamp INT, value INT);
INSERT INTO GPU_METRICS VALUES (99, 1), (100, 2), (199, 3), (200, 4);
CREATE TABLE "of 2030" (what TEXT, start INT, "end" INT, newId INT);
INSERT INTO "of 2030" VALUES ('before', 10, 20, 701), ('crosses', 90, 110, 702);
INSERT INTO "of 2030" VALUES ('after', 300, 301, 703);
CREATE TABLE AnotherClock (start INT, what TEXT);
INSERT INTO AnotherClock VALUES (99000000000, 'x'), (99000000100, 'y');
CREATE TABLE Untimed (a INT, b TEXT);
INSERT INTO Untimed VALUES (701, 'token={SECRET}'), (702, 'plain');
CREATE TABLE NoRowid (k TEXT PRIMARY KEY, v INT) WITHOUT ROWID;
INSERT INTO NoRowid VALUES ('a', 703);
CREATE TABLE Computed (start INT, twice INT GENERATED ALWAYS AS (start * 2));
INSERT INTO Computed (start) VALUES (5), (150);
CREATE TABLE META_DATA_CAPTURE (name TEXT, value TEXT);
INSERT INTO META_DATA_CAPTURE VALUES
    ('PROCESS_0:ENVIRONMENT_VARIABLE', 'API_KEY={SECRET}'),
    ('PROCESS_0:ARGUMENT_0', 'train.py'), ('PROCESS_0:ARGUMENT_1', '--password'),
    ('PROCESS_0:ARGUMENT_2', '{SECRET}'), ('RATE_HZ', '5');
CREATE TABLE ProcessStreams (globalPid INT, filenameId INT, contentId INT);
CREATE TABLE DIAGNOSTIC_EVENT (timestamp INT, text TEXT, globalPid INT);
INSERT INTO DIAGNOSTIC_EVENT VALUES (1, 'ran with {SECRET}', 1);
CREATE TABLE OSRT_API (start INT, end INT, globalTid INT, nameId INT, callchainId INT);
CREATE TABLE OSRT_CALLCHAINS (id INT, symbol INT, stackDepth INT, PRIMARY KEY (id, stackDepth));
INSERT INTO OSRT_CALLCHAINS VALUES (1, 1, 0), (1, 2, 1), (2, 1, 0);
CREATE INDEX of_ours ON GPU_METRICS (timestamp);
CREATE VIEW counters AS SELECT * FROM GPU_METRICS;
"""


@pytest.fixture
def export(tmp_path: Path) -> Path:
    """Two processes; the window 100..200 has work that was launched long before it."""
    builder = TraceBuilder()
    builder.range("whole", 0, 400).range("enclosing", 4, 9).range("idle before", 11, 15)
    builder.range("beside", 4, 9, thread=2)
    builder.kernel("early", 10, 20, launched_ns=(1, 2))
    builder.kernel("crosses in", 90, 110, launched_ns=(5, 8))
    builder.kernel("inside", 120, 130, launched_ns=(115, 118), device=1)
    builder.kernel("crosses out", 190, 250, launched_ns=(150, 155), process=9)
    builder.kernel("late", 300, 310, launched_ns=(160, 165))
    builder.copy("h2d", 140, 150, n_bytes=8, launched_ns=(12, 13))
    builder.mark("then", 50).mark("now", 150)
    path = tmp_path / "whole.sqlite"
    write_nsys(builder.build(), path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(MORE)
        thread = global_id(1, 1)
        connection.executemany(
            "INSERT INTO OSRT_API VALUES (?, ?, ?, 1, ?)",
            [(20, 30, thread, 1), (120, 130, thread, 2), (3, 9, thread, None)],
        )
        strings = {9001: f"A=1\0API_KEY={SECRET}\0", 9002: f"the program said {SECRET}"}
        connection.executemany("INSERT INTO StringIds VALUES (?, ?)", strings.items())
        connection.execute("INSERT INTO ProcessStreams VALUES (1, 9001, 9002)")
    return path


def cut_to(path: Path, **more: Any) -> tuple[Path, CutReport]:
    """Cut ``path`` to the window; return the part, and the report."""
    target = path.with_name("part.sqlite")
    target.touch()
    return target, cut(path, target, CutRequest(**{"window": WINDOW, **more}), no_progress)


def rows(path: Path, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


@pytest.fixture
def part(export: Path) -> Iterator[Path]:
    yield cut_to(export)[0]


def test_device_work_that_overlaps_is_kept_whole_with_its_launches(part: Path) -> None:
    trace = open_trace(part)
    kernels = trace.kernels.to_frame().sort_values("start_ns")
    assert list(zip(kernels["name"], kernels["start_ns"], kernels["end_ns"], strict=True)) == [
        ("crosses in", 90, 110),
        ("inside", 120, 130),
        ("crosses out", 190, 250),
    ]
    assert list(trace.copies.to_frame()["start_ns"]) == [140]
    # 160 is in the window though its kernel is not; 1, that of a kernel before it, is not.
    assert sorted(trace.api_calls.to_frame()["start_ns"]) == [5, 12, 115, 150, 160]


def test_ranges_overlap_or_enclose_a_launch_on_their_thread(part: Path) -> None:
    trace = open_trace(part)
    ranges = {
        (str(row.name), row.thread) for row in trace.ranges.to_frame().itertuples(index=False)
    }
    assert ranges == {("whole", 1), ("enclosing", 1), ("idle before", 1)}
    assert list(trace.marks.to_frame()["name"]) == ["now"]


def test_other_events_are_cut_by_their_times(part: Path) -> None:
    assert rows(part, "SELECT timestamp FROM GPU_METRICS") == [(100,), (199,)]
    assert rows(part, "SELECT start FROM OSRT_API ORDER BY 1") == [(3,), (120,)]
    assert rows(part, "SELECT id FROM OSRT_CALLCHAINS") == [(2,)]


def test_unknown_tables_are_cut_or_kept_and_named(export: Path) -> None:
    span = open_trace(export).span
    part, report = cut_to(export, span=span)
    assert rows(part, 'SELECT what FROM "of 2030"') == [("crosses",)]
    assert rows(part, "SELECT count(*) FROM AnotherClock") == [(2,)]
    assert rows(part, "SELECT * FROM Untimed WHERE a = 702") == [(702, "plain")]
    assert rows(part, "SELECT * FROM NoRowid") == [("a", 703)]
    assert rows(part, "SELECT start, twice FROM Computed") == [(150, 300)]
    assert report.unknown == {
        "of 2030": "cut by start, end",
        "AnotherClock": "kept whole",
        "Untimed": "kept whole",
        "NoRowid": "kept whole",
        "Computed": "cut by start",
    }


def test_strings_are_those_that_are_referred_to(part: Path) -> None:
    values = {value for (value,) in rows(part, "SELECT value FROM StringIds")}
    assert {"crosses in", "inside", "crosses out", "enclosing", "now"} <= values
    assert values.isdisjoint({"late", "then"})


def test_what_is_not_asked_for_is_in_no_byte(export: Path) -> None:
    assert SECRET.encode() in export.read_bytes()
    part, _ = cut_to(export)
    assert SECRET.encode() not in part.read_bytes()
    assert rows(part, "SELECT value FROM META_DATA_CAPTURE WHERE name LIKE '%ENV%'") == [(REMOVED,)]
    assert rows(part, "SELECT value FROM META_DATA_CAPTURE WHERE name = 'RATE_HZ'") == [("5",)]
    assert rows(part, "SELECT value FROM StringIds WHERE id = 9002") == [(REMOVED,)]


def test_secrets_stay_where_they_are_asked_for(export: Path) -> None:
    part, _ = cut_to(export, keep_environment=True)
    everything = "SELECT * FROM META_DATA_CAPTURE"
    assert rows(part, everything) == rows(export, everything)
    assert rows(part, "SELECT value FROM StringIds WHERE id = 9002")[0][0].endswith(SECRET)


def test_it_is_written_compactly_and_says_what_it_is(export: Path) -> None:
    part, _ = cut_to(export, label="100ns..200ns", source="whole.sqlite")
    assert rows(part, "PRAGMA freelist_count") == [(0,)]
    assert rows(part, "PRAGMA integrity_check") == [("ok",)]
    assert rows(part, "SELECT name FROM sqlite_master WHERE type = 'index' AND sql NOTNULL") == []
    assert rows(part, "SELECT timestamp FROM counters") == [(100,), (199,)]
    note = "SELECT source, windowStart, windowEnd, windowText, isClipped FROM TRACEPROF_CUT"
    assert rows(part, note) == [("whole.sqlite", 100, 200, "100ns..200ns", 0)]


def test_a_part_of_a_part_says_both(export: Path, tmp_path: Path) -> None:
    part, _ = cut_to(export)
    smaller = tmp_path / "smaller.sqlite"
    smaller.touch()
    cut(part, smaller, CutRequest(TimeWindow(115, 140)), no_progress)
    assert rows(smaller, "SELECT windowStart FROM TRACEPROF_CUT ORDER BY rowid") == [(100,), (115,)]
    assert list(open_trace(smaller).kernels.to_frame()["name"]) == ["inside"]


def test_a_part_covers_its_window_though_nothing_is_at_its_ends(export: Path) -> None:
    part, _ = cut_to(export, window=TimeWindow(500, 700))
    assert open_trace(part).span.end_ns == outline(part).trace.span.end_ns == 700


def test_clipping_shortens_what_crosses_and_keeps_launches(export: Path) -> None:
    trace = open_trace(cut_to(export, clip=True)[0])
    kernels = trace.kernels.to_frame().sort_values("start_ns")
    assert list(zip(kernels["start_ns"], kernels["end_ns"], strict=True)) == [
        (100, 110),
        (120, 130),
        (190, 200),
    ]
    whole = trace.ranges.to_frame()[trace.ranges.to_frame()["name"] == "whole"]
    # From the first launch on: so it still encloses what it enclosed.
    assert [*whole["start_ns"], *whole["end_ns"]] == [5, 200]
    assert 5 in set(trace.api_calls.to_frame()["start_ns"])


def test_devices_processes_and_tables_can_be_chosen(export: Path) -> None:
    assert list(open_trace(cut_to(export, devices=frozenset({1}))[0]).kernels["name"]) == ["inside"]
    export.with_name("part.sqlite").unlink()
    of_nine = open_trace(cut_to(export, processes=frozenset({9}))[0])
    assert list(of_nine.kernels.to_frame()["name"]) == ["crosses out"]
    assert set(of_nine.api_calls.to_frame()["process"]) == {9}
    export.with_name("part.sqlite").unlink()
    part, _ = cut_to(export, tables=frozenset({"kernels", "GPU_METRICS"}))
    trace = open_trace(part)
    assert (
        len(trace.kernels.to_frame()),
        len(trace.ranges.to_frame()),
        len(trace.api_calls.to_frame()),
    ) == (3, 0, 0)
    assert rows(part, "SELECT count(*) FROM GPU_METRICS") == [(2,)]


@pytest.mark.parametrize("encoding", ["UTF-16le", "UTF-16be"])
def test_the_encoding_of_the_file_is_kept(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "wide.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"PRAGMA encoding = '{encoding}'")
        connection.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
        connection.execute("CREATE TABLE OSRT_API (start INT, end INT, nameId INT)")
        connection.execute("CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT)")
        connection.execute("INSERT INTO StringIds VALUES (1, 'größe'), (2, 'unused')")
        connection.execute("INSERT INTO OSRT_API VALUES (150, 160, 1)")
        connection.execute("INSERT INTO META_DATA_EXPORT VALUES ('a', ?)", [f"password={SECRET}"])
    part, _ = cut_to(path)
    assert rows(part, "SELECT * FROM StringIds") == [(1, "größe")]
    assert SECRET.encode(encoding.replace("UTF-16", "utf-16-")) not in part.read_bytes()


def test_text_that_is_no_utf8_survives(export: Path) -> None:
    with closing(sqlite3.connect(export)) as connection, connection:
        connection.execute("INSERT INTO META_DATA_CAPTURE VALUES ('odd', CAST(x'ff41' AS TEXT))")
    part, _ = cut_to(export)
    odd = "SELECT hex(CAST(value AS BLOB)) FROM META_DATA_CAPTURE WHERE name = 'odd'"
    assert rows(part, odd) == [("FF41",)]


def test_what_is_no_trace_is_not_cut(tmp_path: Path) -> None:
    path = tmp_path / "odd.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE a (b)")
    with pytest.raises(TraceError, match="without profiler tables"):
        cut_to(path)
