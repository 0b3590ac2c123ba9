"""Read databases of rocprofv3 and rocprof-sys (rocpd, schema 3): kernels, copies, HIP, RCCL, ROCTx.

The tables behind the documented views are read, column by column. ``rocpd_event`` has the category
of an event and, as ``stack_id``, the number of the call that it is or that launched it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traceprof.errors import TraceError
from traceprof.formats.contract import ReadOptions, TraceFormat
from traceprof.formats.rocpd.file import (
    ProfiledProcess,
    gpu_numbers,
    is_id,
    look_up,
    names_by_key,
    profiled_processes,
    read_devices,
    read_environment,
    read_processes,
    read_threads,
    whole_or_absent,
)
from traceprof.formats.rocpd.format import FORMAT, JSON_FORMAT, KERNELS, REGIONS
from traceprof.formats.rocpd.records import RecordedFile
from traceprof.formats.shared.collectives import link_by_launch
from traceprof.formats.shared.cupti import with_depth
from traceprof.formats.shared.redaction import masked_trace
from traceprof.formats.sqlite.columns import NULL
from traceprof.formats.sqlite.database import Database, reading
from traceprof.model.table import Names, Table
from traceprof.model.tables import ABSENT, empty_table, make_table, stack
from traceprof.model.trace import Trace, TraceInfo, make_trace
from traceprof.names.classes import classify
from traceprof.names.messages import collective_op

_COPIES: Final = "memory_copy"
_READ_FROM: Final = {KERNELS: "kernels", _COPIES: "copies"}
"""Table of the file → table of the Trace that is made from it."""
_API_CATEGORY: Final = re.compile(r"^(rocm_)?hip_\w*api", re.IGNORECASE)
_MARKER_CATEGORY: Final = re.compile(r"(rocm_)?marker|user$", re.IGNORECASE)
_RCCL_CATEGORY: Final = re.compile(r"(rocm_)?rccl", re.IGNORECASE)
"""Categories of events in rocprofv3 or, with the prefix "rocm", in rocprof-sys."""
_COLLECTIVE: Final = re.compile(
    r"[nr]ccl(AllReduce|AllGather|ReduceScatter|Reduce|Broadcast|Bcast|Send|Recv|AllToAllv?|Gather"
    r"|Scatter)"
)
_DIRECTIONS: Final = {
    "HOST_TO_DEVICE": "h2d",
    "DEVICE_TO_HOST": "d2h",
    "DEVICE_TO_DEVICE": "d2d",
    "HOST_TO_HOST": "h2h",
}
_SIZED_PER_RANK: Final = ("reduce_scatter", "all_to_all", "all_to_all_v", "scatter")
"""Operations whose arguments have the size per rank; the number of ranks is unknown."""
_TYPES: Final = """
    int8 1, uint8 1, int32 4, uint32 4, int64 8, uint64 8, float16 2, float32 4, float64 8,
    bfloat16 2, float8e4m3 1, float8e5m2 1"""
_TYPE_BYTES: Final = {n: int(size) for n, size in map(str.split, _TYPES.strip().split(","))}
_TYPES_BY_NUMBER: Final = tuple(_TYPE_BYTES)
_ALIASES: Final = {"char": "int8", "int": "int32", "half": "float16", "float": "float32"} | {
    "double": "float64"
}


def read(path: Path, options: ReadOptions) -> Trace:
    """Return the trace in a rocpd database; time 0 is its first event."""

    def read_database(database: Database) -> Trace:
        warnings = list(database.catalogue.warnings())
        processes = profiled_processes(database)
        return _Reading(path, FORMAT, processes, warnings, options).trace()

    return reading(path, read_database)


def read_json(path: Path, options: ReadOptions) -> Trace:
    """Return the trace in the JSON of rocprofv3; time 0 is its first event."""
    file = RecordedFile(path)
    trace = _Reading(path, JSON_FORMAT, file.processes, file.warnings, options).trace()
    return trace if options.keeps_secrets else masked_trace(trace, file.secrets)


class _Reading:
    """One reading of a file with all its processes."""

    def __init__(
        self,
        path: Path,
        known: TraceFormat,
        processes: Sequence[ProfiledProcess],
        warnings: list[str],
        options: ReadOptions,
    ) -> None:
        self.path, self.format, self.warnings = path, known, warnings
        self.options = options
        self.processes = processes
        self.gpus = gpu_numbers(self.processes)

    def trace(self) -> Trace:
        """Return the trace.

        Raises:
            TraceError: the file has no events.
        """
        parts: dict[str, list[Table]] = {}
        for process in self.processes:
            for name, table in _Tables(process, self.gpus[process.suffix], self.options).read():
                parts.setdefault(name, []).append(table)
        tables = {name: stack(name, rows) for name, rows in parts.items()}
        starts = [int(rows["start_ns"][0]) for rows in tables.values() if len(rows)]
        if not starts:
            how = "record with `rocprofv3 --sys-trace -- PROGRAM`"
            why = "; ".join((*self.warnings, *self._left_out(), how))
            kind = "database" if self.format is FORMAT else "JSON"
            raise TraceError(
                f"{self.path}: the rocprofv3 {kind} contains no events to analyze; {why}"
            )
        zero_ns = min(starts)
        tables = {name: _shift_times(rows, zero_ns) for name, rows in tables.items()}
        tables["ranges"] = with_depth(tables["ranges"])
        tables["collectives"] = link_by_launch(
            tables["collectives"], tables["kernels"], tables["api_calls"]
        )
        tables["devices"] = read_devices(self.processes)
        tables["processes"] = read_processes(self.processes)
        tables["threads"] = read_threads(self.processes)
        tables["environment"] = read_environment(self.processes)
        recorded = {name for name, rows in tables.items() if len(rows)}
        # A table was recorded even if all its rows are invalid.
        tables_with_invalid_rows = (
            name for process in self.processes for name in +process.left_out
        )
        recorded |= {_READ_FROM[name] for name in tables_with_invalid_rows if name in _READ_FROM}
        return make_trace(self._info(), tables, recorded)

    def _left_out(self) -> Iterator[str]:
        """Yield a sentence about the ignored rows."""
        if n_rows := sum(process.left_out.total() for process in self.processes):
            yield (
                f"traceprof ignored {n_rows} rows that end before they start or have no valid time"
            )

    def _info(self) -> TraceInfo:
        """Return the origin of the trace."""
        metadata: dict[str, str] = {}
        hosts: list[str] = []
        for process in self.processes:
            metadata |= {
                str(tag): str(value) for tag, value in process.rows("metadata", "tag", "value")
            }
            hosts += filter(None, process.texts("info_node", "hostname").values())
        warnings = [*self.warnings, *self._left_out()]
        return TraceInfo(
            path=str(self.path),
            format=self.format.name,
            profiler="ROCprofiler-SDK",
            schema_version=metadata.get("schema_version", ""),
            host=next(iter(hosts), ""),
            warnings=tuple(warnings),
        )


def _shift_times(table: Table, zero_ns: int) -> Table:
    """Return a table with times since ``zero_ns``."""
    times = [name for name in ("start_ns", "end_ns") if name in table]
    return table.assign(**{name: table[name] - zero_ns for name in times})


class _Tables:
    """The tables of one process, with the times of the file."""

    def __init__(
        self, process: ProfiledProcess, gpus: dict[int, int], options: ReadOptions
    ) -> None:
        self.process = process
        self.gpus = gpus
        self.options = options
        self.strings = process.texts("string", "string")
        self.pids = {
            key: whole_or_absent(pid) for key, pid in process.rows("info_process", "id", "pid")
        }
        self.tids = {
            key: whole_or_absent(tid) for key, tid in process.rows("info_thread", "id", "tid")
        }
        self.events = process.numbers("event", "id", "category_id", "stack_id")

    def read(self) -> list[tuple[str, Table]]:
        """Return (name, table) for all tables of events."""
        dispatched = self.process.spans(
            KERNELS,
            *("pid", "agent_id", "kernel_id", "queue_id", "stream_id", "event_id"),
            *(f"{of}_size_{axis}" for of in ("grid", "workgroup") for axis in "xyz"),
            "group_segment_size",
        )
        regions = self.process.spans(REGIONS, "pid", "tid", "name_id", "event_id")
        category = look_up(regions["event_id"], self.events["id"], self.events["category_id"])
        kinds = names_by_key(category, lambda key: self.strings.get(key, ""))
        return [
            ("kernels", self._kernels(dispatched)),
            ("kernel_shapes", self._shapes(dispatched)),
            ("copies", self._copies()),
            ("api_calls", self._api_calls(regions.take(_matches(kinds, _API_CATEGORY)))),
            ("host_ops", self._host_ops(regions, kinds)),
            ("ranges", self._ranges(regions.take(_matches(kinds, _MARKER_CATEGORY)))),
            ("marks", self._marks()),
            ("collectives", self._collectives(regions.take(_matches(kinds, _RCCL_CATEGORY)))),
        ]

    def _place_columns(self, rows: Table, agents: npt.NDArray[np.int64]) -> dict[str, Any]:
        """Return the columns of time and place of device events on these ``agents``."""
        streams = np.where(rows["stream_id"] == NULL, rows["queue_id"], rows["stream_id"])
        return {
            **_time_columns(rows),
            "device": _map_ids(agents, self.gpus),
            "stream": np.where(streams == NULL, ABSENT, streams),
            "process": _map_ids(rows["pid"], self.pids),
            "correlation": self._correlations(rows),
        }

    def _kernels(self, rows: Table) -> Table:
        """Return the kernels."""
        symbols = self.process.texts("info_kernel_symbol", "display_name", "kernel_name")
        names = names_by_key(rows["kernel_id"], lambda key: symbols.get(key) or f"kernel {key}")
        return make_table(
            "kernels",
            {
                **self._place_columns(rows, rows["agent_id"]),
                "name": names,
                "activity": classify(names, self.options.rules),
            },
        )

    def _shapes(self, rows: Table) -> Table:
        """Return the launch shapes of kernels; rocpd's grids count work items, not workgroups."""
        if "grid_size_x" not in self.process.columns(KERNELS):
            return empty_table("kernel_shapes")
        columns: dict[str, Any] = {}
        for axis in "xyz":
            items, group = rows[f"grid_size_{axis}"], rows[f"workgroup_size_{axis}"]
            known = (items > 0) & (group > 0)
            columns[f"grid_{axis}"] = np.where(
                known, -(-items // np.where(known, group, 1)), ABSENT
            )
            columns[f"block_{axis}"] = np.where(known, group, ABSENT)
        registers = {
            key: whole_or_absent(registers_used) + max(whole_or_absent(accumulators), 0)
            for key, registers_used, accumulators in self.process.rows(
                "info_kernel_symbol", "id", "arch_vgpr_count", "accum_vgpr_count"
            )
        }
        columns["registers"] = _map_ids(rows["kernel_id"], registers)
        shared = rows["group_segment_size"]
        columns["shared_bytes"] = np.where(shared == NULL, ABSENT, shared)
        return make_table(
            "kernel_shapes", {**self._place_columns(rows, rows["agent_id"]), **columns}
        )

    def _copies(self) -> Table:
        """Return the copies; one between two GPUs is "p2p"."""
        ends = ("src_agent_id", "dst_agent_id")
        rows = self.process.spans(
            _COPIES, "pid", "name_id", "size", "queue_id", "stream_id", "event_id", *ends
        )
        source, target = (_map_ids(rows[end], self.gpus) for end in ends)
        names = self._names(rows)
        directions = names.by_text(np.array(list(map(_direction, names.texts)), object))
        is_between = (directions == "d2d") & (source != target) & (source >= 0) & (target >= 0)
        directions[is_between] = "p2p"
        # A copy is work of its source device, or of its target if it comes from the host.
        agents = np.where(source >= 0, rows["src_agent_id"], rows["dst_agent_id"])
        return make_table(
            "copies",
            {
                **self._place_columns(rows, agents),
                "direction": Names.of(directions),
                "n_bytes": np.where(rows["size"] == NULL, ABSENT, rows["size"]),
                "src_device": np.where(is_between, source, ABSENT),
                "dst_device": np.where(is_between, target, ABSENT),
            },
        )

    def _thread_columns(self, rows: Table) -> dict[str, Any]:
        """Return the columns of time and place of host events."""
        return {
            **_time_columns(rows),
            "process": _map_ids(rows["pid"], self.pids),
            "thread": _map_ids(rows["tid"], self.tids),
        }

    def _names(self, rows: Table) -> Names:
        """Return the names of regions and copies."""
        return names_by_key(rows["name_id"], lambda key: self.strings.get(key, ""))

    def _correlations(self, rows: Table) -> npt.NDArray[np.int64]:
        """Return the correlation of each row: the ``stack_id`` of its event."""
        return look_up(rows["event_id"], self.events["id"], self.events["stack_id"])

    def _api_calls(self, rows: Table) -> Table:
        return make_table(
            "api_calls",
            {
                **self._thread_columns(rows),
                "name": self._names(rows),
                "correlation": self._correlations(rows),
            },
        )

    def _host_ops(self, regions: Table, kinds: Names) -> Table:
        """Return all regions but API calls and markers; their source is the category."""
        is_other = ~(_matches(kinds, _API_CATEGORY) | _matches(kinds, _MARKER_CATEGORY))
        rows, row_kinds = regions.take(is_other), kinds[is_other]
        plain = (kind.lower().removeprefix("rocm_") for kind in row_kinds.texts)
        sources = [kind.removesuffix("_api") or "region" for kind in plain]
        return make_table(
            "host_ops",
            {
                **self._thread_columns(rows),
                "name": self._names(rows),
                "source": Names.coded(sources, row_kinds.packed),
            },
        )

    def _ranges(self, rows: Table) -> Table:
        """Return the ROCTx ranges; their texts are messages of events."""
        functions, messages = self._names(rows), self._messages()
        texts = [
            messages.get(event) or function
            for event, function in zip(rows["event_id"].tolist(), functions, strict=True)
        ]
        is_process = functions.by_text(["Process" in text for text in functions.texts])
        kinds = Names.coded(["push_pop", "start_end"], np.asarray(is_process, np.int64))
        return make_table("ranges", {**self._thread_columns(rows), "name": texts, "kind": kinds})

    def _messages(self) -> dict[int, str]:
        """Return event → the text of its marker."""
        return self.process.messages(
            key for key, text in self.strings.items() if _MARKER_CATEGORY.match(text)
        )

    def _marks(self) -> Table:
        """Return the ROCTx marks."""
        rows = self.process.numbers("sample", "timestamp", "track_id", "event_id")
        tracks = self.process.rows("track", "id", "pid", "tid")
        owners = {key: self.pids.get(pid, ABSENT) for key, pid, _ in tracks}
        threads = {key: self.tids.get(tid, ABSENT) for key, _, tid in tracks}
        messages = self._messages()
        texts = [messages.get(event, "") for event in rows["event_id"].tolist()]
        is_mark = np.array(list(map(bool, texts)), np.bool_) & (rows["timestamp"] != NULL)
        marks = rows.take(is_mark)
        return make_table(
            "marks",
            {
                "start_ns": marks["timestamp"],
                "process": _map_ids(marks["track_id"], owners),
                "thread": _map_ids(marks["track_id"], threads),
                "name": [text for text, kept in zip(texts, is_mark.tolist(), strict=True) if kept],
            },
        )

    def _collectives(self, regions: Table) -> Table:
        """Return the RCCL calls as collectives."""
        names = self._names(regions)
        found = [_COLLECTIVE.match(name) for name in names.texts]
        ops = [collective_op(call.group(1)) if call else "" for call in found]
        is_collective = names.by_text(np.array(ops, np.bool_))
        rows = regions.take(is_collective)
        row_ops = [ops[code] for code in names[is_collective].codes.tolist()]
        arguments = self.process.arguments(rows["event_id"])
        call_arguments = [arguments.get(event, {}) for event in rows["event_id"].tolist()]
        types = [_type(call.get("datatype", "")) for call in call_arguments]
        return make_table(
            "collectives",
            {
                **self._thread_columns(rows),
                "op": row_ops,
                "n_bytes": [
                    _size(op, call, kind)
                    for op, call, kind in zip(row_ops, call_arguments, types, strict=True)
                ],
                "dtype": types,
                "group": [call.get("comm", "") for call in call_arguments],
                "backend": ["nccl"] * len(rows),
                "peer": [whole_or_absent(call.get("peer")) for call in call_arguments],
            },
        )


def _matches(kinds: Names, wanted: re.Pattern[str]) -> npt.NDArray[np.bool_]:
    """Return whether the category of each row matches ``wanted``."""
    found = [wanted.match(text) is not None for text in kinds.texts]
    return np.asarray(kinds.by_text(np.array(found, np.bool_)), np.bool_)


def _time_columns(rows: Table) -> dict[str, npt.NDArray[np.int64]]:
    return {"start_ns": rows["start"], "end_ns": rows["end"]}


def _map_ids(keys: npt.NDArray[np.int64], numbers: dict[int, int]) -> npt.NDArray[np.int64]:
    """Return the number of each key; `ABSENT` for keys without number."""
    known = {key: n for key, n in numbers.items() if is_id(key)}  # damaged tables have other keys
    ids = np.array(list(known), np.int64)
    return look_up(keys, ids, np.array(list(known.values()), np.int64))


def _direction(name: str) -> str:
    """Return the direction of a copy from its name."""
    return next((short for long, short in _DIRECTIONS.items() if long in name.upper()), "unknown")


def _type(text: str) -> str:
    """Return the element type of a collective, which is recorded as a number or a name."""
    if text.isdecimal():
        return _TYPES_BY_NUMBER[int(text)] if int(text) < len(_TYPES_BY_NUMBER) else ""
    plain = re.sub(r"^nccl|\W", "", text).lower()
    plain = _ALIASES.get(plain, plain)
    return plain if plain in _TYPE_BYTES else ""


def _size(op: str, arguments: dict[str, str], kind: str) -> int:
    """Return the bytes of a collective, from its arguments; `ABSENT` if unknown."""
    counts = (whole_or_absent(arguments.get(name)) for name in ("count", "sendcount", "recvcount"))
    count = next((n for n in counts if n >= 0), ABSENT)
    return (
        count * _TYPE_BYTES[kind] if kind and count >= 0 and op not in _SIZED_PER_RANK else ABSENT
    )
