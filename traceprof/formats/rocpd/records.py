"""Read the JSON of rocprofv3 (``--output-format json``) as the tables of a rocpd database.

The file lists processes. Each has its ``agents``, ``kernel_symbols``, and ``strings``, and in
``buffer_records`` the same records that rocprofv3 writes to a database, with their kind and
operation as numbers. A call without duration is a sample, as in a database.
"""

from __future__ import annotations

import json
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from traceprof.errors import TraceError
from traceprof.formats.rocpd.file import ProfiledProcess, is_id
from traceprof.formats.rocpd.format import KERNELS, REGIONS, ROOT
from traceprof.formats.shared.files import GzipSource, unpacking_source
from traceprof.formats.shared.json_stream import JsonArrayStream, TooDeepError
from traceprof.formats.shared.redaction import secrets_of_values
from traceprof.formats.sqlite.columns import NULL
from traceprof.model.table import Table

_Fields: TypeAlias = Mapping[str, tuple[str, ...]]

_ROOT: Final = f"/{ROOT}"
_STRINGS: Final = f"{_ROOT}/strings"
_RECORDS: Final = f"{_ROOT}/buffer_records"
_CALLBACKS: Final = f"{_ROOT}/callback_records"
_OPENED: Final = frozenset(("", _ROOT, _STRINGS, _RECORDS, _CALLBACKS))
_COUNTED: Final = "counter_collection"
_PLACE: Final[_Fields] = {
    "start": ("start_timestamp",),
    "end": ("end_timestamp",),
    "tid": ("thread_id",),
    "kind": ("kind",),
    "operation": ("operation",),
    "stack_id": ("correlation_id", "internal"),
}
_DISPATCH: Final[_Fields] = {
    **_PLACE,
    "agent_id": ("dispatch_info", "agent_id", "handle"),
    "queue_id": ("dispatch_info", "queue_id", "handle"),
    "kernel_id": ("dispatch_info", "kernel_id"),
    "group_segment_size": ("dispatch_info", "group_segment_size"),
    "stream_id": ("stream_id", "handle"),
    **{
        f"{of}_size_{axis}": ("dispatch_info", f"{of}_size", axis)
        for of in ("grid", "workgroup")
        for axis in "xyz"
    },
}
_COPY: Final[_Fields] = {
    **_PLACE,
    "src_agent_id": ("src_agent_id", "handle"),
    "dst_agent_id": ("dst_agent_id", "handle"),
    "size": ("bytes",),
    "stream_id": ("stream_id", "handle"),
}
_TABLES: Final[Mapping[str, tuple[str, _Fields]]] = {
    f"{_RECORDS}/kernel_dispatch": (KERNELS, _DISPATCH),
    f"{_RECORDS}/memory_copy": ("memory_copy", _COPY),
    **{
        f"{_RECORDS}/{name}_api": (REGIONS, _PLACE)
        for name in ("hip", "hsa", "marker", "rccl", "rocdecode")
    },
    # With counters, rocprofv3 may record a dispatch only there.
    f"{_CALLBACKS}/{_COUNTED}": (
        _COUNTED,
        {
            name: keys
            if name in ("tid", "kind", "operation", "stream_id")
            else (
                "dispatch_data",
                *keys,
            )
            for name, keys in _DISPATCH.items()
        },
    ),
}
"""Path of a list of records → table and its columns, with the keys that lead to the value."""
_TYPES: Final = {1: "CPU", 2: "GPU"}
_NO_OPERATION: Final = 0xFFFF


