"""Calls that should not be in a loop, and the idle time that they cost."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from traceprof.analysis.advice.findings.claims import Claim
from traceprof.analysis.advice.findings.context import Context
from traceprof.measures.device.times import devices_of_processes
from traceprof.model.intervals import Intervals
from traceprof.model.trace import Trace

__all__ = ["calls_named", "idle_in_calls", "in_typical_time"]


def calls_named(
    context: Context, pattern: re.Pattern[str], table: str = "api_calls"
) -> pd.DataFrame:
    """Return the calls of the typical time that are named so: process, start_ns, end_ns, name.

    ``table`` is "host_ops" for what libraries and the operating system recorded.
    """
    found = context.ranks.each(_calls_of_one, pattern, table, context.typical)
    return pd.concat(found, ignore_index=True)


def _calls_of_one(
    part: Trace, pattern: re.Pattern[str], table: str, typical: Intervals
) -> pd.DataFrame:
    calls = part.table(table)
    names = calls["name"].cat.categories
    matched = np.array([*(bool(pattern.search(str(name))) for name in names), False])
    return in_typical_time(typical, calls[matched[calls["name"].cat.codes.to_numpy()]])


def in_typical_time(typical: Intervals, rows: pd.DataFrame) -> pd.DataFrame:
    """Return process, start_ns, end_ns and name of the ``rows`` that the ``typical`` time sees."""
    inside = typical.covered_ns(rows["start_ns"], rows["end_ns"]) > 0
    return rows[["process", "start_ns", "end_ns", "name"]][inside].astype({"name": object})


def idle_in_calls(context: Context, calls: pd.DataFrame) -> Claim:
    """Return the claim on the time in which devices are idle and their process is in ``calls``."""
    spans = {
        int(str(process)): Intervals.union_of(own["start_ns"], own["end_ns"])
        for process, own in calls.groupby("process")
    }
    times: dict[int, Intervals] = {}
    for part in context.ranks:
        for process, devices in devices_of_processes(part).items():
            for device in devices:
                if process in spans and device in context.times:
                    idle = spans[process] - context.times[device].busy
                    times[device] = times[device] | idle if device in times else idle
    return context.left(times)
