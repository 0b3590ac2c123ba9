"""Pictures as files: plotly hands the figure to Kaleido, which draws it in a browser."""

from __future__ import annotations

from typing import Final

import plotly.graph_objects as go

from traceprof.errors import UsageError

__all__ = ["PICTURE_FORMATS", "render_picture"]

PICTURE_FORMATS: Final = ("png", "svg")
_SCALE: Final = 2


def render_picture(figure: go.Figure, format_name: str) -> bytes:
    """Return the figure as a picture ("png" at twice its size, or "svg").

    Raises:
        UsageError: Kaleido or a browser is missing, or the picture could not be drawn.
    """
    try:
        picture = figure.to_image(format=format_name, scale=_SCALE if format_name == "png" else 1)
    except (RuntimeError, ValueError, OSError) as error:
        raise UsageError(
            f"no {format_name} can be drawn here: it takes Kaleido (pip install kaleido) and "
            "Chrome or Chromium; write .html instead"
        ) from error
    return bytes(picture)
