"""The longest gaps of the devices: what ran before and after, and what they waited for."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.analysis.base import Analysis
from traceprof.facts.gaps import CAUSES, causes_of_gaps, find_gaps
from traceprof.facts.idle.charges import charged_by_host, find_charges
from traceprof.model.intervals import union_lengths
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
                same(
                    "host_name",
                    Unit.TEXT,
                    "what the host was in for most of it, by overlap: a range, operator or call, "
                    'innermost, of the thread that launches what ends it, else of one that runs; ""'
                    " where the host held nobody up",
                ),
                same("host_ratio", Unit.RATIO, "the share of the gap charged to that"),
                same(
                    "meanwhile",
                    Unit.TEXT,
                    "what other threads ran the longest in it: told, not charged",
                ),
                same("meanwhile_ratio", Unit.RATIO, "the share of the gap that this covers"),
                same("before", Unit.TEXT, "the work that ended before it"),
                same("after", Unit.TEXT, "the work that ends it"),
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
        tables={"gaps": SPEC.tables[0].frame(_described(trace, gaps, longest))},
        scalars={"gaps_count": len(gaps)},
    )


def _described(trace: Trace, every: pd.DataFrame, rows: npt.NDArray[np.int64]) -> pd.DataFrame:
    gaps = every.take(rows)
    starts = gaps["start_ns"].to_numpy(np.int64)
    lengths = gaps["end_ns"].to_numpy(np.int64) - starts
    causes = causes_of_gaps(trace, rows)
    charged, charged_ns = _most(charged_by_host(trace), rows)
    running = find_charges(trace).running
    beside, beside_ns = _most(running[running["by"] == "other"], rows)
    return pd.DataFrame(
        {
            "device": gaps["device"].to_numpy(),
            "at_ns": starts - trace.whole.span.start_ns,
            "duration_ns": lengths,
            "cause": np.array(CAUSES, object)[causes.argmax(axis=1)],
            "cause_ratio": causes.max(axis=1, initial=0) / np.maximum(lengths, 1),
            "before": gaps["before"].to_numpy(object),
            "after": gaps["after"].to_numpy(object),
            "host_name": charged,
            "host_ratio": charged_ns / np.maximum(lengths, 1),
            "meanwhile": beside,
            "meanwhile_ratio": beside_ns / np.maximum(lengths, 1),
        }
    )


def _most(
    times: pd.DataFrame, gaps: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.object_], npt.NDArray[np.int64]]:
    """Return the name that has the most of ``times`` in each of ``gaps``, and how much."""
    names = times["name"].cat
    n_names = max(1, len(names.categories))
    gap = times["gap"].to_numpy(np.int64)
    kept = np.flatnonzero(np.isin(gap, gaps))
    own, code = gap[kept], names.codes.to_numpy(np.int64)[kept]
    pairs, place = np.unique(own * n_names + code, return_inverse=True)
    starts, ends = (times[name].to_numpy(np.int64)[kept] for name in ("start_ns", "end_ns"))
    covered = union_lengths(place, starts, ends, len(pairs))
    # Of equals the first name: the last one that is written stays.
    order = np.lexsort((-pairs, covered))
    text, most_ns = np.full(len(gaps), "", object), np.zeros(len(gaps), np.int64)
    where = np.argsort(gaps)
    row = where[np.searchsorted(gaps[where], pairs[order] // n_names)]
    text[row] = np.append(names.categories.to_numpy(object), "")[pairs[order] % n_names]
    most_ns[row] = covered[order]
    return text, most_ns


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
    uses=("ranges", "host_ops", "overheads", "devices"),
    whole=("kernels", "copies"),
    of_rank=measure_gaps,
    finish=_finish,
)
