"""A file of nvprof: its strings, its clock, its process, and what it says of the machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd
import pydemumble

from traceprof.formats.nvprof.format import PREFIX
from traceprof.formats.sqlite.columns import NULL, Column, ColumnType, categorical
from traceprof.formats.sqlite.copying import cut_note
from traceprof.formats.sqlite.database import Database
from traceprof.formats.sqlite.schema import UnsoundRowsError
from traceprof.model.tables import ABSENT, empty_table, make_table
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import TraceInfo
from traceprof.names.classes import KernelRule

_TIMED_TABLES: Final = (
    "CONCURRENT_KERNEL",
    "KERNEL",
    "GRAPH_TRACE",
    "MEMCPY",
    "MEMCPY2",
    "MEMSET",
    "RUNTIME",
    "DRIVER",
    "SYNCHRONIZATION",
    "OVERHEAD",
)
_THREAD_BITS: Final = 0xFFFFFFFF
_INTEGER: Final = ColumnType.INTEGER


@dataclass(frozen=True, slots=True)
class NvprofFile:
    """An open file. Times in it are ns since 1970; ``zero_ns`` is time 0 of the trace.

    ``process`` is the one that was profiled: a file has only one, and device work names none.
    ``n_lost`` counts the records that the profiler lost, whose times are 0 or NULL.
    """

    database: Database
    rules: Sequence[KernelRule]
    strings: Mapping[int, str]
    zero_ns: int
    process: int
    n_lost: int

    def has(self, table: str) -> bool:
        """Return whether the table of this kind of activity exists."""
        return PREFIX + table in self.database.tables

    def columns(
        self,
        table: str,
        names: Sequence[str],
        window: TimeWindow | None = None,
        optional: Sequence[str] = (),
    ) -> dict[str, npt.NDArray[np.int64]]:
        """Return whole-number columns of a table, and ``start_ns`` and ``end_ns``.

        Times are on the clock of the trace; lost records are left out, and with ``window`` what
        does not overlap it.
        """
        if window is not None:
            window = TimeWindow(window.start_ns + self.zero_ns, window.end_ns + self.zero_ns)
        raw = self.database.read_columns(
            PREFIX + table,
            dict.fromkeys(("start", "end", *names), _INTEGER),
            window,
            optional=optional,
        )
        values = {name: np.asarray(column, np.int64) for name, column in raw.items()}
        kept = (values["start"] > 0) & (values["end"] > 0)
        values = {name: column[kept] for name, column in values.items()}
        start, end = values.pop("start") - self.zero_ns, values.pop("end") - self.zero_ns
        return {"start_ns": start, "end_ns": np.maximum(start, end), **values}

    def names(self, ids: Column) -> pd.Categorical:
        """Return the strings with these ids; 0 is no string."""
        distinct, place = np.unique(np.asarray(ids, np.int64), return_inverse=True)
        found = [
            "" if key in (0, NULL) else self.strings.get(int(key), f"[string {key}]")
            for key in distinct
        ]
        return categorical(place.ravel(), found)

    def kernel_names(self, ids: Column) -> pd.Categorical:
        """Return the names of kernels as C++ writes them."""
        mangled = self.names(ids)
        plain = [pydemumble.demangle(str(name)) or str(name) for name in mangled.categories]
        return categorical(mangled.codes, plain)


def open_nvprof(database: Database, rules: Sequence[KernelRule]) -> NvprofFile:
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
            was_lost = f"{whole('start')} <= 0 OR {whole('end')} <= 0"
            lost, start = _totals(
                database,
                PREFIX + table,
                f"total({was_lost}), min(CASE WHEN NOT ({was_lost}) THEN {whole('start')} END)",
            )
            n_lost += int(lost)
            first.append(start)
    if "timestamp" in database.columns(f"{PREFIX}MARKER"):
        first += _totals(database, f"{PREFIX}MARKER", f"min({whole('timestamp')})")
    window = cut_note(database).window
    first.append(None if window is None else window.start_ns)
    zero_ns = min((int(start) for start in first if start is not None), default=0)
    return NvprofFile(database, rules, strings, zero_ns, _process(database), n_lost)


def _totals(database: Database, table: str, wanted: str) -> list[Any]:
    """Return totals of the rows of a table, after a look whether they can be, in one pass."""
    sound = database.catalogue.soundness(table)
    n_unsound = f"total(NOT ({sound.sql()}))" if sound else "0"
    ((n_found, *totals),) = database.rows(f"SELECT {n_unsound}, {wanted} FROM {table}")
    if n_found:
        raise UnsoundRowsError(table)
    database.catalogue.is_sound(table)
    return totals


def _process(database: Database) -> int:
    """Return the process that was profiled, from its API calls or else from its own name."""
    for table in ("RUNTIME", "DRIVER"):
        if "processId" in database.columns(PREFIX + table):
            rows = database.rows(
                f"SELECT {whole('processId')} FROM {PREFIX}{table} "
                "GROUP BY 1 ORDER BY count(*) DESC LIMIT 1"
            )
            if rows:
                return int(rows[0][0])
    if {"objectKind", "objectId"} <= database.columns(f"{PREFIX}NAME"):
        rows = database.rows(f"SELECT hex(objectId) FROM {PREFIX}NAME WHERE objectKind = 1 LIMIT 1")
        if rows:
            return int(object_ids([rows[0][0]])[0][0])
    return ABSENT


def whole(column: str) -> str:
    """Return SQL for a whole number in ``column``, 0 where there is none.

    Brackets, because a quoted name that does not exist would be a text to SQLite.
    """
    return f"coalesce(CAST([{column}] AS INTEGER), 0)"


def object_ids(texts: Sequence[str]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return process and thread in object ids (hexadecimal): two little-endian 32-bit numbers."""
    distinct, place = np.unique(np.asarray(texts, str), return_inverse=True)
    halves = [bytes.fromhex(text)[:8].ljust(8, b"\0") for text in distinct.tolist()]
    processes = np.array([int.from_bytes(half[:4], "little") for half in halves], np.int64)
    threads = np.array([int.from_bytes(half[4:], "little") for half in halves], np.int64)
    return processes[place.ravel()], threads[place.ravel()]


