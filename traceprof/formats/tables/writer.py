"""Writing a folder of tables, part after part, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from traceprof.formats.tables.columns import Names, batch_of, schema_of
from traceprof.formats.tables.manifest import FolderManifest, Storage, StoredTable
from traceprof.model.tables import TABLES, ColumnKind
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace, TraceInfo
from traceprof.values import dataclass

__all__ = ["FolderWriter", "write_tables"]

_BATCH_ROWS: Final = 1 << 18


@dataclass(slots=True)
class _Open:
    """A table that is being written."""

    file: str
    writer: Any
    names: dict[str, Names]
    n_rows: int = 0


@dataclass(slots=True)
class FolderWriter:
    """Writes the tables of a Trace into an empty folder; `finish` makes it one that can be read."""

    folder: Path
    storage: Storage
    _open: dict[str, _Open] = field(default_factory=dict)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        for table in self._open.values():
            table.writer.close()

    def add(self, name: str, frame: pd.DataFrame) -> None:
        """Append rows to table ``name``: parts come in the order of their times."""
        table = self._open.get(name) or self._begin(name)
        for rows in _batches(frame):
            table.writer.write_batch(batch_of(name, rows, table.names))
            table.n_rows += len(rows)

    def finish(self, info: TraceInfo, recorded: frozenset[str], span: TimeWindow) -> None:
        """Close the tables, those without rows too, and describe them."""
        for name in TABLES:
            if name not in self._open:
                self._begin(name)
            self._open[name].writer.close()
        stored = {
            name: StoredTable(
                table.file, table.n_rows, {c: list(names) for c, names in table.names.items()}
            )
            for name, table in self._open.items()
        }
        tables = {name: stored[name] for name in TABLES}
        FolderManifest(self.storage, info, recorded, span, tables).write(self.folder)

    def _begin(self, name: str) -> _Open:
        kinds = TABLES[name].columns
        file = f"{name}.{self.storage}"
        names = {column: Names() for column, kind in kinds.items() if kind is ColumnKind.NAME}
        self._open[name] = _Open(file, _writer(self.folder / file, name, self.storage), names)
        return self._open[name]


def _batches(frame: pd.DataFrame) -> Iterator[pd.DataFrame]:
    # Without rows there is one part, too: it has the names.
    for first in range(0, max(1, len(frame)), _BATCH_ROWS):
        yield frame.iloc[first : first + _BATCH_ROWS]


def _writer(path: Path, name: str, storage: Storage) -> Any:
    schema = schema_of(name)
    if storage is Storage.ARROW:
        options = pa.ipc.IpcWriteOptions(compression="lz4", emit_dictionary_deltas=True)
        return pa.ipc.new_file(path, schema, options=options)
    kinds = TABLES[name].columns
    dictionaries = [c for c, kind in kinds.items() if kind in (ColumnKind.NAME, ColumnKind.TEXT)]
    times = {c: "DELTA_BINARY_PACKED" for c, kind in kinds.items() if kind is ColumnKind.TIME}
    return pq.ParquetWriter(
        path, schema, compression="zstd", use_dictionary=dictionaries, column_encoding=times
    )


def write_tables(trace: Trace, folder: Path, storage: Storage = Storage.PARQUET) -> None:
    """Write a whole Trace into the empty folder ``folder``."""
    with FolderWriter(folder, storage) as writer:
        for name in TABLES:
            writer.add(name, trace.table(name))
        writer.finish(trace.info, trace.recorded, trace.span)
