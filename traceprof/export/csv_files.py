"""``csv``: a file for each table of a trace, safe to open in a spreadsheet."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pc

from traceprof.export.request import Export, Exported, Request, check_tables
from traceprof.export.result_files import write_results
from traceprof.files import new_file, new_folder
from traceprof.formats.tables.columns import Names, batch_of, schema_of
from traceprof.model.tables import TABLES, ColumnKind
from traceprof.render.escape import visible_text
from traceprof.session.material import Material
from traceprof.session.run import Run

__all__ = ["EXPORTS", "safe_cell"]

_FORMULA: Final = re.compile(r"[\s\x00-\x1f]*[=+\-@\t\r]")


def safe_cell(text: str) -> str:
    """Return ``text`` so that no spreadsheet takes it for a formula: with a quote in front."""
    return f"'{text}" if _FORMULA.match(text) else text


def _export(run: Run, request: Request) -> Exported:
    done = Exported(request.output)
    if request.results:
        write_results(run, request, "csv", done)
        return done
    names = check_tables(request.tables)
    material = Material(run, request.ranks)
    if len(names) == 1 and request.tables is not None:
        with new_file(request.output, force=request.force, inputs=run.paths) as target:
            _write(material, {names[0]: target}, done, request)
    else:
        with new_folder(request.output) as folder:
            _write(material, {name: folder / f"{name}.csv" for name in names}, done, request)
    return done


def _write(material: Material, files: Mapping[str, Path], done: Exported, request: Request) -> None:
    with ExitStack() as stack:
        writers = {name: _Table(name, path, stack) for name, path in files.items()}
        for part in material.parts(files):
            for name, frame in part.frames.items():
                writers[name].add(frame)
                done.n_rows += len(frame)
            request.progress(done.n_rows, 0, "rows")
        for name in files:
            if not TABLES[name].has_times:
                frame = material.ranks.table(name)
                writers[name].add(frame)
                done.n_rows += len(frame)


@dataclass
class _Table:
    """A table that is being written: its file, which has the header from the beginning."""

    name: str
    path: Path
    stack: ExitStack
    names: dict[str, Names] = field(default_factory=dict)

    def __post_init__(self) -> None:
        schema = pa.schema([pa.field(one.name, _plain(one.type)) for one in schema_of(self.name)])
        options = pc.WriteOptions(quoting_style="needed")
        self.writer: Any = self.stack.enter_context(
            pc.CSVWriter(self.path, schema, write_options=options)
        )
        self.schema = schema

    def add(self, frame: pd.DataFrame) -> None:
        """Append rows."""
        for first in range(0, len(frame), 1 << 17):
            rows = _safe(self.name, frame.iloc[first : first + (1 << 17)])
            kinds = TABLES[self.name].columns
            names = {column: Names() for column, kind in kinds.items() if kind is ColumnKind.NAME}
            self.writer.write(pa.table(batch_of(self.name, rows, names)).cast(self.schema))


def _plain(kind: pa.DataType) -> pa.DataType:
    return pa.string() if pa.types.is_dictionary(kind) else kind


def _safe(name: str, frame: pd.DataFrame) -> pd.DataFrame:
    """Return rows whose texts are safe, on one line and without what a terminal obeys."""
    changes: dict[str, Any] = {}
    for column, kind in TABLES[name].columns.items():
        if kind is ColumnKind.NAME:
            changes[column] = _safe_names(frame[column].array)
        elif kind is ColumnKind.TEXT:
            changes[column] = [_shown(str(text)) for text in frame[column]]
    return frame.assign(**changes)


def _shown(text: str) -> str:
    return safe_cell(visible_text(text))


def _safe_names(names: pd.Categorical) -> pd.Categorical:
    numbers: dict[str, int] = {}
    shown = [_shown(str(one)) for one in names.categories]
    places = np.array([*(numbers.setdefault(one, len(numbers)) for one in shown), -1], np.int64)
    return pd.Categorical.from_codes(places[names.codes], pd.Index(list(numbers), dtype=object))


EXPORTS: Final[Mapping[str, Export]] = {"csv": _export}
