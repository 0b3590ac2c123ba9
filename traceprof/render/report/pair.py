"""Choose the pair of steps that a comparison shows, and draw its differential flame graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from traceprof.model.grouping import joined
from traceprof.model.ranks import Ranks
from traceprof.model.results import Result
from traceprof.model.table import Table
from traceprof.render.charts.flame import FlameMeasure, flame_graph
from traceprof.render.timeline.beside import WHOLE, SideBySideTimeline
from traceprof.session.answer import answer
from traceprof.session.run import run_of

_MEASURES: Final = (
    FlameMeasure("GPU time", "ns", "new_device_ns", "base_device_ns"),
    FlameMeasure("CPU time", "ns", "new_host_ns", "base_host_ns"),
)
_ABOUT: Final = (
    "Width: time of base and new together. Orange boxes take longer in the new run, green boxes "
    "take less time. Point at a box to see both times."
)


@dataclass(frozen=True, slots=True)
class StepPair:
    """The same step of two recordings.

    ``spans`` are its start and end on the clock of each side, in ns after the start of the side's
    span. ``address`` is the URL fragment that shows both steps.
    """

    label: str
    spans: tuple[tuple[int, int], ...]
    address: str


def typical_pair(beside: SideBySideTimeline) -> StepPair | None:
    """Return the pair of steps nearest to the median step time of both sides; None if none match.

    Without steps, both recordings are the pair.
    """
    axis = beside.axis
    pairs = [
        (place, (base, new))
        for place, (base, new) in enumerate(zip(*axis.step_spans, strict=True))
        if base and new
    ]
    if not pairs:
        return None
    lengths = np.array([[end - start for start, end in spans] for _, spans in pairs], np.float64)
    relative = lengths / np.maximum(np.median(lengths, axis=0), 1)
    place, spans = pairs[int(np.abs(relative - 1).sum(axis=1).argmin())]
    label = axis.labels[place]
    start, end = axis.starts[place], axis.ends[place]
    margin = max(1, (end - start) // 50)
    return StepPair(
        "both recordings" if label.startswith(WHOLE) else label,
        spans,
        f"#at={start - margin}..{end + margin}&mark={start}..{end}",
    )


def pair_flame(beside: SideBySideTimeline, pair: StepPair) -> str:
    """Return the differential flame graph of a pair of steps; "" if the sides share no names."""
    for name in ("function-stacks", "tree"):
        base, new = (_measured(beside, pair, side, name) for side in (0, 1))
        if base and new and base.scalars["source"] == new.scalars["source"]:
            label = f"Differential flame graph of {pair.label}"
            return flame_graph(_joined(base.table, new.table), label, _MEASURES, _ABOUT)
    return ""


def _measured(beside: SideBySideTimeline, pair: StepPair, side: int, name: str) -> Result | None:
    """Return the result ``name`` of one step; None if the trace lacks the data."""
    recording = beside.sides[side]
    offset_ns = recording.span.start_ns - recording.trace.span.start_ns
    start, end = (offset_ns + ns for ns in pair.spans[side])
    run = run_of(Ranks.of(recording.trace))
    result = answer(run.within(f"{start}ns..{end}ns"), [name]).results.get(name)
    return result if result is not None and len(result.table) else None


def _joined(base: Table, new: Table) -> Table:
    """Return the paths of both sides, with the times of each side in columns of its own."""
    first, second = (
        Table(
            {"path": table["path"]}
            | {f"{side}_{name}": table[name] for name in ("host_ns", "device_ns") if name in table}
        )
        for side, table in (("base", base), ("new", new))
    )
    return joined(first, second, "path")
