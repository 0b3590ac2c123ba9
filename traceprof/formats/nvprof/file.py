"""Read the strings, the clock, the process, and the machine from a file of nvprof."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pydemumble

from traceprof.formats.nvprof.format import PREFIX
from traceprof.formats.shared.cupti import names_by_number
from traceprof.formats.sqlite.columns import NULL, ColumnType
from traceprof.formats.sqlite.database import Database, cut_note
from traceprof.formats.sqlite.schema import UnsoundRowsError
from traceprof.model.table import Column, Names, Table
from traceprof.model.tables import ABSENT, empty_table, make_table
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import FIRST_EPOCH_NS, TraceInfo
from traceprof.names.classes import UserRule

_TIMED_TABLES: Final = (
    *("CONCURRENT_KERNEL", "KERNEL", "GRAPH_TRACE", "MEMCPY", "MEMCPY2", "MEMSET"),
    *("RUNTIME", "DRIVER", "SYNCHRONIZATION", "OVERHEAD"),
)
_PROCESS: Final = 1  # kind of object
_GPU: Final = 1
_PCIE_GPU: Final = 0


@dataclass(frozen=True, slots=True)
class NvprofFile:
    """An open file. Its times are ns since 1970; ``zero_ns`` is time 0 of the trace.

    ``process`` is the profiled process: a file has only one, and device events do not name it.
    ``n_lost`` is the number of records that the profiler lost; their times are 0 or NULL.
    """

    database: Database
    rules: Sequence[UserRule]
    strings: Mapping[int, str]
    zero_ns: int
    process: int
    n_lost: int

    def has(self, table: str) -> bool:
        """Return whether the file has the table of this kind of activity."""
        return PREFIX + table in self.database.tables

    def columns(
        self,
        table: str,
        names: Sequence[str],
        window: TimeWindow | None = None,
        optional: Sequence[str] = (),
        spare: Sequence[str] = (),
    ) -> dict[str, npt.NDArray[np.int64]]:
        """Return whole-number columns of a table, and ``start_ns`` and ``end_ns``.

        Times are on the clock of the trace. Lost records are omitted and, with ``window``, rows
        that do not overlap it. ``optional`` columns may be missing; they are then all NULL. The
        graph node of an event that is in no graph is NULL too.
        """
        if window is not None:
            window = window.moved(self.zero_ns)
        wanted = dict.fromkeys(("start", "end", *names, *optional), ColumnType.INTEGER)
        raw = self.database.read_columns(PREFIX + table, wanted, window, optional, spare=spare)
        values = {name: np.asarray(column, np.int64) for name, column in raw.items()}
        kept = (values["start"] > 0) & (values["end"] > 0)
        values = {name: column[kept] for name, column in values.items()}
        if "graphNodeId" in values:
            values["graphNodeId"] = np.where(
                values["graphNodeId"] == 0, NULL, values["graphNodeId"]
            )
        start, end = values.pop("start") - self.zero_ns, values.pop("end") - self.zero_ns
        return {"start_ns": start, "end_ns": np.maximum(start, end), **values}

    def rows(
        self, table: str, numbers: Sequence[str], ids: Sequence[str] = ()
    ) -> list[tuple[Any, ...]]:
        """Return whole ``numbers`` and hexadecimal ``ids`` of a table; empty if one is missing."""
        if not {*numbers, *ids} <= self.database.columns(PREFIX + table):
            return []
        columns = ", ".join([*map(integer_sql, numbers), *(f"hex({name})" for name in ids)])
        return self.database.rows(f"SELECT {columns} FROM {PREFIX}{table}")

    def names(self, ids: Column) -> Names:
        """Return the strings with these ids; id 0 is no string."""

        def string(key: int) -> str:
            return "" if key in (0, NULL) else self.strings.get(key, f"[string {key}]")

        return names_by_number(ids, string)

    def kernel_names(self, ids: Column) -> Names:
        """Return the demangled names of kernels."""
        mangled = self.names(ids)
        plain = (pydemumble.demangle(name) or name for name in mangled.texts.tolist())
        return Names.coded(plain, mangled.packed, is_sorted=True)


def open_nvprof(database: Database, rules: Sequence[UserRule]) -> NvprofFile:
    """Return the file in an open database of nvprof."""
    strings = {
        key: bytes(value or b"").decode("utf-8", "replace")
        for key, value in database.rows("SELECT _id_, CAST(value AS BLOB) FROM StringTable")
        if isinstance(key, int)
    }
    database.catalogue.zero_is_lost = True
    n_lost, first = 0, []
    for table in _TIMED_TABLES:
        if {"start", "end"} <= database.columns(PREFIX + table):
            was_lost = f"{integer_sql('start')} <= 0 OR {integer_sql('end')} <= 0"
            lost, start = _totals(
                database,
                PREFIX + table,
                f"total({was_lost}), "
                f"min(CASE WHEN NOT ({was_lost}) THEN {integer_sql('start')} END)",
            )
            n_lost += int(lost)
            first.append(start)
    if "timestamp" in database.columns(f"{PREFIX}MARKER"):
        first += _totals(database, f"{PREFIX}MARKER", f"min({integer_sql('timestamp')})")
    window = cut_note(database).window
    first.append(None if window is None else window.start_ns)
    zero_ns = min((int(start) for start in first if start is not None), default=0)
    file = NvprofFile(database, rules, strings, zero_ns, ABSENT, n_lost)
    return replace(file, process=_process(file))


def _totals(database: Database, table: str, wanted: str) -> list[Any]:
    """Return aggregates of a table, and check its rows in the same pass.

    Raises:
        UnsoundRowsError: the table has unsound rows.
    """
    sound = database.catalogue.soundness(table)
    n_unsound = f"total(NOT ({sound.sql()}))" if sound else "0"
    ((n_found, *totals),) = database.rows(f"SELECT {n_unsound}, {wanted} FROM {table}")
    if n_found:
        raise UnsoundRowsError(table)
    database.catalogue.is_sound(table)
    return totals


def _process(file: NvprofFile) -> int:
    """Return the profiled process: the one with most API calls, otherwise the first named one."""
    for table in ("RUNTIME", "DRIVER"):
        if "processId" in file.database.columns(PREFIX + table):
            rows = file.database.rows(
                f"SELECT {integer_sql('processId')} FROM {PREFIX}{table} "
                "GROUP BY 1 ORDER BY count(*) DESC LIMIT 1"
            )
            if rows:
                return int(rows[0][0])
    rows = file.rows("NAME", ["objectKind"], ["objectId"])
    named = [owner for kind, owner in rows if kind == _PROCESS]
    return int(object_ids(named[:1])[0][0]) if named else ABSENT


def integer_sql(column: str) -> str:
    """Return SQL of the whole number in ``column``; 0 if there is none.

    The brackets matter: SQLite treats a quoted name that does not exist as a text.
    """
    return f"coalesce(CAST([{column}] AS INTEGER), 0)"


def object_ids(texts: Sequence[str]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return process and thread in hexadecimal object ids: two little-endian 32-bit numbers."""
    distinct, place = np.unique(np.asarray(texts, str), return_inverse=True)
    halves = [bytes.fromhex(text)[:8].ljust(8, b"\0") for text in distinct.tolist()]
    processes = np.array([int.from_bytes(half[:4], "little") for half in halves], np.int64)
    threads = np.array([int.from_bytes(half[4:], "little") for half in halves], np.int64)
    return processes[place.ravel()], threads[place.ravel()]


