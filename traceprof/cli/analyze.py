"""``traceprof analyze``: one page that answers the question."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traceprof.cli.commands import table_names
from traceprof.cli.options import (
    AsJson,
    AsMarkdown,
    RowCount,
    TracePaths,
    WindowText,
    opens_traces,
)
from traceprof.errors import UsageError

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
) -> None:
    """Where did the step time go, and what would fix it? One page about a trace or a run."""
    from traceprof.cli.output import Printing, print_page

    first = str(trace[0])
    if first in table_names() and not trace[0].exists():
        files = " ".join(map(str, trace[1:])) or "TRACE"
        raise UsageError(f"{first} is a table, no trace: traceprof show {first} {files}")
    print_page(
        trace, opening, window, Printing(as_json=as_json, as_markdown=as_markdown, rows=rows)
    )
