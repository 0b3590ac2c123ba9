"""The one page of ``traceprof analyze``: what is in the window and where its time went."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.text import Text

from traceprof import analysis
from traceprof.analysis.base import Result
from traceprof.analysis.breakdown import Breakdown
from traceprof.model.selection import Selection
from traceprof.model.trace import Trace
from traceprof.render.escape import plain_text
from traceprof.render.terminal import breakdown_view, notes_view, result_view
from traceprof.units import format_duration

__all__ = ["OVERVIEW", "overview_view"]

OVERVIEW: Final = ("breakdown", "phases", "kernels", "copies", "ranges", "ops")
"""What the page shows, in this order, as far as it was recorded."""


def overview_view(
    trace: Trace,
    selection: Selection,
    results: Mapping[str, Result],
    rows: int,
    width: int,
) -> RenderableType:
    """Return the page; sections without anything in the window are left out."""
    titles = {
        entry.name: entry.summary[0].upper() + entry.summary[1:] for entry in analysis.ANALYSES
    }
    parts: list[RenderableType] = [window_view(trace, selection)]
    for name, result in results.items():
        if len(results) > 1 and name != "breakdown" and result.to_frame().empty:
            continue
        parts.append(Rule(titles[name][0].upper() + titles[name][1:], align="left", style="dim"))
        if isinstance(result, Breakdown):
            parts.append(breakdown_view(result))
        else:
            parts.append(result_view(result, rows, width))
    return Group(*parts)


def window_view(trace: Trace, selection: Selection) -> RenderableType:
    """Return what was looked at: the trace, the window, the warnings."""
    window, span = selection.window, trace.span
    start = format_duration(window.start_ns - span.start_ns)
    end = format_duration(window.end_ns - span.start_ns)
    title = Text(plain_text(Path(trace.info.path).name), style="bold")
    title.append(f"  {plain_text(trace.info.profiler)}", style="dim")
    where = Text.assemble(
        ("window ", "dim"),
        selection.label,
        (f"  {start} .. {end} of {format_duration(span.duration_ns)}", "dim"),
    )
    warnings = [Text(f"warning: {plain_text(w)}", style="yellow") for w in trace.info.warnings]
    return Group(title, where, notes_view(selection.notes), *warnings)
