"""Draw interactive figures of the steps of a run: their parts, throughput, and critical path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traceprof.measures.path.path import PATH_PARTS, path_within
from traceprof.model.grouping import Groups, groups_of, split_by
from traceprof.model.results import Result, Unit
from traceprof.model.table import Table
from traceprof.render.charts.figure import Scale, Trace, choice, figure_html, note, scale_of
from traceprof.render.palette import PART_STYLES, category_of
from traceprof.render.report.places import PageContext
from traceprof.units import format_count, format_duration

_Floats = npt.NDArray[np.float64]

_Pieces = Mapping[str, tuple[str, str]]
"""The pieces of a stacked bar from the bottom up: label and category key of each column."""


def _labeled(categories: Mapping[str, str]) -> _Pieces:
    return {column: (category_of(key).label, key) for column, key in categories.items()}


_PARTS: Final = _labeled({part.column: part.key for part in PART_STYLES})
_PHASES: Final = _labeled(
    {
        "data_ns": "range_data",
        "h2d_ns": "range_h2d",
        "eval_ns": "range_eval",
        "forward_ns": "range_forward",
        "backward_ns": "range_backward",
        "optimizer_ns": "range_optimizer",
        "communication_ns": "range_communication",
    }
)


_MAX_BARS: Final = 200
_MAX_CHOICES: Final = 64
"""Each entry of a plotly menu lists all traces, so the size of a page grows with their square."""
_MAX_PIECES: Final = 8_000
"""A figure with more pieces than this in the bars of single processes shows only the mean."""
_MIN_AXIS_STEPS: Final = 12
_WARMUP_OPACITY: Final = 0.4
_MIN_REST_RATIO: Final = 0.001
"""Time outside all pieces is drawn if it exceeds this share of a bar."""
_THROUGHPUT_AXIS: Final[Mapping[str, Any]] = {
    "yaxis2": {
        "overlaying": "y",
        "side": "right",
        # plotly's default repeats the number of ticks of the first axis, at 1,790, 3,580, ….
        "tickmode": "auto",
        "title": {"text": "samples/s"},
        "showgrid": False,
        "rangemode": "tozero",
    }
}


def steps_figure(steps: Result, context: PageContext) -> str:
    """Return the duration of each step as bars, stacked by part (or by phase of the host).

    Warm-up steps are pale and slow steps are marked. If the number of samples is known, a second
    axis shows the throughput. For several processes the figure shows their mean; if there are few,
    a menu selects a single process.
    """
    noun = "iteration" if steps.scalars.get("is_pattern") else "step"
    figure, subject = _step_bars(steps.table, _pieces_of(steps.table), context, noun)
    return figure + note(
        f"Step time of {subject}. Warm-up bars are pale. "
        f"Click a bar to show the {noun} in the timeline."
    )


def _step_bars(table: Table, pieces: _Pieces, context: PageContext, noun: str) -> tuple[str, str]:
    """Return a figure with one stacked bar per step, and a phrase for the steps that it shows.

    A single step of several processes has one bar per process instead.
    """
    processes = split_by(table, "process")
    n_steps = len({*table["step"].tolist()})
    by_rank = n_steps == 1 and len(processes) > 1
    n_each = max(1, -(-n_steps // _MAX_BARS))
    groups = [("", table)] if by_rank else _groups(processes, table, len(pieces) + 1, context)
    scale = scale_of(Unit.NS, table["duration_ns"])
    chart = _StepBars(pieces, scale, context, noun, by_rank=by_rank)
    drawn = [list(chart.traces(rows, name)) for name, rows in groups]
    traces = [
        {**trace, "visible": place == 0}
        for place, group_traces in enumerate(drawn)
        for trace in group_traces
    ]
    ranks = f" of {len(processes)} processes" if len(processes) > 1 else ""
    mean = "" if n_each == 1 else f" (each bar is the mean of {n_each})"
    subject = f"the {noun}{ranks}" if n_steps == 1 else f"{n_steps} {noun}s{ranks}{mean}"
    figure = figure_html(
        traces,
        f"Step time of {subject}",
        height=320,
        barmode="stack",
        bargap=0.12,
        xaxis={
            "title": {"text": "" if by_rank else noun},
            "showgrid": False,
            **({} if by_rank else _axis_range(table)),
        },
        yaxis={"title": {"text": f"duration, {scale.unit}"}, "rangemode": "tozero"},
        **(_THROUGHPUT_AXIS if any(trace.get("yaxis") == "y2" for trace in traces) else {}),
        meta={name: chart.links(rows) for name, rows in groups},
        **choice([name for name, _ in groups], [len(group_traces) for group_traces in drawn]),
    )
    return figure, subject


def _groups(
    processes: Sequence[tuple[int, Table]], table: Table, n_pieces: int, context: PageContext
) -> list[tuple[str, Table]]:
    """Return the choices of the menu: the mean of all processes, and each process if few."""
    if len(processes) == 1:
        return [("", table)]
    n_bars = min(max(len(rows) for _, rows in processes), _MAX_BARS)
    groups = [(f"mean of {len(processes)} processes", table)]
    n_drawn = len(processes) * n_bars * n_pieces
    if len(processes) <= _MAX_CHOICES and n_drawn <= _MAX_PIECES:
        groups += [(context.process_label(process), rows) for process, rows in processes]
    return groups


def _axis_range(table: Table) -> dict[str, Any]:
    """Return the range of the step axis if there are few steps, so that bars stay narrow."""
    steps = sorted({*table["step"].tolist()})
    if len(steps) >= _MIN_AXIS_STEPS:
        return {}
    end = max(steps[-1] + 1, steps[0] + _MIN_AXIS_STEPS)
    return {"range": [steps[0] - 0.7, end], "tickvals": steps}


def _pieces_of(table: Table) -> _Pieces:
    """Return the parts that ``table`` has as known columns, otherwise the phases."""
    for pieces in (_PARTS, _PHASES):
        known = {
            column: piece
            for column, piece in pieces.items()
            if column in table and ~np.isnan(table[column].astype(np.float64)).any()
        }
        if known:
            return known
    return {}


def _bars(table: Table, columns: _Pieces) -> Table:
    """Return at most `_MAX_BARS` rows: means over processes, and over neighboring steps if many.

    ``slow_ns`` is the largest excess of a step in the bar.
    """
    by_step = groups_of(table["step"])
    numbers = np.array(by_step.keys, np.int64).ravel()
    per_bar = max(1, int(np.ceil(len(numbers) / _MAX_BARS)))
    by_bar = groups_of(np.arange(len(numbers)) // per_bar)
    optional = [name for name in ("is_warmup", "samples_per_s") if name in table]
    means = {
        name: _means(by_bar, _means(by_step, table[name].astype(np.float64)))
        for name in ("duration_ns", *columns, *optional)
    }
    start = _starts(table)
    at_ns, end_ns = _lowest(by_step, start), -_lowest(by_step, -(start + table["duration_ns"]))
    excess = np.nan_to_num(table.get("excess_ns", np.zeros(len(table))).astype(np.float64))
    return Table(
        {
            **means,
            "step": by_bar.reduced(np.minimum, numbers),
            "at_ns": by_bar.reduced(np.minimum, at_ns),
            "end_ns": by_bar.reduced(np.maximum, end_ns),
            "slow_ns": -by_bar.reduced(np.minimum, _lowest(by_step, -excess)),
        }
    )


def _starts(table: Table) -> _Floats:
    """Return the start of each row after the start of the run, in ns; NaN if unknown."""
    return np.asarray(table.get("at_ns", np.full(len(table), np.nan)), np.float64)


def _lowest(groups: Groups, values: _Floats) -> _Floats:
    """Return the smallest known value of each group; NaN if none is known."""
    return np.asarray(groups.reduced(np.fmin, values), np.float64)


def _means(groups: Groups, values: _Floats) -> _Floats:
    """Return the mean of the known values of each group; NaN if none is known."""
    n_known = groups.reduced(np.add, (~np.isnan(values)).astype(np.int64))
    sums = groups.sums(np.nan_to_num(values))
    return np.where(n_known > 0, sums / np.maximum(n_known, 1), np.nan)


@dataclass(frozen=True, slots=True)
class _StepBars:
    """Makes the traces of the figure, with one bar per step, or per process if ``by_rank``."""

    columns: _Pieces
    scale: Scale
    context: PageContext
    noun: str
    by_rank: bool

    def traces(self, table: Table, links: str) -> Iterator[Trace]:
        """Yield the pieces of the bars, the marks of slow steps, and the throughput.

        ``links`` is the key of their links in the figure's ``meta``.
        """
        bars = self._bars(table)
        x: Any = bars["step"]
        if self.by_rank:
            x = [self.context.process_label(process) for process in table["process"].tolist()]
        yield from self._parts(bars, x, links)
        if not self.by_rank:
            yield from self._marks(bars)
            yield from self._throughput(bars)

    def links(self, table: Table) -> list[str]:
        """Return the address of each bar."""
        bars = self._bars(table)
        processes = table["process"].tolist()
        named = processes if self.by_rank or len({*processes}) == 1 else None
        spans = zip(bars["at_ns"].tolist(), bars["end_ns"].tolist(), strict=True)
        return [
            self.context.link(at, end - at, named[place] if named else None)
            for place, (at, end) in enumerate(spans)
        ]

    def _bars(self, table: Table) -> Table:
        """Return one row per bar, with its start and end."""
        if not self.by_rank:
            return _bars(table, self.columns)
        at_ns = _starts(table)
        return table.assign(at_ns=at_ns, end_ns=at_ns + table["duration_ns"])

    def _parts(self, bars: Table, x: Any, links: str) -> Iterator[Trace]:
        """Yield the pieces of all bars, and the time outside all pieces if it is visible."""
        rest = bars["duration_ns"].astype(np.float64)
        for column in self.columns:
            rest = rest - bars[column]
        pieces = [
            (label, f"var(--{key})", bars[column]) for column, (label, key) in self.columns.items()
        ]
        if (rest > _MIN_REST_RATIO * bars["duration_ns"]).any():
            name = "outside phases" if self.columns else "duration"
            pieces.append((name, "var(--idle)", np.maximum(rest, 0)))
        is_warmup = bars.get("is_warmup", np.zeros(len(bars)))
        opacity = np.where(is_warmup > 0, _WARMUP_OPACITY, 1.0)
        hover = "%{x}" if self.by_rank else f"{self.noun} %{{x}}"
        for name, color, values in pieces:
            yield {
                "type": "bar",
                "name": name,
                "x": x,
                "y": self.scale(values),
                "marker": {"color": color, "opacity": opacity},
                "hovertemplate": f"{hover}: {self.scale.hover('y')}",
                "meta": {"links": links},
            }

    def _marks(self, bars: Table) -> Iterator[Trace]:
        """Yield a triangle at the top of each slow step."""
        slow = np.flatnonzero(bars["slow_ns"] > 0)
        if not len(slow):
            return
        longer = [format_duration(ns) for ns in bars["slow_ns"][slow].tolist()]
        yield {
            "type": "scatter",
            "mode": "markers",
            "name": "slower than usual",
            "x": bars["step"][slow],
            "y": self.scale(1.03 * bars["duration_ns"][slow]),
            "marker": {"symbol": "triangle-down", "size": 9, "color": "var(--fg)"},
            "customdata": longer,
            "hovertemplate": f"{self.noun} %{{x}}: slower by %{{customdata}}<extra></extra>",
        }

    def _throughput(self, bars: Table) -> Iterator[Trace]:
        """Yield the throughput as a line on the second axis, if the number of samples is known."""
        rates = bars.get("samples_per_s")
        if rates is None or not np.isfinite(rates).any():
            return
        yield {
            "type": "scatter",
            "mode": "lines",
            "name": "samples/s per process",
            "x": bars["step"],
            "y": rates,
            "yaxis": "y2",
            "line": {"color": "var(--fg)", "width": 1.5},
            "hovertemplate": f"{self.noun} %{{x}}: %{{y:,.1f}} samples/s<extra></extra>",
        }


_PATH_LABELS: Final = {
    "compute": ("compute", "compute"),
    "communication": ("communication", "communication"),
    "transfer": ("transfer", "h2d"),
    "device_memory": ("device memory", "d2d"),
    "data": ("data loading", "range_data"),
    "launch": ("kernel launch", "api"),
    "host": ("other CPU work", "host_op"),
    "latency": ("latency", "overhead"),
    "synchronizing": ("synchronization", "sync"),
}
"""Label and category key of each activity on a critical path."""
_MAX_SEGMENTS: Final = 400


def path_figure(path: Result, context: PageContext) -> str:
    """Return the critical path of a typical step over time, and of each step by activity."""
    table = path.table
    if table.empty:
        return ""
    typical = int(np.abs(table["duration_ns"] - np.median(table["duration_ns"])).argmin())
    process, step = int(table["process"][typical]), int(table["step"][typical])
    by_rank = context.whole.each(path_within, process, step, context.window)
    segments = next((segments for segments in by_rank if segments is not None), None)
    figure = ""
    if segments is not None and not segments.empty:  # a step without a duration has no path
        figure = _segments_figure(segments, process, step, context)
    if len(table) < 2:
        return figure
    columns = {f"{part}_ns": _PATH_LABELS[part] for part in PATH_PARTS}
    used = {column: piece for column, piece in columns.items() if table[column].any()}
    bars, subject = _step_bars(table, used, context, "step" if step >= 0 else "window")
    return figure + bars + note(f"Critical path of {subject} by activity.")


def _segments_figure(segments: Table, process: int, step: int, context: PageContext) -> str:
    """Return the segments of one critical path over time, one line per activity."""
    left_out = len(segments) - _MAX_SEGMENTS
    longest = segments.in_order("-duration_ns").head(_MAX_SEGMENTS)
    start_ns = float(segments["at_ns"].min())
    scale = scale_of(Unit.NS, segments["at_ns"] + segments["duration_ns"] - start_ns)
    rows_by_part = dict(split_by(longest, "part"))
    traces = []
    for part in PATH_PARTS:
        if part not in rows_by_part:
            continue
        rows, (label, category) = rows_by_part[part], _PATH_LABELS[part]
        spans = zip(rows["at_ns"].tolist(), rows["duration_ns"].tolist(), strict=True)
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": label,
                "y": [label] * len(rows),
                "base": scale(rows["at_ns"] - start_ns),
                "x": scale(rows["duration_ns"]),
                "marker": {"color": f"var(--{category})", "line": {"width": 0}},
                "customdata": [format_duration(ns) for ns in rows["duration_ns"].tolist()],
                "hovertemplate": "%{customdata}",
                "meta": {"links": [context.link(at, ns, process) for at, ns in spans]},
            }
        )
    subject = f"step {step}" if step >= 0 else "the window"
    title = f"Critical path of {subject}, {context.process_label(process)}"
    more = f" The {format_count(left_out)} shortest segments are not shown." if left_out > 0 else ""
    figure = figure_html(
        traces,
        title,
        height=90 + 26 * len(traces),
        barmode="overlay",
        bargap=0.25,
        showlegend=False,
        xaxis={"title": {"text": f"time since start of {subject}, {scale.unit}"}},
        yaxis={"type": "category", "autorange": "reversed", "fixedrange": True},
    )
    return figure + note(f"{title}.{more} Click a segment to show it in the timeline.")
