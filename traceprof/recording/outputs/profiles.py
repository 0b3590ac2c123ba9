"""Profiles of single processes, put together with what the hooks captured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pandas as pd

from traceprof.model.tables import ABSENT, TABLES, stack
from traceprof.model.trace import Trace, make_trace
from traceprof.recording.request import ProcessProfile

__all__ = ["first_of_profiles", "with_profiles"]

_OURS: Final = ("collectives", "samples", "processes", "environment")
_ONCE: Final = "devices"
"""All processes of a machine see the same devices."""


def first_of_profiles(profiles: Sequence[ProcessProfile]) -> int | None:
    """Return the earliest time 0 of the profiles in ns since 1970; None where there are none."""
    return min((profile.trace.info.utc_epoch_ns or 0 for profile in profiles), default=None)


def with_profiles(trace: Trace, profiles: Sequence[ProcessProfile]) -> Trace:
    """Return ``trace`` (from the hooks) with the tables of ``profiles`` on its clock.

    Ranges of our own domain are in both where NVTX reached the profiler: the hooks' are taken.
    """
    epoch_ns = trace.info.utc_epoch_ns or 0
    moved = [_moved(profile, epoch_ns) for profile in profiles]
    tables: dict[str, pd.DataFrame] = {}
    for name in TABLES:
        parts = [part.table(name) for part in moved] if name not in _OURS else []
        if name == _ONCE:
            parts = parts[:1]
        elif name in ("ranges", "marks"):
            parts = [part[part["domain"] != "traceprof"] for part in parts]
        tables[name] = stack(name, [trace.table(name), *parts])
    recorded = trace.recorded.union(*(part.recorded for part in moved))
    info = replace(trace.info, profiler=moved[0].info.profiler if moved else trace.info.profiler)
    return make_trace(info, tables, recorded)


def _moved(profile: ProcessProfile, epoch_ns: int) -> Trace:
    """Return a profile's trace on the clock with ``epoch_ns`` at 0, its process filled in."""
    trace = profile.trace
    shift = (trace.info.utc_epoch_ns or 0) - epoch_ns
    changed: dict[str, pd.DataFrame] = {}
    for name, table in TABLES.items():
        frame = trace.table(name)
        columns = {
            key: frame[key].to_numpy(np.int64) + shift
            for key in ("start_ns", "end_ns")
            if key in table.columns
        }
        if "process" in table.columns:
            pids = frame["process"].to_numpy(np.int64)
            columns["process"] = np.where(pids == ABSENT, profile.pid, pids)
        changed[name] = frame.assign(**columns)
    return make_trace(trace.info, changed, trace.recorded)
