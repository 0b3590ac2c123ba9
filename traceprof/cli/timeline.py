"""``traceprof timeline``: the trace as an interactive page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from traceprof.cli.opening import Align
from traceprof.cli.options import (
    AlignClocks,
    ClusterFile,
    Force,
    Output,
    RackHosts,
    RulesFile,
    TracePaths,
)

__all__ = ["timeline"]


def timeline(
    trace: TracePaths,
    output: Output = None,
    window: Annotated[
        str | None,
        typer.Option(
            "--window",
            "-w",
            metavar="WINDOW",
            help="Draw only this: 12ms..30ms, step:100..110, range:NAME, steady or active. "
            "Default: the whole trace.",
        ),
    ] = None,
    title: Annotated[
        str | None, typer.Option("--title", help="The heading; default: the file's name.")
    ] = None,
    kind: Annotated[
        Literal["html", "png", "svg"] | None,
        typer.Option("--format", help="A page or a picture; default: by the output's name."),
    ] = None,
    force: Force = False,
    rules: RulesFile = None,
    align: AlignClocks = Align.AUTO,
    rack: RackHosts = None,
    cluster: ClusterFile = None,
) -> None:
    """The trace as a picture to zoom into: one HTML file that works offline."""
    from traceprof.cli.opening import Opening, open_named
    from traceprof.cli.output import message, write_output
    from traceprof.render.picture import render_picture, timeline_figure
    from traceprof.render.timeline import render_timeline
    from traceprof.session.selection import select
    from traceprof.units import format_bytes

    named = output.suffix.lstrip(".") if output else ""
    kind = kind or ("png" if named == "png" else "svg" if named == "svg" else "html")
    target = output or Path(f"{trace[0].stem}.timeline.{kind}")
    opening = Opening(rules=rules, align=align, racks=rack or (), cluster=cluster)
    found = open_named(trace, opening)
    selection = select(found, window or "all")
    heading, part = title or trace[0].name, selection.window if window else None
    page: str | bytes
    if kind == "html":
        page = render_timeline(found, title=heading, window=part, window_label=window or "")
    else:
        page = render_picture(timeline_figure(found, title=heading, window=part), kind)
    write_output(target, page, force=force)
    what = ": open it in a browser" if kind == "html" else ""
    message(f"wrote {target} ({format_bytes(target.stat().st_size)}){what}")
