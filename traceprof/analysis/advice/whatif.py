"""What at most would be gained if communication were hidden, data free, or links at full speed.

Taking a part of the critical path away gains at most its time on the path, and never more than
what brings the window down to the time in which the busiest device still has other work: the
smaller of the two is the bound. Beside it stands what the devices lose to the same thing, as
`findings`, `idle` and `breakdown` count it: that of a device which is not on the path gains nothing
by itself, and a path may hold what devices hide.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import pandas as pd

from traceprof.analysis.base import Analysis
from traceprof.facts.device.times import (
    device_time,
    device_times,
    devices_at_work,
    used_devices,
)
from traceprof.facts.gaps import CAUSES, find_gaps
from traceprof.facts.path.graph import DEVICE_KINDS
from traceprof.facts.path.parts import find_path
from traceprof.facts.path.walk import Segments
from traceprof.facts.steps.find import steps_of_ranks
from traceprof.facts.transfers.speeds import copy_speeds
from traceprof.model.ranks import Ranks
from traceprof.model.results import (
    Note,
    Result,
    ResultSpec,
    TableSpec,
    Unit,
    derived,
    key,
    mean,
    same,
    total,
)
from traceprof.model.trace import Trace

__all__ = ["ANALYSIS"]

_CASES: Final = (
    ("communication fully hidden", ("communication",), "communication", ""),
    ("data loading free", ("data",), "", "data"),
    ("launch gaps closed", ("launch", "latency"), "", "launch"),
    ("host code free", ("host",), "", "host"),
    ("synchronisation free", ("synchronising",), "", "synchronising"),
)
_COPIES: Final = "copies at link speed"

SPEC: Final = ResultSpec(
    tables=(
        TableSpec(
            "cases",
            "one row per case, the largest gain first; the mean over processes",
            (
                key("case", "what would be different"),
                derived(
                    "gain_ns",
                    Unit.NS,
                    "how much shorter a step would be, at most (the window where steps are not "
                    "known)",
                ),
                mean("gain_ratio", Unit.RATIO, "gain of the window, at most", "process_count"),
                derived("speedup", Unit.FACTOR, "how many times as fast it would be, at most"),
                derived(
                    "device_ratio",
                    Unit.RATIO,
                    "how much of the window devices lose to it, the mean over devices: exposed "
                    "communication, or idle for that cause",
                ),
                total("process_count", Unit.COUNT, "over how many processes"),
            ),
        ),
        TableSpec(
            "links",
            "the speeds that copies are taken to reach",
            (
                key("direction", "the direction of the copies"),
                same(
                    "bytes_per_s",
                    Unit.BYTES_PER_S,
                    "the peak of the link, or what the best large copies reach",
                ),
            ),
        ),
    ),
    scalars=(
        same("step_ns", Unit.NS, "the median step; the window where steps are not known"),
        same("window_ns", Unit.NS, "the length of the window"),
    ),
)
_BOUND: Final = Note(
    "each gain is an upper bound on the critical path, and they do not add up: what is taken away "
    "may uncover something else; what devices lose is the mean over them, as findings count it"
)


def measure_whatif(ranks: Ranks) -> Result:
    """Return upper bounds of what could be gained."""
    speeds = copy_speeds(ranks)
    gains = pd.DataFrame(
        [
            _gains(part, process, devices, speeds)
            for part in ranks
            for process, devices in devices_at_work(part).items()
        ]
    )
    window_ns = ranks.span.duration_ns
    steps = steps_of_ranks(ranks)
    step_ns = float(np.median(steps.durations_ns)) if len(steps) else float(window_ns)
    ratio = gains.mean() / max(1, window_ns)
    lost = _lost_by_devices(ranks)
    cases = pd.DataFrame(
        {
            "case": ratio.index.to_numpy(object),
            "gain_ns": ratio.to_numpy() * step_ns,
            "gain_ratio": ratio.to_numpy(),
            "speedup": 1 / (1 - ratio.to_numpy()),
            "device_ratio": [lost.get(str(case), float("nan")) for case in ratio.index],
            "process_count": len(gains),
        }
    ).sort_values("gain_ratio", ascending=False, kind="stable", ignore_index=True)
    links = pd.DataFrame({"direction": list(speeds), "bytes_per_s": list(speeds.values())})
    tables = {"cases": cases, "links": links}
    return Result(
        "whatif",
        SPEC,
        tables={name: SPEC.table(name).frame(table) for name, table in tables.items()},
        scalars={"step_ns": step_ns, "window_ns": window_ns},
        notes=(_BOUND, *_on_links(speeds)),
    )


def _gains(
    trace: Trace, process: int, devices: tuple[int, ...], speeds: Mapping[str, float]
) -> dict[str, float]:
    """Return what each case would gain of the window for a process, in ns."""
    parts, segments = find_path(trace, process)
    times = [device_time(trace, device) for device in devices]
    window_ns = trace.span.duration_ns
    gains: dict[str, float] = {}
    for case, names, without, _ in _CASES:
        on_path = sum(parts[name].total_ns for name in names)
        floor = max(time.busy_without_ns(without) for time in times)
        gains[case] = min(on_path, window_ns - floor)
    return gains | {_COPIES: _faster_copies(segments, speeds)}


def _lost_by_devices(ranks: Ranks) -> dict[str, float]:
    """Return what devices lose to each case, the mean over all that ever work, of the window."""
    count, exposed, causes = 0, 0, dict.fromkeys(CAUSES, 0)
    for part in ranks:
        times, gaps = device_times(part), find_gaps(part)
        count += len(used_devices(part))
        exposed += sum((time.communication - time.compute).total_ns for time in times.values())
        for cause in causes:
            causes[cause] += int(gaps[cause].sum())
    whole = max(1, count * ranks.span.duration_ns)
    return {case: (causes[cause] if cause else exposed) / whole for case, _, _, cause in _CASES}


def _faster_copies(segments: Segments, speeds: Mapping[str, float]) -> float:
    """Return the ns of the path that copies would save at the speed of their link."""
    chosen = segments.kind == DEVICE_KINDS.index("transfer")
    rows = segments.work.iloc[segments.row[chosen]]
    on_path = (segments.end_ns - segments.start_ns)[chosen].astype(np.float64)
    length = (rows["end_ns"] - rows["start_ns"]).to_numpy(np.float64)
    speed = rows["direction"].astype(object).map(speeds).to_numpy(np.float64)
    ideal = rows["n_bytes"].to_numpy(np.float64) / speed * 1e9
    slack = np.clip(1 - ideal / np.maximum(length, 1), 0, 1)
    return float(np.nansum(on_path * slack))


def _on_links(speeds: Mapping[str, float]) -> list[Note]:
    if not speeds:
        return []
    listed = ", ".join(f"{name} {{{name}:bytes/s}}" for name in speeds)
    text = f"link speed (the peak, or what the best large copies reach): {listed}"
    return [Note(text, dict(speeds))]


ANALYSIS = Analysis(
    name="whatif",
    spec=SPEC,
    needs=("kernels", "api_calls"),
    uses=("copies", "ranges", "overheads", "devices", "environment"),
    whole=("kernels", "copies"),
    of_steps=True,
    of_ranks=measure_whatif,
)
