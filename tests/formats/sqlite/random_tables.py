"""Random SQLite files, and what SQLite itself makes of their columns."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from traceprof.formats.sqlite.columns import NULL_REAL, Column, ColumnType
from traceprof.formats.sqlite.conditions import (
    Condition,
    all_of,
    any_of,
    between,
    contains,
    differs,
    is_one_of,
    starts_with,
)
from traceprof.formats.sqlite.database import Database
from traceprof.formats.sqlite.pages.columns import read_pages
from traceprof.formats.sqlite.pages.tree import NotPlainError

INTEGER, REAL, TEXT = ColumnType.INTEGER, ColumnType.REAL, ColumnType.TEXT
EDGES = [0, 1, -1, 2, 127, 128, -128, -129, 2**15 - 1, 2**15, -(2**15), -(2**15) - 1]
EDGES += [2**23 - 1, 2**23, -(2**23) - 1, 2**31 - 1, 2**31, -(2**31) - 1, 2**47 - 1, 2**47]
EDGES += [-(2**47) - 1, 2**63 - 1, -(2**63) + 1]
DECLARED = {
    "integer": "INTEGER",
    "bigint": "BIGINT",
    "real": "REAL",
    "text": "TEXT",
    "none": "",
    "numeric": "NUMERIC",
    "key": "INTEGER PRIMARY KEY",
}
READ_AS = {"integer": INTEGER, "bigint": INTEGER, "real": REAL, "text": TEXT, "key": INTEGER}


def value(chance: random.Random, kind: str) -> Any:
    """Return a value as a column of this kind holds them, often at an edge."""
    if chance.random() < 0.15:
        return None
    match kind:
        case "integer" | "bigint" | "numeric":
            if chance.random() < 0.3:
                return chance.choice(EDGES)
            size = 2 ** chance.randrange(1, 63)
            return chance.randrange(-size, size)
        case "real":
            return chance.choice([0.0, -0.0, 1.0, 2.5, -3.25e9, 1e300, float(chance.randrange(99))])
        case "text":
            long = [0, 5, 56, 57, 58, 64, 65, 255, 256, 257, 3000, 9000]
            length = chance.choice(long if chance.random() < 0.1 else [0, 1, 3, 8, 20])
            return "é" * chance.randrange(2) + "".join(chance.choices("abT tep\0x", k=length))
    return chance.choice([None, 5, 2.5, "text", b"\xff\x00bytes", b"caf\xe9"])


def write(path: Path, seed: int) -> dict[str, dict[str, str]]:
    """Write a random file; returns table → column → kind, of what can be read back."""
    chance = random.Random(seed)
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as database, database:
        size = chance.choice([512, 1024, 4096, 4096, 4096, 8192, 65536])
        database.execute(f"PRAGMA page_size = {size}")
        if chance.random() < 0.15:
            database.execute(f"PRAGMA auto_vacuum = {chance.choice([1, 2])}")
        if chance.random() < 0.05:
            database.execute("PRAGMA encoding = 'UTF-16le'")
        tables = {f"t{n}": _columns(chance) for n in range(chance.randrange(1, 4))}
        for table, kinds in tables.items():
            told = ", ".join(f"{name} {DECLARED[kind]}" for name, kind in kinds.items())
            database.execute(f"CREATE TABLE {table} ({told})")
        empty = {
            table: {c for c in kinds if chance.random() < 0.3} for table, kinds in tables.items()
        }
        for _ in range(chance.randrange(0, 40)):
            table = chance.choice(list(tables))
            kinds = tables[table]
            rows = [
                [
                    None if kind == "key" or name in empty[table] else value(chance, kind)
                    for name, kind in kinds.items()
                ]
                for _ in range(chance.randrange(1, 120))
            ]
            marks = ", ".join("?" * len(kinds))
            database.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
        _change(database, chance, tables)
    return tables


def _columns(chance: random.Random) -> dict[str, str]:
    likely = ["integer"] * 6 + ["bigint", "text", "text", "real", "none", "numeric"]
    kinds = [chance.choice(likely) for _ in range(chance.randrange(1, 30))]
    if chance.random() < 0.2:
        kinds[chance.randrange(len(kinds))] = "key"
    return {f"c{number}": kind for number, kind in enumerate(kinds)}


def _change(
    database: sqlite3.Connection, chance: random.Random, tables: dict[str, dict[str, str]]
) -> None:
    """Do to a table what a plain export does not do."""
    table = chance.choice(list(tables))
    first = next(iter(tables[table]))
    match chance.randrange(14):
        case 0:
            database.execute(f"DELETE FROM {table} WHERE rowid % 7 = 3")
        case 1:
            database.execute(f"DELETE FROM {table} WHERE rowid > 20 AND rowid < 400")
        case 2:
            tables[table]["extra"] = "integer"
            default = chance.choice(["", "DEFAULT 42", "DEFAULT -1"])
            database.execute(f"ALTER TABLE {table} ADD COLUMN extra INTEGER {default}")
        case 3 if tables[table][first] != "key":
            odd = chance.choice(["'zz'", "1.5", "x'00ff'"])
            database.execute(f"UPDATE {table} SET {first} = {odd} WHERE rowid % 11 = 0")
        case 4:
            database.execute(f"UPDATE OR IGNORE {table} SET rowid = rowid * 1000 + 7")
        case 5:
            database.execute(f"UPDATE OR IGNORE {table} SET rowid = -rowid WHERE rowid < 9")
        case 6:
            database.execute(f"DELETE FROM {table}")


def by_pages(
    database: Database, table: str, columns: dict[str, ColumnType], where: Condition | None = None
) -> dict[str, Column] | None:
    """Return columns decoded from pages; None where only SQLite can read them."""
    pages = database.pages_of(table)
    if pages is None:
        return None
    try:
        return read_pages(pages, database.rows, columns, pages.leaves(), where)
    except NotPlainError:
        return None


def by_sqlite3(
    path: Path, table: str, columns: dict[str, ColumnType], where: Condition | None = None
) -> dict[str, list[Any]] | None:
    """Return what sqlite3 gives, NULL as `read_columns` has it; None where it raises."""
    told = ", ".join(_as_read(name, kind) for name, kind in columns.items())
    held = f" WHERE {where.sql}" if where else ""
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?immutable=1", uri=True)) as database:
            rows = database.execute(f"SELECT {told} FROM {table}{held}").fetchall()
    except sqlite3.Error:
        return None
    return {
        name: [_value(row[place], kind) for row in rows]
        for place, (name, kind) in enumerate(columns.items())
    }


def _as_read(name: str, kind: ColumnType) -> str:
    return {
        INTEGER: f"coalesce({name}, {np.iinfo(np.int64).min})",
        REAL: f"CAST({name} AS REAL)",
        TEXT: f"coalesce(CAST({name} AS BLOB), x'')",
    }[kind]


def _value(found: Any, kind: ColumnType) -> Any:
    if kind is TEXT:
        return found.decode("utf-8", "replace")
    return float("nan") if found in (None, NULL_REAL) else found


def same(found: dict[str, Column], expected: dict[str, list[Any]]) -> bool:
    """Return whether columns hold these values, of these very types."""
    for name, values in expected.items():
        told = list(np.asarray(found[name], object))
        if len(told) != len(values):
            return False
        if any(
            repr(a) != repr(b) or type(a) is not type(b) for a, b in zip(told, values, strict=True)
        ):
            return False
    return True


def random_condition(chance: random.Random, kinds: dict[str, str]) -> Condition | None:
    """Return a condition on some of the columns."""
    parts: list[Condition] = []
    for name, kind in chance.sample(list(kinds.items()), min(3, len(kinds))):
        if kind in ("integer", "bigint", "key"):
            some = tuple(chance.choices(EDGES, k=chance.randrange(1, 8)))
            bounds = chance.choice([None, -5, 0, 100]), chance.choice([None, 10**6, 0])
            parts.append(
                chance.choice([between(name, *bounds), is_one_of(name, some), differs(name, 0)])
            )
        elif kind == "text":
            parts.append(
                chance.choice([contains(name, ("tep", "bt")), starts_with(name, ("te", "a"))])
            )
    return chance.choice([any_of, all_of])(*parts) if parts else None
