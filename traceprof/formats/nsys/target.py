"""Read the description in an nsys export: versions, devices, processes, threads, environment."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from traceprof.formats.nsys.communication import Communicator
from traceprof.formats.nsys.mpi import mpi_ranks
from traceprof.formats.nsys.schema import (
    KERNELS,
    are_whole_numbers,
    process_of,
    process_sql,
    read_names,
    thread_of,
)
from traceprof.formats.shared.launchers import RANK_VARIABLES, TOPOLOGY_VARIABLES
from traceprof.formats.sqlite.columns import ColumnType
from traceprof.formats.sqlite.database import Database
from traceprof.model.table import Table
from traceprof.model.tables import ABSENT, empty_table, make_table
from traceprof.model.trace import TraceInfo

_NAMES: Final = """
    Hostname host, OsDescription os, KernelVersion kernel, CpuDescription cpu, CpuCores cpu_cores,
    CpuArchitecture cpu_architecture, NvDriverVersion nvidia_driver,
    CudaDriverVersion cuda_driver"""
_PROPERTIES: Final[Mapping[str, str]] = dict(map(str.split, _NAMES.split(",")))
"""Property of the target → its name here. All others are ignored: they hold environments."""
_PROPERTIES_OF_TARGET: Final = "TARGET_INFO_SYSTEM_ENV"
_DEVICE_COLUMNS: Final = {"device": "id", "name": "name", "uuid": "uuid"} | {
    "memory_bytes": "totalMemory",
    "memory_bytes_per_s": "memoryBandwidth",
    "sm_count": "smCount",
}
_NO_NUMBERS: Final = dict.fromkeys(("rank", "local_rank", "world_size"), ABSENT)
_NO_RANK: Final[Mapping[str, Any]] = {"name": "", **_NO_NUMBERS, "host": ""}
"""Columns of a process that is no known part of a distributed program."""


def read_info(database: Database, format_name: str) -> TraceInfo:
    """Return the origin of the export: profiler, host, and clock."""
    about = {**database.settings("EXPORT_META_DATA"), **database.settings("META_DATA_EXPORT")}
    product = about.get("EXPORT_PRODUCT_NAME", "Nsight Systems")
    return TraceInfo(
        path=str(database.path),
        format=format_name,
        profiler=_profiler(database, product, about.get("EXPORT_PRODUCT_VERSION", "")),
        schema_version=about.get("EXPORT_SCHEMA_VERSION", ""),
        host=database.settings(_PROPERTIES_OF_TARGET).get("Hostname", ""),
        utc_epoch_ns=first_number(database, "TARGET_INFO_SESSION_START_TIME", "utcEpochNs"),
        is_without_gpu=database.settings("TRACEPROF_ENVIRONMENT").get("gpu.count") == "0",
        unread=tuple(
            f"{what} ({name})"
            for name, what in _UNREAD
            if name in database.tables and database.rows(f"SELECT 1 FROM {name} LIMIT 1")
        ),
    )


_UNREAD: Final = (
    ("SAMPLING_CALLCHAINS", "CPU samples"),
    ("CUDA_CALLCHAINS", "backtraces of CUDA calls"),
    ("OSRT_CALLCHAINS", "backtraces of operating system calls"),
    ("SCHED_EVENTS", "scheduling of threads on CPU cores"),
)


_NSYS: Final = "Nsight Systems"
_FIRST_STRINGS: Final = 100_000
_NSYS_FOLDER: Final = re.compile(
    r"nsight[ _-]?systems(?:-cli)?[-/\\ ]+(20\d\d\.\d+\.\d+)[/\\]target-", re.IGNORECASE
)


def _profiler(database: Database, product: str, version: str) -> str:
    """Return the profiler that recorded the trace, with its version.

    The export's own version is that of the nsys that exported it. The version that recorded is in
    the paths of nsys's files, which occur in strings.
    """
    if _NSYS not in product:
        return f"{product} {version}".strip()
    texts = [
        f"SELECT {column} FROM (SELECT {column} FROM {table} LIMIT {_FIRST_STRINGS}) "
        f"WHERE {column} LIKE '%nsight%target-%' LIMIT 20"
        for table, column in (("DIAGNOSTIC_EVENT", "text"), ("StringIds", "value"))
        if column in database.columns(table)
    ]
    versions = (
        folder.group(1)
        for sql in texts
        for (text,) in database.rows(sql)
        if (folder := _NSYS_FOLDER.search(str(text)))
    )
    recorded = next(versions, "")
    # traceprof exports its recordings with the nsys that recorded them.
    by_traceprof = "TRACEPROF_ENVIRONMENT" in database.tables
    if not version or (f"{version}.".startswith(f"{recorded}.") if recorded else by_traceprof):
        return f"{product} {version or recorded}".strip()
    return f"{product} {recorded}".strip() + f" (export by {version})"


def read_devices(database: Database) -> Table:
    """Return the GPUs; display adapters that cannot run CUDA are omitted."""
    present = database.columns("TARGET_INFO_GPU")
    if "id" not in present:
        return empty_table("devices")
    wanted = {column: stored for column, stored in _DEVICE_COLUMNS.items() if stored in present}
    if {"computeMajor", "computeMinor"} <= present:
        wanted["compute_capability"] = "computeMajor * 10 + computeMinor"
    rows = database.rows(f"SELECT {', '.join(wanted.values())} FROM TARGET_INFO_GPU ORDER BY id")
    stored_columns = dict(zip(wanted, zip(*rows, strict=True), strict=bool(rows)))
    columns: dict[str, list[Any]] = {
        column: [value if isinstance(value, str) else "" for value in values]
        if column in ("name", "uuid")
        else list(map(_number, values))
        for column, values in stored_columns.items()
    }
    devices = make_table("devices", columns)
    is_gpu = devices["device"] != ABSENT
    if "memory_bytes" in columns:
        is_gpu &= devices["memory_bytes"] != 0
    return devices.take(is_gpu)


def _number(value: Any) -> int:
    """Return a whole number; `ABSENT` for other values, which damaged files have."""
    is_whole = isinstance(value, float | int) and value == value // 1
    return int(value) if is_whole and abs(value) < 1 << 62 else ABSENT


def _whole_or_absent(column: str) -> str:
    """Return the SQL of a column, with `ABSENT` in place of values that are not whole numbers."""
    return f"CASE WHEN {are_whole_numbers(column)} THEN {column} ELSE {ABSENT} END"


def physical_devices(database: Database) -> dict[tuple[int, int], int]:
    """Return (process, CUDA ordinal) → device of the machine, where the two numbers differ.

    A process numbers the devices in CUDA_VISIBLE_DEVICES from 0. If the export does not have their
    numbers in the machine, devices with the same ordinal are distinguished if NCCL used them: NCCL
    needs one GPU per rank.
    """
    if not {"gpuId", "cudaId", "pid"} <= database.columns("TARGET_INFO_CUDA_DEVICE"):
        return _devices_by_nccl(database)
    rows = database.rows(
        "SELECT pid, cudaId, gpuId FROM TARGET_INFO_CUDA_DEVICE "
        f"WHERE {are_whole_numbers('pid', 'cudaId', 'gpuId')} AND cudaId <> gpuId"
    )
    return {(pid, ordinal): device for pid, ordinal, device in rows}


def _devices_by_nccl(database: Database) -> dict[tuple[int, int], int]:
    """Return (process, CUDA ordinal) → unique device number, for ordinals NCCL used repeatedly.

    The first process by id keeps the ordinal; the other processes get the next unused number.
    """
    if not {"globalPid", "deviceId", "shortName"} <= database.columns(KERNELS):
        return {}
    sound = are_whole_numbers("id")
    names = database.rows(f"SELECT id FROM StringIds WHERE value LIKE '%nccl%kernel%' AND {sound}")
    if not names:
        return {}
    pairs = (
        f"SELECT DISTINCT {process_sql('globalPid')}, deviceId FROM {KERNELS} "
        f"WHERE {are_whole_numbers('globalPid', 'deviceId')}"
    )
    listed = ", ".join(str(name) for (name,) in names)
    nccl_pairs = sorted(database.rows(f"{pairs} AND shortName IN ({listed})"))
    if len({device for _, device in nccl_pairs}) == len(nccl_pairs):
        return {}
    used_ordinals = {device for _, device in database.rows(pairs)}
    unused = (
        number
        for number in range(len(used_ordinals) + len(nccl_pairs))
        if number not in used_ordinals
    )
    assigned, found = set[int](), dict[tuple[int, int], int]()
    for process, device in nccl_pairs:
        if device in assigned:
            found[process, device] = next(unused)
        assigned.add(device)
    return found


def read_processes(
    database: Database, used: np.ndarray, groups: Callable[[], Sequence[Communicator]]
) -> Table:
    """Return the processes with the ids ``used``, with names and ranks if the export has them.

    ``groups`` returns the communicators of the processes. It is called only if no other table has
    the ranks; then the rank in the largest communicator counts.
    """
    names: dict[int, str] = {}
    if {"pid", "name"} <= database.columns("PROCESSES"):
        found = database.rows(f"SELECT pid, name FROM PROCESSES WHERE {are_whole_numbers('pid')}")
        names = {pid: str(name or "") for pid, name in found}
    ranks = _rank_columns(database, groups)
    rows = [{**_NO_RANK, **ranks.get(process, {})} for process in used.tolist()]
    for row, process in zip(rows, used.tolist(), strict=True):
        row["name"] = row["name"] or names.get(process, "")
    if len(rows) == 1 and rows[0]["rank"] == ABSENT:
        rows[0] |= _rank_in_environment(read_environment(database))
    columns = {column: [row[column] for row in rows] for column in _NO_RANK}
    return make_table("processes", {"process": used, **columns})


def _rank_in_environment(environment: Table) -> dict[str, int]:
    """Return rank, local rank, and world size of the only process, if its variables have them."""
    variables = {row["name"]: row["value"] for row in environment.rows()}
    found: dict[str, int] = {}
    for column, names in RANK_VARIABLES.items():
        texts = (variables.get(name, "") for name in names)
        text = next((text for text in texts if text.isdigit()), "")
        if 0 < len(text) < _MAX_DIGITS:
            found[column] = int(text)
    return found if "rank" in found else {}


_MAX_DIGITS: Final = 8
"""No run has ranks of so many digits."""


def _rank_columns(
    database: Database, groups: Callable[[], Sequence[Communicator]]
) -> dict[int, Mapping[str, Any]]:
    """Return process → its rank, world size, and other known columns of the table of processes."""
    if "pid" in database.columns("TRACEPROF_PROCESSES"):
        rows = database.rows(
            f"SELECT pid, coalesce(name, ''), {_whole_or_absent('rank')}, "
            f"{_whole_or_absent('localRank')}, {_whole_or_absent('worldSize')}, "
            "coalesce(host, '') FROM TRACEPROF_PROCESSES "
            f"WHERE {are_whole_numbers('pid')}"
        )
        return {
            pid: dict(zip(_NO_RANK, (str(name), *numbers, str(host)), strict=True))
            for pid, name, *numbers, host in rows
        }
    if (ranks := mpi_ranks(database)) is not None:
        return {pid: {"rank": rank} for pid, rank in ranks.items()}
    return {
        communicator.process: {"rank": communicator.rank, "world_size": communicator.size}
        for communicator in sorted(groups(), key=lambda communicator: communicator.size)
    }


def named_processes(database: Database) -> set[int]:
    """Return the processes that have named threads."""
    if not {"nameId", "globalTid"} <= database.columns("ThreadNames"):
        return set()
    rows = database.rows(
        f"SELECT DISTINCT globalTid FROM ThreadNames WHERE {are_whole_numbers('globalTid')}"
    )
    return set(process_of(np.array([key for (key,) in rows], np.int64)).tolist())


def read_threads(database: Database, processes: np.ndarray) -> Table:
    """Return the names of the threads of these processes."""
    if not {"nameId", "globalTid"} <= database.columns("ThreadNames"):
        return empty_table("threads")
    wanted = dict.fromkeys(("nameId", "globalTid"), ColumnType.INTEGER)
    raw = database.read_columns("ThreadNames", wanted)
    kept = np.isin(process_of(raw["globalTid"]), processes)
    owners, ids = (np.asarray(raw[name])[kept] for name in ("globalTid", "nameId"))
    names = read_names(database, ids)
    return make_table(
        "threads", {"process": process_of(owners), "thread": thread_of(owners), "name": names}
    )


def read_environment(database: Database) -> Table:
    """Return the properties of the machine that cannot contain a secret."""
    found = {
        plain: value
        for name, value in database.settings(_PROPERTIES_OF_TARGET).items()
        if (plain := _PROPERTIES.get(name)) and value
    }
    if {"name", "value"} <= database.columns("META_DATA_CAPTURE"):
        # Only variables with rank and location are read; others may be secret.
        rows = database.rows(
            "SELECT value FROM META_DATA_CAPTURE WHERE name LIKE "
            "'PROCESS\\__%:ENVIRONMENT_VARIABLE%' ESCAPE '\\' ORDER BY rowid DESC"
        )
        variables = dict(str(value).partition("=")[::2] for (value,) in rows)
        wanted = [name for names in RANK_VARIABLES.values() for name in names]
        found |= {name: variables[name] for name in wanted if variables.get(name, "").isdigit()}
        found |= {name: variables[name] for name in TOPOLOGY_VARIABLES if name in variables}
    found |= database.settings("TRACEPROF_ENVIRONMENT")
    return make_table("environment", {"name": list(found), "value": list(found.values())})


def first_number(database: Database, table: str, column: str) -> int | None:
    """Return the whole number in the first row of a column; None if there is none."""
    if column not in database.columns(table):
        return None
    rows = database.rows(f"SELECT {column} FROM {table} LIMIT 1")
    value = rows[0][0] if rows else None
    return value if isinstance(value, int) else None
