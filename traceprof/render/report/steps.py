"""The steps of a run as a figure that one explores: what each is made of, how fast they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traceprof.model.grouping import Groups, groups_of, split_by
from traceprof.model.results import Result, Unit
from traceprof.model.table import Table
from traceprof.render.charts.figure import Scale, Trace, choice, figure_html, scale_of
from traceprof.render.palette import PART_STYLES, category_of
from traceprof.render.report.places import Around
from traceprof.units import format_duration

_Floats = npt.NDArray[np.float64]

Pieces = Mapping[str, tuple[str, str]]
"""What bars are made of: for each column its words and its category, from the bottom."""


def _as_named(categories: Mapping[str, str]) -> Pieces:
    return {column: (category_of(key).label, key) for column, key in categories.items()}


_PARTS: Final = _as_named({part.column: part.key for part in PART_STYLES})
_PHASES: Final = _as_named(
    {
        "data_ns": "range_data",
        "forward_ns": "range_forward",
        "backward_ns": "range_backward",
        "optimizer_ns": "range_optimizer",
        "communication_ns": "range_communication",
    }
)


_MOST_BARS: Final = 200
_MOST_OF_ALL: Final = 8_000
"""How many pieces of bars of single ranks a figure holds."""
_FEW_BARS: Final = 12
_PALE: Final = 0.4
_LEAST_REST: Final = 0.001


def steps_figure(steps: Result, around: Around) -> str:
    """Return the duration of each step, stacked by part (or by phase of the host).

    Warm-up is pale, slow steps are marked; where samples are known the throughput stands beside.
    Of several processes the mean is drawn, and where they are few each can be chosen.
    """
    word = "iteration" if steps.scalars.get("is_pattern") else "step"
    figure, words = bars_of_steps(steps.table, _columns(steps.table), around, word)
    return (
        f'{figure}<p class="note">Step time of {words}. Warm-up bars are pale. '
        f"Click a bar to show the {word} in the timeline.</p>"
    )


def bars_of_steps(table: Table, pieces: Pieces, around: Around, word: str) -> tuple[str, str]:
    """Return a bar for each step, stacked of ``pieces``, and how many of what these are."""
    processes = split_by(table, "process")
    n_steps = len({*table["step"].tolist()})
    by_rank = n_steps == 1 and len(processes) > 1
    n_each = max(1, -(-n_steps // _MOST_BARS))
    groups = [("", table)] if by_rank else _groups(processes, table, len(pieces) + 1, around)
    scale = scale_of(Unit.NS, table["duration_ns"])
    chart = _Steps(pieces, scale, around, word, by_rank=by_rank)
    drawn = [list(chart.traces(own, name)) for name, own in groups]
    traces = [{**trace, "visible": place == 0} for place, own in enumerate(drawn) for trace in own]
    ranks = f" of {len(processes)} processes" if len(processes) > 1 else ""
    mean = "" if n_each == 1 else f" (each bar is the mean of {n_each})"
    words = f"the {word}{ranks}" if n_steps == 1 else f"{n_steps} {word}s{ranks}{mean}"
    figure = figure_html(
        traces,
        f"Step time of {words}",
        height=320,
        barmode="stack",
        bargap=0.12,
        xaxis={
            "title": {"text": "" if by_rank else word},
            "showgrid": False,
            **({} if by_rank else _room_for(table)),
        },
        yaxis={"title": {"text": f"duration, {scale.unit}"}, "rangemode": "tozero"},
        **_second_axis(any(trace.get("yaxis") == "y2" for trace in traces)),
        meta={name: chart.links(own) for name, own in groups},
        **choice([name for name, _ in groups], [len(own) for own in drawn]),
    )
    return figure, words


def _groups(
    processes: Sequence[tuple[int, Table]], table: Table, n_pieces: int, around: Around
) -> list[tuple[str, Table]]:
    """Return what can be chosen: the mean of all processes, and each where they are few."""
    if len(processes) == 1:
        return [("", table)]
    n_bars = min(max(len(own) for _, own in processes), _MOST_BARS)
    groups = [(f"mean of {len(processes)} processes", table)]
    if len(processes) * n_bars * n_pieces <= _MOST_OF_ALL:
        groups += [(around.who(process), own) for process, own in processes]
    return groups


def _room_for(table: Table) -> dict[str, Any]:
    """Return the range of an axis of few steps, so that their bars are not as wide as the page."""
    steps = sorted({*table["step"].tolist()})
    if len(steps) >= _FEW_BARS:
        return {}
    return {"range": [steps[0] - 0.7, max(steps[-1] + 1, steps[0] + _FEW_BARS)], "tickvals": steps}


def _columns(table: Table) -> Pieces:
    """Return the columns of the parts, or else of the phases."""
    for known in (_PARTS, _PHASES):
        found = {
            c: piece
            for c, piece in known.items()
            if c in table and ~np.isnan(table[c].astype(np.float64)).any()
        }
        if found:
            return found
    return {}


def _bars(table: Table, columns: Pieces) -> Table:
    """Return at most `_MOST_BARS` rows: the mean over processes, and over neighbours if many."""
    of_step = groups_of(table["step"])
    numbers = np.array(of_step.keys, np.int64).ravel()
    per_bar = max(1, int(np.ceil(len(numbers) / _MOST_BARS)))
    of_bar = groups_of(np.arange(len(numbers)) // per_bar)
    wanted = ["duration_ns", *columns]
    wanted += [name for name in ("is_warmup", "samples_per_s") if name in table]
    means = {n: _means(of_bar, _means(of_step, table[n].astype(np.float64))) for n in wanted}
    begin = _starts(table)
    at_ns, end_ns = _lowest(of_step, begin), -_lowest(of_step, -(begin + table["duration_ns"]))
    excess = _lowest(of_step, -_or_zero(table, "excess_ns"))
    return Table(
        {
            **means,
            "step": of_bar.reduced(np.minimum, numbers),
            "at_ns": of_bar.reduced(np.minimum, at_ns),
            "end_ns": of_bar.reduced(np.maximum, end_ns),
            "slow_ns": -of_bar.reduced(np.minimum, excess),
        }
    )


def _starts(table: Table) -> _Floats:
    """Return where rows are in time; NaN where the table does not tell."""
    return np.asarray(table.get("at_ns", np.full(len(table), np.nan)), np.float64)


def _or_zero(table: Table, name: str) -> _Floats:
    return np.nan_to_num(table[name].astype(np.float64)) if name in table else np.zeros(len(table))


def _lowest(groups: Groups, values: _Floats) -> _Floats:
    return np.asarray(groups.reduced(np.fmin, values), np.float64)


def _means(groups: Groups, values: _Floats) -> _Floats:
    """Return the mean of what is known of each group, NaN where nothing is."""
    known = groups.reduced(np.add, (~np.isnan(values)).astype(np.int64))
    sums = groups.sums(np.nan_to_num(values))
    return np.where(known > 0, sums / np.maximum(known, 1), np.nan)


@dataclass(frozen=True, slots=True)
class _Steps:
    """Draws steps; ``by_rank``: one bar for each process instead of one for each step."""

    columns: Pieces
    scale: Scale
    around: Around
    word: str
    by_rank: bool

    def traces(self, table: Table, links: str) -> Iterator[Trace]:
        """Yield the parts of the bars, what is marked of them, and the throughput.

        Their links are those of the figure that are called ``links``.
        """
        bars = self._by_rank(table) if self.by_rank else _bars(table, self.columns)
        x: Any = bars["step"]
        if self.by_rank:
            x = [self.around.who(process) for process in table["process"].tolist()]
        yield from self._parts(bars, x, links)
        if not self.by_rank:
            yield from self._marks(bars)
            yield from self._throughput(bars)

    def links(self, table: Table) -> list[str]:
        """Return where each bar leads to."""
        bars = self._by_rank(table) if self.by_rank else _bars(table, self.columns)
        processes = table["process"].tolist()
        named = processes if self.by_rank or len({*processes}) == 1 else None
        spans = zip(bars["at_ns"].tolist(), bars["end_ns"].tolist(), strict=True)
        return [
            self.around.link(at, end - at, named[place] if named else None)
            for place, (at, end) in enumerate(spans)
        ]

    def _by_rank(self, table: Table) -> Table:
        at_ns = _starts(table)
        return table.assign(at_ns=at_ns, end_ns=at_ns + table["duration_ns"])

    def _parts(self, bars: Table, x: Any, links: str) -> Iterator[Trace]:
        rest = bars["duration_ns"].astype(np.float64)
        for column in self.columns:
            rest = rest - bars[column]
        pieces = [
            (words, f"var(--{key})", bars[column]) for column, (words, key) in self.columns.items()
        ]
        if (rest > _LEAST_REST * bars["duration_ns"]).any():
            name = "outside phases" if self.columns else "duration"
            pieces.append((name, "var(--line)", np.maximum(rest, 0)))
        is_warmup = bars.get("is_warmup", np.zeros(len(bars)))
        opacity = np.where(is_warmup > 0, _PALE, 1.0)
        where = "%{x}" if self.by_rank else f"{self.word} %{{x}}"
        for name, colour, values in pieces:
            yield {
                "type": "bar",
                "name": name,
                "x": x,
                "y": self.scale(values),
                "marker": {"color": colour, "opacity": opacity},
                "hovertemplate": f"{where}: {self.scale.hover('y')}",
                "meta": {"links": links},
            }

    def _marks(self, bars: Table) -> Iterator[Trace]:
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
            "hovertemplate": f"{self.word} %{{x}}: slower by %{{customdata}}<extra></extra>",
        }

    def _throughput(self, bars: Table) -> Iterator[Trace]:
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
            "hovertemplate": f"{self.word} %{{x}}: %{{y:,.1f}} samples/s<extra></extra>",
        }


def _second_axis(is_needed: bool) -> dict[str, Any]:
    # By itself, plotly gives it as many ticks as the axis that it lies over: at 1 790, 3 580 ….
    own = {"overlaying": "y", "side": "right", "tickmode": "auto"}
    look = {"title": {"text": "samples/s"}, "showgrid": False, "rangemode": "tozero"}
    return {"yaxis2": {**own, **look}} if is_needed else {}
