"""What a renderer is, and how it is called with an answer of the session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from traceprof.comparison.base import Comparison
from traceprof.session.answer import Document

__all__ = ["Answered", "Options", "Render", "Renderer"]


Answered: TypeAlias = Document | Comparison
"""What renderers show: an answer about a run, or about several beside one another."""


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


Render = Callable[[Answered, Options], str]


@dataclass(frozen=True, slots=True)
class Renderer:
    """One way out: its name, its files' suffix and media type, and the module with ``RENDER``.

    A module that begins with a dot is one of this package.
    """

    name: str
    summary: str
    suffix: str
    media_type: str
    module: str
