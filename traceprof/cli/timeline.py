"""``traceprof timeline``: the trace as an interactive page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from traceprof.cli.options import Force, Output, TracePaths, numbers_of, opens_traces
from traceprof.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceprof.model.ranks import Ranks
    from traceprof.model.timing import TimeWindow
    from traceprof.session.options import Opening

__all__ = ["timeline"]


@opens_traces
def timeline(
    opening: Opening,
    trace: TracePaths,
    output: Output = None,
    window: Annotated[
        str | None,
        typer.Option(
            "--window",
            "-w",
            metavar="WINDOW",
            help="Draw only this: 12ms..30ms, 30%..50%, step:100..110, range:NAME, steady or "
            "active. Default: the whole trace.",
        ),
    ] = None,
    title: Annotated[
        str | None,
        typer.Option("--title", metavar="TITLE", help="The heading; default: the file's name."),
    ] = None,
    kind: Annotated[
        Literal["html", "png", "svg"] | None,
        typer.Option("--format", help="A page or a picture; default: by the output's name."),
    ] = None,
    ranks: Annotated[
        str | None,
        typer.Option("--ranks", metavar="A,B", help="These two ranks of the run, side by side."),
    ] = None,
    force: Force = False,
) -> None:
    """The trace as a picture to zoom into: one HTML file that works offline.

    Two runs (BASE NEW, or several files of each with `vs` between them) come side by side, step
    under step.
    """
    from traceprof.cli.output import message
    from traceprof.comparison.comparing import sides_of_paths
    from traceprof.files import check_target, write_file
    from traceprof.session.run_cache import RunCache
    from traceprof.units import format_bytes

    named = output.suffix.lstrip(".") if output else ""
    kind = kind or ("png" if named == "png" else "svg" if named == "svg" else "html")
    target = output or Path(f"{trace[0].stem}.timeline.{kind}")
    check_target(target, force=force, inputs=trace)
    heading = title or trace[0].name
    page: str | bytes
    notes: list[str] = []
    sides = None if ranks else sides_of_paths(trace, opening)
    if sides or ranks:
        if kind != "html":
            raise UsageError("two side by side are a page: name the output .html")
        page = _page_beside(sides, trace, opening, window, title, ranks)
    elif kind == "html":
        what = ("timeline", window, heading)
        page, *notes = RunCache.of(trace, opening).texts(
            what, lambda: _page(trace, opening, window, heading)
        )
    else:
        page, notes = _picture(trace, opening, window, heading, kind)
    write_file(target, page, force=force, inputs=trace)
    for note in notes:
        message(note)
    hint = ": open it in a browser" if kind == "html" else ""
    message(f"wrote {target} ({format_bytes(target.stat().st_size)}){hint}")


def _page(trace: list[Path], opening: Opening, window: str | None, heading: str) -> list[str]:
    """Return the page, and what is to be said of it."""
    from traceprof.render.timeline import render_timeline

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
) -> str:
    """Return the page of two runs, or of two ranks of one."""
    from traceprof.comparison.comparing import ranks_beside, runs_beside
    from traceprof.render.timeline.beside import TimelineSide, render_beside

    if sides is not None:
        opened = runs_beside(sides, opening, window)
        heading = " vs ".join(side.title for side in opened)
    else:
        opened = ranks_beside(trace, opening, window, numbers_of(ranks) or ())
        heading = f"{trace[0].name}: " + " vs ".join(side.name for side in opened)
    drawn = [TimelineSide(side.name, side.title, side.trace, side.window) for side in opened]
    return render_beside(drawn, title=title or heading, by_rank=sides is not None)


def _picture(
    trace: list[Path],
    opening: Opening,
    window: str | None,
    heading: str,
    kind: Literal["png", "svg"],
) -> tuple[bytes, list[str]]:
    """Return the picture, and what is to be said of it."""
    from traceprof.render.pictures import render_picture, timeline_figure

    found, part, notes = _drawn(trace, opening, window)
    return render_picture(timeline_figure(found.merged(), title=heading, window=part), kind), notes


def _drawn(
    trace: list[Path], opening: Opening, window: str | None
) -> tuple[Ranks, TimeWindow | None, list[str]]:
    """Return what is drawn, the part of it that was chosen, and what is to be said of that."""
    from traceprof.render.formatting import note_text
    from traceprof.session.run import open_run

    run = open_run(trace, opening)
    found = run.within("all").of_ranks()
    selection = run.within(window or "all").selection
    return found, selection.window if window else None, list(map(note_text, selection.notes))
