"""Answers in a terminal: the page that answers, or one result after the other."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.text import Text

from traceprof.render.base import Options
from traceprof.render.escape import plain_text
from traceprof.render.formatting import note_text
from traceprof.render.sections import Section, sections_of
from traceprof.render.shown import rows_of
from traceprof.render.text.advice import findings_view
from traceprof.render.text.console import printed
from traceprof.render.text.heat_lines import heat_lines
from traceprof.render.text.parts import breakdown_view
from traceprof.render.text.tables import notes_view, table_view
from traceprof.session.answer import Document, Verdict
from traceprof.units import format_duration

__all__ = ["RENDER", "answers_view", "sparkline"]

_ROWS: Final = 5
_BEST: Final = 3
_FEWEST_STEPS: Final = 3
_SPARK_WIDTH: Final = 44
_FEW_REASONS: Final = 2
_MOST_RANKS: Final = 32
_FEW_RANKS: Final = 8
_BLOCKS: Final = "▁▂▃▄▅▆▇█"

_OPENING: Final = ("findings", "steps", "rank-steps")
"""What the page shows above its sections."""

_HOST_ONLY: Final = ("ranges", "ops")
"""Sections that answer for the devices where nothing is known of them."""


def render_text(document: Document, options: Options) -> str:
    """Return the document as lines of at most ``options.width`` characters."""
    return printed(answers_view(document, options), options)


RENDER: Final = render_text


def answers_view(document: Document, options: Options) -> RenderableType:
    """Return the page that answers where there is a verdict, else the results one by one."""
    if document.verdict is None:
        return Group(_where(document), *_sections(document, options, ()))
    above = [*_OPENING, *(_HOST_ONLY if "breakdown" in document.results else ())]
    return Group(
        *_opening(document, document.verdict, options.width),
        *_sections(document, options, above),
        _closing(document, document.verdict),
    )


def _sections(document: Document, options: Options, but: Sequence[str]) -> Iterator[RenderableType]:
    for section in sections_of(document, options):
        if section.name not in but:
            yield Rule(section.title, align="left", style="dim")
            yield from _section(section, options)


def _section(section: Section, options: Options) -> Iterator[RenderableType]:
    result, rows, width = section.result, options.rows or _ROWS, options.width
    if section.name == "breakdown":
        yield breakdown_view(result)
        return
    more = section.more
    if section.name == "findings":
        yield findings_view(rows_of(result.table))
        more = tuple(table for table in more if table.name in options.tables)
    else:
        if section.name == "rank-steps":
            yield from heat_lines(result.table, _MOST_RANKS, width)
        yield table_view(section.table, rows, width)
    for table in more:
        about = table.about or table.name
        yield Text(f"\n{about[:1].upper()}{about[1:]}", style="dim")
        yield table_view(table, rows, width)
    yield notes_view(result.notes)


def _opening(document: Document, verdict: Verdict, width: int) -> Iterator[RenderableType]:
    yield _where(document)
    yield from _what_it_is(document)
    yield Text()
    yield from (Text(note_text(sentence), style="bold") for sentence in verdict.sentences)
    yield from _step_lines(document, width)
    findings = document.results.get("findings")
    if findings is not None and len(findings.table):
        yield Text()
        yield findings_view(rows_of(findings.table, _BEST))
    yield Text()


def _what_it_is(document: Document) -> Iterator[RenderableType]:
    """Return a line on what the run does, and one on what it paid once outside the window."""
    found = document.workload
    if found is not None:
        why = "; ".join(map(note_text, found.reasons[:_FEW_REASONS]))
        yield Text(plain_text(f"workload: {found.kind}" + (f" ({why})" if why else "")))
    costs = document.one_off
    if costs is not None and len(costs):
        longest = costs[costs["outside_ns"] > 0].groupby("kind", sort=False)["outside_ns"].max()
        parts = [f"{kind} {format_duration(ns)}" for kind, ns in longest.items()]
        if parts:
            yield Text(f"paid once, outside the window: {', '.join(parts)}", style="dim")


def _step_lines(document: Document, width: int) -> Iterator[RenderableType]:
    """Return the durations of the steps of the first process, and the ranks of a run, as blocks."""
    steps = document.results.get("steps")
    if steps is None or steps.table.empty:
        return
    table = steps.table
    first = table[table["process"] == table["process"].iloc[0]]
    durations = first["duration_ns"].tolist()
    if len(durations) >= _FEWEST_STEPS:
        what = "turns" if steps.scalars.get("is_pattern") else "steps"
        line = Text(f"{what} {first['step'].min()}..{first['step'].max()}  ", style="dim")
        line.append(sparkline(durations, _SPARK_WIDTH), style="default")
        line.append(f"  0 .. {format_duration(max(durations))}", style="dim")
        yield line
    ranks = document.results.get("rank-steps")
    if ranks is not None:
        yield from heat_lines(ranks.table, _FEW_RANKS, width)


def _closing(document: Document, verdict: Verdict) -> RenderableType:
    command = verdict.next_command.replace("TRACE", shlex.quote(document.info.path))
    return Text.assemble(("\nnext: ", "dim"), plain_text(command)) if command else Text()


def _where(document: Document) -> RenderableType:
    """Return what was looked at: the trace, the window, the warnings."""
    window, info = document.selection.window, document.info
    start, end = (
        format_duration(document.ns_after_start(at)) for at in (window.start_ns, window.end_ns)
    )
    title = Text(plain_text(Path(info.path).name), style="bold")
    title.append(f"  {plain_text(info.profiler)}", style="dim")
    where = Text.assemble(
        ("window ", "dim"),
        plain_text(document.selection.label),
        (f"  {start} .. {end} of {format_duration(document.span.duration_ns)}", "dim"),
    )
    warnings = [Text(f"warning: {plain_text(w)}", style="yellow") for w in info.warnings]
    return Group(title, where, notes_view(document.selection.notes), *warnings)


def sparkline(values: Sequence[float], width: int) -> str:
    """Return ``values`` as blocks from 0 to their largest, in at most ``width`` characters.

    Where there are more values than characters, a character shows the largest of its share, so
    that a single slow one is still seen.
    """
    numbers = np.asarray(values, np.float64)
    if len(numbers) == 0 or width < 1:
        return ""
    shares = np.array_split(numbers, min(width, len(numbers)))
    heights = np.array([share.max() for share in shares])
    top = heights.max()
    if top <= 0:
        return _BLOCKS[0] * len(heights)
    places = np.ceil(heights / top * len(_BLOCKS)).astype(int) - 1
    return "".join(_BLOCKS[place] for place in places.clip(0))
