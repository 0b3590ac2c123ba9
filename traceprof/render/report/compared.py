"""Write the HTML page of a comparison: the result, main numbers side by side, charts, tables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from importlib.resources import files
from itertools import accumulate
from typing import Any, Final

import numpy as np

from traceprof.comparison import Comparison
from traceprof.model.grouping import split_by
from traceprof.model.results import Result, Unit
from traceprof.model.summary import Summary
from traceprof.model.table import Table
from traceprof.render.briefing import Section, head_of, sections_of
from traceprof.render.charts.curves import curves_style, pace_chart
from traceprof.render.charts.figure import figures_script
from traceprof.render.charts.flame import flame_script, flame_style
from traceprof.render.charts.roofline import roofline_of_two_runs
from traceprof.render.charts.svg import (
    Axis,
    drawing,
    element,
    legend,
    round_ticks,
    scrolling,
    text,
)
from traceprof.render.escape import html_list, html_sentence, html_text, plain_text
from traceprof.render.formatting import is_known, round_text, sentences, signed_duration, value_text
from traceprof.render.page.document import WARNINGS_TITLE, Link, html_table, write_document
from traceprof.render.palette import PART_STYLES
from traceprof.render.registry import Options
from traceprof.render.report.charts import card, category_style
from traceprof.render.report.opening import figures_html
from traceprof.render.report.pair import Changes, flames_of, step_links
from traceprof.render.shown import SELF_EXPLAINING_KINDS, Row, largest_causes
from traceprof.render.timeline.beside import SideBySideTimeline
from traceprof.render.timeline.render import timeline_fragment
from traceprof.units import format_duration, format_ratio

_WIDTH: Final = 960
_LEFT: Final = 330
_RIGHT: Final = 110
_ROW: Final = 22
_MAX_CAUSES: Final = 10
_MAX_CAUSE_LETTERS: Final = 48
_MIN_REST_RATIO: Final = 0.005
"""A smaller rest, as a share of the largest cause, is below the rounding of the numbers."""
_HEIGHT: Final = 240
_STEPS: Final = "Step times of base and new"
_LABEL: Final = 104
"""Room for the label of a line, at its right end."""
_FOOT: Final = 18
_MIN_VISIBLE_RATIO: Final = 0.05
"""Below this share of the step time the longest cause is hard to see, so the axis is broken."""
_TOTAL_TO_CAUSE_RATIO: Final = 1.5
"""On a broken axis the bars of base and new are this many times as long as the longest cause."""
_UNDECIDED: Final = ("no difference shown", "not clear", "not enough data")
"""Verdicts that do not call a change better or worse."""
_PARTS: Final = {part.key: part for part in PART_STYLES}
_HEADING: Final = re.compile(r'<h2 id="([\w-]+)-title">([^<]*)</h2>')
_STYLE: Final = """
nav.across { position: static; display: flex; flex-wrap: wrap; gap: 2px 16px; padding-bottom: 4px; }
nav.across a { padding: 0; }
.chart.sum { max-height: none; }
.chart .longer { fill: #c2410c; } .chart .shorter { fill: #15803d; }
.chart .break { fill: var(--card); }
.chart .base { fill: #5d6b7e; } .chart .new { fill: var(--accent); }
.chart text.value { fill: var(--fg); }
.chart .area { fill: transparent; }
.chart a:is(:hover, :focus-visible) .value { fill: var(--accent); text-decoration: underline; }
.verdict + .key-numbers { margin-top: 14px; }
.key-number b { font-size: 17px; white-space: nowrap; }
.delta { font-size: 12.5px; font-weight: 600; }
.delta.worse { color: #c2410c; } .delta.better { color: #15803d; }
[data-theme="dark"] .delta.worse { color: #fb923c; }
[data-theme="dark"] .delta.better { color: #4ade80; }
"""


def waterfall_chart(difference: Result, link: Link | None = None) -> str:
    """Return a waterfall chart from the base's mean step time to the new one, cause by cause.

    All bars are to scale if the causes are long enough to be seen. Otherwise the axis is broken:
    it starts at a time that leaves the bars of base and new longer than any cause, and these two
    bars are drawn with a gap.
    """
    scalars = difference.scalars
    rows = _bars_of_causes(difference)
    changes_ns = [row["difference_ns"] for row in rows]
    levels_ns = list(accumulate(changes_ns, initial=float(scalars["base_ns"])))
    low = _axis_start(levels_ns, [abs(ns) for ns in changes_ns])
    x = Axis(low, low + 1.02 * ((max(levels_ns) - low) or 1.0), _LEFT, _WIDTH - _RIGHT)
    height = _ROW * (len(rows) + 2) + 4
    lines = list(_grid_lines(x, height))
    ends = ((0, "base", levels_ns[0]), (len(rows) + 1, "new", float(scalars["new_ns"])))
    for number, side, ns in ends:
        lines.append(_bar(number, side, (_LEFT, x(ns)), side, format_duration(ns)))
        lines += [_gap_in_bar(number)] if low else []
    for number, row in enumerate(rows, 1):
        left, right = sorted((x(levels_ns[number - 1]), x(levels_ns[number])))
        kind = "longer" if row["difference_ns"] > 0 else "shorter"
        change = signed_duration(row["difference_ns"]) or "0"
        bar = _bar(number, row["label"], (left, right), kind, change)
        address = link(row) if link else None
        lines.append(_linked(bar, number, address) if address else bar)
    broken = (
        f" The axis is broken: it starts at {format_duration(low)}. The bars of base and new are "
        "longer than drawn; all other bars are to scale."
        if low
        else ""
    )
    label = f"From {format_duration(levels_ns[0])} to {format_duration(scalars['new_ns'])}"
    return (
        f"{scrolling(label, drawing((_WIDTH, height + _FOOT), 'chart sum', label, *lines))}"
        f'<p class="note">Mean GPU time per {html_text(str(scalars["per"]))}. The changes between '
        f"the bars of base and new add up.{broken}</p>"
    )


def _linked(bar: str, number: int, address: str) -> str:
    """Return a bar of which the whole row leads to ``address``."""
    area = element("rect", x=0, y=number * _ROW, width=_WIDTH, height=_ROW, class_="area")
    return element("a", area + bar, href=html_text(address))


def _axis_start(levels_ns: Sequence[float], lengths_ns: Sequence[float]) -> float:
    """Return where the time axis starts, in ns: at 0 if the longest cause is visible then."""
    longest = max(lengths_ns, default=0.0)
    if not longest or longest >= _MIN_VISIBLE_RATIO * max(levels_ns):
        return 0.0
    extent = max(longest, max(levels_ns) - min(levels_ns))
    return max(0.0, min(levels_ns) - _TOTAL_TO_CAUSE_RATIO * extent)


def _grid_lines(x: Axis, height: int) -> Iterator[str]:
    for value in round_ticks(x.low, x.high, 6):
        at = x(value)
        yield element("line", x1=at, x2=at, y1=0, y2=height)
        yield text(at, height + _FOOT - 4, round_text(Unit.NS, value), "middle")


def _gap_in_bar(number: int) -> str:
    """Return a gap near the start of a bar, which shows that the bar is longer than drawn."""
    y = number * _ROW + 1
    path = f"M{_LEFT + 22} {y}l-6 {_ROW - 2}h6l6 {2 - _ROW}z"
    return element("path", d=path, class_="break")


def _bars_of_causes(difference: Result) -> list[Row]:
    """Return label and difference of each bar: the largest causes, then the rest of each part."""
    causes = difference.tables["causes"].rows()
    largest = max((abs(row["difference_ns"]) for row in causes), default=0)
    listed = largest_causes(causes, largest, _MAX_CAUSES)
    bars: list[Row] = [{"label": _cause_label(row), **row} for row in listed]
    for part in PART_STYLES:
        rest = sum(row["difference_ns"] for row in causes if row["part"] == part.key)
        rest -= sum(row["difference_ns"] for row in listed if row["part"] == part.key)
        if abs(rest) >= _MIN_REST_RATIO * largest:
            bars.append({"label": f"other {part.label}", "difference_ns": rest, "part": part.key})
    return bars


def _cause_label(row: Row) -> str:
    """Return the label of a cause, with its part and kind if the name does not imply them."""
    name = str(row["name"]).removeprefix("void ")
    if row["kind"] == "waiting":
        name = f"waiting for {name.strip('()')}"
    elif row["kind"] not in SELF_EXPLAINING_KINDS:
        kind = "" if row["kind"] == name else row["kind"]
        name = f"{_PARTS[row['part']].label}: {' '.join(filter(None, (kind, name)))}"
    state = f" ({row['state']})" if row["state"] in ("new", "gone", "renamed") else ""
    return plain_text(name, _MAX_CAUSE_LETTERS - len(state)) + state


def _bar(number: int, name: str, ends: tuple[float, float], kind: str, value: str) -> str:
    """Return a bar in row ``number`` from ``ends[0]`` to ``ends[1]`` px; ``kind`` is its class."""
    y = number * _ROW
    width = max(1.0, ends[1] - ends[0])
    title = f"<title>{html_text(f'{name}: {value}')}</title>"
    return (
        text(_LEFT - 8, y + 15, name, "end", class_="value")
        + element("rect", title, x=ends[0], y=y + 3, width=width, height=_ROW - 6, class_=kind)
        + text(ends[0] + width + 6, y + 15, value)
    )


def steps_chart(steps: Table) -> str:
    """Return a scatter plot of the duration of each steady step of base and new."""
    if steps.empty:
        return ""
    top = 1.05 * float(np.quantile(steps["period_ns"], 0.99))
    low = 0.95 * float(steps["period_ns"].min())
    last = max(1.0, float(steps["place"].max()))
    x, y = Axis(0, last, 76, _WIDTH - _LABEL - 6), Axis(low, top, _HEIGHT - 8, 8)
    dots = (
        element(
            "circle",
            f"<title>{html_text(str(row['run']))}, steady step {row['place']}: "
            f"{format_duration(row['period_ns'])}</title>",
            cx=x(row["place"]),
            cy=y(min(row["period_ns"], top)),
            r="2.2",
            class_=row["side"],
            fill_opacity="0.75",
        )
        for row in steps.rows()
    )
    sides = sorted(split_by(steps, "side"), key=lambda pair: pair[0])
    medians = (
        _median_line(y(min(float(np.median(side_steps["period_ns"])), top)), side, dash)
        for (side, side_steps), dash in zip(sides, ("2 4", "8 3"), strict=False)
    )
    ticks = (
        element("line", x1=70, x2=_WIDTH - _LABEL, y1=y(value), y2=y(value))
        + text(66, y(value) + 4, round_text(Unit.NS, value), "end")
        for value in round_ticks(low, top, 4)
    )
    return (
        scrolling(_STEPS, drawing((_WIDTH, _HEIGHT), "chart", _STEPS, *ticks, *medians, *dots))
        + legend((("#5d6b7e", "base"), ("var(--accent)", "new")))
        + f'<p class="note">Each steady step in order, from {format_duration(low)} to '
        f"{format_duration(top)}. Lines are medians. Longer steps are drawn at the top edge.</p>"
    )


def _median_line(y: float, side: str, dash: str) -> str:
    style = f"stroke:var(--fg);stroke-dasharray:{dash}"
    line = element("line", x1=70, x2=_WIDTH - _LABEL, y1=y, y2=y, style=style)
    # The labels are beside the dots; those of equal medians are above and below the line.
    at = y - 2 if side == "new" else y + 10
    return line + text(_WIDTH - _LABEL + 6, at, f"{side} median", class_="value")


def parts_chart(difference: Result) -> str:
    """Return the five parts of the mean step of base and new, as two bars on one scale."""
    parts, scalars = difference.tables["parts"].rows(), difference.scalars
    longest = max(scalars["base_ns"], scalars["new_ns"], 1)
    return (
        legend((f"var(--{row['part']})", _PARTS[row["part"]].label) for row in parts)
        + "<div class='of-devices'>"
        + "".join(
            _stacked_bar(side, parts, scalars[f"{side}_ns"], longest) for side in ("base", "new")
        )
        + "</div>"
    )


def _stacked_bar(side: str, parts: Sequence[Row], length_ns: int, longest_ns: int) -> str:
    """Return the bar of one side; ``longest_ns`` is as wide as the chart."""
    pieces = []
    for row in parts:
        ns = row[f"{side}_ns"]
        if not ns:
            continue
        title = f"{_PARTS[row['part']].label} {format_duration(ns)}"
        share = format_ratio(ns / max(1, length_ns))
        pieces.append(
            f'<i class="{row["part"]}" style="width:{100 * ns / longest_ns:.3f}%;'
            f'background:var(--{row["part"]});color:var(--on-{row["part"]})" '
            f'title="{html_text(f"{title}, {share}")}">'
            f"{share if ns >= 0.07 * longest_ns else ''}</i>"
        )
    label = html_text(f"{side} {format_duration(length_ns)}")
    return (
        f'<span class="who">{label}</span><div class="bar" role="img" aria-label="{label}">'
        f"{''.join(pieces)}</div>"
    )


_DEFAULT_ROWS: Final = 15
_MAIN_NUMBERS: Final = {
    "judged": {
        "samples_per_s": "samples per second",
        "step_period_ns": "step time",
        "iteration_ns": "iteration time",
        "step_without_waits_ns": "step time without waiting",
    },
    "measures": {
        "compute_ratio": "compute",
        "idle_ratio": "idle",
        "exposed_communication_ratio": "exposed communication",
        "exposed_transfer_ratio": "exposed transfers",
        "utilization_ratio": "GPU-Util",
    },
}
"""For each result: the measures shown at the top of the page, with their labels."""
_UNITS: Final = frozenset(Unit)
_ZERO: Final = format_ratio(0)


def render_compared(
    found: Comparison,
    options: Options,
    beside: SideBySideTimeline | None = None,
    runs: Sequence[Summary] = (),
) -> str:
    """Return one HTML page that needs no other file and no network.

    ``beside`` holds the timelines of both runs. With it, each row of a change links to the pair of
    steps in which the row changes most, and to the place there. ``runs`` are logs, whose pace is
    drawn.

    Raises:
        UsageError: a column that was chosen is in no table.
    """
    head = head_of(found)
    rows = options.rows or _DEFAULT_ROWS
    answer = "".join(f"<p>{html_sentence(sentence)}</p>" for sentence in head.sentences)
    warnings = html_list([*head.warnings, *head.remarks])
    changes = None if beside is None else Changes(beside)
    link = None if changes is None else changes.link
    tables = [
        card(section.name, section.title, "".join(_tables(section, rows, link)))
        for section in sections_of(found, options)
        if section.name != "steps"
    ]
    # The page embeds plotly.js only together with a timeline.
    roofline = "" if beside is None else roofline_of_two_runs(found.results)
    cards = [
        card("answer", "Result", f'<div class="verdict">{answer}</div>{_main_numbers(found)}'),
        *_charts(found, changes),
        *([card("pace", "Pace", pace)] if (pace := pace_chart(runs) if runs else "") else []),
        *_timelines(beside, changes),
        *([card("roofline", "Roofline of base and new", roofline)] if roofline else []),
        *([card("known", WARNINGS_TITLE, warnings)] if warnings else []),
        *tables,
    ]
    linked = (_HEADING.search(one) for one in cards[1:])
    contents = "".join(f'<a href="#{at[1]}">{at[2]}</a>' for at in linked if at)
    missing = html_list(f"{name}: {reason}" for name, reason in found.missing.items())
    title = options.title or head.title
    body = (
        f"<header><h1>{html_text(title)}</h1></header>"
        f'<nav class="across" aria-label="Contents">{contents}</nav>'
        f"<main>{''.join(cards)}{missing}<footer>Generated by traceprof. This page loads "
        f"nothing from the network. Tables show at most {rows} rows.</footer></main>"
    )
    style = (files(__package__) / "report.css").read_text(encoding="utf-8")
    fragment = None if beside is None else timeline_fragment(beside.packed, is_embedded=True)
    script = (figures_script() if roofline else "") + flame_script()
    return write_document(
        title,
        body,
        (category_style(), style, flame_style(), _STYLE, curves_style() if pace else ""),
        fragment,
        script,
    )


_OF_CHANGES: Final = ("difference", "kernels", "phases")
"""Results whose rows are changes of a step."""
_MAX_STEP_LINKS: Final = 40


def _timelines(beside: SideBySideTimeline | None, changes: Changes | None) -> Iterator[str]:
    """Yield the cards with both timelines and the flame graphs; nothing without timelines."""
    if beside is None or changes is None:
        return
    notes = " · ".join(map(html_text, beside.notes))
    drawn = timeline_fragment(beside.packed, is_embedded=True).html
    html = f'<p class="note">{beside.subtitle}</p>{drawn}<p class="note">{notes}</p>'
    yield card("timeline", "Timelines of base and new, aligned by step", html)
    if flames := [*flames_of(changes)]:
        about = (
            '<p class="note" data-others hidden>This file has no flame graph of the shown step. '
            f"It has one of {step_links([pair for pair, _ in flames])}.</p>"
        )
        shown = "".join(html for _, html in flames)
        yield card("flame", "Differential flame graph", about + shown)


def _charts(found: Comparison, changes: Changes | None) -> Iterator[str]:
    """Yield the cards with charts of the results that the comparison has."""
    link = None if changes is None else changes.link
    difference = found.results.get("difference")
    if difference is not None and len(difference.tables["parts"]):
        yield card("sum", "Step time changes from base to new", waterfall_chart(difference, link))
        yield card("parts", "GPU time per step", parts_chart(difference))
    steps = found.results.get("steps")
    if steps is not None and len(steps.table):
        pairs = changes.pairs[:_MAX_STEP_LINKS] if changes else ()
        links = f'<p class="note">Side by side: {step_links(pairs)}</p>' if pairs else ""
        yield card("steps", "Step times", steps_chart(steps.table) + links)


def _tables(section: Section, rows: int, link: Link | None) -> Iterator[str]:
    result = section.result
    for table in (section.table, *section.more):
        if len(table):
            table_link = link if result.name in _OF_CHANGES else None
            leading = "name" if table.has("name") else table.columns[0].name
            yield html_table(table, table.about or section.name, rows, table_link, leading)
    yield html_list(sentences(result.notes))


def _main_numbers(found: Comparison) -> str:
    """Return the main numbers of base and new, side by side."""
    shown = []
    for result, labels in _MAIN_NUMBERS.items():
        if result in found.results:
            rows = {row["measure"]: row for row in found.results[result].table.rows()}
            shown += [
                _number(rows[name], label)
                for name, label in labels.items()
                if name in rows and not _is_zero(rows[name])
            ]
    return figures_html(shown)


def _is_zero(row: Any) -> bool:
    """Return whether a share is 0.0% in both runs."""
    is_share = row["unit"] == Unit.RATIO
    return is_share and format_ratio(row["base"]) == format_ratio(row["new"]) == _ZERO


def _number(row: Any, label: str) -> str:
    unit = Unit(row["unit"]) if row["unit"] in _UNITS else Unit.NUMBER
    base, new = (html_text(value_text(unit, row[side])) for side in ("base", "new"))
    return f"<b>{base} → {new}</b> {delta(row, unit)} <span>{html_text(label)}</span>"


def delta(row: Any, unit: Unit) -> str:
    """Return the change of a measure from base to new; the change of a share is in points.

    It is colored if the change is known to be better or worse.
    """
    change = row["new"] - row["base"] if unit is Unit.RATIO else row["change_ratio"]
    if not is_known(change) or not change:
        return ""
    verdict = row.get("verdict")
    # Shares have no verdict: whether they changed by more than chance is not known.
    is_decided = row["better"] and verdict and verdict not in _UNDECIDED
    is_worse = (change > 0) == (row["better"] == "lower")
    kind = (" worse" if is_worse else " better") if is_decided else ""
    share, points = format_ratio(change), " points" if unit is Unit.RATIO else ""
    sign = "+" if change > 0 and share != _ZERO else ""
    remark = f" ({verdict})" if verdict in _UNDECIDED else ""
    content = html_text(f"{sign}{share}{points}{remark}")
    return f'<span class="delta{kind}">{content}</span>'
