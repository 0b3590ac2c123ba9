"""What is said of steps once the program has ended: their make, or why there are none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from traceprof.recording.bounds import Bounds

__all__ = ["notes_on_steps"]

_WAYS: Final = (
    ("forward passes", "every-forward"),
    ("fetches", "loader"),
    ("backward passes", "backward"),
    ("optimizer steps", "optimizer"),
)
_IN_PROGRAM: Final = "--step-from range:NAME or traceprof.step() in the program"
_REGULAR: Final = 0.5


def notes_on_steps(folder: Path, bounds: Bounds, step_from: str) -> list[str]:
    """Return what the user should know of the steps of the processes that imported torch.

    Of several the one that did most speaks: ranks do the same. Nothing where steps were seen,
    those that were asked for among them, and it is plain what a step is.
    """
    each = map(_seen, folder.glob("seen.*.json"))
    found = [seen for seen in each if seen.get("steps") or any(_counts(seen).values())]
    if not found:
        return []
    seen = max(found, key=lambda one: (one.get("steps", 0), sum(_counts(one).values())))
    n_steps = seen.get("steps", 0)
    first = bounds.steps[0] if bounds.steps is not None else 0
    if not n_steps:
        return [_why_none(_counts(seen), step_from)]
    notes = []
    if n_steps <= first:
        notes.append(f"--steps begins with step {first}, and the program made {n_steps} (from 0)")
    if not step_from and not seen.get("named"):
        notes += filter(None, (_of_backward(seen), _of_turns(seen)))
    return notes


def _why_none(counts: Mapping[str, int], step_from: str) -> str:
    saw = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    ways = _ways(counts, step_from)
    say = f"--step-from {' or '.join(ways)}, or " if ways else ""
    return f"no steps: {saw} were seen; say what a step is by {say}{_IN_PROGRAM}"


def _ways(counts: Mapping[str, int], *but: str) -> list[str]:
    """Return what may be said behind ``--step-from``, with how many steps that would be."""
    ways = [(way, counts.get(what)) for what, way in _WAYS]
    return [f"{way} ({count})" for way, count in ways if count and way not in but]


def _of_backward(seen: Mapping[str, Any]) -> str | None:
    """Say that steps are backward passes, for want of an optimizer."""
    counts = _counts(seen)
    if counts.get("optimizer steps") or not counts.get("backward passes"):
        return None
    n_steps, n_passes = seen["steps"], counts["backward passes"]
    what = "backward passes" if n_steps == n_passes else f"made of {n_passes} backward passes"
    others = " or ".join(_ways(counts, "every-forward", "backward"))
    say = f"--step-from {others}, " if others else ""
    return (
        f"no optimizer of torch was seen: the {n_steps} steps are {what}; else {say}{_IN_PROGRAM}"
    )


def _of_turns(seen: Mapping[str, Any]) -> str | None:
    """Say how optimizers that take turns were made into steps, and how else they may be."""
    turns, n_steps = seen.get("turns"), seen["steps"]
    if not isinstance(turns, dict) or len(turns) < 2:
        return None
    is_joined = seen.get("joined", 0) >= _REGULAR * n_steps
    is_mixed = seen.get("changes", 0) >= min(turns.values()) and len(set(turns.values())) > 1
    if not is_joined and not is_mixed:
        return None
    each = ", ".join(f"{count} of #{number}" for number, count in turns.items())
    return (
        f"optimizers take turns ({each}) in {n_steps} steps; if each turn is a step: "
        "--step-from optimizer, if those of one: --step-from optimizer#1 (or another)"
    )


def _counts(seen: Mapping[str, Any]) -> dict[str, int]:
    """Return of what steps may be made."""
    return {what: seen[what] for what in _ORDER if isinstance(seen.get(what), int)}


_ORDER: Final = ("fetches", "forward passes", "backward passes", "optimizer steps")


def _seen(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text("utf-8", "replace"))
    except (OSError, ValueError):
        return {}
    return raw if isinstance(raw, dict) else {}
