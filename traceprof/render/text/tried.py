"""What each change of a program did, in a terminal: a line or two for each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from traceprof.model.results import Result, Unit
from traceprof.render.escape import plain_text
from traceprof.render.formatting import is_known, value_text
from traceprof.render.shown import Row

_STYLES: Final = {"faster": "green", "slower": "yellow"}
_FAILED: Final = "red"
_INDENT: Final = 4
_ENDS: Final = ("saving_ratio", "low_ratio", "high_ratio")


def tried_view(result: Result, _rows: int, _width: int) -> RenderableType:
    """Return every change with what it did: nothing of it is cut."""
    return Group(*(part for row in result.tables["changes"].rows() for part in _of(row)))


def _of(row: Row) -> Iterator[RenderableType]:
    verdict = str(row["verdict"])
    is_failed = bool(row["reason"])
    style = _FAILED if is_failed else _STYLES.get(verdict, "dim")
    head = Text(plain_text(str(row["change"]), 400), style="bold")
    yield head.append(f": {verdict}", style=style)
    for line in _lines(row):
        yield Padding(Text(plain_text(line, 2_000)), (0, 0, 0, _INDENT))


def _times(row: Row) -> str:
    """Return what the step takes before and after."""
    is_slower = row["verdict"] == "slower"
    ratios = [-row[name] for name in _ENDS] if is_slower else [row[name] for name in _ENDS]
    share, *ends = (value_text(Unit.RATIO, one) for one in ratios)
    low, high = ends[::-1] if is_slower else ends
    before, after = (value_text(Unit.NS, row[name]) for name in ("before_ns", "after_ns"))
    what = {"slower": "takes", "faster": "saves"}.get(str(row["verdict"]), "difference")
    more = " more" if is_slower else ""
    said = f"{before} → {after} per step: {what} {share}{more} (95% CI: {low} to {high})"
    if is_known(row.get("predicted_ratio")):
        said += f"; predicted {value_text(Unit.RATIO, row['predicted_ratio'])}"
    return said


def _lines(row: Row) -> Iterator[str]:
    if row["reason"]:
        yield str(row["reason"])
        return
    if is_known(row.get("saving_ratio")):
        yield _times(row)
    if is_known(row.get("losses")):
        yield f"losses: {value_text(Unit.TEXT, row['losses'])}"
    sizes = [row.get("memory_before_bytes"), row.get("memory_bytes")]
    if all(map(is_known, sizes)):
        before, after = (value_text(Unit.BYTES, size) for size in sizes)
        yield f"memory: {before} → {after}"
    if row["verdict"] == "faster":
        yield f"code change: {row['lines']}"
        if row["breaks"]:
            yield f"caution: {row['breaks']}"
