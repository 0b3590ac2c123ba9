"""Rows that cannot be are left out and counted, in whatever table and however it is read."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.formats.test_contract import EXECUTION
from tests.formats.test_read_options import check_outline, check_window, whole_trace, windows_of
from traceprof.errors import TraceError
from traceprof.formats import open_trace
from traceprof.formats.nsys.writer import write_nsys

KERNEL, MEMCPY = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY"
RUNTIME, NVTX = "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"
FAULTS = {
    "no time": "start = NULL",
    "no end": "[end] = NULL",
    "before": "[end] = start - 1",
    "late": f"[end] = {2**63 - 1}",
    "early": f"start = {-(2**63) + 1}",
    "at the limit": f"start = {2**62}, [end] = {2**62 + 5}",
}


def damaged(tmp_path: Path, table: str, change: str, n_rows: int = 1) -> Path:
    """Return an export whose first rows of a table are changed; its columns take anything."""
    path = tmp_path / "damaged.sqlite"
    write_nsys(EXECUTION, path)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            f"CREATE TABLE plain AS SELECT * FROM {table}; DROP TABLE {table};"
            f"ALTER TABLE plain RENAME TO {table};"
            f"UPDATE {table} SET {change} WHERE rowid <= {n_rows};"
        )
        connection.commit()
    return path


def n_rows_in(path: Path, table: str, where: str = "1") -> int:
    with closing(sqlite3.connect(path)) as connection:
        ((n_rows,),) = connection.execute(f"SELECT count(*) FROM {table} WHERE {where}")
    return int(n_rows)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(
    ("table", "name"), [(KERNEL, "kernels"), (MEMCPY, "copies"), (RUNTIME, "api_calls")]
)
def test_times_that_cannot_be(tmp_path: Path, table: str, name: str, fault: str) -> None:
    path = damaged(tmp_path, table, FAULTS[fault])
    trace = open_trace(path)
    (warning,) = [text for text in trace.info.warnings if "damaged" in text]
    assert warning.startswith(f"1 row of {table} is damaged")
    expected = n_rows_in(path, table, "rowid > 1")
    if name == "copies":
        expected += n_rows_in(path, "CUPTI_ACTIVITY_KIND_MEMSET")
    assert len(trace.table(name).to_frame()) == expected
    assert (
        trace.table(name).to_frame()["end_ns"] >= trace.table(name).to_frame()["start_ns"]
    ).all()


@pytest.mark.parametrize("fault", ["no time", "before", "late"])
def test_parts_and_outlines_leave_out_the_same(tmp_path: Path, fault: str) -> None:
    path = damaged(tmp_path, KERNEL, FAULTS[fault])
    check_outline(path)
    whole = whole_trace(path)
    for window in windows_of(whole):
        check_window(path, window)


@pytest.mark.parametrize(
    ("table", "change", "words"),
    [
        (KERNEL, "deviceId = NULL", "no deviceId: 2"),
        (MEMCPY, "bytes = -5", "impossible bytes: 2"),
        (MEMCPY, f"bytes = {2**60}", "impossible bytes: 2"),
        (NVTX, "start = NULL", "no time: 2"),
    ],
)
def test_other_columns_that_rows_need(tmp_path: Path, table: str, change: str, words: str) -> None:
    trace = open_trace(damaged(tmp_path, table, change, n_rows=2))
    assert any(words in text for text in trace.info.warnings)


def test_a_copy_without_a_size_stays(tmp_path: Path) -> None:
    path = damaged(tmp_path, MEMCPY, "bytes = NULL")
    copies = open_trace(path).copies.to_frame()
    assert (copies["n_bytes"] == -1).sum() == 1
    assert copies["n_bytes"].min() == -1


def test_a_range_without_an_end_is_no_damage(tmp_path: Path) -> None:
    trace = open_trace(damaged(tmp_path, NVTX, "[end] = NULL"))
    assert not [text for text in trace.info.warnings if "damaged" in text]


@pytest.mark.parametrize("value", ["'abc'", "100.5", "x'00'"])
def test_times_of_another_type_are_refused(tmp_path: Path, value: str) -> None:
    path = damaged(tmp_path, KERNEL, f"start = {value}")
    with pytest.raises(TraceError, match=f"{KERNEL}.start contains non-integer values"):
        open_trace(path)


def test_names_in_another_case_are_those_of_profilers(tmp_path: Path) -> None:
    path = damaged(tmp_path, KERNEL, "start = start")
    expected = open_trace(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            f"ALTER TABLE {KERNEL} RENAME TO t; ALTER TABLE t RENAME TO {KERNEL.lower()};"
            f"ALTER TABLE {KERNEL} RENAME COLUMN start TO Start;"
            f"ALTER TABLE {KERNEL} RENAME COLUMN graphNodeId TO GRAPHNODEID;"
            "ALTER TABLE StringIds RENAME TO s; ALTER TABLE s RENAME TO STRINGIDS;"
        )
    assert open_trace(path).kernels.to_frame().equals(expected.kernels.to_frame())
    check_outline(path)


def test_a_view_is_not_read_as_no_rows(tmp_path: Path) -> None:
    path = damaged(tmp_path, KERNEL, "start = start")
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            f"ALTER TABLE {KERNEL} RENAME TO held; CREATE VIEW {KERNEL} AS SELECT * FROM held;"
        )
    with pytest.raises(TraceError, match="is a view, expected a table"):
        open_trace(path)
