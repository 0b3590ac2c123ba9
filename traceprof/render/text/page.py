"""The page that answers, on one screen of a terminal: its bar of parts, its advice.

Everything else is one command away.
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
from traceprof.session.doubts import INCOMPLETE
from traceprof.session.verdict import LEAST_SHARE, Verdict
from traceprof.units import format_duration, format_ratio

_BAR_WIDTH: Final = 60
_SHORT_BAR_WIDTH: Final = 36
_DEVICES_IN_FULL: Final = 2


def breakdown_view(result: Result, _rows: int, _width: int) -> RenderableType:
    """Return the five parts of each device as a bar, and in numbers (of all, where many).

    Where the window is made of steps the times are those of a step, the mean.
    """
    devices, base = result.tables["devices"].rows(), result.scalars["base"]
    is_of_steps = base != WINDOW
    base_ns = result.scalars["base_ns"] if is_of_steps else None
    shown: list[RenderableType] = []
    for row in devices:
        shares = _shares(row)
        if len(devices) <= _DEVICES_IN_FULL:
            of = f"  {format_duration(base_ns or row['duration_ns'])}"
            about = (
                (plain_text(row["name"]), "dim"),
                (f"{of} per {base}" * is_of_steps or of, "dim"),
            )
            shown.append(Text.assemble(f"GPU {row['device']} ", *about, style="bold"))
            shown += [
                _bar(shares, _BAR_WIDTH),
                *_in_numbers(row, shares, base_ns or row["duration_ns"]),
            ]
            continue
        line = Text(f"GPU {row['device']:>3} ", style="bold")
        line.append_text(_bar(shares, _SHORT_BAR_WIDTH))
        first, last = (f"{format_ratio(shares[i]):>7} {PART_STYLES[i].label}" for i in (0, -1))
        shown.append(line.append(f"  {first} {last}", "dim"))
    if len(devices) > 1:
        (total,) = result.tables["total"].rows()
        n_gpus = sum(SAME_GPU not in row["name"] for row in devices)
        what = f"{len(devices)} GPUs"
        if n_gpus < len(devices):
            what = f"{len(devices)} ranks that share {n_gpus} GPU{'s' if n_gpus > 1 else ''}"
        of = f", per {base} of {format_duration(base_ns)}" if base_ns else ""
        shown.append(Text(f"mean of {what}{of}", style="bold"))
        mean_ns = base_ns or total["duration_ns"] / len(devices)
        shown += _in_numbers(total, _shares(total), mean_ns)
    return Group(*shown)


def stacked_bar(
    parts: Mapping[str, float], width: int, least_share: float, idle: Mapping[str, float]
) -> Iterator[Text]:
    """Return the shares of the five parts as one bar, and what it shows in a line or two.

    Parts of less than ``least_share`` are not written below it. ``idle`` is the share of each cause
    of idle time, in whose place of the bar it is written.
    """
    margin = Text(" " * (_LABEL_WIDTH - 2))
    shares = [parts[part.key] for part in PART_STYLES]
    yield margin + _bar(shares, width - _LABEL_WIDTH, idle)
    line = Text(" " * _LABEL_WIDTH)
    for part in PART_STYLES:
        ratio = parts[part.key]
        if ratio >= least_share:
            line.append(f"{part.glyph} ", style=part.category.dark)
            line.append(f"{part.label} {format_ratio(ratio)}  ", style="default")
    yield line


def _shares(row: Row) -> list[float]:
    """Return the shares of the five parts; NaN where the device was not recorded in the window."""
    return [row[f"{part.key}_ratio"] for part in PART_STYLES]


def _bar(shares: Sequence[float], width: int, idle: Mapping[str, float] | None = None) -> Text:
    """Return a bar of ``width`` cells; a part that is there gets at least one.

    Of shares that are not known it is blank.
    """
    if not all(map(is_known, shares)):
        return Text(" " * (2 + width))
    cells = [max(1, round(width * share)) if share else 0 for share in shares]
    cells[cells.index(max(cells))] += width - sum(cells)
    bar = Text("  ")
    for n, part in zip(cells[:-1], PART_STYLES[:-1], strict=True):
        bar.append(part.glyph * n, style=part.category.dark)
    last = PART_STYLES[-1]
    idle_cells = _by_cause(cells[-1], last.glyph, idle) if idle else last.glyph * cells[-1]
    return bar.append(idle_cells, style=last.category.dark)


def _by_cause(width: int, glyph: str, causes: Mapping[str, float]) -> str:
    """Return idle time as ``width`` cells, each cause with its name where that has room."""
    whole, cells_text = sum(causes.values()), ""
    for name, share in causes.items():
        cells = round(width * share / whole)
        if cells < len(name) + 2:
            continue
        cells_text += (
            f"│{name}".ljust(cells, glyph) if cells_text else f"{glyph}{name}".ljust(cells, glyph)
        )
    return cells_text[:width].ljust(width, glyph)


def _in_numbers(row: Row, shares: Sequence[float], whole_ns: float) -> Iterator[RenderableType]:
    """Yield the parts of a time of ``whole_ns`` in numbers, and what of communication is hidden."""
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
    yield Text(f"  {words}GPU-Util {format_ratio(row['utilisation_ratio'])}", style="dim")


_INDENT: Final = "   "
_LABEL_WIDTH: Final = 12
"""Columns of a label and the space behind it: "Not checked" is the longest."""


def findings_in_brief(findings: Iterable[Row], width: int) -> Iterator[Text]:
    """Return findings in a few lines each: what and how much, the evidence, what to do."""
    for number, finding in enumerate(findings, 1):
        yield from _headed(number, finding, width)
        yield from _labeled("Evidence", Text(_words(finding["evidence"])), width, _INDENT)
        yield from _labeled("Fix", Text(_words(finding["action"]), style="green"), width, _INDENT)


def _headed(number: int, finding: Row, width: int) -> Iterator[Text]:
    """Return the title of a finding and, on the next line, what it saves or costs."""
    yield Text(f"{number}. {_words(finding['title'])}", style="bold")
    verb, _, saving = saving_words(finding).partition(" ")
    if saving:
        yield from _labeled(verb.capitalize(), Text(saving, style="yellow"), width, _INDENT)


def _labeled(label: str, text: Text, width: int, indent: str = "") -> Iterator[Text]:
    """Return the lines of ``text`` behind ``label``, which stands in a column of its own.

    A text without wrapping, a command, stays one line.
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
    """Return findings (rows of the table "findings"), numbered."""
    lines: list[RenderableType] = []
    for number, finding in enumerate(findings, 1):
        lines += _headed(number, finding, width)
        body = {"Evidence": Text(_words(finding["evidence"]))}
        if finding.get("model"):
            body["Estimate"] = Text(_words(finding["model"]), style="dim")
        body["Fix"] = Text(_words(finding["action"]), style="green")
        body["Caveat"] = Text(_words(finding["caveat"]), style="dim")
        if finding.get("ncu"):
            body["Profile"] = unbroken(Text(_words(finding["ncu"]), style="dim"))
        for label, text in body.items():
            lines += _labeled(label, text, width, _INDENT)
    return Group(*lines)


