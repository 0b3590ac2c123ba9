"""Whose code called a collective: its phase, its layer, its step; and what compute hides of it.

What is found for every collective of the whole recording once, by its row there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traceprof.measures.analyses import Analysis
from traceprof.measures.collectives.operations import find_collectives, require_collectives
from traceprof.measures.facts import fact
from traceprof.measures.host.launches import Launches
from traceprof.measures.host.phases import adopting_range_of_launches, phases_of_all_ranges
from traceprof.measures.rows import lengths_of, ratio_of, where_known
from traceprof.measures.steps.find import find_steps, steps_of_calls
from traceprof.model.grouping import grouped_by
from traceprof.model.intervals import Int64Array
from traceprof.model.results import Note, Result, ResultSpec
from traceprof.model.table import Names, Table
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace
from traceprof.names.ranges import PHASES, UNCLAIMED, codes_containing

_IS_COLLECTIVE: Final = re.compile(
    r"comm:|comm\.async:|[nr]ccl|gloo:|record_param_comms", re.IGNORECASE
)
_WORDS: Final = ("comm:", "comm.async:", "ccl", "gloo:", "record_param_comms")
"""One of them is in every name that `_IS_COLLECTIVE` matches."""


@fact
def phases_of_collectives(trace: Trace) -> Names:
    """Return the phase whose code called each collective of the whole recording, by its row.

    The ranges of the collectives themselves do not count.
    """
    phases = phases_of_all_ranges(trace)
    kept = (phases >= 0) & (phases != PHASES.index("communication"))
    return _called_in(trace, kept, Names(phases, [*PHASES, UNCLAIMED]))


@fact
def callers_of_collectives(trace: Trace) -> Names:
    """Return the innermost range (a layer, a module, a user's own) around each call; "" for none.

    Of the collectives of the whole recording, by row. The ranges of the collectives themselves and
    NCCL's own do not count.
    """
    names = trace.ranges["name"]
    own = np.zeros(len(names.texts), np.bool_)
    for code in codes_containing(names.texts, _WORDS).tolist():
        own[code] = _IS_COLLECTIVE.match(str(names.texts[code])) is not None
    return _called_in(trace, ~names.by_text(own), Names(names.codes, [*names.texts, ""]))


def _called_in(trace: Trace, kept: npt.NDArray[np.bool_], names: Names) -> Names:
    """Return the name of the innermost of the ``kept`` ranges around the call of each collective.

    ``names`` are those of the ranges; the last of its texts stands for none.
    """
    work = find_collectives(trace)
    columns = {"start_ns": "call_ns", "end_ns": "call_end_ns", "thread": "thread"}
    calls = Table({name: work[own] for name, own in columns.items()})
    call = np.where(work["call_ns"] == ABSENT, ABSENT, np.arange(len(work)))
    rows = np.flatnonzero(kept & (trace.ranges["kind"] == "push_pop"))
    launches = Launches(call, work["process"], calls)
    found = adopting_range_of_launches(trace, trace.ranges.take(rows), launches)
    codes = np.append(names.codes[rows].astype(np.int64), len(names.texts) - 1)
    used, place = np.unique(codes[found], return_inverse=True)
    return Names.coded(names.texts[used].tolist(), place)


@fact
def steps_of_collectives(trace: Trace) -> Int64Array:
    """Return the row of the whole recording's steps that each collective was called in, by its row.

    `ABSENT` for none. A collective whose call is not known belongs to the step in which it started.
    """
    return steps_of_calls(find_steps(trace), find_collectives(trace))


def of_rows(rows: Table, facts: Sequence[Any]) -> Any:
    """Return the element of each of ``rows`` (with part and row), of ``facts`` of every part."""
    offsets = np.cumsum([0, *map(len, facts)])
    are_names = isinstance(facts[0], Names)
    together = Names.joined(facts) if are_names else np.concatenate(facts)
    return together[offsets[rows["part"]] + rows["row"]]


SPEC: Final = ResultSpec.of("""
    table callers: one row per phase, caller and operation, the most exposed first
    key phase: the phase whose code called
    key caller: the innermost range around the call, empty outside any
    key op: the operation
    total count: how many, of all ranks
    total size_bytes: what ranks handed in, none if one is not known
    total total_ns: their times added up
    total exposed_ns: what compute does not hide, none if not all known
    derived hidden_ns: the rest of total_ns
    derived exposed_ratio: exposed_ns of total_ns
    total unsized_count: of these, of unknown size
    total unplaced_count: of these, timed but not on a device
    """)
_CALLERS: Final = SPEC.tables[0]


def measure_callers(trace: Trace) -> Result:
    """Return the collectives that start in the window by the code that called them.

    Raises:
        NotRecordedError: neither collectives nor kernels were recorded.
    """
    require_collectives(trace)
    work = find_collectives(trace)
    timed, exposed = work["is_timed"], work["exposed_ns"]
    work = work.assign(
        phase=phases_of_collectives(trace)[work["row"]],
        caller=callers_of_collectives(trace)[work["row"]],
        size_bytes=np.maximum(work["n_bytes"], 0),
        unsized_count=work["n_bytes"] < 0,
        unplaced_count=timed & np.isnan(exposed),
        total_ns=where_known(lengths_of(work), timed),
        exposed_ns=where_known(exposed, timed),
    )
    table, groups = grouped_by(work, "phase", "caller", "op")
    summed = ("size_bytes", "total_ns", "exposed_ns", "unsized_count", "unplaced_count")
    table = table.assign(count=groups.counts, **{name: groups.sums(work[name]) for name in summed})
    return Result("callers", SPEC, {"callers": _CALLERS.of_rows(table)})


def _finish(result: Result) -> Result:
    table = result.table
    if table.empty:
        nothing = Note("no collective starts in this window")
        return result.with_table(_CALLERS.of_rows()).with_notes(nothing)
    total_ns = table["total_ns"]
    exposed = where_known(table["exposed_ns"], table["unplaced_count"] == 0)
    table = table.assign(
        size_bytes=where_known(table["size_bytes"], table["unsized_count"] == 0),
        exposed_ns=exposed,
        hidden_ns=total_ns - exposed,
        exposed_ratio=ratio_of(exposed, total_ns),
        longest=np.nan_to_num(total_ns),
        most=np.nan_to_num(exposed),
    )
    return result.with_table(table.in_order("-most", "-longest", "caller", "op", "phase"))


CALLERS: Final = Analysis(
    "callers",
    SPEC,
    uses=("collectives", "kernels", "api_calls", "ranges"),
    whole=("ranges",),
    of_steps=True,
    of_rank=measure_callers,
    finish=_finish,
)
