"""The tables of an nsys-shaped SQLite file: those that traceprof writes, their codes and names.

`NSYS_TABLES` has nsys's own names and columns (those of versions 3.0 to 3.25 that traceprof can
fill), so that ``nsys stats`` and other tools read the file. `TRACEPROF_TABLES` holds what nsys
has no table for; the same tables are added to a file that nsys exported.

In every table times are integer ns since the session start (``TARGET_INFO_SESSION_START_TIME.
utcEpochNs`` is the wall clock there), ``globalTid`` is ``1 << 48 | pid << 24 | tid``,
``globalPid`` the same with tid 0, and ``nameId`` refers to ``StringIds``. NULL means not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.formats.shared.cupti import plain_api_name
from traceprof.formats.sqlite.columns import NULL, Column, categorical, distinct
from traceprof.formats.sqlite.database import Database
from traceprof.model.tables import ABSENT


def global_id(process: int, thread: int = 0) -> int:
    """Return nsys's ``globalTid`` (``globalPid`` without ``thread``) of a process and thread."""
    return 1 << 48 | (process & 0xFFFFFF) << 24 | (thread & 0xFFFFFF)


TRACEPROF_TABLES: Final[Mapping[str, str]] = {
    # Operators on the host. source: cpu_op, user_annotation, async (a worker thread's)
    "TRACEPROF_HOST_OPS": """
        start INTEGER NOT NULL, end INTEGER NOT NULL, globalTid INTEGER,
        nameId INTEGER NOT NULL, source TEXT NOT NULL, correlationId INTEGER""",
    # One row per collective or point-to-point call of one rank. bytes: the buffer of this rank;
    # end: the completion where the backend tells it, else when the call came back
    "TRACEPROF_COLLECTIVES": """
        start INTEGER NOT NULL, end INTEGER NOT NULL, globalTid INTEGER, op TEXT NOT NULL,
        bytes INTEGER, dtype TEXT, groupName TEXT, groupSize INTEGER, backend TEXT,
        sequence INTEGER, correlationId INTEGER, groupRank INTEGER, peer INTEGER,
        peerRank INTEGER, tag INTEGER""",
    # Time series. source: nic:eth0, gpu:0, process:1234, user …; metric names its unit
    "TRACEPROF_SAMPLES": """
        start INTEGER NOT NULL, source TEXT NOT NULL, metric TEXT NOT NULL, value REAL""",
    # Which process is which rank of which job
    "TRACEPROF_PROCESSES": """
        pid INTEGER NOT NULL, name TEXT, rank INTEGER, localRank INTEGER, worldSize INTEGER,
        host TEXT""",
    # What is known of the machine and the software; never secrets
    "TRACEPROF_ENVIRONMENT": "name TEXT NOT NULL, value TEXT",
    # How the file came about. recorded: the tables of the Trace that were captured, as a JSON
    # list, so that an empty table is told from one that nobody asked for
    "TRACEPROF_MANIFEST": "name TEXT NOT NULL, value TEXT",
}

_GPU_ROW: Final = """
        start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
        contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL,
        correlationId INTEGER, globalPid INTEGER,"""

KERNEL_SHAPE: Final = {
    "context": "contextId",
    "grid_x": "gridX",
    "grid_y": "gridY",
    "grid_z": "gridZ",
    "block_x": "blockX",
    "block_y": "blockY",
    "block_z": "blockZ",
    "registers": "registersPerThread",
    "static_shared_bytes": "staticSharedMemory",
    "dynamic_shared_bytes": "dynamicSharedMemory",
    "shared_bytes": "sharedMemoryTotal",
}
"""How kernels were launched: column of `kernel_shapes` → column of the table of kernels.

The last is ours, for recorders that know only the sum.
"""

