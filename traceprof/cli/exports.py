"""The commands that write a trace as other files: a window of it, or a form of other tools."""

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
    numbers_of,
    option,
    with_options,
)
from traceprof.errors import UsageError
from traceprof.export import EXPORTERS

if TYPE_CHECKING:
    from traceprof.session.options import Opening

_OF_RESULTS = ("parquet", "arrow", "csv", "openmetrics")
_FORMS = ", ".join(one.name for one in EXPORTERS)


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
    from traceprof.cli.output import ProgressLine, message, print_caveats
    from traceprof.files import check_target
    from traceprof.render.formatting import note_text
    from traceprof.session.caveats import caveats_of_stream
    from traceprof.session.cutting import Cutting, cut_run, cut_steps
    from traceprof.session.run import open_run
    from traceprof.units import format_bytes, format_count

    names = None if tables is None else [name.strip() for name in tables.split(",")]
    cutting = Cutting(numbers_of(devices), numbers_of(ranks), names, clip, keep_secrets)
    run = open_run(trace, opening).within(window)
    if split is None:
        if len(trace) == 1 and trace[0].is_file():
            check_target(output, force=force, inputs=trace)
        cuts, selection = cut_run(
            run, output, cutting, force=force, progress=ProgressLine("cutting")
        )
        notes = selection.notes
    else:
        cuts, _ = cut_steps(run, output, cutting, progress=ProgressLine("cutting"))
        notes = ()
    for note in notes:
        message(note_text(note))
    for remark in cuts.remarks:
        message(remark)
    if run.is_read:
        print_caveats(caveats_of_stream(run))
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
            f"Format to write: {_FORMS}.",
            "FORM",
            autocompletion=lambda: [(one.name, one.summary) for one in EXPORTERS],
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
    from traceprof.cli.output import ProgressLine, message, print_caveats
    from traceprof.export import exporter_called
    from traceprof.export.request import Request, check_analyses, check_tables
    from traceprof.session.caveats import caveats_of_stream
    from traceprof.session.run import open_run
    from traceprof.units import format_bytes, format_count

    exporter = exporter_called(to)
    asked = [] if results is None else check_analyses(_names(results))
    if asked and to not in _OF_RESULTS:
        known = ", ".join(_OF_RESULTS)
        raise UsageError(f"--results does not work with --to {to}; use one of: {known}")
    request = Request(
        output,
        None if tables is None else check_tables(_names(tables)),
        tuple(asked),
        numbers_of(ranks),
        force,
        ProgressLine("exporting"),
    )
    run = open_run(trace, replace(opening, keeps_secrets=keep_secrets)).within(window)
    done = exporter.load()(run, request)
    for remark in done.remarks:
        message(remark)
    print_caveats(caveats_of_stream(run))
    size = f"{format_count(done.n_rows)} rows, {format_bytes(done.n_bytes)}"
    message(f"wrote {output} ({size})")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
