"""What the profiler was asked to record, as an nsys export shows it."""

from __future__ import annotations

from typing import Final

from traceprof.formats.nsys.device import GRAPHS, KERNELS, has_kernel_shapes
from traceprof.formats.nsys.host import API_CALLS
from traceprof.formats.nsys.sidecar import COLLECTIVES, SAMPLES
from traceprof.formats.sqlite.conditions import Among
from traceprof.formats.sqlite.database import ColumnType, Database

__all__ = ["recorded_tables", "unrecorded_graphs"]

_CUDA_TABLES: Final = ("kernels", "copies", "api_calls", "syncs")


def recorded_tables(database: Database, has_rows: set[str]) -> set[str]:
    """Return the tables that the profiler was asked to fill.

    Exports leave out tables without rows, so that an absent kernel table means "none" where
    CUDA was traced at all, which its API calls show.
    """
    recorded = set(has_rows)
    asked = (
        database.rows("SELECT value FROM META_DATA_CAPTURE WHERE name = 'CAPTURE_EVENT_TYPE'")
        if "META_DATA_CAPTURE" in database.tables
        else []
    )
    asked_for = {str(value) for (value,) in asked}
    # Rows that are left out were recorded, too.
    left_out = [table for table, faults in database.catalogue.left_out.items() if faults]
    asked_for |= {"Cuda" for table in left_out if table.startswith("CUPTI_ACTIVITY_KIND_")}
    asked_for |= {"NvtxEvents" for table in left_out if table == "NVTX_EVENTS"}
    if recorded & set(_CUDA_TABLES) or "Cuda" in asked_for:
        recorded |= set(_CUDA_TABLES)
    if recorded & {"ranges", "marks"} or "NvtxEvents" in asked_for:
        recorded |= {"ranges", "marks"}
    if has_kernel_shapes(database):
        recorded.add("kernel_shapes")
    own = {COLLECTIVES: "collectives", SAMPLES: "samples"}
    recorded |= {name for table, name in own.items() if table in database.tables}
    return recorded


def unrecorded_graphs(database: Database) -> int:
    """Return how often CUDA graphs were launched of whose work nothing is in the file."""
    n_launches = _graph_launches(database)
    return 0 if n_launches and _graph_work_is_recorded(database) else n_launches


def _graph_launches(database: Database) -> int:
    """Return how often a CUDA graph was launched; a scan only where strings say that one was."""
    if not {"nameId"} <= database.columns(API_CALLS):
        return 0
    named = "value GLOB 'cudaGraphLaunch*' OR value GLOB 'cuGraphLaunch*'"
    ids = [key for (key,) in database.rows(f"SELECT id FROM StringIds WHERE {named}")]
    if not ids:
        return 0
    wanted = Among("nameId", tuple(ids))
    return len(
        database.read_columns(API_CALLS, {"nameId": ColumnType.INTEGER}, where=wanted)["nameId"]
    )


def _graph_work_is_recorded(database: Database) -> bool:
    if database.has_rows(GRAPHS):
        return True
    has_nodes = "graphNodeId" in database.columns(KERNELS)
    nodes = f"SELECT 1 FROM {KERNELS} WHERE graphNodeId > 0 LIMIT 1"
    return has_nodes and bool(database.rows(nodes))