NSYS_TABLES: Final[Mapping[str, str]] = {
    "StringIds": "id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL",
    "META_DATA_EXPORT": "name TEXT NOT NULL, value TEXT",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs INTEGER, utcTime TEXT, localTime TEXT",
    "TARGET_INFO_SYSTEM_ENV": """
        globalVid INTEGER NOT NULL, devStateName TEXT NOT NULL, name TEXT NOT NULL,
        nameEnum INTEGER NOT NULL, value TEXT NOT NULL""",
    "TARGET_INFO_GPU": """
        vmId INTEGER NOT NULL, id INTEGER NOT NULL, name TEXT, busLocation TEXT,
        totalMemory INTEGER, memoryBandwidth INTEGER, clockRate INTEGER, smCount INTEGER,
        uuid TEXT, cuDevice INTEGER, computeMajor INTEGER, computeMinor INTEGER""",
    "ANALYSIS_DETAILS": """
        globalVid INTEGER NOT NULL, duration INTEGER NOT NULL, startTime INTEGER NOT NULL,
        stopTime INTEGER NOT NULL""",
    "PROCESSES": "globalPid INTEGER, pid INTEGER, name TEXT",
    "ThreadNames": "nameId INTEGER NOT NULL, priority INTEGER, globalTid INTEGER",
    "ENUM_CUDA_MEMCPY_OPER": "id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT",
    "ENUM_CUDA_MEM_KIND": "id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT",
    "NVTX_EVENTS": """
        start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER,
        category INTEGER, color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER,
        textId INTEGER, domainId INTEGER, uint64Value INTEGER, int64Value INTEGER,
        doubleValue REAL, uint32Value INTEGER, int32Value INTEGER, floatValue REAL,
        jsonTextId INTEGER, jsonText TEXT""",
    "CUPTI_ACTIVITY_KIND_RUNTIME": """
        start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL,
        globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL,
        returnValue INTEGER NOT NULL, callchainId INTEGER""",
    "CUPTI_ACTIVITY_KIND_KERNEL": f"""{_GPU_ROW}
        demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER,
        registersPerThread INTEGER, gridX INTEGER, gridY INTEGER, gridZ INTEGER, blockX INTEGER,
        blockY INTEGER, blockZ INTEGER, staticSharedMemory INTEGER, dynamicSharedMemory INTEGER,
        sharedMemoryTotal INTEGER, graphNodeId INTEGER""",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"""{_GPU_ROW}
        bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL, srcKind INTEGER, dstKind INTEGER,
        srcDeviceId INTEGER, srcContextId INTEGER, dstDeviceId INTEGER, dstContextId INTEGER,
        graphNodeId INTEGER""",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"""{_GPU_ROW}
        value INTEGER NOT NULL, bytes INTEGER NOT NULL, graphNodeId INTEGER, memKind INTEGER""",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": f"""{_GPU_ROW}
        syncType INTEGER NOT NULL, eventId INTEGER NOT NULL""",
    "PROFILER_OVERHEAD": """
        start INTEGER NOT NULL, end INTEGER NOT NULL, globalTid INTEGER,
        nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL""",
}


NVTX_MARK: Final = 34
NVTX_PUSH_POP: Final = 59
NVTX_START_END: Final = 60
NVTX_DOMAIN: Final = 75


def process_of(global_ids: Column) -> npt.NDArray[np.int64]:
    """Return the process id in serialised global ids: hardware 8, VM 8, pid 24, tid 24 bits."""
    ids = np.asarray(global_ids, np.int64)
    return np.where(ids == NULL, ABSENT, (ids >> 24) & 0xFFFFFF)


def thread_of(global_ids: Column) -> npt.NDArray[np.int64]:
    """Return the thread id in serialised global ids."""
    ids = np.asarray(global_ids, np.int64)
    return np.where(ids == NULL, ABSENT, ids & 0xFFFFFF)


def named(database: Database, ids: Column) -> pd.Categorical:
    """Return the names with these string ids; an id without a string is shown as itself."""
    numbers, place = distinct(ids)
    strings = database.read_strings(numbers)
    names = ["" if key == NULL else strings.get(int(key), f"[string {key}]") for key in numbers]
    return categorical(place, names)


def api_named(database: Database, ids: Column) -> pd.Categorical:
    """Return the names of API calls without the version of their binary interface."""
    names = named(database, ids)
    return categorical(names.codes, [plain_api_name(str(name)) for name in names.categories])
