"""What rich draws, as text."""

from __future__ import annotations

import io

from rich.console import Console, RenderableType

from traceprof.render.base import Options

__all__ = ["printed"]


def printed(view: RenderableType, options: Options) -> str:
    """Return ``view`` as lines of at most ``options.width`` characters."""
    out = io.StringIO()
    console = Console(
        file=out,
        width=options.width,
        highlight=False,
        force_terminal=bool(options.colours),
        color_system=options.colours or None,  # type: ignore[arg-type]
    )
    console.print(view)
    if options.colours:
        return out.getvalue()
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())
