"""Copy the tables of a folder that nsys exported into a temporary SQLite export."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from traceprof.errors import TraceError
from traceprof.formats.shared.files import TABLE_FILES
from traceprof.formats.sqlite.schema import quoted


@contextmanager
def as_database(folder: Path) -> Iterator[Path]:
    """Give the tables of ``folder`` as a temporary SQLite export; leaving the context deletes it.

    Raises:
        TraceError: a table cannot be read, or there is no space for the database.
    """
    with tempfile.TemporaryDirectory(prefix="traceprof-") as name:
        database = Path(name, "export.sqlite")
        with closing(sqlite3.connect(database)) as connection, connection:
            for file in sorted(folder.iterdir()):
                if file.suffix in TABLE_FILES and file.is_file():
                    _copy_table(file, connection)
        yield database


def _copy_table(file: Path, connection: sqlite3.Connection) -> None:
    """Copy the table in ``file`` into a database.

    Raises:
        TraceError: the table cannot be read.
    """
    try:
        with _opened(file) as (stored, batches):
            types = [_sqlite_type(field.type) for field in stored]
            columns = ", ".join(
                f"{quoted(field.name)} {name}"
                for field, (_, name) in zip(stored, types, strict=True)
            )
            connection.execute(f"CREATE TABLE {quoted(file.stem)} ({columns})")
            insert = f"INSERT INTO {quoted(file.stem)} VALUES ({', '.join('?' * len(types))})"
            for batch in batches:
                # SQLite integers are signed: larger ones wrap around, as in nsys's SQLite exports.
                values = [
                    column.cast(dtype, safe=False).to_pylist()
                    for column, (dtype, _) in zip(batch.columns, types, strict=True)
                ]
                connection.executemany(insert, zip(*values, strict=True))
    except (OSError, pa.ArrowException, sqlite3.Error) as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TraceError(f"{file}: cannot be read ({why}); export it again with nsys") from error


@contextmanager
def _opened(file: Path) -> Iterator[tuple[pa.Schema, Iterable[pa.RecordBatch]]]:
    """Give the schema of a table and its batches of rows."""
    if file.suffix == ".parquet":
        with pq.ParquetFile(file) as table:
            yield table.schema_arrow, table.iter_batches()
    else:
        with pa.memory_map(str(file)) as source, pa.ipc.open_stream(source) as stream:
            yield stream.schema, stream


def _sqlite_type(dtype: pa.DataType) -> tuple[pa.DataType, str]:
    """Return the Arrow type in which SQLite stores values of ``dtype``, and SQLite's name of it."""
    if pa.types.is_integer(dtype) or pa.types.is_boolean(dtype):
        return pa.int64(), "INTEGER"
    if pa.types.is_floating(dtype):
        return pa.float64(), "REAL"
    if pa.types.is_binary(dtype) or pa.types.is_large_binary(dtype):
        return pa.binary(), "BLOB"
    return pa.string(), "TEXT"
