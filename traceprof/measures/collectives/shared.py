"""The collectives that ranks share: duration without waiting, bandwidth, last rank."""

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
    table collectives: one row per collective, combined over its ranks, in time order
    same at_ns: start of the last rank
    same op: operation
    same route: source and destination rank of a message
    same group: communicator
    same group_size [count]: number of ranks in the communicator
    same size_bytes: input size per rank; the mean if sizes are uneven
    total ranks [count]: number of ranks that recorded the collective
    total duration_ns: duration on the shortest rank, which excludes waiting if several ranks
        recorded it
    derived algbw_bytes_per_s: algorithm bandwidth: operation size divided by duration_ns
    derived busbw_bytes_per_s: bus bandwidth: the rate that each link carried
    total waited_ns: time that all ranks waited for the last rank without computing, after the ranks
        first synchronized; summed over ranks, as in `stragglers`
    same spread_ns: spread of the end times; a large value indicates different clocks or a wrong
        match
    same last: last rank to arrive
    same imbalance [factor]: largest input size divided by the mean, if sizes are uneven
    same matched_by: how traceprof matched the collective across ranks
    total arrival_skew_ns: time between the start on each rank and the start on the last rank,
        summed over ranks; includes time with compute and time before the ranks first synchronized
    key number [number]: index in time order over the whole run
    scalars:
    total shared_count: number of collectives recorded on several ranks
    total unmatched_count: number of collectives recorded on only one rank
    total partial_count: number of collectives recorded on fewer ranks than their communicator has
    total unnamed_count: number of collectives matched by order and time because they have no
        communicator name
    total guessed_count: number of collectives whose match is a guess
    total non_overlapping_count: number of collectives in which a rank starts after another rank
        has ended
    """)
_COLLECTIVES: Final = SPEC.tables[0]
_NOTES: Final = {
    "unmatched_count": "{n:count} collectives were recorded on only one rank.",
    "partial_count": "{n:count} collectives were recorded on fewer ranks than their communicator "
    "has.",
    "unnamed_count": "{n:count} collectives have no communicator name. traceprof matched them by "
    "order and time.",
    "guessed_count": "{n:count} matches are guesses: another match fits about as well.",
    "non_overlapping_count": (
        "In {n:count} collectives, a rank starts after another rank has ended. The clocks differ "
        "(try --align collectives), or the matching is wrong."
    ),
}


def measure_shared(ranks: Ranks) -> Result:
    """Return the collectives of the window, one row each for all ranks."""
    matches = find_matches(ranks)
    if matches.rows.empty:
        nothing = {"collectives": _COLLECTIVES.of_rows()}
        return Result("shared", SPEC, nothing, notes=(Note("No collectives in this window."),))
    table = _collectives_of_whole(ranks)
    if ranks.uncut is not None:
        table = table.take(ranks.span.holds(table["at_ns"] + ranks.whole.span.start_ns))
    scalars = _counts(matches)
    notes = [Note.of(text, n=scalars[name]) for name, text in _NOTES.items() if scalars[name]]
    if why := why_withheld(ranks):
        table = table.assign(waited_ns=None)
        notes.append(Note.of("Rank wait times are not reported: {why}", why=why))
    tables = {"collectives": _COLLECTIVES.of_rows(table)}
    return Result("shared", SPEC, tables, scalars, tuple(notes))


@fact
def _collectives_of_whole(ranks: Ranks) -> Table:
    matches, waits = find_matches(ranks), find_waits(ranks)
    place = np.searchsorted(matches.table["match"], waits["match"])
    waited = sums_at(place, waits["exposed_ns"], len(matches.table))
    table = Table.stacked([_rows_of_shared(matches, waited), _rows_of_unshared(matches)])
    table = table.assign(at_ns=table["at_ns"] - ranks.span.start_ns).in_order("at_ns")
    return table.assign(number=np.arange(len(table)))


def _rows_of_shared(matches: Matches, waited: Int64Array) -> Table:
    """Return one row per match; ``waited`` is the waiting time of all its ranks."""
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
        arrival_skew_ns=table["waited_ns"],
        last=_labels(matches, table["last_member"]),
    )


def _labels(matches: Matches, places: Int64Array) -> Names:
    """Return the labels of the members at ``places``; "" for negative places."""
    return Names.coded(
        [*(member.label for member in matches.members), ""],
        np.where(places < 0, len(matches.members), places),
    )


def _routes(matches: Matches) -> npt.NDArray[np.object_]:
    """Return source and target of each message as text; "" for collectives."""
    rows, n = matches.shared, len(matches.table)
    ends = []
    for op in SINGLE_OPS:
        op_rows = rows.take(rows["op"] == op)
        places = np.full(n, ABSENT)
        places[matches.places(op_rows)] = op_rows["member"]
        ends.append(_labels(matches, places).plain())
    source, target = ends
    return np.where((source != "") & (target != ""), source + " → " + target, "")


def _rows_of_unshared(matches: Matches) -> Table:
    """Return the collectives that only one rank recorded."""
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
    is_apart = table["last_start_ns"] > table["end_ns"] + _JITTER_NS
    return {
        "shared_count": len(table),
        "unmatched_count": int((matches.rows["match"] < 0).sum()),
        "partial_count": int(is_partial.sum()),
        "unnamed_count": known_by.get(MatchedBy.TIME, 0),
        "guessed_count": known_by.get(MatchedBy.GUESS, 0),
        "non_overlapping_count": int(is_apart.sum()),
    }


SHARED: Final = Analysis(
    "shared",
    SPEC,
    uses=("collectives", "kernels", "api_calls", "ranges", "processes"),
    whole=("collectives", "kernels"),
    of_ranks=measure_shared,
)
