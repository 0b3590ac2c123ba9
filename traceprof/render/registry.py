"""The ways out of traceprof, by name; what a renderer is, and how it is called with an answer.

To add one: a module with its function, and its line in `RENDERERS`. The lines hold no imports: who
prints JSON pays for no terminal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Final, TypeAlias, Union

from traceprof.errors import UsageError
from traceprof.registries import Registry

if TYPE_CHECKING:
    from traceprof.comparison import Comparison
    from traceprof.session.answer import Document


@dataclass(frozen=True, slots=True)
class Options:
    """How it is shown.

    ``rows`` is how many rows of a table are shown (None: all, where the form has no use for
    fewer). ``width`` counts the columns of a terminal and ``colours`` names what it can show, as
    rich does ("" for none, "truecolor"). ``is_whole``: only pictures keep to the width, texts and
    tables are as wide as they are. ``tables`` names tables that are shown beside the first
    of each result, however long they are. ``columns`` are those that tables are to have, in this
    order; () leaves them as they are. ``title`` heads a page. ``is_full``: all results follow
    on a page that answers.
    """

    rows: int | None = None
    width: int = 80
    is_whole: bool = False
    colours: str = ""
    tables: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    title: str = ""
    is_full: bool = False

    @property
    def line_width(self) -> int:
        """How many characters a line of text or of a table may have."""
        return _UNLIMITED if self.is_whole else self.width


_UNLIMITED: Final = 1_000_000


Answered: TypeAlias = Union["Document", "Comparison"]
"""What renderers show: an answer about a run, or about several beside one another."""


Render = Callable[[Answered, Options], str]


@dataclass(frozen=True, slots=True)
class Renderer:
    """One way out: its name, what it is for, and its ``function``, behind its module and a colon.

    A module that begins with a dot is one of this package.
    """

    name: str
    summary: str
    function: str


RENDERERS: Final[Registry[Renderer]] = Registry(
    "form",
    (
        Renderer("text", "text for a terminal", ".text.answers:render_text"),
        Renderer("json", "for programs; the schema is in docs/schema", ".json_text:render_json"),
        Renderer("csv", "one table, for spreadsheets", ".tables_text:render_csv"),
        Renderer("markdown", "tables for documents", ".tables_text:render_markdown"),
        Renderer("html", "charts and tables as an HTML page", ".html_text:render_html"),
    ),
)


def renderer_named(name: str) -> Renderer:
    """Return the renderer called ``name``.

    Raises:
        UsageError: there is none of that name.
    """
    for renderer in RENDERERS:
        if renderer.name == name:
            return renderer
    raise UsageError(f"unknown format {name!r}; use {', '.join(r.name for r in RENDERERS)}")


def render(name: str, document: Answered, options: Options | None = None) -> str:
    """Return ``document`` in the form called ``name``.

    Raises:
        UsageError: there is none of that name, or the form cannot hold the document.
    """
    module, _, function = renderer_named(name).function.partition(":")
    write: Render = getattr(import_module(module, __package__), function)
    return write(document, options or Options())
