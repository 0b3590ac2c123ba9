"""The collectives that ranks share: time without waiting, bandwidth, who came last."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from traceprof.analysis.base import Analysis
from traceprof.facts.collectives.matches import Matches, ToldBy, find_matches
from traceprof.facts.collectives.point_to_point import SINGLE_OPS
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace

__all__ = ["ANALYSIS", "Shared", "measure_shared"]

_JITTER_NS: Final = 10_000


@dataclass(frozen=True, slots=True, eq=False)
class Shared:
    """One row per collective that at least two ranks have, and per collective that only one has.

    ``table``: at_ns (the start of the last rank, from the start of the trace), op, route (of a
    message: from which rank to which), group, group_size, size_bytes (what one rank hands in),
    ranks (how many have it), duration_ns (the shortest of the ranks: without the waiting),
    algbw_bytes_per_s and busbw_bytes_per_s (by that time), waited_ns (of all ranks together),
    spread_ns (from the earliest to the latest end: clocks that differ, or a wrong match), last
    (the rank that came last), imbalance (of an all-to-all with uneven parts: the most that a rank
    hands in over the mean, which is its size then), told_by (how it is known that these are the
    same: a number that the ranks gave it, the peer of a send, one launch of them all, its order
    in a communicator with a name, else the time, or a guess where another match fits about as
    well). Of a collective that only one rank has, duration_ns includes waiting and there is no
    bandwidth.
    """

    table: pd.DataFrame
    notes: tuple[str, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """Return the table, in the order of time."""
        return self.table


def measure_shared(trace: Trace) -> Shared:
    """Return the collectives of the window, each once for all its ranks."""
    matches = find_matches(trace)
    if matches.rows.empty:
        return Shared(pd.DataFrame(), ("no collective in this window",))
    origin = trace.whole.span.start_ns
    table = pd.concat([_shared(matches, origin), _alone(matches, origin)], ignore_index=True)
    return Shared(table.sort_values("at_ns", kind="stable", ignore_index=True), _notes(matches))


def _shared(matches: Matches, origin_ns: int) -> pd.DataFrame:
    table = matches.table
    seconds = table["duration_ns"].where(table["duration_ns"] > 0) / 1e9
    labels = np.array([member.label for member in matches.members], object)
    return pd.DataFrame(
        {
            "at_ns": table["last_start_ns"] - origin_ns,
            "op": table["op"],
            "route": _routes(matches, table.index),
            "group": table["group"],
            "group_size": table["group_size"].where(table["group_size"] != ABSENT),
            "size_bytes": table["n_bytes"].where(table["n_bytes"] >= 0),
            "ranks": table["members"],
            "duration_ns": table["duration_ns"],
            "algbw_bytes_per_s": table["operation_bytes"] / seconds,
            "busbw_bytes_per_s": table["bus_bytes"] / seconds,
            "waited_ns": table["waited_ns"],
            "spread_ns": table["spread_ns"],
            "last": labels[table["last_member"].to_numpy(np.int64)] if len(table) else [],
            "imbalance": table["imbalance"],
            "told_by": table["told_by"],
        }
    )


def _routes(matches: Matches, numbers: pd.Index) -> list[str]:
    """Return from whom to whom each message goes; "" for collectives."""
    single = matches.rows[matches.rows["op"].isin(SINGLE_OPS) & (matches.rows["match"] >= 0)]
    member = {
        op: dict(zip(own["match"].tolist(), own["member"].tolist(), strict=True))
        for op, own in single.groupby("op")
    }
    senders, receivers = (member.get(op, {}) for op in SINGLE_OPS)
    labels = [member.label for member in matches.members]
    return [
        f"{labels[senders[number]]} → {labels[receivers[number]]}"
        if number in senders and number in receivers
        else ""
        for number in numbers.tolist()
    ]


def _alone(matches: Matches, origin_ns: int) -> pd.DataFrame:
    rows = matches.rows[(matches.rows["match"] < 0) & (matches.rows["member"] >= 0)]
    labels = np.array([member.label for member in matches.members], object)
    return pd.DataFrame(
        {
            "at_ns": rows["start_ns"] - origin_ns,
            "op": rows["op"],
            "route": "",
            "group": rows["group"],
            "group_size": rows["group_size"].where(rows["group_size"] != ABSENT),
            "size_bytes": rows["n_bytes"].where(rows["n_bytes"] >= 0),
            "ranks": 1,
            "duration_ns": (rows["end_ns"] - rows["start_ns"]).where(rows["is_timed"]),
            "last": labels[rows["member"].to_numpy(np.int64)] if len(rows) else [],
        }
    )


def _notes(matches: Matches) -> tuple[str, ...]:
    notes = []
    alone = int((matches.rows["match"] < 0).sum())
    if alone:
        notes.append(f"{alone} collectives of single ranks have no partner in the trace")
    together = matches.table[matches.table["op"] != "send"]
    fewer = int((together["members"] < together["group_size"]).sum())
    if fewer:
        notes.append(f"{fewer} have fewer ranks in the trace than their communicator has")
    counts = matches.table["told_by"].value_counts()
    unnamed = int(counts.get(ToldBy.TIME, 0))
    if unnamed:
        notes.append(f"the trace names no communicator of {unnamed}: matched by order and time")
    guessed = int(counts.get(ToldBy.GUESS, 0))
    if guessed:
        notes.append(f"{guessed} are a guess: another match would fit about as well")
    apart = matches.table["last_start_ns"] > matches.table["end_ns"] + _JITTER_NS
    if int(apart.sum()):
        notes.append(
            f"in {int(apart.sum())} a rank starts after another has ended: the clocks differ "
            "(align them by collectives), or they were matched wrongly"
        )
    return tuple(notes)


ANALYSIS = Analysis(
    name="shared",
    needs=(),
    run=measure_shared,
)
