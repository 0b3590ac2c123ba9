"""Versions of the file: older ones are brought up to date, newer and strange ones are refused."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.requirements import ROOT
from tests.summaries import assert_same_runs, full_summary, make_summary
from traceprof.errors import StoreError
from traceprof.measures import ANALYSES, load_analysis
from traceprof.model.summary import SUMMARY
from traceprof.store import Store, database
from traceprof.store import database as schema
from traceprof.store.declared import rename_column, table_name

VERSION_1 = ROOT / "tests" / "store" / "version-1.sql"
"""A file of version 1 with `full_summary`, as `sqlite3 runs.db .dump` gave it: never change it."""


def columns_of(path: Path, table: str) -> list[str]:
    with closing(sqlite3.connect(path)) as db:
        return [row[1] for row in db.execute(f'PRAGMA table_info("{table}")')]


def execute(path: Path, script: str) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.executescript(script)


def use(monkeypatch: pytest.MonkeyPatch, *more: Callable[[database.Database], None]) -> None:
    """Let the program be a later one, that has ``more`` migrations."""
    migrations = (*schema.MIGRATIONS, *more)
    monkeypatch.setattr(schema, "MIGRATIONS", migrations)
    monkeypatch.setattr(database, "MIGRATIONS", migrations)


@pytest.fixture
def oldest(tmp_path: Path) -> Path:
    path = tmp_path / "old.db"
    execute(path, VERSION_1.read_text("utf-8"))
    execute(path, f"PRAGMA application_id = {schema.APPLICATION_ID}; PRAGMA user_version = 1")
    return path


def test_a_file_of_version_1_is_read_and_added_to(oldest: Path) -> None:
    store = Store(oldest)
    assert_same_runs(store.get("full"), full_summary())
    store.add(full_summary("new"))
    assert_same_runs(store.get("new"), full_summary("new"))
    assert store.names() == ["full", "new"]


def test_every_column_that_is_declared_has_its_own(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.db")
    store.add(make_summary())
    for table in SUMMARY.tables:
        names = ["run_id", "row", *(column.name for column in table)]
        assert columns_of(store.path, table.name) == names
    with closing(sqlite3.connect(store.path)) as db:
        tables = {
            name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type='table'")
        }
    own = {*schema.FIXED, *(table.name for table in SUMMARY.tables)}
    assert tables - {"sqlite_sequence"} == own


def test_the_docs_name_every_table_and_view() -> None:
    page = (ROOT / "docs" / "runs.md").read_text("utf-8")
    assert not [name for name in (*schema.FIXED, *schema.VIEWS) if f"`{name}`" not in page]
    assert f"`user_version`, now {len(schema.MIGRATIONS)})" in page
    assert hex(schema.APPLICATION_ID) in page


def test_no_two_tables_of_analyses_share_one_here() -> None:
    names = [
        table_name(entry.name, table.name)
        for entry in ANALYSES
        for table in load_analysis(entry.name).spec.tables
    ]
    assert len({*names}) == len(names)
    assert not {*names} & {*schema.FIXED, *(table.name for table in SUMMARY.tables)}


def test_migrations_run_in_order_and_once(oldest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []

    def second(db: database.Database) -> None:
        ran.append(2)
        db.execute("ALTER TABLE runs ADD COLUMN color TEXT")

    def third(db: database.Database) -> None:
        ran.append(3)
        db.execute("UPDATE runs SET color = 'blue'")

    use(monkeypatch, second, third)
    assert Store(oldest).names() == ["full"]
    assert Store(oldest).names() == ["full"]
    assert ran == [2, 3]
    with closing(sqlite3.connect(oldest)) as db:
        assert db.execute("SELECT color FROM runs").fetchall() == [("blue",)]
        assert db.execute("PRAGMA user_version").fetchall() == [(3,)]


def test_columns_of_declared_tables_are_renamed_where_there_are_any(
    oldest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def renames(db: database.Database) -> None:
        rename_column(db, "result_kernels", "total_ns", "sum_ns")
        rename_column(db, "steps", "span_ns", "device_ns")

    use(monkeypatch, renames)
    for path in (oldest, tmp_path / "new.db"):
        store = Store(path)
        store.add(make_summary("next"))
        assert_same_runs(store.get("next"), make_summary("next"))
        with closing(sqlite3.connect(path)) as db:
            assert db.execute("SELECT name FROM runs_measures LIMIT 1").fetchall()
    assert "sum_ns" in columns_of(oldest, "result_kernels")


def test_a_migration_that_fails_leaves_the_file_as_it_was(
    oldest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(db: database.Database) -> None:
        db.execute("DROP TABLE labels")
        db.execute("SELECT * FROM no_such_table")

    use(monkeypatch, fails)
    with pytest.raises(StoreError, match="no_such_table"):
        Store(oldest).names()
    monkeypatch.undo()
    assert_same_runs(Store(oldest).get("full"), full_summary())


def test_a_newer_file_is_refused_and_left_alone(oldest: Path) -> None:
    execute(oldest, "PRAGMA user_version = 99")
    before = oldest.read_bytes()
    for act in (lambda: Store(oldest).names(), lambda: Store(oldest).add(make_summary())):
        with pytest.raises(StoreError, match="version 99, but this traceprof supports 1; update"):
            act()
    assert oldest.read_bytes() == before


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("CREATE TABLE photos (id INT)", "an SQLite file, but not a run database"),
        ("PRAGMA application_id = 1; PRAGMA user_version = 1", "an SQLite file, but not a run"),
    ],
)
def test_a_database_of_something_else_is_refused(tmp_path: Path, script: str, message: str) -> None:
    path = tmp_path / "photos.db"
    execute(path, script)
    before = path.read_bytes()
    with pytest.raises(StoreError, match=message):
        Store(path).add(make_summary())
    assert path.read_bytes() == before


def test_no_database_at_all(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("notes")
    with pytest.raises(StoreError, match="not a run database; choose another file with --db"):
        Store(path).names()
    with pytest.raises(StoreError, match=r"cannot be made|Not a directory"):
        Store(path / "runs.db").add(make_summary())
    with pytest.raises(StoreError, match="Is a directory"):
        Store(tmp_path).names()


def test_an_empty_file_becomes_one(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    path.touch()
    assert Store(path).add(make_summary()) == "run"


def test_a_damaged_file_is_said_to_be(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.db")
    store.add(make_summary())
    content = bytearray(store.path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    store.path.write_bytes(content)
    with pytest.raises(StoreError, match="malformed"):
        store.get("run")


def test_a_text_that_is_none_is_said_to_be_damaged(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.db")
    store.add(make_summary("a"))
    data = store.path.read_bytes()
    store.path.write_bytes(data.replace(b" command TEXT", b" \xffommand TEXT"))
    with pytest.raises(StoreError, match=r"runs\.db: corrupt database: text that is not UTF-8"):
        store.get("a")


def test_a_text_among_numbers_is_said_to_be_damaged(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.db")
    store.add(make_summary("a"))
    execute(store.path, "UPDATE steps SET period_ns = 'x'")
    with pytest.raises(StoreError, match=r"corrupt database: .*expected a number, found text"):
        store.get("a")


ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c)"


@pytest.mark.parametrize(
    "script",
    [
        f"ALTER TABLE runs RENAME TO r; CREATE VIEW runs AS {ENDLESS} SELECT r.* FROM r, c",
        f"DROP TABLE steps; CREATE VIEW Steps AS {ENDLESS} SELECT x AS run_id FROM c",
        "DROP TABLE metrics; CREATE VIRTUAL TABLE metrics USING fts5(value)",
        f"CREATE TRIGGER t AFTER INSERT ON runs BEGIN {ENDLESS} SELECT x FROM c; END",
    ],
)
def test_what_may_compute_for_ever_is_refused(tmp_path: Path, script: str) -> None:
    store = Store(tmp_path / "runs.db")
    store.add(full_summary())
    execute(store.path, f"PRAGMA legacy_alter_table = ON; {script}")
    with pytest.raises(StoreError, match="is not a plain table"):
        store.names()
    with pytest.raises(StoreError, match="is not a plain table"):
        store.add(make_summary("other"))


def test_views_of_others_stay_and_are_not_read(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.db")
    store.add(full_summary())
    execute(store.path, f"CREATE VIEW mine AS {ENDLESS} SELECT x FROM c")
    assert store.names() == ["full"]
    execute(store.path, """UPDATE contents SET "table" = 'mine'""")
    with pytest.raises(StoreError, match=r"corrupt database: .*invalid table name 'mine'"):
        store.get("full")
