"""Find the tables in a text: Markdown, HTML, grids, CSV with any delimiter, and aligned columns.

Each table has the heading above it and the sentences between that heading and the table.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from traceprof.logs.cells import (
    NUMBER_IN_CELL,
    SIZES,
    THOUSANDS,
    count_known,
    number_of,
    plain_name,
    quantity_of,
    unit_named,
)
from traceprof.logs.typed_marks import html_rows, row_of_latex, without_marks, without_tags

_DELIMITERS: Final = ",;\t|"
_MAX_COLUMNS: Final = 500
_MAX_LINE_CHARS: Final = 20_000
_MAX_PROSE_CHARS: Final = 2_000
_MAX_CAPTION_CHARS: Final = 80
_MAX_LINES_ABOVE_RULE: Final = 20
_MAX_SKIPPED_LINES: Final = 30
"""Number of lines before a delimited table that may be comments."""
_RULE: Final = re.compile(r"[|+:\s=-]*+")
"""A line of a table without any cell: it separates the heading or the rows."""
HEADING: Final = re.compile(r"#{1,6}\s++(?P<title>.*)")
_UNDERLINE: Final = re.compile(r"={3,200}+|-{3,200}+")
_BOLD_LINE: Final = re.compile(r"(?:\*\*|__)(?P<title>[^*_]{1,80}+)(?:\*\*|__):?+")
_FENCE: Final = re.compile(r"(?:```|~~~)")
_BOX_CHARACTERS: Final = str.maketrans(
    dict.fromkeys("│┃║", "|")
    | dict.fromkeys("─━═", "-")
    | dict.fromkeys("┌┐└┘├┤┬┴┼┏┓┗┛┣┫┳┻╋╞╡╪╔╗╚╝╠╣╦╩╬┡┩╇", "+")
)
_GAP: Final = re.compile(r"\s{2,100}+|\t")
_NOT_A_NAME: Final = re.compile(r"[{}=]|:\s")
"""Characters that occur in log lines and in printed objects, but never in a column name."""
_CELL_EDGE: Final = re.compile(r"(?<!\\)\|")
_TABLE_TAG: Final = re.compile(r"<(?P<end>/?+)table\b", re.IGNORECASE)
_HTML_TITLE: Final = re.compile(
    r"<h[1-6]\b[^<>]{0,99}+>(?P<title>[^<]{1,200}+)</h[1-6]>", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class TypedTable:
    """A table as a person typed it.

    ``title`` is the heading above the table, ``prose`` the text between this heading (or the
    previous table) and the table. ``has_decimal_commas`` is true if a comma is the decimal point of
    its numbers. ``first`` and ``last`` are the indices of its lines.
    """

    heading: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""
    is_markdown: bool = False
    has_decimal_commas: bool = False
    prose: str = ""
    first: int = 0
    last: int = 0

    def column(self, place: int) -> list[str]:
        """Return the cells of the column at index ``place``."""
        return [row[place] for row in self.rows]

    @property
    def caption(self) -> str:
        """The last line of the text above the table; "" if it is a long sentence."""
        last = self.prose.rpartition("\n")[2].strip(" :*_`>-")
        return last if len(last) <= _MAX_CAPTION_CHARS else ""

    def transposed(self) -> TypedTable | None:
        """Return the table with rows and columns exchanged; None if a row has no name."""
        names = ("name", *(row[0] for row in self.rows))
        if "" in names or len(self.heading) < 2:
            return None
        places = range(1, len(self.heading))
        rows = tuple((self.heading[i], *(row[i] for row in self.rows)) for i in places)
        return replace(self, heading=names, rows=rows)


@dataclass(slots=True)
class _Above:
    """The heading and the text above the next table."""

    title: str = ""
    prose: str = ""

    def read(self, line: str, after: str) -> None:
        """Take a line that belongs to no table; ``after`` is the line that follows."""
        text = line.strip()
        found = HEADING.fullmatch(text) or _BOLD_LINE.fullmatch(text) or _HTML_TITLE.search(text)
        is_underlined = text and _UNDERLINE.fullmatch(after.strip()) and not _RULE.fullmatch(text)
        if found is not None or is_underlined:
            title = text if found is None else found["title"]
            self.title, self.prose = _without_marks(title.rstrip("#")), ""
        elif text and not _RULE.fullmatch(text) and not is_fence(text):
            self.prose = f"{self.prose}\n{_without_marks(text)}".strip()[-_MAX_PROSE_CHARS:]


def is_fence(line: str) -> bool:
    """Return whether a line begins or ends a block of code."""
    return _FENCE.match(line.lstrip()) is not None


def _without_marks(text: str) -> str:
    return without_tags(text).strip().strip("*_").strip()


def tables_in(lines: Sequence[str]) -> list[TypedTable]:
    """Return the tables of a text: Markdown, grids, HTML, and LaTeX, otherwise delimited text."""
    found = list(_drawn_tables([*map(row_of_latex, lines)]))
    return found or list(_delimited_tables(lines))


def _drawn_tables(lines: Sequence[str]) -> Iterator[TypedTable]:
    """Yield the tables with visible edges, in order, each with the heading above it."""
    above, first, last = _Above(), 0, len(lines)
    while first < last:
        line = _without_box(lines[first])
        end = _end_of_html(lines, first) if _TABLE_TAG.search(line) else _end_of_block(lines, first)
        if end == first:
            above.read(line, lines[first + 1] if first + 1 < last else "")
            first += 1
            continue
        is_html = bool(_TABLE_TAG.search(line))
        rows = html_rows(lines[first:end]) if is_html else _drawn_rows(lines[first:end])
        table = _make_table(rows, above, span=(first, end)) if rows else None
        if table is not None:
            yield table
            above.prose = ""
        first = end


def _without_box(line: str) -> str:
    """Return the line with ASCII characters instead of box characters."""
    return line if line.isascii() else line.translate(_BOX_CHARACTERS)


def _is_rule(line: str) -> bool:
    """Return whether a line separates the rows of a table."""
    text = _without_box(line)
    return _RULE.fullmatch(text) is not None and ("-" in text or "=" in text)


def _end_of_block(lines: Sequence[str], first: int) -> int:
    """Return the index after the lines with column edges that begin at ``first``."""
    for i in range(first, len(lines)):
        line = _without_box(lines[i])
        is_rule = line.strip().startswith("+-") or line.strip().startswith("+=")
        if len(line) > _MAX_LINE_CHARS or not ("|" in line or is_rule):
            return i
    return len(lines)


def _end_of_html(lines: Sequence[str], first: int) -> int:
    """Return the index after the line with the end of the HTML table that begins at ``first``."""
    for i in range(first, len(lines)):
        if any(tag["end"] for tag in _TABLE_TAG.finditer(lines[i])):
            return i + 1
    return len(lines)


def _drawn_rows(block: Sequence[str]) -> list[list[str]]:
    """Return the rows of a table with column edges; an empty list if no line separates them.

    If lines separate all rows of a grid, the lines between two of them are one row.
    """
    if not any(map(_is_rule, block[:_MAX_LINES_ABOVE_RULE])):
        return []
    drawn = [_without_box(line).strip() for line in block]
    rules = [i for i, line in enumerate(drawn) if _is_rule(line)]
    first = next((i for i in rules if i > 0), 0)
    if not first:
        return [_split_row(line) for line in drawn[1:]] if len(drawn) > 2 else []
    if "+" not in drawn[first] and 0 not in rules:
        return [_split_row(line) for line in (drawn[first - 1], *drawn[first + 1 :])]
    parts: list[list[list[str]]] = [[]]
    for i, line in enumerate(drawn):
        if i in rules:
            parts.append([])
        else:
            parts[-1].append(_split_row(line))
    parts = [part for part in parts if part]
    if len(parts) > 2:
        return [[" ".join(filter(None, cells)) for cells in _by_column(part)] for part in parts]
    return [row for part in parts for row in part]


def _by_column(rows: Sequence[Sequence[str]]) -> Iterator[list[str]]:
    """Yield the cells of each column; short rows have empty cells."""
    for place in range(max(map(len, rows))):
        yield [row[place] if place < len(row) else "" for row in rows]


def _split_row(line: str) -> list[str]:
    """Return the cells of a Markdown row, without the empty parts outside the outer pipes."""
    parts = _CELL_EDGE.split(line.strip())
    first, last = int(not parts[0].strip()), len(parts) - int(not parts[-1].strip())
    return [without_tags(part).replace("\\|", "|") for part in parts[first : max(first, last)]]


def _delimited_tables(lines: Sequence[str]) -> Iterator[TypedTable]:
    """Yield the tables of delimited text: one in the whole text, otherwise one in each block.

    Lines above the heading are the comment of the table.
    """
    bare = ["" if len(line) > _MAX_LINE_CHARS or is_fence(line) else line for line in lines]
    kept = [line for line in bare if line.strip() and not line.startswith("#")]
    whole = _delimited_table(kept, _Above(), (0, len(lines))) if kept else None
    is_whole = whole is not None and whole.heading not in whole.rows
    if whole is not None and is_whole and _is_heading(whole.heading):
        yield replace(whole, prose=_comment_of(lines))
        return
    found = list(_tables_in_blocks(bare))
    if found:
        yield from found
    elif whole is not None and is_whole and not any(map(quantity_of, whole.heading)):
        yield whole


def _comment_of(lines: Sequence[str]) -> str:
    """Return the lines of a CSV file that begin with #."""
    comments = (line.lstrip("# ").strip() for line in lines if line.startswith("#"))
    return "\n".join(comments)[:_MAX_PROSE_CHARS]


