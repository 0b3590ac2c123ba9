"""Launched work of the devices, and how much was queued when each piece was launched."""

from __future__ import annotations

import numpy as np
import pandas as pd

from traceprof.facts.cache import of_window
from traceprof.facts.launches import launches_of
from traceprof.model.tables import ABSENT
from traceprof.model.trace import DEVICE_TABLES, Trace

__all__ = ["launch_table"]


@of_window
def launch_table(trace: Trace) -> pd.DataFrame:
    """Return every kernel and copy whose launch was recorded, in the order of the launches.

    Columns: device, stream, start_ns, end_ns, launch_ns, launched_ns, api (categorical), table
    (kernels or copies), queue_depth (pieces of work of the device in the window that were launched
    before but had not started), is_empty (no such work was queued or running at the launch).
    """
    table = pd.concat([_launched(trace, name) for name in DEVICE_TABLES], ignore_index=True)
    table = table.sort_values("launch_ns", kind="stable", ignore_index=True)
    depth = np.full(len(table), ABSENT, np.int64)
    empty = np.zeros(len(table), np.bool_)
    launches, starts, ends = (
        table[name].to_numpy(np.int64) for name in ("launch_ns", "start_ns", "end_ns")
    )
    for rows in table.groupby("device").indices.values():
        before = np.arange(len(rows))
        # Both are nearly in order.
        begins, closes = (np.sort(times[rows], kind="stable") for times in (starts, ends))
        started = np.searchsorted(begins, launches[rows], side="right")
        ended = np.searchsorted(closes, launches[rows], side="right")
        depth[rows] = np.maximum(before - started, 0)
        empty[rows] = ended >= before
    return table.assign(queue_depth=depth, is_empty=empty)


def _launched(trace: Trace, name: str) -> pd.DataFrame:
    """Return the rows of a device table whose launch is known, with that launch."""
    launches = launches_of(trace, name)
    known = np.flatnonzero(launches.is_known)
    frame = trace.table(name)[["device", "stream", "start_ns", "end_ns"]].take(known)
    calls = trace.whole.api_calls["name"]
    codes = calls.cat.codes.to_numpy()[launches.call[known]]
    return frame.assign(
        launch_ns=launches.start_ns[known],
        launched_ns=launches.end_ns[known],
        api=pd.Categorical.from_codes(codes, calls.cat.categories),
        table=pd.Categorical.from_codes(
            np.full(len(known), DEVICE_TABLES.index(name)), pd.Index(DEVICE_TABLES)
        ),
    )
