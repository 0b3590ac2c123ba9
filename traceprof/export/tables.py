"""``parquet``, ``arrow`` and ``csv``: tables of a trace, or of results, as files in a folder.

A folder of Parquet or Arrow files is read as a trace again; of a run of several files it is a
folder for each, with the manifest of the run. CSV is safe to open in a spreadsheet. Results are a
file for each of their tables.
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
from traceprof.export.request import Export, Exported, Request, answered, check_tables
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

_WHOLE = (Unit.NS, Unit.AT_NS, Unit.BYTES, Unit.COUNT, Unit.NUMBER)


def write_results(run: Run, request: Request, suffix: str, done: Exported) -> None:
    """Write the tables of the analyses that are asked for, ``kernels.kernels.parquet`` and so on.

    Raises:
        UsageError: the folder cannot be written, or none of the analyses has a result.
    """
    if request.ranks is not None:
        raise UsageError(
            "--ranks cannot be used with results of the whole run; give the files of these ranks"
        )
    document = answered(run, request.results, done)
    with new_folder(request.output) as folder:
        for name, result in document.results.items():
            for table in tables_of(result, document.ranks):
                _write_result(folder / f"{name}.{table.name}.{suffix}", table)
                done.n_rows += len(table)


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
    """Return a table as Arrow has it; units and meanings are in the metadata of the columns."""
    fields, arrays = [], []
    for column in table:
        values = [_value(column, value) for value in table.values[column.name].tolist()]
        kind = _kind_of(column, values)
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


def _kind_of(column: Column, values: list[Any]) -> pa.DataType:
    if column.unit is Unit.FLAG:
        return pa.bool_()
    if column.unit is Unit.TEXT or any(isinstance(value, str) for value in values):
        return pa.string()
    is_whole = column.unit in _WHOLE and all(
        value is None or value == int(value) for value in values
    )
    return pa.int64() if is_whole else pa.float64()


def _export(run: Run, request: Request, storage: Storage) -> Exported:
    done = Exported(request.output)
    if request.results:
        write_results(run, request, storage.value, done)
        return done
    with new_folder(request.output) as folder:
        if not is_run(run.paths):
            material = Material(run, request.ranks)
            _write(material, folder, storage, done, request)
            return done
        files = files_of_run(run, request.ranks)
        names = _folders(files)
        for number, file in enumerate(files):
            own = folder / names[file.path]
            own.mkdir()
            alone = open_run([file.path], run.opening)
            if run.window not in (None, "all"):
                window = file.to_file_clock(selected(run).window)
                alone = alone.within(f"@{window.start_ns}..@{window.end_ns}")
            chosen = request.ranks if len(file.ranks) > 1 else None
            material = Material(alone, chosen)
            _write(material, own, storage, done, request)
            request.progress(number + 1, len(files), "files")
        write_manifest(folder, files, request.output.name, names)
    return done


def _write(
    material: Material, folder: Path, storage: Storage, done: Exported, request: Request
) -> None:
    trace = material.ranks.parts[0]
    wanted = frozenset(TABLES if request.tables is None else request.tables)
    with FolderWriter(folder, storage) as writer:
        span = _pass_on(material, wanted, writer.add, done, request)
        writer.finish(trace.info, trace.recorded & wanted, span)


def _pass_on(
    material: Material,
    tables: Collection[str],
    add: Callable[[str, Table], None],
    done: Exported,
    request: Request,
) -> TimeWindow:
    """Pass all rows of ``tables`` to ``add``, some at a time; return the time that they cover."""
    span = material.span
    for part in material.parts(tables):
        for name, rows in part.tables.items():
            add(name, rows)
            done.n_rows += len(rows)
        span |= _extent(part, span)
        request.progress(done.n_rows, 0, "rows")
    for name in tables:
        if not TABLES[name].has_times:
            rows = material.ranks.table(name)
            add(name, rows)
            done.n_rows += len(rows)
    return span


def _extent(part: Portion, span: TimeWindow) -> TimeWindow:
    """Return when the first row begins and the last one ends; ``span`` without rows."""
    filled = {name: rows for name, rows in part.tables.items() if len(rows)}
    starts = [int(rows["start_ns"][0]) for rows in filled.values()]
    ends = [
        int(rows["end_ns" if TABLES[name].has_spans else "start_ns"].max())
        for name, rows in filled.items()
    ]
    return TimeWindow(min(starts, default=span.start_ns), max(ends, default=span.end_ns))


def _folders(files: list[FileOfRun]) -> dict[Path, str]:
    """Return what the folder of each file is called: as the file, without its suffixes."""
    names: dict[Path, str] = {}
    for file in files:
        stem = file.path.name.split(".")[0] or "trace"
        name, number = stem, 2
        while name in names.values():
            name, number = f"{stem}-{number}", number + 1
        names[file.path] = name
    return names


def _export_csv(run: Run, request: Request) -> Exported:
    done = Exported(request.output)
    if request.results:
        write_results(run, request, "csv", done)
        return done
    names = check_tables(request.tables)
    material = Material(run, request.ranks)
    if len(names) == 1 and request.tables is not None:
        with new_file(request.output, force=request.force, inputs=run.paths) as target:
            _write_csv(material, {names[0]: target}, done, request)
    else:
        with new_folder(request.output) as folder:
            _write_csv(material, {name: folder / f"{name}.csv" for name in names}, done, request)
    return done


def _write_csv(
    material: Material, files: Mapping[str, Path], done: Exported, request: Request
) -> None:
    with ExitStack() as stack:
        writers = {name: _CsvTable(name, path, stack) for name, path in files.items()}
        _pass_on(material, files, lambda name, rows: writers[name].add(rows), done, request)


@dataclass
class _CsvTable:
    """A table that is being written: its file, which has the header from the beginning."""

    name: str
    path: Path
    stack: ExitStack

    def __post_init__(self) -> None:
        kinds = {one.name: one.type for one in schema_of(self.name)}
        is_name = pa.types.is_dictionary
        schema = pa.schema({n: pa.string() if is_name(kind) else kind for n, kind in kinds.items()})
        options = pc.WriteOptions(quoting_style="needed")
        self.writer: Any = self.stack.enter_context(
            pc.CSVWriter(self.path, schema, write_options=options)
        )
        self.schema = schema

    def add(self, table: Table) -> None:
        """Append rows."""
        for first in range(0, len(table), 1 << 17):
            rows = _with_cells(self.name, table.take(slice(first, first + (1 << 17))))
            kinds = TABLES[self.name].columns
            names = {
                column: ColumnNames() for column, kind in kinds.items() if kind is ColumnKind.NAME
            }
            self.writer.write(pa.table(batch_of(self.name, rows, names)).cast(self.schema))


def _with_cells(name: str, rows: Table) -> Table:
    """Return rows whose texts are cells of CSV (`csv_cell`)."""
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