def _tables_in_blocks(lines: Sequence[str]) -> Iterator[TypedTable]:
    """Yield the tables of delimited or aligned text between empty lines that have known columns."""
    above, first = _Above(), 0
    while first < len(lines):
        end = next((i for i in range(first, len(lines)) if not lines[i].strip()), len(lines))
        for begin in range(first, min(end, first + _MAX_SKIPPED_LINES)):
            block, span = lines[begin:end], (begin, end)
            found = _delimited_table(block, above, span, is_strict=True) or _aligned_table(
                block, above, span
            )
            if found is not None:
                yield from _split_at_headings(found)
                above.prose = ""
                break
            above.read(lines[begin], lines[begin + 1] if begin + 1 < len(lines) else "")
        first = end + 1


def _is_heading(cells: Sequence[str]) -> bool:
    """Return whether cells are column names: one is known, and none is a quantity."""
    if any(_NOT_A_NAME.search(cell) for cell in cells):
        return False
    return bool(count_known(cells)) and all(quantity_of(cell) is None for cell in cells)


def _split_at_headings(table: TypedTable) -> Iterator[TypedTable]:
    """Yield the tables of a block in which a heading is repeated."""
    starts = [i for i, row in enumerate(table.rows) if row == table.heading]
    for start, end in zip([-1, *starts], [*starts, len(table.rows)], strict=True):
        if end > start + 1:
            yield replace(table, rows=table.rows[start + 1 : end])


