"""The collectives that ranks share: time without waiting, bandwidth, who came last."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from traceprof.measures.analyses import Analysis
from traceprof.measures.collectives.blame import why_withheld
from traceprof.measures.collectives.matches import MatchedBy, Matches, find_matches
from traceprof.measures.collectives.operations import SINGLE_OPS
from traceprof.measures.collectives.waits import find_waits
from traceprof.measures.facts import fact
from traceprof.measures.rows import lengths_of, ratio_of, sums_at, where_known
from traceprof.model.intervals import Int64Array
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note, Result, ResultSpec
from traceprof.model.table import Names, Table
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
        nothing = {"collectives": _COLLECTIVES.of_rows()}
        return Result("shared", SPEC, nothing, notes=(Note("no collective in this window"),))
    table = _collectives_of_whole(ranks)
    if ranks.uncut is not None:
        table = table.take(ranks.span.holds(table["at_ns"] + ranks.whole.span.start_ns))
    scalars = _counts(matches)
    notes = [Note.of(text, n=scalars[name]) for name, text in _NOTES.items() if scalars[name]]
    why = why_withheld(ranks)
    if why:
        table = table.assign(waited_ns=None)
        notes.append(Note.of("who waits for whom is withheld: {why}", why=why))
    rows = _COLLECTIVES.of_rows(table)
    return Result("shared", SPEC, {"collectives": rows}, scalars, tuple(notes))


@fact
def _collectives_of_whole(ranks: Ranks) -> Table:
    matches, waits = find_matches(ranks), find_waits(ranks)
    place = np.searchsorted(matches.table["match"], waits["match"])
    waited = sums_at(place, waits["exposed_ns"], len(matches.table))
    table = Table.stacked([_shared(matches, waited), _alone(matches)])
    table = table.assign(at_ns=table["at_ns"] - ranks.span.start_ns).in_order("at_ns")
    return table.assign(number=np.arange(len(table)))


def _shared(matches: Matches, waited: Int64Array) -> Table:
    table = matches.table
    seconds, size = table["duration_ns"] / 1e9, table["n_bytes"]
    return table.assign(
        at_ns=table["last_start_ns"],
        route=_routes(matches),
        group_size=where_known(table["group_size"], table["group_size"] != ABSENT),
        size_bytes=where_known(size, size >= 0),
        ranks=table["members"],
        algbw_bytes_per_s=ratio_of(table["operation_bytes"], seconds),
        busbw_bytes_per_s=ratio_of(table["bus_bytes"], seconds),
        waited_ns=waited,
        apart_ns=table["waited_ns"],
        last=_labels(matches, table["last_member"]),
    )


def _labels(matches: Matches, places: Int64Array) -> Names:
    """Return what the ranks at some places are called; "" for none."""
    return Names.coded(
        [*(member.label for member in matches.members), ""],
        np.where(places < 0, len(matches.members), places),
    )


def _routes(matches: Matches) -> npt.NDArray[np.object_]:
    """Return from whom to whom each message goes; "" for collectives."""
    rows, n = matches.shared, len(matches.table)
    ends = []
    for op in SINGLE_OPS:
        own = rows.take(rows["op"] == op)
        places = np.full(n, ABSENT)
        places[matches.places(own)] = own["member"]
        ends.append(_labels(matches, places).plain())
    source, target = ends
    return np.where((source != "") & (target != ""), source + " → " + target, "")


def _alone(matches: Matches) -> Table:
    """Return the collectives that only one rank has."""
    rows = matches.rows
    rows = rows.take((rows["match"] < 0) & (rows["member"] >= 0))
    return Table(
        {
            "at_ns": rows["start_ns"],
            "op": rows["op"],
            "route": "",
            "group": rows["group"],
            "group_size": where_known(rows["group_size"], rows["group_size"] != ABSENT),
            "size_bytes": where_known(rows["n_bytes"], rows["n_bytes"] >= 0),
            "ranks": 1,
            "duration_ns": where_known(lengths_of(rows), rows["is_timed"]),
            "last": _labels(matches, rows["member"]),
        }
    )


def _counts(matches: Matches) -> dict[str, int]:
    table = matches.table
    is_partial = (table["op"] != "send") & (table["members"] < table["group_size"])
    known_by = table["matched_by"].counts()
    apart = table["last_start_ns"] > table["end_ns"] + _JITTER_NS
    return {
        "shared_count": len(table),
        "alone_count": int((matches.rows["match"] < 0).sum()),
        "partial_count": int(is_partial.sum()),
        "unnamed_count": known_by.get(MatchedBy.TIME, 0),
        "guessed_count": known_by.get(MatchedBy.GUESS, 0),
        "apart_count": int(apart.sum()),
    }


SHARED: Final = Analysis(
    "shared",
    SPEC,
    uses=("collectives", "kernels", "api_calls", "ranges", "processes"),
    whole=("collectives", "kernels"),
    of_ranks=measure_shared,
)
