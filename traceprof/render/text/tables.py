"""Tables and notes in a terminal, and what rich draws as text."""

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

from traceprof.model.results import Column, Note
from traceprof.render.escape import plain_text
from traceprof.render.formatting import STYLES, column_texts, headings
from traceprof.render.registry import Options
from traceprof.render.shown import ShownTable

_CUT: Final = "…"
_LEAST_CUT_TWICE: Final = 12


def shorten_all(names: Sequence[str], width: int) -> list[str]:
    """Return ``names`` with at most ``width`` characters each, different ones different.

    Begin and end of a name are kept. Where two would read alike it is the begin and a place where
    a name differs from others; the last resort is a number.
    """
    different = list(dict.fromkeys(names))
    plain = {name: _in_the_middle(name, width) for name in different}
    uses = Counter(plain.values())
    short = {name: text for name, text in plain.items() if uses[text] == 1}
    taken = set(short.values())
    for name in different:
        if name not in short:
            ways = (way for way in _ways(name, different, width) if way not in taken)
            short[name] = next(ways, plain[name])
            taken.add(short[name])
    return [short[name] for name in names]


def _in_the_middle(name: str, width: int) -> str:
    head, tail = width // 2, width - 1 - width // 2
    cut = name[:width] if width < 3 else f"{name[:head]}{_CUT}{name[len(name) - tail :]}"
    return name if len(name) <= width else cut


def _ways(name: str, others: Sequence[str], width: int) -> Iterator[str]:
    """Yield ways to write ``name`` that tell it from others, then with numbers."""
    if len(name) > width >= _LEAST_CUT_TWICE:
        shared = {_n_shared(name, other) for other in others if other != name}
        for length in sorted(shared, reverse=True):
            yield _from(name, length, width)
    for number in range(2, 2 + len(others)):
        yield f"{_in_the_middle(name, width - len(str(number)) - 1)}#{number}"[:width]


