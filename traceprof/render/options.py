"""How an answer is shown."""

from __future__ import annotations

from traceprof.values import dataclass

__all__ = ["Options"]


@dataclass(frozen=True, slots=True)
class Options:
    """How it is shown.

    ``rows`` is how many rows of a table are shown (None: all, where the form has no use for
    fewer). ``width`` counts the columns of a terminal and ``colours`` names what it can show, as
    rich does ("" for none, "truecolor"). ``tables`` names tables that are shown beside the first
    of each result, however long they are. ``title`` heads a page. ``is_full``: all results follow
    on a page that answers.
    """

    rows: int | None = None
    width: int = 80
    colours: str = ""
    tables: tuple[str, ...] = ()
    title: str = ""
    is_full: bool = False
