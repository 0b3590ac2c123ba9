"""The tables of the database, and how older files become newer ones.

What has a row per run, label, variable and file is written here and changed by `MIGRATIONS` only.
The tables of results follow from what is declared (`traceprof.store.declared`): a new column needs
no migration, one that is renamed does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from traceprof.model.summary import SUMMARY
from traceprof.store.declared import ensure_table

__all__ = ["APPLICATION_ID", "FIXED", "MIGRATIONS", "VIEWS", "migrate"]

APPLICATION_ID: Final = 0x74707266
"""What the header of our files says ("tprf"), as SQLite foresees it."""

FIXED: Final = (
    *("runs", "labels", "environment", "sources", "notes"),
    *("results", "declarations", "contents", "scalars"),
)
"""The tables that are no declared ones."""

_TABLES_1: Final = """
CREATE TABLE runs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    added TEXT NOT NULL,
    traceprof TEXT NOT NULL,
    origin TEXT NOT NULL,
    command TEXT NOT NULL,
    workload TEXT NOT NULL,
    started_utc_ns INTEGER,
    "window" TEXT NOT NULL,
    window_ns INTEGER,
    steps_count INTEGER,
    devices_count INTEGER
);
CREATE TABLE labels (
    run_id INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE,
    label TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (run_id, label)
) WITHOUT ROWID;
CREATE INDEX labels_by_value ON labels(label, value);
CREATE TABLE environment (
    run_id INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (run_id, name)
) WITHOUT ROWID;
CREATE TABLE sources (
    run_id INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE,
    "row" INTEGER NOT NULL,
    path TEXT NOT NULL,
    format TEXT NOT NULL,
    n_bytes INTEGER,
    ranks TEXT NOT NULL,
    PRIMARY KEY (run_id, "row")
) WITHOUT ROWID;
CREATE TABLE notes (
    run_id INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE,
    result TEXT NOT NULL,
    "row" INTEGER NOT NULL,
    template TEXT NOT NULL,
    "values" TEXT NOT NULL,
    PRIMARY KEY (run_id, result, "row")
) WITHOUT ROWID;
CREATE TABLE declarations (
    id INTEGER PRIMARY KEY,
    result TEXT NOT NULL,
    declaration TEXT NOT NULL UNIQUE
);
CREATE TABLE results (
    run_id INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE,
    result TEXT NOT NULL,
    "row" INTEGER NOT NULL,
    declaration_id INTEGER NOT NULL REFERENCES declarations(id),
    PRIMARY KEY (run_id, result)
) WITHOUT ROWID;
CREATE TABLE contents (
    run_id INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE,
    result TEXT NOT NULL,
    name TEXT NOT NULL,
    "table" TEXT NOT NULL,
    n_rows INTEGER NOT NULL,
    columns TEXT NOT NULL,
    PRIMARY KEY (run_id, result, name)
) WITHOUT ROWID;
CREATE TABLE scalars (
    run_id INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE,
    result TEXT NOT NULL,
    scalar TEXT NOT NULL,
    value,
    PRIMARY KEY (run_id, result, scalar)
) WITHOUT ROWID;
"""

VIEWS: Final = {
    "runs_overview": """
        SELECT runs.id, runs.name, runs.added,
            datetime(runs.started_utc_ns / 1000000000, 'unixepoch') AS started,
            runs.origin,
            (SELECT group_concat(label || '=' || value, ' ')
                FROM labels WHERE run_id = runs.id) AS labels,
            (SELECT value FROM measures
                WHERE run_id = runs.id AND measure = 'world_size') AS world_size,
            runs.devices_count,
            (SELECT value FROM environment WHERE run_id = runs.id AND name = 'gpu') AS gpu,
            (SELECT value FROM measures
                WHERE run_id = runs.id AND measure = 'samples_per_s') AS samples_per_s,
            (SELECT value / 1e6 FROM measures
                WHERE run_id = runs.id AND measure = 'step_period_ns') AS step_period_ms,
            runs.steps_count,
            runs.command
        FROM runs""",
    "runs_measures": """
        SELECT runs.name, measures.measure, measures.value, measures.unit, measures.low,
            measures.high, measures.scope, measures.source
        FROM measures JOIN runs ON runs.id = measures.run_id""",
    "runs_environment": """
        SELECT runs.name AS run, environment.name, environment.value
        FROM environment JOIN runs ON runs.id = environment.run_id""",
}
"""What people read first: made anew with every version."""


def _first(database: Any) -> None:
    for statement in filter(str.strip, _TABLES_1.split(";")):
        database.execute(statement)


MIGRATIONS: Final[tuple[Callable[[Any], None], ...]] = (_first,)
"""What makes version n + 1 of version n, in order; version 0 is an empty file.

One that changes a declared table finds it in older files only: `rename_column` knows that.
"""


def migrate(database: Any, version: int) -> None:
    """Bring a file of ``version`` up to date; who calls does it in one transaction."""
    for name in VIEWS:
        database.execute(f"DROP VIEW IF EXISTS {name}")
    for change in MIGRATIONS[version:]:
        change(database)
    for table in SUMMARY.tables:
        ensure_table(database, table.name, tuple(table))
    for name, query in VIEWS.items():
        database.create_view(name, query)
    database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    database.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
