"""The tables of an nsys export of 2026 (schema 3.25.0): columns in their true order.

The event tables hold what a genuine export holds; the columns that nothing here fills are NULL,
as they are there. Where a whole column has one value, it stands in `CONSTANTS`. `RECORDED_DDL` is
what `traceprof record` adds.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final

from traceprof.formats.nsys.schema import TRACEPROF_TABLES

__all__ = [
    "DDL",
    "ENVIRONMENT",
    "EVENTS",
    "KERNEL",
    "MEMCPY",
    "MEMSET",
    "NVTX",
    "OPERATORS",
    "RECORDED_DDL",
    "RUNTIME",
    "SAMPLES",
    "SYNC",
    "insert_into",
]

KERNEL: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
MEMCPY: Final = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET: Final = "CUPTI_ACTIVITY_KIND_MEMSET"
RUNTIME: Final = "CUPTI_ACTIVITY_KIND_RUNTIME"
SYNC: Final = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
NVTX: Final = "NVTX_EVENTS"
OPERATORS: Final = "TRACEPROF_HOST_OPS"
SAMPLES: Final = "TRACEPROF_SAMPLES"
ENVIRONMENT: Final = "TRACEPROF_ENVIRONMENT"

EVENTS: Final = (KERNEL, RUNTIME, MEMCPY, MEMSET, SYNC, NVTX)

_WHERE: Final = """
    start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL,
    correlationId INTEGER, globalPid INTEGER"""

_ENUMS: Final = (
    "ENUM_NSYS_EVENT_TYPE",
    "ENUM_CUDA_MEMCPY_OPER",
    "ENUM_CUDA_MEM_KIND",
    "ENUM_CUDA_KERNEL_LAUNCH_TYPE",
    "ENUM_CUPTI_STREAM_TYPE",
    "ENUM_CUPTI_SYNC_TYPE",
)

DDL: Final[Mapping[str, str]] = {
    "StringIds": "id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL",
    "ANALYSIS_FILE": """
        id INTEGER NOT NULL PRIMARY KEY, filename TEXT, contentId INTEGER,
        globalPid INTEGER NOT NULL""",
    "ProcessStreams": """
        globalPid INTEGER NOT NULL, filenameId INTEGER NOT NULL, contentId INTEGER NOT NULL""",
    "TARGET_INFO_SYSTEM_ENV": """
        globalVid INTEGER, devStateName TEXT NOT NULL, name TEXT NOT NULL,
        nameEnum INTEGER NOT NULL, value TEXT NOT NULL""",
    "TARGET_INFO_SESSION_START_TIME": """
        utcEpochNs INTEGER, utcTime TEXT, localTime TEXT, systemClockNs INTEGER""",
    "ANALYSIS_DETAILS": """
        globalVid INTEGER NOT NULL, duration INTEGER NOT NULL, startTime INTEGER NOT NULL,
        stopTime INTEGER NOT NULL""",
    "DIAGNOSTIC_EVENT": """
        timestamp INTEGER NOT NULL, timestampType INTEGER NOT NULL, source INTEGER NOT NULL,
        severity INTEGER NOT NULL, text TEXT NOT NULL, globalPid INTEGER""",
    SYNC: f"""{_WHERE},
        deprecatedSyncType INTEGER, syncType INTEGER NOT NULL, eventId INTEGER NOT NULL,
        eventSyncId INTEGER""",
    "PROFILER_OVERHEAD": """
        start INTEGER NOT NULL, end INTEGER NOT NULL, globalTid INTEGER, nameId INTEGER NOT NULL,
        overheadType INTEGER NOT NULL""",
    MEMSET: f"""{_WHERE},
        value INTEGER NOT NULL, bytes INTEGER NOT NULL, graphNodeId INTEGER, memKind INTEGER""",
    MEMCPY: f"""{_WHERE},
        bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL, deprecatedSrcId INTEGER,
        srcKind INTEGER, dstKind INTEGER, srcDeviceId INTEGER, srcContextId INTEGER,
        dstDeviceId INTEGER, dstContextId INTEGER, migrationCause INTEGER, graphNodeId INTEGER,
        virtualAddress INTEGER, copyCount INTEGER""",
    KERNEL: f"""{_WHERE},
        demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER,
        launchType INTEGER, cacheConfig INTEGER, registersPerThread INTEGER NOT NULL,
        gridX INTEGER NOT NULL, gridY INTEGER NOT NULL, gridZ INTEGER NOT NULL,
        blockX INTEGER NOT NULL, blockY INTEGER NOT NULL, blockZ INTEGER NOT NULL,
        staticSharedMemory INTEGER NOT NULL, dynamicSharedMemory INTEGER NOT NULL,
        localMemoryPerThread INTEGER NOT NULL, localMemoryTotal INTEGER NOT NULL,
        gridId INTEGER NOT NULL, sharedMemoryExecuted INTEGER, graphNodeId INTEGER,
        sharedMemoryLimitConfig INTEGER, qmdBulkReleaseDone INTEGER, qmdPreexitDone INTEGER,
        qmdLastCtaDone INTEGER, graphId INTEGER, clusterX INTEGER, clusterY INTEGER,
        clusterZ INTEGER, clusterSchedulingPolicy INTEGER, maxPotentialClusterSize INTEGER,
        maxActiveClusters INTEGER, sharedMemoryRequestedPercentage INTEGER,
        tensorSizeMinusOneElements TEXT NOT NULL""",
    "PROCESSES": "globalPid INTEGER, pid INTEGER, name TEXT",
    RUNTIME: """
        start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL,
        globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL,
        returnValue INTEGER NOT NULL, callchainId INTEGER""",
    NVTX: """
        start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER,
        category INTEGER, color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER,
        textId INTEGER, domainId INTEGER, uint64Value INTEGER, int64Value INTEGER,
        doubleValue REAL, uint32Value INTEGER, int32Value INTEGER, floatValue REAL,
        jsonTextId INTEGER, jsonText TEXT, binaryData TEXT""",
    "ThreadNames": "nameId INTEGER NOT NULL, priority INTEGER, globalTid INTEGER",
    "TARGET_INFO_CUDA_STREAM": """
        streamId INTEGER NOT NULL, hwId INTEGER NOT NULL, vmId INTEGER NOT NULL,
        processId INTEGER NOT NULL, contextId INTEGER NOT NULL, priority INTEGER NOT NULL,
        flag INTEGER NOT NULL""",
    "TARGET_INFO_GPU": """
        vmId INTEGER NOT NULL, id INTEGER NOT NULL, name TEXT, busLocation TEXT,
        isDiscrete INTEGER, l2CacheSize INTEGER, totalMemory INTEGER, memoryBandwidth INTEGER,
        clockRate INTEGER, smCount INTEGER, pwGpuId INTEGER, uuid TEXT, luid INTEGER,
        chipName TEXT, cuDevice INTEGER, ctxswDevPath TEXT, ctrlDevPath TEXT, revision INTEGER,
        nodeMask INTEGER, constantMemory INTEGER, maxIPC INTEGER, maxRegistersPerBlock INTEGER,
        maxShmemPerBlock INTEGER, maxShmemPerBlockOptin INTEGER, maxShmemPerSm INTEGER,
        maxRegistersPerSm INTEGER, threadsPerWarp INTEGER, asyncEngines INTEGER,
        maxWarpsPerSm INTEGER, maxBlocksPerSm INTEGER, maxThreadsPerBlock INTEGER,
        maxBlockDimX INTEGER, maxBlockDimY INTEGER, maxBlockDimZ INTEGER, maxGridDimX INTEGER,
        maxGridDimY INTEGER, maxGridDimZ INTEGER, computeMajor INTEGER, computeMinor INTEGER,
        smMajor INTEGER, smMinor INTEGER""",
    "TARGET_INFO_CUDA_DEVICE": """
        gpuId INTEGER, cudaId INTEGER NOT NULL, pid INTEGER NOT NULL, uuid TEXT,
        numMultiprocessors INTEGER""",
    "TARGET_INFO_CUDA_CONTEXT_INFO": """
        nullStreamId INTEGER NOT NULL, hwId INTEGER NOT NULL, vmId INTEGER NOT NULL,
        processId INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL,
        parentContextId INTEGER, isGreenContext INTEGER, numMultiprocessors INTEGER""",
    **dict.fromkeys(_ENUMS, "id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT"),
    "META_DATA_CAPTURE": "name TEXT NOT NULL, value TEXT",
    "META_DATA_EXPORT": "name TEXT NOT NULL, value TEXT",
}

RECORDED_DDL: Final = {name: TRACEPROF_TABLES[name] for name in (OPERATORS, SAMPLES, ENVIRONMENT)}

CONSTANTS: Final[Mapping[str, Mapping[str, object]]] = {
    KERNEL: {
        "launchType": 1,
        "cacheConfig": 1,
        "gridZ": 1,
        "blockY": 1,
        "blockZ": 1,
        "localMemoryPerThread": 0,
        "localMemoryTotal": 250871808,
        "sharedMemoryExecuted": 32768,
        "sharedMemoryLimitConfig": 0,
        "clusterX": 0,
        "clusterY": 0,
        "clusterZ": 0,
        "clusterSchedulingPolicy": 1,
        "maxPotentialClusterSize": 0,
        "maxActiveClusters": 0,
        "tensorSizeMinusOneElements": "'[]'",
    },
    RUNTIME: {"eventClass": 0, "returnValue": 0},
    MEMCPY: {"copyCount": 1},
    MEMSET: {"value": 0, "memKind": 2},
}


@cache
def insert_into(table: str, given: tuple[str, ...]) -> str:
    """Return the statement that inserts the columns ``given`` and the constants of ``table``."""
    constants = CONSTANTS.get(table, {})
    names = ", ".join(f'"{name}"' for name in [*given, *constants])
    values = ", ".join([*("?" for _ in given), *map(str, constants.values())])
    return f"INSERT INTO {table} ({names}) VALUES ({values})"
