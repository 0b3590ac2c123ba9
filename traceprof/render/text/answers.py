"""Answers in a terminal: the page that answers, or one result after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from traceprof.comparison import EXPLAIN, SCALING, TRIED, Comparison
from traceprof.render.briefing import head_of, sections_of
from traceprof.render.escape import plain_text
from traceprof.render.formatting import sentences
from traceprof.render.registry import Answered, Options
from traceprof.render.text.page import findings_view, page_view, where_view
from traceprof.render.text.tables import printed, table_view

_ROWS: Final = 5

_SHOWN_ON_PAGE: Final = ("idle",)
"""What the page has told of in its first lines."""

_HOST_ONLY: Final = ("ranges", "operators")
"""Sections that answer for the devices where nothing is known of them."""


_VIEWS: Final[Mapping[str, str]] = {
    "breakdown": "page:breakdown_view",
    "difference": "comparisons:difference_view",
    EXPLAIN: "comparisons:waterfall_view",
    SCALING: "comparisons:scaling_view",
    TRIED: "tried:tried_view",
    "rank-steps": "comparisons:heat_view",
}
"""What draws a result above its tables, or in their place: named, since few are needed at once."""

_WITHOUT_TABLES: Final = ("breakdown", "difference", EXPLAIN, SCALING, TRIED)
"""Results whose views say all that their tables do."""


def render_text(document: Answered, options: Options) -> str:
    """Return the document as lines of at most ``options.line_width`` characters.

    That is the page that answers where there is a verdict, else the results one by one.
    """
    hidden: Sequence[str] = ()
    if isinstance(document, Comparison):
        head = head_of(document)
        top: list[RenderableType] = [
            Text(plain_text(head.title, 400), style="bold"),
            *(Text(sentence) for sentence in head.sentences),
            *(Text(f"note: {note}", "dim") for note in head.remarks),
            *(Text(caveat, "yellow") for caveat in head.doubts),
        ]
    elif document.verdict is None:
        top = where_view(document)
    else:
        top = [page_view(document, document.verdict, options)]
        if not options.is_full:
            return printed(Group(*top), options)
        hidden = [*_SHOWN_ON_PAGE, *(_HOST_ONLY if "breakdown" in document.results else ())]
    return printed(Group(*top, *_sections(document, options, hidden)), options)


def _sections(
    document: Answered, options: Options, hidden: Sequence[str]
) -> Iterator[RenderableType]:
    rows, width = options.rows or _ROWS, options.line_width
    for section in sections_of(document, options):
        if section.name in hidden:
            continue
        yield Text(f"{section.title} ".ljust(options.width, "─"), style="dim")
        more = section.more
        is_plain = bool(options.columns)
        if section.name in _VIEWS and not is_plain:
            module, _, function = _VIEWS[section.name].partition(":")
            view = getattr(import_module(f".{module}", __package__), function)
            yield view(
                section.result, rows, width if section.name in _WITHOUT_TABLES else options.width
            )
        if section.name == "findings" and not is_plain:
            yield findings_view(section.result.table.rows(), width)
            more = tuple(table for table in more if table.name in options.tables)
        elif section.name in _WITHOUT_TABLES and not is_plain:
            more = ()
        else:
            empty = "none" if isinstance(document, Comparison) else "no data in this window"
            yield table_view(section.table, rows, width, empty)
        for table in more:
            about = table.about or table.name
            yield Text(f"\n{about[:1].upper()}{about[1:]}", style="dim")
            yield table_view(table, rows, width)
        for note in sentences(section.result.notes):
            yield Text(f"note: {note}", style="dim italic")
