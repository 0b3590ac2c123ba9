"""Tables with a version in their names stand for the plain ones."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from tests.builders import TraceBuilder, plain
from traceprof.formats import open_trace
from traceprof.formats.nsys.writer import write_nsys
from traceprof.formats.sqlite.schema import versioned_tables


def test_the_highest_version_counts_where_there_is_no_plain_table() -> None:
    names = ["KERNEL_V2", "KERNEL_V10", "MEMCPY", "MEMCPY_V3", "ENUM_V", "V2"]
    assert versioned_tables(names) == {"KERNEL": "KERNEL_V10"}


def test_an_export_with_versions_in_its_names_reads_alike(tmp_path: Path) -> None:
    path = tmp_path / "export.sqlite"
    builder = TraceBuilder().kernel("gemm", 20, 30, launched_ns=(1, 2)).range("step", 0, 40)
    write_nsys(builder.build(), path)
    before = open_trace(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        for table in ("CUPTI_ACTIVITY_KIND_KERNEL", "NVTX_EVENTS", "StringIds"):
            connection.execute(f"ALTER TABLE {table} RENAME TO {table}_V2")
    after = open_trace(path)
    assert after.kernels.to_frame().equals(before.kernels.to_frame())
    assert plain(after.ranges.to_frame(), "start_ns", "end_ns", "name") == [(0, 40, "step")]
