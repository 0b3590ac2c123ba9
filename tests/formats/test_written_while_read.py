"""A database that somebody writes while it is read: the numbers of one moment, or a reason."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.builders import TraceBuilder
from traceprof.errors import TraceError
from traceprof.formats import open_trace
from traceprof.formats.nsys.writer import write_nsys
from traceprof.formats.sqlite import database as module

_BEFORE, _ADDED = 3_000, 5_000
_TABLE = "CUPTI_ACTIVITY_KIND_KERNEL"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    builder = TraceBuilder()
    for number in range(_BEFORE):
        builder.kernel("gemm", 100 * number, 100 * number + 50)
    found = tmp_path / "t.sqlite"
    write_nsys(builder.build(), found)
    return found


def _add_rows(writer: sqlite3.Connection) -> None:
    columns = [row[1] for row in writer.execute(f"PRAGMA table_info({_TABLE})")]
    shifted = [f'"{one}" + 1000000' if one in ("start", "end") else f'"{one}"' for one in columns]
    names = ", ".join(f'"{one}"' for one in columns)
    with writer:
        writer.execute(
            f"INSERT INTO {_TABLE} ({names}) SELECT {', '.join(shifted)} FROM {_TABLE}, "
            f"(SELECT 1 UNION SELECT 2) LIMIT {_ADDED}"
        )


@pytest.mark.parametrize("mode", ["wal", "wal, merged", "delete"])
@pytest.mark.parametrize("call", [1, 2, 5, 9, 14, 18])
def test_numbers_are_of_one_moment_or_there_are_none(
    path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, call: int
) -> None:
    rows, count = module.Database.rows, 0
    with closing(sqlite3.connect(path, isolation_level="DEFERRED")) as writer:
        writer.execute(f"PRAGMA journal_mode = {mode.partition(',')[0]}")

        def reading(database: module.Database, *asked: Any) -> list[tuple[Any, ...]]:
            nonlocal count
            count += 1
            if count == call:
                _add_rows(writer)
                if mode == "wal, merged":
                    writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            return rows(database, *asked)

        monkeypatch.setattr(module.Database, "rows", reading)
        try:
            trace = open_trace(path)
        except TraceError as error:
            assert "\n" not in str(error)
            return
    assert count >= call
    assert len(trace.kernels) in (_BEFORE, _BEFORE + _ADDED)
