"""Results of analyses as files of tables: Parquet, Arrow or CSV, a file for each table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from traceprof.errors import UsageError
from traceprof.export.request import Exported, Request
from traceprof.files import new_folder
from traceprof.model.results import Column, Note, Unit
from traceprof.render.csv_text import to_csv
from traceprof.render.formatting import plain, value_text
from traceprof.render.shown import ShownTable, tables_of
from traceprof.session.answer import answer
from traceprof.session.run import Run

__all__ = ["arrow_table", "write_results"]

_WHOLE = (Unit.NS, Unit.AT_NS, Unit.BYTES, Unit.COUNT, Unit.NUMBER)


def write_results(run: Run, request: Request, suffix: str, done: Exported) -> None:
    """Write the tables of the analyses that are asked for, ``kernels.kernels.parquet`` and so on.

    Raises:
        UsageError: the folder cannot be written, or none of the analyses has a result.
    """
    if request.ranks is not None:
        raise UsageError("--ranks: results tell of the whole run: name the files of these ranks")
    document = answer(run, request.results)
    for name, why in document.missing.items():
        done.remark(f"{name}: {why}")
    if not document.results:
        raise UsageError(f"nothing to write: {'; '.join(done.remarks)}")
    with new_folder(request.output) as folder:
        for name, result in document.results.items():
            for table in tables_of(result, document.ranks):
                _write(folder / f"{name}.{table.name}.{suffix}", table)
                done.n_rows += len(table)


def _write(path: Path, table: ShownTable) -> None:
    if path.suffix == ".csv":
        path.write_text(to_csv(table), "utf-8", "replace")
        return
    stored = arrow_table(table)
    if path.suffix == ".parquet":
        pq.write_table(stored, path, compression="zstd")
        return
    with pa.ipc.new_file(path, stored.schema) as writer:
        writer.write_table(stored)


def arrow_table(table: ShownTable) -> pa.Table:
    """Return a table as Arrow has it; units and meanings are in the metadata of the columns."""
    fields, arrays = [], []
    for column in table:
        values = [_value(column, value) for value in table.frame[column.name].tolist()]
        kind = _kind(column, values)
        about = {"unit": column.unit.value, "meaning": column.meaning}
        fields.append(pa.field(column.name, kind, metadata=about))
        arrays.append(pa.array(values, kind))
    schema = pa.schema(fields, {"table": table.name, "about": table.about})
    return pa.table(arrays, schema=schema)


def _value(column: Column, value: Any) -> Any:
    if isinstance(value, Note | tuple | list):
        return value_text(column.unit, value)
    found = plain(value)
    return str(found) if column.unit is Unit.TEXT and found is not None else found


def _kind(column: Column, values: list[Any]) -> pa.DataType:
    if column.unit is Unit.FLAG:
        return pa.bool_()
    if column.unit is Unit.TEXT or any(isinstance(value, str) for value in values):
        return pa.string()
    is_whole = column.unit in _WHOLE and all(
        value is None or value == int(value) for value in values
    )
    return pa.int64() if is_whole else pa.float64()
