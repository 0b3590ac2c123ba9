"""Gaps of half a second and more that no other rule explains."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pandas as pd

from traceprof.analysis.advice.findings.base import Finding, Rule
from traceprof.analysis.advice.findings.claims import Claim, Kind
from traceprof.analysis.advice.findings.context import Context
from traceprof.analysis.advice.findings.named_gaps import notes_on_names
from traceprof.measures.idle.gaps import find_gaps
from traceprof.measures.idle.losses import lost_in_gaps
from traceprof.model.intervals import Intervals
from traceprof.model.results import Note
from traceprof.model.trace import Trace

__all__ = ["RULE", "long_gaps"]

_LONG_NS: Final = 500_000_000
_LEAST: Final = 0.01


def long_gaps(context: Context) -> pd.DataFrame:
    """Return the gaps between work that last half a second, the profiler's time not counted."""
    found = context.ranks.each(_long_gaps_of_one)
    return pd.concat([own for own in found if len(own)] or found[:1], ignore_index=True)


def _long_gaps_of_one(part: Trace) -> pd.DataFrame:
    gaps = find_gaps(part)
    lengths = gaps["end_ns"] - gaps["start_ns"] - lost_in_gaps(part, "profiler")
    is_long = (lengths > _LONG_NS).to_numpy(np.bool_) & (lost_in_gaps(part, "edge") == 0)
    return gaps.take(np.flatnonzero(is_long))


def _check(context: Context) -> Iterator[Finding]:
    gaps = long_gaps(context)
    free = _claim_on(context, gaps).times
    is_free = [
        free[device].covered_ns([start], [end])[0] > (end - start) / 2 if device in free else False
        for device, start, end in gaps[["device", "start_ns", "end_ns"]].to_numpy().tolist()
    ]
    # What others have left over of a gap is no gap without a cause.
    own = gaps[np.array(is_free, np.bool_)]
    claim = _claim_on(context, own)
    share = context.share(claim)
    if share < _LEAST:
        return
    worst = own.iloc[int((own["end_ns"] - own["start_ns"]).to_numpy().argmax())]
    named, names = notes_on_names(context, claim.times)
    yield Finding(
        title=Note.of(
            ("one gap" if len(own) == 1 else "{n:count} gaps")
            + " of more than {least:ns} without a cause that was recorded: {share:ratio} of the "
            "time",
            n=len(own),
            least=_LONG_NS,
            share=share,
        ),
        claims=(claim,),
        kind=Kind.BOUNDED,
        evidence=(
            Note.of(
                "the longest: device {device}, {longest:ns}",
                device=int(worst["device"]),
                longest=int(worst["end_ns"] - worst["start_ns"]),
            ),
            *named,
        ),
        action="see what the host does there: `traceprof show gaps`, `traceprof timeline`",
        caveat="loading a model or a checkpoint takes its time once",
        window=context.window_text(int(worst["start_ns"]), int(worst["end_ns"])),
        ranges=names,
    )


def _claim_on(context: Context, gaps: pd.DataFrame) -> Claim:
    return context.left(
        {
            int(str(device)): Intervals.union_of(rows["start_ns"], rows["end_ns"])
            for device, rows in gaps.groupby("device")
        }
    )


RULE = Rule(
    name="gpu_gaps",
    subject="idle time",
    summary="gaps of half a second and more that nothing explains",
    needs=("kernels", "copies", "api_calls"),
    show="gaps",
    check=_check,
)
