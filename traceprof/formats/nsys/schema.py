"""Tables, codes, and names in SQLite files with the layout of an nsys export.

`NSYS_TABLES` has nsys's own names and columns (those of versions 3.0 to 3.25 that traceprof can
fill), so that ``nsys stats`` and other tools read the file. `TRACEPROF_TABLES` holds data for which
nsys has no table; traceprof adds the same tables to a file that nsys exported.

In every table times are integer ns since the session start; ``utcEpochNs`` in
``TARGET_INFO_SESSION_START_TIME`` is the wall clock there. ``globalTid`` is
``1 << 48 | pid << 24 | tid``, ``globalPid`` the same with tid 0, and ``nameId`` refers to
``StringIds``. NULL means not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from traceprof.formats.sqlite.columns import NULL, distinct
from traceprof.formats.sqlite.database import Database
from traceprof.model.table import Column, Names
from traceprof.model.tables import ABSENT

KERNELS: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
GRAPHS: Final = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
COPIES: Final = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSETS: Final = "CUPTI_ACTIVITY_KIND_MEMSET"
SYNCS: Final = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
API_CALLS: Final = "CUPTI_ACTIVITY_KIND_RUNTIME"
NVTX: Final = "NVTX_EVENTS"
OVERHEADS: Final = ("PROFILER_OVERHEAD", "CUPTI_ACTIVITY_KIND_OVERHEAD")
HOST_SOURCES: Final = {"OSRT_API": "osrt", "CUDNN_EVENTS": "cudnn", "CUBLAS_EVENTS": "cublas"}
MPI_WITH_SIZES: Final = ("MPI_COLLECTIVES_EVENTS", "MPI_P2P_EVENTS")
MPI_SOURCES: Final = {
    **dict.fromkeys((*MPI_WITH_SIZES, "MPI_START_WAIT_EVENTS", "MPI_OTHER_EVENTS"), "mpi"),
    "UCP_EVENTS": "ucx",
}
OPERATORS: Final = "TRACEPROF_HOST_OPS"
COLLECTIVES: Final = "TRACEPROF_COLLECTIVES"
SAMPLES: Final = "TRACEPROF_SAMPLES"
FUNCTIONS: Final = "TRACEPROF_FUNCTIONS"
MANIFEST: Final = "TRACEPROF_MANIFEST"
PYTHON_SAMPLER: Final = "NSys PySampling"
"""Name of the thread of nsys that samples Python stacks (``--python-sampling=true``)."""

NVTX_MARK: Final = 34
NVTX_PUSH_POP: Final = 59
NVTX_START_END: Final = 60
NVTX_DOMAIN: Final = 75
NVTX_RANGES: Final = (NVTX_PUSH_POP, NVTX_START_END)
ARE_RANGES: Final = f"eventType IN {NVTX_RANGES}"
"""SQL for the rows of NVTX that are ranges."""

DETAILS: Final = {
    "CUDA_CALLCHAINS": ("id", API_CALLS, "callchainId"),
    "OSRT_CALLCHAINS": ("id", "OSRT_API", "callchainId"),
    "SAMPLING_CALLCHAINS": ("id", "COMPOSITE_EVENTS", "id"),
    "GENERIC_EVENT_DATA": ("genericEventId", "GENERIC_EVENTS", "genericEventId"),
}
"""Table of details → (its column, the table of events that it describes, the column there)."""

TRACEPROF_TABLES: Final[Mapping[str, str]] = {
    # Operators on the host. source: cpu_op, user_annotation, async (a worker thread's)
    OPERATORS: """
        start INTEGER NOT NULL, end INTEGER NOT NULL, globalTid INTEGER,
        nameId INTEGER NOT NULL, source TEXT NOT NULL, correlationId INTEGER""",
    # One row per collective or point-to-point call of one rank. bytes: the buffer of this rank;
    # end: the completion if the backend reports it, otherwise the return of the call
    COLLECTIVES: """
        start INTEGER NOT NULL, end INTEGER NOT NULL, globalTid INTEGER, op TEXT NOT NULL,
        bytes INTEGER, dtype TEXT, groupName TEXT, groupSize INTEGER, backend TEXT,
        sequence INTEGER, correlationId INTEGER, groupRank INTEGER, peer INTEGER,
        peerRank INTEGER, tag INTEGER""",
    # Time series. source: nic:eth0, gpu:0, process:1234, user …; metric names its unit
    SAMPLES: """
        start INTEGER NOT NULL, source TEXT NOT NULL, metric TEXT NOT NULL, value REAL""",
    # Calls of Python functions; nsys sampled the stacks, or torch.profiler recorded the calls
    FUNCTIONS: """
        start INTEGER NOT NULL, end INTEGER NOT NULL, globalTid INTEGER,
        nameId INTEGER NOT NULL""",
    # The rank of each process
    "TRACEPROF_PROCESSES": """
        pid INTEGER NOT NULL, name TEXT, rank INTEGER, localRank INTEGER, worldSize INTEGER,
        host TEXT""",
    # Properties of the machine and the software; never secrets
    "TRACEPROF_ENVIRONMENT": "name TEXT NOT NULL, value TEXT",
    # How the file was made. recorded: the tables of the Trace that were captured, as a JSON
    # list, which distinguishes an empty table from one that was not recorded
    MANIFEST: "name TEXT NOT NULL, value TEXT",
}

_GPU_ROW: Final = """
        start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
        contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL,
        correlationId INTEGER, globalPid INTEGER,"""

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
    NVTX: """
        start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER,
        category INTEGER, color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER,
        textId INTEGER, domainId INTEGER, uint64Value INTEGER, int64Value INTEGER,
        doubleValue REAL, uint32Value INTEGER, int32Value INTEGER, floatValue REAL,
        jsonTextId INTEGER, jsonText TEXT""",
    API_CALLS: """
        start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL,
        globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL,
        returnValue INTEGER NOT NULL, callchainId INTEGER""",
    KERNELS: f"""{_GPU_ROW}
        demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER,
        registersPerThread INTEGER, gridX INTEGER, gridY INTEGER, gridZ INTEGER, blockX INTEGER,
        blockY INTEGER, blockZ INTEGER, staticSharedMemory INTEGER, dynamicSharedMemory INTEGER,
        sharedMemoryTotal INTEGER, graphNodeId INTEGER""",
    COPIES: f"""{_GPU_ROW}
        bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL, srcKind INTEGER, dstKind INTEGER,
        srcDeviceId INTEGER, srcContextId INTEGER, dstDeviceId INTEGER, dstContextId INTEGER,
        graphNodeId INTEGER""",
    MEMSETS: f"""{_GPU_ROW}
        value INTEGER NOT NULL, bytes INTEGER NOT NULL, graphNodeId INTEGER, memKind INTEGER""",
    SYNCS: f"""{_GPU_ROW}
        syncType INTEGER NOT NULL, eventId INTEGER NOT NULL""",
    "PROFILER_OVERHEAD": """
        start INTEGER NOT NULL, end INTEGER NOT NULL, globalTid INTEGER,
        nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL""",
}


def global_id(process: int, thread: int = 0) -> int:
    """Return nsys's ``globalTid`` (``globalPid`` without ``thread``) of a process and thread."""
    return 1 << 48 | (process & 0xFFFFFF) << 24 | (thread & 0xFFFFFF)


