"""Which lines a picture shows, top to bottom."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from traceprof.render.timeline.channels import Channel, Group, Lanes, Row
from traceprof.values import dataclass

__all__ = ["Line", "choose_lines"]

_MAX_LINES: Final = 48
_KINDS_FIRST: Final = ("range", "collective", "host_op", "sync", "api")
"""Which lanes of threads tell more than others; devices tell the most."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the figure: a row of events, the states of a device, or the name of a process."""

    label: str
    row: Row | None
    states: tuple[Channel, ...] = ()
    section: str = ""

    @property
    def is_heading(self) -> bool:
        """Whether it names the process of the lines below."""
        return self.row is None and not self.states


def choose_lines(lanes: Lanes) -> tuple[list[Line], int]:
    """Return the lines to draw, as on the screen, and how many rows of events are left out.

    Where there are more than fit, every process is shown by its devices before any by its
    threads.
    """
    every = [(rank, line) for group in lanes.groups for rank, line in _lines_of(group)]
    n_sections = len({line.section for _, line in every})
    best = sorted(range(len(every)), key=lambda i: (every[i][0], i))[: _MAX_LINES - n_sections]
    lines = list(_with_headings([every[i][1] for i in sorted(best)]))
    n_rows = sum(len(group.rows) for group in lanes.groups)
    return lines or [Line("", None)], n_rows - sum(line.row is not None for line in lines)


def _with_headings(lines: list[Line]) -> Iterator[Line]:
    """Yield the lines of each process below its name."""
    section = ""
    for line in lines:
        if line.section != section:
            section = line.section
            yield Line(section, None)
        yield line


def _lines_of(group: Group) -> Iterator[tuple[tuple[int, int], Line]]:
    """Yield the lines of a thread or device, each with its place in the order of what tells."""
    if group.states:
        yield (0, 0), Line(group.label, None, group.states, group.section)
    title = group.label
    for depth, row in enumerate(group.rows):
        label = f"· {row.label}" if row.label.isdigit() else row.label
        if not group.states and depth == 0:
            label = f"{title} · {label}"
        yield (_rank(group, row), depth), Line(label, row, (), group.section)


def _rank(group: Group, row: Row) -> int:
    if group.kind == "device":
        return 1
    if group.kind == "threads":
        return 9
    return 2 + (_KINDS_FIRST.index(row.kind) if row.kind in _KINDS_FIRST else len(_KINDS_FIRST))
