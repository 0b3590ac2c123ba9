"""Every collective of the window by itself, in the order of its start."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from traceprof.analysis.base import Analysis
from traceprof.analysis.communication.collectives import UNRECORDED, is_recorded
from traceprof.errors import NotRecordedError
from traceprof.facts.collectives.callers import (
    callers_of_collectives,
    phases_of_collectives,
    steps_of_collectives,
)
from traceprof.facts.collectives.members import find_members, member_of_rows
from traceprof.facts.collectives.point_to_point import peers_of_rows
from traceprof.facts.collectives.rates import with_sizes
from traceprof.facts.collectives.work import find_collectives
from traceprof.facts.steps.find import find_steps
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace

__all__ = ["ANALYSIS", "Messages", "measure_messages"]


@dataclass(frozen=True, slots=True, eq=False)
class Messages:
    """One row per collective.

    ``table``: at_ns (its start, from the start of the trace), op, phase (whose code called it),
    caller (the innermost range around the call: a layer, a module), step, size_bytes (what this
    rank handed in), dtype, peer (whom a send goes to or a receive comes from), group, group_size,
    sequence, process, device, stream, duration_ns, exposed_ns (what compute does not hide),
    delay_ns (from the call to the start of the kernel), algbw_bytes_per_s, busbw_bytes_per_s,
    algorithm, protocol, kernels_count. NaN where not known.
    """

    table: pd.DataFrame
    notes: tuple[str, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """Return the table."""
        return self.table


def measure_messages(trace: Trace) -> Messages:
    """Return every collective that starts in the window.

    Raises:
        NotRecordedError: neither collectives nor kernels were recorded.
    """
    if not is_recorded(trace):
        raise NotRecordedError(UNRECORDED)
    work = with_sizes(find_collectives(trace))
    duration = (work["end_ns"] - work["start_ns"]).where(work["is_timed"])
    seconds = duration.where(duration > 0) / 1e9
    called = work["call_ns"] != ABSENT
    table = pd.DataFrame(
        {
            "at_ns": work["start_ns"] - trace.whole.span.start_ns,
            "op": work["op"],
            "phase": phases_of_collectives(trace, work),
            "caller": callers_of_collectives(trace, work),
            "step": _step_numbers(trace, work),
            "size_bytes": work["n_bytes"].where(work["n_bytes"] >= 0),
            "dtype": work["dtype"],
            "peer": _peers(trace, work),
            "group": work["group"],
            "group_size": work["group_size"].where(work["group_size"] >= 0),
            "sequence": work["sequence"].where(work["sequence"] >= 0),
            "process": work["process"],
            "device": work["device"].where(work["device"] >= 0),
            "stream": work["stream"].where(work["stream"] >= 0),
            "duration_ns": duration,
            "exposed_ns": work["exposed_ns"],
            "delay_ns": (work["start_ns"] - work["call_ns"]).where(called & (work["kernels"] > 0)),
            "algbw_bytes_per_s": work["operation_bytes"] / seconds,
            "busbw_bytes_per_s": work["bus_bytes"] / seconds,
            "algorithm": work["algorithm"],
            "protocol": work["protocol"],
            "kernels_count": work["kernels"],
        }
    )
    return Messages(table)


def _peers(trace: Trace, work: pd.DataFrame) -> list[str]:
    """Return the other end of each send and receive; of several in one kernel, who takes part."""
    members = find_members(trace)
    work = work.assign(member=member_of_rows(members, work), is_sole=True)
    places = peers_of_rows(members, work)
    others = [
        members[place].label if place >= 0 else f"rank {rank}" if rank >= 0 else ""
        for place, rank in zip(places.tolist(), work["peer_rank"].tolist(), strict=True)
    ]
    words = {"send": "to", "recv": "from"}
    return [
        f"{words[op]} {other}" if op in words and other else f"{{{ends}}}" if ends else ""
        for op, other, ends in zip(work["op"], others, work["exchange"], strict=True)
    ]


def _step_numbers(trace: Trace, work: pd.DataFrame) -> np.ndarray:
    steps = find_steps(trace.whole)
    place = steps_of_collectives(steps, work)
    numbers = steps.table["step"].to_numpy(np.float64)
    if not len(numbers):
        return np.full(len(work), np.nan)
    return np.where(place >= 0, numbers[np.maximum(place, 0)], np.nan)


ANALYSIS = Analysis(
    name="messages",
    needs=(),
    run=measure_messages,
)
