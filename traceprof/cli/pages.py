"""The commands that make pages: a report, a timeline or picture of it, and the live viewer."""

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
    numbers_of,
    option,
    with_options,
)
from traceprof.errors import SeveralRunsError, UsageError

_MOST_BESIDE: Final = 300_000
"""Items of the timelines in the report of two runs."""

if TYPE_CHECKING:
    from traceprof.model.ranks import Ranks
    from traceprof.model.timing import TimeWindow
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

    For two runs, the page shows the comparison of `traceprof compare`.
    """
    from traceprof.cli.output import check_suffix
    from traceprof.files import check_target

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

    Raises:
        UsageError: the file exists, is one of the traces, or cannot be written.
    """
    from traceprof.cli.output import write_page

    try:
        page = _of_one(trace, opening, window, title)
    except SeveralRunsError as error:
        page = _of_two(two_runs(error), opening, window, title)
    write_page(target, page, force=force, inputs=trace)


def _of_one(trace: list[Path], opening: Opening, window: str | None, title: str | None) -> str:
    from traceprof.session.run_cache import RunCache

    heading = title or trace[0].name

    def rendered() -> list[str]:
        from traceprof.measures import analysis_names
        from traceprof.render.registry import Options
        from traceprof.render.report.render import render_report
        from traceprof.session.answer import page as answer
        from traceprof.session.run import open_run

        run = open_run(trace, opening).within(window)
        # The answer first: it needs all tables that the timeline does, and more.
        found = answer(run, analysis_names())
        return [render_report(found, run.within("all").of_ranks(), Options(title=heading))]

    return RunCache.of(trace, opening).texts(("report", window, heading), rendered)[0]


def _of_two(
    runs: tuple[Sequence[Path], Sequence[Path]],
    opening: Opening,
    window: str | None,
    title: str | None,
) -> str:
    from traceprof.comparison.comparing import compare_opened, open_two_runs
    from traceprof.render.registry import Options
    from traceprof.render.report.compared import render_compared
    from traceprof.render.timeline.beside import TimelineSide, encode_side_by_side

    found = compare_opened(*runs, opening, window)
    opened = open_two_runs(runs, opening, window)
    drawn = [TimelineSide(side.name, side.title, side.trace, side.window) for side in opened]
    beside = encode_side_by_side(drawn, max_items=_MOST_BESIDE)
    return render_compared(found, Options(title=title or ""), beside)


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
    from traceprof.cli.output import message, say_written
    from traceprof.comparison.comparing import sides_of_paths
    from traceprof.files import check_target, write_file
    from traceprof.session.run_cache import RunCache

    kind = kind or _kind_of(output)
    target = output or Path(f"{trace[0].stem}.timeline.{kind}")
    check_target(target, force=force, inputs=trace)
    heading = title or trace[0].name
    page: str | bytes
    notes: list[str] = []
    sides = None if ranks else sides_of_paths(trace)
    try:
        if sides or ranks:
            page = _page_beside(sides, trace, opening, window, title, ranks, kind)
        elif kind == "html":
            what = ("timeline", window, heading)
            page, *notes = RunCache.of(trace, opening).texts(
                what, lambda: _page(trace, opening, window, heading)
            )
        else:
            page, notes = _picture(trace, opening, window, heading, kind)
    except SeveralRunsError as error:
        if sides or ranks or kind != "html":
            raise
        page = _page_beside(two_runs(error), trace, opening, window, title, ranks, kind)
    write_file(target, page, force=force, inputs=trace)
    for note in notes:
        message(note)
    say_written(target, ": open it in a browser" if kind == "html" else "")


def _kind_of(output: Path | None) -> Literal["html", "png", "svg"]:
    """Return what the name of a file promises."""
    from traceprof.cli.output import check_suffix

    if output is None:
        return "html"
    check_suffix(
        output, ".html", ".png", ".svg", note=" (a browser can print the HTML page as PDF)"
    )
    named = output.suffix.lower()
    return "png" if named == ".png" else "svg" if named == ".svg" else "html"


def _page(trace: list[Path], opening: Opening, window: str | None, heading: str) -> list[str]:
    """Return the page, and what is to be said of it."""
    from traceprof.render.timeline.render import render_timeline

    found, part, notes = _drawn(trace, opening, window)
    page = render_timeline(found, title=heading, window=part, window_label=window or "")
    return [page, *notes]


def _page_beside(
    sides: tuple[Sequence[Path], Sequence[Path]] | None,
    trace: list[Path],
    opening: Opening,
    window: str | None,
    title: str | None,
    ranks: str | None,
    kind: str,
) -> str:
    """Return the page of two runs, or of two ranks of one."""
    if kind != "html":
        raise UsageError("two timelines side by side need an HTML page: use -o FILE.html")
    from traceprof.comparison.comparing import open_two_ranks, open_two_runs
    from traceprof.render.timeline.beside import TimelineSide, render_side_by_side

    if sides is not None:
        opened = open_two_runs(sides, opening, window)
        heading = " vs ".join(side.title for side in opened)
    else:
        opened = open_two_ranks(trace, opening, window, numbers_of(ranks) or ())
        heading = f"{trace[0].name}: " + " vs ".join(side.name for side in opened)
    drawn = [TimelineSide(side.name, side.title, side.trace, side.window) for side in opened]
    return render_side_by_side(drawn, title=title or heading, by_rank=sides is not None)


def two_runs(error: SeveralRunsError) -> tuple[Sequence[Path], Sequence[Path]]:
    """Return the two runs that were found where one is expected.

    Raises:
        SeveralRunsError: there are more.
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
    """Return the picture, and what is to be said of it."""
    from traceprof.render.pictures.figure import render_picture, timeline_figure

    found, part, notes = _drawn(trace, opening, window, is_picture=True)
    return render_picture(timeline_figure(found.merged(), title=heading, window=part), kind), notes


def _drawn(
    trace: list[Path], opening: Opening, window: str | None, *, is_picture: bool = False
) -> tuple[Ranks, TimeWindow | None, list[str]]:
    """Return what is drawn, the part of it that was chosen, and what is to be said of that."""
    from traceprof.render.formatting import note_text
    from traceprof.session.caveats import caveats, selected
    from traceprof.session.run import open_run

    run = open_run(trace, opening)
    found = run.within("all").of_ranks()
    selection = selected(run.within(window or "all"))
    notes = list(map(note_text, selection.notes))
    # A page says itself what is in doubt.
    notes += [note_text(note) for note in caveats(run).notes] if is_picture else []
    return found, selection.window.hull if window else None, notes


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

    Several traces are shown side by side.
    """
    from traceprof.cli.output import message, out
    from traceprof.session.run import open_run

    try:
        from traceprof.viewer.panes import open_pane
        from traceprof.viewer.server import ViewerServer, bind
    except ModuleNotFoundError as error:
        if error.name not in ("dash", "flask", "werkzeug"):
            raise
        raise UsageError(
            f"the viewer needs {error.name}, which is not installed: run "
            '`pip install "traceprof[view]"`'
        ) from error

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
                panes.append(open_pane(title, open_run(paths, opening)))
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
