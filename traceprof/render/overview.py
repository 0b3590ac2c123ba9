"""The one page of ``traceprof analyze``: what is in the window and where its time went."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.text import Text

from traceprof import analysis
from traceprof.analysis.advice.findings import Finding, Findings
from traceprof.analysis.advice.verdict import Verdict
from traceprof.analysis.base import Result
from traceprof.analysis.device.breakdown import Breakdown
from traceprof.analysis.ranks.rank_steps import RankSteps, measure_rank_steps
from traceprof.facts.steps.find import find_steps
from traceprof.model.trace import Trace
from traceprof.render.escape import plain_text
from traceprof.render.heat_text import heat_lines
from traceprof.render.sparkline import sparkline
from traceprof.render.terminal import breakdown_view, notes_view, result_view
from traceprof.session.selection import Selection
from traceprof.units import format_duration, format_ratio

__all__ = ["OVERVIEW", "overview_view", "results_view"]

OVERVIEW: Final = ("breakdown", "phases", "kernels", "collectives", "copies", "ranges", "ops")
"""What the page shows under the verdict, in this order, as far as it was recorded."""

_FEWEST_STEPS: Final = 3
_SPARK_WIDTH: Final = 44
_MOST_RANKS: Final = 32
_FEW_RANKS: Final = 8

_HOST_ONLY: Final = ("ranges", "ops")
"""Sections that answer for the devices where nothing is known of them."""


def overview_view(
    trace: Trace,
    selection: Selection,
    verdict: Verdict,
    results: Mapping[str, Result],
    size: tuple[int, int],
) -> RenderableType:
    """Return the page that answers the question; ``size`` is rows per table and columns."""
    shown = {
        name: result
        for name, result in results.items()
        if not (name in _HOST_ONLY and "breakdown" in results)
    }
    sections = results_view(trace, selection, shown, size)
    opening = _opening(trace, selection, verdict, size[1])
    return Group(*opening, *sections[1:], _closing(trace, verdict))


def results_view(
    trace: Trace, selection: Selection, results: Mapping[str, Result], size: tuple[int, int]
) -> list[RenderableType]:
    """Return what was looked at and each result; of several, those that are empty are left out."""
    rows, width = size
    titles = {entry.name: entry.summary for entry in analysis.ANALYSES}
    parts: list[RenderableType] = [window_view(trace, selection)]
    for name, result in results.items():
        if len(results) > 1 and name != "breakdown" and result.to_frame().empty:
            continue
        title = titles[name][0].upper() + titles[name][1:]
        parts.append(Rule(title, align="left", style="dim"))
        if isinstance(result, Breakdown):
            parts.append(breakdown_view(result))
        elif isinstance(result, Findings):
            parts.append(findings_view(result.findings, result.notes))
        else:
            if isinstance(result, RankSteps):
                parts += heat_lines(result.table, _MOST_RANKS, width)
            parts.append(result_view(result, trace, rows, width))
    return parts


def _opening(
    trace: Trace, selection: Selection, verdict: Verdict, width: int
) -> Iterator[RenderableType]:
    yield window_view(trace, selection)
    yield Text()
    for sentence in filter(None, (verdict.where, verdict.steadiness)):
        yield Text(sentence, style="bold")
    yield from _step_lines(trace.within(selection.window), width)
    if verdict.findings:
        yield Text()
        yield findings_view(verdict.findings, ())
    yield Text()


def _step_lines(trace: Trace, width: int) -> Iterator[RenderableType]:
    """Return the durations of the steps of the first process, and the ranks of a run, as blocks."""
    steps = find_steps(trace).table
    if steps.empty:
        return
    first = steps[steps["process"] == steps["process"].iloc[0]]
    durations = (first["end_ns"] - first["start_ns"]).tolist()
    if len(durations) >= _FEWEST_STEPS:
        line = Text(f"steps {first['step'].min()}..{first['step'].max()}  ", style="dim")
        line.append(sparkline(durations, _SPARK_WIDTH), style="default")
        line.append(f"  0 .. {format_duration(max(durations))}", style="dim")
        yield line
    if steps["process"].nunique() > 1:
        yield from heat_lines(measure_rank_steps(trace).table, _FEW_RANKS, width)


def _closing(trace: Trace, verdict: Verdict) -> RenderableType:
    command = verdict.next_command.replace("TRACE", shlex.quote(trace.info.path))
    return Text.assemble(("\nnext: ", "dim"), plain_text(command))


def findings_view(findings: Sequence[Finding], notes: Sequence[str]) -> RenderableType:
    """Return advice, numbered: what costs how much, the evidence, what to do, when not to."""
    lines: list[RenderableType] = []
    for number, finding in enumerate(findings, 1):
        heading = Text(f"{number}. ", style="bold")
        heading.append(plain_text(finding.title), style="bold")
        if finding.saving_ratio > 0:
            heading.append(
                f"  up to {format_ratio(finding.saving_ratio)}"
                f" ({format_duration(finding.saving_ns)})",
                style="yellow",
            )
        body = Text("; ".join(map(plain_text, finding.evidence)))
        body.append(f"\n→ {plain_text(finding.action)}", style="green")
        body.append(f"\nnot if: {plain_text(finding.caveat)}", style="dim")
        lines += [heading, Padding(body, (0, 0, 0, 3))]
    return Group(*lines, notes_view(notes))


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
