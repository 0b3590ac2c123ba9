"""Pictures of a trace: a plotly figure for notebooks, and PNG and SVG files made of it."""

from __future__ import annotations

from traceprof.render.pictures.figure import THEMES, timeline_figure
from traceprof.render.pictures.files import PICTURE_FORMATS, render_picture
from traceprof.render.pictures.notebook import NotebookFigure

__all__ = ["PICTURE_FORMATS", "THEMES", "NotebookFigure", "render_picture", "timeline_figure"]
