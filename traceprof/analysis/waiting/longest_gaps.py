"""The longest gaps of the devices: what ran before and after, and what they waited for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from traceprof.analysis.base import Analysis
from traceprof.facts.gaps import CAUSES, find_gaps
from traceprof.facts.launches import innermost
from traceprof.model.trace import Trace

__all__ = ["ANALYSIS", "Gaps", "measure_gaps", "ranges_at"]

_MOST: Final = 1000


@dataclass(frozen=True, slots=True, eq=False)
class Gaps:
    """The longest gaps, the longest first.

    ``table``: device, at_ns (from the start of the trace), duration_ns, cause (the largest),
    cause_ratio (its share of the gap), before and after (the work around it), host_range (the
    innermost range that the host was in when the gap opened, "" where none).
    """

    table: pd.DataFrame
    notes: tuple[str, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """Return the table."""
        return self.table


def measure_gaps(trace: Trace) -> Gaps:
    """Return the longest gaps of all devices."""
    gaps = find_gaps(trace)
    duration = gaps["end_ns"] - gaps["start_ns"]
    longest = gaps.loc[duration.sort_values(ascending=False, kind="stable").index[:_MOST]]
    lengths = (longest["end_ns"] - longest["start_ns"]).to_numpy()
    causes = longest[list(CAUSES)].to_numpy(np.int64)
    main = causes.argmax(axis=1) if len(longest) else np.empty(0, np.int64)
    table = pd.DataFrame(
        {
            "device": longest["device"].to_numpy(),
            "at_ns": longest["start_ns"].to_numpy() - trace.whole.span.start_ns,
            "duration_ns": lengths,
            "cause": np.array(CAUSES, object)[main],
            "cause_ratio": causes.max(axis=1, initial=0) / np.maximum(lengths, 1),
            "before": longest["before"].to_numpy(object),
            "after": longest["after"].to_numpy(object),
            "host_range": ranges_at(trace, longest),
        }
    )
    shown = f"the {_MOST} longest of {len(gaps)} gaps" if len(gaps) > _MOST else ""
    return Gaps(table, (shown,) if shown else ())


def ranges_at(trace: Trace, gaps: pd.DataFrame) -> list[str]:
    """Return the innermost range open on the busiest annotated thread when each gap opened."""
    ranges = trace.whole.ranges
    nested = ranges[ranges["kind"] == "push_pop"]
    sizes = nested.groupby(["process", "thread"]).size().sort_values(ascending=False)
    thread_of = dict(reversed(list(sizes.index)))
    process = gaps["process"].to_numpy(np.int64)
    thread = np.array([thread_of.get(owner, -1) for owner in process.tolist()], np.int64)
    rows = innermost(nested, process, thread, gaps["start_ns"].to_numpy(np.int64))
    names = nested["name"].astype(str).tolist()
    return [names[row] if row >= 0 else "" for row in rows]


ANALYSIS = Analysis(
    name="gaps",
    needs=("kernels", "copies", "api_calls"),
    run=measure_gaps,
)
