"""The windows that torch's profiler left, as tables of a Trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from traceprof.formats.kineto.events import KinetoEvents
from traceprof.model.tables import ABSENT, make_table

__all__ = ["window_tables"]

_HOST_OPS: Final = ("cpu_op", "user_annotation")
_API_CALLS: Final = ("cuda_runtime", "cuda_driver")
_DIRECTIONS: Final = (("HtoD", "h2d"), ("DtoH", "d2h"), ("DtoD", "d2d"), ("PtoP", "p2p"))
_ASYNC_PREFIXES: Final = ("gloo:", "mpi:", "ucc:")

Clock = Callable[[np.ndarray], np.ndarray]
Windows = Sequence[tuple[int, KinetoEvents]]


def window_tables(
    windows: Windows, to_trace_time: Clock
) -> tuple[dict[str, pd.DataFrame], set[str]]:
    """Return the tables of all windows, and the names of those that were recorded.

    Device tables count as recorded only where the profiler saw a device.
    """
    tables = {"host_ops": _host_ops(windows, to_trace_time), "threads": _threads(windows)}
    recorded = set(tables)
    devices = _devices(windows)
    if len(devices):
        tables |= {
            "devices": devices,
            "kernels": _kernels(windows, to_trace_time),
            "copies": _copies(windows, to_trace_time),
            "api_calls": _api_calls(windows, to_trace_time),
        }
    return tables, recorded | set(tables)


def _collect(
    windows: Windows, to_trace_time: Clock, categories: Sequence[str]
) -> tuple[dict[str, Any], pd.DataFrame]:
    """Return the columns that all tables share, and a frame of the rest, for ``categories``."""
    frames = []
    for pid, events in windows:
        chosen = np.isin(np.asarray(events.category, object).astype(str), categories)
        frames.append(
            pd.DataFrame(
                {
                    "start": events.base_time_ns + events.start_ns[chosen],
                    "end": events.base_time_ns + events.end_ns[chosen],
                    "pid": pid,
                    "thread": events.thread[chosen],
                    "name": np.asarray(events.name, object)[chosen],
                    "category": np.asarray(events.category, object)[chosen],
                    **{
                        name: column[chosen]
                        for name, column in events.arguments.items()
                        if isinstance(column, np.ndarray)
                    },
                }
            )
        )
    filled = [frame for frame in frames if len(frame)] or frames[:1]
    if not filled:
        return {"start_ns": [], "end_ns": [], "process": [], "correlation": []}, pd.DataFrame()
    whole = pd.concat(filled, ignore_index=True)
    shared = {
        "start_ns": to_trace_time(whole["start"].to_numpy(np.int64)),
        "end_ns": to_trace_time(whole["end"].to_numpy(np.int64)),
        "process": whole["pid"].to_numpy(np.int64),
        "correlation": whole["correlation"].to_numpy(np.int64),
    }
    return shared, whole


def _host_ops(windows: Windows, to_trace_time: Clock) -> pd.DataFrame:
    shared, whole = _collect(windows, to_trace_time, _HOST_OPS)
    if not len(whole):
        return make_table("host_ops", {})
    is_async = whole["name"].str.startswith(_ASYNC_PREFIXES)
    return make_table(
        "host_ops",
        {
            **shared,
            "thread": whole["thread"].to_numpy(),
            "name": whole["name"].to_numpy(object),
            "source": np.where(is_async, "async", whole["category"]),
            "correlation": whole["External id"].to_numpy(),
        },
    )


def _api_calls(windows: Windows, to_trace_time: Clock) -> pd.DataFrame:
    shared, whole = _collect(windows, to_trace_time, _API_CALLS)
    if not len(whole):
        return make_table("api_calls", {})
    return make_table(
        "api_calls",
        {**shared, "thread": whole["thread"].to_numpy(), "name": whole["name"].to_numpy(object)},
    )


def _kernels(windows: Windows, to_trace_time: Clock) -> pd.DataFrame:
    shared, whole = _collect(windows, to_trace_time, ("kernel",))
    if not len(whole):
        return make_table("kernels", {})
    return make_table(
        "kernels",
        {
            **shared,
            "device": whole["device"].to_numpy(),
            "stream": whole["stream"].to_numpy(),
            "name": whole["name"].to_numpy(object),
            "graph_node": np.where(whole["graph node id"] > 0, whole["graph node id"], ABSENT),
        },
    )


def _copies(windows: Windows, to_trace_time: Clock) -> pd.DataFrame:
    shared, whole = _collect(windows, to_trace_time, ("gpu_memcpy", "gpu_memset"))
    if not len(whole):
        return make_table("copies", {})
    kinds = [_memory_kinds(str(name)) for name in whole["name"]]
    return make_table(
        "copies",
        {
            **shared,
            "device": whole["device"].to_numpy(),
            "stream": whole["stream"].to_numpy(),
            "n_bytes": whole["bytes"].to_numpy(),
            "direction": [
                _direction(str(name), str(category))
                for name, category in zip(whole["name"], whole["category"], strict=True)
            ],
            "src_kind": [source for source, _ in kinds],
            "dst_kind": [target for _, target in kinds],
        },
    )


def _direction(name: str, category: str) -> str:
    if category == "gpu_memset":
        return "memset"
    return next((known for text, known in _DIRECTIONS if text in name), "unknown")


def _memory_kinds(name: str) -> tuple[str, str]:
    """Return the kinds of memory in a name such as "Memcpy HtoD (Pinned -> Device)"."""
    inside = name.partition("(")[2].partition(")")[0]
    source, arrow, target = inside.partition(" -> ")
    if not arrow:
        return "", source.lower()
    return source.lower(), target.lower()


def _threads(windows: Windows) -> pd.DataFrame:
    names = {
        (pid, thread): name
        for pid, events in windows
        for (process, thread), name in events.thread_names.items()
        if process == pid
    }
    return make_table(
        "threads",
        {
            "process": [pid for pid, _ in names],
            "thread": [thread for _, thread in names],
            "name": list(names.values()),
        },
    )


def _devices(windows: Windows) -> pd.DataFrame:
    found = {
        int(device["id"]): device
        for _, events in windows
        for device in events.header.get("deviceProperties") or ()
        if isinstance(device, dict) and str(device.get("id", "")).isdigit()
    }
    devices = [found[number] for number in sorted(found)]
    return make_table(
        "devices",
        {
            "device": [int(device["id"]) for device in devices],
            "name": [str(device.get("name", "")) for device in devices],
            "memory_bytes": [int(device.get("totalGlobalMem", ABSENT)) for device in devices],
            "sm_count": [int(device.get("numSms", ABSENT)) for device in devices],
        },
    )
