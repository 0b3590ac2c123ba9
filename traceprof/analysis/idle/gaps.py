"""The longest gaps of the devices: what ran before and after, and what they waited for."""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd

from traceprof.analysis.base import Analysis
from traceprof.facts.gaps import CAUSES, find_gaps
from traceprof.facts.host.open_ranges import ranges_at
from traceprof.model.results import (
    Note,
    Result,
    ResultSpec,
    TableSpec,
    Unit,
    key,
    same,
    total,
)
from traceprof.model.trace import Trace

__all__ = ["ANALYSIS"]

_MOST: Final = 1000
SPEC: Final = ResultSpec(
    tables=(
        TableSpec(
            "gaps",
            "the longest gaps, the longest first",
            (
                key("device", "the number of the device in the run", Unit.NUMBER),
                key("at_ns", "when it opens", Unit.AT_NS),
                same("duration_ns", Unit.NS, "its length inside the window"),
                same("cause", Unit.TEXT, "what the device waited for the longest"),
                same("cause_ratio", Unit.RATIO, "the share of that cause"),
                same("before", Unit.TEXT, "the work that ended before it"),
                same("after", Unit.TEXT, "the work that ends it"),
                same(
                    "host_range",
                    Unit.TEXT,
                    "the innermost range that the host was in when it opened",
                ),
            ),
        ),
    ),
    scalars=(total("gaps_count", Unit.COUNT, "the gaps of all devices"),),
)


def measure_gaps(trace: Trace) -> Result:
    """Return the longest gaps of the devices of a rank."""
    gaps = find_gaps(trace)
    duration = (gaps["end_ns"] - gaps["start_ns"]).to_numpy(np.int64)
    longest = np.argsort(-duration, kind="stable")[:_MOST]
    return Result(
        "gaps",
        SPEC,
        tables={"gaps": SPEC.tables[0].frame(_described(trace, gaps.take(longest)))},
        scalars={"gaps_count": len(gaps)},
    )


def _described(trace: Trace, gaps: pd.DataFrame) -> pd.DataFrame:
    starts = gaps["start_ns"].to_numpy(np.int64)
    lengths = gaps["end_ns"].to_numpy(np.int64) - starts
    causes = gaps[list(CAUSES)].to_numpy(np.int64)
    return pd.DataFrame(
        {
            "device": gaps["device"].to_numpy(),
            "at_ns": starts - trace.whole.span.start_ns,
            "duration_ns": lengths,
            "cause": np.array(CAUSES, object)[causes.argmax(axis=1)],
            "cause_ratio": causes.max(axis=1, initial=0) / np.maximum(lengths, 1),
            "before": gaps["before"].to_numpy(object),
            "after": gaps["after"].to_numpy(object),
            "host_range": ranges_at(trace, gaps["process"].to_numpy(np.int64), starts),
        }
    )


def _finish(result: Result) -> Result:
    table = result.table.sort_values(
        ["duration_ns", "device", "at_ns"], ascending=[False, True, True], ignore_index=True
    )
    result = result.with_table(table.head(_MOST))
    n = int(result.scalars["gaps_count"])
    note = Note.of("the {most:count} longest of {n:count} gaps", most=_MOST, n=n)
    return result.with_notes(*([note] if n > _MOST else []))


ANALYSIS = Analysis(
    name="gaps",
    spec=SPEC,
    needs=("kernels", "copies", "api_calls"),
    uses=("ranges", "overheads", "devices"),
    whole=("kernels", "copies", "ranges"),
    of_rank=measure_gaps,
    finish=_finish,
)
