"""One execution in every format, rewritten in ways that keep it valid: the answers stay the same.

It holds what every format has a place for: kernels, copies, memsets, calls and ranges of a process.
Of the rest nvprof has no operators, samples and sizes of collectives, Kineto no domains of ranges
and no marks, and whatever a format cannot tell the analyses call not recorded.
"""

from __future__ import annotations

import gzip
import json
import random
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq

from tests.builders import TraceBuilder
from tests.formats.test_contract import (
    EPOCH,
    NCCL,
    ON_MAIN,
    write_as_kineto,
    write_as_nvprof,
    write_as_tables,
)
from traceprof.formats.nsys.writer import write_nsys
from traceprof.model.ranks import Ranks
from traceprof.model.trace import Trace
from traceprof.render.registry import render
from traceprof.session.answer import answer
from traceprof.session.run import run_of

ASKED: Final = (
    "breakdown",
    "kernels",
    "copies",
    "ranges",
    "range-work",
    "steps",
    "idle",
    "streams",
)
"""What is asked of each form, of all of the trace."""
_NAMES: Final = ("ampere_sgemm_64x64_tn", "void add<float, 4>(int)", "größe", 'a/b "c"', NCCL)
_SLOT_NS: Final = 1_000


def execution(rng: random.Random) -> Trace:
    """Return steps with ranges, calls, kernels, copies and a wait, at whole microseconds apart."""
    builder, end = TraceBuilder(), 0
    for step in range(rng.randint(2, 4)):
        start = end
        at = start + 100
        for _ in range(rng.randint(1, 5)):
            at = _work(builder, rng, at)
        builder.range(rng.choice(("forward", "größe", 'say "so"')), start + 10, at, **ON_MAIN)
        builder.api_call("cudaDeviceSynchronize", at, at + rng.randint(1, 900), **ON_MAIN)
        end = at + 1_000
        builder.range(f"step {step}", start, end, **ON_MAIN)
    return builder.build()


def _work(builder: TraceBuilder, rng: random.Random, at: int) -> int:
    """Add one operation of a device, launched at ``at``; return when the next may be launched."""
    begin = at + rng.randint(100, 900)
    end = begin + rng.randint(1, 5 * _SLOT_NS)
    place: dict[str, Any] = {"stream": rng.choice((7, 20)), "device": rng.choice((0, 0, 1))}
    place |= {"launched_ns": (at, at + rng.randint(1, 90)), **ON_MAIN}
    kind = rng.choice(("kernel", "kernel", "kernel", "h2d", "d2h", "memset"))
    if kind == "kernel":
        builder.kernel(rng.choice(_NAMES), begin, end, **place)
    elif kind == "memset":
        builder.memset(begin, end, n_bytes=rng.randint(1, 1 << 30), **place)
    else:
        builder.copy(kind, begin, end, n_bytes=rng.randint(1, 1 << 30), **place)
    return at + rng.randint(100, 2 * _SLOT_NS)


def _as_old_nsys(trace: Trace, path: Path) -> None:
    """Write an export as nsys of 2021 has it: no tables of ours, texts in the rows."""
    write_nsys(trace, path)
    with closing(sqlite3.connect(path)) as database, database:
        tables = _tables(database)
        for table in tables:
            if table.startswith(("TRACEPROF_", "ENUM_")) or table == "META_DATA_EXPORT":
                database.execute(f'DROP TABLE "{table}"')
        database.execute(
            "UPDATE NVTX_EVENTS SET text = (SELECT value FROM StringIds WHERE id = textId),"
            " textId = NULL WHERE text IS NULL"
        )
        for table in _tables(database):
            for column in ("greenContextId", "graphNodeId", "graphId", "jsonTextId"):
                if column in _columns(database, table):
                    database.execute(f'ALTER TABLE "{table}" DROP COLUMN "{column}"')


FORMS: Final[Mapping[str, Callable[[Trace, Path], None]]] = {
    "nsys": write_nsys,
    "old_nsys": _as_old_nsys,
    "nvprof": write_as_nvprof,
    "kineto": write_as_kineto,
    "tables": write_as_tables,
}


