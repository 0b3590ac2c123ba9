"""Pages decoded in bulk, against what sqlite3 says is in them."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.formats.sqlite.random_tables import (
    INTEGER,
    READ_AS,
    REAL,
    TEXT,
    by_pages,
    by_sqlite3,
    random_condition,
    same,
    write,
)
from tests.requirements import require
from traceprof.errors import TraceError
from traceprof.formats.sqlite.columns import ColumnType
from traceprof.formats.sqlite.database import Database
from traceprof.formats.sqlite.pages import columns as tables


@pytest.fixture(autouse=True)
def _both() -> None:
    """Decode by C, which alone decodes pages."""
    require("compiled")


ANY_NUMBER = st.integers(-(2**63) + 1, 2**63 - 1) | st.integers(-300, 300) | st.none()
ANY_TEXT = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@pytest.mark.parametrize("seed", range(80))
def test_random_tables(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(tables, "_BLOCK_BYTES", chance.choice([1, 20_000, 2 << 20]))
    kinds_of = write(tmp_path / "a.sqlite", seed)
    with Database(tmp_path / "a.sqlite") as database:
        for table, kinds in kinds_of.items():
            wanted = _some_of(kinds, chance)
            where = random_condition(chance, kinds) if chance.random() < 0.5 else None
            found = by_pages(database, table, wanted, where) if wanted else None
            if found is not None:
                expected = by_sqlite3(tmp_path / "a.sqlite", table, wanted, where)
                assert expected is not None
                assert same(found, expected)


@pytest.mark.parametrize("seed", range(1000, 1120))
def test_damaged_files_give_what_sqlite_gives_or_nothing(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(tables, "_BLOCK_BYTES", chance.choice([1, 20_000]))
    path = tmp_path / "a.sqlite"
    kinds_of = write(path, seed)
    path.write_bytes(_damaged(path.read_bytes(), chance))

    try:
        with Database(path) as database:
            for table, kinds in kinds_of.items():
                _check(database, table, _some_of(kinds, chance))
    except TraceError:
        return


def _check(database: Database, table: str, wanted: dict[str, ColumnType]) -> None:
    found = by_pages(database, table, wanted) if wanted else None
    if found is not None:
        expected = by_sqlite3(database.path, table, wanted)
        assert expected is not None
        assert same(found, expected)


def _damaged(content: bytes, chance: random.Random) -> bytes:
    """Return a file with a few wrong bytes, most of them where pages say what is in them."""
    changed = bytearray(content)
    size = int.from_bytes(changed[16:18], "big")
    size = 65536 if size == 1 else size
    for _ in range(chance.choice([1, 1, 2, 5, 50])):
        page = chance.randrange(len(changed) // size) * size
        place = page + chance.randrange(min(size, chance.choice([12, 40, 200, size])))
        changed[place] = chance.choice(
            [0, 255, 128, 13, 5, changed[place] ^ 1, changed[place] ^ 64]
        )
    if chance.random() < 0.1:
        del changed[chance.randrange(len(changed)) :]
    return bytes(changed)


def _some_of(kinds: dict[str, str], chance: random.Random) -> dict[str, ColumnType]:
    return {
        name: READ_AS[kind]
        for name, kind in kinds.items()
        if kind in READ_AS and chance.random() < 0.7
    }


def make(path: Path, sql: str, rows: list[tuple[object, ...]] | None = None) -> Path:
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as database, database:
        database.executescript(sql)
        if rows:
            marks = ", ".join("?" * len(rows[0]))
            database.executemany(f"INSERT INTO t VALUES ({marks})", rows)
    return path


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    rows=st.lists(
        st.tuples(ANY_NUMBER, ANY_NUMBER, ANY_TEXT, st.none() | st.floats()), max_size=60
    ),
    page_bytes=st.sampled_from([512, 4096, 65536]),
)
def test_a_plain_table_is_decoded(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[object, ...]], page_bytes: int
) -> None:
    path = make(
        tmp_path_factory.getbasetemp() / "plain.sqlite",
        f"PRAGMA page_size = {page_bytes}; CREATE TABLE t (a INTEGER, b BIGINT, c TEXT, d REAL)",
        rows,
    )
    wanted = {"a": INTEGER, "b": INTEGER, "c": TEXT, "d": REAL}
    with Database(path) as database:
        found = by_pages(database, "t", wanted)
    expected = by_sqlite3(path, "t", wanted)
    assert found is not None
    assert expected is not None
    assert same(found, expected)


@pytest.mark.parametrize("n_rows", [0, 1, 5000])
def test_the_key_of_rows_is_a_column(tmp_path: Path, n_rows: int) -> None:
    rows: list[tuple[object, ...]] = [(7 * n, n % 3, f"name {n % 5}") for n in range(n_rows)]
    path = make(tmp_path / "a.sqlite", "CREATE TABLE t (id INTEGER PRIMARY KEY, n INT, s)", rows)
    with Database(path) as database:
        found = by_pages(database, "t", {"id": INTEGER, "n": INTEGER, "s": TEXT})
    assert found is not None
    assert list(zip(found["id"], found["n"], found["s"], strict=True)) == rows


NOT_PLAIN = {
    "without row ids": "CREATE TABLE t (a INTEGER PRIMARY KEY, b INTEGER) WITHOUT ROWID",
    "a view": "CREATE TABLE u (a INTEGER, b INTEGER); CREATE VIEW t AS SELECT * FROM u",
    "computed": "CREATE TABLE t (a INTEGER, b INTEGER, c INTEGER AS (a + 1))",
    "UTF-16": "PRAGMA encoding = 'UTF-16'; CREATE TABLE t (a INTEGER, b INTEGER)",
    "reals": "CREATE TABLE t (a REAL, b INTEGER)",
    "rowid is a column": "CREATE TABLE t (a INTEGER, b INTEGER, rowid, oid, _rowid_)",
}


@pytest.mark.parametrize("sql", NOT_PLAIN.values(), ids=NOT_PLAIN)
def test_what_is_not_plain_is_left_to_sqlite(tmp_path: Path, sql: str) -> None:
    path = make(tmp_path / "a.sqlite", sql)
    with Database(path) as database:
        assert by_pages(database, "t", {"a": INTEGER, "b": INTEGER}) is None


def test_what_is_left_to_sqlite_is_read_all_the_same(tmp_path: Path) -> None:
    path = make(tmp_path / "a.sqlite", NOT_PLAIN["without row ids"], [(1, 5), (3, None)])
    with Database(path) as database:
        found = database.read_columns("t", {"a": INTEGER, "b": INTEGER}, optional=["b"])
    assert found["a"].tolist() == [1, 3]
    assert found["b"][0] == 5


def test_a_descending_key_is_not_the_row_id(tmp_path: Path) -> None:
    path = make(
        tmp_path / "a.sqlite", "CREATE TABLE t (a INTEGER PRIMARY KEY DESC)", [(9,), (4,), (7,)]
    )
    with Database(path) as database:
        found = by_pages(database, "t", {"a": INTEGER})
    assert found is not None
    assert found["a"].tolist() == [9, 4, 7]


def test_a_file_that_changed_is_left_to_sqlite(tmp_path: Path) -> None:
    path = make(tmp_path / "a.sqlite", "CREATE TABLE t (a INTEGER)", [(1,)])
    with Database(path) as database:
        with closing(sqlite3.connect(path)) as writer, writer:
            writer.execute("INSERT INTO t VALUES (2)")
        assert by_pages(database, "t", {"a": INTEGER}) is None


def test_a_journal_beside_it_means_that_a_file_is_being_written(tmp_path: Path) -> None:
    path = make(tmp_path / "a.sqlite", "CREATE TABLE t (a INTEGER)", [(1,)])
    (tmp_path / "a.sqlite-journal").write_bytes(b"pending")
    with Database(path) as database:
        assert by_pages(database, "t", {"a": INTEGER}) is None
        assert database.read_columns("t", {"a": INTEGER})["a"].tolist() == [1]


def test_pages_of_tables_that_lie_between_one_another(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    with closing(sqlite3.connect(path)) as writer, writer:
        writer.execute("CREATE TABLE t (a INTEGER, s TEXT)")
        writer.execute("CREATE TABLE u (a INTEGER, s TEXT)")
        for number in range(3000):
            for table in "tuuu":
                writer.execute(f"INSERT INTO {table} VALUES (?, ?)", (number, "x" * 90))
    with Database(path) as database:
        found = by_pages(database, "t", {"a": INTEGER})
    assert found is not None
    assert found["a"].tolist() == list(range(3000))
