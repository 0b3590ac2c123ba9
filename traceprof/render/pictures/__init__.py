"""Pictures of a trace: a plotly figure for notebooks, and PNG and SVG files made of it."""

from __future__ import annotations

from traceprof.render.pictures.figure import timeline_figure
from traceprof.render.pictures.files import PICTURE_FORMATS, render_picture

__all__ = ["PICTURE_FORMATS", "render_picture", "timeline_figure"]
