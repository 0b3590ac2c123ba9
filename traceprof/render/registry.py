"""List the output formats and render an answer in one of them.

To add a format, write a module with a function and add an entry to `RENDERERS`. Entries name the
function instead of importing it, so that printing JSON does not import the terminal's modules.
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
    """Options of renderers.

    Attributes:
        rows: number of rows per table; None for the default of the format.
        width: columns of the terminal.
        is_whole: do not limit the width of text and tables, only the width of bars and charts.
        has_full_names: do not shorten long names in tables without a limit of width either.
        colors: the terminal's color system as rich names it ("truecolor"), "" for no color.
        tables: names of tables to show in addition to the first of each result, however long.
        columns: names of the columns to show, in this order; () for the default columns.
        title: title of a page.
        is_full: show all results after the page with the verdict.
    """

    rows: int | None = None
    width: int = 80
    is_whole: bool = False
    has_full_names: bool = False
    colors: str = ""
    tables: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    title: str = ""
    is_full: bool = False

    @property
    def line_width(self) -> int:
        """Maximum number of characters in a line of text or of a table."""
        return _UNLIMITED_WIDTH if self.is_whole else self.width

    @property
    def name_width(self) -> int:
        """Maximum number of characters of a name in a table."""
        return _UNLIMITED_WIDTH if self.has_full_names else _MAX_NAME_WIDTH


_UNLIMITED_WIDTH: Final = 1_000_000
_MAX_NAME_WIDTH: Final = 120
"""Names of C++ kernels have up to thousands of characters."""


Answered: TypeAlias = Union["Document", "Comparison"]
"""The documents that renderers show: results of one run, or of several runs side by side."""


Render = Callable[[Answered, Options], str]


@dataclass(frozen=True, slots=True)
class Renderer:
    """An output format: its name, its use, and its ``function`` as "module:function".

    A module with a leading dot is in this package.
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
        Renderer("html", "charts and tables as an HTML page", ".report.page:render_page"),
    ),
)


def render(name: str, document: Answered, options: Options | None = None) -> str:
    """Return ``document`` in the format called ``name``.

    Raises:
        UsageError: no format has this name, or the format cannot represent the document.
    """
    functions = {renderer.name: renderer.function for renderer in RENDERERS}
    if name not in functions:
        raise UsageError(f"unknown format {name!r}; use {', '.join(functions)}")
    module, _, function = functions[name].partition(":")
    write: Render = getattr(import_module(module, __package__), function)
    return write(document, options or Options())
