"""Synchronising calls in the loop leave devices without work."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pandas as pd

from traceprof.analysis.advice.findings.base import Finding, Rule
from traceprof.analysis.advice.findings.claims import Kind
from traceprof.analysis.advice.findings.context import Context
from traceprof.analysis.advice.findings.named_gaps import notes_on_names
from traceprof.measures.idle.losses import DRAINED
from traceprof.measures.idle.waits import find_waits
from traceprof.model.results import Note

__all__ = ["RULE"]

_LEAST: Final = 0.02
_WORTH_A_WORD: Final = 0.001


def _check(context: Context) -> Iterator[Finding]:
    claim = context.idle_for("synchronising", DRAINED)
    share = context.share(claim)
    if share < _LEAST:
        return
    found = [find_waits(part) for part in context.ranks]
    waits = pd.concat([own for own in found if len(own)] or found[:1], ignore_index=True)
    starts = waits["start_ns"].to_numpy()
    waits = waits[context.typical.covered_ns(starts, starts + 1) > 0]
    kinds = waits["name"].astype(str) + " (" + waits["pattern"].astype(str) + ")"
    names = waits["host_range"].astype(object)
    places = names[names != ""].value_counts().head(3)
    inside = context.share(context.idle_for("synchronising"))
    named, _ = notes_on_names(context, claim.times)
    yield Finding(
        title=Note.of(
            "the host waits for the device: devices are idle {share:ratio} of the time",
            share=share,
        ),
        claims=(claim,),
        kind=Kind.BOUNDED,
        evidence=(
            _when(inside, share - inside),
            *(
                context.counted(int(count), "call(s) of {call}", is_of_host=True, call=call)
                for call, count in kinds.value_counts().head(3).items()
            ),
            *named,
        ),
        action=context.advice(
            pytorch="do not read values back in every step (.item(), .cpu(), print(loss), `if "
            "tensor:`): accumulate on the device and read every N steps; remove "
            "torch.cuda.synchronize()",
            other="launch the next work before waiting for the last: wait for events of what is "
            "needed instead of the whole device, and read results back less often",
        ),
        caveat=(
            "if the wait is there to measure time, or hides launching that is too slow anyway, "
            "less is gained"
        ),
        window=context.longest_gap("synchronising", DRAINED),
        ranges=tuple(str(place) for place in places.index),
    )


def _when(inside: float, after: float) -> Note:
    """Return when devices are idle, for whichever of the two is worth a word."""
    until = "{inside:ratio} of the time until the waiting calls return"
    then = "work is launched again"
    if after < _WORTH_A_WORD:
        return Note.of(until, inside=inside)
    if inside < _WORTH_A_WORD:
        return Note.of(f"from the return of the waiting calls until {then}")
    text = f"{until}, {{after:ratio}} from there until {then}"
    return Note.of(text, inside=inside, after=after)


RULE = Rule(
    name="host_sync",
    subject="synchronisation",
    summary="synchronising calls in the loop leave devices without work",
    needs=("kernels", "api_calls"),
    show="sync",
    check=_check,
)
