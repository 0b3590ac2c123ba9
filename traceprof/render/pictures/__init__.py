"""Pictures of a trace: a plotly figure for notebooks, and PNG and SVG files made of it."""

from __future__ import annotations

from traceprof.render.pictures.figure import (
    PICTURE_FORMATS,
    THEMES,
    NotebookFigure,
    render_picture,
    timeline_figure,
)

__all__ = ["PICTURE_FORMATS", "THEMES", "NotebookFigure", "render_picture", "timeline_figure"]
