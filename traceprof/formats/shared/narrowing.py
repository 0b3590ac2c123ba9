"""Of a Trace that was read, what `ReadOptions` ask for: the tables, and their rows in a window."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

import pandas as pd

from traceprof.formats.base import (
    LAUNCHING_TABLES,
    OUTLINED_TABLES,
    WINDOWED_TABLES,
    Outline,
    ReadOptions,
)
from traceprof.model.tables import ABSENT, TABLES, empty_table
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import DEVICE_TABLES, Trace, make_trace

__all__ = ["from_first_launch", "narrowed", "outline_of", "trace_of_outline"]

_LAUNCH: Final = ["process", "correlation"]


def narrowed(trace: Trace, options: ReadOptions) -> Trace:
    """Return ``trace`` without what ``options`` do not ask for; what it says of itself stays."""
    frames: dict[str, Any] = {}
    if options.window is not None:
        window = options.window
        frames |= {name: _rows_in(trace, name, window) for name in WINDOWED_TABLES}
        if options.wants(*LAUNCHING_TABLES):
            work = (frames[name] for name in DEVICE_TABLES)
            reach = from_first_launch(window, work, trace.api_calls)
            frames |= {name: _rows_in(trace, name, reach) for name in LAUNCHING_TABLES}
    frames |= {name: empty_table(name) for name in TABLES if not options.wants(name)}
    return replace(trace, **frames) if frames else trace


def from_first_launch(
    window: TimeWindow, work: Iterable[pd.DataFrame], api_calls: pd.DataFrame
) -> TimeWindow:
    """Return ``window`` with the time before it in which its device work was launched.

    Args:
        window: which part of the trace is wanted.
        work: the kernels and copies in it.
        api_calls: the calls that may have launched them; of the columns process, correlation
            and start_ns are used.
    """
    launched = pd.concat([frame.loc[frame["correlation"] != ABSENT, _LAUNCH] for frame in work])
    early = api_calls.loc[api_calls["start_ns"] < window.start_ns, [*_LAUNCH, "start_ns"]]
    launches = early.merge(launched.drop_duplicates(), on=_LAUNCH)
    if launches.empty:
        return window
    return TimeWindow(int(launches["start_ns"].min()), window.end_ns)


def _rows_in(trace: Trace, name: str, window: TimeWindow) -> pd.DataFrame:
    frame = trace.table(name)
    starts = frame["start_ns"].to_numpy()
    ends = frame["end_ns"].to_numpy() if TABLES[name].has_spans else starts
    inside = window.overlaps(starts, ends)
    return frame if inside.all() else frame[inside].reset_index(drop=True)


def outline_of(trace: Trace) -> Outline:
    """Return the outline of a Trace that was read in full."""
    return Outline(
        info=trace.info,
        recorded=trace.recorded,
        span=trace.span,
        n_rows={
            name: len(trace.table(name))
            for name, table in TABLES.items()
            if table.has_times and not table.detail_of
        },
        device_rows={name: _device_rows(trace.table(name)) for name in DEVICE_TABLES},
        process_rows={name: _process_rows(trace.table(name)) for name in OUTLINED_TABLES},
        devices=trace.devices,
        processes=trace.processes,
        threads=trace.threads,
        environment=trace.environment,
    )


def trace_of_outline(outline: Outline) -> Trace:
    """Return the Trace of which only ``outline`` is known: it has no events."""
    return make_trace(
        outline.info,
        {
            "devices": outline.devices,
            "processes": outline.processes,
            "threads": outline.threads,
            "environment": outline.environment,
        },
        outline.recorded,
        outline.span,
        {device for rows in outline.device_rows.values() for _, device in rows},
    )


def _device_rows(frame: pd.DataFrame) -> dict[tuple[int, int], int]:
    counts = frame.groupby(["process", "device"]).size()
    places = zip(*(counts.index.get_level_values(level).tolist() for level in (0, 1)), strict=True)
    return dict(zip(places, counts.tolist(), strict=True))


def _process_rows(frame: pd.DataFrame) -> dict[int, int]:
    counts = frame["process"].value_counts()
    return dict(zip(counts.index.tolist(), counts.tolist(), strict=True))
