"""One rank arrives late at the collectives, and all others wait for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from traceprof.analysis.advice.findings.base import Finding, Rule
from traceprof.analysis.advice.findings.context import Context
from traceprof.analysis.advice.findings.slow_host import waiting_for_group_ratio
from traceprof.errors import NotRecordedError
from traceprof.facts.ranks.groups import find_late_whole
from traceprof.model.results import Note

__all__ = ["RULE", "waiting_ratio"]

_LEAST: Final = 0.03
_ARRIVES_LAST: Final = 0.6


def waiting_ratio(context: Context) -> float:
    """Return the share of the window, the mean over ranks, spent waiting for the slow one.

    The slow one may be a whole host. 0 where no rank is the last one most of the time: then the
    ranks take turns.
    """
    if find_late_whole(context.ranks) is not None:
        return waiting_for_group_ratio(context)
    if len(context.devices) < 2 or not context.matches.is_shared:
        return 0.0
    place, share = _last_member(context)
    if share < _ARRIVES_LAST:
        return 0.0
    table = context.matches.table
    waited_ns = int(table.loc[table["last_member"] == place, "waited_ns"].sum())
    return waited_ns / len(context.matches.members) / context.window_ns


def _last_member(context: Context) -> tuple[int, float]:
    """Return the rank that arrives last most often, and in which share of the collectives."""
    counts = context.matches.table["last_member"].value_counts()
    return int(str(counts.index[0])), float(counts.iloc[0] / counts.sum())


def _check(context: Context) -> Iterator[Finding]:
    if len(context.devices) < 2:
        raise NotRecordedError("the trace has one device: give the traces of all ranks")
    if not context.matches.is_shared:
        raise NotRecordedError("no collective is shared by several ranks")
    ratio = waiting_ratio(context)
    if ratio < _LEAST or find_late_whole(context.ranks) is not None:
        return
    place, share = _last_member(context)
    table = context.matches.table
    slow = context.matches.members[place].label
    worst = table.iloc[int(table["waited_ns"].to_numpy().argmax())]
    median_ns = float((table["last_start_ns"] - table["first_start_ns"]).median())
    yield Finding(
        title=Note.of(
            "straggler: the others wait for {slow}, {share:ratio} of the time",
            slow=slow,
            share=ratio,
        ),
        saving_ratio=ratio,
        saving_ns=context.saving_ns(ratio),
        evidence=(
            Note.of(
                "{slow} arrives last at {last:ratio} of {n:count} shared collectives, "
                "{after:ns} (median) after the first rank",
                slow=slow,
                last=share,
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
