"""What is seen at a door, in one form for all: a text in lines, and tables by name."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any, Final

__all__ = [
    "Exhibit",
    "Row",
    "cell",
    "from_csv",
    "from_frame",
    "from_html",
    "from_json",
    "from_text",
    "is_known",
    "same_column",
]

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Exhibit:
    """What a door shows: ``text`` in lines, ``tables`` by name; or why it is closed."""

    text: str = ""
    tables: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    closed: str = ""


_SUFFIX: Final = re.compile(r"( (ns|ratio|count|%|per s|bytes))+$")


def same_column(name: str) -> str:
    """Return what a column is called without its unit, as its heading is where it is printed."""
    return _SUFFIX.sub("", name.lower().replace("_", " ").strip())


def cell(row: Row, column: str) -> Any:
    """Return the cell of ``row`` in ``column``, whatever its heading makes of that name."""
    if column in row:
        return row[column]
    wanted, heading = same_column(column), _heading_of(column)
    names = sorted(map(str, row), key=lambda name: name.lower() != heading)
    return next((row[name] for name in names if same_column(name) == wanted), None)


def _heading_of(column: str) -> str:
    """Return the heading of a column where it is printed: shares have another than times."""
    words = column.replace("_", " ")
    if words.endswith(" ratio"):
        return words.removesuffix(" ratio") + " %"
    return words.removesuffix(" ns")


def is_known(value: Any) -> bool:
    """Return whether a cell holds anything."""
    is_nan = isinstance(value, float) and math.isnan(value)
    return value is not None and not is_nan and value not in ("", "–")


def from_text(text: str, signatures: Mapping[str, Sequence[str]]) -> Exhibit:
    """Return a printed text; its tables are known by columns that ``signatures`` name.

    A table is a heading, a rule and rows, or what Markdown makes of it.
    """
    lines = text.splitlines()
    tables: dict[str, Sequence[Row]] = {}
    for place, line in enumerate(lines):
        if place and (set(line) == {"─"} or _MARKDOWN_RULE.fullmatch(line)):
            names, *rows = _cells_of(lines, place)
            own = [dict(zip(names, row, strict=True)) for row in rows if len(row) == len(names)]
            tables.setdefault(_name_of(names, signatures), own)
    return Exhibit(text, tables)


_MARKDOWN_RULE: Final = re.compile(r"\|( ?:?-+:? ?\|)+")
_NO_ROW: Final = re.compile(r"$|note: |warning: |… |[\d ,]+ more rows?\b|.* ─+$")


def _cells_of(lines: Sequence[str], rule: int) -> list[list[str]]:
    """Return the cells of the table whose heading stands above the line ``rule``."""
    own = [lines[rule - 1]]
    for line in lines[rule + 1 :]:
        if _NO_ROW.match(line):
            break
        own.append(line)
    if own[0].startswith("|"):
        return [[part.strip() for part in line.strip().strip("|").split("|")] for line in own]
    # Columns are apart where at least two places are blank in every line.
    width = max(map(len, own))
    padded = [line.ljust(width) for line in own]
    blank = "".join(" " if {*column} == {" "} else "x" for column in zip(*padded, strict=True))
    spans = [found.span() for found in re.finditer(r"x(?: ?x)*", blank)]
    return [[line[start:end].strip() for start, end in spans] for line in padded]


def _name_of(names: Iterable[str], signatures: Mapping[str, Sequence[str]]) -> str:
    own = {*map(same_column, names)}
    return next((name for name, columns in signatures.items() if own.issuperset(columns)), "")


def from_csv(text: str, table: str) -> Exhibit:
    """Return a table as CSV: numbers are numbers, what is not known is None."""
    rows = [
        {name: _value_of(value) for name, value in row.items()}
        for row in csv.DictReader(io.StringIO(text))
    ]
    return Exhibit("", {table: rows})


def _value_of(text: str) -> Any:
    if text in ("True", "False"):
        return text == "True"
    try:
        return None if text == "" else float(text)
    except ValueError:
        return text


def from_frame(frame: Any, table: str) -> Exhibit:
    """Return a frame of pandas."""
    return Exhibit("", {table: frame.to_dict("records")})


def from_json(text: str) -> Exhibit:
    """Return a document: its sentences as lines, its tables and scalars by their names."""
    document = json.loads(text)
    tables: dict[str, Sequence[Row]] = {"window": [document.get("window", {})]}
    for name, result in document.get("results", {}).items():
        for table, own in result["tables"].items():
            tables[f"{name}.{table}"] = [_plain_row(row) for row in own["rows"]]
        scalars = {key: own["value"] for key, own in result["scalars"].items()}
        tables[f"{name}.scalars"] = [scalars]
    if "one_off" in document:
        tables["one_off"] = document["one_off"]["rows"]
    verdict = document.get("verdict", {})
    if isinstance(verdict, dict):
        tables["parts"] = [verdict.get("parts", {})]
    if "base" in document:
        tables["base"] = [document["base"]]
    return Exhibit("\n".join(_texts_of(document)), tables)


def _plain_row(row: Row) -> Row:
    return {
        name: value["text"] if isinstance(value, dict) and "text" in value else value
        for name, value in row.items()
    }


def _texts_of(document: Any) -> Iterator[str]:
    """Yield the sentences of a document, without those of the columns of its tables."""
    if isinstance(document, dict) and "template" in document:
        yield str(document["text"])
    elif isinstance(document, dict):
        for name, value in document.items():
            yield from _texts_of(value) if name not in ("columns",) else ()
    elif isinstance(document, list):
        for value in document:
            yield from _texts_of(value)


_SOME_ROWS: Final = re.compile(r"\bfirst [\d ,]+ of")


class _Page(HTMLParser):
    """Reads a page: by section what one sees of it, in lines, its tables and its data."""

    _INLINE: Final = frozenset({"b", "i", "span", "code", "a", "em", "strong", "wbr", "title"})
    _UNSEEN: Final = frozenset({"style", "head"})

    def __init__(self) -> None:
        super().__init__()
        self.text: dict[str, list[str]] = {"": []}
        self.tables: dict[str, list[list[list[str]]]] = {"": []}
        self.data: dict[str, list[str]] = {"": []}
        self.cut: set[tuple[str, int]] = set()
        self.lists: list[int] = []
        self.section, self.unseen, self.script = "", 0, ""
        self.is_in_cell = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Begin a section, a list, a table, a row, a cell or a line."""
        own = dict(attrs)
        if tag == "section" and own.get("id"):
            self.section = str(own["id"])
            self.text.setdefault(self.section, [])
            self.tables.setdefault(self.section, [])
            self.data.setdefault(self.section, [])
        self.script = own.get("type") or "code" if tag == "script" else self.script
        self.unseen += tag in self._UNSEEN
        if tag not in self._INLINE and not self._is_numbered():
            self.text[self.section].append("\n")
        self._begin_item(tag)
        self._begin_cell(tag)

    def _begin_item(self, tag: str) -> None:
        if tag in ("ol", "ul"):
            self.lists.append(0 if tag == "ol" else -1)
        elif tag == "li" and self.lists and self.lists[-1] >= 0:
            self.lists[-1] += 1
            self.text[self.section].append(f"{self.lists[-1]}. ")

    def _begin_cell(self, tag: str) -> None:
        tables = self.tables[self.section]
        if tag == "table":
            tables.append([])
        elif tag == "tr" and tables:
            tables[-1].append([])
        elif tag in ("td", "th") and tables:
            tables[-1][-1].append("")
            self.is_in_cell = True

    def _is_numbered(self) -> bool:
        """Return whether the number of an item stands alone: its text goes on in that line."""
        pieces = self.text[self.section]
        return bool(pieces and re.fullmatch(r"\d+\. ", pieces[-1]))

    def handle_endtag(self, tag: str) -> None:
        """End a line, a section, or what is not seen."""
        self.unseen -= tag in self._UNSEEN
        self.is_in_cell &= tag not in ("td", "th", "table")
        if tag == "script":
            self.script = ""
        if tag not in self._INLINE:
            self.text[self.section].append("\n")
        if tag in ("ol", "ul") and self.lists:
            self.lists.pop()
        if tag == "section":
            self.section = ""

    def handle_data(self, data: str) -> None:
        """Take a text to where it stands."""
        if self.script:
            if self.script == "application/json":
                self.data[self.section].append(data)
            return
        if self.unseen:
            return
        self.text[self.section].append(data)
        tables = self.tables[self.section]
        if self.is_in_cell:
            tables[-1][-1][-1] += data
        elif tables and not tables[-1] and _SOME_ROWS.search(data):
            self.cut.add((self.section, len(tables) - 1))


def from_html(html: str, signatures: Mapping[str, Sequence[str]]) -> dict[str, Exhibit]:
    """Return what one sees of a page by the id of its sections, "" for what is in none.

    The data of charts are in the table "charts": a row for each, as JSON has it. A table of which
    not all rows are shown has no name by which its figures are found.
    """
    page = _Page()
    page.feed(re.sub(r"<script(?! type=\"application/json\").*?</script>", "", html, flags=re.S))
    found = {}
    for section, pieces in page.text.items():
        lines = (" ".join(line.split()) for line in "".join(pieces).splitlines())
        tables: dict[str, Sequence[Row]] = {
            "charts": [json.loads(data) for data in page.data[section]]
        }
        for place, table in enumerate(page.tables[section]):
            names, *rows = table or [[]]
            cells = [dict(zip(names, row, strict=True)) for row in rows if len(row) == len(names)]
            is_whole = (section, place) not in page.cut
            name = _name_of(names, signatures) if is_whole else ""
            tables.setdefault(name or f"{section} {place}", cells)
        found[section] = Exhibit("\n".join(filter(None, lines)), tables)
    return found
