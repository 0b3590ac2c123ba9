"""``traceprof runs tag``: give a run labels."""

from __future__ import annotations

from typing import Annotated

import typer

from traceprof.cli.options import DatabaseFile, labels_of

__all__ = ["tag"]


def tag(
    run: Annotated[str, typer.Argument(metavar="NAME", help="The run.")],
    label: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Labels: network=calico.")
    ] = None,
    drop: Annotated[
        list[str] | None, typer.Option("--drop", "-d", metavar="KEY", help="Take a label away.")
    ] = None,
    db: DatabaseFile = None,
) -> None:
    """Give a run labels, by which runs are listed and compared; print all that it has then."""
    from traceprof.cli.output import out
    from traceprof.render.escape import plain_text
    from traceprof.store import Store

    labels = Store.at(db).label(run, labels_of(label), drop or ())
    out("".join(f"{plain_text(name)}={plain_text(text)}\n" for name, text in labels.items()))
