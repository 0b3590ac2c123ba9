"""Which lines a picture shows, top to bottom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from traceprof.render.timeline.channels import Channel, Group, Lanes, Row

__all__ = ["Line", "choose_lines"]

_MAX_LINES: Final = 48


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the figure: a row of events, or the states of a device."""

    label: str
    row: Row | None
    states: tuple[Channel, ...] = ()


def choose_lines(lanes: Lanes) -> tuple[list[Line], int]:
    """Return the lines to draw, most telling first, and how many rows are left out."""
    wanted = [group for group in lanes.groups if group.kind != "threads"] or list(lanes.groups)
    lines = [line for group in wanted for line in _lines_of(group)][:_MAX_LINES]
    n_rows = sum(len(group.rows) for group in lanes.groups)
    return lines or [Line("", None)], n_rows - sum(line.row is not None for line in lines)


def _lines_of(group: Group) -> list[Line]:
    head = [Line(group.label, None, group.states)] if group.states else []
    names = [f"· {row.label}" if row.label.isdigit() else row.label for row in group.rows]
    if not head and names:
        names[0] = f"{group.label} · {names[0]}"
    return head + [Line(name, row) for name, row in zip(names, group.rows, strict=True)]
