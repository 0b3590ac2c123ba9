"""Launches: how long the calls take, how late the device starts, how deep the queues are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from traceprof.analysis.base import Analysis
from traceprof.facts.launches import find_launches
from traceprof.model.tables import ABSENT
from traceprof.model.trace import DEVICE_TABLES, Trace

__all__ = ["ANALYSIS", "LaunchTimes", "launch_table", "measure_launches"]


@dataclass(frozen=True, slots=True, eq=False)
class LaunchTimes:
    """One row per device and launching call, by number.

    ``table``: device, api, count, call_ns (median length of the call), call_total_ns, delay_ns
    (median time from the end of the call to the start of the work, 0 where it starts earlier),
    short_ratio (share of work that is shorter than its call), queue_mean and queue_max (how many
    launched pieces of work of the device had not started, when one more was launched),
    empty_ratio (share of launches that found nothing queued or running: launch-bound).
    """

    table: pd.DataFrame
    notes: tuple[str, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """Return the table."""
        return self.table


def launch_table(trace: Trace) -> pd.DataFrame:
    """Return every kernel and copy whose launch was recorded, in the order of the launches.

    Columns: device, stream, start_ns, end_ns, launch_ns, launched_ns, api, table (kernels or
    copies), queue_depth (pieces of work of the device that were launched before but had not
    started), is_empty (no work of the device was queued or running at the launch).
    """
    parts = []
    names = trace.whole.api_calls["name"].to_numpy(object)
    for name in DEVICE_TABLES:
        frame = trace.table(name)
        launches = find_launches(trace, frame)
        known = launches.is_known
        columns = frame.loc[known, ["device", "stream", "start_ns", "end_ns"]]
        parts.append(
            columns.assign(
                launch_ns=launches.start_ns[known],
                launched_ns=launches.end_ns[known],
                api=names[launches.call[known]] if len(names) else "",
                table=name,
            )
        )
    table = pd.concat(parts, ignore_index=True)
    table = table.sort_values("launch_ns", kind="stable", ignore_index=True)
    depth = np.full(len(table), ABSENT, np.int64)
    empty = np.zeros(len(table), np.bool_)
    for rows in table.groupby("device").indices.values():
        launched = table["launch_ns"].to_numpy()[rows]
        started = np.sort(table["start_ns"].to_numpy()[rows])
        ended = np.sort(table["end_ns"].to_numpy()[rows])
        before = np.arange(len(rows))
        depth[rows] = np.maximum(before - np.searchsorted(started, launched, side="right"), 0)
        empty[rows] = np.searchsorted(ended, launched, side="right") >= before
    return table.assign(queue_depth=depth, is_empty=empty)


def measure_launches(trace: Trace) -> LaunchTimes:
    """Return the launches by device and call."""
    rows = launch_table(trace)
    call = rows["launched_ns"] - rows["launch_ns"]
    rows = rows.assign(
        call=call,
        delay=(rows["start_ns"] - rows["launched_ns"]).clip(lower=0),
        short=rows["end_ns"] - rows["start_ns"] < call,
    )
    table = (
        rows.groupby(["device", "api"])
        .agg(
            count=("call", "size"),
            call_ns=("call", "median"),
            call_total_ns=("call", "sum"),
            delay_ns=("delay", "median"),
            short_ratio=("short", "mean"),
            queue_mean=("queue_depth", "mean"),
            queue_max=("queue_depth", "max"),
            empty_ratio=("is_empty", "mean"),
        )
        .reset_index()
        .sort_values("count", ascending=False, kind="stable", ignore_index=True)
    )
    lost = sum(len(trace.table(name)) for name in DEVICE_TABLES) - len(rows)
    notes = (f"{lost} kernels and copies have no recorded launch and do not count",)
    return LaunchTimes(table, notes if lost else ())


ANALYSIS = Analysis(
    name="launches",
    needs=("kernels", "api_calls"),
    run=measure_launches,
)
