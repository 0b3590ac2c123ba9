"""Charts of the report, as HTML and SVG that need no script: parts, steps, who sends to whom."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from traceprof.model.grouping import Groups, groups_of
from traceprof.model.results import Result
from traceprof.model.table import Table
from traceprof.render.charts.svg import drawing, element, legend, round_step, text, theme_style
from traceprof.render.escape import html_text
from traceprof.render.formatting import is_known
from traceprof.render.palette import CATEGORIES, PART_STYLES, category_of, ink_on
from traceprof.render.shown import Row
from traceprof.units import format_bytes, format_duration, format_rate, format_ratio

_PARTS: Final = {part.column: part.key for part in PART_STYLES}
_PHASES: Final = {
    "data_ns": "range_data",
    "forward_ns": "range_forward",
    "backward_ns": "range_backward",
    "optimizer_ns": "range_optimizer",
    "communication_ns": "range_communication",
}
_LABEL_RATIO: Final = 0.06
_MAX_BARS: Final = 200
_WIDEST_BAR: Final = 60.0
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 960, 220, 62, 22


def category_style() -> str:
    """Return the colours of the palette as variables of the page, light and dark."""

    def variables(theme: str) -> str:
        colours = [(item.key, str(getattr(item, theme))) for item in CATEGORIES]
        return "".join(f"--{key}:{colour};--on-{key}:{ink_on(colour)};" for key, colour in colours)

    return theme_style(variables, is_light_on_paper=True)


def card(key: str, title: str, html: str) -> str:
    """Return a part of the page under its heading."""
    key = html_text(key)
    return (
        f'<section class="card" id="{key}" aria-labelledby="{key}-title">'
        f'<h2 id="{key}-title">{html_text(title)}</h2>{html}</section>'
    )


def breakdown_bars(breakdown: Result) -> str:
    """Return one bar per device: the parts of the window, which add up to it."""
    rows = breakdown.tables["devices"].rows()
    if len(rows) > 1:
        (total,) = breakdown.tables["total"].rows()
        rows.append({"name": f"all {len(rows)} devices", **total})
    bars = "".join(map(_bar, rows))
    return f"{parts_legend()}<div class='of-devices'>{bars}</div>"


def parts_bar(parts: Mapping[str, float]) -> str:
    """Return the shares of the five parts, by their keys, as one bar."""
    ratios = {part.column: parts[part.key] for part in PART_STYLES}
    shares = {_PARTS[column]: format_ratio(ratio) for column, ratio in ratios.items()}
    return f"{parts_legend(values=shares)}{_bar_of('where the time goes', ratios)}"


def _bar(row: Row) -> str:
    ratios = {key: row[key] / max(1, row["duration_ns"]) for key in _PARTS}
    name = f"GPU {row['device']} {row['name']}" if "device" in row else str(row["name"])
    title = name.strip()
    return f'<span class="who">{html_text(title, 80)}</span>{_bar_of(title, ratios)}'


def _bar_of(title: str, ratios: Mapping[str, float]) -> str:
    words = ", ".join(f"{_label(_PARTS[key])} {format_ratio(r)}" for key, r in ratios.items())
    parts = "".join(
        f'<i style="width:{100 * ratio:.3f}%;background:var(--{_PARTS[key]});'
        f'color:var(--on-{_PARTS[key]})" '
        f'class="{_PARTS[key]}" title="{html_text(_label(_PARTS[key]))} {format_ratio(ratio)}">'
        f"{format_ratio(ratio) if ratio >= _LABEL_RATIO else ''}</i>"
        for key, ratio in ratios.items()
        if ratio > 0
    )
    label = f"{html_text(title, 80)}: {html_text(words)}"
    return f'<div class="bar" role="img" aria-label="{label}">{parts}</div>'


def _label(category: str) -> str:
    return category_of(category).label


def parts_legend(
    categories: Iterable[str] = _PARTS.values(), values: Mapping[str, str] | None = None
) -> str:
    """Return what the colours mean (of the five parts), with a value behind each that has one."""
    keys = dict.fromkeys(categories)
    words = {key: f"{_label(key)} {(values or {}).get(key, '')}".strip() for key in keys}
    return legend((f"var(--{key})", told) for key, told in words.items())


class _Scale:
    """Pixels of the step chart."""

    def __init__(self, n_bars: int, top_ns: float) -> None:
        self.top_ns = top_ns
        self.width = min(_WIDEST_BAR, (_WIDTH - _LEFT) / max(1, n_bars))

    def x(self, place: int) -> float:
        return _LEFT + place * self.width

    def y(self, ns: float) -> float:
        return (_HEIGHT - _BOTTOM) * (1 - ns / self.top_ns)


def step_chart(steps: Result) -> str:
    """Return the duration of each step, stacked by part (or by phase of the host)."""
    table = steps.table
    columns = _columns(table)
    bars, per_bar = _bars(table, columns)
    scale = _Scale(len(bars), max(1.0, 1.08 * float(bars["duration_ns"].max())))
    drawn = "".join(_step_bar(scale, i, row, columns) for i, row in enumerate(bars.rows()))
    words = f"{len(table)} steps" + (f", each bar the mean of {per_bar}" if per_bar > 1 else "")
    names = _step_names(scale, bars)
    return (
        f"{parts_legend(columns.values())}"
        f"{drawing((_WIDTH, _HEIGHT), 'chart', f'Duration of {words}', _axis(scale), drawn, names)}"
        f'<p class="note">Duration of {words}; several processes are averaged. '
        "Warm-up is pale.</p>"
    )


def _columns(table: Table) -> Mapping[str, str]:
    for known in (_PARTS, _PHASES):
        found = {
            c: key
            for c, key in known.items()
            if c in table and ~np.isnan(table[c].astype(np.float64)).any()
        }
        if found:
            return found
    return {}


def _bars(table: Table, columns: Mapping[str, str]) -> tuple[Table, int]:
    """Return at most `_MAX_BARS` rows: the mean over processes, and over neighbours if many."""
    wanted = ("duration_ns", *columns, "is_warmup")
    of_step = groups_of(table["step"])
    numbers = np.array(of_step.keys, np.int64).ravel()
    per_bar = max(1, int(np.ceil(len(numbers) / _MAX_BARS)))
    of_bar = groups_of(np.arange(len(numbers)) // per_bar)
    means = {n: _means(of_bar, _means(of_step, table[n].astype(np.float64))) for n in wanted}
    return Table({**means, "step": of_bar.reduced(np.minimum, numbers)}), per_bar


def _means(groups: Groups, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    known = groups.reduced(np.add, (~np.isnan(values)).astype(np.int64))
    return np.asarray(groups.sums(values) / np.maximum(known, 1), np.float64)


def _step_bar(scale: _Scale, place: int, row: Row, columns: Mapping[str, str]) -> str:
    x, width = scale.x(place), scale.width
    below = 0.0
    rects = []
    for column, key in columns.items():
        value = row[column] if is_known(row[column]) else 0.0
        height = scale.y(below) - scale.y(below + value)
        rects.append(_rect((x, scale.y(below + value), width, height), f"var(--{key})"))
        below += value
    duration = float(row["duration_ns"])
    if duration > below:
        rest = scale.y(below) - scale.y(duration)
        rects.insert(0, _rect((x, scale.y(duration), width, rest), "var(--line)"))
    words = [f"step {row['step']:.0f}: {format_duration(duration)}"]
    words += [f"{_label(key)} {format_duration(row[c])}" for c, key in columns.items()]
    pale = ' class="warmup"' if row["is_warmup"] > 0 else ""
    return f"<g{pale}><title>{html_text(', '.join(words))}</title>{''.join(rects)}</g>"


def _rect(box: tuple[float, float, float, float], fill: str) -> str:
    x, y, width, height = box
    return (
        f'<rect x="{x + 0.06 * width:.2f}" y="{y:.2f}" width="{0.88 * width:.2f}" '
        f'height="{max(0.0, height):.2f}" style="fill:{fill}"/>'
    )


def _axis(scale: _Scale) -> str:
    step = round_step(scale.top_ns / 5)
    marks = []
    for i in range(int(scale.top_ns / step) + 1):
        y = scale.y(i * step)
        label = format_duration(i * step).replace(".000", "").replace(".00", "") if i else "0"
        marks.append(element("line", x1=_LEFT, x2=_WIDTH, y1=y, y2=y))
        marks.append(text(_LEFT - 6, y + 4, label, "end"))
    return "".join(marks)


def _step_names(scale: _Scale, bars: Table) -> str:
    every = max(1, len(bars) // 16)
    return "".join(
        text(scale.x(i) + scale.width / 2, _HEIGHT - 6, f"{step:.0f}", "middle")
        for i, step in enumerate(bars["step"])
        if i % every == 0
    )


_MOST_RANKS: Final = 32
_NUMBERS: Final = re.compile(r"\d+")


def peer_matrix(peers: Result) -> str:
    """Return the bytes from each rank (a row) to each other (a column), the more the darker.

    Nothing for a single pair, and for more than 32 ranks, where the table of pairs is better.
    """
    edges = peers.table.rows()
    names = sorted({str(edge[end]) for edge in edges for end in ("source", "target")}, key=_order)
    sized = [edge for edge in edges if _bytes_of(edge)]
    if not 2 < len(names) <= _MOST_RANKS or not sized:
        return ""
    by_pair: dict[tuple[str, str], list[Row]] = {}
    for edge in sized:
        by_pair.setdefault((edge["source"], edge["target"]), []).append(edge)
    top = max(sum(map(_bytes_of, own)) for own in by_pair.values())
    head = "".join(f'<th scope="col">{html_text(name, 40)}</th>' for name in names)
    rows = "".join(
        f'<tr><th scope="row">{html_text(source, 40)}</th>'
        + "".join(_cell(by_pair.get((source, target), ()), top) for target in names)
        + "</tr>"
        for source in names
    )
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Who sends how much to whom">'
        "<table><caption>Bytes from each rank to each other"
        f'</caption><thead><tr><th scope="col">from, to</th>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _bytes_of(edge: Row) -> int:
    return int(edge["size_bytes"]) if is_known(edge["size_bytes"]) else 0


def _cell(edges: Sequence[Row], top: int) -> str:
    if not edges:
        return "<td></td>"
    n_bytes = sum(map(_bytes_of, edges))
    rates = [
        f"{edge['via']}: {format_rate(edge['rate_bytes_per_s'])}"
        for edge in edges
        if is_known(edge["rate_bytes_per_s"])
    ]
    share = round(100 * n_bytes / top)
    return (
        f'<td class="number" style="--part:{share}%" title="{html_text(", ".join(rates))}">'
        f"{format_bytes(n_bytes)}</td>"
    )


def _order(name: str) -> tuple[str, list[int]]:
    return _NUMBERS.sub("", name), [int(number) for number in _NUMBERS.findall(name)]
