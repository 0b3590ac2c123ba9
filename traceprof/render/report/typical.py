"""What the timeline of a report holds, and what of it the reader sees first."""

from __future__ import annotations

from traceprof.model.ranks import Ranks
from traceprof.model.results import Result
from traceprof.model.tables import TABLES
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace
from traceprof.render.timeline.inside import count_inside
from traceprof.session.selection import Selection
from traceprof.values import dataclass

__all__ = ["Extent", "choose_extent"]

_MARGIN = 20


@dataclass(frozen=True, slots=True)
class Extent:
    """The timeline holds ``window`` and opens at ``view``, which ``label`` names."""

    window: TimeWindow
    view: TimeWindow
    label: str


def choose_extent(
    ranks: Ranks, selection: Selection, steps: Result | None, max_events: int
) -> Extent:
    """Return the window of the report opened at a typical step, or that step alone if it is much.

    The typical step is the steady one whose duration is nearest to the median, with a twentieth
    of it on either side. Without steps it is the whole window.
    """
    window = selection.window
    if steps is None or steps.table.empty:
        return Extent(window, window, f"the window {selection.label}")
    step, label = _typical_step(ranks, steps)
    is_much = sum(ranks.each(_count_events, window)) > max_events
    return Extent(step if is_much else window, step & window, label)


def _typical_step(ranks: Ranks, steps: Result) -> tuple[TimeWindow, str]:
    steady = steps.table[~steps.table["is_warmup"]]
    table = steady if len(steady) else steps.table
    distance = (table["duration_ns"] - table["duration_ns"].median()).abs()
    row = table.iloc[int(distance.to_numpy().argmin())]
    start = ranks.span.start_ns + int(row["at_ns"])
    margin = int(row["duration_ns"]) // _MARGIN
    window = TimeWindow(start - margin, start + int(row["duration_ns"]) + margin)
    return window & ranks.span, f"step {int(row['step'])}, a typical one"


def _count_events(trace: Trace, window: TimeWindow) -> int:
    return sum(
        count_inside(trace.table(name), window) for name, table in TABLES.items() if table.has_spans
    )
