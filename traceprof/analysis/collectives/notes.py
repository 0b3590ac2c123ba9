"""What must be read with the numbers of collectives, in sentences."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from traceprof.facts.collectives.callers import measure_step_traffic, phases_of_collectives
from traceprof.facts.collectives.rates import devices_beside
from traceprof.facts.host.phase_names import UNCLAIMED
from traceprof.model.links import Peak
from traceprof.model.trace import Trace
from traceprof.units import format_bytes, format_count, format_duration, format_ratio

__all__ = ["remark_on_collectives"]


def remark_on_collectives(
    trace: Trace, work: pd.DataFrame, peaks: Mapping[str, Peak]
) -> tuple[str, ...]:
    """Return remarks on the collectives ``work`` and the peaks that they are judged by."""
    return (
        _on_waiting(work),
        *_on_pace(trace, work),
        *_on_phases(trace, work),
        *_on_what_is_missing(work),
        *_on_peaks(trace, work, peaks),
    )


def _on_waiting(work: pd.DataFrame) -> str:
    shared = int((work["match"] >= 0).sum())
    if not shared:
        return (
            "no collective is shared by several ranks of the trace: times include waiting for "
            "the others, bandwidths are lower bounds"
        )
    return (
        f"{format_count(shared)} of {format_count(len(work))} are shared by several ranks of the "
        "trace: bandwidths are by the shortest time of the ranks, which holds no waiting"
    )


def _on_pace(trace: Trace, work: pd.DataFrame) -> list[str]:
    n_ranks = len(work[["process", "member"]].drop_duplicates())
    seconds = trace.span.duration_ns / 1e9
    pace = f"{len(work) / n_ranks / seconds:.3g} collectives per second" if seconds else ""
    traffic = measure_step_traffic(trace, work)
    if traffic is None:
        return [pace] if pace else []
    parts = [f"{traffic.count:.4g} per step"]
    if traffic.size_bytes is not None:
        parts.append(f"{format_bytes(traffic.size_bytes)} per step")
    parts.append(f"all-reduce runs in {format_ratio(traffic.all_reduce_ratio)} of the step")
    return [", ".join([pace, *parts])]


def _on_phases(trace: Trace, work: pd.DataFrame) -> list[str]:
    """Return which phases called the collectives whose time compute does not hide."""
    exposed = work["exposed_ns"].groupby(phases_of_collectives(trace, work)).sum(min_count=1)
    exposed = exposed[exposed > 0].sort_values(ascending=False)
    if exposed.empty or list(exposed.index) == [UNCLAIMED]:
        return []
    parts = [f"{phase} {format_duration(float(ns))}" for phase, ns in exposed.items()]
    return [f"exposed by the phase that called them: {', '.join(parts)}"]


def _on_what_is_missing(work: pd.DataFrame) -> list[str]:
    n_all = format_count(len(work))
    remarks = []
    unsized = int((work["n_bytes"] < 0).sum())
    if unsized:
        remarks.append(
            f"the size of {format_count(unsized)} of {n_all} was not recorded: "
            "no bandwidth is claimed for them"
        )
    uncalled = int((work["call_ns"] < 0).sum())
    if uncalled:
        remarks.append(
            f"{format_count(uncalled)} of {n_all} are kernels whose launch is not in the trace"
        )
    untimed = int((~work["is_timed"]).sum())
    if untimed:
        remarks.append(
            f"{format_count(untimed)} of {n_all} are calls whose kernel is not in the trace: "
            "how long they took is not known"
        )
    return remarks


def _on_peaks(trace: Trace, work: pd.DataFrame, peaks: Mapping[str, Peak]) -> list[str]:
    sized = work[work["bus_bytes"].notna() & (work["device"] >= 0)]
    pairs = sized[["device", "group_size"]].drop_duplicates().itertuples(index=False, name=None)
    wider = sorted({n for device, n in pairs if n > devices_beside(trace, device)})
    apart = {f"{n} ranks" for n in wider}
    remarks = [
        f"peak for groups of {ranks}: {peak}"
        + ("" if ranks in apart else "; assumed is that they share a machine")
        for ranks, peak in peaks.items()
    ]
    unknown = [str(n) for n in wider if f"{n} ranks" not in peaks]
    if unknown:
        remarks.append(
            f"groups of {', '.join(unknown)} ranks have more ranks than a machine of this trace "
            "has GPUs: give the network of a GPU by --link nic=400Gb/s"
        )
    return remarks
