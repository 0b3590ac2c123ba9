"""Whose code called a collective: its phase, its layer, its step; and what compute hides of it.

What is found for every collective of the whole recording once, by its row there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.measures.analyses import Analysis
from traceprof.measures.collectives.operations import find_collectives, require_collectives
from traceprof.measures.facts import fact
from traceprof.measures.host.launches import Launches
from traceprof.measures.host.phases import adopting_range_of_launches, phases_of_all_ranges
from traceprof.measures.steps.find import find_steps, steps_of_calls
from traceprof.model.compact import CompactTable
from traceprof.model.intervals import Int64Array
from traceprof.model.results import Note, Result, ResultSpec
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace
from traceprof.names.ranges import PHASES, UNCLAIMED, codes_containing

_IS_COLLECTIVE: Final = re.compile(
    r"comm:|comm\.async:|[nr]ccl|gloo:|record_param_comms", re.IGNORECASE
)
_WORDS: Final = ("comm:", "comm.async:", "ccl", "gloo:", "record_param_comms")
"""One of them is in every name that `_IS_COLLECTIVE` matches."""

_Names = npt.NDArray[np.object_]


@fact
def phases_of_collectives(trace: Trace) -> _Names:
    """Return the phase whose code called each collective of the whole recording, by its row.

    The ranges of the collectives themselves do not count.
    """
    ranges = trace.ranges.to_frame()
    phases = phases_of_all_ranges(trace)
    kept = (phases >= 0) & (phases != PHASES.index("communication"))
    kept &= (ranges["kind"] == "push_pop").to_numpy()
    names = np.array([*PHASES, UNCLAIMED], object)
    return _called_in(trace, kept, phases, names, UNCLAIMED)


@fact
def callers_of_collectives(trace: Trace) -> _Names:
    """Return the innermost range (a layer, a module, a user's own) around each call; "" for none.

    Of the collectives of the whole recording, by row. The ranges of the collectives themselves and
    NCCL's own do not count.
    """
    ranges = trace.ranges.to_frame()
    codes = np.asarray(ranges["name"].cat.codes, np.int64)
    names = ranges["name"].cat.categories
    texts = np.append(names.to_numpy(object), "")
    own = np.zeros(len(texts), np.bool_)
    for code in codes_containing(names, _WORDS).tolist():
        own[code] = _IS_COLLECTIVE.match(str(names[code])) is not None
    kept = ~own[codes] & (ranges["kind"] == "push_pop").to_numpy()
    return _called_in(trace, kept, codes, texts, "")


def _called_in(
    trace: Trace, kept: npt.NDArray[np.bool_], codes: Int64Array, names: _Names, nothing: str
) -> _Names:
    """Return the name of the innermost of the ``kept`` ranges around the call of each collective.

    ``codes`` are the places of the ranges in ``names``.
    """
    work = find_collectives(trace)
    columns = {"call_ns": "start_ns", "call_end_ns": "end_ns", "thread": "thread"}
    calls = work[list(columns)].rename(columns=columns)
    call = np.where(work["call_ns"] == ABSENT, ABSENT, np.arange(len(work)))
    launches = Launches(call, work["process"].to_numpy(np.int64), calls)
    rows = np.flatnonzero(kept)
    found = adopting_range_of_launches(trace, trace.ranges.to_frame().iloc[rows], launches)
    if not len(rows):
        return np.full(len(work), nothing, object)
    code = codes[rows[np.maximum(found, 0)]]
    return np.asarray(np.where(found >= 0, names[code], nothing), object)


@fact
def steps_of_collectives(trace: Trace) -> Int64Array:
    """Return the row of the whole recording's steps that each collective was called in, by its row.

    `ABSENT` for none. A collective whose call is not known belongs to the step in which it started.
    """
    return steps_of_calls(find_steps(trace), find_collectives(trace))


def of_rows(
    rows: pd.DataFrame | CompactTable, facts: Sequence[npt.NDArray[Any]]
) -> npt.NDArray[Any]:
    """Return the element of each of ``rows`` (with part and row), of ``facts`` of every part."""
    offsets = np.cumsum([0, *map(len, facts)])
    together = facts[0] if len(facts) == 1 else np.concatenate(facts)
    found: npt.NDArray[Any] = together[offsets[rows["part"].to_numpy()] + rows["row"].to_numpy()]
    return found


_KEYS: Final = ["phase", "caller", "op"]

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
    rows = work["row"].to_numpy()
    timed = work["is_timed"]
    work = pd.DataFrame(
        {
            "phase": phases_of_collectives(trace)[rows],
            "caller": callers_of_collectives(trace)[rows],
            "op": work["op"],
            "size_bytes": work["n_bytes"].clip(lower=0),
            "is_unsized": work["n_bytes"] < 0,
            "total_ns": (work["end_ns"] - work["start_ns"]).where(timed),
            "exposed_ns": work["exposed_ns"].where(timed),
            "is_unplaced": timed & work["exposed_ns"].isna(),
        }
    )
    groups = work.groupby(_KEYS, sort=False)
    table = groups.agg(
        count=("op", "size"),
        unsized_count=("is_unsized", "sum"),
        unplaced_count=("is_unplaced", "sum"),
        size_bytes=("size_bytes", "sum"),
    )
    sums = groups[["total_ns", "exposed_ns"]].sum(min_count=1)
    frame = _CALLERS.frame(table.join(sums).reset_index())
    return Result("callers", SPEC, {"callers": frame})


def _finish(result: Result) -> Result:
    table = result.to_frame()
    if table.empty:
        nothing = Note("no collective starts in this window")
        return result.with_table(_CALLERS.frame()).with_notes(nothing)
    exposed = table["exposed_ns"].where(table["unplaced_count"] == 0)
    total_ns = table["total_ns"]
    table = table.assign(
        size_bytes=table["size_bytes"].where(table["unsized_count"] == 0),
        exposed_ns=exposed,
        hidden_ns=total_ns - exposed,
        exposed_ratio=exposed / total_ns.where(total_ns > 0),
        longest=-total_ns.fillna(0),
        most=-exposed.fillna(0),
    )
    order = ["most", "longest", "caller", "op", "phase"]
    return result.with_table(table.sort_values(order, kind="stable", ignore_index=True))


CALLERS: Final = Analysis(
    "callers",
    SPEC,
    uses=("collectives", "kernels", "api_calls", "ranges"),
    whole=("ranges",),
    of_steps=True,
    of_rank=measure_callers,
    finish=_finish,
)
