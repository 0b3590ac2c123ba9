"""What a Kineto trace says that it was cut from: it covers that window, whatever is in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from traceprof.formats.kineto.parse import whole
from traceprof.model.cutting import CutRequest
from traceprof.model.tables import ABSENT
from traceprof.model.window import TimeWindow
from traceprof.version import __version__

__all__ = ["NOTE", "cut_window", "note_of"]

NOTE: Final = "traceprofCut"
"""The key of a list beside the events: an object for each cut, times in ns since the base."""


def note_of(request: CutRequest, window: TimeWindow) -> dict[str, object]:
    """Return what is written of a cut to ``window``, in times of the file."""
    return {
        "source": request.source,
        "window_start_ns": window.start_ns,
        "window_end_ns": window.end_ns,
        "window": request.label,
        "is_clipped": request.clip,
        "devices": None if request.devices is None else sorted(request.devices),
        "tables": None if request.tables is None else sorted(request.tables),
        "traceprof_version": __version__,
    }


def cut_window(header: Mapping[str, Any]) -> TimeWindow | None:
    """Return the window that a file was cut to, in its own times; None where it was not cut."""
    notes = header.get(NOTE)
    note = notes[-1] if isinstance(notes, list) and notes else None
    if not isinstance(note, dict):
        return None
    edges = [whole(note.get(name)) for name in ("window_start_ns", "window_end_ns")]
    return None if ABSENT in edges or edges[0] > edges[1] else TimeWindow(*edges)