def process_sql(column: str) -> str:
    """Return the SQL of the process in a column of global ids, like `process_of`."""
    return f"({column} >> 24 & 16777215)"


def are_whole_numbers(*columns: str) -> str:
    """Return SQL that is true if all columns have whole numbers, as in undamaged files."""
    return " AND ".join(f"typeof({column}) = 'integer'" for column in columns)


def process_of(global_ids: Column) -> npt.NDArray[np.int64]:
    """Return the process in serialized global ids: hardware 8, VM 8, pid 24, tid 24 bits."""
    ids = np.asarray(global_ids, np.int64)
    return np.where(ids == NULL, ABSENT, (ids >> 24) & 0xFFFFFF)


def thread_of(global_ids: Column) -> npt.NDArray[np.int64]:
    """Return the thread in serialized global ids."""
    ids = np.asarray(global_ids, np.int64)
    return np.where(ids == NULL, ABSENT, ids & 0xFFFFFF)


def place_on_host(raw: Mapping[str, Column]) -> dict[str, npt.NDArray[np.int64]]:
    """Return start_ns, end_ns, process, and thread of host events.

    An event without end is an instant.
    """
    starts = np.asarray(raw["start"], np.int64)
    return {
        "start_ns": starts,
        "end_ns": np.maximum(starts, np.asarray(raw["end"], np.int64)),
        "process": process_of(raw["globalTid"]),
        "thread": thread_of(raw["globalTid"]),
    }


def read_names(database: Database, ids: Column) -> Names:
    """Return the names with these string ids; a missing string is shown as ``[string ID]``."""
    place, numbers = distinct(ids)
    strings = database.read_strings(np.array(numbers, np.int64))
    names = ("" if key == NULL else strings.get(key, f"[string {key}]") for key in numbers)
    return Names.coded(names, place, is_sorted=True)
