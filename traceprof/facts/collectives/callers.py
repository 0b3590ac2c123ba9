"""Whose code called a collective: its phase, its layer, its step.

What is found for every collective of the whole recording once, by its row there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.facts.collectives.work import find_collectives
from traceprof.measures.facts import fact
from traceprof.measures.host.launches import Launches
from traceprof.measures.host.phases import adopting_range_of_launches, phases_of_all_ranges
from traceprof.measures.steps.find import find_steps
from traceprof.model.compact import CompactTable
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace
from traceprof.names.ranges import PHASES, UNCLAIMED, codes_containing

__all__ = [
    "callers_of_collectives",
    "of_rows",
    "phases_of_collectives",
    "steps_of_collectives",
]

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
    ranges = trace.ranges
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
    ranges = trace.ranges
    codes = np.asarray(ranges["name"].cat.codes, np.int64)
    names = ranges["name"].cat.categories
    texts = np.append(names.to_numpy(object), "")
    own = np.zeros(len(texts), np.bool_)
    for code in codes_containing(names, _WORDS).tolist():
        own[code] = _IS_COLLECTIVE.match(str(names[code])) is not None
    kept = ~own[codes] & (ranges["kind"] == "push_pop").to_numpy()
    return _called_in(trace, kept, codes, texts, "")


def _called_in(
    trace: Trace,
    kept: npt.NDArray[np.bool_],
    codes: npt.NDArray[np.int64],
    names: _Names,
    nothing: str,
) -> _Names:
    """Return the name of the innermost of the ``kept`` ranges around the call of each collective.

    ``codes`` are the places of the ranges in ``names``.
    """
    work = find_collectives(trace)
    rows = np.flatnonzero(kept)
    found = adopting_range_of_launches(trace, trace.ranges.iloc[rows], _calls(work))
    if not len(rows):
        return np.full(len(work), nothing, object)
    code = codes[rows[np.maximum(found, 0)]]
    return np.asarray(np.where(found >= 0, names[code], nothing), object)


def _calls(work: pd.DataFrame) -> Launches:
    """Return the calls of the collectives as launches."""
    calls = work[["call_ns", "call_end_ns", "thread"]].set_axis(_OF_CALLS, axis=1)
    call = np.where(work["call_ns"] == ABSENT, ABSENT, np.arange(len(work)))
    return Launches(call, work["process"].to_numpy(np.int64), calls)


_OF_CALLS: Final = ["start_ns", "end_ns", "thread"]


@fact
def steps_of_collectives(trace: Trace) -> npt.NDArray[np.int64]:
    """Return the row of the whole recording's steps that each collective was called in, by its row.

    `ABSENT` for none. A collective whose call is not known belongs to the step in which it started.
    """
    work, table = find_collectives(trace), find_steps(trace).table
    found = np.full(len(work), ABSENT, np.int64)
    called = work["call_ns"].to_numpy(np.int64)
    instants = np.where(called != ABSENT, called, work["start_ns"].to_numpy(np.int64))
    by_process = work.groupby("process").indices
    begins, finishes = table["start_ns"].to_numpy(), table["end_ns"].to_numpy()
    for process, rows in table.groupby("process").indices.items():
        mine = by_process.get(process)
        if mine is None:
            continue
        place = np.searchsorted(begins[rows], instants[mine], side="right") - 1
        step = rows[np.maximum(place, 0)]
        inside = (place >= 0) & (instants[mine] < finishes[step])
        found[mine] = np.where(inside, step, ABSENT)
    return found


def of_rows(
    rows: pd.DataFrame | CompactTable, facts: Sequence[npt.NDArray[Any]]
) -> npt.NDArray[Any]:
    """Return the element of each of ``rows`` (with part and row), of ``facts`` of every part."""
    offsets = np.cumsum([0, *map(len, facts)])
    together = facts[0] if len(facts) == 1 else np.concatenate(facts)
    found: npt.NDArray[Any] = together[offsets[rows["part"].to_numpy()] + rows["row"].to_numpy()]
    return found
