"""Estimate the CPU time that torch.profiler itself took: a cost per recorded event, as a range.

Measured per event: 0.12 to 0.16 µs per Python call on an idle and on a busy CPU; 0.2 to 1.1 µs per
operator without a GPU, and 2 to 3 µs with CUDA activity (a GPT training step of 11.2 ms took 15.7
to 18.5 ms with 2 400 operators and 420 CUDA calls); 1 µs more with shapes. The ranges here are
wider, because CPUs differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from traceprof.formats.kineto.events import KinetoEvents
from traceprof.formats.kineto.rows import ANNOTATIONS, API_CALLS, MEMORY, OPERATORS
from traceprof.formats.kineto.stacks import FUNCTIONS
from traceprof.model.table import Names
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import RecordingCost
from traceprof.units import NS_PER_MS

_PLACED: Final = (*API_CALLS, *OPERATORS, *ANNOTATIONS)
_COST_NS: Final[Mapping[str, tuple[int, int]]] = {
    "operators": (300, 1_500),
    "operators with CUDA": (1_000, 3_000),
    "calls": (300, 1_500),
    "functions": (100, 400),
    "allocations": (200, 1_000),
}
_SHAPES_NS: Final = (400, 1_600)
"""Added for each operator if its input shapes are recorded."""
_MIN_RATIO: Final = 0.05
_MAX_RATIO: Final = 0.9
"""A part of the time always belongs to the program; above it, the times of the file are wrong."""
_MIN_EVENTS: Final = 100


def recording_cost(events: KinetoEvents, window: TimeWindow | None) -> RecordingCost | None:
    """Return the cost of recording; None if it may be below 5% of the CPU time, or is unknown.

    ``window`` is the window of a file that was cut: it has only some events before its window.
    """
    begin_ns = int(np.iinfo(np.int64).min) if window is None else window.start_ns
    category = events.category[np.flatnonzero(events.start_ns >= begin_ns)]
    on_host = np.flatnonzero(events.category.isin(_PLACED) & (events.start_ns >= begin_ns))
    if not len(on_host):
        return None
    span_ns = int(events.end_ns[on_host].max()) - int(events.start_ns[on_host].min())
    span_ns *= len(np.unique(events.process[on_host]))
    counts = {
        "operators": _count(category, OPERATORS),
        "calls": _count(category, API_CALLS),
        "functions": _count(category, FUNCTIONS) + sum(events.unread.get(c, 0) for c in FUNCTIONS),
        "allocations": _count(category, MEMORY),
    }
    if counts["calls"]:
        counts["operators with CUDA"] = counts.pop("operators")
    of_shapes = _count(category, OPERATORS) * events.has_inputs
    least, most = (
        (sum(n * _COST_NS[name][end] for name, n in counts.items()) + of_shapes * _SHAPES_NS[end])
        / max(1, span_ns)
        for end in (0, 1)
    )
    if not _MIN_RATIO <= least <= _MAX_RATIO or sum(counts.values()) < _MIN_EVENTS:
        return None
    ratios = least, min(most, _MAX_RATIO)
    per_ms = round(sum(counts.values()) * NS_PER_MS / max(1, span_ns))
    return RecordingCost(ratios, _sentence(counts, ratios, per_ms, with_shapes=events.has_inputs))


def _count(category: Names, categories: tuple[str, ...]) -> int:
    return int(category.isin(categories).sum())


def _sentence(
    counts: Mapping[str, int], ratios: tuple[float, float], per_ms: int, *, with_shapes: bool
) -> str:
    """Return the sentence on the cost, with the options to leave out."""
    options = {
        "with_stack": counts["functions"] > 0,
        "record_shapes": with_shapes,
        "profile_memory": counts["allocations"] > 0,
    }
    used = [name for name, is_on in options.items() if is_on]
    again = f"without {', '.join(used)}" if used else "with activities=[ProfilerActivity.CUDA]"
    least, most = (round(100 * ratio) for ratio in ratios)
    return (
        f"torch.profiler itself took about {least}–{most}% of the CPU time ({per_ms:,} events per "
        f"ms); to measure CPU times, record {again}"
    )
