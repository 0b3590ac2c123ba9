"""Which ranks are stages of a pipeline, and in which order."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import pandas as pd

from traceprof.analysis.communication.members import Member, find_members
from traceprof.model.trace import Trace

__all__ = ["POINT_TO_POINT", "Stage", "find_stages"]

POINT_TO_POINT: Final = ("send", "recv", "send_recv")
_STAGE: Final = re.compile(r"\b(?:pipeline[ _]?)?stage[ _:#-]*(?P<number>\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage: its place among ``n_stages``, the rank that runs it, and how that is known."""

    number: int
    n_stages: int
    member: Member
    told_by: str


def find_stages(trace: Trace, work: pd.DataFrame) -> tuple[Stage, ...]:
    """Return the stages in their order; none where they cannot be told.

    Ranges that name one stage in each process ("stage 2") decide; else processes that send to and
    receive from each other are stages, in the order in which they first compute. Kernels named
    SendRecv do not suffice: all-to-all uses them, too.
    """
    members = find_members(trace)
    named = _named_stages(trace)
    ordered = sorted((named[m.process], m) for m in members if m.process in named)
    if len({number for number, _ in ordered}) == len(ordered) > 1:
        return _numbered([member for _, member in ordered], "ranges")
    talking = set(work.loc[work["op"].isin(("send", "recv")), "process"])
    begins = trace.whole.kernels.groupby("process")["start_ns"].min()
    stages = [m for m in members if m.process in talking and m.process in begins.index]
    if len(stages) < 2:
        return ()
    stages.sort(key=lambda member: int(begins[member.process]))
    return _numbered(stages, "sends and receives")


def _numbered(members: list[Member], told_by: str) -> tuple[Stage, ...]:
    return tuple(Stage(i, len(members), member, told_by) for i, member in enumerate(members))


def _named_stages(trace: Trace) -> dict[int, int]:
    """Return the number of the one stage that the ranges of each process name."""
    ranges = trace.whole.ranges
    names = [str(name) for name in ranges["name"].cat.categories]
    found = {i: match for i, name in enumerate(names) if (match := _STAGE.search(name))}
    codes = ranges["name"].cat.codes
    hits = ranges[codes.isin(list(found))]
    numbers = codes[hits.index].map({i: int(match["number"]) for i, match in found.items()})
    by_process: dict[int, set[int]] = {}
    for process, number in zip(hits["process"].tolist(), numbers.tolist(), strict=True):
        by_process.setdefault(int(process), set()).add(int(number))
    return {process: min(own) for process, own in by_process.items() if len(own) == 1}
