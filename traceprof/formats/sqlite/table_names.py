"""Names of tables and columns: in SQL, in another case, with a version (``…_KIND_KERNEL_V2``)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

__all__ = ["is_of_profiler", "plain_column", "plain_table", "quoted", "versioned_tables"]

_VERSIONED: Final = re.compile(r"(.+)_V([0-9]{1,6})")
_UPPER: Final = (
    *("ANALYSIS_", "CUDA_", "CUPTI_ACTIVITY_KIND_", "DIAGNOSTIC_EVENT", "ENUM_", "EXPORT_META_"),
    *("GPU_METRICS", "META_DATA_", "MPI_", "NET_NIC_METRIC", "NIC_ID_MAP", "NVTX_", "OSRT_API"),
    *("PROCESSES", "PROFILER_OVERHEAD", "TARGET_INFO_", "TRACEPROF_", "UCP_"),
)
"""How names of tables begin that profilers write in capitals."""
_MIXED: Final = {
    name.lower(): name for name in ("StringIds", "StringTable", "ThreadNames", "Version")
}
_NAMES_OF_COLUMNS: Final = """
    backend bytes category cbid commHandle contextId copyKind correlationId counterKind
    cudaId demangledName deviceId domain domainId doubleValue dstDeviceId dstId dstKind dtype
    duration end eventType flags floatValue globalId globalPid globalTid gpuId graphId
    graphNodeId groupName groupRank groupSize host id int32Value int64Value jsonText
    jsonTextId localRank memKind memoryKind memoryOperationType metricId metricName
    metricsIdx metricsListId metric name nameId numberOfPageFaults objectId objectKind op
    overheadKind payload payloadKind peer peerRank pid portId processId rank remoteRank
    schemaId sequence shortName size source srcDeviceId srcId srcKind start startTime
    stopTime streamId syncType tag text textId threadId timestamp type typeId uint32Value
    uint64Value utcEpochNs value worldSize
"""
_COLUMNS: Final = {name.lower(): name for name in _NAMES_OF_COLUMNS.split()}


def quoted(identifier: str) -> str:
    """Return a name as SQL takes it, whatever is in it."""
    return '"' + identifier.replace('"', '""') + '"'


def is_of_profiler(name: str) -> bool:
    """Return whether a table of this name, in whatever case, is one that a profiler writes."""
    return name.upper().startswith(_UPPER) or name.lower() in _MIXED


def plain_table(name: str) -> str:
    """Return the name of a table as profilers write it: to SQLite case is all one."""
    if name.lower() in _MIXED:
        return _MIXED[name.lower()]
    return name.upper() if name.upper().startswith(_UPPER) else name


def plain_column(name: str) -> str:
    """Return the name of a column as profilers write it; one that is not read as it is."""
    return _COLUMNS.get(name.lower(), name)


def versioned_tables(names: Iterable[str]) -> dict[str, str]:
    """Return plain name → the table of its highest version, where there is no plain table."""
    present = set(names)
    highest: dict[str, tuple[int, str]] = {}
    for name in present:
        found = _VERSIONED.fullmatch(name)
        if found and found.group(1) not in present:
            plain, version = found.group(1), int(found.group(2))
            highest[plain] = max(highest.get(plain, (0, "")), (version, name))
    return {plain: name for plain, (_, name) in highest.items()}