def written(trace: Trace, form: str, path: Path, rng: random.Random, n_changes: int) -> list[str]:
    """Write ``trace`` to ``path`` in a form, changed so often; return what was done to it."""
    FORMS[form](trace, path)
    changes = _OF_JSON if form == "kineto" else _OF_TABLES if form == "tables" else _OF_SQL
    chosen = rng.choices(changes, k=n_changes)
    # What packs a file comes last: the others would not open it.
    chosen = [one for one in chosen if one is not _packed] + [_packed] * (_packed in chosen)
    if form == "kineto":
        _change_json(path, chosen, rng)
    for change in chosen if form != "kineto" else ():
        change(path, rng)
    return [change.__name__.strip("_") for change in chosen]


def wrong_answers(trace: Trace, printed: str) -> list[str]:
    """Return which of the answers, printed as JSON, are not those about ``trace`` itself."""
    answers = answer(run_of(Ranks.of(trace)).within("all"), ASKED)
    expected, found = (_values(json.loads(text)) for text in (render("json", answers), printed))
    return [
        f"{name}: {found.get(name)} instead of {expected.get(name)}"
        for name in expected.keys() | found.keys()
        if expected.get(name) != found.get(name)
    ]


def _values(document: dict[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {"not recorded": document["not_recorded"]}
    for analysis, result in document["results"].items():
        values[analysis] = result.get("scalars")
        for table, own in result["tables"].items():
            values[f"{analysis}.{table}"] = own["rows"]
    return values


# --- SQLite


def _tables(database: sqlite3.Connection) -> list[str]:
    told = database.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
    return [name for (name,) in told.fetchall()]


def _columns(database: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in database.execute(f'PRAGMA table_info("{table}")')]


def _rows_in_another_order(path: Path, rng: random.Random) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        for table in _tables(database):
            rows = database.execute(f'SELECT * FROM "{table}"').fetchall()
            if "_MARKER" in table or not rows:  # nvprof pairs markers in their order
                continue
            rng.shuffle(rows)
            database.execute(f'DELETE FROM "{table}"')
            marks = ", ".join("?" * len(rows[0]))
            database.executemany(f'INSERT INTO "{table}" VALUES ({marks})', rows)


def _other_numbers_of_launches(path: Path, rng: random.Random) -> None:
    added = rng.choice((1, 1000, 2**31 - 1000))
    with closing(sqlite3.connect(path)) as database, database:
        for table in _tables(database):
            if "correlationId" in _columns(database, table):
                database.execute(
                    f'UPDATE "{table}" SET correlationId = correlationId + ?'
                    " WHERE correlationId > 0",
                    [added],
                )


_STRINGS: Final = {"StringIds": "id", "StringTable": "_id_"}
_REFERENCES: Final = frozenset(
    {
        "nameId",
        "textId",
        "demangledName",
        "shortName",
        "mangledName",
        "name",
        "domain",
        "jsonTextId",
    }
)


def _other_numbers_of_strings(path: Path, rng: random.Random) -> None:
    """Number texts otherwise; some have several numbers."""
    with closing(sqlite3.connect(path)) as database, database:
        tables = _tables(database)
        strings = next(table for table in tables if table in _STRINGS)
        key = _STRINGS[strings]
        texts = dict(database.execute(f"SELECT {key}, value FROM {strings}").fetchall())
        kept = {0} if strings == "StringTable" else set()  # nvprof's 0 is "no string"
        free = list(range(1, 3 * len(texts) + 2))
        rng.shuffle(free)
        own = {old: [old] if old in kept else [free.pop() for _ in "ab"] for old in texts}
        database.execute(f"DELETE FROM {strings}")
        for old, numbers in own.items():
            rows = [(number, texts[old]) for number in numbers]
            database.executemany(f"INSERT INTO {strings} ({key}, value) VALUES (?, ?)", rows)
        for table in tables:
            for column in _REFERENCES & {*_columns(database, table)} if table != strings else ():
                told = database.execute(f'SELECT rowid, "{column}" FROM "{table}"').fetchall()
                moved = [(rng.choice(own[n]), row) for row, n in told if n in own]
                if all(isinstance(n, int | None) for _, n in told):
                    sql = f'UPDATE "{table}" SET "{column}" = ? WHERE rowid = ?'
                    database.executemany(sql, moved)


def _another_time(path: Path, rng: random.Random) -> None:
    """Let everything happen later."""
    later = rng.choice((1, 999, 10**9, 3 * 10**17))
    with closing(sqlite3.connect(path)) as database, database:
        for table in _tables(database):
            for column in {"start", "end", "timestamp"} & {*_columns(database, table)}:
                database.execute(
                    f'UPDATE "{table}" SET "{column}" = "{column}" + ?'
                    f' WHERE "{column}" IS NOT NULL',
                    [later],
                )


def _unheard_things(path: Path, rng: random.Random) -> None:
    """Add columns, tables, indexes and a view that nobody knows."""
    with closing(sqlite3.connect(path)) as database, database:
        for table in rng.sample(_tables(database), 2):
            if table not in _STRINGS and "of 2030" not in _columns(database, table):
                database.execute(f'ALTER TABLE "{table}" ADD COLUMN "of 2030" TEXT DEFAULT \'x\'')
        database.execute('CREATE TABLE IF NOT EXISTS "of 2030" (start INT, "end" INT, what BLOB)')
        database.execute(
            'INSERT INTO "of 2030" (start, "end", what) '
            "VALUES (-5, 9223372036854775807, zeroblob(99))"
        )
        database.execute('CREATE INDEX IF NOT EXISTS "by 2030" ON "of 2030" (what)')
        database.execute('CREATE VIEW IF NOT EXISTS "seen 2030" AS SELECT * FROM "of 2030"')


def _other_pages(path: Path, rng: random.Random) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode = DELETE").fetchall()
        database.execute(f"PRAGMA page_size = {rng.choice((512, 1024, 8192, 65536))}")
        database.execute(f"PRAGMA auto_vacuum = {rng.choice((0, 1, 2))}")
        database.execute("VACUUM")


def _logged_ahead(path: Path, rng: random.Random) -> None:
    """Write it with a log, of which all is in the file."""
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode = WAL").fetchall()
        with database:
            database.execute(f"CREATE TABLE IF NOT EXISTS later{rng.randrange(9)} (a INT)")
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _packed(path: Path, rng: random.Random) -> None:
    path.write_bytes(gzip.compress(path.read_bytes(), rng.choice((1, 9))))


# --- JSON: each changes the document, and how it is written


def _change_json(path: Path, chosen: list[Callable[..., Any]], rng: random.Random) -> None:
    # Times are texts here, so that no digit is lost.
    document = json.loads(path.read_text("utf-8"), parse_float=_Digits)
    layout: dict[str, Any] = {}
    packs = _packed in chosen
    for change in chosen:
        if change is not _packed:
            document = change(document, layout, rng)
    text = json.dumps(_with_marks(document), **layout)
    text = text.replace('"\\u0001', "").replace('\\u0001"', "")
    path.write_text(text, "utf-8")
    if packs:
        _packed(path, rng)


class _Digits(str):
    """A number as it is written."""

    __slots__ = ()


def _with_marks(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_marks(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_with_marks(one) for one in value]
    return f"\x01{value}\x01" if isinstance(value, _Digits) else value


def _events(document: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (
        document if isinstance(document, list) else document["traceEvents"]
    )
    return found


def _events_in_another_order(document: Any, _: dict[str, Any], rng: random.Random) -> Any:
    rng.shuffle(_events(document))
    return document


def _keys_in_another_order(document: Any, _: dict[str, Any], rng: random.Random) -> Any:
    def mixed(value: Any) -> Any:
        if isinstance(value, list):
            return [mixed(one) for one in value]
        if not isinstance(value, dict):
            return value
        keys = list(value)
        rng.shuffle(keys)
        return {key: mixed(value[key]) for key in keys}

    return mixed(document)


def _other_spaces(document: Any, layout: dict[str, Any], rng: random.Random) -> Any:
    layout["indent"] = rng.choice((None, 0, 3, "\t"))
    layout["separators"] = rng.choice(((",", ":"), (" , ", " : "), (",\r\n", ":")))
    layout["ensure_ascii"] = rng.random() < 0.5
    return document


def _events_alone(document: Any, _: dict[str, Any], rng: random.Random) -> Any:
    """Keep the list alone, as its oldest writers had it; without what its times count from."""
    del rng
    return _events(document)


def _unheard_events(document: Any, _: dict[str, Any], rng: random.Random) -> Any:
    events = _events(document)
    more: list[dict[str, Any]] = [
        {"ph": "s", "id": 7, "pid": 1, "tid": 1, "ts": 1, "cat": "ac2g", "name": "ac2g"},
        {"ph": "C", "name": "of 2030", "ts": 5, "pid": 1, "args": {"value": [1.5, None]}},
        {"ph": "M", "name": "of 2030", "pid": 1, "args": {"name": {"a": []}}},
        {"ph": "X", "cat": "of 2030", "name": "new", "ts": 50, "dur": 1, "pid": 9, "tid": "t"},
        {"ph": "of 2030"},
    ]
    for event in more:
        events.insert(rng.randrange(len(events) + 1), event)
    for event in rng.sample(events, len(events) // 2):
        event["of 2030"] = {"deep": [[1.25, "\u00e9"]]}
    if isinstance(document, dict):
        document["of 2030"] = [{"any": None}]
    return document


def _another_base(document: Any, _: dict[str, Any], rng: random.Random) -> Any:
    if isinstance(document, dict):
        document["baseTimeNanoseconds"] = EPOCH + rng.choice((0, 1, 10**9))
        document["displayTimeUnit"] = rng.choice(("ms", "ns"))
    return document


_OF_2021: Final = {
    "kernel": "Kernel",
    "gpu_memcpy": "Memcpy",
    "gpu_memset": "Memset",
    "cuda_runtime": "Runtime",
    "cpu_op": "Operator",
}
_OF_OTHERS: Final = tuple(
    {"cuda_runtime": f"{of}_runtime"} for of in ("hip", "xpu", "privateuse1", "mtia")
)


def _another_writer(document: Any, _: dict[str, Any], rng: random.Random) -> Any:
    """Call things as the Kineto of 2021 did, or that of AMD, Intel and others does."""
    names = rng.choice((_OF_2021, *_OF_OTHERS))
    for event in _events(document):
        event["cat"] = names.get(event.get("cat", ""), event.get("cat", ""))
    return document


def _numbers_as_texts(document: Any, _: dict[str, Any], rng: random.Random) -> Any:
    for event in _events(document):
        own = event.get("args")
        for key in ("device", "stream", "correlation", "bytes") if isinstance(own, dict) else ():
            if isinstance(own.get(key), int) and rng.random() < 0.3:
                own[key] = str(own[key])
    return document


# --- folders of tables


def _other_parquet(path: Path, rng: random.Random) -> None:
    for file in path.glob("*.parquet"):
        table = pq.read_table(file)
        pq.write_table(
            table,
            file,
            row_group_size=rng.choice((1, 3, 1 << 20)),
            compression=rng.choice(("none", "snappy", "zstd")),
            use_dictionary=rng.random() < 0.5,
        )


_OF_SQL: Final = (
    *(_rows_in_another_order, _other_numbers_of_launches, _other_numbers_of_strings),
    *(_another_time, _unheard_things, _other_pages, _logged_ahead, _packed),
)
_OF_JSON: Final = (
    *(_events_in_another_order, _keys_in_another_order, _other_spaces, _events_alone),
    *(_unheard_events, _another_base, _numbers_as_texts, _another_writer, _packed),
)
_OF_TABLES: Final = (_other_parquet,)