def _words(value: Any) -> str:
    return value_text(Unit.TEXT, value)


_BEST: Final = 3
_FEWEST_STEPS: Final = 3
_LEAST_SPARK: Final = 8
_BESIDE_SPARK: Final = 42
_WIDEST_BAR: Final = 160


def page_view(document: Document, verdict: Verdict, options: Options) -> RenderableType:
    """Return the page: some 25 lines, and 40 at 80 columns."""
    words = briefing_of(document)
    blocks = (
        _heading(words),
        _lost(words),
        _answer(document, words, verdict, options),
        _findings(document, words, options.line_width),
        _remarks(words, options.line_width),
    )
    lines: list[RenderableType] = []
    for block in map(list, blocks):
        lines += [Text(), *block] if lines and block else block
    return Group(*lines)


def where_view(document: Document) -> list[RenderableType]:
    """Return what was looked at: the trace, the window, all remarks and warnings."""
    words = briefing_of(document)
    lost = [Text(f"{INCOMPLETE}{text}", "yellow") for text in words.lost]
    return [*_heading(words), *lost]


def _heading(words: Briefing) -> list[Text]:
    """Return which trace and window was analyzed, notes, and warnings."""
    because = f"  ({words.because})" if words.because else ""
    workload = [Text.assemble(words.workload, (because, "dim"))] if words.workload else []
    recorder = f"  recorded by {words.profiler}" if words.profiler else ""
    return [
        Text.assemble((words.title, "bold"), (recorder, "dim")),
        *workload,
        Text.assemble(("Window ", "dim"), words.window, (f"  {words.times}", "dim")),
        *[Text(f"note: {note}", "dim") for note in words.notes],
        *[Text(f"warning: {warning}", style="yellow") for warning in words.warnings],
    ]


