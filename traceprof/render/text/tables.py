"""Format tables for a terminal, shorten names to a width, and turn rich objects into text."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Final

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from traceprof.model.results import Column, Note, Unit
from traceprof.render.escape import plain_text
from traceprof.render.formatting import STYLES, column_texts, headings
from traceprof.render.registry import Options
from traceprof.render.shown import ShownTable

_CUT: Final = "…"
_MIN_TWO_CUTS_WIDTH: Final = 12


def shorten_all(names: Sequence[str], width: int) -> list[str]:
    """Return ``names`` cut to ``width`` characters; different names stay different.

    A name is cut in the middle. If two cut names would be equal, the second keeps its start and
    a part that differs from other names. If that fails, it gets a number.
    """
    different = list(dict.fromkeys(names))
    cut = {name: _cut_middle(name, width) for name in different}
    counts = Counter(cut.values())
    short = {name: text for name, text in cut.items() if counts[text] == 1}
    taken = set(short.values())
    for name in different:
        if name not in short:
            free = (text for text in _distinct_cuts(name, different, width) if text not in taken)
            short[name] = next(free, cut[name])
            taken.add(short[name])
    return [short[name] for name in names]


def _cut_middle(name: str, width: int) -> str:
    head, tail = width // 2, width - 1 - width // 2
    cut = name[:width] if width < 3 else f"{name[:head]}{_CUT}{name[len(name) - tail :]}"
    return name if len(name) <= width else cut


def _distinct_cuts(name: str, names: Sequence[str], width: int) -> Iterator[str]:
    """Yield short forms of ``name``: with a part that differs from other names, then numbered."""
    if len(name) > width >= _MIN_TWO_CUTS_WIDTH:
        shared = {_n_shared(name, other) for other in names if other != name}
        for length in sorted(shared, reverse=True):
            yield _cut_before(name, length, width)
    for number in range(2, 2 + len(names)):
        yield f"{_cut_middle(name, width - len(str(number)) - 1)}#{number}"[:width]


def _cut_before(name: str, place: int, width: int) -> str:
    """Return the start of ``name`` and a part of it in whose middle is ``name[place]``."""
    head = width // 4
    if place <= head + 2:
        return f"{name[: width - 1]}{_CUT}"
    rest = width - head - 2
    start = min(max(head, place - rest // 2), len(name) - rest - 1)
    end = _CUT if start + rest < len(name) else ""
    return f"{name[:head]}{_CUT}{name[start : start + rest]}{end}"


def _n_shared(name: str, other: str) -> int:
    """Return the length of the common prefix of two names."""
    pairs = zip(name, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


_DISPENSABLE: Final = (
    *("overhead_ns", "peak_bytes_per_s", "min_ns", "max_ns", "median_ns", "busy_ns", "mean_ns"),
    *("share_ratio", "kind", "exposed_ns", "number", "first_rows", "count"),
)
"""The columns that are hidden first if a table is too wide, in this order."""

_MIN_NAME_WIDTH: Final = 28
_MAX_TEXT_WIDTH: Final = 16
_MAX_NAME_WIDTH_IN_PLACE: Final = 80
"""A column wider than this moves to the right end, because it hides the columns after it."""
_GAP: Final = 2


def table_view(
    table: ShownTable, rows: int, options: Options, empty: str = "no data in this window"
) -> RenderableType:
    """Return the first ``rows`` rows of a table, and remarks on rows and columns left out.

    Returns ``empty`` for a table without rows.
    """
    if not len(table):
        return Text(empty, style="dim")
    shown = list(table.rows(rows))
    cells = {
        column: column_texts(column.unit, [row[column.name] for row in shown]) for column in table
    }
    titles = headings(table)
    with_sentences = {c for c in table if any(isinstance(row[c.name], Note) for row in shown)}
    layout = _layout(cells, titles, options.line_width)
    for column in layout:
        if column.unit is Unit.TEXT and column not in with_sentences:
            layout[column] = min(layout[column], options.name_width)
    order = sorted(layout, key=lambda column: layout[column] > _MAX_NAME_WIDTH_IN_PLACE)
    view = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    is_cut = False
    for column in order:
        view.add_column(
            titles[column],
            justify="right" if STYLES[column.unit].is_number else "left",
            no_wrap=column not in with_sentences,
            overflow="ellipsis",
            width=layout[column],
        )
        texts = list(map(plain_text, cells[column]))
        short = texts if column in with_sentences else shorten_all(texts, layout[column])
        is_cut |= short != texts
        cells[column] = short
    for row in zip(*(cells[column] for column in order), strict=True):
        view.add_row(*map(Text, row))
    below = [rows_left_view(n)] if (n := len(table) - rows) > 0 else []
    if hidden := [titles[column] for column in cells if column not in layout]:
        how = "--wide shows all columns, --columns selects columns"
        below.append(Text(f"hidden columns: {', '.join(hidden)} ({how})", "dim"))
    elif is_cut:
        below.append(Text("some names are shortened (--full-names shows all of them)", "dim"))
    return Group(view, *below) if below else view


def rows_left_view(n: int) -> Text:
    """Return a line with the number of rows left out and the options that show them."""
    return Text(f"{n} more {'row' if n == 1 else 'rows'} (--rows N, --csv, --json)", "dim")


def _layout(
    cells: Mapping[Column, list[str]], titles: Mapping[Column, str], width: int
) -> dict[Column, int]:
    """Return the columns that fit into ``width`` characters, with their widths.

    Numbers are never cut. The widest column of text is cut first, down to `_MIN_NAME_WIDTH`. Then
    the `_DISPENSABLE` columns are hidden, then columns from right to left. Columns of text share
    the remaining width.
    """
    full_widths = {
        column: max(len(titles[column]), *map(len, values)) for column, values in cells.items()
    }
    texts = [column for column in full_widths if not STYLES[column.unit].is_number]
    widest = max(texts, key=lambda text: full_widths[text]) if texts else next(iter(full_widths))
    widths = {
        column: min(n, _MAX_TEXT_WIDTH) if column in texts and column != widest else n
        for column, n in full_widths.items()
    }
    others = {column.name: column for column in widths if column != widest}
    dispensable = [
        *(others[name] for name in _DISPENSABLE if name in others),
        *(column for name, column in reversed(others.items()) if name not in _DISPENSABLE),
    ]
    for candidate in dispensable:
        rest = sum(n + _GAP for column, n in widths.items() if column != widest)
        if rest + min(widths[widest], _MIN_NAME_WIDTH) <= width:
            break
        del widths[candidate]
    return _fill_width(widths, {c: full_widths[c] for c in texts if c in widths}, width)


def _fill_width(
    widths: dict[Column, int], text_widths: Mapping[Column, int], width: int
) -> dict[Column, int]:
    """Return ``widths`` in which columns of text share the width that numbers leave.

    ``text_widths`` are the columns of text with their full widths, which they never exceed.
    """
    left = width - sum(widths[c] for c in widths if c not in text_widths) - _GAP * (len(widths) - 1)
    for n_done, column in enumerate(sorted(text_widths, key=lambda c: text_widths[c])):
        fair = max(1, left // (len(text_widths) - n_done))
        widths[column] = min(text_widths[column], fair)
        left -= widths[column]
    return widths


def unbroken(text: Text) -> Text:
    """Return ``text`` changed so that it is never wrapped, for commands to copy and paste."""
    text.no_wrap, text.overflow = True, "ignore"
    return text


_NO_BREAK_SPACE: Final = "\ufdd0"
"""Replaces spaces that must not be wrapped, because rich wraps at every kind of space.