def read_info(file: NvprofFile, format_name: str) -> TraceInfo:
    """Return the origin of the file: profiler and clock."""
    versions = file.database.rows("SELECT version FROM Version")
    return TraceInfo(
        path=str(file.database.path),
        format=format_name,
        profiler="nvprof",
        schema_version=str(versions[0][0]) if versions else "",
        utc_epoch_ns=file.zero_ns if file.zero_ns >= FIRST_EPOCH_NS else None,
    )


def read_devices(file: NvprofFile) -> Table:
    """Return the GPUs."""
    numbers = ("id", "name", "globalMemorySize", "globalMemoryBandwidth", "numMultiprocessors")
    capability = ("computeCapabilityMajor", "computeCapabilityMinor")
    rows = file.rows("DEVICE", (*numbers, *capability), ["uuid"]) or [
        (*row, 0, ABSENT, uuid) for *row, uuid in file.rows("DEVICE", numbers, ["uuid"])
    ]
    if not rows:
        return empty_table("devices")
    *columns, uuids = zip(*sorted(rows), strict=True)
    number, name, n_bytes, n_kilobytes_per_s, sm_count, major, minor = np.array(columns, np.int64)
    return make_table(
        "devices",
        {
            "device": number,
            "name": [file.strings.get(key, "") for key in name.tolist()],
            "uuid": list(map(_uuid, uuids)),
            "memory_bytes": n_bytes,
            "memory_bytes_per_s": n_kilobytes_per_s * 1000,
            "sm_count": sm_count,
            "compute_capability": major * 10 + minor,
        },
    )