def unsigned_thread(threads: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return thread ids as markers have them: API calls write the same 32 bits with a sign."""
    return threads & _THREAD_BITS


@cache
def call_names(domain: str) -> tuple[str, ...]:
    """Return the names of the calls of the CUDA ``runtime`` or ``driver``; the first is call 1.

    scripts/cuda_call_names.py makes the table from CUDA 11.8, the last to have nvprof.
    """
    file = resources.files("traceprof.formats.nvprof") / f"cuda_{domain}_calls.txt"
    return tuple(file.read_text(encoding="utf-8").split())


_GPU: Final = 1
_PCIE_GPU: Final = 0
_FIRST_EPOCH_NS: Final = 10**18  # September 2001: an earlier time is not one of day


def read_info(file: NvprofFile, format_name: str) -> TraceInfo:
    """Return where the file comes from."""
    versions = file.database.rows("SELECT version FROM Version")
    version = str(versions[0][0]) if versions else ""
    return TraceInfo(
        path=str(file.database.path),
        format=format_name,
        profiler="nvprof",
        schema_version=version,
        utc_epoch_ns=file.zero_ns if file.zero_ns >= _FIRST_EPOCH_NS else None,
    )


def read_devices(file: NvprofFile) -> pd.DataFrame:
    """Return the accelerators."""
    numbers = ("id", "name", "globalMemorySize", "globalMemoryBandwidth", "numMultiprocessors")
    present = file.database.columns(f"{PREFIX}DEVICE")
    if not {*numbers, "uuid"} <= present:
        return empty_table("devices")
    capability = ("computeCapabilityMajor", "computeCapabilityMinor")
    columns = [*map(whole, numbers), "hex(uuid)"]
    columns += map(whole, capability) if present.issuperset(capability) else ["0", "-1"]
    rows = file.database.rows(f"SELECT {', '.join(columns)} FROM {PREFIX}DEVICE ORDER BY 1")
    return make_table(
        "devices",
        {
            "device": [row[0] for row in rows],
            "name": [file.strings.get(row[1], "") for row in rows],
            "uuid": [_uuid(row[5]) for row in rows],
            "memory_bytes": [row[2] for row in rows],
            "memory_bytes_per_s": [row[3] * 1000 for row in rows],
            "sm_count": [row[4] for row in rows],
            "compute_capability": [row[6] * 10 + row[7] for row in rows],
        },
    )


def read_processes(file: NvprofFile, used: np.ndarray) -> pd.DataFrame:
    """Return the processes with these ids, named by their programs.

    nvprof keeps the whole command line, whose arguments may hold secrets.
    """
    names: dict[int, str] = {}
    if {"objectKind", "objectId", "name"} <= file.database.columns(f"{PREFIX}NAME"):
        rows = file.database.rows(
            f"SELECT hex(objectId), {whole('name')} FROM {PREFIX}NAME WHERE objectKind = 1"
        )
        processes, _ = object_ids([row[0] for row in rows])
        names = {
            int(process): _program(file.strings.get(row[1], ""))
            for process, row in zip(processes, rows, strict=True)
        }
    return make_table(
        "processes",
        {"process": used, "name": [names.get(int(process), "") for process in used]},
    )


def read_environment(file: NvprofFile) -> pd.DataFrame:
    """Return how the devices are connected."""
    found = {**_pcie(file), **_nvlink(file)}
    return make_table("environment", {"name": list(found), "value": list(found.values())})


def _pcie(file: NvprofFile) -> dict[str, str]:
    numbers = ("pcieGeneration", "linkRate", "linkWidth")
    if not {*numbers, "id", "type"} <= file.database.columns(f"{PREFIX}PCIE"):
        return {}
    rows = file.database.rows(
        f"SELECT hex(id), {', '.join(map(whole, numbers))} "
        f"FROM {PREFIX}PCIE WHERE type = {_PCIE_GPU}"
    )
    return {
        f"pcie device {int.from_bytes(bytes.fromhex(device)[:4], 'little')}": (
            f"generation {generation}, {width} lanes, {rate / 1000:g} GT/s each"
        )
        for device, generation, rate, width in rows
    }


def _nvlink(file: NvprofFile) -> dict[str, str]:
    numbers = ("typeDev0", "typeDev1", "physicalNvLinkCount", "bandwidth")
    has_links = {*numbers, "idDev0", "idDev1"} <= file.database.columns(f"{PREFIX}NVLINK")
    if not has_links or not {"id", "uuid"} <= file.database.columns(f"{PREFIX}DEVICE"):
        return {}
    devices = {
        uuid: f"device {device}"
        for device, uuid in file.database.rows(f"SELECT id, hex(uuid) FROM {PREFIX}DEVICE")
    }
    rows = file.database.rows(
        f"SELECT {', '.join(map(whole, numbers))}, hex(idDev0), hex(idDev1) FROM {PREFIX}NVLINK"
    )
    found = {}
    for kind, other_kind, n_links, kilobytes_per_s, end, other_end in rows:
        ends = (
            devices.get(uuid, "device") if code == _GPU else "processor"
            for code, uuid in ((kind, end), (other_kind, other_end))
        )
        found[f"nvlink {' - '.join(sorted(ends))}"] = (
            f"{n_links} links, {kilobytes_per_s / 1e6:g} GB/s"
        )
    return found


def _program(command: str) -> str:
    """Return the program and, where it is an interpreter, the script."""
    program, *arguments = command.split() or [""]
    script = arguments[:1] if arguments and arguments[0].endswith((".py", ".sh")) else []
    return " ".join([program, *script])


def _uuid(digits: str) -> str:
    """Return a UUID as nvidia-smi groups it."""
    plain = digits.lower()
    cuts = (0, 8, 12, 16, 20, len(plain))
    return "-".join(plain[start:end] for start, end in pairwise(cuts))
