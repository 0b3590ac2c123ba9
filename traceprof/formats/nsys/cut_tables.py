"""What the tables of an nsys export are to who cuts it."""

from __future__ import annotations

import re
from typing import Final

from traceprof.formats.nsys.device import COPIES, GRAPHS, KERNELS, MEMSETS, SYNCS
from traceprof.formats.nsys.host import API_CALLS, HOST_SOURCES, OVERHEADS
from traceprof.formats.nsys.mpi import MPI_TABLES
from traceprof.formats.nsys.sidecar import COLLECTIVES, OPERATORS, SAMPLES

__all__ = ["DETAILS", "is_known", "model_tables", "tells_of_machine"]

DETAILS: Final = {
    "CUDA_CALLCHAINS": ("id", "CUPTI_ACTIVITY_KIND_RUNTIME", "callchainId"),
    "OSRT_CALLCHAINS": ("id", "OSRT_API", "callchainId"),
    "SAMPLING_CALLCHAINS": ("id", "COMPOSITE_EVENTS", "id"),
    "GENERIC_EVENT_DATA": ("genericEventId", "GENERIC_EVENTS", "genericEventId"),
}
"""Table → (its column, the table of events that it tells more about, the column there)."""

_OF_THE_MACHINE: Final = (
    *("TARGET_INFO_", "META_DATA_", "EXPORT_META_DATA", "DIAGNOSTIC_EVENT", "ANALYSIS_"),
    *("ENUM_", "PROCESSES", "ThreadNames", "ProcessStreams", "StringIds", "UnwindMethodType"),
    *("NVTX_PAYLOAD_", "GENERIC_EVENT_TYPES", "GENERIC_EVENT_SOURCES", "NIC_ID_MAP"),
    *("MPI_RANKS", "MPI_COMMUNICATORS", "TRACEPROF_PROCESSES", "TRACEPROF_ENVIRONMENT"),
    *("TRACEPROF_MANIFEST", "TRACEPROF_CUT"),
)
"""What begins so is copied whole, though some of it bears times."""
_OF_EVENTS: Final = re.compile(
    r"CUPTI_|CUDA_|CUDNN_|CUBLAS_|NVTX_EVENTS|OSRT_|MPI_|UCP_|NET_|GPU_|SOC_|FECS_|SCHED_EVENTS"
    r"|COMPOSITE_|SAMPLING_|GENERIC_|PROFILER_|OPENGL_|KHR_DEBUG_|SLI_|DX1|D3D1|VULKAN_|ETW_"
    r"|OPENMP_|WDDM_|NVVIDEO_|DEMOTED_BYTES_|TOTAL_BYTES_|NV_LOAD_|TRACEPROF_"
)


def tells_of_machine(name: str) -> bool:
    """Return whether a table tells about the machine, the processes or the file itself."""
    return name.startswith(_OF_THE_MACHINE)


def is_known(name: str) -> bool:
    """Return whether a table is one of nsys's or of traceprof's own."""
    return tells_of_machine(name) or _OF_EVENTS.match(name) is not None


_MODEL: Final = {
    **dict.fromkeys((KERNELS, GRAPHS), ("kernels",)),
    **dict.fromkeys((COPIES, MEMSETS), ("copies",)),
    SYNCS: ("syncs",),
    API_CALLS: ("api_calls",),
    "NVTX_EVENTS": ("ranges", "marks", "collectives"),
    **dict.fromkeys(HOST_SOURCES, ("host_ops",)),
    **dict.fromkeys(MPI_TABLES, ("host_ops", "collectives")),
    OPERATORS: ("host_ops",),
    **dict.fromkeys(OVERHEADS, ("overheads",)),
    COLLECTIVES: ("collectives",),
    SAMPLES: ("samples",),
    "CUDA_GPU_MEMORY_USAGE_EVENTS": ("samples",),
    "CUDA_UM_GPU_PAGE_FAULT_EVENTS": ("samples",),
    "CUDA_UM_CPU_PAGE_FAULT_EVENTS": ("samples",),
}


def model_tables(name: str) -> frozenset[str]:
    """Return the tables of the Trace that are made of a table of the file."""
    if name.startswith(("NET_", "GPU_METRICS", "SOC_")):
        return frozenset({"samples"})
    return frozenset(_MODEL.get(re.sub(r"_V\d+$", "", name), ()))