def _delimited_table(
    block: Sequence[str], above: _Above, span: tuple[int, int], *, is_strict: bool = False
) -> TypedTable | None:
    """Return the table whose heading is the first line of ``block``; None if it is no table.

    With ``is_strict`` the heading must have a known column and no quantity.
    """
    delimiter = max(_DELIMITERS, key=block[0].count)
    if delimiter not in block[0] or (is_strict and not _is_heading(block[0].split(delimiter))):
        return None
    try:
        rows = list(csv.reader(block, delimiter=delimiter, skipinitialspace=True))
    except csv.Error:
        return None
    return _make_table(rows, above, delimiter=delimiter, span=span)


def _aligned_table(block: Sequence[str], above: _Above, span: tuple[int, int]) -> TypedTable | None:
    """Return a table whose columns are separated by two or more spaces."""
    if not _is_heading(_GAP.split(block[0].strip())):
        return None
    rows = [_GAP.split(line.strip()) for line in block if not _RULE.fullmatch(line)]
    if len(rows) < 2 or len({len(row) for row in rows}) > 1 or len(rows[0]) < 2:
        return None
    return _make_table(rows, above, delimiter=" ", span=span)


def _make_table(
    rows: Sequence[Sequence[str]],
    above: _Above,
    *,
    span: tuple[int, int],
    delimiter: str = "",
) -> TypedTable | None:
    """Return a table, or None if the first row is not a heading or a row is too long.

    Short rows are filled with empty cells. Columns without a heading and a cell are dropped. An
    empty ``delimiter`` means Markdown.
    """
    width = len(rows[0])
    body = [row for row in rows[1:] if any(cell.strip() for cell in row)]
    if not 1 < width <= _MAX_COLUMNS or any(len(row) > width for row in body) or not body:
        return None
    heading = [cell.strip() for cell in rows[0]]
    full = [[cell.strip() for cell in [*row, *[""] * (width - len(row))]] for row in body]
    kept = [i for i in range(width) if heading[i] or any(row[i] for row in full)]
    heading, full = [heading[i] for i in kept], [[row[i] for i in kept] for row in full]
    heading, full = _with_units(heading, full)
    if not delimiter and heading[0] and plain_name(heading[0]) in SIZES:
        heading, full = _in_columns(heading, full)
    numbers = map(number_of, heading)
    if len(kept) < 2 or (delimiter and any(_NOT_A_NAME.search(cell) for cell in heading)):
        return None
    if "" in heading and delimiter:
        return None
    heading[1:] = [cell or f"column {i}" for i, cell in enumerate(heading[1:], 2)]
    if any(number is not None and not number.unit for number in numbers if heading[0]):
        return None
    cells = [without_marks(cell) for row in full for cell in row]
    has_commas = delimiter in (";", "\t", "") and _has_decimal_commas(cells, delimiter)
    return TypedTable(
        tuple(heading),
        tuple(map(tuple, full)),
        above.title,
        not delimiter,
        has_commas,
        above.prose,
        *span,
    )


