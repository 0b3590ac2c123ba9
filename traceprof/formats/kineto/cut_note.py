"""What a Kineto trace says that it was cut from: it covers that window, whatever is in it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import reduce
from typing import Any, Final

from traceprof.formats.kineto.arguments import whole
from traceprof.model.cutting import WHOLE, CutNote, CutRequest, noted_names, noted_numbers
from traceprof.model.tables import ABSENT
from traceprof.model.timing import TimeWindow
from traceprof.version import __version__

__all__ = ["NOTE", "cut_note", "cut_note_in", "note_of"]

NOTE: Final = "traceprofCut"
"""The key of a list beside the events: an object for each cut, times in ns since the base."""


def note_of(
    request: CutRequest,
    window: TimeWindow,
    recorded: Collection[str],
    devices: Collection[int],
) -> dict[str, object]:
    """Return what is written of a cut to ``window``, in times of the file.

    ``recorded`` are the tables that the source has, ``devices`` those that worked in it, as far as
    they are kept.
    """
    return {
        "source": request.source,
        "window_start_ns": window.start_ns,
        "window_end_ns": window.end_ns,
        "window": request.label,
        "is_clipped": request.clip,
        "devices": None if request.devices is None else sorted(request.devices),
        "tables": None if request.tables is None else sorted(request.tables),
        "recorded": sorted(recorded),
        "used_devices": sorted(devices),
        "traceprof_version": __version__,
    }


def cut_note(header: Mapping[str, Any]) -> CutNote:
    """Return what a file says of how it was cut, windows in its own times."""
    return cut_note_in(header.get(NOTE))


def cut_note_in(notes: Any) -> CutNote:
    """Return what the notes of all cuts say together: the last window, what all of them kept."""
    every = notes if isinstance(notes, list) else []
    note = every[-1] if every else None
    if not isinstance(note, dict):
        return WHOLE
    edges = [whole(note.get(name)) for name in ("window_start_ns", "window_end_ns")]
    if ABSENT in edges or edges[0] > edges[1]:
        return WHOLE
    kept = [one.get("tables") for one in every if isinstance(one, dict)]
    names = [noted_names(one) for one in kept if isinstance(one, list)]
    return CutNote(
        TimeWindow(*edges),
        noted_names(note.get("recorded")),
        noted_numbers(note.get("used_devices")),
        reduce(frozenset.__and__, names) if names else None,
    )