class RecordedProcess(ProfiledProcess):
    """The records of one process, which become tables when it is complete."""

    def __init__(self, number: int) -> None:
        self.suffix = str(number)
        self.left_out = Counter[str]()
        self.command: list[str] = []
        self._small: dict[str, list[dict[str, Any]]] = {"info_process": [{"id": 0, "nid": 0}]}
        self._records: dict[str, dict[str, array[int]]] = {}
        self._tables: dict[str, Table] = {}
        self._messages: dict[int, str] = {}
        self._n_kinds = 0
        self._adders: dict[str, Callable[[Sequence[dict[str, Any]]], None]] = {
            f"{_ROOT}/metadata": self._add_metadata,
            f"{_ROOT}/agents": self._add_agents,
            f"{_ROOT}/kernel_symbols": self._add_symbols,
            f"{_STRINGS}/buffer_records": self._add_names,
            f"{_STRINGS}/marker_api": self._add_messages,
        }

    def add(self, path: str, value: Any) -> None:
        """Add a part of the file."""
        items = value if isinstance(value, list) else [value]
        items = [item for item in items if isinstance(item, dict)]
        if path in _TABLES:
            self._add_records(*_TABLES[path], items)
        elif path in self._adders:
            self._adders[path](items)

    def _add_agents(self, items: Sequence[dict[str, Any]]) -> None:
        self._add_rows("info_agent", map(_agent, items))

    def _add_symbols(self, items: Sequence[dict[str, Any]]) -> None:
        self._add_rows("info_kernel_symbol", map(_symbol, items))

    def _add_messages(self, items: Sequence[dict[str, Any]]) -> None:
        for item in items:
            self._messages[_whole_at(item, ("key",))] = _text_at(item, "value")

    def _add_rows(self, name: str, rows: Iterable[dict[str, Any]]) -> None:
        """Add rows to a small table; those without a valid id are ignored."""
        self._small.setdefault(name, []).extend(row for row in rows if row["id"] not in (NULL, 0))

    def _add_metadata(self, items: Sequence[dict[str, Any]]) -> None:
        for item in items:
            command, node = item.get("command"), item.get("node")
            words = command if isinstance(command, list) else []
            self.command = [word for word in words if isinstance(word, str)]
            row = {"id": 0, "nid": 0, "pid": item.get("pid"), "command": " ".join(self.command)}
            texts = {name: _text_at(node, name) for name in ("hostname", "system_name", "release")}
            self._small |= {"info_process": [row], "info_node": [{"id": 0, **texts}]}

    def _add_names(self, items: Sequence[dict[str, Any]]) -> None:
        """Add the names of kinds and their operations; a kind's number is its place in the list."""
        rows = self._small.setdefault("string", [])
        for kind, item in enumerate(items, self._n_kinds):
            operations = item.get("operations")
            names = operations[:_NO_OPERATION] if isinstance(operations, list) else []
            texts = [*enumerate(names), (_NO_OPERATION, item.get("kind"))]
            rows += (
                {"id": kind << 16 | number, "string": text}
                for number, text in texts
                if isinstance(text, str)
            )
        self._n_kinds += len(items)

    def _add_records(self, table: str, fields: _Fields, items: Sequence[dict[str, Any]]) -> None:
        columns = self._records.setdefault(table, {name: array("q") for name in fields})
        for name, keys in fields.items():
            columns[name].extend(_whole_column(items, keys))

    def finish(self) -> None:
        """Make the tables of the records."""
        counted = self._records.pop(_COUNTED, None)
        if counted and not self._records.get(KERNELS, {}).get("start"):
            self._records[KERNELS] = counted
        events, n_events, threads = [], 0, set[int]()
        for name in sorted(self._records, key=lambda table: table != REGIONS):
            table = Table({c: np.array(own, np.int64) for c, own in self._records[name].items()})
            table = _with_ids(table, n_events)
            n_events += len(table)
            events.append(table.select("event_id", "category_id", "stack_id"))
            threads.update(np.unique(table["tid"]).tolist())
            self._tables[name] = table
        self._records = {}
        if events:
            self._tables["event"] = (every := Table.stacked(events)).assign(id=every["event_id"])
        calls = self._tables.get(REGIONS)
        if calls is not None:
            is_sample = calls["start"] == calls["end"]
            marks = calls.take(is_sample)
            self._tables["sample"] = marks.assign(timestamp=marks["start"], track_id=marks["tid"])
            self._tables[REGIONS] = calls.take(~is_sample)
        rows = [{"id": tid, "tid": tid, "pid": 0} for tid in sorted(threads)]
        self._small |= {"info_thread": rows, "track": rows}

    def columns(self, name: str) -> frozenset[str]:
        """Return the columns of a table; none if the table does not exist."""
        return frozenset(self._tables.get(name, ()))

    def numbers(self, name: str, *columns: str) -> Table:
        """Return whole-number columns of a table; `NULL` for missing values."""
        table = self._tables.get(name, Table({"id": np.empty(0, np.int64)}))
        missing = np.full(len(table), NULL)
        return Table({c: table.get(c, missing) for c in columns}, len(table))

    def rows(self, name: str, *columns: str) -> list[tuple[Any, ...]]:
        """Return columns of a small table; None for missing values and columns."""
        return [tuple(row.get(c) for c in columns) for row in self._small.get(name, ())]

    def messages(self, categories: Iterable[int]) -> dict[int, str]:
        """Return event → the text of its marker, for the events of these ``categories``."""
        events = self.numbers("event", "id", "category_id", "stack_id")
        events = events.take(np.isin(events["category_id"], list(categories)))
        pairs = zip(events["id"].tolist(), events["stack_id"].tolist(), strict=True)
        return {event: self._messages.get(stack, "") for event, stack in pairs}

    def arguments(self, _events: npt.NDArray[np.int64]) -> dict[int, dict[str, str]]:
        """Return nothing: the JSON does not contain the arguments of RCCL calls."""
        return {}


