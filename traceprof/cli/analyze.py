"""``traceprof analyze``: one page that answers the question."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from traceprof.cli.options import (
    AsJson,
    AsMarkdown,
    DatabaseFile,
    LabelTexts,
    RowCount,
    TracePaths,
    WindowText,
    opens_traces,
)
from traceprof.cli.saving import RunName, Save, Saving

if TYPE_CHECKING:
    from traceprof.session.options import Opening

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
    save: Save = False,
    name: RunName = None,
    label: LabelTexts = None,
    db: DatabaseFile = None,
) -> None:
    """Where did the step time go, and what would fix it? One page about a trace or a run."""
    from traceprof.cli.output import Printing, print_page

    saving = Saving.of(save, name, label, db)
    printing = Printing(as_json=as_json, as_markdown=as_markdown, rows=rows, is_full=is_full)
    print_page(trace, opening, window, printing)
    if saving.is_wanted:
        from traceprof.session.run import open_run

        saving.keep(open_run(trace, opening).within(window), trace)
