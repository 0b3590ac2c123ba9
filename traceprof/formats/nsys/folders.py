"""Copy the tables of a folder that nsys exported into a temporary SQLite export."""

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
    """Give the tables of ``folder`` as a temporary SQLite export; leaving the context deletes it.

    Raises:
        TraceError: a table cannot be read, or there is no space for the database.
    """
    with tempfile.TemporaryDirectory(prefix="traceprof-") as name:
        database = Path(name, "export.sqlite")
        with adbc_driver_sqlite.dbapi.connect(str(database), autocommit=True) as connection:
            for file in sorted(folder.iterdir()):
                if file.suffix in TABLE_FILES and file.is_file():
                    _copy_table(file, connection)
        yield database


def _copy_table(file: Path, connection: adbc_driver_sqlite.dbapi.Connection) -> None:
    """Copy the table in ``file`` into a database.

    Raises:
        TraceError: the table cannot be read.
    """
    try:
        with _opened(file) as (stored, batches), connection.cursor() as cursor:
            schema = pa.schema([pa.field(field.name, _sqlite_type(field.type)) for field in stored])
            # SQLite integers are signed: larger ones wrap around, as in nsys's SQLite exports.
            parts = (
                pa.RecordBatch.from_arrays(
                    [
                        column.cast(dtype, safe=False)
                        for column, dtype in zip(batch.columns, schema.types, strict=True)
                    ],
                    schema=schema,
                )
                for batch in batches
            )
            cursor.adbc_ingest(
                file.stem, pa.RecordBatchReader.from_batches(schema, parts), mode="create"
            )
    except (OSError, pa.ArrowException, adbc_driver_manager.Error) as error:
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


def _sqlite_type(dtype: pa.DataType) -> pa.DataType:
    """Return the Arrow type in which SQLite stores values of ``dtype``."""
    if pa.types.is_integer(dtype) or pa.types.is_boolean(dtype):
        return pa.int64()
    if pa.types.is_floating(dtype):
        return pa.float64()
    if pa.types.is_binary(dtype) or pa.types.is_large_binary(dtype):
        return pa.binary()
    return pa.string()
