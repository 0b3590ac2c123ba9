"""Rows in a window, found by the bounds of leaves, against a look at every row."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from traceprof.formats import compiled
from traceprof.formats.sqlite import database as module
from traceprof.formats.sqlite.columns import NULL, ColumnType
from traceprof.formats.sqlite.conditions import all_of, any_of, between, contains, is_one_of
from traceprof.formats.sqlite.database import Database
from traceprof.formats.sqlite.pages import blocks, totals
from traceprof.formats.sqlite.pages.totals import bounds_of
from traceprof.model.timing import TimeWindow

# Pages are decoded by C alone.
BY_C = pytest.mark.parametrize("decoder", ["compiled"], indirect=True)

INTEGER = ColumnType.INTEGER
WANTED = {"start": INTEGER, "end": INTEGER, "n": INTEGER}

Row = tuple[int | None, int | None, int]


def write(path: Path, rows: list[Row]) -> Path:
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("PRAGMA page_size = 512")
        database.execute('CREATE TABLE t (start INTEGER, "end" INTEGER, n INTEGER, s TEXT)')
        for start, end, number in rows:
            filler = "x" * (60 if number % 40 else 900)  # some go on in other pages
            database.execute("INSERT INTO t VALUES (?, ?, ?, ?)", (start, end, number, filler))
    return path


def overlapping(rows: list[Row], window: TimeWindow) -> list[int]:
    return [
        number
        for start, end, number in rows
        if start is not None
        and start < window.end_ns
        and (start >= window.start_ns or (end is not None and end > window.start_ns))
    ]


@pytest.fixture(autouse=True)
def _by_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MANY_LEAVES", 1)
    monkeypatch.setattr(totals, "_cache", type(totals._cache)())


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    steps=st.lists(
        st.tuples(st.integers(-400, 500), st.none() | st.integers(-50, 20_000)), max_size=150
    ),
    first=st.integers(-1000, 20_000),
    length=st.integers(0, 4000),
)
def test_no_row_of_a_window_is_missed(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[int, int | None]],
    first: int,
    length: int,
) -> None:
    time, rows = 0, list[Row]()
    for number, (step, lasting) in enumerate(steps):
        time += step
        start = None if number % 29 == 28 else time
        rows.append((start, None if lasting is None else time + lasting, number))
    window = TimeWindow(first, first + length)
    path = write(tmp_path_factory.getbasetemp() / "window.sqlite", rows)
    with Database(path) as database:
        found = database.read_columns("t", WANTED, window)
        again = database.read_columns("t", WANTED, window)
    assert found["n"].tolist() == again["n"].tolist() == overlapping(rows, window)


@BY_C
def test_only_leaves_with_rows_of_the_window_are_read(tmp_path: Path, decoder: str) -> None:
    rows: list[Row] = [(10 * n, 10 * n + 15, n) for n in range(3000)]
    rows[2500] = (0, 2_000_000, 2500)  # far from its time, and as long as all
    window = TimeWindow(12_000, 12_100)
    with Database(write(tmp_path / "a.sqlite", rows)) as database:
        found = database.read_columns("t", WANTED, window)
        pages = database.pages_of("t")
        assert pages is not None
        leaves = pages.leaves()
        inside = between("start", None, window.end_ns - 1)
        late = any_of(between("start", window.start_ns), between("end", window.start_ns + 1))
        told = all_of(inside, late).within(bounds_of(pages, leaves, {"start", "end"}))
    assert found["n"].tolist() == [*range(1199, 1210), 2500]
    assert told is not None
    assert int(told.sum()) < len(leaves.pages) // 20


def test_null_is_smaller_than_all_and_in_no_bounds() -> None:
    least, most = np.array([NULL, 5, NULL]), np.array([NULL, 9, 30])
    found = {"a": (least, most)}
    told = between("a", 6).within(found)
    assert told is not None
    assert told.tolist() == [False, True, True]


def test_what_bounds_do_not_tell_may_hold_anywhere() -> None:
    found = {"a": (np.array([0, 5]), np.array([4, 9]))}
    unknown = contains("s", ("step",))
    assert any_of(between("a", 6), unknown).within(found) is None
    told = all_of(between("a", 6), is_one_of("b", (1,))).within(found)
    assert told is not None
    assert told.tolist() == [False, True]


def test_words_are_found_in_texts_as_like_finds_them(tmp_path: Path, decoder: str) -> None:
    texts = [
        "Step 1",
        "my sTEp",
        "ste",
        "st\0ep",
        "step\0",
        "a\0step",
        "@ward",
        "`ward",
        "WA",
        "",
        None,
    ]
    path = tmp_path / "a"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE t (n INTEGER, s TEXT)")
        database.executemany("INSERT INTO t VALUES (?, ?)", enumerate(texts))
        like = "SELECT n FROM t WHERE s LIKE '%tep%' OR s LIKE '%`wa%'"
        expected = [n for (n,) in database.execute(like)]
    with Database(path) as opened:
        where = contains("s", ("tep", "`wa"))
        found = opened.read_columns("t", {"n": INTEGER}, where=where)
    assert found["n"].tolist() == expected == [0, 1, 4, 7]


@BY_C
def test_a_library_that_does_not_know_words_leaves_them_to_sqlite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decoder: str
) -> None:
    path = write(tmp_path / "a", [(n, n, n) for n in range(200)])
    older = SimpleNamespace(traceprof_decode=compiled.loaded().traceprof_decode)
    monkeypatch.setattr(blocks, "loaded", lambda: older)
    with Database(path) as opened:
        found = opened.read_columns("t", {"n": INTEGER}, where=contains("s", ("xx",)))
    assert found["n"].tolist() == list(range(200))


@BY_C
def test_bounds_are_forgotten_where_they_are_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decoder: str
) -> None:
    monkeypatch.setattr(totals, "_MAX_CACHE_BYTES", 1)
    for name in ("a", "b"):
        with Database(write(tmp_path / name, [(n, n, n) for n in range(200)])) as database:
            pages = database.pages_of("t")
            assert pages is not None
            bounds_of(pages, pages.leaves(), {"start"})
            bounds_of(pages, pages.leaves(), {"end"})
    assert len(totals._cache) == 1
    kept = [pair for bounds in totals._cache.values() for pair in bounds.values()]
    assert totals._cache.n_bytes == sum(array.nbytes for pair in kept for array in pair) > 0
