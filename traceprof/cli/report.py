"""``traceprof report``: everything about a trace on one page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceprof.cli.options import Force, Output, TracePaths, WindowText, opens_traces

if TYPE_CHECKING:
    from traceprof.session.opening import Opening

__all__ = ["report"]


@opens_traces
def report(
    opening: Opening,
    trace: TracePaths,
    output: Output = None,
    window: WindowText = None,
    title: Annotated[
        str | None,
        typer.Option("--title", metavar="TITLE", help="The heading; default: the file's name."),
    ] = None,
    force: Force = False,
) -> None:
    """Everything about a trace on one HTML page: to read, to print, to send; works offline."""
    from traceprof import analysis
    from traceprof.cli.output import message
    from traceprof.files import check_target, write_file
    from traceprof.render.base import Options
    from traceprof.render.report import render_report
    from traceprof.session.answer import page as answer
    from traceprof.session.run import open_run
    from traceprof.units import format_bytes

    target = output or Path(f"{trace[0].stem}.report.html")
    check_target(target, force=force, inputs=trace)
    run = open_run(trace, opening).within(window)
    every = analysis.analysis_names()
    whole = run.within("all").trace()
    page = render_report(answer(run, every), whole, Options(title=title or trace[0].name))
    write_file(target, page, force=force, inputs=trace)
    message(f"wrote {target} ({format_bytes(target.stat().st_size)}): open it in a browser")
