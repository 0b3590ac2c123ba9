"""The tables as methods of Python: traceprof/api/tables, from what the analyses declare.

So that help(), completion and type checkers know them; `scripts/schema` writes them.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from traceprof.measures import Entry, load_analysis, nouns
from traceprof.model.results import Column, TableSpec, Unit

ROOMS = {
    "devices": ("breakdown", "kernels", "idle", "memory", "counters", "summary"),
    "hardware": ("flops", "energy"),
    "traffic": ("copies", "collectives", "network"),
    "ranks": ("ranks",),
    "programs": ("findings", "steps", "path", "ranges", "operators", "functions", "quality"),
}
"""By module the nouns whose tables are in it: a noun that is in none is an error."""
_WIDTH = 100
_MOST_AGAIN = 3
"""From so many columns on that another method tells of they are not told of again."""
_SUBJECTS = {
    "devices": "GPU activity",
    "hardware": "FLOPs and energy",
    "traffic": "data that GPUs and ranks transfer",
    "ranks": "ranks compared with each other",
    "programs": "the program",
}


def modules() -> dict[str, str]:
    """Return the text of each module, by its name."""
    known = {noun for room in ROOMS.values() for noun in room}
    if missing := nouns().keys() ^ known:
        raise ValueError(f"scripts/python_tables.py: ROOMS and nouns differ in {missing}")
    return {room: "\n".join(_module(room)) + "\n" for room in ROOMS}


def _module(room: str) -> Iterator[str]:
    own = {noun: nouns()[noun] for noun in ROOMS[room]}
    yield f'"""Tables of {_SUBJECTS[room]}, as methods. Written by `scripts/schema`."""'
    yield ""
    yield "from __future__ import annotations"
    yield ""
    if any(len(entries) > 1 for entries in own.values()):
        yield "from typing import Literal"
        yield ""
    yield "from traceprof.api.results import Result, ShownRun"
    yield ""
    yield ""
    yield f"class TablesOf{room.capitalize()}(ShownRun):"
    yield f'    """Tables of {_SUBJECTS[room]}."""'
    for entries in own.values():
        yield ""
        yield from _noun(entries)
        for entry in entries[1:]:
            yield ""
            yield from _other_name(entry, entries[: entries.index(entry)])


def _noun(entries: tuple[Entry, ...]) -> Iterator[str]:
    first, *others = entries
    if others:
        ways = ", ".join(f'"{entry.way}"' for entry in entries)
        head = f'def {_method(first.noun)}(self, by: Literal[{ways}] = "{first.way}") -> Result:'
        if len(head) + 4 > _WIDTH:
            parameters = f'        self, by: Literal[{ways}] = "{first.way}"'
            if len(parameters) > _WIDTH:  # as ruff writes it
                kind = f"Literal[{ways}]"
                if len(kind) + len(first.way) + 18 > _WIDTH:
                    kind = f"Literal[\n            {ways}\n        ]"
                parameters = f'        self,\n        by: {kind} = "{first.way}",'
            head = f"def {_method(first.noun)}(\n{parameters}\n    ) -> Result:"
        yield f"    {head}"
    else:
        yield f"    def {_method(first.noun)}(self) -> Result:"
    yield from _filled(f'"""{_sentence(first.summary)}', 8)
    if others:
        yield ""
        yield "        Args:"
        named = ", ".join(f'"{entry.way}" (`{_method(entry.name)}`)' for entry in others)
        text = f'by: the grouping: "{first.way}", or {named}'
        yield from _filled(text, 12, rest=16)
    yield from _columns(first)
    by = "by" if others else f'"{first.way}"' if first.way else "None"
    yield f'        return self._table("{first.noun}", {by})'


def _other_name(entry: Entry, told: Sequence[Entry]) -> Iterator[str]:
    yield f"    def {_method(entry.name)}(self) -> Result:"
    yield from _filled(f'"""{_sentence(entry.summary)}', 8)
    same = f'Same as ``{_method(entry.noun)}(by="{entry.way}")``. '
    yield from _columns(entry, told, same)
    yield f'        return self._table("{entry.noun}", "{entry.way}")'


def _columns(entry: Entry, told: Sequence[Entry] = (), same: str = "") -> Iterator[str]:
    """Yield what the tables are and what the columns of the first mean, and end the docstring.

    Columns that the first tables of one of ``told`` have, too, are said to be those; ``same`` is
    what else gives them.
    """
    first, *others = load_analysis(entry.name).spec.tables
    yield ""
    yield from _about(first, same)
    left = list(first)
    again = []
    for other in told:
        known = [column for column in load_analysis(other.name).spec.tables[0] if column in left]
        if len(known) >= _MOST_AGAIN:
            left = [column for column in left if column not in known]
            again.append((_method(other.name), ", ".join(map(_named, known))))
    for column in left:
        yield from _filled(f"{_named(column)}: {column.meaning}", 12, rest=16)
    for method, names in again:
        yield from _filled(f"as in ``{method}()``: {names}", 12, rest=16)
    for table in others:
        yield ""
        yield from _about(table)
        yield from _filled(", ".join(column.name for column in table), 12)
    yield '        """'


def _about(table: TableSpec, same: str = "") -> Iterator[str]:
    about = f": {table.about}" if table.about else ""
    yield from _filled(f"{same}Table ``{table.name}``{about}", 8)


def _named(column: Column) -> str:
    """Return a column with its unit, where its name does not end with it."""
    unit = column.unit.value
    is_told = column.unit in (Unit.TEXT, Unit.NUMBER, Unit.FLAG, Unit.AT_NS)
    is_told = is_told or column.name.endswith(unit.replace("/s", "_per_s"))
    return column.name if is_told else f"{column.name} ({unit})"


def _filled(text: str, indent: int, *, rest: int | None = None) -> list[str]:
    return textwrap.wrap(
        text.replace("\\", "\\\\"),
        _WIDTH,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent if rest is None else rest),
        break_on_hyphens=False,
        break_long_words=False,
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _method(name: str) -> str:
    return name.replace("-", "_")
