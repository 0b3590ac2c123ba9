"""What is said of steps once the program has ended: none were seen, or none of those asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from traceprof.recording.bounds import Bounds

__all__ = ["notes_on_steps"]

_WAYS: Final = (
    ("forward passes", "every-forward"),
    ("fetches", "loader"),
    ("backward passes", "backward"),
    ("optimizer steps", "optimizer"),
)


def notes_on_steps(folder: Path, bounds: Bounds, step_from: str) -> list[str]:
    """Return what the user should know of the steps of the processes that imported torch.

    Of several the one that did most speaks: ranks do the same. Nothing where steps were seen and
    those that were asked for among them.
    """
    found = [counts for counts in map(_counts, folder.glob("seen.*.json")) if any(counts.values())]
    if not found:
        return []
    counts = max(found, key=lambda one: (one.get("steps", 0), sum(one.values())))
    n_steps = counts.pop("steps", 0)
    first = bounds.steps[0] if bounds.steps is not None else 0
    if n_steps > first:
        return []
    if n_steps:
        return [f"--steps begins with step {first}, and the program made {n_steps} (from 0)"]
    ways = [f"{way} ({counts[what]})" for what, way in _WAYS if counts.get(what)]
    ways = [way for way in ways if way.split()[0] != step_from]
    saw = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    say = f"--step-from {' or '.join(ways)}, or " if ways else ""
    return [
        f"no steps: {saw} were seen; say what a step is by {say}--step-from range:NAME or "
        "traceprof.step() in the program"
    ]


def _counts(path: Path) -> dict[str, int]:
    try:
        raw = json.loads(path.read_text("utf-8", "replace"))
    except (OSError, ValueError):
        return {}
    return {str(name): int(value) for name, value in raw.items() if isinstance(value, int)}
