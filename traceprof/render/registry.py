"""The ways out of traceprof, by name.

To add one: a module that defines ``RENDER``, and its line in `RENDERERS`. The lines hold no
imports: who prints JSON pays for no terminal.
"""

from __future__ import annotations

from importlib import import_module
from typing import Final

from traceprof.errors import UsageError
from traceprof.render.base import Answered, Options, Render, Renderer

__all__ = ["RENDERERS", "render", "renderer_named"]

RENDERERS: Final[tuple[Renderer, ...]] = (
    Renderer("text", "for a terminal", ".txt", "text/plain", ".text.answers"),
    Renderer("json", "for programs, see docs/schema", ".json", "application/json", ".json_text"),
    Renderer("csv", "one table, for a spreadsheet", ".csv", "text/csv", ".csv_text"),
    Renderer("markdown", "tables for a text", ".md", "text/markdown", ".markdown_text"),
    Renderer("html", "tables as a page", ".html", "text/html", ".html_text"),
)


def renderer_named(name: str) -> Renderer:
    """Return the renderer called ``name``.

    Raises:
        UsageError: there is none of that name.
    """
    for renderer in RENDERERS:
        if renderer.name == name:
            return renderer
    raise UsageError(f"no form {name!r}: there are {', '.join(r.name for r in RENDERERS)}")


def render(name: str, document: Answered, options: Options | None = None) -> str:
    """Return ``document`` in the form called ``name``.

    Raises:
        UsageError: there is none of that name, or the form cannot hold the document.
    """
    module = import_module(renderer_named(name).module, __package__)
    write: Render = module.RENDER
    return write(document, options or Options())
