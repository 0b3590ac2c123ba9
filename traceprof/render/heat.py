"""The heat map of a run, rank by step: few enough cells for any run, and as SVG of the report."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traceprof.model.grouping import rows_by_value, split_by
from traceprof.model.results import Result
from traceprof.model.table import Table
from traceprof.render.charts.svg import drawing, text, theme_style
from traceprof.render.escape import html_text, plain_text
from traceprof.render.palette import HEAT
from traceprof.units import format_duration, format_ratio

_Ratios = npt.NDArray[np.float64]
_Places = npt.NDArray[np.int64]

_LEAST: Final = np.array([level.least for level in HEAT[1:]])
_LEAST_SHOWN: Final = 0.0005
_MOST_SHOWN: Final = 99
_SUMS: Final = ("own_ns", "usual_ns", "duration_ns", "waited_ns", "late_ns")


@dataclass(frozen=True, slots=True, eq=False)
class HeatLines:
    """Which ranks share a line: ``line_of`` by process, and the label and host of each line."""

    ranks: Table
    line_of: _Places
    labels: Sequence[str]
    hosts: Sequence[str]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, slots=True)
class HeatRow:
    """One line of the map: what it is called, its host, how much more it takes in all steps.

    ``slowest`` is the rank that takes the longest, where several share the line ("" otherwise).
    """

    label: str
    host: str
    slower_ratio: float
    slowest: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class HeatMap:
    """Own time of ranks in steps, as a share beyond the median of the ranks.

    ``ratios`` has a line per row and a column per ``steps`` (first and last number); NaN where no
    step is known. Where several ranks share a line it shows the slowest of them in each cell;
    several steps in a column are averaged. ``words`` says of each cell what it is, ``worst`` is its
    slowest step, as process and step; None where there is none.
    """

    rows: tuple[HeatRow, ...]
    steps: tuple[tuple[int, int], ...]
    ratios: _Ratios
    words: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]
    worst: tuple[tuple[tuple[int, int] | None, ...], ...]

    @property
    def levels(self) -> _Places:
        """The place in `HEAT` of each cell, -1 where no step is known."""
        levels = np.searchsorted(_LEAST, self.ratios, side="right")
        return np.where(np.isnan(self.ratios), -1, levels)

    @property
    def slowest(self) -> HeatRow:
        """The line that takes the longest beyond the median."""
        return max(self.rows, key=lambda row: row.slower_ratio)


def find_lines(table: Table, most: int) -> HeatLines | None:
    """Return the lines of the map of ``table`` (that of `RankSteps`); None for a single rank.

    More ranks than ``most`` share lines by host, or else with their neighbours.
    """
    ranks = _ranks(table)
    if len(ranks) < 2:
        return None
    return HeatLines(ranks, *_lines(ranks, most))


def make_heat_map(table: Table, lines: HeatLines, most_columns: int) -> HeatMap:
    """Return the map of ``table``; more steps than ``most_columns`` share columns.

    ``notes`` say what is shared.
    """
    columns, steps, per_column = _columns(table, most_columns)
    place = {process: place for place, process in enumerate(lines.ranks["process"].tolist())}
    rank = np.array([place[process] for process in table["process"].tolist()], np.int64)
    cells = _Cells(table, rank, columns, (len(lines.ranks), len(steps)))
    chosen = _slowest_of_lines(cells.ratios, lines.line_of)
    whole = cells.over_all()
    names = lines.ranks["label"].tolist()
    slowest = _slowest_of_lines(whole[:, None], lines.line_of)[:, 0]
    sharing = np.bincount(lines.line_of)
    rows = tuple(
        HeatRow(label, host, float(whole[rank]), names[rank] if n > 1 else "")
        for label, host, rank, n in zip(lines.labels, lines.hosts, slowest, sharing, strict=True)
    )
    words = tuple(
        tuple(cells.describe(names, int(rank), column) for column, rank in enumerate(line))
        for line in chosen
    )
    ratios = np.take_along_axis(cells.ratios, np.maximum(chosen, 0), axis=0)
    ratios[chosen < 0] = np.nan
    shared = {
        f"each row shows the slowest of up to {sharing.max()} ranks": sharing.max(),
        f"each column is the mean of up to {per_column} steps": per_column,
    }
    worst = tuple(
        tuple(cells.worst(int(rank), column) for column, rank in enumerate(line)) for line in chosen
    )
    notes = tuple(note for note, n in shared.items() if n > 1)
    return HeatMap(rows, steps, ratios, words, notes, worst)


def format_more(ratio: float) -> str:
    """Return a share beyond the usual with its sign, or from twice on how many times it is."""
    if ratio >= 1:
        return f"{ratio + 1:.1f}×" if ratio < _MOST_SHOWN else f"> {_MOST_SHOWN}×"
    if abs(ratio) < _LEAST_SHOWN:
        return format_ratio(0.0)
    return f"{'+' if ratio > 0 else ''}{format_ratio(ratio)}"


def _ranks(table: Table) -> Table:
    """Return process, label and host of the ranks in their places, those of a host together."""
    rows = [
        {
            "process": process,
            "host": str(process_rows["host"][0]),
            "number": process_rows["rank"].astype(float)[0],
        }
        for process, process_rows in split_by(table, "process")
    ]
    first: dict[str, float] = {}
    for row in rows:
        row["label"] = _label_of(row)
        known = [n for n in (first.get(row["host"]), row["number"]) if n is not None and n == n]
        first[row["host"]] = min(known, default=math.nan)
    ranks = Table.of_rows(rows, ("process", "host", "number", "label"))
    firsts = np.array([first[host] for host in ranks["host"]])
    return ranks.assign(first=firsts).in_order("first", "host", "number", "process")


def _label_of(row: Mapping[str, Any]) -> str:
    known = row["number"] == row["number"]
    return f"rank {row['number']:.0f}" if known else f"process {row['process']}"


def _lines(ranks: Table, most: int) -> tuple[_Places, list[str], list[str]]:
    """Return the line of each rank, and label and host of each line."""
    labels, hosts = ranks["label"].tolist(), ranks["host"].tolist()
    if len(ranks) <= most:
        return np.arange(len(ranks)), labels, hosts
    n_hosts = len(set(hosts))
    if 1 < n_hosts <= most and "" not in hosts:
        names = list(dict.fromkeys(hosts))
        lines = np.array([names.index(host) for host in hosts])
        return lines, [f"{count} ranks" for count in np.bincount(lines)], names
    lines = np.arange(len(ranks)) // int(np.ceil(len(ranks) / most))
    ends = [np.flatnonzero(lines == line)[[0, -1]] for line in range(lines[-1] + 1)]
    shared = [labels[a] if a == b else f"{labels[a]}–{labels[b].split()[-1]}" for a, b in ends]
    return lines, shared, [hosts[a] if hosts[a] == hosts[b] else "" for a, b in ends]


def _columns(table: Table, most: int) -> tuple[_Places, tuple[tuple[int, int], ...], int]:
    """Return the column of each row, first and last step of each column, and steps per column."""
    numbers, place = np.unique(table["step"], return_inverse=True)
    per_column = int(np.ceil(len(numbers) / max(1, most)))
    firsts = range(0, len(numbers), per_column)
    steps = tuple(
        (int(numbers[i]), int(numbers[min(i + per_column, len(numbers)) - 1])) for i in firsts
    )
    return place // per_column, steps, per_column


def _slowest_of_lines(ratios: _Ratios, lines: _Places) -> _Places:
    """Return, by line and column, the rank that takes the longest; -1 where none has the step."""
    filled = np.where(np.isnan(ratios), -np.inf, ratios)
    slowest = [
        ranks[filled[ranks].argmax(axis=0)]
        for ranks in (np.flatnonzero(lines == line) for line in range(int(lines.max()) + 1))
    ]
    chosen = np.stack(slowest)
    is_known = np.take_along_axis(filled, chosen, axis=0) > -np.inf
    return np.where(is_known, chosen, -1)


class _Cells:
    """What the steps of each rank in each column add up to; ``ratios`` by rank and column."""

    def __init__(
        self, table: Table, rank: _Places, column: _Places, shape: tuple[int, int]
    ) -> None:
        self_ns = table["own_ns"].astype(np.float64)
        usual = np.empty(len(table))
        for rows in rows_by_value(table["step"]).values():
            usual[rows] = np.median(self_ns[rows])
        place = rank * shape[1] + column
        values = table.assign(usual_ns=usual)
        size = shape[0] * shape[1]
        self._shape = shape
        self._counts = np.bincount(place, minlength=size).reshape(shape)
        self._sums = {
            name: np.bincount(place, values[name], size).reshape(shape).astype(np.float64)
            for name in _SUMS
        }
        # Of equal places the last one stays: the slowest step of each cell.
        order = np.argsort(self_ns - usual, kind="stable")
        worst = np.full(size, -1, np.int64)
        worst[place[order]] = order
        self._worst = worst.reshape(shape)
        self.ratios = _share(self._sums["own_ns"], self._sums["usual_ns"], self._counts)
        self._steps = table["step"]
        self._processes = table["process"]
        self._phases = np.asarray(table["phase"])

    def worst(self, rank: int, column: int) -> tuple[int, int] | None:
        """Return process and step of the slowest step of a cell; None for one without a step."""
        row = -1 if rank < 0 else int(self._worst[rank, column])
        return None if row < 0 else (int(self._processes[row]), int(self._steps[row]))

    def over_all(self) -> _Ratios:
        """By rank, over all its steps."""
        self_ns, usual = (self._sums[name].sum(axis=1) for name in ("own_ns", "usual_ns"))
        return _share(self_ns, usual, self._counts.sum(axis=1))

    def describe(self, names: Sequence[str], rank: int, column: int) -> str:
        """Return a cell in words; "" for one without a step."""
        if rank < 0:
            return ""
        count = self._counts[rank, column]
        mean = {
            name: format_duration(sums[rank, column] / count) for name, sums in self._sums.items()
        }
        more = format_more(self.ratios[rank, column])
        worst = self._worst[rank, column]
        several = f"mean of {count} steps, slowest step {self._steps[worst]}" if count > 1 else ""
        phase = str(self._phases[worst])
        parts = (
            f"{names[rank]}, step {self._steps[worst]}" if count == 1 else names[rank],
            several,
            f"self time {mean['own_ns']} ({more})",
            f"duration {mean['duration_ns']}",
            f"waited for other ranks {mean['waited_ns']}",
            f"delayed other ranks {mean['late_ns']}",
            f"longest phase {phase}" if phase else "",
        )
        return "; ".join(filter(None, parts))


def _share(self_ns: _Ratios, usual: _Ratios, counts: npt.NDArray[np.int64]) -> _Ratios:
    """Return how much more than usual; infinite where it is usual to do nothing but wait."""
    without_usual = np.where(self_ns > 0, np.inf, 0.0)
    ratios = np.where(usual > 0, self_ns / np.where(usual > 0, usual, 1) - 1, without_usual)
    return np.where(counts > 0, ratios, np.nan)


_MOST_ROWS: Final = 64
_MOST_COLUMNS: Final = 120
_MOST_CELLS: Final = 4096
_WIDTH: Final = 960
_RIGHT: Final = 62
_HOST_WIDTH: Final = 110
_LABEL_WIDTH: Final = 84
_WIDEST_CELL: Final = 40.0
_LEAST_GAPPED: Final = 5
_GAP: Final = 5
_BOTTOM: Final = 22
_LABELS: Final = 12
_HOST_LETTERS: Final = 15


def heat_style() -> str:
    """Return the colours of the levels as variables and classes of the page, light and dark."""

    def variables(theme: str) -> str:
        return "".join(f"--heat{i}:{getattr(level, theme)};" for i, level in enumerate(HEAT))

    classes = "".join(
        f".heat{i}{{fill:var(--heat{i});background:var(--heat{i})}}" for i in range(len(HEAT))
    )
    return theme_style(variables, is_light_on_paper=True) + classes


def heat_chart(result: Result, link: Callable[[int, int], str] = lambda _process, _step: "") -> str:
    """Return the own time of each rank in each step as colours; "" for a single rank.

    ``link`` gives the address of a step of a process; "" where the page does not show it.
    """
    lines = find_lines(result.table, _MOST_ROWS)
    if lines is None:
        return ""
    most_columns = min(_MOST_COLUMNS, _MOST_CELLS // len(lines))
    heat = make_heat_map(result.table, lines, most_columns)
    layout = _Layout(heat)
    slowest = heat.slowest
    words = f"{slowest.host} {slowest.label}".strip()
    label = (
        f"Self time by rank and step, compared with the median rank. Slowest: {words}, "
        f"{format_more(slowest.slower_ratio)}"
    )
    notes = "".join(f" {note[0].upper()}{note[1:]}." for note in heat.notes)
    parts = (_cells_svg(heat, layout, link), _row_names(heat, layout), _step_names(heat, layout))
    return (
        f"{_legend()}"
        '<div class="scroll" tabindex="0" role="region" aria-label="Heat map">'
        f"{drawing((_WIDTH, layout.height), 'chart heat', label, *parts)}</div>"
        '<p class="note">Self time (without waiting for other ranks) of each rank and step, '
        "compared with the median rank of the step. The right column combines all steps."
        f"{notes} Slowest: <b>{html_text(words)}</b> ({format_more(slowest.slower_ratio)}).</p>"
    )


class _Layout:
    """Where the lines and columns of the map are, in pixels."""

    def __init__(self, heat: HeatMap) -> None:
        hosts = [row.host for row in heat.rows]
        self.has_hosts = len(set(hosts)) > 1
        self.left = _LABEL_WIDTH + (_HOST_WIDTH if self.has_hosts else 0)
        cell = min(_WIDEST_CELL, (_WIDTH - self.left - _RIGHT) / len(heat.steps))
        self.cell = float(int(cell)) if cell > _LEAST_GAPPED else cell
        self.line = 18 if len(hosts) <= 16 else 14 if len(hosts) <= 32 else 11
        self.is_first = [i == 0 or host != hosts[i - 1] for i, host in enumerate(hosts)]
        one_each = all(self.is_first)
        top, tops = 0, []
        for i, is_first in enumerate(self.is_first):
            top += _GAP if i and is_first and not one_each else 0
            tops.append(top)
            top += self.line
        self.tops = tops
        self.height = top + _BOTTOM

    def x(self, column: int) -> float:
        return self.left + column * self.cell


def _cells_svg(heat: HeatMap, layout: _Layout, link: Callable[[int, int], str]) -> str:
    levels = heat.levels
    return "".join(
        f'<g class="heat{level}">{"".join(_cells_of(heat, layout, link, levels == level))}</g>'
        for level in range(len(HEAT))
        if (levels == level).any()
    )


def _cells_of(
    heat: HeatMap, layout: _Layout, link: Callable[[int, int], str], chosen: object
) -> Iterator[str]:
    gap = 1 if layout.cell > _LEAST_GAPPED else 0
    size = f'width="{layout.cell - gap:.2f}" height="{layout.line - 1}"'
    for row, column in zip(*chosen.nonzero(), strict=True):  # type: ignore[attr-defined]
        worst = heat.worst[row][column]
        address = worst and link(*worst)
        to = f' data-to="{html_text(address)}"' if address else ""
        yield (
            f'<rect x="{layout.x(column):.2f}" y="{layout.tops[row]}" {size}{to}>'
            f"<title>{html_text(heat.words[row][column])}</title></rect>"
        )


def _row_names(heat: HeatMap, layout: _Layout) -> str:
    right = layout.x(len(heat.steps)) + 6
    parts = []
    for row, top, is_first in zip(heat.rows, layout.tops, layout.is_first, strict=True):
        y = top + layout.line / 2 + 4
        if layout.has_hosts and is_first:
            parts.append(text(0, y, plain_text(row.host or "unknown host", _HOST_LETTERS)))
        parts.append(text(layout.left - 6, y, row.label, "end"))
        parts.append(text(right, y, format_more(row.slower_ratio)))
    return "".join(parts)


def _step_names(heat: HeatMap, layout: _Layout) -> str:
    every = max(1, -(-len(heat.steps) // _LABELS))
    return "".join(
        text(layout.x(column) + layout.cell / 2, layout.height - 6, first, "middle")
        for column, (first, _) in enumerate(heat.steps)
        if column % every == 0
    )


def _legend() -> str:
    items = "".join(
        f'<li><i class="heat{i}"></i>{html_text(level.label)}</li>' for i, level in enumerate(HEAT)
    )
    return f'<ul class="legend">{items}</ul>'
