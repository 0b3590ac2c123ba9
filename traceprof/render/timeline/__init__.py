"""The timeline: a Trace as one interactive page."""

from traceprof.render.timeline.render import render_timeline
from traceprof.render.timeline.size import MAX_ITEMS

__all__ = ["MAX_ITEMS", "render_timeline"]
