"""The difference of two windows, or runs, in a terminal: parts, and what makes each up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from traceprof.model.activity import IDLE
from traceprof.model.results import Result
from traceprof.render.escape import plain_text
from traceprof.render.formatting import is_known
from traceprof.render.palette import PART_STYLES
from traceprof.render.shown import Row, rows_of
from traceprof.render.wording import signed_duration
from traceprof.units import format_duration, format_number
from traceprof.values import dataclass

__all__ = ["difference_view", "waterfall_view"]

_BAR_WIDTH: Final = 10
_TIME_WIDTH: Final = 10
_LEAST_SHARE: Final = 0.02
"""What is less of the largest difference has no line of its own."""

_PARTS: Final = {part.key: part.label for part in PART_STYLES}
_BARE: Final = ("kernel", "copy", "collective")
"""Kinds that their names tell."""

_UNCOUNTED: Final = ("waiting", "rest")


@dataclass(frozen=True, slots=True)
class _Sides:
    """What the two are called in columns, in the order in which they stand; ``new`` is told of."""

    first: str
    second: str
    new: str
    base: str


_OF_WINDOWS: Final = _Sides("own", "against", "own", "against")
_OF_RUNS: Final = _Sides("base", "new", "new", "base")


def difference_view(result: Result, rows: int, width: int) -> RenderableType:
    """Return the parts of the difference of two runs, each with its largest ``rows`` causes."""
    return Group(*_waterfall(result, rows, width, _OF_RUNS))


def waterfall_view(result: Result, rows: int, width: int) -> RenderableType:
    """Return the parts of the difference, each with its largest ``rows`` causes and the rest."""
    return Group(_headline(result), *_waterfall(result, rows, width, _OF_WINDOWS))


def _waterfall(result: Result, rows: int, width: int, sides: _Sides) -> Iterator[Text]:
    parts = sorted(rows_of(result.to_frame("parts")), key=lambda row: -abs(row["difference_ns"]))
    causes = rows_of(result.to_frame("causes"))
    phases = rows_of(result.to_frame("phases")) if "phases" in result.tables else []
    told = (*parts, *causes) or phases
    scale = max((abs(row["difference_ns"]) for row in told), default=0)
    lines = _Lines(width, scale, sides)
    scalars = result.scalars
    names = [str(scalars[name]) for name in (sides.first, sides.second)]
    yield lines.head(*(names if sides is _OF_WINDOWS else ("base", "new")))
    for part in parts:
        if not part[f"{sides.new}_ns"] and not part[f"{sides.base}_ns"]:
            continue
        yield lines.line(_PARTS[part["part"]], part, style="bold")
        yield from _below([row for row in causes if row["part"] == part["part"]], rows, lines)
    if parts:
        yield lines.line("length", scalars, style="bold")
    yield from _hosts(result, lines, rows)


def _headline(result: Result) -> Text:
    own, against, ns = (result.scalars[name] for name in ("own", "against", "difference_ns"))
    by = f"{format_duration(abs(ns))} {'longer' if ns > 0 else 'shorter'} than"
    text = f"{own} is {by if ns else 'as long as'} {against}"
    n_devices = result.scalars["devices_count"]
    return Text(text + (f", mean of {n_devices} devices" if n_devices > 1 else "") + "\n")


def _below(causes: Sequence[Row], rows: int, lines: _Lines) -> Iterator[Text]:
    """Yield the causes that are worth a line, and the others together: they add up to the part."""
    worth = [row for row in causes if abs(row["difference_ns"]) >= _LEAST_SHARE * lines.scale > 0]
    told = worth[:rows]
    for row in told:
        yield lines.line(f"  {_named(row)}", row, suffix=_counted(row, lines.sides))
    others = causes[len(told) :]
    if not told or not others:
        return
    yield lines.line(f"  rest: {len(others)} more", lines.sums(others), style="dim")


def _named(row: Row) -> str:
    name, kind = plain_text(row["name"]).removeprefix("void "), row["kind"]
    if kind in _BARE:
        return name
    if kind == "waiting":
        return f"waiting for {name}" if not name.startswith("(") else f"waiting for {name[1:-1]}"
    if kind == "rest":
        return "not known"
    return f"{kind}: {name}" if name else str(kind)


def _counted(row: Row, sides: _Sides) -> str:
    """Return how many there were, on which device most of the difference is, what became of it."""
    device = row.get("device")
    where = f" (GPU {int(device)})" if device is not None and is_known(device) else ""
    if row.get("state") in ("new", "gone", "renamed"):
        where += f" ({row['state']})"
    if row["part"] == IDLE or row["kind"] in _UNCOUNTED:
        return where
    own, against = (format_number(row[f"{name}_count"]) for name in (sides.new, sides.base))
    return (f" ×{own}" if own == against else f" ×{own}, not {against}") + where


def _hosts(result: Result, lines: _Lines, rows: int) -> Iterator[Text]:
    phases = rows_of(result.tables["phases"]) if "phases" in result.tables else []
    if not phases:
        return
    what = ", from the start of the step to that of the next" if lines.is_of_windows else ""
    yield Text(f"\nthe host{what}", style="dim")
    for row in phases[:rows]:
        yield lines.line(f"  {plain_text(row['phase']).strip('()')}", row)
    others = phases[rows:]
    if others:
        yield lines.line(f"  rest: {len(others)} more", lines.sums(others), style="dim")


class _Lines:
    """Lines of one width: a name, the two times, their difference, and that as a bar."""

    def __init__(self, width: int, scale: int, sides: _Sides) -> None:
        self.scale = scale
        self.sides = sides
        self._name_width = width - 3 * (_TIME_WIDTH + 1) - _BAR_WIDTH - 1

    @property
    def is_of_windows(self) -> bool:
        """Whether they are of two windows of one run."""
        return self.sides is _OF_WINDOWS

    def sums(self, rows: Sequence[Row]) -> Row:
        """Return the times of several rows together."""
        names = (f"{self.sides.first}_ns", f"{self.sides.second}_ns", "difference_ns")
        return {name: sum(row[name] for row in rows) for name in names}

    def head(self, own: str, against: str) -> Text:
        """Return the headings."""
        # "turn 9 of the pattern" is written out in the headline.
        short = [title.partition(" of ")[0] for title in (own, against)]
        titles = [_cut(title, _TIME_WIDTH).rjust(_TIME_WIDTH) for title in short]
        return Text(" ".join([" " * self._name_width, *titles, "difference"]), style="dim")

    def line(self, name: str, row: Row, *, suffix: str = "", style: str = "default") -> Text:
        """Return a line; ``suffix`` stays whole where the name is cut."""
        whole = _cut(name, self._name_width - len(suffix)) + suffix
        names = (f"{self.sides.first}_ns", f"{self.sides.second}_ns")
        times = [format_duration(row[name]) for name in names]
        ns = row["difference_ns"]
        times.append(signed_duration(ns) if ns else "0")
        text = Text(whole.ljust(self._name_width), style=style)
        text.append("".join(f" {time:>{_TIME_WIDTH}}" for time in times))
        cells = round(_BAR_WIDTH * min(1.0, abs(ns) / self.scale)) if self.scale else 0
        text.append(" " + "█" * cells, style="red" if ns > 0 else "green")
        return text


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(1, width - 1)] + "…"
