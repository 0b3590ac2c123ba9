"""One rank arrives late at the collectives, and all others wait for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from traceprof.analysis.advice.findings.base import Finding, Rule
from traceprof.analysis.advice.findings.claims import Kind
from traceprof.analysis.advice.findings.context import Context
from traceprof.analysis.advice.findings.waiting import waiting_for
from traceprof.errors import NotRecordedError
from traceprof.facts.ranks.groups import find_late_whole
from traceprof.model.results import Note

__all__ = ["RULE"]

_LEAST: Final = 0.03
_ARRIVES_LAST: Final = 0.6


def _last_member(context: Context) -> tuple[int, float]:
    """Return the rank that arrives last most often, and in which share of the collectives."""
    counts = context.matches.table["last_member"].value_counts()
    return int(str(counts.index[0])), float(counts.iloc[0] / counts.sum())


def _check(context: Context) -> Iterator[Finding]:
    if len(context.devices) < 2:
        raise NotRecordedError("the trace has one device: give the traces of all ranks")
    if not context.matches.is_shared:
        raise NotRecordedError("no collective is shared by several ranks")
    place, last = _last_member(context)
    claim = waiting_for(context, (place,))
    share = context.share(claim)
    # Where no rank comes last most of the time they take turns; a whole host has its own rule.
    if last < _ARRIVES_LAST or share < _LEAST or find_late_whole(context.ranks) is not None:
        return
    table = context.matches.table
    slow = context.matches.members[place].label
    worst = table.iloc[int(table["waited_ns"].to_numpy().argmax())]
    median_ns = float((table["last_start_ns"] - table["first_start_ns"]).median())
    yield Finding(
        title=Note.of(
            "straggler: the others wait for {slow}, {share:ratio} of the time",
            slow=slow,
            share=share,
        ),
        claims=(claim,),
        kind=Kind.BOUNDED,
        evidence=(
            Note.of(
                "{slow} arrives last at {last:ratio} of {n:count} shared collectives, "
                "{after:ns} (median) after the first rank",
                slow=slow,
                last=last,
                n=len(table),
                after=median_ns,
            ),
        ),
        action=(
            f"find out why {slow} is late (`traceprof show stragglers`): more work (uneven batches "
            "or layers), a slower or throttled GPU, a busier host, slower storage"
        ),
        caveat="in a pipeline stages wait by design",
        window=context.window_text(int(worst["first_start_ns"]), int(worst["end_ns"])),
    )


RULE = Rule(
    name="straggler",
    summary="one rank is late at the collectives",
    needs=("kernels",),
    show="stragglers",
    check=_check,
)
