"""Format the history of a run: a page, JSON, or the comparison of two times."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from textwrap import wrap
from typing import Final

import numpy as np

from traceprof.comparison.statistics import MIN_STEPS, interval_of_median
from traceprof.recording.live.history import History, LevelChange, find_changes
from traceprof.render.escape import plain_text
from traceprof.render.text.page import sparkline
from traceprof.units import format_count, format_duration, format_ratio, sentence_duration

__all__ = ["compared_text", "history_json", "history_text"]
_SCHEMA: Final = 1
_MAX_GAPS: Final = 5


def history_text(history: History, name: str, width: int = 100) -> str:
    """Return the page of a run: step time over time, its changes, and their causes."""
    title = plain_text(name, 40)
    if not len(history.minutes):
        return f"{title}: no minute with steps is recorded yet\n"
    first, last = (int(history.minutes[index]) for index in (0, -1))
    n_ranks = int(history.n_ranks.max())
    lines = [
        f"{title}  ·  {_clock(first)} – {_clock(last + 1)}  ·  {n_ranks} "
        f"{'rank' if n_ranks == 1 else 'ranks'}  ·  {format_count(history.n_steps)} steps"
    ]
    low, middle, high = np.percentile(history.step_ns, [5, 50, 95])
    for label, text in (
        (
            "Step time",
            f"{sentence_duration(middle)} (5–95% of minutes: {sentence_duration(low)} – "
            f"{sentence_duration(high)})  {sparkline(history.step_ns.tolist(), 48)}",
        ),
        ("Loading", f"{sentence_duration(float(np.median(history.data_ns)))} per step"),
        ("In steps", f"{format_ratio(float(np.median(history.in_steps_ratio)))} of the time"),
        *(("Change", _change_text(change)) for change in find_changes(history)),
        *(("Restart", f"{_clock(at)}  {plain_text(label, 40)}") for at, label in history.restarts),
        *(("No data", text) for text in _gaps(history)),
    ):
        lines += wrap(text, width, initial_indent=f"{label:11} ", subsequent_indent=" " * 12)
    return "\n".join(lines) + "\n"


def history_json(history: History) -> str:
    """Return the history as JSON; times are ns, minutes count from 1970."""
    document = {
        "schema": _SCHEMA,
        "n_steps": history.n_steps,
        "minutes": {
            name: getattr(history, name).tolist()
            for name in ("minutes", "step_ns", "data_ns", "in_steps_ratio", "n_ranks")
        },
        "changes": [
            {
                "minute": change.minute,
                "before_ns": change.before_ns,
                "after_ns": change.after_ns,
                "causes": list(change.causes),
            }
            for change in find_changes(history)
        ],
        "restarts": [{"minute": at, "rank": label} for at, label in history.restarts],
    }
    return json.dumps(document) + "\n"


def compared_text(
    history: History, base: tuple[int, int], new: tuple[int, int], names: tuple[str, str]
) -> str:
    """Return the comparison of two times of a run, as a table with the change of each value."""
    parts = [history.of(span) for span in (base, new)]
    lines = [f"{'':24} {plain_text(names[0], 20):>20} {plain_text(names[1], 20):>20} {'change':>8}"]
    rows = (
        ("step time", history.step_ns, format_duration),
        ("data loading per step", history.data_ns, format_duration),
        ("time in steps", history.in_steps_ratio, format_ratio),
        ("ranks", history.n_ranks, format_count),
        ("recorded minutes", np.ones(len(history.minutes)), None),
    )
    for label, values, form in rows:
        if form is None:
            lines.append(f"{label:24} {parts[0].sum():>20} {parts[1].sum():>20}")
            continue
        old, late = (float(np.median(values[part])) for part in parts)
        change = f"{late / old - 1:+.1%}" if old else "–"
        lines.append(f"{label:24} {form(old):>20} {form(late):>20} {change:>8}")
    return "\n".join([*lines, "", _verdict(*(history.step_ns[part] for part in parts))]) + "\n"


def _verdict(*values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> str:
    """Return whether the step times of two spans differ by more than their variation."""
    (low, high), (new_low, new_high) = map(interval_of_median, values)
    if not all(map(math.isfinite, (low, new_low))):
        return f"Not enough minutes with steps to test the difference ({MIN_STEPS} are needed)."
    if low <= new_high and new_low <= high:
        return "The difference is within the variation of each time."
    faster = "slower" if new_low > high else "faster"
    return f"Steps are {faster}: the difference exceeds the variation of each time."


def _change_text(change: LevelChange) -> str:
    causes = "; ".join(plain_text(cause, 160) for cause in change.causes)
    return (
        f"{_clock(change.minute)}  step time {sentence_duration(change.before_ns)} → "
        f"{sentence_duration(change.after_ns)} ({change.after_ns / change.before_ns - 1:+.0%}). "
        f"At the same time: {causes or 'no other recorded value changed'}"
    )


def _gaps(history: History) -> Iterator[str]:
    """Yield the times without steps of two minutes or more, the longest ones."""
    found = [
        (int(late - early) - 1, int(early) + 1)
        for early, late in zip(history.minutes, history.minutes[1:], strict=False)
        if late - early > 2
    ]
    for n_minutes, start in sorted(sorted(found, reverse=True)[:_MAX_GAPS], key=lambda gap: gap[1]):
        yield f"{_clock(start)} – {_clock(start + n_minutes)}: no step ended in {n_minutes} minutes"


def _clock(minute: int) -> str:
    """Return a minute since 1970 as local time."""
    return time.strftime("%a %Y-%m-%d %H:%M", time.localtime(60 * minute))
