"""``traceprof view``: traces of any size, live in a browser."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceprof.cli.options import TracePaths, opens_traces
from traceprof.errors import UsageError

if TYPE_CHECKING:
    from traceprof.session.options import Opening

__all__ = ["view"]


@opens_traces
def view(
    opening: Opening,
    trace: TracePaths,
    together: Annotated[
        bool,
        typer.Option("--run", help="The traces are the ranks of one run: show them as one."),
    ] = False,
    port: Annotated[
        int,
        typer.Option(
            "--port", metavar="PORT", min=0, max=65535, help="Listen here; 0 takes a free port."
        ),
    ] = 0,
    host: Annotated[
        str, typer.Option("--host", metavar="HOST", help="Listen on this address of this machine.")
    ] = "127.0.0.1",
    allow_remote: Annotated[
        bool,
        typer.Option(
            "--allow-remote",
            help="Let other machines read the trace: whoever has the printed address, unencrypted.",
        ),
    ] = False,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the browser.")
    ] = True,
) -> None:
    """The timeline of traces of any size, side by side, with tables of what you select."""
    from traceprof.cli.output import message, out
    from traceprof.session.run import open_run

    try:
        from traceprof.viewer.guard import bind
        from traceprof.viewer.panes import open_pane
        from traceprof.viewer.server import ViewerServer
    except ModuleNotFoundError as error:
        if error.name not in ("dash", "flask", "werkzeug"):
            raise
        raise UsageError(
            f'the viewer needs {error.name}, which is not installed: pip install "traceprof[view]"'
        ) from error

    listening, address = bind(host, port, allow_remote=allow_remote)
    opening = replace(opening, is_one_run=together)
    groups = [trace] if together else [[path] for path in trace]
    panes = []
    try:
        for paths in groups:
            title = _title(paths)
            message(f"reading {title}")
            panes.append(open_pane(title, open_run(paths, opening)))
    except BaseException:
        listening.close()
        raise
    server = ViewerServer(panes, listening, address)
    out(f"{address.url}\n")
    message("open this address in a browser; Ctrl-C ends the viewer")
    if browser:
        typer.launch(address.url)
    try:
        server.serve()
    finally:
        server.close()
    message("ended")


def _title(paths: list[Path]) -> str:
    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    return f"{paths[0].name or paths[0]}{more}"
