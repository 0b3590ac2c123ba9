"""Hosts and racks that seem late as a whole, as a table and in words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Final

import pandas as pd

from traceprof.facts.ranks.groups import Grouping, GroupLateness
from traceprof.model.results import Note, TableSpec, Unit, key, same, total

__all__ = ["LATE_GROUPS", "describe_lateness", "frame_of_late"]

LATE_GROUPS: Final = TableSpec(
    "late_groups",
    "the hosts, racks and stages that seem late as a whole, and what to make of it",
    (
        key("kind", "host, rack or stage"),
        key("group", "its name"),
        same("verdict", Unit.TEXT, "straggler, or clocks: they may differ by as much"),
        same("ranks", Unit.COUNT, "its ranks"),
        same("late_ranks", Unit.COUNT, "how many of them come late"),
        total("cost_ns", Unit.NS, "how long most of its ranks hold the median other up"),
        same("cost_ratio", Unit.RATIO, "that, of the window"),
        total("held_up_ns", Unit.NS, "how long its last rank does"),
        same("last_ratio", Unit.RATIO, "the share of the collectives to which it comes last"),
        same("phase", Unit.TEXT, "where its ranks take longer than the others"),
        total("excess_ns", Unit.NS, "by how much each does in all"),
        same("since_ns", Unit.AT_NS, "when it first was late"),
        total("waited_ns", Unit.NS, "what all ranks waited where it came last"),
        total("ends_ns", Unit.NS, "how much the ends of these collectives differ"),
    ),
)
"""Those groups of `GroupLateness` that explain the lateness of ranks."""


def describe_lateness(grouping: Grouping, group: GroupLateness) -> Note:
    """Return a note on a straggler."""
    where = ", mostly in {phase}" if group.phase else ""
    since = "" if group.since_ns is None else ", since {since:ns}"
    text = (
        "{kind} {group} is a straggler: {late:count} of its {ranks:count} ranks come late, last "
        "to {last:ratio} of the collectives that it shares with others; that costs the others "
        f"{{cost:ns}} ({{share:ratio}} of the window){where}{since}"
    )
    return Note.of(
        text,
        kind=grouping.value,
        group=group.name,
        late=group.late_ranks,
        ranks=group.ranks,
        last=group.last_ratio,
        cost=group.cost_ns,
        share=group.cost_ratio,
        phase=group.phase,
        since=group.since_ns,
    )


def frame_of_late(groups: Iterable[tuple[str, GroupLateness]]) -> pd.DataFrame:
    """Return the table `LATE_GROUPS` of some groups, each with its kind: host, rack or stage."""
    rows = [
        {
            **asdict(group),
            "kind": kind,
            "group": group.name,
            "verdict": "straggler" if group.is_straggler else "clocks",
        }
        for kind, group in groups
    ]
    return LATE_GROUPS.frame(rows)
