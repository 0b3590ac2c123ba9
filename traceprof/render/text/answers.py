"""Format an answer for a terminal: the page with the verdict, or one result after the other.

It also formats the results of `traceprof try`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Final

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from traceprof.comparison import EXPLAIN, SCALING, TRIED, Comparison
from traceprof.model.results import Result, Unit
from traceprof.render.briefing import head_of, sections_of
from traceprof.render.escape import plain_text
from traceprof.render.formatting import capitalized, is_known, sentences, value_text
from traceprof.render.registry import Answered, Options
from traceprof.render.shown import Row
from traceprof.render.text.page import findings_view, page_view, where_view
from traceprof.render.text.tables import printed, table_view

_DEFAULT_ROWS: Final = 5

_SHOWN_ON_PAGE: Final = ("idle",)
"""Results that the page reports in its first lines, so that their sections are left out."""

_HOST_ONLY: Final = ("ranges", "operators")
"""Results that are shown only if nothing is known about the devices."""


_VIEWS: Final[Mapping[str, str]] = {
    "breakdown": "page:breakdown_view",
    "difference": "comparisons:difference_view",
    EXPLAIN: "comparisons:waterfall_view",
    SCALING: "comparisons:scaling_view",
    TRIED: "answers:tried_view",
    "rank-steps": "comparisons:heat_view",
}
"""Module and function that draw a result above its tables or instead of them.

