"""What each restart of a program cost: from the progress that was kept to the next new step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from traceprof.model.ranks import Attempt
from traceprof.session.summarising.started import Started
from traceprof.values import dataclass

__all__ = ["Restart", "RestartPart", "find_restarts", "lives_at_once"]


@dataclass(frozen=True, slots=True)
class RestartPart:
    """A part of the time that a restart took.

    ``kind`` is redone (steps that are made again), noticing (until agents noticed), rendezvous,
    failed (starts that never trained, and until the one that did), initialisation (of process
    groups), loading (checkpoints), or setup, the rest of the start.

    Times are ns since 1970. The parts do not overlap; what they leave is not explained.
    """

    kind: str
    at_ns: int
    duration_ns: int


@dataclass(frozen=True, slots=True)
class Restart:
    """One return to training.

    ``kept_ns`` is up to when work was not lost, ``begin_ns`` when training began again, in
    ``life``, at ``epoch`` (None: not known). ``redone_count`` steps had to be made again.
    """

    life: int
    kept_ns: int
    begin_ns: int
    epoch: float | None
    redone_count: int
    why: str
    parts: tuple[RestartPart, ...]


def find_restarts(
    lives: Sequence[Attempt], started: Sequence[Started], agents: Sequence[Mapping[str, Any]]
) -> list[Restart]:
    """Return what lies between each life that trained and the next one that did.

    Lives that ended before their first step are part of what was lost. One that trained while the
    one before it still did is no restart of it.
    """
    trained = _by_life(started)
    found = []
    at_once = lives_at_once(started)
    for before, after in pairwise(trained):
        if (before, after) in at_once:
            continue
        old, new = trained[before], trained[after]
        began = [one for one in lives if before < one.life <= after]
        found.append(_restart(old, new, began, agents))
    last = max((one.life for one in lives), default=0)
    if trained and max(trained) < last:
        found.append(_never_again(trained[max(trained)], lives))
    return found


def lives_at_once(started: Sequence[Started]) -> list[tuple[int, int]]:
    """Return the pairs of lives, one after the other, of which the later began to train too early.

    So it is where two jobs were recorded into one folder, and where agents lost one another and
    each made a job of its own.
    """
    trained = _by_life(started)
    return [
        (before, after)
        for before, after in pairwise(trained)
        if min(one.begin_ns or 0 for one in trained[after])
        < max(one.last_work_ns for one in trained[before])
    ]


def _by_life(started: Sequence[Started]) -> dict[int, list[Started]]:
    """Return the starts that trained, by life, the lives in their order."""
    found: dict[int, list[Started]] = {}
    for one in sorted(started, key=lambda one: one.life.life):
        if one.begin_ns is not None:
            found.setdefault(one.life.life, []).append(one)
    return found


def _never_again(old: Sequence[Started], lives: Sequence[Attempt]) -> Restart:
    """Return the time from the last work to the end of a job that did not come back."""
    last, end = max(one.life for one in lives), max(one.end_ns for one in lives)
    kept = min(max(one.last_work_ns for one in old), end)
    return Restart(last, kept, end, None, 0, "it never trained again", ())


def _restart(
    old: Sequence[Started],
    new: Sequence[Started],
    began: Sequence[Attempt],
    agents: Sequence[Mapping[str, Any]],
) -> Restart:
    begin = min(one.begin_ns or 0 for one in new)
    last_work = max(one.last_work_ns for one in old)
    epoch, kept = _kept(old, new, last_work)
    redone = max(
        int(((one.work[:, 0] >= kept) & (one.work[:, 1] <= last_work)).sum()) for one in old
    )
    process = min(one.start_ns for one in began if one.life == new[0].life.life)
    first = min(one.start_ns for one in began)
    own = [event for event in agents if _is_between(event, last_work, begin)]
    noticed = [int(e["start_ns"]) for e in own if e.get("kind") in ("restart", "membership")]
    meeting = [int(e["start_ns"]) for e in own if e.get("kind") == "rendezvous"]
    parts = []
    if kept < last_work:
        parts.append(RestartPart("redone", kept, last_work - kept))
    stopped = min(max(min([*noticed, *meeting], default=last_work), last_work), first)
    if stopped > last_work:
        parts.append(RestartPart("noticing", last_work, stopped - last_work))
    if meeting:
        parts.append(RestartPart("rendezvous", stopped, first - stopped))
    if first < process:
        parts.append(RestartPart("failed", first, process - first))
    spans = [(int(a), int(b)) for one in new for a, b in one.initialisation]
    inside = [(a, b) for a, b in spans if process <= a < begin]
    length = max((b - a for a, b in inside), default=0)
    if inside:
        parts.append(RestartPart("initialisation", min(a for a, _ in inside), length))
    loads = [(int(a), int(b)) for one in new for a, b in one.loads if process <= a < begin]
    loading = max((b - a for a, b in loads), default=0)
    if loads:
        parts.append(RestartPart("loading", min(a for a, _ in loads), loading))
    parts.append(RestartPart("setup", process, begin - process - length - loading))
    why = _why([event for event in own if event.get("kind") in ("restart", "membership")], old)
    return Restart(new[0].life.life, kept, begin, epoch, redone, why, tuple(parts))


def _kept(
    old: Sequence[Started], new: Sequence[Started], last_work: int
) -> tuple[float | None, int]:
    """Return at which epoch training goes on, and up to when the work before was not lost.

    Where the program numbers its epochs: where the epoch began that is now begun again; else with
    the last checkpoint that was saved, if one was loaded; else with the last step.
    """
    numbered = [one for one in new if one.are_numbered and len(one.epochs)]
    epoch = float(numbered[0].epochs["epoch"].iloc[0]) if numbered else None
    if epoch is not None:
        starts = [
            int(row["start_ns"])
            for one in old
            if one.are_numbered
            for row in one.epochs.to_dict("records")
            if row["epoch"] == epoch
        ]
        if starts:
            return epoch, min(*starts, last_work)
        return epoch, last_work
    if any(len(one.loads) for one in new):
        saves = [int(end) for one in old for _, end in one.saves]
        if saves:
            return None, min(max(saves), last_work)
    return epoch, last_work


def _is_between(event: Mapping[str, Any], first_ns: int, last_ns: int) -> bool:
    start = event.get("start_ns")
    return isinstance(start, int) and first_ns < start < last_ns


def _why(events: Sequence[Mapping[str, Any]], old: Sequence[Started]) -> str:
    """Return in a few words why it was started again."""
    kinds = {str(event.get("kind")) for event in events}
    if "restart" in kinds or any(one.life.ended == "failed" for one in old):
        return "a rank failed"
    if "membership" in kinds:
        return "nodes came"
    return "ranks were killed" if any(one.life.ended == "killed" for one in old) else ""
