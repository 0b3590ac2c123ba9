"""What broke nsys exports, in files of nvprof: a row that cannot be, and clocks near their end."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.corpus.brute_force import kernel_ns
from tests.corpus.test_corpus import answered
from tests.formats.nvprof_database import NvprofDatabase
from traceprof.errors import TraceprofError

_TABLE = "CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL"
_MOST = 2**63 - 1


def written(path: Path, *, zero_ns: int = 10**18) -> Path:
    """Write three kernels of 100, 200 and 300 ns."""
    with NvprofDatabase(path) as file:
        for number in (1, 2, 3):
            begin = zero_ns + 1_000 * number
            place = {"deviceId": 0, "streamId": 7, "correlationId": number}
            name = file.string(f"k{number}")
            file.add("CONCURRENT_KERNEL", name=name, start=begin, end=begin + 100 * number, **place)
    return path


def with_second_row(path: Path, column: str, value: object) -> Path:
    with closing(sqlite3.connect(path)) as database, database:
        changed = database.execute(
            f'UPDATE {_TABLE} SET "{column}" = ? WHERE correlationId = 2', (value,)
        )
        assert changed.rowcount == 1
    return path


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("start", None),
        ("end", None),
        ("start", _MOST),
        ("end", _MOST),
        ("end", 2**62),
        ("start", -(2**63)),
        ("end", 5),
        ("deviceId", None),
    ],
)
def test_a_row_that_cannot_be_is_left_out_and_said(
    tmp_path: Path, column: str, value: object
) -> None:
    path = with_second_row(written(tmp_path / "t.nvprof"), column, value)
    busy_ns, suspicions = answered(path)
    assert busy_ns == kernel_ns(path) == 400
    # No time is how nvprof writes what its buffers lost.
    assert "1 row of" in suspicions or "the profiler lost 1 records" in suspicions


def test_clocks_near_the_end_of_what_can_be_told_are_exact(tmp_path: Path) -> None:
    path = written(tmp_path / "t.nvprof", zero_ns=2**62 - 10_000)
    assert answered(path)[0] == kernel_ns(path) == 600


def test_clocks_beyond_it_leave_nothing_out_without_a_word(tmp_path: Path) -> None:
    path = written(tmp_path / "t.nvprof", zero_ns=_MOST - 10_000)
    try:
        busy_ns, suspicions = answered(path)
    except TraceprofError as error:
        assert "\n" not in str(error)
    else:
        assert busy_ns == 0
        assert "3 rows of" in suspicions