def _with_units(heading: list[str], rows: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    """Return heading and rows, with the units of a first row that contains only units."""
    units = rows[0]
    texts = [text for text in units if text]
    if len(rows) < 2 or not texts or any(unit_named(text, "time") is None for text in texts):
        return heading, rows
    names = zip(heading, units, strict=True)
    return [f"{name} ({unit})" if unit else name for name, unit in names], rows[1:]


def _in_columns(heading: list[str], rows: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    """Return heading and rows, exchanged if the first row is a measure: GPUs | 1 | 2 | 4."""
    numbers = [number_of(without_marks(cell)) for cell in heading[1:]]
    names = [heading[0], *(row[0] for row in rows)]
    if "" in names or any(number is None or number.unit for number in numbers):
        return heading, rows
    return names, [[heading[i], *(row[i] for row in rows)] for i in range(1, len(heading))]


def _has_decimal_commas(cells: Sequence[str], delimiter: str) -> bool:
    """Return whether a comma is the decimal point in cells that another delimiter separates.

    This requires that no number contains a decimal point. Without semicolons, at least one comma
    must not be a thousands separator.
    """
    numbers = [match["number"] for cell in cells if (match := NUMBER_IN_CELL.fullmatch(cell))]
    with_comma = [text for text in numbers if "," in text]
    if delimiter != ";" and all(THOUSANDS.fullmatch(text.strip()) for text in with_comma):
        return False
    return bool(with_comma) and not any(
        "." in text and ("," not in text or text.rfind(".") > text.rfind(",")) for text in numbers
    )
