"""The collectives that ranks share: time without waiting, bandwidth, who came last."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.measures.analyses import Analysis
from traceprof.measures.collectives.blame import why_withheld
from traceprof.measures.collectives.matches import MatchedBy, Matches, find_matches
from traceprof.measures.collectives.operations import SINGLE_OPS
from traceprof.measures.collectives.waits import find_waits
from traceprof.measures.facts import fact
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note, Result, ResultSpec
from traceprof.model.tables import ABSENT

_JITTER_NS: Final = 10_000

SPEC: Final = ResultSpec.of("""
    table collectives: one row per collective, once for all its ranks, in the order of time
    same at_ns: the start of the last rank
    same op: what it does
    same route: of a message: from which rank to which
    same group: its communicator
    same group_size [count]: the ranks of its communicator
    same size_bytes: what one rank hands in; of uneven parts the mean
    total ranks [count]: how many ranks have it
    total duration_ns: of the shortest rank: without waiting, unless only one has it
    derived algbw_bytes_per_s: its size over that time
    derived busbw_bytes_per_s: what each link carried
    total waited_ns: what all ranks waited for the last in it and did not compute, together, once
        they were in step: as `stragglers` counts it
    same spread_ns: between its ends: clocks differ, or a wrong match
    same last: the rank that came last
    same imbalance [factor]: of uneven parts: the largest over the mean
    same matched_by: how it is known that these are the same
    total apart_ns: how much earlier than the last all others began, together: also while they
        computed, and before the ranks were in step
    key number [number]: its place in the order of time, of the whole run
    scalars:
    total shared_count: those that ranks share
    total alone_count: those that only one rank has
    total partial_count: shared by fewer ranks than their communicator has
    total unnamed_count: matched by order and time, for want of a name
    total guessed_count: matched by a guess
    total apart_count: those in which a rank starts after another has ended
    """)
_COLLECTIVES: Final = SPEC.tables[0]
_NOTES: Final = {
    "alone_count": "{n:count} collectives of single ranks have no partner in the trace",
    "partial_count": "{n:count} have fewer ranks in the trace than their communicator has",
    "unnamed_count": "the trace names no communicator of {n:count}: matched by order and time",
    "guessed_count": "{n:count} are a guess: another match would fit about as well",
    "apart_count": (
        "in {n:count} a rank starts after another has ended: the clocks differ "
        "(align them by collectives), or they were matched wrongly"
    ),
}


def measure_shared(ranks: Ranks) -> Result:
    """Return the collectives of the window, each once for all its ranks."""
    matches = find_matches(ranks)
    if matches.rows.empty:
        nothing = {"collectives": _COLLECTIVES.frame()}
        return Result("shared", SPEC, nothing, notes=(Note("no collective in this window"),))
    table = _collectives_of_whole(ranks)
    if ranks.uncut is not None:
        at_ns = table["at_ns"].to_numpy(np.int64) + ranks.whole.span.start_ns
        table = table[ranks.span.holds(at_ns)].reset_index(drop=True)
    scalars = _counts(matches)
    notes = [Note.of(text, n=scalars[name]) for name, text in _NOTES.items() if scalars[name]]
    why = why_withheld(ranks)
    if why:
        table = table.assign(waited_ns=None)
        notes.append(Note.of("who waits for whom is withheld: {why}", why=why))
    frame = _COLLECTIVES.frame(table)
    return Result("shared", SPEC, {"collectives": frame}, scalars, tuple(notes))


@fact
def _collectives_of_whole(ranks: Ranks) -> pd.DataFrame:
    matches = find_matches(ranks)
    origin = ranks.span.start_ns
    waited = find_waits(ranks)[["match", "exposed_ns"]].groupby("match")["exposed_ns"].sum()
    parts = [_shared(matches, waited, origin), _alone(matches, origin)]
    table = pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)
    table = table.sort_values("at_ns", kind="stable", ignore_index=True)
    return table.assign(number=np.arange(len(table)))


def _shared(matches: Matches, waited: pd.Series, origin_ns: int) -> pd.DataFrame:
    table = matches.table
    seconds = table["duration_ns"].where(table["duration_ns"] > 0) / 1e9
    return table.assign(
        at_ns=table["last_start_ns"] - origin_ns,
        route=_routes(matches),
        group_size=table["group_size"].where(table["group_size"] != ABSENT),
        size_bytes=table["n_bytes"].where(table["n_bytes"] >= 0),
        ranks=table["members"],
        algbw_bytes_per_s=table["operation_bytes"] / seconds,
        busbw_bytes_per_s=table["bus_bytes"] / seconds,
        waited_ns=waited.reindex(table.index).fillna(0).astype(np.int64),
        apart_ns=table["waited_ns"],
        last=_labels(matches, table["last_member"]),
    )


def _labels(matches: Matches, places: pd.Series) -> npt.NDArray[np.object_]:
    """Return what the ranks at some places are called; "" for none."""
    labels = np.array([*(member.label for member in matches.members), ""], object)
    return np.asarray(labels[places.fillna(ABSENT).to_numpy(np.int64)], object)


def _routes(matches: Matches) -> npt.NDArray[np.object_]:
    """Return from whom to whom each message goes; "" for collectives."""
    rows = matches.shared[["match", "member", "op"]]
    places = (
        rows[rows["op"] == op].drop_duplicates("match", keep="last").set_index("match")["member"]
        for op in SINGLE_OPS
    )
    source, target = (_labels(matches, own.reindex(matches.table.index)) for own in places)
    return np.where((source != "") & (target != ""), source + " → " + target, "")


def _alone(matches: Matches, origin_ns: int) -> pd.DataFrame:
    is_alone = (matches.rows.array("match") < 0) & (matches.rows.array("member") >= 0)
    rows = matches.rows.where(is_alone).frame()
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
            "last": _labels(matches, rows["member"]),
        }
    )


def _counts(matches: Matches) -> dict[str, int]:
    table = matches.table
    together = table[table["op"] != "send"]
    known_by = table["matched_by"].value_counts()
    apart = table["last_start_ns"] > table["end_ns"] + _JITTER_NS
    return {
        "shared_count": len(table),
        "alone_count": int((matches.rows["match"] < 0).sum()),
        "partial_count": int((together["members"] < together["group_size"]).sum()),
        "unnamed_count": int(known_by.get(MatchedBy.TIME, 0)),
        "guessed_count": int(known_by.get(MatchedBy.GUESS, 0)),
        "apart_count": int(apart.sum()),
    }


SHARED: Final = Analysis(
    "shared",
    SPEC,
    uses=("collectives", "kernels", "api_calls", "ranges", "processes"),
    whole=("collectives", "kernels"),
    of_ranks=measure_shared,
)
