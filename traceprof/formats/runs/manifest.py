"""Manifests: JSON files that list the traces of a run.

``{"traceprof_run": 1, "label": … (or "run_id"), "world_size": …, "ranks": [{"rank": 0, "file": …,
"local_rank": 0, "host": …, "rack": …}]}``, with paths relative to the manifest. Each launcher
writes one into the folder of a run; by hand one writes one for files from elsewhere.

Where ranks were started more than once the entries tell the times of each start, in ns since 1970:
``"started_ns"``, ``"ended_ns"``, ``"ended"`` (finished, failed, killed), ``"restart_count"``.
``"agents"`` are the events of torchrun's agents.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from traceprof.errors import TraceError
from traceprof.files import kind_of_no_file
from traceprof.model.tables import ABSENT
from traceprof.secrets import storable
from traceprof.values import dataclass

__all__ = ["LAUNCHER", "MANIFEST_KEY", "Manifest", "read_manifest"]

MANIFEST_KEY: Final = "traceprof_run"
"""The key by which a JSON object is known as a manifest; its value is the version, 1."""

LAUNCHER: Final = "launcher"
"""The key by which an entry that was read tells its manifest: the launcher that wrote it."""

_LARGEST_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files of a run (or those of one of its hosts), and what is told of each."""

    label: str
    files: Mapping[Path, Mapping[str, Any]]
    world_size: int = ABSENT
    job: str = ""
    agents: Sequence[Mapping[str, Any]] = ()


def read_manifest(path: Path) -> Manifest | None:
    """Return the manifest in ``path``; None where it is something else.

    Raises:
        TraceError: it is one, but it does not list files.
    """
    value = _read_object(path)
    if MANIFEST_KEY not in value:
        return None
    rows = _objects(path, value, "ranks")
    size = value.get("world_size")
    return Manifest(
        str(value.get("label") or value.get("run_id", "")),
        {_file(path, row, "file", "ranks"): {**row, LAUNCHER: storable(path.name)} for row in rows},
        size if isinstance(size, int) else len(rows),
        str(value.get("job") or ""),
        _agents(path, value.get("agents")),
    )


def _agents(path: Path, value: Any) -> Sequence[Mapping[str, Any]]:
    events = value if isinstance(value, list) else []
    return [{**event, LAUNCHER: storable(path.name)} for event in events if isinstance(event, dict)]


def _objects(path: Path, value: Mapping[str, Any], key: str) -> Sequence[Mapping[str, Any]]:
    rows = value.get(key)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise TraceError(f'{path}: a manifest without a list "{key}" of objects')
    return rows


def _file(path: Path, row: Mapping[str, Any], key: str, inside: str) -> Path:
    name = row.get(key)
    if not isinstance(name, str):
        raise TraceError(f'{path}: every entry of "{inside}" needs a "{key}"')
    if not _can_be_a_file(name):
        raise TraceError(f"{path}: no file can be called {name!a}")
    return path.parent / name


def _can_be_a_file(name: str) -> bool:
    try:
        return b"\0" not in os.fsencode(name)
    except UnicodeEncodeError:
        return False


def _with_texts(found: dict[str, Any]) -> dict[str, Any]:
    """Return an object whose texts can be written; a file may bear a name that cannot."""
    return {
        key: storable(value) if isinstance(value, str) and key != "file" else value
        for key, value in found.items()
    }


def _read_object(path: Path) -> Mapping[str, Any]:
    if kind_of_no_file(path):
        return {}
    try:
        with path.open("rb") as file:
            head = file.read(4096)
            if not head.lstrip().startswith(b"{") or b'"traceprof' not in head:
                return {}
            value = json.loads(head + file.read(_LARGEST_BYTES), object_hook=_with_texts)
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
