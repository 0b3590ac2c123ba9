"""What a folder of tables says of itself, in ``trace.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from traceprof.errors import TraceError
from traceprof.formats.tables.format import MANIFEST
from traceprof.model.tables import TABLES, unit_of
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import TraceInfo
from traceprof.values import dataclass
from traceprof.version import __version__

__all__ = ["FolderManifest", "Storage", "StoredTable", "read_manifest"]

_KEY: Final = "traceprof_tables"
_VERSION: Final = 1


class Storage(StrEnum):
    """How the tables are stored; the value is the suffix of the files, too."""

    PARQUET = "parquet"
    ARROW = "arrow"


@dataclass(frozen=True, slots=True)
class StoredTable:
    """A table: its file, its rows, and the distinct names of its columns of names, in order."""

    file: str
    n_rows: int
    names: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FolderManifest:
    """What ``trace.json`` tells."""

    storage: Storage
    info: TraceInfo
    recorded: frozenset[str]
    span: TimeWindow
    tables: Mapping[str, StoredTable]

    def write(self, folder: Path) -> None:
        """Write it into ``folder``."""
        info = {**msgspec.to_builtins(self.info), "warnings": list(self.info.warnings)}
        del info["path"]
        value = {
            _KEY: _VERSION,
            "written_by": f"traceprof {__version__}",
            "storage": self.storage.value,
            "info": info,
            "recorded": sorted(self.recorded),
            "span_ns": [self.span.start_ns, self.span.end_ns],
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


class _Told(msgspec.Struct):
    file: str
    n_rows: int
    names: dict[str, list[str]] = {}


class _Manifest(msgspec.Struct):
    version: int = msgspec.field(name=_KEY)
    storage: Storage
    info: TraceInfo
    recorded: list[str]
    span_ns: tuple[int, int]
    tables: dict[str, _Told]


def read_manifest(folder: Path) -> FolderManifest:
    """Return what ``folder`` says of itself.

    Raises:
        TraceError: it is damaged, or of a later version.
    """
    path = folder / MANIFEST
    try:
        told = msgspec.json.decode(path.read_bytes(), type=_Manifest)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: no readable description of tables: {error}") from error
    if told.version != _VERSION:
        raise TraceError(
            f"{path}: tables of version {told.version}, this traceprof reads version {_VERSION}: "
            "use the one that wrote them, or a newer one"
        )
    start_ns, end_ns = told.span_ns
    if start_ns > end_ns:
        raise TraceError(f"{path}: a time that ends before it begins: export the trace again")
    info = replace(told.info, path=str(folder))
    tables = {
        name: StoredTable(_plain_name(path, stored.file), stored.n_rows, stored.names)
        for name, stored in told.tables.items()
        if name in TABLES
    }
    recorded = frozenset(told.recorded) & TABLES.keys()
    return FolderManifest(told.storage, info, recorded, TimeWindow(start_ns, end_ns), tables)


def _plain_name(path: Path, name: str) -> str:
    """Return the name of a file of the folder.

    Raises:
        TraceError: it leads out of the folder.
    """
    if Path(name).name != name or name in ("", ".", ".."):
        raise TraceError(f"{path}: {name!a} is no file of this folder")
    return name
