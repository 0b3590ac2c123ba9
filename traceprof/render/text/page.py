"""The page that answers, on one screen of a terminal: everything else is one command away."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from traceprof.facts.workload import UNKNOWN
from traceprof.render.escape import plain_text
from traceprof.render.formatting import note_text, sentences
from traceprof.render.shown import rows_of
from traceprof.render.text.advice import brief, findings_in_brief
from traceprof.render.text.parts import stacked_bar
from traceprof.session.answer import Document
from traceprof.session.verdict import LEAST_SHARE, Verdict
from traceprof.units import format_duration

__all__ = ["page_view", "sparkline", "where_view"]

_BEST: Final = 3
_NOTHING_KNOWN: Final = "no work of devices was recorded: little can be judged"
_MOST_NOTES: Final = 2
_FEWEST_STEPS: Final = 3
_SPARK_WIDTH: Final = 44
_BLOCKS: Final = "▁▂▃▄▅▆▇█"


def page_view(document: Document, verdict: Verdict, width: int) -> RenderableType:
    """Return the page in lines of at most ``width`` characters: about 25, and 33 at 110 columns."""
    blocks = (
        _heading(document, width),
        _answer(document, verdict, width),
        _findings(document, width),
        _remarks(document, verdict, width),
    )
    lines: list[RenderableType] = []
    for block in map(list, blocks):
        lines += [Text(), *block] if lines and block else block
    return Group(*lines)


def where_view(document: Document) -> RenderableType:
    """Return what was looked at: the trace, the window, all remarks and warnings."""
    notes = [Text(f"note: {note}", "dim") for note in sentences(document.selection.notes)]
    return Group(_title(document), _window(document, "window"), *notes, *_warnings(document))


def _heading(document: Document, width: int) -> Iterator[Text]:
    """Return what was looked at and judged; of remarks the first few."""
    yield _title(document)
    yield from _workload(document, width)
    yield _window(document, "judged")
    notes = sentences(document.selection.notes)
    shown = _MOST_NOTES if len(notes) > _MOST_NOTES + 1 else len(notes)
    yield from (_cut(Text(f"note: {note}", "dim"), width) for note in notes[:shown])
    if left := len(notes) - shown:
        yield Text(f"… {left} more notes (--full)", "dim")
    yield from (_cut(warning, width) for warning in _warnings(document))


def _title(document: Document) -> Text:
    title = Text(plain_text(Path(document.info.path).name), style="bold")
    title.append(f"  {plain_text(document.info.profiler)}", style="dim")
    return title


def _workload(document: Document, width: int) -> Iterator[Text]:
    """Return what the run does, on what, and why one thinks so."""
    found = document.workload
    kind = "" if found is None or found.kind == UNKNOWN else found.kind
    line = Text(" on ".join(filter(None, (kind, plain_text(document.hardware)))))
    if kind and found is not None and found.reasons:
        line.append(f"  ({note_text(found.reasons[0])})", style="dim")
    if line:
        yield _cut(line, width)


def _window(document: Document, label: str) -> Text:
    window = document.selection.window
    start, end = (
        format_duration(document.ns_after_start(at)) for at in (window.start_ns, window.end_ns)
    )
    return Text.assemble(
        (f"{label} ", "dim"),
        plain_text(document.selection.label),
        (f"  {start} .. {end} of {format_duration(document.span.duration_ns)}", "dim"),
    )


def _warnings(document: Document) -> Iterator[Text]:
    for warning in document.info.warnings:
        yield Text(f"warning: {plain_text(warning)}", style="yellow")


def _answer(document: Document, verdict: Verdict, width: int) -> Iterator[RenderableType]:
    """Return the verdict, where the time goes as a bar, and the steps as blocks."""
    sentence = " ".join(map(note_text, verdict.sentences))
    if verdict.bound_by:
        sentence = f"{verdict.bound_by[:1].upper()}{verdict.bound_by[1:]}. {sentence}"
    if sentence:
        yield Text(sentence, style="bold")
    breakdown = document.results.get("breakdown")
    if breakdown is not None:
        yield from stacked_bar(breakdown, min(width, 100), LEAST_SHARE)
    yield from _step_line(document)


def _step_line(document: Document) -> Iterator[Text]:
    """Return the durations of the steps of the first process as blocks."""
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


def _findings(document: Document, width: int) -> Iterator[RenderableType]:
    findings = document.results.get("findings")
    if findings is None:
        return
    rows = [row for row in rows_of(findings.table) if not row.get("is_minor")]
    if not rows:
        is_known = "breakdown" in document.results
        yield Text("no rule found anything to improve" if is_known else _NOTHING_KNOWN)
        return
    yield from findings_in_brief(rows[:_BEST], width)
    if (left := len(rows) - _BEST) > 0:
        noun = "finding" if left == 1 else "findings"
        yield Text(f"… {left} more {noun} (traceprof findings)", "dim")


def _remarks(document: Document, verdict: Verdict, width: int) -> Iterator[Text]:
    """Return what costs time once, what is fine, what is not known, and what to run next."""
    if verdict.once:
        yield _cut(_labelled("once: ", map(note_text, verdict.once)), width)
    if verdict.fine:
        yield from brief(_labelled("checked and fine: ", verdict.fine, ", "), width)
    for note in verdict.unknown[:_MOST_NOTES]:
        yield _cut(_labelled("not judged: ", [note_text(note)]), width)
    if command := verdict.next_command.replace("TRACE", shlex.quote(document.info.path)):
        yield Text.assemble(("next: ", "dim"), plain_text(command))


def _labelled(label: str, parts: Iterable[str], between: str = "; ") -> Text:
    return Text.assemble((label, "dim"), between.join(parts))


def _cut(text: Text, width: int) -> Text:
    text.truncate(width, overflow="ellipsis")
    return text


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