def _lost(words: Briefing) -> Iterator[Text]:
    """Return what of the devices' work is missing, why, and last what to do."""
    for text in words.lost[:-1]:
        yield Text(f"{INCOMPLETE}{text}" if text == words.lost[0] else text, style="yellow")
    for text in words.lost[-1:]:
        yield Text(f"→ {text}", style="green")


def _answer(
    document: Document, words: Briefing, verdict: Verdict, options: Options
) -> Iterator[RenderableType]:
    """Return step time, bottleneck, where the time goes as a bar, and the steps as blocks."""
    if words.pace:
        yield from _by_label(words.pace, options.line_width)
    if words.answer:
        yield from _labeled("Bottleneck", Text(words.answer, style="bold"), options.line_width)
    if verdict.parts:
        width = min(options.width, _WIDEST_BAR)
        yield from stacked_bar(verdict.parts, width, LEAST_SHARE, verdict.idle)
    for text in words.made_of:
        yield from _by_label(text, options.line_width)
    if verdict.has_steps:
        yield from _step_line(document, options.width)


_LABELS: Final = {
    **{label: label for label in ("Step time", "Compute", "Idle time", "MFU")},
    "Iteration time": "Iteration",
}
"""How sentences of a page start, and the label that stands for it."""


def _by_label(sentence: str, width: int) -> Iterator[Text]:
    """Return the lines of a sentence, its first words in the column of the labels."""
    start = next(filter(sentence.startswith, _LABELS), "")
    text = sentence.removeprefix(start).lstrip(": ")
    return _labeled(_LABELS.get(start, ""), Text(text), width)


def _step_line(document: Document, width: int) -> Iterator[Text]:
    """Return the durations of the steps of the first process as blocks."""
    steps = document.results.get("steps")
    if steps is None or steps.table.empty:
        return
    table = steps.table
    first = table.take(table["process"] == table["process"][0])
    durations = first["duration_ns"].tolist()
    if len(durations) >= _FEWEST_STEPS:
        what = "Iterations" if steps.scalars.get("is_pattern") else "Steps"
        most = max(_LEAST_SPARK, min(width, _WIDEST_BAR) - _BESIDE_SPARK)
        line = Text(what.ljust(_LABEL_WIDTH), style="dim")
        line.append(f"{first['step'].min()}–{first['step'].max()}  ")
        line.append(sparkline(durations, most), style="default")
        line.append(f"  0–{format_duration(max(durations))}", style="dim")
        yield line


def _findings(document: Document, words: Briefing, width: int) -> Iterator[RenderableType]:
    findings = document.results.get("findings")
    if findings is None:
        return
    if words.nothing:
        yield Text(words.nothing)
        return
    rows = findings_for_people(findings)
    yield from findings_in_brief(rows[:_BEST], width)
    if (left := len(rows) - _BEST) > 0:
        noun = "finding" if left == 1 else "findings"
        yield unbroken(Text(f"{left} more {noun}: {words.all_findings}", "dim"))


def _remarks(words: Briefing, width: int) -> Iterator[Text]:
    """Return one-time and periodic costs, what was checked or not, and the next command."""
    for label, text in words.remarks:
        shown = Text(text)
        yield from _labeled(label, unbroken(shown) if text == words.next_command else shown, width)


_BLOCKS: Final = "▁▂▃▄▅▆▇█"


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
