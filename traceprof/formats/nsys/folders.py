"""The tables of a folder that nsys exported, put into a SQLite export of their own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import adbc_driver_manager
import adbc_driver_sqlite.dbapi
import pyarrow as pa
import pyarrow.parquet as pq

from traceprof.errors import TraceError
from traceprof.formats.shared.files import TABLE_FILES


@contextmanager
def as_database(folder: Path) -> Iterator[Path]:
    """Give the tables as a SQLite export, for as long as the context lasts.

    Raises:
        TraceError: a table cannot be read, or there is no room for the database.
    """
    with tempfile.TemporaryDirectory(prefix="traceprof-") as name:
        database = Path(name, "export.sqlite")
        with adbc_driver_sqlite.dbapi.connect(str(database), autocommit=True) as connection:
            for file in sorted(folder.iterdir()):
                if file.suffix in TABLE_FILES and file.is_file():
                    _copy_table(file, connection)
        yield database


def _copy_table(file: Path, connection: adbc_driver_sqlite.dbapi.Connection) -> None:
    try:
        with _opened(file) as (stored, batches), connection.cursor() as cursor:
            schema = pa.schema([pa.field(one.name, _stored_as(one.type)) for one in stored])
            # SQLite has signed numbers only: what is above wraps round in its exports, too.
            parts = (
                pa.RecordBatch.from_arrays(
                    [
                        each.cast(of, safe=False)
                        for each, of in zip(batch.columns, schema.types, strict=True)
                    ],
                    schema=schema,
                )
                for batch in batches
            )
            reader = pa.RecordBatchReader.from_batches(schema, parts)
            cursor.adbc_ingest(file.stem, reader, mode="create")
    except (OSError, pa.ArrowException, adbc_driver_manager.Error) as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TraceError(f"{file}: cannot be read ({why}); export it again with nsys") from error


@contextmanager
def _opened(file: Path) -> Iterator[tuple[pa.Schema, Iterable[pa.RecordBatch]]]:
    """Give the columns of a table, and its rows."""
    if file.suffix == ".parquet":
        with pq.ParquetFile(file) as table:
            yield table.schema_arrow, table.iter_batches()
    else:
        with pa.memory_map(str(file)) as source, pa.ipc.open_stream(source) as stream:
            yield stream.schema, stream


def _stored_as(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return pa.int64()
    if pa.types.is_floating(kind):
        return pa.float64()
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.binary()
    return pa.string()