def _with_ids(table: Table, first_event: int) -> Table:
    """Return records with the ids that the tables of a database have."""
    kind, operation = table["kind"], table["operation"]
    kind = np.where((kind >= 0) & (kind < _NO_OPERATION), kind, _NO_OPERATION)
    operation = np.where((operation >= 0) & (operation < _NO_OPERATION), operation, _NO_OPERATION)
    return table.assign(
        event_id=np.arange(first_event, first_event + len(table)),
        category_id=kind << 16 | _NO_OPERATION,
        name_id=kind << 16 | operation,
        pid=np.zeros(len(table), np.int64),
    )


def _whole_column(records: Sequence[Any], keys: Sequence[str]) -> array[int]:
    """Return the whole numbers that ``keys`` lead to in each record; `NULL` if there is none."""
    found = records
    try:
        for key in keys:
            found = [record[key] for record in found]
        return array("q", found)
    except (LookupError, TypeError, OverflowError):
        return array("q", [_whole_at(record, keys) for record in records])


def _whole_at(record: Any, keys: Sequence[str]) -> int:
    """Return the whole number that ``keys`` lead to; `NULL` if there is none."""
    for key in keys:
        record = record.get(key) if isinstance(record, dict) else None
    return int(record) if is_id(record) else NULL


def _text_at(item: Any, key: str) -> str:
    """Return the text of a key; "" if there is none."""
    text = item.get(key) if isinstance(item, dict) else None
    return text if isinstance(text, str) else ""


def _agent(item: dict[str, Any]) -> dict[str, Any]:
    """Return a row of ``info_agent``."""
    return {
        **{name: _text_at(item, name) for name in ("name", "product_name", "model_name")},
        "id": _whole_at(item, ("id", "handle")),
        "type": _TYPES.get(_whole_at(item, ("type",))),
        "type_index": _whole_at(item, ("logical_node_type_id",)),
        "extdata": json.dumps({"cu_count": _whole_at(item, ("cu_count",))}),
    }


def _symbol(item: dict[str, Any]) -> dict[str, Any]:
    """Return a row of ``info_kernel_symbol``."""
    return {
        "id": _whole_at(item, ("kernel_id",)),
        "kernel_name": _text_at(item, "kernel_name"),
        "display_name": _text_at(item, "formatted_kernel_name"),
        "arch_vgpr_count": _whole_at(item, ("arch_vgpr_count",)),
        "accum_vgpr_count": _whole_at(item, ("accum_vgpr_count",)),
    }


class RecordedFile:
    """The processes in a file, warnings about it, and the secrets in its command lines.

    Raises:
        TraceError: the JSON is nested too deeply.
    """

    def __init__(self, path: Path) -> None:
        self.processes: list[RecordedProcess] = []
        with path.open("rb") as file:
            stream = JsonArrayStream(unpacking_source(file), "")
            try:
                for part, value in stream.parts(_OPENED, _decoded):
                    if part == _ROOT and value is None:
                        self._finish_last()
                        self.processes.append(RecordedProcess(len(self.processes)))
                    elif self.processes and value is not None:
                        self.processes[-1].add(part, value)
            except TooDeepError:
                raise TraceError(f"{path}: not a trace (the JSON is nested too deeply)") from None
            self._finish_last()
            is_gzip_damaged = isinstance(stream.file, GzipSource) and stream.file.is_damaged
        self.warnings: list[str] = []
        if not stream.is_complete or is_gzip_damaged:
            self.warnings.append(
                "the file is truncated or damaged; the rest of the trace is missing"
            )
        self.secrets = secrets_of_values({p.suffix: p.command for p in self.processes})

    def _finish_last(self) -> None:
        for process in self.processes[-1:]:
            process.finish()


def _decoded(text: bytes) -> list[Any] | None:
    """Return the items of a JSON array; None if msgspec cannot read it."""
    try:
        return msgspec.json.decode(text, type=list[Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