def _from(name: str, shared: int, width: int) -> str:
    """Return the begin of ``name``, and what follows on the first ``shared`` characters."""
    head = width // 4
    if shared <= head + 2:
        return f"{name[: width - 1]}{_CUT}"
    rest = width - head - 2
    start = min(max(head, shared - rest // 2), len(name) - rest - 1)
    end = _CUT if start + rest < len(name) else ""
    return f"{name[:head]}{_CUT}{name[start : start + rest]}{end}"


def _n_shared(one: str, other: str) -> int:
    """Return how many characters two names begin with alike."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


_LESS_TELLING: Final = (
    *("overhead_ns", "peak_bytes_per_s", "min_ns", "max_ns", "median_ns", "busy_ns", "mean_ns"),
    *("share_ratio", "kind", "exposed_ns", "number", "first_rows", "count"),
)
"""What gives way first where a table is too wide."""

_NAME_WIDTH: Final = 28
_TEXT_WIDTH: Final = 16
_LONG_NAME: Final = 80
_GAP: Final = 2


def table_view(
    table: ShownTable, rows: int, width: int, empty: str = "no data in this window"
) -> RenderableType:
    """Return the first ``rows`` rows of a table, and how many more there are."""
    if not len(table):
        return Text(empty, style="dim")
    shown = list(table.rows(rows))
    cells = {
        column: column_texts(column.unit, [row[column.name] for row in shown]) for column in table
    }
    titles = headings(table)
    layout = _layout(cells, titles, width)
    order = [*layout]
    if max(layout.values()) > _LONG_NAME:  # hides what stands behind it
        order.sort(key=lambda column: layout[column] > _LONG_NAME)
    with_sentences = {c for c in table if any(isinstance(row[c.name], Note) for row in shown)}
    view = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    is_cut = False
    for column in order:
        cell_width = layout[column]
        view.add_column(
            titles[column],
            justify="right" if STYLES[column.unit].is_number else "left",
            no_wrap=column not in with_sentences,
            overflow="ellipsis",
            width=cell_width,
        )
        texts = list(map(plain_text, cells[column]))
        short = texts if column in with_sentences else shorten_all(texts, cell_width)
        is_cut |= short != texts
        cells[column] = short
    for row in zip(*(cells[column] for column in order), strict=True):
        view.add_row(*map(Text, row))
    below = [rows_left_view(n)] if (n := len(table) - rows) > 0 else []
    if hidden := [titles[column] for column in cells if column not in layout]:
        how = "--wide shows all columns, --columns selects columns"
        below.append(Text(f"hidden columns: {', '.join(hidden)} ({how})", "dim"))
    elif is_cut:
        below.append(Text("some names are shortened (--wide shows full names)", "dim"))
    return Group(view, *below) if below else view


def rows_left_view(n: int) -> Text:
    """Return how many more rows a table has."""
    return Text(f"{n} more {'row' if n == 1 else 'rows'} (--rows N, --csv, --json)", "dim")


def _layout(
    cells: Mapping[Column, list[str]], titles: Mapping[Column, str], width: int
) -> dict[Column, int]:
    """Return the columns that fit into ``width``, and their widths.

    Numbers are never cut. The longest column of text gives way, down to `_NAME_WIDTH`; then the
    less telling columns go, then those furthest to the right. What is left over goes to the texts.
    """
    widths = {
        column: max(len(titles[column]), *map(len, values)) for column, values in cells.items()
    }
    wanted = dict(widths)
    texts = [column for column in widths if not STYLES[column.unit].is_number]
    first = max(texts, key=lambda text: widths[text]) if texts else next(iter(widths))
    for column in texts:
        if column != first:
            widths[column] = min(widths[column], _TEXT_WIDTH)
    others = {column.name: column for column in widths if column != first}
    dispensable = [
        *(others[name] for name in _LESS_TELLING if name in others),
        *(column for name, column in reversed(others.items()) if name not in _LESS_TELLING),
    ]
    for least in dispensable:
        rest = sum(
            column_width + _GAP for column, column_width in widths.items() if column != first
        )
        if rest + min(widths[first], _NAME_WIDTH) <= width:
            break
        del widths[least]
    return _shared_out(widths, {c: wanted[c] for c in texts if c in widths}, width)


def _shared_out(
    widths: dict[Column, int], wanted: Mapping[Column, int], width: int
) -> dict[Column, int]:
    """Return ``widths`` where the texts share what numbers leave, none more than ``wanted``."""
    left = width - sum(widths[c] for c in widths if c not in wanted) - _GAP * (len(widths) - 1)
    for n_done, column in enumerate(sorted(wanted, key=lambda c: wanted[c])):
        fair = max(1, left // (len(wanted) - n_done))
        widths[column] = min(wanted[column], fair)
        left -= widths[column]
    return widths


def unbroken(text: Text) -> Text:
    """Return ``text``, which stays on one line however long it is: a command, to be pasted."""
    text.no_wrap, text.overflow = True, "ignore"
    return text


_JOINED: Final = "\ufdd0"
"""Stands for a space at which no line is broken: no text has it, and rich breaks at all spaces."""
_KEPT: Final = re.compile(
    r"(?<=\d) (?=%|\d{3}(?!\d)|([nµmkMGTPEZ]?(s|B|W|J|FLOP|Hz)|min|h|d)(/(s|step))?(?![\w/]))"
)
"""The spaces in numbers and before their units."""


class WrappingConsole(Console):
    """Breaks no line within a number, or between it and its unit; what it draws is `printed`."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Return the segments of ``renderable``."""
        if isinstance(renderable, str):
            renderable = self.render_str(renderable)
        if isinstance(renderable, Text):
            renderable = renderable.copy()
            renderable.plain = _KEPT.sub(_JOINED, renderable.plain)
        return super().render(renderable, options)


def printed(view: RenderableType, options: Options) -> str:
    """Return ``view`` as lines of at most ``options.line_width`` characters."""
    out = io.StringIO()
    console = WrappingConsole(
        file=out,
        width=options.line_width,
        highlight=False,
        emoji=False,
        force_terminal=bool(options.colours),
        color_system=options.colours or None,  # type: ignore[arg-type]
    )
    console.print(view, crop=False)
    written = out.getvalue().replace(_JOINED, " ")
    if options.colours:
        return written
    return "".join(f"{line.rstrip()}\n" for line in written.splitlines())
