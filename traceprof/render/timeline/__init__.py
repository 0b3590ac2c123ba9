"""The timeline: a Trace as one interactive page."""

from __future__ import annotations

from traceprof.render.timeline.render import MAX_ITEMS, render_timeline

__all__ = ["MAX_ITEMS", "render_timeline"]
