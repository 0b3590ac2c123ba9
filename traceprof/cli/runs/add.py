"""``traceprof runs add``: keep what traces, logs, tables and exported runs tell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from traceprof.cli.options import DatabaseFile, LabelTexts, labels_of, opens_traces

if TYPE_CHECKING:
    from traceprof.session.options import Opening

__all__ = ["add"]


@opens_traces
def add(
    opening: Opening,
    run: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN",
            help="Each one run: a trace, or the directory, pattern or manifest of its ranks; "
            "also exported runs, logs and tables of rates.",
        ),
    ],
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
    """Keep what runs gave: traceprof runs add night/ --name resnet-8gpu --label network=calico.

    A name that you choose must be free; one that follows from the file gets a number.
    """
    from traceprof.cli.saving import keep_each
    from traceprof.comparison.runs_named import keep_file
    from traceprof.store import Store

    store = Store.at(db)
    labels = labels_of(label)
    keep_each(
        store,
        run,
        lambda path: keep_file(store, path, opening, name, labels, replaces=force),
        name,
    )
