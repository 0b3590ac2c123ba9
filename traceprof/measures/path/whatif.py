"""What at most would be gained if communication were hidden, data free, or links at full speed.

Taking a part of the critical path away gains at most its time on the path, and never more than
what brings the window down to the time in which the busiest device still has other work: the
smaller of the two is the bound. Beside it stands what the devices lose to the same thing: that of
a device which is not on the path gains nothing by itself, and a path may hold what devices hide.

All of it is judged in the same time as findings are, the typical steps; what devices lose is also
given of the whole window, as `idle` and `breakdown` have it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import pandas as pd

from traceprof.measures.analyses import Analysis
from traceprof.measures.device.times import (
    device_time,
    devices_at_work,
    recorded_window,
    used_devices,
)
from traceprof.measures.idle.losses import find_losses, within
from traceprof.measures.path.graph import DEVICE_KINDS, Segments
from traceprof.measures.path.path import find_path
from traceprof.measures.rows import in_order
from traceprof.measures.steps.measured import (
    are_typical,
    judged_times,
    typical_step_ns,
    typical_time,
)
from traceprof.measures.traffic.copies import copy_speeds
from traceprof.model.intervals import Intervals
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note, Result, ResultSpec, TableSpec
from traceprof.model.trace import Trace

_CASES: Final = (
    ("communication fully hidden", ("communication",), "communication", "exposed_communication"),
    ("data loading free", ("data",), "", "data"),
    ("launch gaps closed", ("launch", "latency"), "", "launch"),
    ("host code free", ("host",), "", "host"),
    ("synchronisation free", ("synchronising",), "", "synchronising"),
)
"""Each with its parts of the path, the union of a device that it frees, and what devices lose."""

_COPIES: Final = "copies at link speed"

SPEC: Final = ResultSpec.of(
    TableSpec.of(
        "cases",
        "one row per case, the largest gain first; the mean over processes",
        """
        key case: what would be different
        derived gain_ns: how much shorter a typical step would be, at most (the window where steps
            are not known)
        mean(process_count) gain_ratio: gain of the analysed time, at most
        derived speedup [factor]: how many times as fast it would be, at most
        derived device_ratio: device_ns of the analysed time of all devices, as `findings` counts it
        derived window_ratio: window_ns of the window, as far as each device was recorded in it
        total device_ns: what devices lose to it in the analysed time, together: exposed
            communication, or idle for that cause
        total window_ns: the same of the whole window, as `breakdown` and `idle` have it
        total process_count: over how many processes
        """,
    ),
    TableSpec.of(
        "links",
        "the speeds that copies are taken to reach",
        """
        key direction: the direction of the copies
        same bytes_per_s: the peak of the link, or what the best large copies reach
        """,
    ),
    scalars="""
    same step_ns: the median typical step; the window where steps are not known
    same window_ns: the length of the window
    same judged_ns: what of it is analysed: the typical steps
    """,
)
_BOUND: Final = Note(
    "each gain is an upper bound on the critical path, and they do not add up: what is taken away "
    "may uncover something else; what devices lose is the mean over them, as findings count it"
)


def measure_whatif(ranks: Ranks) -> Result:
    """Return upper bounds of what could be gained."""
    speeds = copy_speeds(ranks)
    judged = typical_time(ranks)
    found = pd.DataFrame(
        [gains for own in ranks.each(_gains_of_one, speeds, judged) for gains in own]
    )
    step_ns = typical_step_ns(ranks)
    ratio = found.mean() / max(1, judged.total_ns)
    cases = pd.DataFrame(
        {
            "case": ratio.index.to_numpy(object),
            "gain_ns": ratio.to_numpy() * step_ns,
            "gain_ratio": ratio.to_numpy(),
            "speedup": 1 / (1 - ratio.to_numpy()),
            "process_count": len(found),
        }
    )
    cases = cases.merge(_lost_by_devices(ranks), on="case", how="left")
    cases = in_order(cases, "-gain_ratio")
    links = pd.DataFrame({"direction": list(speeds), "bytes_per_s": list(speeds.values())})
    tables = {"cases": cases, "links": links}
    return Result(
        "whatif",
        SPEC,
        tables={name: SPEC.table(name).frame(table) for name, table in tables.items()},
        scalars={
            "step_ns": step_ns,
            "window_ns": ranks.span.duration_ns,
            "judged_ns": judged.total_ns,
        },
        notes=(_BOUND, *_on_steps(ranks, judged), *_on_links(speeds)),
    )


def _gains_of_one(
    trace: Trace, speeds: Mapping[str, float], judged: Intervals
) -> list[dict[str, float]]:
    return [
        _gains(trace, process, devices, speeds, judged)
        for process, devices in devices_at_work(trace).items()
    ]


def _gains(
    trace: Trace,
    process: int,
    devices: tuple[int, ...],
    speeds: Mapping[str, float],
    judged: Intervals,
) -> dict[str, float]:
    """Return what each case would gain of the ``judged`` time for a process, in ns."""
    parts, segments = find_path(trace, process)
    times = [device_time(trace, device).within(judged) for device in devices]
    gains: dict[str, float] = {}
    for case, names, without, _ in _CASES:
        on_path = sum((parts[name] & judged).total_ns for name in names)
        floor = max(time.busy_without_ns(without) for time in times)
        if without:  # what is hidden still takes its time
            floor = max(floor, *(getattr(time, without).total_ns for time in times))
        gains[case] = min(on_path, judged.total_ns - floor)
    return gains | {_COPIES: _faster_copies(segments, speeds, judged)}


def _lost_by_devices(ranks: Ranks) -> pd.DataFrame:
    """Return what all devices lose to each case, in the analysed time and in the window."""
    losses, judged = find_losses(ranks), judged_times(ranks)
    judged_ns = sum(time.total_ns for time in judged.values())
    recorded_ns = sum(
        recorded_window(part, device).duration_ns for part in ranks for device in used_devices(part)
    )
    rows = []
    for case, _, _, name in _CASES:
        inside = sum(time.total_ns for time in within(losses[name], judged).values())
        whole = sum(time.total_ns for time in losses[name].values())
        rows.append((case, inside / max(1, judged_ns), whole / max(1, recorded_ns), inside, whole))
    columns = ["case", "device_ratio", "window_ratio", "device_ns", "window_ns"]
    return pd.DataFrame(rows, columns=columns)


def _faster_copies(segments: Segments, speeds: Mapping[str, float], judged: Intervals) -> float:
    """Return the ns of the ``judged`` path that copies would save at the speed of their link."""
    chosen = segments.kind == DEVICE_KINDS.index("transfer")
    graph, rows = segments.graph, segments.row[chosen]
    on_path = judged.covered_ns(segments.start_ns[chosen], segments.end_ns[chosen])
    length = (graph.ends[rows] - graph.starts[rows]).astype(np.float64)
    of_names = [speeds.get(name, np.nan) for name in graph.direction_names]
    speed = np.array([*of_names, np.nan])[graph.directions[rows]]
    n_bytes = graph.n_bytes[rows]
    ideal = np.where(n_bytes >= 0, n_bytes, np.nan) / speed * 1e9
    slack = np.clip(1 - ideal / np.maximum(length, 1), 0, 1)
    return float(np.nansum(on_path * slack))


def _on_steps(ranks: Ranks, judged: Intervals) -> list[Note]:
    """Return what of the window is not judged, where that is anything."""
    window_ns = ranks.span.duration_ns
    is_typical = are_typical(ranks)
    if not is_typical.any() or judged.total_ns == window_ns:
        return []
    return [
        Note.of(
            "gains and device_ratio are of the {n:count} typical step(s), {judged:ns} of the "
            "{window:ns}, as findings are: without warm-up and slow steps",
            n=int(is_typical.sum()),
            judged=judged.total_ns,
            window=window_ns,
        )
    ]


def _on_links(speeds: Mapping[str, float]) -> list[Note]:
    if not speeds:
        return []
    listed = ", ".join(f"{name} {{{name}:bytes/s}}" for name in speeds)
    text = f"link speed (the peak, or what the best large copies reach): {listed}"
    return [Note(text, dict(speeds))]


WHATIF = Analysis(
    name="whatif",
    spec=SPEC,
    needs=("kernels", "api_calls"),
    uses=("copies", "ranges", "overheads", "devices", "environment"),
    whole=("kernels", "copies"),
    of_steps=True,
    of_ranks=measure_whatif,
)
