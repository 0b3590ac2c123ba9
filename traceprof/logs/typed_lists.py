"""Read results that people type as list items: a speedup, and the number of GPUs that gave it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from traceprof.logs.gathered import CollectedRun
from traceprof.logs.summary import summary_table
from traceprof.logs.typed_text import note_sizes, sizes_in
from traceprof.model.results import Unit
from traceprof.model.summary import SourceFile, Summary

_ITEM: Final = re.compile(r"(?P<indent>\s{0,40}+)[-*+]\s++(?P<text>.{1,400})")
_SPEEDUP: Final = re.compile(
    r"(?<![\w.])(?P<times>\d{1,5}+(?:\.\d{1,6}+)?)\s?[x×]\s++(?:scaling|speed-?\s?up)\b"
    r"|\b(?:scaling|speed-?\s?up):?\s++(?P<after>\d{1,5}+(?:\.\d{1,6}+)?)\s?[x×](?!\w)",
    re.IGNORECASE,
)
_EFFICIENCY: Final = re.compile(
    r"(?P<percent>\d{1,3}+(?:\.\d{1,6}+)?)\s?% of (?:the )?(?:ideal|linear)", re.IGNORECASE
)
_OVER_ANOTHER: Final = re.compile(
    r"\b(?:over|than|compared|versus|vs|relative|faster|slower|baseline)\b", re.IGNORECASE
)
_MAX_LABEL_CHARS: Final = 60
_MAX_QUOTED_CHARS: Final = 120


@dataclass(slots=True)
class _Item:
    """A list item, the item that contains it, and the text of the items inside it."""

    indent: int
    text: str
    parent: str = ""
    inside: list[str] = field(default_factory=list)


def runs_in_lists(path: Path, lines: Sequence[str]) -> Iterator[Summary]:
    """Yield a run for each list item with a speedup and a single number of GPUs.

    The number may be in an item inside of it. Speedups over another program or setting do not
    count, because the number of GPUs does not explain them.
    """
    for item in _items(lines):
        whole = " ".join((item.text, *item.inside))
        found, sizes = _SPEEDUP.search(item.text), sizes_in(whole)
        if found is None or "devices_count" not in sizes or _OVER_ANOTHER.search(whole):
            continue
        run = CollectedRun()
        run.measure("printed_speedup", float(found["times"] or found["after"]), unit=Unit.NUMBER)
        efficiency = _EFFICIENCY.search(item.text)
        if efficiency is not None:
            percent = float(efficiency["percent"])
            run.measure("printed_efficiency_percent", percent, unit=Unit.NUMBER)
        note_sizes(run, sizes)
        run.say("from the list item {item}", item=repr(whole[:_MAX_QUOTED_CHARS]))
        place = item.parent.strip(" :*_`")
        yield Summary(
            "",
            origin="list",
            labels={"item": place} if 0 < len(place) <= _MAX_LABEL_CHARS else {},
            sources=(SourceFile(str(path), "list", path.stat().st_size),),
            tables={"measures": summary_table("measures", [*run.measures.values()])},
            notes=tuple(run.notes),
        )


def _items(lines: Sequence[str]) -> list[_Item]:
    """Return the items of all lists, in order."""
    found: list[_Item] = []
    opened: list[_Item] = []
    for line in lines:
        match = _ITEM.fullmatch(line.expandtabs(4).rstrip())
        if match is None:
            opened = [] if line.strip() else opened
            continue
        indent = len(match["indent"])
        opened = [item for item in opened if item.indent < indent]
        for outer in opened:
            outer.inside.append(match["text"])
        item = _Item(indent, match["text"], opened[-1].text if opened else "")
        opened.append(item)
        found.append(item)
    return found
