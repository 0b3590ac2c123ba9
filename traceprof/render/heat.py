"""Compute the heat map of a run (ranks by steps) with bounded size, and draw it as SVG.

The self time of a rank in a step is the step's duration without waiting for other ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from traceprof.model.grouping import rows_by_value, split_by
from traceprof.model.results import Result
from traceprof.model.table import Table
from traceprof.render.charts.svg import drawing, text, theme_style
from traceprof.render.escape import html_text, plain_text
from traceprof.render.formatting import capitalized, process_label
from traceprof.render.palette import HEAT
from traceprof.units import format_duration, format_ratio

_Ratios = npt.NDArray[np.float64]
_Places = npt.NDArray[np.int64]

_LEVEL_BOUNDS: Final = np.array([level.least for level in HEAT[1:]])
_MIN_SHOWN_RATIO: Final = 0.0005
_MAX_SHOWN_FACTOR: Final = 99
_SUMMED: Final = ("step_without_waits_ns", "usual_ns", "duration_ns", "waited_ns", "late_ns")


@dataclass(frozen=True, slots=True, eq=False)
class HeatLines:
    """The lines of a heat map, which several ranks may share.

    ``line_of`` is the line of each row of ``ranks``. ``labels`` and ``hosts`` are those of lines.
    """

    ranks: Table
    line_of: _Places
    labels: Sequence[str]
    hosts: Sequence[str]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, slots=True)
class HeatRow:
    """One line of the map: its label, its host, and its excess over the median rank in all steps.

    ``slowest`` is the label of the slowest rank if several ranks share the line, otherwise "".
    """

    label: str
    host: str
    slower_ratio: float
    slowest: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class HeatMap:
    """Self time of ranks in steps, as excess over the median of the ranks: 0.1 is 10% more.

    A line shows the slowest of its ranks in each cell. A column shows the mean of its steps.

    Attributes:
        rows: the lines of the map.
        steps: first and last step number of each column.
        ratios: the excess by line and column; NaN if no step is known.
        words: a description of each cell; "" if no step is known.
        notes: sentences about shared lines and columns.
        worst: process and number of the slowest step in each cell; None if no step is known.
    """

    rows: tuple[HeatRow, ...]
    steps: tuple[tuple[int, int], ...]
    ratios: _Ratios
    words: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]
    worst: tuple[tuple[tuple[int, int] | None, ...], ...]

    @property
    def levels(self) -> _Places:
        """The index in `HEAT` of each cell; -1 if no step is known."""
        levels = np.searchsorted(_LEVEL_BOUNDS, self.ratios, side="right")
        return np.where(np.isnan(self.ratios), -1, levels)

    @property
    def slowest(self) -> HeatRow:
        """The line with the largest excess over the median rank."""
        return max(self.rows, key=lambda row: row.slower_ratio)


def find_lines(table: Table, most: int) -> HeatLines | None:
    """Return the lines of the map of a table "rank-steps"; None for a single rank.

    More than ``most`` ranks share lines: those of a host, or neighboring ranks if that is too many.
    """
    ranks = _ranks(table)
    if len(ranks) < 2:
        return None
    return HeatLines(ranks, *_lines(ranks, most))


def make_heat_map(table: Table, lines: HeatLines, most_columns: int) -> HeatMap:
    """Return the map of a table "rank-steps"; more than ``most_columns`` steps share columns."""
    columns, steps, per_column = _columns(table, most_columns)
    index_of = {process: i for i, process in enumerate(lines.ranks["process"].tolist())}
    ranks = np.array([index_of[process] for process in table["process"].tolist()], np.int64)
    cells = _Cells(table, ranks, columns, (len(lines.ranks), len(steps)))
    chosen = _slowest_ranks(cells.ratios, lines.line_of)
    totals = cells.over_all_steps()
    names = lines.ranks["label"].tolist()
    slowest = _slowest_ranks(totals[:, None], lines.line_of)[:, 0]
    sharing = np.bincount(lines.line_of)
    rows = tuple(
        HeatRow(label, host, float(totals[rank]), names[rank] if n > 1 else "")
        for label, host, rank, n in zip(lines.labels, lines.hosts, slowest, sharing, strict=True)
    )
    words = tuple(
        tuple(cells.describe(names, int(rank), column) for column, rank in enumerate(line))
        for line in chosen
    )
    ratios = np.take_along_axis(cells.ratios, np.maximum(chosen, 0), axis=0)
    ratios[chosen < 0] = np.nan
    worst = tuple(
        tuple(cells.worst(int(rank), column) for column, rank in enumerate(line)) for line in chosen
    )
    sizes = {
        f"each row shows the slowest of up to {sharing.max()} ranks": sharing.max(),
        f"each column is the mean of up to {per_column} steps": per_column,
    }
    notes = tuple(note for note, n in sizes.items() if n > 1)
    return HeatMap(rows, steps, ratios, words, notes, worst)


def format_excess(ratio: float) -> str:
    """Return an excess as a signed percentage; from 100% on as a factor: 1.0 is "2.0×"."""
    if ratio >= 1:
        return f"{ratio + 1:.1f}×" if ratio < _MAX_SHOWN_FACTOR else f"> {_MAX_SHOWN_FACTOR}×"
    if abs(ratio) < _MIN_SHOWN_RATIO:
        return format_ratio(0.0)
    return f"{'+' if ratio > 0 else ''}{format_ratio(ratio)}"


def _ranks(table: Table) -> Table:
    """Return process, label, and host of the ranks, in order of rank and grouped by host."""
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
        row["label"] = process_label(row["process"], row["number"])
        numbers = [n for n in (first.get(row["host"]), row["number"]) if n is not None and n == n]
        first[row["host"]] = min(numbers, default=math.nan)
    ranks = Table.of_rows(rows, ("process", "host", "number", "label"))
    firsts = np.array([first[host] for host in ranks["host"]])
    return ranks.assign(first=firsts).in_order("first", "host", "number", "process")


def _lines(ranks: Table, most: int) -> tuple[_Places, list[str], list[str]]:
    """Return the line of each rank, and the label and host of each line, ``most`` lines at most."""
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
    numbers, indices = np.unique(table["step"], return_inverse=True)
    per_column = int(np.ceil(len(numbers) / max(1, most)))
    firsts = range(0, len(numbers), per_column)
    steps = tuple(
        (int(numbers[i]), int(numbers[min(i + per_column, len(numbers)) - 1])) for i in firsts
    )
    return indices // per_column, steps, per_column


def _slowest_ranks(ratios: _Ratios, lines: _Places) -> _Places:
    """Return the slowest rank by line and column; -1 if no rank of the line has a known step.

    ``ratios`` are by rank and column, ``lines`` is the line of each rank.
    """
    filled = np.where(np.isnan(ratios), -np.inf, ratios)
    slowest = [
        ranks[filled[ranks].argmax(axis=0)]
        for ranks in (np.flatnonzero(lines == line) for line in range(int(lines.max()) + 1))
    ]
    chosen = np.stack(slowest)
    is_known = np.take_along_axis(filled, chosen, axis=0) > -np.inf
    return np.where(is_known, chosen, -1)


class _Cells:
    """The sums of the steps of each rank in each column, and their excess, ``ratios``.

    Arrays are by rank and column. ``rank`` and ``column`` give the cell of each row of ``table``.
    """

    def __init__(
        self, table: Table, rank: _Places, column: _Places, shape: tuple[int, int]
    ) -> None:
        self_ns = table["step_without_waits_ns"].astype(np.float64)
        usual = np.empty(len(table))
        for rows in rows_by_value(table["step"]).values():
            usual[rows] = np.median(self_ns[rows])
        cell = rank * shape[1] + column
        values = table.assign(usual_ns=usual)
        size = shape[0] * shape[1]
        self._counts = np.bincount(cell, minlength=size).reshape(shape)
        self._sums = {
            name: np.bincount(cell, values[name], size).reshape(shape).astype(np.float64)
            for name in _SUMMED
        }
        # The last assignment to a cell wins: that of its slowest step.
        order = np.argsort(self_ns - usual, kind="stable")
        worst = np.full(size, -1, np.int64)
        worst[cell[order]] = order
        self._worst = worst.reshape(shape)
        self.ratios = _excess(
            self._sums["step_without_waits_ns"], self._sums["usual_ns"], self._counts
        )
        self._steps = table["step"]
        self._processes = table["process"]
        self._phases = np.asarray(table["phase"])

    def worst(self, rank: int, column: int) -> tuple[int, int] | None:
        """Return process and number of the slowest step in a cell; None if it has no step."""
        row = -1 if rank < 0 else int(self._worst[rank, column])
        return None if row < 0 else (int(self._processes[row]), int(self._steps[row]))

    def over_all_steps(self) -> _Ratios:
        """Return the excess of each rank in all its steps together."""
        self_ns, usual = (
            self._sums[name].sum(axis=1) for name in ("step_without_waits_ns", "usual_ns")
        )
        return _excess(self_ns, usual, self._counts.sum(axis=1))

    def describe(self, names: Sequence[str], rank: int, column: int) -> str:
        """Return a description of a cell; "" if it has no step. ``names`` are those of ranks."""
        if rank < 0:
            return ""
        count = self._counts[rank, column]
        mean = {
            name: format_duration(sums[rank, column] / count) for name, sums in self._sums.items()
        }
        more = format_excess(self.ratios[rank, column])
        worst = self._worst[rank, column]
        phase = str(self._phases[worst])
        parts = (
            f"{names[rank]}, step {self._steps[worst]}" if count == 1 else names[rank],
            f"mean of {count} steps, slowest step {self._steps[worst]}" if count > 1 else "",
            f"self time {mean['step_without_waits_ns']} ({more})",
            f"duration {mean['duration_ns']}",
            f"waited for other ranks {mean['waited_ns']}",
            f"delayed other ranks {mean['late_ns']}",
            f"longest phase {phase}" if phase else "",
        )
        return "; ".join(filter(None, parts))


def _excess(self_ns: _Ratios, usual_ns: _Ratios, counts: npt.NDArray[np.int64]) -> _Ratios:
    """Return the excess of self time over the usual self time; NaN without steps.

    It is infinite if ranks usually have no self time in these steps, because they only wait.
    """
    without_usual = np.where(self_ns > 0, np.inf, 0.0)
    ratios = self_ns / np.where(usual_ns > 0, usual_ns, 1) - 1
    return np.where(counts > 0, np.where(usual_ns > 0, ratios, without_usual), np.nan)


_MAX_LINES: Final = 64
_MAX_COLUMNS: Final = 120
_MAX_CELLS: Final = 4096
_WIDTH: Final = 960
_RIGHT: Final = 62
_HOST_WIDTH: Final = 110
_LABEL_WIDTH: Final = 84
_MAX_CELL_WIDTH: Final = 40.0
_MIN_SEPARATED_WIDTH: Final = 5
"""Cells wider than this have a whole number of pixels and a gap between them."""
_HOST_GAP: Final = 5
_BOTTOM: Final = 22
_MAX_STEP_LABELS: Final = 12
_MAX_HOST_LETTERS: Final = 15


def heat_style() -> str:
    """Return CSS variables and classes for the colors of the levels, in both themes."""

    def variables(theme: str) -> str:
        return "".join(f"--heat{i}:{getattr(level, theme)};" for i, level in enumerate(HEAT))

    classes = "".join(
        f".heat{i}{{fill:var(--heat{i});background:var(--heat{i})}}" for i in range(len(HEAT))
    )
    return theme_style(variables, is_light_on_paper=True) + classes


def heat_chart(result: Result, link: Callable[[int, int], str] = lambda _process, _step: "") -> str:
    """Return the heat map of a result "rank-steps" as HTML and SVG; "" for a single rank.

    ``link`` gives the address of a step from its process and number; "" for no link.
    """
    lines = find_lines(result.table, _MAX_LINES)
    if lines is None:
        return ""
    heat = make_heat_map(result.table, lines, min(_MAX_COLUMNS, _MAX_CELLS // len(lines)))
    layout = _Layout(heat)
    slowest = heat.slowest
    name = f"{slowest.host} {slowest.label}".strip()
    label = (
        f"Self time by rank and step, compared with the median rank. Slowest: {name}, "
        f"{format_excess(slowest.slower_ratio)}"
    )
    notes = "".join(f" {capitalized(note)}." for note in heat.notes)
    parts = (_cells_svg(heat, layout, link), _row_names(heat, layout), _step_names(heat, layout))
    return (
        f"{_legend()}"
        '<div class="scroll" tabindex="0" role="region" aria-label="Heat map">'
        f"{drawing((_WIDTH, layout.height), 'chart heat', label, *parts)}</div>"
        '<p class="note">Self time (without waiting for other ranks) of each rank and step, '
        "compared with the median rank of the step. The right column combines all steps."
        f"{notes} Slowest: <b>{html_text(name)}</b> ({format_excess(slowest.slower_ratio)}).</p>"
    )


class _Layout:
    """The positions of the lines and columns of the map, in pixels."""

    def __init__(self, heat: HeatMap) -> None:
        hosts = [row.host for row in heat.rows]
        self.has_hosts = len(set(hosts)) > 1
        self.left = _LABEL_WIDTH + (_HOST_WIDTH if self.has_hosts else 0)
        cell = min(_MAX_CELL_WIDTH, (_WIDTH - self.left - _RIGHT) / len(heat.steps))
        self.cell = float(int(cell)) if cell > _MIN_SEPARATED_WIDTH else cell
        self.line = 18 if len(hosts) <= 16 else 14 if len(hosts) <= 32 else 11
        self.is_first = [i == 0 or host != hosts[i - 1] for i, host in enumerate(hosts)]
        gap = 0 if all(self.is_first) else _HOST_GAP
        self.tops: list[int] = []
        top = 0
        for i, is_first in enumerate(self.is_first):
            top += gap if i and is_first else 0
            self.tops.append(top)
            top += self.line
        self.height = top + _BOTTOM

    def x(self, column: int) -> float:
        return self.left + column * self.cell


def _cells_svg(heat: HeatMap, layout: _Layout, link: Callable[[int, int], str]) -> str:
    """Return the cells of the map, grouped by level."""
    levels = heat.levels
    cells = {level: np.argwhere(levels == level).tolist() for level in range(len(HEAT))}
    return "".join(
        f'<g class="heat{level}">{"".join(_cells_of(heat, layout, link, places))}</g>'
        for level, places in cells.items()
        if places
    )


def _cells_of(
    heat: HeatMap,
    layout: _Layout,
    link: Callable[[int, int], str],
    places: Sequence[Sequence[int]],
) -> Iterator[str]:
    """Yield the cells at ``places`` (line and column), each with a description and a link."""
    gap = 1 if layout.cell > _MIN_SEPARATED_WIDTH else 0
    size = f'width="{layout.cell - gap:.2f}" height="{layout.line - 1}"'
    for row, column in places:
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
            parts.append(text(0, y, plain_text(row.host or "unknown host", _MAX_HOST_LETTERS)))
        parts.append(text(layout.left - 6, y, row.label, "end"))
        parts.append(text(right, y, format_excess(row.slower_ratio)))
    return "".join(parts)


def _step_names(heat: HeatMap, layout: _Layout) -> str:
    every = max(1, -(-len(heat.steps) // _MAX_STEP_LABELS))
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
