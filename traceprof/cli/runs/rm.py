"""``traceprof runs rm``: remove runs from the database."""

from __future__ import annotations

from typing import Annotated

import typer

from traceprof.cli.options import DatabaseFile

__all__ = ["rm"]


def rm(
    run: Annotated[
        list[str],
        typer.Argument(metavar="NAME", help="Runs by their whole names, or numbers."),
    ],
    db: DatabaseFile = None,
) -> None:
    """Remove runs from the database: all that are named, or none; traces are left alone."""
    from traceprof.cli.output import message
    from traceprof.store import Store

    store = Store.at(db)
    for name in store.remove(run):
        message(f"removed {name} from {store.path}")
