"""What a query may do, and all that it may not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.requirements import ROOT
from traceprof.errors import UsageError
from traceprof.query.engine import Limits, Query, QueryRows, View, ViewColumn

VIEW = View("t", "for tests", (ViewColumn("a", "INTEGER"), ViewColumn("b", "TEXT")))
FOR_EVER = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"


def answer(sql: str, limits: Limits | None = None) -> QueryRows:
    with Query(sql, [VIEW], limits or Limits()) as query:
        query.add("t", {"a": [1, 2, None], "b": ["x", "y", "y"]}, 3)
        return query.run()


def test_rows_are_loaded_and_asked() -> None:
    found = answer("SELECT b, count(*) AS n, sum(a) FROM t GROUP BY b ORDER BY b")
    assert found == QueryRows(("b", "n", "sum(a)"), [("x", 1, 1), ("y", 2, 2)])


def test_it_tells_what_it_reads_before_anything_is_loaded() -> None:
    with Query("SELECT a FROM t WHERE a > 1", [VIEW]) as query:
        assert query.reads == {"t": {"a"}}
    with Query("WITH c AS (SELECT 1) SELECT count(*) FROM c", [VIEW]) as query:
        assert query.reads == {}


def test_rows_count_where_no_column_is_read() -> None:
    with Query("SELECT count(*) FROM t", [VIEW]) as query:
        assert query.reads == {"t": frozenset()}
        query.add("t", {}, 5)
        assert query.run().rows == [(5,)]


@pytest.mark.parametrize(
    ("sql", "what"),
    [
        ("ATTACH '{0}' AS other", "ATTACH is not allowed"),
        ("DETACH main", "DETACH is not allowed"),
        ("VACUUM INTO '{0}'", "not a SELECT"),
        ("PRAGMA user_version", "PRAGMA is not allowed"),
        ("PRAGMA temp_store_directory = '{0}'", "PRAGMA is not allowed"),
        ("SELECT * FROM pragma_table_info('t')", "not allowed"),
        ("SELECT * FROM json_each('[1]')", "not allowed"),
        ("SELECT load_extension('{0}')", "the function load_extension is not allowed"),
        ("SELECT readfile('{0}')", "no such function: readfile"),
        ("SELECT writefile('{0}', 'x')", "no such function: writefile"),
        ("SELECT edit('{0}')", "no such function: edit"),
        ("SELECT zeroblob(900000000)", "the function zeroblob is not allowed"),
        ("SELECT randomblob(900000000)", "the function randomblob is not allowed"),
        ("SELECT fts3_tokenizer('x', x'00')", "not allowed|no such function"),
        ("SELECT * FROM sqlite_master", "the table sqlite_master is not allowed"),
        ("SELECT count(*) FROM sqlite_schema", "the table sqlite_"),
        ("SELECT * FROM temp.sqlite_temp_master", "the table sqlite_temp_master is not allowed"),
        ("INSERT INTO t VALUES (1, 'z')", "not allowed"),
        ("WITH c AS (SELECT 1) INSERT INTO t SELECT 1, 'z' FROM c", "not allowed"),
        ("UPDATE t SET a = 1", "not allowed"),
        ("DELETE FROM t", "not allowed"),
        ("DROP TABLE t", "not allowed"),
        ("CREATE TABLE u (a)", "not allowed"),
        ("CREATE TEMP TABLE u AS SELECT 1", "not allowed"),
        ("CREATE VIRTUAL TABLE u USING fts5(a)", "not allowed|no such module"),
        ("CREATE TEMP TRIGGER u AFTER INSERT ON t BEGIN SELECT 1; END", "not allowed"),
        ("ALTER TABLE t RENAME TO u", "not allowed"),
        ("CREATE INDEX u ON t (a)", "not allowed"),
        ("REINDEX t", "not allowed|not a SELECT"),
        ("ANALYZE", "not allowed"),
        ("BEGIN", "not allowed"),
        ("SAVEPOINT s", "not allowed"),
        ("SELECT 1; SELECT 2", "one statement"),
        ("SELECT 1; DROP TABLE t", "one statement"),
        ("EXPLAIN SELECT 1", "syntax error"),
        ("", "SQL: "),
        ("-- nothing", "SQL: "),
        ("SELECT '\0'", "SQL: "),
        ("SELECT '\ud800'", "SQL: "),
        ("SELECT ?", "SQL: "),
        ("SELECT c FROM t", "no such column: c"),
        ("SELECT sum(9223372036854775807) FROM t", "integer overflow"),
        ("SELECT " + "(" * 300 + "1" + ")" * 300, "SQL: "),
        ("SELECT 1" + " " * 200_000, "SQL: "),
        ("SELECT replace(printf('%.*c', 900000, 'x'), 'x', 'xx')", "too big"),
        ("SELECT group_concat(printf('%.*c', 400000, 'x')) FROM t", "too big"),
    ],
)
def test_what_does_more_than_read_is_refused(sql: str, what: str, tmp_path: Path) -> None:
    target = tmp_path / "other.db"
    with pytest.raises(UsageError, match=what) as caught:
        answer(sql.replace("{0}", str(target)))
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_nothing_is_written_while_it_sorts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SQLITE_TMPDIR", str(tmp_path))
    sql = FOR_EVER.replace("FROM n)", "FROM n LIMIT 100000)").replace("count(*)", "x")
    with Query(f"{sql} ORDER BY -x LIMIT 1", [VIEW]) as query:
        assert query.run().rows == [(100_000,)]
        assert not list(tmp_path.iterdir())


def test_what_runs_for_ever_is_stopped() -> None:
    with pytest.raises(UsageError, match=r"stopped after 0\.2 s.*--timeout"):
        answer(FOR_EVER, Limits(seconds=0.2))


def test_an_interrupt_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> float:
        if interrupted.calls:  # type: ignore[attr-defined]
            raise KeyboardInterrupt
        interrupted.calls += 1  # type: ignore[attr-defined]
        return 0.0

    interrupted.calls = 0  # type: ignore[attr-defined]
    monkeypatch.setattr("traceprof.query.engine.monotonic", interrupted)
    with pytest.raises(KeyboardInterrupt):
        answer(FOR_EVER)


@pytest.mark.parametrize(
    "sql",
    [
        f"SELECT x FROM ({FOR_EVER.replace('count(*)', 'x')}) ORDER BY -x",
        f"SELECT count(*) FROM ({FOR_EVER.replace('count(*)', 'DISTINCT x')})",
    ],
)
def test_memory_is_bounded(sql: str) -> None:
    # SQLite keeps the limit for the whole process.
    program = (
        "from traceprof.query.engine import *\n"
        "from traceprof.errors import UsageError\n"
        f"query = Query({sql!r}, [], Limits(sqlite_bytes=8 << 20))\n"
        "try: query.run()\n"
        "except UsageError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.stdout.startswith("the query needs too much memory; select fewer rows")


def test_the_answer_is_bounded() -> None:
    endless = FOR_EVER.replace("count(*)", "x, printf('%.*c', 1000, 'x')")
    with pytest.raises(UsageError, match="the result needs too much memory"):
        answer(endless, Limits(answer_bytes=100_000))
    found = answer(endless, Limits(n_rows=10))
    assert (len(found.rows), found.is_cut) == (10, True)
    assert not answer("SELECT a FROM t", Limits(n_rows=3)).is_cut


def test_columns_have_names_of_their_own() -> None:
    assert answer("SELECT a, a, 1 AS a FROM t").columns == ("a", "a_2", "a_3")


def test_bytes_that_are_no_text_are_told_as_such() -> None:
    assert answer("SELECT CAST(x'ff41' AS TEXT), x'00ff'").rows == [("\ufffdA", b"\x00\xff")]
