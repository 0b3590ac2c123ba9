"""What the rules are about: how much of it the analyzed time contains, and whether it is enough."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from traceprof.errors import NotRecordedError
from traceprof.findings.claims import starts_within
from traceprof.findings.context import Context
from traceprof.measures.host.recomputed import rows_in_autograd
from traceprof.measures.idle.losses import analyzed_times
from traceprof.measures.rows import are_named
from traceprof.model.activity import Activity
from traceprof.model.intervals import Intervals
from traceprof.model.results import Note
from traceprof.model.table import Bools, Table
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace
from traceprof.names.kernels import MATRIX_WORK

WORK: Final = "GPU activity"
COMPUTE: Final = "compute kernels"
GEMMS: Final = "GEMMs, convolutions, or attention"
CONVOLUTIONS: Final = "convolutions"
COLLECTIVES: Final = "communication between GPUs"
GRAPHS: Final = "CUDA graphs"
AUTOGRAD: Final = "autograd functions"
COPIES: Final = "copies or memsets"
TRANSFERS: Final = "copies between CPU and GPU or between GPUs"
STEPS: Final = "steps"
RANKS: Final = "communication between ranks"


class AbsentError(NotRecordedError):
    """The analyzed time contains nothing that a rule is about, so there is nothing to check."""


class NotApplicableError(AbsentError):
    """A rule is about something that this kind of program never has, so nobody misses its check."""


_MIN_KERNELS: Final = 100
_MIN_OBSERVED_RATIO: Final = 0.1
_COMPUTES: Final = tuple({*Activity} - {Activity.COMMUNICATION, Activity.CUDA_GRAPH})
_TRANSFERS: Final = ("h2d", "d2h", "p2p")
_LOST_EVENTS: Final = re.compile(r"(?i)not all CUDA|\b(lost|dropped|discarded)\b|overflow")
"""Warnings of a recorder that lost events."""
_LAUNCHES_GRAPH: Final = re.compile("GraphLaunch")


@dataclass(frozen=True, slots=True)
class _Amount:
    """What rules are about: the ``noun`` of its events, and a function that counts them."""

    noun: str
    count: Callable[[Context], int]


def _count_kernels(*activities: Activity) -> Callable[[Context], int]:
    """Return a function that counts the kernels with one of ``activities`` (none: all)."""

    def count(context: Context) -> int:
        kernels = context.kernels
        rows = kernels.with_activity(*activities) if activities else kernels.by_name
        return int(rows["count"].sum())

    return count


_AMOUNTS: Final[Mapping[str, _Amount]] = {
    WORK: _Amount(
        "kernels and copies", lambda context: _count_kernels()(context) + context.n_copies
    ),
    COMPUTE: _Amount("compute kernels", _count_kernels(*_COMPUTES)),
    GEMMS: _Amount("matrix kernels", _count_kernels(*MATRIX_WORK)),
    CONVOLUTIONS: _Amount("convolution kernels", _count_kernels(Activity.CONVOLUTION)),
    COLLECTIVES: _Amount("kernels of collectives", _count_kernels(Activity.COMMUNICATION)),
    GRAPHS: _Amount(
        "graph kernels and launches", lambda context: sum(context.ranks.each(_count_graphs))
    ),
    AUTOGRAD: _Amount(
        "autograd kernels",
        lambda context: sum(context.ranks.each(_count_autograd, context.typical)),
    ),
    COPIES: _Amount("copies and memsets", lambda context: context.n_copies),
    TRANSFERS: _Amount("copies", lambda context: len(context.copies(_are_transfers))),
    RANKS: _Amount(
        "collectives of several ranks",
        lambda context: len(context.matches.table) if context.matches.is_shared else 0,
    ),
    STEPS: _Amount("steps", lambda context: len(np.unique(context.all_steps.table["step"]))),
}


WORK_NOUN: Final = _AMOUNTS[WORK].noun
PARTS_OF_WORK: Final = frozenset(
    _AMOUNTS[about].noun
    for about in (COMPUTE, GEMMS, CONVOLUTIONS, COLLECTIVES, AUTOGRAD, COPIES, TRANSFERS)
)
"""Nouns of events that are kernels or copies."""


def count_of(context: Context, about: str) -> int:
    """Return how many events the analyzed time contains of the kind that a rule is ``about``."""
    return _AMOUNTS[about].count(context)


def noun_of(about: str) -> str:
    """Return the noun of the events that a rule is ``about``."""
    return _AMOUNTS[about].noun


def _are_transfers(copies: Table) -> Bools:
    """Return which copies move data between host and device or between devices."""
    return np.asarray(copies["direction"].isin(_TRANSFERS), np.bool_)


def _count_graphs(part: Trace) -> int:
    """Return the number of kernels in CUDA graphs, of traced graphs, and of graph launches."""
    kernels = part.kernels
    is_in_graph = kernels["graph_node"] != ABSENT
    is_graph = kernels["activity"] == Activity.CUDA_GRAPH.value
    n_calls = are_named(part.api_calls["name"], _LAUNCHES_GRAPH).sum()
    return int((is_in_graph | is_graph).sum() + n_calls)


def _count_autograd(part: Trace, typical: Intervals) -> int:
    """Return the number of kernels of autograd functions that start in the ``typical`` time."""
    is_inside = rows_in_autograd(part, "kernels") & starts_within(part.kernels, typical)
    return int(is_inside.sum())


def lack_of_data(context: Context) -> Note | None:
    """Return why too little GPU activity was observed to exclude problems; None if it is enough.

    At least 100 kernels and 10% of the window are required, and a recorder that reports no lost
    events. CUDA graphs that were traced whole are not observed. A recording without devices has
    only rules on steps of the host.
    """
    if not context.devices:
        return None
    kernels = context.kernels
    if (n := count_of(context, WORK) - context.n_copies) < _MIN_KERNELS:
        text = "not enough data: {n:count} kernel(s) in the analyzed time, {least:count} are needed"
        return Note.of(text, n=n, least=_MIN_KERNELS)
    if any(map(_LOST_EVENTS.search, context.ranks.info.warnings)):
        return Note("not enough data: the recording reports that GPU events may be missing")
    recorded_ns = sum(time.total_ns for time in analyzed_times(context.ranks).values())
    graphs_ns = int(kernels.with_activity(Activity.CUDA_GRAPH)["total_ns"].sum())
    window_ns = context.window_ns * len(context.devices)
    if (observed := max(0, recorded_ns - graphs_ns) / window_ns) < _MIN_OBSERVED_RATIO:
        text = "not enough data: {share:ratio} of the window was observed, {least:ratio} is needed"
        return Note.of(text, share=observed, least=_MIN_OBSERVED_RATIO)
    return None
