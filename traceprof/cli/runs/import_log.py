"""``traceprof runs import-log``: keep what a training program printed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from traceprof.cli.options import DatabaseFile, LabelTexts, labels_of

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
    db: DatabaseFile = None,
) -> None:
    """Keep what a training program printed: throughput, accuracy, epochs, events."""
    from traceprof.cli.saving import keep_each
    from traceprof.session.keeping import LogReading, keep_log
    from traceprof.store import Store

    store = Store.at(db)
    named = {str(number): text for number, text in enumerate(pattern or ())}
    reading = LogReading(source, named)
    labels = labels_of(label)
    keep_each(
        store,
        log,
        lambda path: keep_log(store, path, reading, name, labels, replaces=force),
        name,
    )
