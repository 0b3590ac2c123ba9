"""Writes what a small rocpd database has as the JSON of rocprofv3, with its keys and numbers."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

LISTS = {
    "HIP": "hip_api",
    "HSA": "hsa_api",
    "MARKER": "marker_api",
    "RCCL": "rccl_api",
}
"""First word of a kind → the list in ``buffer_records`` that has its calls."""
FIRST_HANDLE = 37_944


def document_of(database: Path) -> dict[str, Any]:
    """Return the document for a rocpd database."""
    with closing(sqlite3.connect(database)) as file:
        file.row_factory = sqlite3.Row
        names = [name for (name,) in file.execute("SELECT name FROM sqlite_master")]
        starts = "rocpd_info_process"
        suffixes = [name.removeprefix(starts) for name in names if name.startswith(starts)]
        processes = [_process(file, suffix) for suffix in suffixes]
    return {"rocprofiler-sdk-tool": processes}


def write_json(database: Path, path: Path, **options: Any) -> Path:
    """Write the JSON for a rocpd database, and return its path."""
    path.write_text(json.dumps(document_of(database), **options))
    return path


def _process(file: sqlite3.Connection, suffix: str) -> dict[str, Any]:
    def rows(table: str) -> list[sqlite3.Row]:
        return file.execute(f'SELECT * FROM "rocpd_{table}{suffix}"').fetchall()

    strings = {row["id"]: row["string"] for row in rows("string")}
    events = {row["id"]: row for row in rows("event")}
    tids = {row["id"]: row["tid"] for row in rows("info_thread")}
    threads = {row["id"]: tids[row["tid"]] for row in rows("track")}
    kinds: dict[str, list[str]] = {"NONE": []}
    messages: dict[int, str] = {}
    records: dict[str, list[Any]] = {name: [] for name in LISTS.values()}
    records |= {"kernel_dispatch": [], "memory_copy": []}

    def record(row: sqlite3.Row, name: str, **own: Any) -> dict[str, Any]:
        event = events[row["event_id"]]
        kind = strings[event["category_id"]]
        operations = kinds.setdefault(kind, [])
        operations += [] if name in operations else [name]
        if text := json.loads(event["extdata"]).get("message"):
            messages[event["stack_id"]] = text
        call = {"internal": event["stack_id"], "external": 0}
        numbers = {"kind": list(kinds).index(kind), "operation": operations.index(name)}
        made = {"size": 64, **numbers, "thread_id": 0, "correlation_id": call, **own}
        records[LISTS.get(kind.partition("_")[0], kind.lower())].append(made)
        return made

    for row in rows("region"):
        times = {"start_timestamp": row["start"], "end_timestamp": row["end"]}
        record(row, strings[row["name_id"]], **times, thread_id=tids[row["tid"]])
    for row in rows("sample"):
        at = {"start_timestamp": row["timestamp"], "end_timestamp": row["timestamp"]}
        record(row, "roctxMarkA", **at, thread_id=threads[row["track_id"]])
    for row in rows("kernel_dispatch"):
        sizes = {
            f"{of}_size": {axis: row[f"{of}_size_{axis}"] for axis in "xyz"}
            for of in ("workgroup", "grid")
        }
        handles = {
            "agent_id": {"handle": FIRST_HANDLE + row["agent_id"]},
            "queue_id": {"handle": row["queue_id"]},
        }
        own = {"kernel_id": row["kernel_id"], "group_segment_size": row["group_segment_size"]}
        record(
            row,
            "KERNEL_DISPATCH_COMPLETE",
            start_timestamp=row["start"],
            end_timestamp=row["end"],
            dispatch_info={**handles, **own, **sizes},
            stream_id={"handle": row["stream_id"]},
        )
    for row in rows("memory_copy"):
        record(
            row,
            strings[row["name_id"]],
            start_timestamp=row["start"],
            end_timestamp=row["end"],
            src_agent_id={"handle": FIRST_HANDLE + row["src_agent_id"]},
            dst_agent_id={"handle": FIRST_HANDLE + row["dst_agent_id"]},
            bytes=row["size"],
            stream_id={"handle": row["stream_id"]},
        )
    (process,), (node,) = rows("info_process"), rows("info_node")
    return {
        "metadata": {
            "node": {name: node[name] for name in ("hostname", "system_name", "release")},
            "pid": process["pid"],
            "command": process["command"].split(),
        },
        "agents": [_agent(row) for row in rows("info_agent")],
        "counters": [],
        "strings": {
            "buffer_records": [{"kind": kind, "operations": own} for kind, own in kinds.items()],
            "marker_api": [{"key": key, "value": text} for key, text in messages.items()],
            "att_filenames": ["a.att", "b.att"],
        },
        "kernel_symbols": [
            {"kernel_id": 0, "formatted_kernel_name": "0"},
            *(
                {
                    "kernel_id": row["id"],
                    "kernel_name": f"{row['display_name']}.kd",
                    "formatted_kernel_name": row["display_name"],
                    "arch_vgpr_count": row["arch_vgpr_count"],
                    "accum_vgpr_count": row["accum_vgpr_count"],
                }
                for row in rows("info_kernel_symbol")
            ),
        ],
        "callback_records": {"counter_collection": []},
        "buffer_records": records,
    }


def _agent(row: sqlite3.Row) -> dict[str, Any]:
    return {
        "id": {"handle": FIRST_HANDLE + row["id"]},
        "type": {"CPU": 1, "GPU": 2}[row["type"]],
        "logical_node_type_id": row["type_index"],
        "name": row["name"],
        "product_name": row["product_name"] or "",
        "model_name": "",
        "cu_count": json.loads(row["extdata"]).get("cu_count", 0),
    }
