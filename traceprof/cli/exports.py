"""The commands that write a trace to other files: a window of it, or a format of another tool."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from traceprof.cli import completion
from traceprof.cli.options import (
    WINDOWS,
    DeviceList,
    Force,
    KeepSecrets,
    RankList,
    TracePaths,
    open_traces,
    option,
    with_options,
)
from traceprof.cli.output import ProgressLine, message, print_notes
from traceprof.cli.parsing import numbers_of
from traceprof.errors import UsageError
from traceprof.export import EXPORTERS
from traceprof.files import check_target

if TYPE_CHECKING:
    from traceprof.session.options import Opening

_RESULT_FORMATS = ("parquet", "arrow", "csv", "openmetrics")
_FORMAT_NAMES = ", ".join(exporter.name for exporter in EXPORTERS)


@with_options
def cut(
    opening: Opening,
    trace: TracePaths,
    output: Annotated[Path, option("--output -o", "File to write, or folder for a run.", "FILE")],
    window: Annotated[
        str | None,
        option(
            "--window -w",
            f"Keep only this window: {WINDOWS}",
            "WINDOW",
            autocompletion=completion.windows,
        ),
    ] = None,
    devices: DeviceList = None,
    ranks: RankList = None,
    tables: Annotated[
        str | None,
        option(
            "--tables",
            "Keep only these events (kernels,copies,ranges …) or these tables of the file.",
            "LIST",
        ),
    ] = None,
    clip: Annotated[
        bool, option("--clip", "Shorten events that cross the edge of the window.")
    ] = False,
    split: Annotated[
        Literal["step"] | None,
        option("--split", "Write one file per step to the output folder.", "step"),
    ] = None,
    keep_secrets: KeepSecrets = False,
    force: Force = False,
) -> None:
    """Write a window of a trace as a smaller trace in the same format.

    The other tools that read the original trace can also open the smaller one.
    """
    from traceprof.session.caveats import caveats_of_stream
    from traceprof.session.cutting import Cutting, cut_run, cut_steps
    from traceprof.units import format_bytes, format_count

    names = None if tables is None else [name.strip() for name in tables.split(",")]
    cutting = Cutting(numbers_of(devices), numbers_of(ranks), names, clip, keep_secrets)
    run = open_traces(trace, opening, window)
    if split is None:
        if len(trace) == 1 and trace[0].is_file():
            check_target(output, force=force, inputs=trace)
        progress = ProgressLine("cutting")
        cuts, selection = cut_run(run, output, cutting, force=force, progress=progress)
        print_notes(selection.notes)
    else:
        cuts, _ = cut_steps(run, output, cutting, progress=ProgressLine("cutting"))
    for remark in cuts.remarks:
        message(remark)
    if run.is_read:
        print_notes(caveats_of_stream(run).notes)
    files = f"{cuts.n_files} files, " if cuts.n_files > 1 else ""
    size = f"{format_count(cuts.n_events)} events, {format_bytes(cuts.n_bytes)}"
    message(f"wrote {output} ({files}{size})")


@with_options
def export(
    opening: Opening,
    trace: TracePaths,
    to: Annotated[
        str,
        option(
            "--to",
            f"Format to write: {_FORMAT_NAMES}.",
            "FORM",
            autocompletion=lambda: [(exporter.name, exporter.summary) for exporter in EXPORTERS],
        ),
    ],
    output: Annotated[Path, option("--output -o", "File to write, or new folder.", "PATH")],
    window: Annotated[
        str | None,
        option(
            "--window -w",
            f"Export only this window: {WINDOWS} Default: all for traces and step scalars, "
            "steady steps for results.",
            "WINDOW",
            autocompletion=completion.windows,
        ),
    ] = None,
    ranks: RankList = None,
    tables: Annotated[
        str | None, option("--tables", "Export only these tables: kernels,copies …", "LIST")
    ] = None,
    results: Annotated[
        str | None,
        option(
            "--results",
            "Export results instead of the trace: steps,kernels … or all. For parquet, arrow, "
            "csv, and openmetrics.",
            "LIST",
        ),
    ] = None,
    keep_secrets: KeepSecrets = False,
    force: Force = False,
) -> None:
    """Convert a trace for other tools: Perfetto, Parquet, CSV, TensorBoard, and more."""
    from traceprof.export import exporter_called
    from traceprof.export.request import Request, check_analyses, check_tables
    from traceprof.session.caveats import caveats_of_stream
    from traceprof.units import format_bytes, format_count

    exporter = exporter_called(to)
    analyses = [] if results is None else check_analyses(_split_names(results))
    if analyses and to not in _RESULT_FORMATS:
        known = ", ".join(_RESULT_FORMATS)
        raise UsageError(f"--results does not work with --to {to}; use one of: {known}")
    request = Request(
        output,
        None if tables is None else check_tables(_split_names(tables)),
        tuple(analyses),
        numbers_of(ranks),
        force,
        ProgressLine("exporting"),
        has_tracks=tables is None and ranks is None,
    )
    run = open_traces(trace, replace(opening, keeps_secrets=keep_secrets), window)
    exported = exporter.load()(run, request)
    for remark in exported.remarks:
        message(remark)
    print_notes(caveats_of_stream(run).notes)
    size = f"{format_count(exported.n_rows)} rows, {format_bytes(exported.n_bytes)}"
    message(f"wrote {output} ({size})")


def _split_names(text: str) -> list[str]:
    """Return the names in a comma-separated list, without empty ones."""
    return [name.strip() for name in text.split(",") if name.strip()]
