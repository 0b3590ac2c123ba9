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
from traceprof.render.charts.figure import Scale, Trace, figure_html, scale_of
from traceprof.render.escape import plotly_text
from traceprof.render.palette import PART_STYLES, category_of
from traceprof.render.report.places import Around
from traceprof.units import format_duration

_Floats = npt.NDArray[np.float64]

_PARTS: Final = {part.column: part.key for part in PART_STYLES}
_PHASES: Final = {
    "data_ns": "range_data",
    "forward_ns": "range_forward",
    "backward_ns": "range_backward",
    "optimizer_ns": "range_optimizer",
    "communication_ns": "range_communication",
}


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
    table = steps.table
    columns = _columns(table)
    word = "iteration" if steps.scalars.get("is_pattern") else "step"
    processes = split_by(table, "process")
    n_steps = len({*table["step"].tolist()})
    by_rank = n_steps == 1 and len(processes) > 1
    if by_rank:
        groups, n_each = [("", table)], 1
    else:
        groups, n_each = (
            _groups(processes, table, len(columns) + 1, around),
            -(-n_steps // _MOST_BARS),
        )
    scale = scale_of(Unit.NS, table["duration_ns"])
    chart = _Steps(columns, scale, around, word, by_rank=by_rank)
    drawn = [list(chart.traces(own)) for _, own in groups]
    traces = [{**trace, "visible": place == 0} for place, own in enumerate(drawn) for trace in own]
    ranks = f" of {len(processes)} processes" if len(processes) > 1 else ""
    mean = "" if n_each == 1 else f", each bar the mean of {n_each}"
    words = f"{n_steps} {word}{'' if n_steps == 1 else 's'}{ranks}{mean}"
    html = figure_html(
        traces,
        f"Duration of {words}",
        height=320,
        barmode="stack",
        bargap=0.12,
        xaxis={"title": {"text": "" if by_rank else word}, **_room_for(n_steps, table, by_rank)},
        yaxis={"title": {"text": f"duration, {scale.unit}"}, "rangemode": "tozero"},
        **_second_axis(any(trace.get("yaxis") == "y2" for trace in traces)),
        **_choice([name for name, _ in groups], [len(own) for own in drawn]),
    )
    return (
        f'{html}<p class="note">Duration of {words}. Warm-up is pale. '
        f"A click on a bar shows the {word} in the timeline.</p>"
    )


def _groups(
    processes: Sequence[tuple[int, Table]], table: Table, n_pieces: int, around: Around
) -> list[tuple[str, Table]]:
    """Return what can be chosen: the mean of all processes, and each where they are few."""
    if len(processes) == 1:
        return [("", table)]
    n_bars = min(max(len(own) for _, own in processes), _MOST_BARS)
    groups = [(f"mean of {len(processes)}", table)]
    if len(processes) * n_bars * n_pieces <= _MOST_OF_ALL:
        groups += [(around.who(process), own) for process, own in processes]
    return groups


def _room_for(n_steps: int, table: Table, by_rank: bool) -> dict[str, Any]:
    """Return the range of an axis of few steps, so that their bars are not as wide as the page."""
    if by_rank or n_steps >= _FEW_BARS:
        return {}
    first = int(table["step"].min())
    return {"range": [first - 0.7, first + _FEW_BARS], "dtick": 1}


def _columns(table: Table) -> Mapping[str, str]:
    """Return the columns of the parts, or else of the phases, with their categories."""
    for known in (_PARTS, _PHASES):
        found = {
            c: key
            for c, key in known.items()
            if c in table and ~np.isnan(table[c].astype(np.float64)).any()
        }
        if found:
            return found
    return {}


def _bars(table: Table, columns: Mapping[str, str]) -> Table:
    """Return at most `_MOST_BARS` rows: the mean over processes, and over neighbours if many."""
    of_step = groups_of(table["step"])
    numbers = np.array(of_step.keys, np.int64).ravel()
    per_bar = max(1, int(np.ceil(len(numbers) / _MOST_BARS)))
    of_bar = groups_of(np.arange(len(numbers)) // per_bar)
    wanted = ["duration_ns", "is_warmup", *columns]
    wanted += [name for name in ("samples_per_s",) if name in table]
    means = {n: _means(of_bar, _means(of_step, table[n].astype(np.float64))) for n in wanted}
    at_ns = _lowest(of_step, table["at_ns"].astype(np.float64))
    ends = table["at_ns"].astype(np.float64) + table["duration_ns"]
    end_ns = -_lowest(of_step, -ends)
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

    columns: Mapping[str, str]
    scale: Scale
    around: Around
    word: str
    by_rank: bool

    def traces(self, table: Table) -> Iterator[Trace]:
        """Yield the parts of the bars, what is marked of them, and the throughput."""
        bars = self._by_rank(table) if self.by_rank else _bars(table, self.columns)
        x: Any = bars["step"]
        if self.by_rank:
            x = [self.around.who(process) for process in table["process"].tolist()]
        process = int(table["process"][0]) if len({*table["process"].tolist()}) == 1 else None
        links = [
            self.around.link(at, end - at, process)
            for at, end in zip(bars["at_ns"].tolist(), bars["end_ns"].tolist(), strict=True)
        ]
        yield from self._parts(bars, x, links)
        if not self.by_rank:
            yield from self._marks(bars, links)
            yield from self._throughput(bars)

    def _by_rank(self, table: Table) -> Table:
        end_ns = table["at_ns"] + table["duration_ns"]
        return table.assign(end_ns=end_ns, slow_ns=np.zeros(len(table)))

    def _parts(self, bars: Table, x: Any, links: Sequence[str]) -> Iterator[Trace]:
        rest = bars["duration_ns"].astype(np.float64)
        for column in self.columns:
            rest = rest - bars[column]
        pieces = [
            (category_of(key).label, f"var(--{key})", bars[column])
            for column, key in self.columns.items()
        ]
        if (rest > _LEAST_REST * bars["duration_ns"]).any():
            name = "in no phase" if self.columns else "duration"
            pieces.append((name, "var(--line)", np.maximum(rest, 0)))
        opacity = np.where(bars["is_warmup"] > 0, _PALE, 1.0)
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

    def _marks(self, bars: Table, links: Sequence[str]) -> Iterator[Trace]:
        slow = np.flatnonzero(bars["slow_ns"] > 0)
        if not len(slow):
            return
        longer = [format_duration(ns) for ns in bars["slow_ns"][slow].tolist()]
        yield {
            "type": "scatter",
            "mode": "markers",
            "name": "longer than usual",
            "x": bars["step"][slow],
            "y": self.scale(1.03 * bars["duration_ns"][slow]),
            "marker": {"symbol": "triangle-down", "size": 9, "color": "var(--fg)"},
            "customdata": longer,
            "hovertemplate": f"{self.word} %{{x}}: longer by %{{customdata}}<extra></extra>",
            "meta": {"links": [links[place] for place in slow.tolist()]},
        }

    def _throughput(self, bars: Table) -> Iterator[Trace]:
        rates = bars.get("samples_per_s")
        if rates is None or not np.isfinite(rates).any():
            return
        yield {
            "type": "scatter",
            "mode": "lines",
            "name": "samples/s of a process",
            "x": bars["step"],
            "y": rates,
            "yaxis": "y2",
            "line": {"color": "var(--fg)", "width": 1.5},
            "hovertemplate": f"{self.word} %{{x}}: %{{y:,.1f}} samples/s<extra></extra>",
        }


def _second_axis(is_needed: bool) -> dict[str, Any]:
    if not is_needed:
        return {}
    own = {"overlaying": "y", "side": "right", "showgrid": False, "rangemode": "tozero"}
    return {"yaxis2": {"title": {"text": "samples/s"}, **own}}


def _choice(names: Sequence[str], sizes: Sequence[int]) -> dict[str, Any]:
    """Return a menu that shows the traces of one name; nothing where there is but one."""
    if len(names) < 2:
        return {}
    ends = np.cumsum(sizes).tolist()
    buttons = [
        {
            "label": plotly_text(name, 40),
            "method": "restyle",
            "args": ["visible", [end - size <= i < end for i in range(ends[-1])]],
        }
        for name, size, end in zip(names, sizes, ends, strict=True)
    ]
    place = {"x": 1, "xanchor": "right", "y": 1.02, "yanchor": "bottom"}
    look = {"bgcolor": "var(--card)", "bordercolor": "var(--muted)", "font": {"size": 11}}
    return {"updatemenus": [{"buttons": buttons, "active": 0, **place, **look}]}