Names instead of functions keep imports short, because a command needs few of them.
"""

_VIEW_WIDTH: Final = 240
"""Width of a view in a pipe: a name, times, and a bar. Full names need more."""

_WITHOUT_TABLES: Final = ("breakdown", "difference", EXPLAIN, SCALING, TRIED)
"""Results whose views contain everything that their tables do."""


def render_text(document: Answered, options: Options) -> str:
    """Return the document as lines of at most ``options.line_width`` characters.

    The lines are the page of the verdict if there is one, otherwise the results one by one.

    Raises:
        UsageError: a column that was chosen is in no table.
    """
    hidden: Sequence[str] = ()
    if isinstance(document, Comparison):
        head = head_of(document)
        top: list[RenderableType] = [
            Text(plain_text(head.title, 400), style="bold"),
            *(Text(sentence) for sentence in head.sentences),
            *(Text(f"note: {note}", "dim") for note in head.remarks),
            *(Text(caveat, "yellow") for caveat in head.caveats),
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
    """Yield title, view, tables, and notes of each result that is not ``hidden``.

    If the user chose columns, only tables are shown.
    """
    rows, width = options.rows or _DEFAULT_ROWS, options.line_width
    limit = options.line_width if options.has_full_names else max(options.width, _VIEW_WIDTH)
    has_views = not options.columns
    for section in sections_of(document, options):
        name, more = section.name, section.more
        if name in hidden:
            continue
        yield Text(f"{section.title} ".ljust(options.width, "─"), style="dim")
        if has_views and name in _VIEWS:
            module, _, function = _VIEWS[name].partition(":")
            view = getattr(import_module(f".{module}", __package__), function)
            is_alone = name in _WITHOUT_TABLES
            yield view(section.result, rows, min(width, limit) if is_alone else options.width)
        if has_views and name == "findings":
            yield findings_view(section.result.table.rows(), width)
            more = tuple(table for table in more if table.name in options.tables)
        elif has_views and name in _WITHOUT_TABLES:
            more = ()
        elif not section.is_explained:
            empty = "none" if isinstance(document, Comparison) else "no data in this window"
            yield table_view(section.table, rows, options, empty)
        for table in more:
            yield Text(f"\n{capitalized(table.about or table.name)}", style="dim")
            yield table_view(table, rows, options)
        for note in sentences(section.result.notes):
            yield Text(f"note: {note}", style="dim italic")


_VERDICT_STYLES: Final = {
    "faster": "green",
    "less memory": "green",
    "slower": "yellow",
    "more memory": "yellow",
}
_MEASURED: Final = (*_VERDICT_STYLES, "no difference shown", "not decided")
_INDENT: Final = 4
_OTHER_GOAL: Final = {
    False: ("memory", ("memory_before_bytes", "memory_bytes"), Unit.BYTES),
    True: ("step time", ("before_ns", "after_ns"), Unit.NS),
}
"""What a change does to memory; where the goal is memory, what it does to step time."""


def tried_view(result: Result, _rows: int, _width: int) -> RenderableType:
    """Return every change that `traceprof try` measured, with its effect, in full length."""
    return Group(*(part for row in result.tables["changes"].rows() for part in _change(row)))


def _change(row: Row) -> Iterator[RenderableType]:
    """Yield the lines of one change: its name and verdict, then its effect or why it failed."""
    verdict = str(row["verdict"])
    is_failed = row["reason"] and verdict not in _MEASURED
    style = "red" if is_failed else _VERDICT_STYLES.get(verdict, "dim")
    head = Text(plain_text(str(row["change"]), 400), style="bold")
    yield head.append(f": {verdict}", style=style)
    for line in _change_lines(row):
        yield Padding(Text(plain_text(line, 2_000)), (0, 0, 0, _INDENT))


def _change_lines(row: Row) -> Iterator[str]:
    """Yield why a change failed, or its effect on step time, loss, and memory, and its code."""
    if row["reason"]:
        yield value_text(Unit.TEXT, row["reason"])
        if row["verdict"] not in _MEASURED:
            return
    if is_known(row.get("saving_ratio")):
        yield _change_of_goal(row)
    yield from _before_and_after(
        row, "CPU time", ("before_cpu_ns", "after_cpu_ns"), Unit.NS, " per step"
    )
    if is_known(row.get("losses")):
        yield f"losses: {value_text(Unit.TEXT, row['losses'])}"
    if row.get("broken"):
        yield f"broken: {value_text(Unit.TEXT, row['broken'])}"
    yield from _before_and_after(row, *_OTHER_GOAL[is_known(row.get("saving_bytes"))])
    if row["verdict"] in ("faster", "less memory"):
        yield f"code change: {row['lines']}"
        if row["breaks"]:
            yield f"caution: {row['breaks']}"


def _before_and_after(
    row: Row, words: str, columns: Sequence[str], unit: Unit, after: str = ""
) -> Iterator[str]:
    """Yield a value of the unchanged and of the changed program, if both are known."""
    values = [row.get(column) for column in columns]
    if all(map(is_known, values)):
        yield f"{words}: {' → '.join(value_text(unit, value) for value in values)}{after}"


def _change_of_goal(row: Row) -> str:
    """Return the goal before and after a change, and the saving with its interval."""
    verdict = str(row["verdict"])
    costs = verdict in ("slower", "more memory")
    ratios = [row[name] for name in ("saving_ratio", "low_ratio", "high_ratio")]
    if costs:  # a negative saving is a loss, whose bounds change places
        ratios = [-ratios[0], -ratios[2], -ratios[1]]
    share, low, high = (value_text(Unit.RATIO, ratio) for ratio in ratios)
    of_memory = is_known(row.get("saving_bytes"))
    names = ("memory_before_bytes", "memory_bytes") if of_memory else ("before_ns", "after_ns")
    unit, what = (Unit.BYTES, "at the peak") if of_memory else (Unit.NS, "per step")
    before, after = (value_text(unit, row[name]) for name in names)
    if not is_known(row.get("low_ratio")):
        return f"{before} → {after} {what}: difference {share} (too few runs for an interval)"
    saves = "saves" if verdict in ("faster", "less memory") else "difference"
    verb, more = ("takes", " more") if costs else (saves, "")
    text = f"{before} → {after} {what}: {verb} {share}{more} (95% CI: {low} to {high})"
    if is_known(row.get("predicted_ratio")):
        text += f"; predicted {value_text(Unit.RATIO, row['predicted_ratio'])}"
    return text
