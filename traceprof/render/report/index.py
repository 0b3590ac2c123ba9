"""The order of the parts of a report, and the index that leads to them, by subject."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from traceprof.render.escape import html_text

__all__ = ["SUBJECTS", "index_html", "place_of"]

SUBJECTS: Final = (
    ("The answer", ("verdict", "findings", "breakdown", "steps", "timeline")),
    ("Ranks", ("stragglers", "rank-steps", "ranks", "shared", "hosts", "racks", "peers")),
    ("Training", ("phases", "step-phases", "layers", "path", "whatif", "pipeline")),
    ("Idle time, host", ("gaps", "idle", "launches", "sync", "ranges", "range-work", "ops")),
    ("Devices", ("kernels", "classes", "summary", "occupancy", "streams", "memory")),
    (
        "Moving data",
        (
            "copies",
            "transfers",
            "bandwidth",
            "collectives",
            "callers",
            "buckets",
            "collective-events",
            "network",
            "network-time",
        ),
    ),
    ("The trace", ("quality", "alignment", "environment", "missing")),
)
"""Every part of a report, by its key: those of one subject stand together."""

_ORDER: Final = {key: i for i, key in enumerate(key for _, keys in SUBJECTS for key in keys)}
_NAMES: Final = {
    "verdict": "Where the time went",
    "missing": "Not recorded",
    "shared": "Shared collectives",
    "rank-steps": "Heat map",
    "whatif": "What if",
    "path": "Critical path",
    "sync": "Synchronisation",
    "ops": "Host operators",
}


def place_of(key: str) -> int:
    """Return where the part ``key`` stands on the page; one that is not listed at the end."""
    return _ORDER.get(key, len(_ORDER))


def index_html(keys: Iterable[str]) -> str:
    """Return links to the parts ``keys``, under their subjects."""
    there = set(keys)
    groups = [
        f"<div><b>{html_text(subject)}</b>{''.join(map(_link, present))}</div>"
        for subject, of_subject in SUBJECTS
        if (present := [key for key in of_subject if key in there])
    ]
    return f'<nav aria-label="Contents">{"".join(groups)}</nav>'


def _link(key: str) -> str:
    name = _NAMES.get(key, key.replace("-", " ").capitalize())
    return f'<a href="#{key}">{html_text(name)}</a>'
