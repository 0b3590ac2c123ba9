"""Where the host waits for a device: synchronising calls and blocking copies."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.facts.cache import fact, of_window
from traceprof.facts.host.states import is_blocking_copy, is_synchronisation
from traceprof.facts.launches import innermost
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace
from traceprof.names.ranges import plain_name
from traceprof.values import dataclass

__all__ = ["PATTERNS", "READS_A_VALUE", "find_waits"]

_Int64Array = npt.NDArray[np.int64]
_BoolArray = npt.NDArray[np.bool_]

READS_A_VALUE: Final = ".item()"
PATTERNS: Final = ("synchronise", "blocking copy", READS_A_VALUE)
"""How the host waits: `READS_A_VALUE` is a copy of a few bytes to it that is waited for at once."""

_SMALL_BYTES: Final = 64
"""A copy to the host up to this size, waited for at once, is a `.item()` or an `if tensor:`."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waits:
    """The calls of the whole recording that wait: their rows, patterns and ranges.

    ``pattern`` is the place in `PATTERNS`, ``label`` that in ``labels`` (names of ranges).
    """

    rows: _Int64Array
    pattern: npt.NDArray[np.int8]
    label: _Int64Array
    labels: pd.Index


@of_window
def find_waits(trace: Trace) -> pd.DataFrame:
    """Return the API calls of the window that wait for a device.

    The columns of ``api_calls``, and pattern (one of `PATTERNS`) and host_range (the innermost
    range that the call began in, without what makes its name unique; "" where none is open). Of a
    call that the window cuts they are those of the whole call.
    """
    waits = _waits_of_whole(trace)
    asked = np.arange(len(trace.whole.api_calls))[trace.rows_in_whole("api_calls")]
    own = np.flatnonzero(np.isin(asked, waits.rows))
    place = np.searchsorted(waits.rows, asked[own])
    found = trace.api_calls.take(own).reset_index(drop=True)
    return found.assign(
        pattern=pd.Categorical.from_codes(waits.pattern[place], pd.Index(PATTERNS, dtype=object)),
        host_range=pd.Categorical.from_codes(waits.label[place], waits.labels),
    )


@fact
def _waits_of_whole(trace: Trace) -> _Waits:
    calls = trace.api_calls
    copies = is_blocking_copy(calls["name"])
    rows = np.flatnonzero(copies | is_synchronisation(calls["name"]))
    pattern = np.where(copies[rows], PATTERNS.index("blocking copy"), 0)
    reads = _reads_a_value(trace, rows, copies[rows])
    label, labels = _labels(trace, rows)
    return _Waits(
        rows=rows,
        pattern=np.where(reads, PATTERNS.index(READS_A_VALUE), pattern).astype(np.int8),
        label=label,
        labels=labels,
    )


def _labels(trace: Trace, waits: _Int64Array) -> tuple[_Int64Array, pd.Index]:
    """Return the plain name of the innermost range around each of the calls ``waits``."""
    calls, ranges = trace.api_calls, trace.ranges
    nested = np.flatnonzero(ranges["kind"] == "push_pop")
    lanes = ranges[["process", "thread", "start_ns", "end_ns"]].take(nested)
    at = [calls[name].to_numpy(np.int64)[waits] for name in ("process", "thread", "start_ns")]
    inner = innermost(lanes.reset_index(drop=True), *at)
    names = ranges["name"].cat
    codes = np.append(names.codes.to_numpy(np.int64)[nested], -1)[inner]
    distinct, place = np.unique(codes, return_inverse=True)
    plain = [plain_name(str(names.categories[code])) if code >= 0 else "" for code in distinct]
    label, labels = pd.factorize(np.array(plain, object))
    return np.asarray(label, np.int64)[place], pd.Index(labels, dtype=object)


def _reads_a_value(trace: Trace, waits: _Int64Array, is_copy: _BoolArray) -> _BoolArray:
    """Return which waits come right after, or are, a copy of a few bytes to the host."""
    calls = trace.api_calls
    small = _makes_a_small_copy(trace)
    if not small.any() or not len(waits):
        return np.zeros(len(waits), np.bool_)
    process, thread, starts = (
        calls[name].to_numpy(np.int64) for name in ("process", "thread", "start_ns")
    )
    order = np.lexsort((thread, process))
    process, thread, starts = process[order], thread[order], starts[order]
    # Calls that begin together on a thread (one is inside the other) are one instant.
    changes = (process[1:] != process[:-1]) | (thread[1:] != thread[:-1])
    opens_thread = np.append(True, changes)
    opens = opens_thread | np.append(True, starts[1:] != starts[:-1])
    instant_of = np.empty(len(order), np.int64)
    instant_of[order] = np.cumsum(opens) - 1
    small_there = np.zeros(int(opens.sum()), np.bool_)
    small_there[instant_of[small]] = True
    follows = np.append(False, small_there[:-1]) & ~opens_thread[opens]
    own = instant_of[waits]
    return np.where(is_copy, small_there[own], follows[own])


def _makes_a_small_copy(trace: Trace) -> _BoolArray:
    """Return which API calls made a copy of a few bytes to the host."""
    copies, calls = trace.copies, trace.api_calls
    n_bytes, number = copies["n_bytes"].to_numpy(), copies["correlation"].to_numpy(np.int64)
    small = (copies["direction"] == "d2h").to_numpy() & (n_bytes >= 1) & (n_bytes <= _SMALL_BYTES)
    small &= number != ABSENT
    owner, process = copies["process"].to_numpy(np.int64), calls["process"].to_numpy(np.int64)
    found = np.zeros(len(calls), np.bool_)
    for own in pd.unique(owner[small]).tolist():
        mine = calls["correlation"].isin(number[small & (owner == own)]).to_numpy()
        found |= mine & (process == own)
    return found
