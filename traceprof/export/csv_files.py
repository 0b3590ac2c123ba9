"""Export the tables of a trace, or of results, as ``csv`` files that are safe in a spreadsheet.

The module needs no optional library. The exports to Parquet and Arrow use its functions.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import numpy as np

from traceprof.errors import UsageError
from traceprof.export.request import Export, Exported, Request, answer_analyses, check_tables
from traceprof.files import new_file, new_folder
from traceprof.model.table import Column, Names, Table, objects
from traceprof.model.tables import ABSENT, TABLES, ColumnKind
from traceprof.model.timing import TimeWindow
from traceprof.render.shown import ShownTable, tables_of
from traceprof.render.tables_text import csv_cell, to_csv
from traceprof.session.material import Material, Portion
from traceprof.session.run import Run

_ROWS_PER_WRITE: Final = 1 << 17


def write_results(
    run: Run,
    request: Request,
    suffix: str,
    exported: Exported,
    write: Callable[[Path, ShownTable], None],
) -> None:
    """Write each table of the requested analyses to a file, such as ``kernels.kernels.parquet``.

    ``write`` writes one table.

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
                write(folder / f"{name}.{table.name}.{suffix}", table)
                exported.n_rows += len(table)


def stream_rows(
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


def _write_result(path: Path, table: ShownTable) -> None:
    path.write_text(to_csv(table), "utf-8", newline="")


def _export_csv(run: Run, request: Request) -> Exported:
    exported = Exported(request.output)
    if request.results:
        write_results(run, request, "csv", exported, _write_result)
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
        writers: dict[str, Any] = {}
        for name, path in files.items():
            file = stack.enter_context(path.open("w", encoding="utf-8", newline=""))
            writers[name] = csv.writer(file, lineterminator="\n")
            writers[name].writerow(TABLES[name].columns)

        def add(name: str, table: Table) -> None:
            kinds = TABLES[name].columns
            for first in range(0, len(table), _ROWS_PER_WRITE):
                rows = table.take(slice(first, first + _ROWS_PER_WRITE))
                cells = (_cells(rows[column], kind) for column, kind in kinds.items())
                writers[name].writerows(zip(*cells, strict=True))

        stream_rows(material, files, add, exported, request)


def _cells(values: Column, kind: ColumnKind) -> list[Any]:
    """Return a column as CSV cells: texts escaped by `csv_cell`, unknown numbers empty."""
    if isinstance(values, Names):
        used = values.used()
        found: list[Any] = objects(map(csv_cell, used.texts.tolist()))[used.codes].tolist()
        return found
    if kind is ColumnKind.TEXT:
        return list(map(csv_cell, values.tolist()))
    cells = np.asarray(values).astype(object)
    if kind is not ColumnKind.TIME:
        cells[np.isnan(values) if kind is ColumnKind.FLOAT else values == ABSENT] = ""
    return list(cells)


EXPORTS: Final[Mapping[str, Export]] = {"csv": _export_csv}
