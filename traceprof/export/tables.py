"""Export the tables of a trace, or of results, as ``parquet``, ``arrow``, or ``csv`` files.

traceprof can read a folder of Parquet or Arrow files as a trace. For a run of several files, the
output has one folder per file and the manifest of the run. CSV is safe to open in a spreadsheet.
Results are written as one file per table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

from traceprof.errors import UsageError
from traceprof.export.request import Export, Exported, Request, answer_analyses, check_tables
from traceprof.files import new_file, new_folder
from traceprof.formats.runs.files import is_run
from traceprof.formats.shared.redaction import renamed
from traceprof.formats.tables.columns import ColumnNames, batch_of, schema_of
from traceprof.formats.tables.folder import FolderWriter, Storage
from traceprof.model.results import Column, Note, Unit
from traceprof.model.table import Table
from traceprof.model.tables import TABLES, ColumnKind
from traceprof.model.timing import TimeWindow
from traceprof.render.formatting import plain, value_text
from traceprof.render.shown import ShownTable, tables_of
from traceprof.render.tables_text import csv_cell, to_csv
from traceprof.session.caveats import selected
from traceprof.session.cutting import FileOfRun, files_of_run, write_manifest
from traceprof.session.material import Material, Portion
from traceprof.session.run import Run, open_run

_INTEGER_UNITS = (Unit.NS, Unit.AT_NS, Unit.BYTES, Unit.COUNT, Unit.NUMBER)


def write_results(run: Run, request: Request, suffix: str, exported: Exported) -> None:
    """Write each table of the requested analyses to a file, such as ``kernels.kernels.parquet``.

    Raises:
        UsageError: the folder cannot be written, no analysis has a result, or ranks were selected.
    """
    if request.ranks is not None:
        raise UsageError(
            "--ranks cannot be used with results of the whole run; give the files of these ranks"
        )
    document = answer_analyses(run, request.results, exported)
    with new_folder(request.output) as folder:
        for name, result in document.results.items():
            for table in tables_of(result, document.ranks):
                _write_result(folder / f"{name}.{table.name}.{suffix}", table)
                exported.n_rows += len(table)


def _write_result(path: Path, table: ShownTable) -> None:
    if path.suffix == ".csv":
        path.write_text(to_csv(table), "utf-8", newline="")
        return
    stored = arrow_table(table)
    if path.suffix == ".parquet":
        pq.write_table(stored, path, compression="zstd")
        return
    with pa.ipc.new_file(path, stored.schema) as writer:
        writer.write_table(stored)


def arrow_table(table: ShownTable) -> pa.Table:
    """Return an Arrow table. The metadata of the columns contain their units and meanings."""
    fields, arrays = [], []
    for column in table:
        values = [_stored_value(column, value) for value in table.values[column.name].tolist()]
        kind = _arrow_type(column, values)
        metadata = {"unit": column.unit.value, "meaning": column.meaning}
        fields.append(pa.field(column.name, kind, metadata=metadata))
        arrays.append(pa.array(values, kind))
    schema = pa.schema(fields, {"table": table.name, "about": table.about})
    return pa.table(arrays, schema=schema)


def _stored_value(column: Column, value: Any) -> Any:
    """Return the value of a cell as Arrow stores it: notes and tuples as text."""
    if isinstance(value, Note | tuple | list):
        return value_text(column.unit, value)
    stored = plain(value)
    return str(stored) if column.unit is Unit.TEXT and stored is not None else stored


def _arrow_type(column: Column, values: list[Any]) -> pa.DataType:
    """Return the Arrow type of a column. Counts with fractions are stored as floats."""
    if column.unit is Unit.FLAG:
        return pa.bool_()
    if column.unit is Unit.TEXT or any(isinstance(value, str) for value in values):
        return pa.string()
    is_whole = column.unit in _INTEGER_UNITS and all(
        value is None or value == int(value) for value in values
    )
    return pa.int64() if is_whole else pa.float64()


def _export(run: Run, request: Request, storage: Storage) -> Exported:
    exported = Exported(request.output)
    if request.results:
        write_results(run, request, storage.value, exported)
        return exported
    with new_folder(request.output) as folder:
        if not is_run(run.paths):
            _write(Material(run, request.ranks), folder, storage, exported, request)
            return exported
        files = files_of_run(run, request.ranks)
        names = _folder_names(files)
        for number, file in enumerate(files):
            file_folder = folder / names[file.path]
            file_folder.mkdir()
            file_run = open_run([file.path], run.opening)
            if run.window not in (None, "all"):
                window = file.to_file_clock(selected(run).window)
                file_run = file_run.within(f"@{window.start_ns}..@{window.end_ns}")
            ranks = request.ranks if len(file.ranks) > 1 else None
            _write(Material(file_run, ranks), file_folder, storage, exported, request)
            request.progress(number + 1, len(files), "files")
        write_manifest(folder, files, request.output.name, names)
    return exported


def _write(
    material: Material, folder: Path, storage: Storage, exported: Exported, request: Request
) -> None:
    """Write the requested tables of one trace to ``folder``, and count the rows in ``exported``."""
    trace = material.ranks.parts[0]
    table_names = frozenset(TABLES if request.tables is None else request.tables)
    with FolderWriter(folder, storage) as writer:
        span = _stream_rows(material, table_names, writer.add, exported, request)
        writer.finish(trace.info, trace.recorded & table_names, span)


def _stream_rows(
    material: Material,
    tables: Collection[str],
    add: Callable[[str, Table], None],
    exported: Exported,
    request: Request,
) -> TimeWindow:
    """Pass all rows of ``tables`` to ``add`` in parts, and return the time span of the rows.

    ``add`` gets the name of a table and some of its rows.
    """
    span = material.span
    for part in material.parts(tables):
        for name, rows in part.tables.items():
            add(name, rows)
            exported.n_rows += len(rows)
        span |= _covered_time(part, span)
        request.progress(exported.n_rows, 0, "rows")
    for name in tables:
        if not TABLES[name].has_times:
            rows = material.ranks.table(name)
            add(name, rows)
            exported.n_rows += len(rows)
    return span


def _covered_time(part: Portion, span: TimeWindow) -> TimeWindow:
    """Return the time from the first start to the last end of the rows; ``span`` without rows."""
    filled = {name: rows for name, rows in part.tables.items() if len(rows)}
    starts = [int(rows["start_ns"][0]) for rows in filled.values()]
    ends = [
        int(rows["end_ns" if TABLES[name].has_spans else "start_ns"].max())
        for name, rows in filled.items()
    ]
    return TimeWindow(min(starts, default=span.start_ns), max(ends, default=span.end_ns))


def _folder_names(files: list[FileOfRun]) -> dict[Path, str]:
    """Return a distinct folder name for each file: the name of the file without its suffixes."""
    names: dict[Path, str] = {}
    for file in files:
        stem = file.path.name.split(".")[0] or "trace"
        name, number = stem, 2
        while name in names.values():
            name, number = f"{stem}-{number}", number + 1
        names[file.path] = name
    return names


def _export_csv(run: Run, request: Request) -> Exported:
    exported = Exported(request.output)
    if request.results:
        write_results(run, request, "csv", exported)
        return exported
    names = check_tables(request.tables)
    material = Material(run, request.ranks)
    if len(names) == 1 and request.tables is not None:
        with new_file(request.output, force=request.force, inputs=run.paths) as target:
            _write_csv(material, {names[0]: target}, exported, request)
    else:
        with new_folder(request.output) as folder:
            _write_csv(
                material, {name: folder / f"{name}.csv" for name in names}, exported, request
            )
    return exported


def _write_csv(
    material: Material, files: Mapping[str, Path], exported: Exported, request: Request
) -> None:
    with ExitStack() as stack:
        writers = {name: _CsvTable(name, path, stack) for name, path in files.items()}
        _stream_rows(material, files, lambda name, rows: writers[name].add(rows), exported, request)


@dataclass
class _CsvTable:
    """A CSV file to which rows of a table are appended. The header is written first."""

    name: str
    path: Path
    stack: ExitStack

    def __post_init__(self) -> None:
        # Dictionary-encoded names become strings.
        self.schema = pa.schema(
            {
                field.name: pa.string() if pa.types.is_dictionary(field.type) else field.type
                for field in schema_of(self.name)
            }
        )
        options = pc.WriteOptions(quoting_style="needed")
        self.writer: Any = self.stack.enter_context(
            pc.CSVWriter(self.path, self.schema, write_options=options)
        )

    def add(self, table: Table) -> None:
        """Append rows."""
        for first in range(0, len(table), 1 << 17):
            rows = _escape_cells(self.name, table.take(slice(first, first + (1 << 17))))
            kinds = TABLES[self.name].columns
            names = {
                column: ColumnNames() for column, kind in kinds.items() if kind is ColumnKind.NAME
            }
            self.writer.write(pa.table(batch_of(self.name, rows, names)).cast(self.schema))


def _escape_cells(name: str, rows: Table) -> Table:
    """Return the rows with all texts escaped for CSV by `csv_cell`."""
    changes: dict[str, Any] = {}
    for column, kind in TABLES[name].columns.items():
        if kind is ColumnKind.NAME:
            changes[column] = renamed(rows[column].used(), csv_cell)
        elif kind is ColumnKind.TEXT:
            changes[column] = list(map(csv_cell, rows[column].tolist()))
    return rows.assign(**changes)


EXPORTS: Final[Mapping[str, Export]] = {
    "csv": _export_csv,
    **{storage.value: partial(_export, storage=storage) for storage in Storage},
}
