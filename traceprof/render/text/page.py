"""Format the page with the verdict for one screen of a terminal: time breakdown and findings.

Other commands show everything else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from traceprof.measures.steps.base import WINDOW
from traceprof.model.ranks import SAME_GPU
from traceprof.model.results import Result, Unit
from traceprof.render.briefing import Briefing, briefing_of, findings_for_people
from traceprof.render.escape import plain_text
from traceprof.render.formatting import is_known, saving_words, value_text
from traceprof.render.palette import PART_STYLES
from traceprof.render.registry import Options
from traceprof.render.shown import Row
from traceprof.render.text.tables import WrappingConsole, unbroken
from traceprof.session.answer import Document
from traceprof.session.caveats import INCOMPLETE
from traceprof.session.shares import MIN_REST_RATIO
from traceprof.session.verdict import Verdict
from traceprof.units import format_duration, format_ratio

_BAR_WIDTH: Final = 60
_SHORT_BAR_WIDTH: Final = 36
_MAX_DEVICES_IN_FULL: Final = 2


def breakdown_view(result: Result, _rows: int, _width: int) -> RenderableType:
    """Return the five parts of each device as a bar and in numbers.

    With more than two devices, only their mean has numbers. If the window consists of steps, times
    are means per step.
    """
    devices, base = result.tables["devices"].rows(), result.scalars["base"]
    base_ns = None if base == WINDOW else result.scalars["base_ns"]
    shown: list[RenderableType] = []
    for row in devices:
        shares = _shares(row)
        if len(devices) <= _MAX_DEVICES_IN_FULL:
            length_ns = base_ns or row["duration_ns"]
            length = f"  {format_duration(length_ns)}" + ("" if base == WINDOW else f" per {base}")
            about = (plain_text(row["name"]), "dim"), (length, "dim")
            number = f"GPU {row['device']} " if row["device"] >= 0 else "GPU (number unknown) "
            shown.append(Text.assemble(number, *about, style="bold"))
            shown += [_bar(shares, _BAR_WIDTH), *_numbers(row, shares, length_ns)]
            continue
        line = Text(f"GPU {row['device']:>3} ", style="bold")
        line.append_text(_bar(shares, _SHORT_BAR_WIDTH))
        first, last = (f"{format_ratio(shares[i]):>7} {PART_STYLES[i].label}" for i in (0, -1))
        shown.append(line.append(f"  {first} {last}", "dim"))
    if len(devices) > 1:
        (total,) = result.tables["total"].rows()
        n_gpus = sum(SAME_GPU not in row["name"] for row in devices)
        subject = f"{len(devices)} GPUs"
        if n_gpus < len(devices):
            subject = f"{len(devices)} ranks that share {n_gpus} GPU{'s' if n_gpus > 1 else ''}"
        length = f", per {base} of {format_duration(base_ns)}" if base_ns else ""
        shown.append(Text(f"mean of {subject}{length}", style="bold"))
        mean_ns = base_ns or total["duration_ns"] / len(devices)
        shown += _numbers(total, _shares(total), mean_ns)
    return Group(*shown)


def stacked_bar(
    parts: Mapping[str, float], width: int, idle: Mapping[str, float]
) -> Iterator[Text]:
    """Yield a bar of the five parts, then lines with the names and shares of its parts.

    ``parts`` maps a known part to its share; shares that would be printed as 0.0% are left out.
    ``idle`` maps each cause of idle time to its share; the bar shows the names of the causes.
    """
    known = [parts.get(part.key, 0.0) for part in PART_STYLES]
    shares = [0.0 if ratio < MIN_REST_RATIO else ratio for ratio in known]
    yield Text(" " * (_LABEL_WIDTH - 2)) + _bar(shares, width - _LABEL_WIDTH, idle)
    line = Text(" " * _LABEL_WIDTH)
    for part, ratio in zip(PART_STYLES, shares, strict=True):
        if ratio:
            entry = Text(f"{part.glyph} ", style=part.category.dark)
            entry.append(f"{part.label} {format_ratio(ratio)}", style="default")
            if len(line) + len(entry) > width and len(line) > _LABEL_WIDTH:
                yield line
                line = Text(" " * _LABEL_WIDTH)
            line.append(entry).append("  ")
    yield line


def _shares(row: Row) -> list[float]:
    """Return the shares of the five parts; NaN if the device was not recorded in the window."""
    return [row[f"{part.key}_ratio"] for part in PART_STYLES]


def _bar(shares: Sequence[float], width: int, idle: Mapping[str, float] | None = None) -> Text:
    """Return a bar of ``width`` cells; every part with a share above 0 gets at least one cell.

    An unknown share has no cells. The bar is blank if no share is known.
    """
    if not any(map(is_known, shares)):
        return Text(" " * (2 + width))
    cells = [max(1, round(width * share)) if is_known(share) and share else 0 for share in shares]
    cells[cells.index(max(cells))] += width - sum(cells)
    bar = Text("  ")
    for n, part in zip(cells[:-1], PART_STYLES[:-1], strict=True):
        bar.append(part.glyph * n, style=part.category.dark)
    last = PART_STYLES[-1]
    idle_cells = _idle_cells(cells[-1], last.glyph, idle) if idle else last.glyph * cells[-1]
    return bar.append(idle_cells, style=last.category.dark)


def _idle_cells(width: int, glyph: str, causes: Mapping[str, float]) -> str:
    """Return idle time as ``width`` cells with the name of each cause that has room for it."""
    total, text = sum(causes.values()), ""
    for name, share in causes.items():
        cells = round(width * share / total)
        if cells >= len(name) + 2:
            text += f"{'│' if text else glyph}{name}".ljust(cells, glyph)
    return text[:width].ljust(width, glyph)


def _numbers(row: Row, shares: Sequence[float], whole_ns: float) -> Iterator[RenderableType]:
    """Yield duration and share of each part of ``whole_ns``, then overlap and GPU utilization."""
    legend = Table.grid(padding=(0, 2))
    for _ in range(3):
        legend.add_column(no_wrap=True)
    for part, share in zip(PART_STYLES, shares, strict=True):
        name = Text(f"  {part.glyph} ", style=part.category.dark)
        name.append(part.label, style="default")
        duration = (format_duration(share * whole_ns) if is_known(share) else "").rjust(9)
        legend.add_row(name, duration, format_ratio(share).rjust(7))
    yield legend
    hidden = row["communication_overlap_ratio"]
    words = (
        f"{format_ratio(hidden)} of communication overlapped with compute, "
        if is_known(hidden)
        else ""
    )
    yield Text(f"  {words}GPU-Util {format_ratio(row['utilization_ratio'])}", style="dim")


_INDENT: Final = "   "
_LABEL_WIDTH: Final = 12
"""Width of the label column with a space. The longest label is "Not checked"."""


def findings_in_brief(findings: Iterable[Row], width: int) -> Iterator[Text]:
    """Yield the lines of findings: title, saving, evidence, and fix of each."""
    for number, finding in enumerate(findings, 1):
        yield from _title_lines(number, finding, width)
        yield from _labeled("Evidence", Text(_text(finding["evidence"])), width, _INDENT)
        yield from _labeled("Fix", Text(_text(finding["action"]), style="green"), width, _INDENT)


def _title_lines(number: int, finding: Row, width: int) -> Iterator[Text]:
    """Yield the title of a finding and, on the next line, its saving or cost."""
    yield Text(f"{number}. {_text(finding['title'])}", style="bold")
    verb, _, saving = saving_words(finding).partition(" ")
    if saving:
        yield from _labeled(verb.capitalize(), Text(saving, style="yellow"), width, _INDENT)


def _labeled(label: str, text: Text, width: int, indent: str = "") -> Iterator[Text]:
    """Yield the lines of ``text`` with ``label`` in a separate column on the left.

    A text without wrapping (a command) stays on one line.
    """
    column = f"{indent}{label}".ljust(len(indent) + _LABEL_WIDTH)
    if text.no_wrap:
        yield unbroken(Text.assemble((column, "dim"), text))
        return
    console = WrappingConsole(width=max(_LABEL_WIDTH, width - len(column)))
    for number, line in enumerate(console.render_lines(text, pad=False)):
        start = (column if number == 0 else " " * len(column), "dim")
        yield Text.assemble(start, *((part.text, part.style or "") for part in line))


def findings_view(findings: Iterable[Row], width: int) -> RenderableType:
    """Return rows of the table "findings" in full, numbered."""
    lines: list[RenderableType] = []
    for number, finding in enumerate(findings, 1):
        lines += _title_lines(number, finding, width)
        body = {"Evidence": Text(_text(finding["evidence"]))}
        if finding.get("model"):
            body["Estimate"] = Text(_text(finding["model"]), style="dim")
        body["Fix"] = Text(_text(finding["action"]), style="green")
        body["Caveat"] = Text(_text(finding["caveat"]), style="dim")
        if finding.get("ncu"):
            body["Profile"] = unbroken(Text(_text(finding["ncu"]), style="dim"))
        for label, text in body.items():
            lines += _labeled(label, text, width, _INDENT)
    return Group(*lines)


def _text(value: Any) -> str:
    return value_text(Unit.TEXT, value)


_MAX_FINDINGS: Final = 3
_MIN_STEPS: Final = 3
_MIN_SPARKLINE_WIDTH: Final = 8
_SPARKLINE_MARGIN: Final = 42
"""Characters before and after the sparkline in its line."""
_MAX_WIDTH: Final = 160


def page_view(document: Document, verdict: Verdict, options: Options) -> RenderableType:
    """Return the page with the verdict: about 25 lines, or 40 lines at 80 columns."""
    briefing = briefing_of(document)
    blocks = (
        _heading(briefing),
        _lost(briefing),
        _answer(document, briefing, verdict, options),
        _findings(document, briefing, options.line_width),
        _remarks(briefing, options.line_width),
    )
    lines: list[RenderableType] = []
    for block in map(list, blocks):
        lines += [Text(), *block] if lines and block else block
    return Group(*lines)


def where_view(document: Document) -> list[RenderableType]:
    """Return the heading of an answer without verdict, then warnings about missing data."""
    briefing = briefing_of(document)
    lost = [Text(f"{INCOMPLETE}{text}", "yellow") for text in briefing.lost]
    return [*_heading(briefing), *lost]


def _heading(briefing: Briefing) -> list[Text]:
    """Return the analyzed trace, workload, and window, then notes and warnings."""
    because = f"  ({briefing.because})" if briefing.because else ""
    workload = [Text.assemble(briefing.workload, (because, "dim"))] if briefing.workload else []
    recorder = f"  recorded by {briefing.profiler}" if briefing.profiler else ""
    return [
        Text.assemble((briefing.title, "bold"), (recorder, "dim")),
        *workload,
        Text.assemble(("Window ", "dim"), briefing.window, (f"  {briefing.times}", "dim")),
        *[Text(f"note: {note}", "dim") for note in briefing.notes],
        *[Text(f"warning: {warning}", style="yellow") for warning in briefing.warnings],
    ]


def _lost(briefing: Briefing) -> Iterator[Text]:
    """Yield which GPU activity is missing and why, and last how to record it."""
    for text in briefing.lost[:-1]:
        yield Text(f"{INCOMPLETE}{text}" if text == briefing.lost[0] else text, style="yellow")
    for text in briefing.lost[-1:]:
        yield Text(f"→ {text}", style="green")


def _answer(
    document: Document, briefing: Briefing, verdict: Verdict, options: Options
) -> Iterator[RenderableType]:
    """Yield step time, bottleneck, the time breakdown as a bar, and a sparkline of the steps."""
    if briefing.pace:
        yield from _by_label(briefing.pace, options.line_width)
    if briefing.answer:
        yield from _labeled("Bottleneck", Text(briefing.answer, style="bold"), options.line_width)
    if verdict.parts:
        width = min(options.width, _MAX_WIDTH)
        yield from stacked_bar(verdict.parts, width, verdict.idle)
    for text in briefing.made_of:
        yield from _by_label(text, options.line_width)
    if verdict.has_steps:
        yield from _step_line(document, options.width)


_LABELS: Final = {
    **{label: label for label in ("Step time", "Compute", "Idle time", "MFU", "Range", "Ranks")},
    "Iteration time": "Iteration",
}
"""The first words of the sentences of a page, and the label that replaces them."""


def _by_label(sentence: str, width: int) -> Iterator[Text]:
    """Return the lines of a sentence whose first words move to the label column."""
    start = next(filter(sentence.startswith, _LABELS), "")
    text = sentence.removeprefix(start).lstrip(": ")
    return _labeled(_LABELS.get(start, ""), Text(text), width)


def _step_line(document: Document, width: int) -> Iterator[Text]:
    """Yield a line with a sparkline of the step durations of the first process."""
    steps = document.results.get("steps")
    if steps is None or steps.table.empty:
        return
    table = steps.table
    first = table.take(table["process"] == table["process"][0])
    durations = first["duration_ns"].tolist()
    if len(durations) >= _MIN_STEPS:
        label = "Iterations" if steps.scalars.get("is_pattern") else "Steps"
        n_blocks = max(_MIN_SPARKLINE_WIDTH, min(width, _MAX_WIDTH) - _SPARKLINE_MARGIN)
        line = Text(label.ljust(_LABEL_WIDTH), style="dim")
        line.append(f"{first['step'].min()}–{first['step'].max()}  ")
        line.append(sparkline(durations, n_blocks), style="default")
        line.append(f"  0–{format_duration(max(durations))}", style="dim")
        yield line


def _findings(document: Document, briefing: Briefing, width: int) -> Iterator[RenderableType]:
    """Yield the most important findings and the command that lists all of them."""
    findings = document.results.get("findings")
    if findings is None:
        return
    if briefing.nothing:
        yield Text(briefing.nothing)
        return
    rows = findings_for_people(findings)
    yield from findings_in_brief(rows[:_MAX_FINDINGS], width)
    if (n_more := len(rows) - _MAX_FINDINGS) > 0:
        noun = "finding" if n_more == 1 else "findings"
        yield unbroken(Text(f"{n_more} more {noun}: {briefing.all_findings}", "dim"))


def _remarks(briefing: Briefing, width: int) -> Iterator[Text]:
    """Yield one-time and periodic costs, checks with and without result, and the next command."""
    for label, text in briefing.remarks:
        shown = Text(text)
        yield from _labeled(
            label, unbroken(shown) if text == briefing.next_command else shown, width
        )


_BLOCKS: Final = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int) -> str:
    """Return ``values`` as block characters scaled from 0 to the maximum, ``width`` at most.

    If there are more values than characters, each character shows the largest of several values,
    so that a single slow step stays visible.
    """
    numbers = np.asarray(values, np.float64)
    if len(numbers) == 0 or width < 1:
        return ""
    chunks = np.array_split(numbers, min(width, len(numbers)))
    heights = np.array([chunk.max() for chunk in chunks])
    top = heights.max()
    if top <= 0:
        return _BLOCKS[0] * len(heights)
    levels = np.ceil(heights / top * len(_BLOCKS)).astype(int) - 1
    return "".join(_BLOCKS[level] for level in levels.clip(0))
