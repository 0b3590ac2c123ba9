"""What people type to choose a window, and what it means in a given trace.

=====================  =====================================================================
``12ms..30ms``         relative to the start of the trace; either end may be left out
``@60.1s..@60.4s``     on the trace's own clock, as other tools print it (no unit: ns)
``step:100..110``      from the start of step 100 to the end of step 110; ``step:7`` is one
``range:forward``      the first NVTX range of that name; ``range:"epoch 3"#2`` is the second
``steady``             the steps without the leading warm-up
``active``             from the first to the last operation of any device
``all``                everything
=====================  =====================================================================
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from traceprof.errors import UsageError
from traceprof.model.steps import Steps, count_warmup, find_steps
from traceprof.model.trace import DEVICE_TABLES, Trace
from traceprof.model.window import TimeWindow
from traceprof.units import format_duration, parse_duration

__all__ = ["Selection", "select", "select_default"]

_STEP: Final = re.compile(r"step:\s*(\d+)\s*(?:\.\.\s*(\d+))?")
_RANGE: Final = re.compile(r'range:(?:"(?P<quoted>[^"]*)"|(?P<plain>.*?))(?:#(?P<nth>\d+))?')


@dataclass(frozen=True, slots=True)
class Selection:
    """A chosen window, what was asked for, and remarks on what that turned out to mean."""

    window: TimeWindow
    label: str
    notes: tuple[str, ...] = ()


def select(trace: Trace, text: str | None) -> Selection:
    """Return the window that ``text`` means in ``trace``; None chooses the default.

    Raises:
        UsageError: not one of the forms above, a step or range that is not there, or no time.
    """
    selection = select_default(trace) if text is None else _parse(trace, text.strip())
    if selection.window.duration_ns == 0:
        raise UsageError(
            f"window {selection.label!r} is empty: the trace covers "
            f"0..{format_duration(trace.span.duration_ns)}"
        )
    return selection


def select_default(trace: Trace) -> Selection:
    """Return the steady steps where steps are known, else the time in which devices worked."""
    if len(find_steps(trace)):
        return _steady(trace)
    return _active(trace)


def _parse(trace: Trace, text: str) -> Selection:
    if text == "all":
        return Selection(trace.span, "all")
    if text == "active":
        return _active(trace)
    if text == "steady":
        return _steady(trace)
    if match := _STEP.fullmatch(text):
        first = int(match.group(1))
        return _of_steps(trace, first, int(match.group(2) or first))
    if match := _RANGE.fullmatch(text):
        name = match.group("plain") if match.group("quoted") is None else match.group("quoted")
        return _of_range(trace, name, int(match.group("nth") or 1))
    if ".." in text:
        start, _, end = text.partition("..")
        window = TimeWindow(
            _instant(start, trace, trace.span.start_ns), _instant(end, trace, trace.span.end_ns)
        )
        return Selection(window & trace.span, text)
    raise UsageError(
        f"window {text!r} is not understood: expected 12ms..30ms, step:100..110, range:forward, "
        "steady, active or all"
    )


def _instant(text: str, trace: Trace, default: int) -> int:
    text = text.strip()
    if not text:
        return default
    if text.startswith("@"):
        return int(text[1:]) if text[1:].isdigit() else parse_duration(text[1:])
    return trace.span.start_ns + parse_duration(text)


def _active(trace: Trace) -> Selection:
    spans = [
        (int(frame["start_ns"].iloc[0]), int(frame["end_ns"].max()))
        for frame in map(trace.table, DEVICE_TABLES)
        if len(frame)
    ]
    if not spans:
        return Selection(trace.span, "all", ("no device worked: the whole trace is shown",))
    return Selection(TimeWindow(min(s for s, _ in spans), max(e for _, e in spans)), "active")


def _known_steps(trace: Trace) -> Steps:
    steps = find_steps(trace)
    if not len(steps):
        raise UsageError(
            "no steps are known in this trace: choose times (12ms..30ms) or a range, "
            "or record with `traceprof record`"
        )
    return steps


def _of_steps(trace: Trace, first: int, last: int) -> Selection:
    steps = _known_steps(trace)
    numbers = steps.table["step"]
    chosen = steps.table[numbers.between(first, last)]
    if chosen.empty:
        raise UsageError(f"no step {first}..{last}: the trace has {numbers.min()}..{numbers.max()}")
    window = TimeWindow(int(chosen["start_ns"].min()), int(chosen["end_ns"].max()))
    found = chosen["step"].nunique()
    notes = () if found == last - first + 1 else (f"{found} of these steps are in the trace",)
    return Selection(window, f"step:{first}..{last}", notes)


def _steady(trace: Trace) -> Selection:
    steps = _known_steps(trace)
    per_process = [
        (frame, count_warmup((frame["end_ns"] - frame["start_ns"]).to_numpy()))
        for _, frame in steps.table.groupby("process")
    ]
    dropped = max(n_dropped for _, n_dropped in per_process)
    kept = [frame.iloc[min(dropped, len(frame) - 1) :] for frame, _ in per_process]
    window = TimeWindow(
        min(int(frame["start_ns"].iloc[0]) for frame in kept),
        max(int(frame["end_ns"].max()) for frame in kept),
    )
    numbers = np.concatenate([frame["step"].to_numpy() for frame in kept])
    note = f"steps {numbers.min()}..{numbers.max()} ({steps.source})"
    if dropped:
        first = per_process[0][0]
        lost = int(first["end_ns"].iloc[dropped - 1] - first["start_ns"].iloc[0])
        note += f"; {dropped} leading step(s), {format_duration(lost)}, dropped as warm-up"
    return Selection(window, "steady", (note,))


def _of_range(trace: Trace, name: str, nth: int) -> Selection:
    trace.require("ranges")
    found = trace.ranges[trace.ranges["name"] == name]
    if found.empty:
        known = trace.ranges["name"].value_counts().head(5).index
        raise UsageError(
            f"no range {name!r} in the trace; it has {', '.join(map(str, known)) or 'none'}"
        )
    if not 1 <= nth <= len(found):
        raise UsageError(f"range {name!r} occurs {len(found)} times: #{nth} is not one of them")
    row = found.iloc[nth - 1]
    notes = (
        () if len(found) == 1 else (f"{nth} of {len(found)} ranges of this name; #N for others",)
    )
    window = TimeWindow(int(row["start_ns"]), int(row["end_ns"]))
    return Selection(window, f"range:{name}#{nth}", notes)