def read_processes(file: NvprofFile, used: np.ndarray) -> Table:
    """Return the processes with the ids ``used``, named by their programs.

    nvprof stores the whole command line, whose arguments may contain secrets.
    """
    rows = file.rows("NAME", ["objectKind", "name"], ["objectId"])
    owners = [(owner, file.strings.get(name, "")) for kind, name, owner in rows if kind == _PROCESS]
    processes, _ = object_ids([owner for owner, _ in owners])
    names = {pid: _program(text) for pid, (_, text) in zip(processes.tolist(), owners, strict=True)}
    return make_table(
        "processes", {"process": used, "name": [names.get(int(process), "") for process in used]}
    )


def read_environment(file: NvprofFile) -> Table:
    """Return the connections of the devices."""
    found = {**_pcie(file), **_nvlink(file)}
    return make_table("environment", {"name": list(found), "value": list(found.values())})


def _pcie(file: NvprofFile) -> dict[str, str]:
    """Return a name for each GPU → its PCIe link."""
    numbers = ("type", "pcieGeneration", "linkRate", "linkWidth")
    return {
        f"pcie device {int.from_bytes(bytes.fromhex(device)[:4], 'little')}": (
            f"generation {generation}, {width} lanes, {rate / 1000:g} GT/s each"
        )
        for kind, generation, rate, width, device in file.rows("PCIE", numbers, ["id"])
        if kind == _PCIE_GPU
    }


def _nvlink(file: NvprofFile) -> dict[str, str]:
    """Return a name for each pair of connected devices → its NVLinks."""
    devices = {uuid: f"device {device}" for device, uuid in file.rows("DEVICE", ["id"], ["uuid"])}
    numbers = ("typeDev0", "typeDev1", "physicalNvLinkCount", "bandwidth")
    found = {}
    for kind, other_kind, n_links, kilobytes_per_s, end, other_end in file.rows(
        "NVLINK", numbers, ["idDev0", "idDev1"]
    ):
        ends = (
            devices.get(uuid, "device") if code == _GPU else "processor"
            for code, uuid in ((kind, end), (other_kind, other_end))
        )
        found[f"nvlink {' - '.join(sorted(ends))}"] = (
            f"{n_links} links, {kilobytes_per_s / 1e6:g} GB/s"
        )
    return found


def _program(command: str) -> str:
    """Return the program in a command line and, for an interpreter, the script."""
    program, *arguments = command.split() or [""]
    script = arguments[:1] if arguments and arguments[0].endswith((".py", ".sh")) else []
    return " ".join([program, *script])


def _uuid(digits: str) -> str:
    """Return a UUID grouped like the output of nvidia-smi."""
    plain = digits.lower()
    cuts = (0, 8, 12, 16, 20, len(plain))
    return "-".join(plain[start:end] for start, end in pairwise(cuts))
