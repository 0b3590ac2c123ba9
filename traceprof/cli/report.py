"""``traceprof report``: everything about a trace on one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from traceprof.cli.opening import Align
from traceprof.cli.options import (
    AlignClocks,
    ClusterFile,
    Force,
    GpuModel,
    HardwareFile,
    LinkRates,
    Output,
    RackHosts,
    RulesFile,
    TracePaths,
    WindowText,
)

__all__ = ["report"]


def report(
    trace: TracePaths,
    output: Output = None,
    window: WindowText = None,
    title: Annotated[
        str | None, typer.Option("--title", help="The heading; default: the file's name.")
    ] = None,
    force: Force = False,
    rules: RulesFile = None,
    align: AlignClocks = Align.AUTO,
    gpu: GpuModel = None,
    link: LinkRates = None,
    hardware: HardwareFile = None,
    rack: RackHosts = None,
    cluster: ClusterFile = None,
) -> None:
    """Everything about a trace on one HTML page: to read, to print, to send; works offline."""
    from traceprof.analysis.advice.verdict import measure_verdict
    from traceprof.cli.analyze import run_all
    from traceprof.cli.opening import Opening, open_named
    from traceprof.cli.output import message, write_output
    from traceprof.render.report import REPORT, render_report
    from traceprof.session.selection import select
    from traceprof.units import format_bytes

    target = output or Path(f"{trace[0].stem}.report.html")
    whole = open_named(trace, Opening(rules, align, gpu, link or (), hardware, rack or (), cluster))
    selection = select(whole, window)
    part = whole.within(selection.window)
    results, missing = run_all(REPORT, part, strict=False)
    verdict = measure_verdict(part)
    heading = title or trace[0].name
    page = render_report(whole, selection, verdict, results, missing=missing, title=heading)
    write_output(target, page, force=force)
    message(f"wrote {target} ({format_bytes(target.stat().st_size)}): open it in a browser")
