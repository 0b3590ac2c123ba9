"""Read columns of any SQL query from SQLite through Arrow.

This path reads every SQLite file, including those whose pages traceprof cannot decode itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import adbc_driver_manager
import adbc_driver_sqlite.dbapi as adbc
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from traceprof.errors import TraceError
from traceprof.formats.sqlite import columns as cells
from traceprof.formats.sqlite.spare import MistypedColumnError
from traceprof.model.table import Column, Names
from traceprof.processes import map_in_threads

_BATCH_ROWS: Final = 65_536


def stream_columns(
    path: Path, uri: str, queries: Sequence[str], kinds: Mapping[str, cells.ColumnType], table: str
) -> dict[str, Column]:
    """Return the columns of the rows of all ``queries``, which run in parallel.

    The queries return columns of these ``kinds``, in this order, without NULL. ``path`` and
    ``table`` are used in error messages.

    Raises:
        TraceError: the data is damaged, or a column of whole numbers contains other values.
    """
    streamed = map_in_threads(
        lambda sql: list(_stream(path, uri, sql)), queries, n_threads=len(queries)
    )
    batches = [batch for batches in streamed for batch in batches]
    return {
        name: _to_column(path, table, name, kind, [batch.column(place) for batch in batches])
        for place, (name, kind) in enumerate(kinds.items())
    }


def _stream(path: Path, uri: str, sql: str) -> Iterator[pa.RecordBatch]:
    try:
        with closing(adbc.connect(uri)) as connection, closing(connection.cursor()) as cursor:
            cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": str(_BATCH_ROWS)})
            cursor.execute(sql)
            yield from cursor.fetch_record_batch()
    except (adbc_driver_manager.Error, pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise TraceError(f"{path}: cannot be read ({reason})") from error


def _to_column(
    path: Path, table: str, name: str, kind: cells.ColumnType, parts: Sequence[pa.Array]
) -> Column:
    column = pa.chunked_array(parts) if parts else None
    if column is None or len(column) == 0:
        return cells.all_null(kind, 0)
    if kind is cells.ColumnType.TEXT:
        return _names_of(column)
    if kind is cells.ColumnType.INTEGER:
        if not pa.types.is_integer(column.type):
            raise MistypedColumnError(path, table, name)
        return np.asarray(column.to_numpy(), np.int64)
    values = np.array(column.to_numpy(), np.float64)
    values[values == cells.NULL_REAL] = np.nan
    return values


def _names_of(column: pa.ChunkedArray) -> Column:
    if not pa.types.is_binary(column.type):  # the type that ADBC uses for a result without rows
        return cells.all_null(cells.ColumnType.TEXT, len(column))
    encoded = pc.dictionary_encode(column).unify_dictionaries()
    names = cells.all_decoded(encoded.chunk(0).dictionary.to_pylist())
    codes = np.concatenate([chunk.indices.to_numpy() for chunk in encoded.chunks])
    return Names.coded(names, codes, is_sorted=True)
