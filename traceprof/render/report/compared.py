"""A comparison of runs as one page: the answer, the main numbers side by side, charts, tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import Any, Final

import numpy as np

from traceprof.comparison import Comparison
from traceprof.model.grouping import split_by
from traceprof.model.results import Result, Unit
from traceprof.model.table import Table
from traceprof.model.trace import Trace
from traceprof.render.briefing import Section, head_of, sections_of
from traceprof.render.charts.figure import figures_script
from traceprof.render.charts.roofline import roofline_of_both
from traceprof.render.charts.svg import Axis, drawing, element, legend, round_ticks, text
from traceprof.render.escape import html_list, html_text, plain_text
from traceprof.render.formatting import is_known, round_text, sentences, signed_duration, value_text
from traceprof.render.page.document import KNOWN_WITH_IT, Link, html_table, write_document
from traceprof.render.palette import PART_STYLES
from traceprof.render.registry import Options
from traceprof.render.report.charts import card, category_style
from traceprof.render.shown import Row
from traceprof.render.timeline.beside import BesideTimeline
from traceprof.render.timeline.render import timeline_fragment
from traceprof.units import format_duration, format_ratio

_WIDTH: Final = 960
_LEFT: Final = 330
_RIGHT: Final = 110
_ROW: Final = 22
_MOST_CAUSES: Final = 10
_LEAST_SHARE: Final = 0.02
_LONGEST: Final = 48
_HEIGHT: Final = 240
_FOOT: Final = 18
_SEEN: Final = 0.05
_UNDECIDED: Final = ("no difference shown", "not clear", "not judged")
"""The share of the whole from which the longest cause is seen without a broken axis."""
_WHOLE: Final = 1.5
"""How many times as long as any cause both wholes are drawn where the axis is broken."""
_PARTS: Final = {part.key: part for part in PART_STYLES}
_BARE: Final = ("kernel", "copy", "collective")
_STYLE: Final = """
.chart.sum { max-height: none; }
.chart .longer { fill: #c2410c; } .chart .shorter { fill: #15803d; }
.chart .break { fill: var(--card); }
.chart .base { fill: #5d6b7e; } .chart .new { fill: var(--accent); }
.chart text.value { fill: var(--fg); }
.figures .figure b { display: block; font-size: 17px; white-space: nowrap; }
.figures .figure > span:last-child { display: block; color: var(--muted); font-size: 12.5px; }
.figures { display: grid; gap: 10px 18px; margin-top: 12px; }
.figures { grid-template-columns: repeat(auto-fit, minmax(190px, 1fr)); }
.delta { font-size: 12.5px; font-weight: 600; }
.delta.worse { color: #c2410c; } .delta.better { color: #15803d; }
[data-theme="dark"] .delta.worse { color: #fb923c; }
[data-theme="dark"] .delta.better { color: #4ade80; }
"""


def waterfall_chart(difference: Result) -> str:
    """Return how one gets from the base's mean step to the new one's, cause by cause.

    All bars are to scale where causes can be seen beside the whole; else the axis is broken: it
    begins so late that both wholes are longer than any cause, and they are drawn broken.
    """
    scalars = difference.scalars
    rows = _steps_of(difference)
    reached, places = float(scalars["base_ns"]), [float(scalars["base_ns"])]
    for row in rows:
        reached += row["difference_ns"]
        places.append(reached)
    low = _begin_of(places, [abs(row["difference_ns"]) for row in rows])
    x = Axis(low, low + 1.02 * ((max(places) - low) or 1.0), _LEFT, _WIDTH - _RIGHT)
    height = _ROW * (len(rows) + 2) + 4
    lines = list(_scale_of(x, height))
    wholes = ((0, "base", places[0]), (len(rows) + 1, "new", places[-1]))
    for number, side, ns in wholes:
        lines.append(_bar(number, side, (_LEFT, x(ns)), side, format_duration(ns)))
        lines += [_break_of(number)] if low else []
    for number, row in enumerate(rows, 1):
        ends = sorted((x(places[number - 1]), x(places[number])))
        kind = "longer" if row["difference_ns"] > 0 else "shorter"
        words = signed_duration(row["difference_ns"]) or "0"
        lines.append(_bar(number, row["words"], (ends[0], ends[1]), kind, words))
    broken = (
        f" The axis is broken: it starts at {format_duration(low)}. The bars of base and new are "
        "longer than drawn; all other bars are to scale."
        if low
        else ""
    )
    label = f"From {format_duration(places[0])} to {format_duration(places[-1])}"
    return (
        f"{drawing((_WIDTH, height + _FOOT), 'chart sum', label, *lines)}"
        f'<p class="note">Mean GPU time per {html_text(str(scalars["per"]))}. The changes between '
        f"the bars of base and new add up.{broken}</p>"
    )


def _begin_of(places: Sequence[float], lengths: Sequence[float]) -> float:
    """Return where the axis begins: at 0 wherever causes can be seen then."""
    longest = max(lengths, default=0.0)
    if not longest or longest >= _SEEN * max(places):
        return 0.0
    return max(0.0, min(places) - _WHOLE * max(longest, max(places) - min(places)))


def _scale_of(x: Axis, height: int) -> Iterator[str]:
    for value in round_ticks(x.low, x.high, 6):
        at = x(value)
        yield element("line", x1=at, x2=at, y1=0, y2=height)
        yield text(at, height + _FOOT - 4, round_text(Unit.NS, value), "middle")


def _break_of(number: int) -> str:
    """Return a gap across a bar, near its beginning: it is longer than it is drawn."""
    y = number * _ROW + 1
    path = f"M{_LEFT + 22} {y}l-6 {_ROW - 2}h6l6 {2 - _ROW}z"
    return element("path", d=path, class_="break")


def _steps_of(difference: Result) -> list[Row]:
    """Return the causes that are worth a bar, the rest of each part, in the order of the parts."""
    causes = difference.tables["causes"].rows()
    largest = max((abs(row["difference_ns"]) for row in causes), default=0)
    worth = [row for row in causes if abs(row["difference_ns"]) >= _LEAST_SHARE * largest > 0]
    told = worth[:_MOST_CAUSES]
    found: list[Row] = [
        {"words": _cause(row), "difference_ns": row["difference_ns"]} for row in told
    ]
    for part in PART_STYLES:
        rest = sum(row["difference_ns"] for row in causes if row["part"] == part.key)
        rest -= sum(row["difference_ns"] for row in told if row["part"] == part.key)
        if rest:
            found.append({"words": f"other {part.label}", "difference_ns": rest})
    return found


def _cause(row: Row) -> str:
    name = str(row["name"]).removeprefix("void ")
    if row["kind"] == "waiting":
        name = f"waiting for {name.strip('()')}"
    elif row["kind"] not in _BARE:
        name = f"{_PARTS[row['part']].label}: {row['kind']} {name}".strip()
    state = f" ({row['state']})" if row["state"] in ("new", "gone", "renamed") else ""
    room = _LONGEST - len(state)
    return plain_text(name, room) + state


def _bar(number: int, name: str, ends: tuple[float, float], kind: str, value: str) -> str:
    y = number * _ROW
    width = max(1.0, ends[1] - ends[0])
    title = f"<title>{html_text(f'{name}: {value}')}</title>"
    return (
        text(_LEFT - 8, y + 15, name, "end", class_="value")
        + element("rect", title, x=ends[0], y=y + 3, width=width, height=_ROW - 6, class_=kind)
        + text(ends[0] + width + 6, y + 15, value)
    )


def steps_chart(steps: Table) -> str:
    """Return how long each steady step took, on both sides."""
    if steps.empty:
        return ""
    top = 1.05 * float(np.quantile(steps["period_ns"], 0.99))
    low = 0.95 * float(steps["period_ns"].min())
    most = max(1.0, float(steps["place"].max()))
    x, y = Axis(0, most, 70, _WIDTH - 10), Axis(low, top, _HEIGHT - 8, 8)
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
    sorted_by_name = sorted(split_by(steps, "side"), key=lambda pair: pair[0])
    medians = (
        _median(y(min(float(np.median(own["period_ns"])), top)), side, dash)
        for (side, own), dash in zip(sorted_by_name, ("2 4", "8 3"), strict=False)
    )
    ticks = (
        element("line", x1=70, x2=_WIDTH - 10, y1=y(value), y2=y(value))
        + text(66, y(value) + 4, round_text(Unit.NS, value), "end")
        for value in round_ticks(low, top, 4)
    )
    return (
        drawing((_WIDTH, _HEIGHT), "chart", "Step times of base and new", *ticks, *medians, *dots)
        + legend((("#5d6b7e", "base"), ("var(--accent)", "new")))
        + f'<p class="note">Each steady step in order, from {format_duration(low)} to '
        f"{format_duration(top)}. Lines are medians. Longer steps are drawn at the top edge.</p>"
    )


def _median(y: float, side: str, dash: str) -> str:
    style = f"stroke:var(--fg);stroke-dasharray:{dash}"
    line = element("line", x1=70, x2=_WIDTH - 10, y1=y, y2=y, style=style)
    return line + text(_WIDTH - 10, y - 4, f"{side} median", "end", class_="value")


def parts_chart(difference: Result) -> str:
    """Return the five parts of the mean step of both, as bars of one scale."""
    parts = difference.tables["parts"].rows()
    scalars = difference.scalars
    longest = max(scalars["base_ns"], scalars["new_ns"], 1)
    return (
        legend((f"var(--{row['part']})", _PARTS[row["part"]].label) for row in parts)
        + "<div class='of-devices'>"
        + "".join(_stacked(side, parts, scalars[f"{side}_ns"], longest) for side in ("base", "new"))
        + "</div>"
    )


def _stacked(side: str, parts: Sequence[Row], length_ns: int, longest_ns: int) -> str:
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


_ROWS: Final = 15
_FIGURES: Final = {
    "samples_per_s": "samples per second",
    "step_period_ns": "step time",
    "turn_ns": "iteration time",
    "step_own_ns": "step time without waiting",
}
_MORE_FIGURES: Final = {
    "compute_ratio": "compute",
    "idle_ratio": "idle",
    "exposed_communication_ratio": "exposed communication",
    "exposed_transfer_ratio": "exposed transfers",
    "utilisation_ratio": "GPU-Util",
}
_UNITS: Final = frozenset(Unit)


def render_compared(
    found: Comparison, options: Options, beside: BesideTimeline | None = None
) -> str:
    """Return the page; it needs nothing else and no network.

    ``beside`` are both in time: rows of kernels lead to the longest of them there.
    """
    head = head_of(found)
    title = options.title or head.title
    rows = options.rows or _ROWS
    answer = "".join(f"<p>{html_text(sentence)}</p>" for sentence in head.sentences)
    known = html_list([*head.warnings, *head.remarks])
    link = None if beside is None else _links_of_kernels(beside)
    roofline = "" if beside is None else roofline_of_both(found.results)  # plotly is there
    cards = [
        card("answer", "Result", f'<div class="verdict">{answer}</div>{_figures(found)}'),
        *_charts(found),
        *_in_time(beside),
        *([card("roofline", "Roofline of base and new", roofline)] if roofline else []),
        *([card("known", KNOWN_WITH_IT, known)] if known else []),
        *(
            card(section.name, section.title, "".join(_tables(section, rows, link)))
            for section in sections_of(found, options)
            if section.name != "steps"
        ),
    ]
    missing = html_list(f"{name}: {reason}" for name, reason in found.missing.items())
    body = (
        f"<header><h1>{html_text(title)}</h1></header>"
        f"<main>{''.join(cards)}{missing}<footer>Generated by traceprof. This page loads "
        f"nothing from the network. Tables show at most {rows} rows.</footer></main>"
    )
    style = (files(__package__) / "report.css").read_text(encoding="utf-8")
    fragment = None if beside is None else timeline_fragment(beside.packed, is_embedded=True)
    script = figures_script() if roofline else ""
    return write_document(title, body, (category_style(), style, _STYLE), fragment, script)


_KERNEL: Final = "kernel"
_LONGEST_NAME: Final = 600
"""As many letters of a name of a kernel are kept of a run."""


def _in_time(beside: BesideTimeline | None) -> Iterator[str]:
    if beside is None:
        return
    notes = " · ".join(map(html_text, beside.notes))
    drawn = timeline_fragment(beside.packed, is_embedded=True).html
    html = f'<p class="note">{beside.subtitle}</p>{drawn}<p class="note">{notes}</p>'
    yield card("timeline", "Timelines of base and new, aligned by step", html)


def _links_of_kernels(beside: BesideTimeline) -> Link:
    """Return what leads from a row about a kernel to the longest of it: of the new side, if any."""
    longest = [_longest_kernels(side.trace.within(side.span)) for side in beside.sides]

    def link(row: Row) -> str | None:
        if row.get("kind", _KERNEL) != _KERNEL:
            return None
        names = (row.get("base_name") or row["name"], row["name"])
        for side in (1, 0):
            known = longest[side].get(names[side])
            if known is not None:
                return beside.address(side, *known) or None
        return None

    return link


def _longest_kernels(trace: Trace) -> dict[str, tuple[int, int]]:
    """Return when the longest kernel of each name ran, by the name as comparisons have it."""
    kernels = trace.kernels
    order = np.argsort(kernels["end_ns"] - kernels["start_ns"], kind="stable")
    own = kernels.take(order)
    times = zip(own["start_ns"].tolist(), own["end_ns"].tolist(), strict=True)
    return dict(zip((name[:_LONGEST_NAME] for name in own["name"].tolist()), times, strict=True))


def _charts(found: Comparison) -> Iterator[str]:
    difference = found.results.get("difference")
    if difference is not None and len(difference.tables["parts"]):
        yield card("sum", "Step time changes from base to new", waterfall_chart(difference))
        yield card("parts", "GPU time per step", parts_chart(difference))
    steps = found.results.get("steps")
    if steps is not None and len(steps.table):
        yield card("steps", "Step times", steps_chart(steps.table))


def _tables(section: Section, rows: int, link: Link | None) -> Iterator[str]:
    result = section.result
    for table in (section.table, *section.more):
        if len(table):
            own = link if table.name in ("kernels", "causes") else None
            yield html_table(table, table.about or section.name, rows, own, "name")
    yield html_list(sentences(result.notes))


def _figures(found: Comparison) -> str:
    """Return the main numbers of both, beside one another."""
    shown = []
    for result, figures in ("judged", _FIGURES), ("measures", _MORE_FIGURES):
        known = found.results[result].table.rows() if result in found.results else []
        rows = {row["measure"]: row for row in known}
        shown += [_figure(rows[name], label) for name, label in figures.items() if name in rows]
    return f'<div class="figures">{"".join(shown)}</div>' if shown else ""


def _figure(row: Any, label: str) -> str:
    unit = Unit(row["unit"]) if row["unit"] in _UNITS else Unit.NUMBER
    base, new = (html_text(value_text(unit, row[side])) for side in ("base", "new"))
    return (
        f'<div class="figure"><b>{base} → {new}</b> {delta(row, unit)} '
        f"<span>{html_text(label)}</span></div>"
    )


def delta(row: Any, unit: Unit) -> str:
    """Return the change, coloured where it is known to be better or worse; of shares in points."""
    change = row["new"] - row["base"] if unit is Unit.RATIO else row["change_ratio"]
    if not is_known(change) or not change:
        return ""
    verdict = row.get("verdict")
    is_worse = (change > 0) == (row["better"] == "lower")
    kind = "worse" if is_worse else "better"
    # Of shares no verdict is made: whether they changed by more than chance is not known.
    is_plain = not row["better"] or not verdict or verdict in _UNDECIDED
    sign = "+" if change > 0 else ""
    points = " points" if unit is Unit.RATIO else ""
    words = f"{sign}{format_ratio(change)}{points}"
    told = f" ({verdict})" if verdict in _UNDECIDED else ""
    return f'<span class="delta{"" if is_plain else f" {kind}"}">{html_text(words + told)}</span>'
