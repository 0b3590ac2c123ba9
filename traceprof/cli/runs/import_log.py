"""``traceprof runs import-log``: keep what a training program printed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from traceprof.cli.options import DatabaseFile, LabelTexts, labels_of
from traceprof.errors import UsageError

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
            metavar="NAME=REGEX",
            help="A number in lines of your own: loss='loss: ([0-9.]+)'.",
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
    from traceprof.cli.saving import say_kept
    from traceprof.session.keeping import LogReading, keep_logs
    from traceprof.store import Store

    store = Store.at(db)
    read = LogReading(source, _patterns(pattern))
    for kept in keep_logs(store, log, read, name, labels_of(label), replaces=force):
        say_kept(store, kept)


def _patterns(texts: list[str] | None) -> dict[str, str]:
    patterns = {}
    for text in texts or ():
        name, equals, pattern = text.partition("=")
        if not (name and equals and pattern):
            raise UsageError(f"--pattern {text}: expected NAME=REGEX")
        patterns[name] = pattern
    return patterns
