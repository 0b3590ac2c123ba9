"""``traceprof analyze``: one page that answers the question."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from traceprof.cli.options import (
    AsJson,
    AsMarkdown,
    RowCount,
    TracePaths,
    WindowText,
    opens_traces,
)

if TYPE_CHECKING:
    from traceprof.session.opening import Opening

__all__ = ["analyze"]


@opens_traces
def analyze(
    opening: Opening,
    trace: TracePaths,
    window: WindowText = None,
    as_json: AsJson = False,
    as_markdown: AsMarkdown = False,
    rows: RowCount = 5,
    is_full: Annotated[bool, typer.Option("--full", help="All tables below the answer.")] = False,
) -> None:
    """Where did the step time go, and what would fix it? One page about a trace or a run."""
    from traceprof.cli.output import Printing, print_page

    print_page(
        trace,
        opening,
        window,
        Printing(as_json=as_json, as_markdown=as_markdown, rows=rows, is_full=is_full),
    )
