"""Throughput by size in a terminal: a block for each group, efficiencies as bars, the losses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pandas as pd
from rich.console import Group, RenderableType
from rich.text import Text

from traceprof.comparison.scaling.laws import CUT_OFF, NOT_FROM_RATES, ROUNDED
from traceprof.model.results import Column, Result, Unit
from traceprof.render.escape import plain_text
from traceprof.render.formatting import is_known, value_text
from traceprof.render.shown import Row, rows_of

__all__ = ["scaling_view"]

_BAR_WIDTH: Final = 20
_SHORT_BAR: Final = 10
_WIDE: Final = 100
_GAP: Final = "  "
_TITLES: Final[Mapping[str, str]] = {
    "devices_count": "GPUs",
    "nodes_count": "nodes",
    "global_batch_count": "batch",
    "samples_per_s": "samples/s",
    "tokens_per_s": "tokens/s",
    "steps_per_s": "steps/s",
    "speedup": "speed-up",
    "efficiency_ratio": "of ideal",
    "time_to_train_ns": "to train",
}
"""The columns of numbers that have room in a line."""
_PRINTED: Final = {ROUNDED: "", CUT_OFF: ": cut off", NOT_FROM_RATES: ": not from rates"}
_BASE: Final = "base"
_WEAKEST: Final = 0.0005
_LAW: Final = "serial share by Amdahl's law "


def scaling_view(result: Result, rows: int, width: int) -> RenderableType:
    """Return the sizes of each group (the first ``rows`` of all), what they lost, and the law."""
    table = result.to_frame("scaling")
    losses, laws = (_frame(result, name) for name in ("losses", "laws"))
    lines = _Lines(table, result, width)
    shown: list[RenderableType] = [lines.head()]
    for name, own in table.head(rows).groupby("group", sort=False):
        title = str(name) or ("all runs" if table["group"].nunique() > 1 else "")
        if title:
            shown.append(Text(plain_text(title, 400), style="bold"))
        shown += [lines.line(row) for row in rows_of(own)]
        shown += _losses(losses[losses["group"] == name], own, width)
        shown += [_law(row) for row in rows_of(laws[laws["group"] == name])]
    if len(table) > rows:
        shown.append(Text(f"… {len(table) - rows} more rows (--rows)", style="dim"))
    return Group(*shown)


def _frame(result: Result, name: str) -> pd.DataFrame:
    return result.tables.get(name, result.spec.table(name).frame())


class _Lines:
    """Lines of one layout: the numbers that are known of any size, a bar, what must be said."""

    def __init__(self, table: pd.DataFrame, result: Result, width: int) -> None:
        spec = result.spec.table("scaling")
        self.width = width
        # Where all are of one kind the sentences above say it, and a line has room for more.
        self.tells_kind = table.loc[table["scaling"] != _BASE, "scaling"].nunique() > 1
        self.columns = [spec.column(name) for name in _TITLES if _is_told(table, name)]
        self.bar = _BAR_WIDTH if width >= _WIDE else _SHORT_BAR
        titles = {**_TITLES, "devices_count": str(result.scalars["devices"])}
        self.titles = {column: titles[column.name] for column in self.columns}
        self.widths = {
            column: max(len(title), *(len(_number(column, v)) for v in table[column.name].tolist()))
            for column, title in self.titles.items()
        }

    def head(self) -> Text:
        """Return the headings."""
        titles = (title.rjust(self.widths[column]) for column, title in self.titles.items())
        return Text(f"{_GAP}{_GAP.join(titles)}", style="dim")

    def line(self, row: Row) -> Text:
        """Return a size: its numbers, the efficiency as a bar, and remarks as far as they fit."""
        numbers = (
            _number(column, row[column.name]).rjust(self.widths[column]) for column in self.titles
        )
        text = Text(f"{_GAP}{_GAP.join(numbers)}{_GAP}")
        text.append(_bar(row["efficiency_ratio"], self.bar).ljust(self.bar), style="green")
        remarks = "; ".join(_remarks(row, tells_kind=self.tells_kind))
        if remarks:
            text.append(f"{_GAP}{plain_text(remarks)}", style="default")
        text.truncate(self.width, overflow="ellipsis")
        text.rstrip()
        return text


def _is_told(table: pd.DataFrame, name: str) -> bool:
    """Return whether a column has a place in the lines: known, and of nodes and batches not one."""
    if name not in table or not table[name].notna().any():
        return False
    return name not in ("nodes_count", "global_batch_count") or table[name].nunique() > 1


def _number(column: Column, value: Any) -> str:
    if column.unit is Unit.PER_S:
        return value_text(column.unit, value).removesuffix(" /s")
    if column.unit is Unit.FACTOR:
        return value_text(Unit.NUMBER, value)
    return value_text(column.unit, value)


def _bar(ratio: Any, width: int) -> str:
    """Return the efficiency as a bar: full is ideal, more than that ends in a plus."""
    if not is_known(ratio):
        return ""
    cells = round(width * min(1.0, float(ratio)))
    return "█" * (cells - 1) + "+" if ratio > 1 + 1 / width else "█" * cells


def _remarks(row: Row, *, tells_kind: bool) -> Iterator[str]:
    """Yield what must be said of a size: kinds, the interval, what was printed of it."""
    is_told = row["scaling"] == _BASE or (tells_kind and row["scaling"] != "unknown")
    if row["scaling"] and is_told:
        yield str(row["scaling"])
    if row["ranks"] == "independent":
        yield "independent ranks, averaged"
    if is_known(row["low_ratio"]):
        ends = (value_text(Unit.RATIO, row[name]) for name in ("low_ratio", "high_ratio"))
        yield " to ".join(ends)
    if is_known(row["printed_ratio"]) and row["printed_is"]:
        printed = value_text(Unit.NUMBER, round(100 * row["printed_ratio"], 6))
        yield f"printed {printed} %{_PRINTED[row['printed_is']]}"


def _losses(losses: pd.DataFrame, sizes: pd.DataFrame, width: int) -> Iterator[Text]:
    """Yield what was lost on each size, in % of ideal, a line for each cause and one for all."""
    if losses.empty:
        return
    keys = ["devices_count", "nodes_count", "global_batch_count"]
    known = [key for key in keys if key in sizes]
    places = sizes[known].reset_index(drop=True).reset_index(names="place")
    placed = losses.merge(places, on=known, how="left")
    table = placed.pivot_table(index="loss", columns="place", values="lost_ratio", aggfunc="sum")
    order = table.iloc[:, -1].sort_values(ascending=False).index
    columns = table.columns.tolist()
    left = max(len("lost, of ideal"), *(len(str(name)) for name in table.index)) + 2
    most = max(1, (width - left - 2) // 10)
    columns = columns[-most:]
    size = "devices_count" if sizes["devices_count"].notna().all() else "nodes_count"
    heads = [value_text(Unit.COUNT, sizes[size].iloc[int(place)]) for place in columns]
    yield Text(_cells("lost, of ideal", heads, left), style="dim")
    for name in order:
        values = [float(table.loc[name, place]) for place in columns]
        if any(abs(value) >= _WEAKEST for value in values):
            yield Text(_cells(str(name), [value_text(Unit.RATIO, v) for v in values], left))
    sums = [value_text(Unit.RATIO, float(table[place].sum())) for place in columns]
    yield Text(_cells("all lost", sums, left), style="bold")


def _cells(name: str, cells: Sequence[str], left: int) -> str:
    return f"{_GAP}{name.ljust(left)}" + "".join(cell.rjust(10) for cell in cells)


def _law(row: Row) -> Text:
    share, limit = row["serial_ratio"], row["limit_speedup"]
    if not is_known(share):
        return Text()
    text = f"{_GAP}{_LAW}{value_text(Unit.RATIO, share)}"
    if share > 1:
        text += ": more than all, it gets slower"
    elif is_known(limit) and row["is_exceeded"]:
        most = value_text(Unit.FACTOR, limit)
        text += f", but that would allow no more than {most}: it does not fit"
    elif is_known(limit):
        text += f": at most {value_text(Unit.FACTOR, limit)}"
    first, last = (row[f"karp_flatt_{which}_ratio"] for which in ("first", "last"))
    if row["sizes_count"] > 1:
        ends = (value_text(Unit.RATIO, value) for value in (first, last))
        text += f"; Karp–Flatt from {' to '.join(ends)}"
    return Text(text, style="dim")
