"""Read and write folders of Parquet or Arrow files with the description ``trace.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Self

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from traceprof.errors import TraceError
from traceprof.formats.contract import ReadOptions
from traceprof.formats.tables.columns import ColumnNames, batch_of, schema_of, table_of
from traceprof.formats.tables.format import FORMAT, MANIFEST
from traceprof.model.table import Table
from traceprof.model.tables import TABLES, ColumnKind, unit_of
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import DEVICE_TABLES, Trace, TraceInfo, make_trace
from traceprof.names.classes import classify
from traceprof.version import __version__

_VERSION: Final = 1


class Storage(StrEnum):
    """The file format of the tables; the value is also the suffix of the files."""

    PARQUET = "parquet"
    ARROW = "arrow"


@dataclass(frozen=True, slots=True)
class TableFile:
    """A table: its file, its number of rows, and the distinct names of each name column."""

    file: str
    n_rows: int
    names: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FolderManifest:
    """The content of ``trace.json``; ``traceprof_tables`` is its version."""

    traceprof_tables: int
    storage: Storage
    info: TraceInfo
    recorded: frozenset[str]
    span_ns: tuple[int, int]
    tables: Mapping[str, TableFile]

    def write(self, folder: Path) -> None:
        """Write ``trace.json`` into ``folder``."""
        info = {**msgspec.to_builtins(self.info), "warnings": list(self.info.warnings)}
        del info["path"]
        value = {
            "traceprof_tables": self.traceprof_tables,
            "written_by": f"traceprof {__version__}",
            "storage": self.storage.value,
            "info": info,
            "recorded": sorted(self.recorded),
            "span_ns": self.span_ns,
            "tables": {
                name: {
                    "file": stored.file,
                    "n_rows": stored.n_rows,
                    "about": TABLES[name].summary,
                    "units": {c: unit for c in TABLES[name].columns if (unit := unit_of(c))},
                    "names": stored.names,
                }
                for name, stored in self.tables.items()
            },
        }
        text = json.dumps(value, indent=1, ensure_ascii=False)
        (folder / MANIFEST).write_bytes(text.encode("utf-8", "replace") + b"\n")


def read_manifest(folder: Path) -> FolderManifest:
    """Return the description in ``folder``.

    Raises:
        TraceError: it is damaged, or has a later version.
    """
    path = folder / MANIFEST
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=FolderManifest)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: cannot be read ({error}); export the trace again") from error
    if manifest.traceprof_tables != _VERSION:
        raise TraceError(
            f"{path}: table version {manifest.traceprof_tables}, but this traceprof reads version "
            f"{_VERSION}; use the version of traceprof that wrote the tables, or a newer one"
        )
    start_ns, end_ns = manifest.span_ns
    if start_ns > end_ns:
        raise TraceError(f"{path}: the time span ends before it starts; export the trace again")
    tables = {name: stored for name, stored in manifest.tables.items() if name in TABLES}
    for stored in tables.values():
        if Path(stored.file).name != stored.file or stored.file in ("", ".", ".."):
            raise TraceError(f"{path}: {stored.file!a} is not a file in this folder")
    info, recorded = replace(manifest.info, path=str(folder)), manifest.recorded & TABLES.keys()
    return replace(manifest, info=info, recorded=recorded, tables=tables)


def read(path: Path, options: ReadOptions) -> Trace:
    """Return the trace in a folder of tables."""
    manifest = read_manifest(path)
    wanted = {name for name in TABLES if options.wants(name)} | {"devices"}
    if options.window is not None and options.wants("host_ops", "api_calls"):
        wanted |= {*DEVICE_TABLES, "api_calls"}  # they have the first launch of the window's work
    tables = {name: _read_table(path, name, manifest) for name in wanted}
    if options.rules and "kernels" in tables:
        activity = classify(tables["kernels"]["name"], options.rules)
        tables["kernels"] = tables["kernels"].assign(activity=activity)
    devices = tables["devices"]
    worked = devices["device"][devices["used"] == 1]
    trace = make_trace(
        manifest.info, tables, manifest.recorded, TimeWindow(*manifest.span_ns), worked
    )
    return replace(trace, info=replace(trace.info, format=trace.info.format or FORMAT.name))


def _read_table(folder: Path, name: str, manifest: FolderManifest) -> Table:
    """Return one table of the folder.

    Raises:
        TraceError: the manifest lacks the table, or its file is damaged.
    """
    stored = manifest.tables.get(name)
    if stored is None:
        raise TraceError(f"{folder}: {MANIFEST} does not list table {name}; export the trace again")
    path = folder / stored.file
    try:
        rows = table_of(name, _read_arrow(path, manifest.storage), stored.names)
    except (OSError, pa.ArrowException, ValueError) as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TraceError(f"{path}: cannot be read ({why}); export the trace again") from error
    if len(rows) != stored.n_rows:
        raise TraceError(
            f"{path}: contains {len(rows)} of {stored.n_rows} rows; export the trace again"
        )
    return rows


def _read_arrow(path: Path, storage: Storage) -> pa.Table:
    """Return the table in a file.

    Raises:
        OSError, pa.ArrowException: the file cannot be read, or is malformed.
    """
    if storage is Storage.PARQUET:
        with pq.ParquetFile(path) as file:
            return file.read()
    with pa.memory_map(str(path)) as source:
        table = pa.ipc.open_file(source).read_all()
    table.validate(full=True)  # report malformed data here, not at its first use
    return table


_BATCH_ROWS: Final = 1 << 18


@dataclass(slots=True)
class _OpenTable:
    """A table that is being written."""

    file: str
    writer: Any
    names: dict[str, ColumnNames]
    n_rows: int = 0


@dataclass(slots=True)
class FolderWriter:
    """Writes the tables of a Trace into an empty folder, which is readable after `finish`."""

    folder: Path
    storage: Storage
    _open: dict[str, _OpenTable] = field(default_factory=dict)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for table in self._open.values():
            table.writer.close()

    def add(self, name: str, rows: Table) -> None:
        """Append rows to table ``name``; the rows must come in the order of time."""
        table = self._open.get(name) or self._begin(name)
        # A table without rows gets one empty batch, because its dictionaries must be written.
        for first in range(0, max(1, len(rows)), _BATCH_ROWS):
            batch = rows.take(slice(first, first + _BATCH_ROWS))
            table.writer.write_batch(batch_of(name, batch, table.names))
            table.n_rows += len(batch)

    def finish(self, info: TraceInfo, recorded: frozenset[str], span: TimeWindow) -> None:
        """Close all tables, write those without rows, and write ``trace.json``."""
        for name in TABLES:
            if name not in self._open:
                self._begin(name)
            self._open[name].writer.close()
        tables = {
            name: TableFile(
                table.file, table.n_rows, {c: list(names) for c, names in table.names.items()}
            )
            for name, table in ((name, self._open[name]) for name in TABLES)
        }
        times = span.start_ns, span.end_ns
        FolderManifest(_VERSION, self.storage, info, recorded, times, tables).write(self.folder)

    def _begin(self, name: str) -> _OpenTable:
        """Open the file of table ``name`` for writing."""
        kinds = TABLES[name].columns
        file = f"{name}.{self.storage}"
        names = {column: ColumnNames() for column, kind in kinds.items() if kind is ColumnKind.NAME}
        self._open[name] = _OpenTable(file, _writer(self.folder / file, name, self.storage), names)
        return self._open[name]


def _writer(path: Path, name: str, storage: Storage) -> Any:
    """Return the Parquet or Arrow writer of table ``name``."""
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
