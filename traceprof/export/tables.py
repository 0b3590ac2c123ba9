"""Export the tables of a trace, or of results, as ``parquet`` or ``arrow`` files.

traceprof can read a folder of Parquet or Arrow files as a trace. For a run of several files, the
output has one folder per file and the manifest of the run. Results are written as one file per
table.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from traceprof.export.csv_files import stream_rows, write_results
from traceprof.export.request import Export, Exported, Request
from traceprof.files import new_folder
from traceprof.formats.runs.files import is_run
from traceprof.formats.tables.folder import FolderWriter, Storage
from traceprof.model.results import Column, Note, Unit
from traceprof.model.tables import TABLES
from traceprof.render.formatting import plain, value_text
from traceprof.render.shown import ShownTable
from traceprof.session.caveats import selected
from traceprof.session.cutting import FileOfRun, files_of_run, write_manifest
from traceprof.session.material import Material
from traceprof.session.run import Run, open_run

_INTEGER_UNITS = (Unit.NS, Unit.AT_NS, Unit.BYTES, Unit.COUNT, Unit.NUMBER)


def _write_result(path: Path, table: ShownTable) -> None:
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
        write_results(run, request, storage.value, exported, _write_result)
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
        span = stream_rows(material, table_names, writer.add, exported, request)
        writer.finish(trace.info, trace.recorded & table_names, span)


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


EXPORTS: Final[Mapping[str, Export]] = {
    storage.value: partial(_export, storage=storage) for storage in Storage
}
