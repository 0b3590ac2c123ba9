"""The seam to SQLite: what it reads, and what it refuses."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from traceprof.errors import TraceError
from traceprof.formats import open_trace
from traceprof.formats.shared.files import examine
from traceprof.formats.sqlite import columns, schema
from traceprof.formats.sqlite import database as module
from traceprof.formats.sqlite.columns import NULL, ColumnType
from traceprof.formats.sqlite.database import Database
from traceprof.formats.sqlite.schema import Catalogue
from traceprof.model.timing import TimeWindow

INTEGER, REAL, TEXT = ColumnType.INTEGER, ColumnType.REAL, ColumnType.TEXT
SMALLEST = NULL + 1


def write(path: Path, rows: list[tuple[object, ...]]) -> Path:
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute('CREATE TABLE events (start INTEGER, "end" INTEGER, x REAL, label)')
        connection.executemany("INSERT INTO events VALUES (?, ?, ?, ?)", rows)
    return path


@given(
    st.lists(
        st.tuples(
            st.integers(SMALLEST, 2**63 - 1),
            st.none() | st.integers(SMALLEST, 2**63 - 1),
            st.none() | st.floats(allow_nan=False, allow_infinity=False, width=32),
            st.none() | st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
        ),
        max_size=20,
    )
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_columns_come_back_as_they_were_written(
    tmp_path: Path, rows: list[tuple[int, int | None, float | None, str | None]]
) -> None:
    path = write(tmp_path / "a.sqlite", rows)
    with Database(path) as database:
        read = database.read_columns(
            "events", {"start": INTEGER, "end": INTEGER, "x": REAL, "label": TEXT}
        )
    assert read["start"].tolist() == [row[0] for row in rows]
    assert read["end"].tolist() == [NULL if row[1] is None else row[1] for row in rows]
    np.testing.assert_array_equal(
        np.asarray(read["x"]), [np.nan if row[2] is None else row[2] for row in rows]
    )
    assert read["label"].tolist() == [row[3] or "" for row in rows]


def test_nulls_in_front_do_not_decide_the_type(tmp_path: Path) -> None:
    n = 70_000  # more than a batch
    path = write(
        tmp_path / "a.sqlite", [(i, None, None, None) for i in range(n)] + [(n, 7, 1.5, "z")]
    )
    with Database(path) as database:
        read = database.read_columns("events", {"end": INTEGER, "x": REAL, "label": TEXT})
    assert (read["end"][-1], read["x"][-1], read["label"][-1]) == (7, 1.5, "z")
    assert read["end"][0] == NULL
    assert np.isnan(read["x"][0])


def test_bytes_that_are_not_utf8_are_replaced(tmp_path: Path) -> None:
    path = write(tmp_path / "a.sqlite", [(1, 2, 3.0, b"caf\xe9"), (1, 2, 3.0, "nul\x00inside")])
    with Database(path) as database:
        read = database.read_columns("events", {"label": TEXT})
    assert read["label"].tolist() == ["caf\ufffd", "nul\x00inside"]


def test_batches_of_a_big_table_are_joined_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "_BATCH_ROWS", 10)
    path = write(tmp_path / "a.sqlite", [(i, i + 1, None, str(i % 13)) for i in range(101)])
    with Database(path) as database:
        read = database.read_columns("events", {"start": INTEGER, "label": TEXT}, where="1")
    assert read["start"].tolist() == list(range(101))
    assert read["label"].tolist() == [str(i % 13) for i in range(101)]


def test_a_window_keeps_what_overlaps_it(tmp_path: Path) -> None:
    rows = [
        (0, 10, None, "before"),
        (5, 15, None, "cut"),
        (12, None, None, "open"),
        (20, 30, None, "after"),
    ]
    path = write(tmp_path / "a.sqlite", rows)
    with Database(path) as database:
        read = database.read_columns("events", {"label": TEXT}, TimeWindow(10, 20))
    assert read["label"].tolist() == ["cut", "open"]


def test_an_optional_column_that_is_missing_is_all_null(tmp_path: Path) -> None:
    path = write(tmp_path / "a.sqlite", [(1, 2, None, None)])
    with Database(path) as database:
        read = database.read_columns("events", {"start": INTEGER, "new": INTEGER}, optional=["new"])
        assert read["new"].tolist() == [NULL]
        with pytest.raises(TraceError, match="table events has no column new"):
            database.read_columns("events", {"new": INTEGER})


def test_text_where_numbers_belong_is_an_error_not_a_zero(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    write(path, [])
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO events VALUES ('soon', 2, 3.0, '')")
    with Database(path) as database, pytest.raises(TraceError, match=r"events\.start"):
        database.read_columns("events", {"start": INTEGER})


def test_a_table_name_is_quoted(tmp_path: Path) -> None:
    path = write(tmp_path / "a.sqlite", [])
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute('CREATE TABLE "odd "" name; --" (start INTEGER)')
        connection.execute('INSERT INTO "odd "" name; --" VALUES (5)')
    with Database(path) as database:
        assert database.read_columns('odd " name; --', {"start": INTEGER})["start"].tolist() == [5]


def test_a_path_with_special_characters_opens(tmp_path: Path) -> None:
    path = write(tmp_path / "50% #1?.sqlite", [(1, 2, None, None)])
    with Database(path) as database:
        assert database.read_columns("events", {"start": INTEGER})["start"].tolist() == [1]


def test_a_file_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.sqlite", [(i, i, None, "x" * 50) for i in range(1000)])
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(TraceError, match="truncated"):
        Database(path)


def test_a_damaged_page_is_one_clear_error(tmp_path: Path) -> None:
    path = write(tmp_path / "a.sqlite", [(i, i, None, "x" * 50) for i in range(1000)])
    content = bytearray(path.read_bytes())
    content[4096 * 2 : 4096 * 4] = b"\xff" * 8192
    path.write_bytes(content)
    with Database(path) as database, pytest.raises(TraceError, match="cannot be read"):
        database.read_columns("events", {"start": INTEGER})


def test_unmerged_changes_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.sqlite", [])
    (tmp_path / "a.sqlite-wal").write_bytes(b"pending")
    with pytest.raises(TraceError, match="unmerged changes"):
        Database(path)


def test_nothing_appears_beside_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a.sqlite", [(1, 2, None, None)])
    with Database(path) as database:
        database.read_columns("events", {"start": INTEGER})
    assert [item.name for item in tmp_path.iterdir()] == ["a.sqlite"]


def crashed(path: Path, mode: str) -> None:
    """Leave a database a change was interrupted, as a program does that is killed."""
    script = (
        "import os, sqlite3, sys\n"
        "c = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        f"c.execute('PRAGMA journal_mode = {mode}')\n"
        "c.execute('CREATE TABLE t (x)')\n"
        "c.executemany('INSERT INTO t VALUES (?)', [(i,) for i in range(5000)])\n"
        "c.execute('PRAGMA cache_size = 1')\n"
        "c.execute('BEGIN')\n"
        "c.execute('UPDATE t SET x = -1')\n"
        "os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(path)], check=True)


@pytest.mark.parametrize("mode", ["DELETE", "PERSIST", "TRUNCATE"])
def test_a_change_that_was_not_finished_is_not_read(tmp_path: Path, mode: str) -> None:
    path, link = tmp_path / "t.sqlite", tmp_path / "elsewhere"
    crashed(path, mode)
    link.symlink_to(path)
    for name in (path, link):
        with pytest.raises(TraceError, match="a change was interrupted"):
            Database(name)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT min(x) FROM t").fetchone() == (0,)
    with Database(path) as database:
        assert database.rows("SELECT min(x) FROM t") == [(0,)]


@pytest.mark.parametrize("mode", ["DELETE", "PERSIST", "TRUNCATE"])
def test_a_journal_that_was_ended_is_no_matter(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "t.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA journal_mode = {mode}")
        with connection:
            connection.execute("CREATE TABLE t (x)")
        with connection:
            connection.execute("INSERT INTO t VALUES (5)")
        with Database(path) as database:
            assert database.rows("SELECT x FROM t") == [(5,)]


def test_a_log_is_found_through_a_link(tmp_path: Path) -> None:
    path, link = tmp_path / "t.sqlite", tmp_path / "elsewhere"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE t (x)")
        connection.commit()
        link.symlink_to(path)
        with pytest.raises(TraceError, match="unmerged changes"):
            Database(link)


def test_a_name_that_is_no_text_is_said_to_be_damaged(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT)")
    # The statement no longer makes a table, and the message about it quotes the byte.
    path.write_bytes(path.read_bytes().replace(b"(start INT)", b"\xffstart INT)"))
    with pytest.raises(TraceError, match=r"t\.sqlite: .*damaged"):
        open_trace(path)


@pytest.mark.parametrize("size", [0, 4096])
def test_whatever_comes_of_a_file_that_is_cut_meanwhile_is_said(tmp_path: Path, size: int) -> None:
    path = write(tmp_path / "t.sqlite", [(number, number, 0.5, "x" * 99) for number in range(999)])

    def read(_database: Database) -> None:
        with path.open("rb+") as file:
            file.truncate(size)
        raise ValueError("not enough values to unpack")

    with pytest.raises(TraceError, match=r"not a SQLite database|truncated"):
        module.reading(path, read)


def test_whatever_comes_of_a_file_that_is_written_meanwhile_is_said(tmp_path: Path) -> None:
    path = write(tmp_path / "t.sqlite", [(1, 2, 0.5, "x")])

    def read(_database: Database) -> None:
        write(path, [(1, 2, 0.5, "y"), (3, 4, 0.5, "z")])
        raise KeyError("y")

    with pytest.raises(TraceError, match="changed during reading"):
        module.reading(path, read)


def test_a_mistake_of_ours_stays_one(tmp_path: Path) -> None:
    path = write(tmp_path / "t.sqlite", [(1, 2, 0.5, "x")])
    with pytest.raises(ZeroDivisionError):
        module.reading(path, lambda _: 1 // 0)


def test_to_know_the_tables_of_a_file_no_column_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "trace.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE nvtx_events (START INTEGER, b INTEGER)")
        connection.commit()
    with monkeypatch.context() as patched:
        patched.setattr(Catalogue, "described", lambda *_: pytest.fail("asked for columns"))
        assert examine(path).tables == {"NVTX_EVENTS"}
    with Database(path) as database:
        assert database.columns("NVTX_EVENTS") == {"start", "b"}


def test_columns_of_many_tables_are_asked_for_some_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "many.sqlite"
    with closing(sqlite3.connect(path)) as file:
        for number in range(5):
            file.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_{number} (start INT, c{number} INT)")
    for at_once in (2, 5, 500):
        monkeypatch.setattr(schema, "_NAMES_PER_QUERY", at_once)
        with Database(path) as database:
            for number in range(5):
                found = database.columns(f"CUPTI_ACTIVITY_KIND_{number}")
                assert found == {"start", f"c{number}"}


def test_a_file_that_has_changed_is_examined_anew(tmp_path: Path) -> None:
    path = tmp_path / "one.sqlite"
    for tables in ({"NVTX_EVENTS"}, {"NVTX_EVENTS", "StringIds"}):
        with closing(sqlite3.connect(path)) as file:
            for name in tables:
                file.execute(f"CREATE TABLE IF NOT EXISTS {name} (id INT)")
        assert examine(path).tables == examine(path).tables == tables
