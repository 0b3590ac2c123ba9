"""``traceprof runs import-log``: keep what a training program printed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceprof.cli.options import DatabaseFile, LabelTexts, labels_of

if TYPE_CHECKING:
    from traceprof.comparison.runs_named import LogReading

__all__ = ["import_log"]


def import_log(
    log: Annotated[
        list[Path], typer.Argument(metavar="LOG", help="What the program printed: each one run.")
    ],
    source: Annotated[
        str | None,
        typer.Option(
            "--source", metavar="NAME", help="Who wrote it, where its content is not recognised."
        ),
    ] = None,
    pattern: Annotated[
        list[str] | None,
        typer.Option(
            "--pattern",
            metavar="REGEX",
            help="Numbers in lines of your own, by named groups: "
            r"'(?P<step>\d+) loss (?P<loss>[\d.]+)'.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="What it is called; default: as the file."),
    ] = None,
    label: LabelTexts = None,
    force: Annotated[
        bool, typer.Option("--force", "-f", help="Replace the run that has the name.")
    ] = False,
    is_dry: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be kept, and keep nothing.")
    ] = False,
    db: DatabaseFile = None,
) -> None:
    """Keep what a training program printed: throughput, accuracy, epochs, events."""
    from traceprof.cli.saving import keep_each
    from traceprof.comparison.runs_named import LogReading, keep_log
    from traceprof.store import Store

    named = {str(number): text for number, text in enumerate(pattern or ())}
    reading = LogReading(source, named)
    labels = labels_of(label)
    if is_dry:
        _show(log, reading, name, labels)
        return
    store = Store.at(db)
    keep_each(
        store,
        log,
        lambda path: keep_log(store, path, reading, name, labels, replaces=force),
        name,
    )


def _show(logs: list[Path], reading: LogReading, name: str | None, labels: dict[str, str]) -> None:
    """Print the record of the runs in ``logs``, as `runs show` does."""
    from traceprof.cli.output import Printing, print_document
    from traceprof.comparison.records import record_of_runs
    from traceprof.comparison.runs_named import runs_of_log

    found = [run for path in logs for run in runs_of_log(path, reading, name, labels)]
    print_document(record_of_runs(found), Printing(rows=40))
