"""The commands that write or serve pages: report, timeline, live viewer, and the MCP server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from traceprof.cli import completion
from traceprof.cli.options import (
    Force,
    Title,
    TracePaths,
    WindowText,
    open_traces,
    option,
    with_options,
)
from traceprof.cli.output import check_suffix, message, out, write_output
from traceprof.cli.parsing import numbers_of
from traceprof.errors import (
    SeveralRunsError,
    TraceError,
    TraceprofError,
    UsageError,
    missing_extra,
)
from traceprof.files import check_target
from traceprof.measures import analysis_names

_MAX_COMPARED_ITEMS: Final = 300_000
"""The maximum number of timeline items in the report of two runs."""

_MAX_LOGS: Final = 2

if TYPE_CHECKING:
    from traceprof.model.ranks import Ranks
    from traceprof.model.timing import TimeWindow
    from traceprof.render.timeline.beside import SideBySideTimeline
    from traceprof.session.options import Opening


@with_options
def report(
    opening: Opening,
    trace: TracePaths,
    output: Annotated[
        Path | None, option("--output -o", "Write to FILE. Default: TRACE.report.html.", "FILE")
    ] = None,
    window: WindowText = None,
    title: Title = None,
    force: Force = False,
) -> None:
    """Write all tables and charts of a trace or run to one HTML page that works offline.

    For two runs, the page shows the comparison of `traceprof compare`. Logs have pages of their
    measures.
    """
    target = output or Path(f"{trace[0].stem}.report.html")
    check_suffix(target, ".html", note=" (a browser can print the page as PDF)")
    check_target(target, force=force, inputs=trace)
    write_report(trace, target, opening, window, title, force=force)


def write_report(
    trace: list[Path],
    target: Path,
    opening: Opening,
    window: str | None = None,
    title: str | None = None,
    *,
    force: bool,
) -> None:
    """Write the report of a run, or the comparison of two runs, to ``target`` and say so.

    The inputs may also be one or two logs.

    Raises:
        UsageError: the file exists, is one of the traces, or cannot be written.
    """
    try:
        page = _report_of_run(trace, opening, window, title)
    except SeveralRunsError as error:
        page = _report_of_comparison(two_runs(error), opening, window, title)
    except TraceError:
        page = _report_of_logs(trace, title)
        if not page:
            raise
    write_output(target, page, force=force, inputs=trace, is_page=True)


def _report_of_run(
    trace: list[Path], opening: Opening, window: str | None, title: str | None
) -> str:
    """Return the report of one run, from the cache if its files are unchanged."""
    from traceprof.session.run_cache import RunCache

    heading = title or trace[0].name

    def render_page() -> list[str]:
        from traceprof.render.registry import Options
        from traceprof.render.report.render import render_report
        from traceprof.session.answer import page as answer

        run = open_traces(trace, opening, window)
        # Compute the answer first, because it loads all tables that the timeline needs.
        document = answer(run, analysis_names())
        return [render_report(document, run.within("all").of_ranks(), Options(title=heading))]

    return RunCache.of(trace, opening).texts(("report", window, heading), render_page)[0]


def _report_of_logs(paths: Sequence[Path], title: str | None) -> str:
    """Return the report of one log, or the comparison of two; "" if the files are not logs."""
    from traceprof.comparison.comparing import compare_summaries
    from traceprof.comparison.records import record_of_runs
    from traceprof.comparison.runs_named import summaries_in
    from traceprof.render.html_text import render_html
    from traceprof.render.registry import Options
    from traceprof.render.report.compared import render_compared

    try:
        runs = [run for path in paths for run in summaries_in(path)]
    except TraceprofError:
        return ""
    if not all(run.origin.startswith("log:") for run in runs) or len(paths) > _MAX_LOGS:
        return ""
    if len(paths) == len(runs) == _MAX_LOGS:
        compared = compare_summaries(runs[:1], runs[1:])
        return render_compared(compared, Options(title=title or ""), runs=runs)
    return render_html(record_of_runs(runs), Options(title=title or ""), runs)


def _report_of_comparison(
    runs: tuple[Sequence[Path], Sequence[Path]],
    opening: Opening,
    window: str | None,
    title: str | None,
) -> str:
    """Return the report that compares two runs, with both timelines."""
    from traceprof.comparison.comparing import compare_opened
    from traceprof.render.registry import Options
    from traceprof.render.report.compared import render_compared

    comparison = compare_opened(*runs, opening, window)
    return render_compared(
        comparison, Options(title=title or ""), timelines_of(runs, opening, window)
    )


def timelines_of(
    runs: Sequence[Sequence[Path]], opening: Opening, window: str | None
) -> SideBySideTimeline:
    """Return the timelines of base and new, aligned by step.

    Raises:
        TraceprofError: a run cannot be read.
    """
    from traceprof.comparison.opened import open_two_runs
    from traceprof.render.timeline.beside import TimelineSide, encode_side_by_side

    sides = open_two_runs(runs, opening, window)
    timelines = [TimelineSide(side.name, side.title, side.trace, side.window) for side in sides]
    return encode_side_by_side(timelines, max_items=_MAX_COMPARED_ITEMS)


@with_options
def timeline(
    opening: Opening,
    trace: TracePaths,
    output: Annotated[
        Path | None, option("--output -o", "Write to FILE. Default: TRACE.timeline.html.", "FILE")
    ] = None,
    window: Annotated[
        str | None,
        option(
            "--window -w",
            "Draw only this window: 12ms..30ms, 30%..50%, step:100..110, range:NAME, steady, or "
            "active. Default: the whole trace.",
            "WINDOW",
            autocompletion=completion.windows,
        ),
    ] = None,
    title: Title = None,
    kind: Annotated[
        Literal["html", "png", "svg"] | None,
        option(
            "--format",
            "Write an HTML page or an image. Default: from the suffix of the output file.",
            "html|png|svg",
        ),
    ] = None,
    ranks: Annotated[
        str | None, option("--ranks --rank", "Draw two ranks of the run side by side.", "A,B")
    ] = None,
    force: Force = False,
) -> None:
    """Draw a zoomable timeline of a trace in one HTML file that works offline.

    For two runs (BASE NEW, or several files of each with `vs` between them), the timelines are
    aligned step by step.
    """
    from traceprof.comparison.opened import sides_of_paths
    from traceprof.session.run_cache import RunCache

    kind = kind or _format_of(output)
    target = output or Path(f"{trace[0].stem}.timeline.{kind}")
    check_target(target, force=force, inputs=trace)
    heading = title or trace[0].name
    page: str | bytes
    notes: list[str] = []
    sides = None if ranks else sides_of_paths(trace)
    try:
        if sides or ranks:
            page = _side_by_side_page(sides, trace, opening, window, title, ranks, kind)
        elif kind == "html":
            question = ("timeline", window, heading)
            page, *notes = RunCache.of(trace, opening).texts(
                question, lambda: _timeline_page(trace, opening, window, heading)
            )
        else:
            page, notes = _picture(trace, opening, window, heading, kind)
    except SeveralRunsError as error:
        if sides or ranks or kind != "html":
            raise
        page = _side_by_side_page(two_runs(error), trace, opening, window, title, ranks, kind)
    write_output(target, page, force=force, inputs=trace, is_page=kind == "html", notes=notes)


def _format_of(output: Path | None) -> Literal["html", "png", "svg"]:
    """Return the format for the suffix of the output file. Default: html.

    Raises:
        UsageError: the suffix is that of an unsupported format.
    """
    if output is None:
        return "html"
    check_suffix(
        output, ".html", ".png", ".svg", note=" (a browser can print the HTML page as PDF)"
    )
    suffix = output.suffix.lower()
    return "png" if suffix == ".png" else "svg" if suffix == ".svg" else "html"


def _timeline_page(
    trace: list[Path], opening: Opening, window: str | None, heading: str
) -> list[str]:
    """Return the timeline page, followed by notes on the window."""
    from traceprof.render.timeline.render import render_timeline

    ranks, part_window, notes = _load_drawing(trace, opening, window)
    page = render_timeline(ranks, title=heading, window=part_window, window_label=window or "")
    return [page, *notes]


def _side_by_side_page(
    sides: tuple[Sequence[Path], Sequence[Path]] | None,
    trace: list[Path],
    opening: Opening,
    window: str | None,
    title: str | None,
    ranks: str | None,
    kind: str,
) -> str:
    """Return a page with the timelines of two runs, or of two ranks of one run.

    ``sides`` are the files of each run. Without ``sides``, ``ranks`` names two ranks of ``trace``.

    Raises:
        UsageError: the format is not HTML.
    """
    if kind != "html":
        raise UsageError("two timelines side by side need an HTML page: use -o FILE.html")
    from traceprof.comparison.opened import open_two_ranks, open_two_runs
    from traceprof.render.timeline.beside import TimelineSide, render_side_by_side

    if sides is not None:
        run_sides = open_two_runs(sides, opening, window)
        heading = " vs ".join(side.title for side in run_sides)
    else:
        run_sides = open_two_ranks(trace, opening, window, numbers_of(ranks) or ())
        heading = f"{trace[0].name}: " + " vs ".join(side.name for side in run_sides)
    timelines = [TimelineSide(side.name, side.title, side.trace, side.window) for side in run_sides]
    return render_side_by_side(timelines, title=title or heading, by_rank=sides is not None)


def two_runs(error: SeveralRunsError) -> tuple[Sequence[Path], Sequence[Path]]:
    """Return the files of the two runs that were found where one was expected.

    Raises:
        SeveralRunsError: there are not two runs.
    """
    if len(error.runs) != 2:
        raise error
    base, new = error.runs
    return base, new


def _picture(
    trace: list[Path],
    opening: Opening,
    window: str | None,
    heading: str,
    kind: Literal["png", "svg"],
) -> tuple[bytes, list[str]]:
    """Return the picture of the timeline as PNG or SVG, and notes on it."""
    from traceprof.render.pictures.figure import render_picture, timeline_figure

    ranks, part_window, notes = _load_drawing(trace, opening, window, is_picture=True)
    return render_picture(
        timeline_figure(ranks.merged(), title=heading, window=part_window), kind
    ), notes


def _load_drawing(
    trace: list[Path], opening: Opening, window: str | None, *, is_picture: bool = False
) -> tuple[Ranks, TimeWindow | None, list[str]]:
    """Return the ranks to draw, the window to draw (None: all), and notes to print.

    The notes of a picture include the caveats of the run, because only a page shows them itself.
    """
    from traceprof.render.formatting import note_text
    from traceprof.session.caveats import caveats, selected

    run = open_traces(trace, opening)
    ranks = run.within("all").of_ranks()
    selection = selected(run.within(window or "all"))
    notes = list(map(note_text, selection.notes))
    if is_picture:
        notes += map(note_text, caveats(run).notes)
    return ranks, selection.window.hull if window else None, notes


@with_options
def view(
    opening: Opening,
    trace: TracePaths,
    port: Annotated[
        int,
        option("--port", "Listen on this port. 0 selects a free port.", "PORT", min=0, max=65535),
    ] = 0,
    host: Annotated[str, option("--host", "Listen on this local address.", "HOST")] = "127.0.0.1",
    allow_remote: Annotated[
        bool,
        option(
            "--allow-remote",
            "Allow other machines to connect. Anybody who has the printed address can read the "
            "trace. The connection is not encrypted.",
        ),
    ] = False,
    browser: Annotated[
        bool, option("--browser/--no-browser", "Open the viewer in a browser. Default: yes.")
    ] = True,
) -> None:
    """Open a live timeline in the browser, for traces of any size, with tables of any selection.

    Several traces are shown side by side. The folder of a running program (`record --live`) is
    shown like `traceprof watch`.
    """
    from traceprof.recording.live.history import is_history

    if len(trace) == 1 and is_history(trace[0]):
        from traceprof.cli.live import serve_page

        serve_page(trace[0], host, port, allow_remote=allow_remote, opens_browser=browser)
        return
    try:
        from traceprof.viewer.panes import open_pane
        from traceprof.viewer.server import ViewerServer, bind
    except ModuleNotFoundError as error:
        libraries = ("dash", "flask", "werkzeug")
        raise missing_extra(error, "the viewer needs", "view", *libraries) from None

    listening, address = bind(host, port, allow_remote=allow_remote)
    groups: list[Sequence[Path]] = [trace] if opening.is_one_run else [[path] for path in trace]
    panes = []
    try:
        while groups:
            paths = groups.pop(0)
            more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
            title = f"{paths[0].name or paths[0]}{more}"
            message(f"reading {title}")
            try:
                panes.append(open_pane(title, open_traces(paths, opening)))
            except SeveralRunsError as error:
                if len(error.runs) < 2 or paths in error.runs:
                    raise
                groups = [*error.runs, *groups]
    except BaseException:
        listening.close()
        raise
    server = ViewerServer(panes, listening, address)
    out(f"{address.url}\n")
    message("open this address in a browser; press Ctrl-C to stop the viewer")
    if browser:
        typer.launch(address.url)
    try:
        server.serve()
    finally:
        server.close()
    message("stopped")


@with_options
def mcp(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FOLDER", help="Folders with traces to serve. Default: the current folder."
        ),
    ] = None,
) -> None:
    """Serve the traces in a folder to AI assistants with the Model Context Protocol (MCP).

    The server uses standard input and output. It never writes, and reads only the given folders.
    """
    try:
        from traceprof.mcp_server import server_of
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("mcp", "mcp_types"):
            raise
        raise UsageError(
            'the MCP server needs mcp 2, which is not installed: run `pip install "traceprof[mcp]"`'
        ) from error
    server_of(folders or [Path()]).run("stdio")
