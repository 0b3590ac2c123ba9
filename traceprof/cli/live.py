"""The commands for running programs: watch them, and capture some of their steps."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from traceprof.cli.options import AsJson, open_traces, option, with_options
from traceprof.cli.output import Printing, message, out, print_answer
from traceprof.errors import UsageError, missing_extra

if TYPE_CHECKING:
    from collections.abc import Callable

    from traceprof.recording.live.status import Node
    from traceprof.recording.live.view import RunView

    Read = Callable[[], tuple[RunView, list[Node]]]

_MIN_INTERVAL_S: Final = 0.2


@with_options
def watch(
    run: Annotated[
        str,
        typer.Argument(
            help="Folder of a run that `record --live` started, or the address that `watch --page` "
            "printed on another machine.",
            metavar="RUN",
        ),
    ],
    interval: Annotated[
        float, option("--interval", "Refresh every SECONDS.", "SECONDS", min=_MIN_INTERVAL_S)
    ] = 1.0,
    is_once: Annotated[bool, option("--once", "Print the current state, then exit.")] = False,
    is_page: Annotated[
        bool, option("--page", "Serve a page for a browser on this machine. Print its address.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show a running program: step time, ranks, stragglers, stalls, CPU, and memory.

    The program never waits for this command. Without a terminal, each refresh prints one line.
    """
    if is_page:
        serve_page(Path(run), "127.0.0.1", 0, opens_browser=False)
        return
    name, read = _source(run)
    if is_once:
        view, nodes = read()
        _print_page(view, nodes, name, as_json=as_json)
    elif as_json or not sys.stdout.isatty():
        _print_lines(read, interval, as_json=as_json)
    else:
        _show(read, interval, name)


def serve_page(
    run: Path, host: str, port: int, *, allow_remote: bool = False, opens_browser: bool
) -> None:
    """Serve the page of a running program until the user presses Ctrl-C.

    Raises:
        TraceError: the run has no live status.
        UsageError: the address is in use, or reachable from other machines without permission.
    """
    try:
        from traceprof.viewer.running import RunServer
        from traceprof.viewer.server import bind
    except ModuleNotFoundError as error:
        raise missing_extra(error, "the page needs", "view", "dash", "flask", "werkzeug") from None
    server = RunServer(run, *bind(host, port, allow_remote=allow_remote))
    out(f"{server.address.url}\n")
    message("open this address in a browser; press Ctrl-C to stop")
    if opens_browser:
        typer.launch(server.address.url)
    try:
        server.serve()
    finally:
        server.close()
    message("stopped")


def _source(run: str) -> tuple[str, Read]:
    """Return the name of a run, and a function that reads its state and the use of its hosts.

    Raises:
        UsageError: the address of a remote run has no port.
        TraceError: the folder has no live status.
    """
    if run.startswith("http:"):
        from traceprof.recording.live.remote import parse_address

        remote = parse_address(run)
        if not remote.token:  # a command line can be read by other users
            remote = replace(remote, token=typer.prompt("token", hide_input=True, err=True))
        return f"{remote.host}:{remote.port}", remote.read
    from traceprof.recording.live.status import LiveRun, read_nodes
    from traceprof.recording.live.view import view_of

    live = LiveRun(Path(run))
    return run, lambda: (view_of(live.refresh(), live.n_damaged), read_nodes(live.live))


def _print_page(view: RunView, nodes: list[Node], run: str, *, as_json: bool) -> None:
    from traceprof.render.live_text import watch_json, watch_text

    out(watch_json(view, nodes) if as_json else watch_text(view, nodes, run, 10_000))


def _print_lines(read: Read, interval_s: float, *, as_json: bool) -> None:
    """Print one line per refresh until the run is over."""
    from traceprof.render.live_text import watch_json, watch_line

    while True:
        view, nodes = read()
        out(watch_json(view, nodes) if as_json else watch_line(view))
        if view.is_over:
            return
        time.sleep(interval_s)


def _show(read: Read, interval_s: float, run: str) -> None:
    """Refresh the page on the terminal until the run is over or the user presses Ctrl-C."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from traceprof.render.live_text import watch_text

    console = Console()
    with Live(console=console, auto_refresh=False) as screen:
        while True:
            view, nodes = read()
            screen.update(Text(watch_text(view, nodes, run, console.width)), refresh=True)
            if view.is_over:
                return
            time.sleep(interval_s)


@with_options
def capture(
    run: Annotated[
        Path, typer.Argument(help="Folder of a run that `record --live` started.", metavar="RUN")
    ],
    steps: Annotated[int, option("--steps", "Record the next N steps.", "N", min=1)] = 5,
    ranks: Annotated[
        str | None, option("--ranks", "Record only these ranks: 0,5. Default: all ranks.", "LIST")
    ] = None,
    recorder: Annotated[
        Literal["torch", "cupti"],
        option(
            "--with",
            "Record GPU activity with torch (default) or cupti. cupti costs less and "
            "records no operators.",
            "RECORDER",
        ),
    ] = "torch",
    timeout: Annotated[
        float, option("--timeout", "Stop waiting after SECONDS.", "SECONDS", min=1.0)
    ] = 300.0,
    is_quiet: Annotated[bool, option("--no-page", "Do not print the page of the trace.")] = False,
) -> None:
    """Record the next steps of a running program, write their trace, and print its page."""
    from traceprof.recording.live.capture import capture as capture_steps
    from traceprof.recording.live.status import LiveRun

    chosen = parse_ranks(ranks)
    recording = capture_steps(LiveRun(run), steps, chosen, timeout, message, recorder)
    for line in recording.lines:
        message(line)
    output = recording.output
    if output is None or is_quiet:
        return
    from traceprof.session.answer import page

    print_answer(lambda: page(open_traces([output])), Printing(rows=5), [output])


def parse_ranks(text: str | None) -> frozenset[int] | None:
    """Parse the ranks of --ranks ("0,5"); None means all ranks.

    Raises:
        UsageError: the text is not a list of ranks.
    """
    if text is None:
        return None
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and len(word) < 10 for word in words):
        raise UsageError(f"--ranks {text!r}: expected ranks separated by commas, such as 0,5")
    return frozenset(map(int, words))
