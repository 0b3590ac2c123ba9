"""``traceprof report``: everything about a trace on one page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceprof.cli.options import Force, Output, TracePaths, WindowText, opens_traces

if TYPE_CHECKING:
    from traceprof.session.options import Opening

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
    """Everything about a trace on one HTML page: to read, to print, to send; works offline.

    Of two runs it is what differs between them, as `traceprof compare` has it.
    """
    from traceprof.cli.output import message
    from traceprof.errors import SeveralRunsError
    from traceprof.files import check_target, write_file
    from traceprof.units import format_bytes

    target = output or Path(f"{trace[0].stem}.report.html")
    check_target(target, force=force, inputs=trace)
    try:
        page = _of_two(trace, opening, window, title) if _are_two_runs(trace) else ""
        page = page or _of_one(trace, opening, window, title)
    except SeveralRunsError:
        if len(trace) != _TWO:
            raise
        page = _of_two(trace, opening, window, title)
    write_file(target, page, force=force, inputs=trace)
    message(f"wrote {target} ({format_bytes(target.stat().st_size)}): open it in a browser")


_TWO = 2


def _are_two_runs(paths: list[Path]) -> bool:
    """Return whether each of two paths is a run by itself: a folder."""
    return len(paths) == _TWO and all(path.is_dir() for path in paths)


def _of_one(trace: list[Path], opening: Opening, window: str | None, title: str | None) -> str:
    from traceprof.session.run_cache import RunCache

    heading = title or trace[0].name

    def rendered() -> list[str]:
        from traceprof import measures
        from traceprof.render.registry import Options
        from traceprof.render.report import render_report
        from traceprof.session.answer import page as answer
        from traceprof.session.run import open_run

        run = open_run(trace, opening).within(window)
        # The answer first: it needs all tables that the timeline does, and more.
        found = answer(run, measures.analysis_names())
        return [render_report(found, run.within("all").of_ranks(), Options(title=heading))]

    return RunCache.of(trace, opening).texts(("report", window, heading), rendered)[0]


def _of_two(trace: list[Path], opening: Opening, window: str | None, title: str | None) -> str:
    from traceprof.comparison.comparing import compare_named
    from traceprof.render.registry import Options
    from traceprof.render.report.compared import render_compared

    base, new = trace
    found = compare_named([base], [new], opening=opening, window=window)
    return render_compared(found, Options(title=title or ""))
