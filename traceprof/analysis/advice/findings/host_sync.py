"""Waits of the host for the device inside the loop let the queue run dry."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pandas as pd

from traceprof.analysis.advice.findings.base import Finding, Rule
from traceprof.analysis.advice.findings.context import Context
from traceprof.analysis.advice.findings.named_gaps import notes_on_names
from traceprof.facts.host.waits import find_waits
from traceprof.model.results import Note

__all__ = ["RULE"]

_LEAST: Final = 0.02


def _check(context: Context) -> Iterator[Finding]:
    ratio = context.gap_ratio("host_sync")
    if ratio < _LEAST:
        return
    found = [find_waits(part) for part in context.ranks]
    waits = pd.concat([own for own in found if len(own)] or found[:1], ignore_index=True)
    starts = waits["start_ns"].to_numpy()
    waits = waits[context.typical.covered_ns(starts, starts + 1) > 0]
    kinds = waits["name"].astype(str) + " (" + waits["pattern"].astype(str) + ")"
    by_call = kinds.value_counts()
    names = waits["host_range"].astype(object)
    places = names[names != ""].value_counts().head(3)
    calls = [
        context.counted(int(count), "of {call}", call=call)
        for call, count in by_call.head(3).items()
    ]
    gaps = context.gaps[(context.gaps["owner"] == "host_sync") & (context.gaps["typical_ns"] > 0)]
    named, _ = notes_on_names(context, context.gap_times(gaps))
    yield Finding(
        title=Note.of(
            "the host waits for the device in the loop: {share:ratio} idle after it", share=ratio
        ),
        saving_ratio=ratio,
        saving_ns=context.saving_ns(ratio),
        evidence=(
            *calls,
            context.timed(
                context.idle_ns("synchronising"),
                before="devices are idle ",
                after=" until these calls return, the rest until work is launched again",
            ),
            *named,
        ),
        action=(
            "do not read values back in every step (.item(), .cpu(), print(loss), `if tensor:`): "
            "accumulate on the device and read every N steps; remove torch.cuda.synchronize()"
        ),
        caveat=(
            "if the wait is there to measure time, or hides launching that is too slow anyway, "
            "less is gained"
        ),
        window=context.longest_gap("host_sync"),
        ranges=tuple(str(place) for place in places.index),
    )


RULE = Rule(
    name="host_sync",
    summary="synchronising calls in the loop leave devices without work",
    needs=("kernels", "api_calls"),
    show="sync",
    check=_check,
)
