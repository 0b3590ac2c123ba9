"""Reading a folder of Parquet or Arrow files that traceprof exported."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from traceprof.errors import TraceError
from traceprof.formats.base import ReadOptions
from traceprof.formats.tables.columns import frame_of
from traceprof.formats.tables.format import MANIFEST
from traceprof.formats.tables.manifest import (
    FolderManifest,
    Storage,
    read_manifest,
)
from traceprof.model.tables import TABLES
from traceprof.model.trace import DEVICE_TABLES, Trace, make_trace
from traceprof.names.classes import classify

__all__ = ["read"]

FORMAT_NAME: Final = "tables"


def read(path: Path, options: ReadOptions) -> Trace:
    """Return the trace in a folder of tables."""
    told = read_manifest(path)
    wanted = {name for name in TABLES if options.wants(name)} | {"devices"}
    if options.window is not None and options.wants("host_ops", "api_calls"):
        wanted |= {*DEVICE_TABLES, "api_calls"}  # they tell from when on launches are wanted
    tables = {name: _read_table(path, name, told) for name in wanted}
    if options.rules and "kernels" in tables:
        names = tables["kernels"]["name"].array
        tables["kernels"] = tables["kernels"].assign(activity=classify(names, options.rules))
    devices = tables["devices"]
    worked = devices.loc[devices["used"] == 1, "device"]
    trace = make_trace(told.info, tables, told.recorded, told.span, worked)
    return replace(trace, info=replace(trace.info, format=trace.info.format or FORMAT_NAME))


def _read_table(folder: Path, name: str, told: FolderManifest) -> pd.DataFrame:
    stored = told.tables.get(name)
    if stored is None:
        raise TraceError(f"{folder}: {MANIFEST} lists no table {name}: export the trace again")
    path = folder / stored.file
    try:
        frame = frame_of(name, _stored(path, told.storage), stored.names)
    except (OSError, pa.ArrowException, ValueError) as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TraceError(f"{path}: cannot be read: {why}: export the trace again") from error
    if len(frame) != stored.n_rows:
        raise TraceError(
            f"{path}: {len(frame)} rows, {stored.n_rows} were written: export the trace again"
        )
    return frame


def _stored(path: Path, storage: Storage) -> pa.Table:
    if storage is Storage.PARQUET:
        with pq.ParquetFile(path) as file:
            return file.read()
    with pa.memory_map(str(path)) as source:
        table = pa.ipc.open_file(source).read_all()
    table.validate(full=True)  # what is malformed is found here, not when it is used
    return table