This noncharacter of Unicode does not occur in texts.
"""
_UNIT_SPACES: Final = re.compile(
    r"(?<=\d) (?=%|\d{3}(?!\d)|([nµmkMGTPEZ]?(s|B|W|J|FLOP|Hz)|min|h|d)(/(s|step))?(?![\w/]))"
)
"""Spaces in numbers and between a number and its unit."""


class WrappingConsole(Console):
    """Does not wrap lines within a number or before its unit.

    Its output contains placeholders for spaces, which `printed` replaces.
    """

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Return the segments of ``renderable``."""
        if isinstance(renderable, str):
            renderable = self.render_str(renderable)
        if isinstance(renderable, Text):
            renderable = renderable.copy()
            renderable.plain = _UNIT_SPACES.sub(_NO_BREAK_SPACE, renderable.plain)
        return super().render(renderable, options)


def printed(view: RenderableType, options: Options) -> str:
    """Return ``view`` as lines of at most ``options.line_width`` characters."""
    out = io.StringIO()
    console = WrappingConsole(
        file=out,
        width=options.line_width,
        highlight=False,
        emoji=False,
        force_terminal=bool(options.colors),
        color_system=options.colors or None,  # type: ignore[arg-type]
    )
    console.print(view, crop=False)
    text = out.getvalue().replace(_NO_BREAK_SPACE, " ")
    if options.colors:
        return text
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())
