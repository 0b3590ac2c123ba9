"""What people type to choose a window, and what it means in a given trace.

=====================  =====================================================================
``12ms..30ms``         relative to the start of the trace; either end may be left out
``30%..50%``           shares of the time that the trace covers
``@60.1s..@60.4s``     on the trace's own clock, as other tools print it (no unit: ns)
``first:2s``           the first two seconds; ``last:2s`` the last two, ``last:10%``
``step:100..110``      the steps 100 to 110, ``step:7`` is one: on the devices from the end of the
                       last work of the step before to the end of their own last work (on the
                       host from start to start, where launches were not recorded)
``pattern:3..5``       the iterations 3 to 5 of a pattern of kernels, where no steps are known
``range:forward``      the first NVTX range of that name; ``range:"epoch 3"#2`` is the second,
                       ``#2..5`` from the second to the fifth, ``@NCCL`` of that domain,
                       ``range:/regex/`` of a name that the regular expression matches
``steady``             the steps without the leading warm-up, borders as above
``active``             from the first to the last operation of any device
``all``                everything
``A & B``              B inside A: ``step:7 & range:forward``, ``steady & last:2s``
=====================  =====================================================================
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Final

import numpy as np

from traceprof.errors import NotRecordedError, UsageError
from traceprof.measures.device.times import between_cycles, recorded_windows, recorder_times
from traceprof.measures.host.ranges import RANGE, find_ranges
from traceprof.measures.steps.base import base_within, steady_window
from traceprof.measures.steps.costs import OCCASIONS
from traceprof.measures.steps.find import pattern_of_ranks, steps_of_ranks
from traceprof.measures.steps.from_phases import RECORDED_PHASES
from traceprof.measures.steps.from_ranges import how_to_record_steps
from traceprof.measures.steps.ledger import CUT, INCOMPLETE, SLOW, ledger_within
from traceprof.measures.steps.main_loop import active_window, host_window, main_loop
from traceprof.model.grouping import rows_by_value
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note
from traceprof.model.table import Table
from traceprof.model.tables import ABSENT
from traceprof.model.timing import Steps, TimeWindow
from traceprof.model.trace import Trace, merge_similar_warnings
from traceprof.units import format_duration, parse_duration

_MIN_COVERED_RATIO: Final = 0.5
_STEP_PATTERN: Final = re.compile(
    r"(?P<what>step|pattern):\s*+(?P<first>\d*+)\s*+(?P<dots>\.\.)?\s*+(?P<last>\d*+)"
)
_EDGE_PATTERN: Final = re.compile(r"(?P<side>first|last):\s*(?P<duration>.+)")
_SHARE_PATTERN: Final = re.compile(r"\s*(\d{1,3}(?:\.\d{0,15})?)\s*%\s*")
_HUNDRED: Final = Decimal(100)
_PART_PATTERN: Final = re.compile(r'\s*+range:(?:"[^"]*+"|/(?:[^/\\]|\\.)*+/)[^&]*+|[^&]++')


@dataclass(frozen=True, slots=True)
class Selection:
    """A selected window, the text that selected it, and notes on its meaning.

    ``reason`` is the first note: the origin of the window and the reason for it (None: the window
    is exactly what the user typed). ``asked`` is the text that the user typed, "" for the default.
    """

    window: TimeWindow
    label: str
    notes: tuple[Note, ...] = ()
    reason: Note | None = None
    asked: str = ""


def select(ranks: Ranks, text: str | None) -> Selection:
    """Return the window that ``text`` means in ``ranks``; None selects the default.

    Raises:
        UsageError: the text has none of the forms above, a step or range does not exist, or the
            window is empty.
    """
    selection = select_default(ranks) if text is None else _combined(ranks, text)
    if ranks.span.duration_ns == 0:
        why = (
            "; ".join(merge_similar_warnings(ranks.info.warnings))
            or "the trace has no rows with times"
        )
        raise UsageError(f"{ranks.info.path or 'the trace'}: no events to analyze: {why}")
    if selection.window.duration_ns == 0:
        raise UsageError(
            f"window {selection.label!r} contains no data: the trace covers "
            f"0 to {format_duration(ranks.span.duration_ns)}"
        )
    return replace(selection, reason=next(iter(selection.notes), None), asked=text or "")


def check_ranks(wanted: Iterable[int], known: Iterable[int]) -> None:
    """Check that all ranks in ``wanted`` are in ``known``.

    Raises:
        UsageError: a rank is missing.
    """
    available = sorted({int(rank) for rank in known} - {ABSENT})
    if missing := sorted(set(wanted) - set(available)):
        listed = ", ".join(map(str, available)) or "none"
        raise UsageError(f"no rank {', '.join(map(str, missing))} in the trace; ranks: {listed}")


def select_default(ranks: Ranks) -> Selection:
    """Return the steady steps if steps are known, else the main loop of the GPU activity."""
    steps = steps_of_ranks(ranks)
    is_found = ranks.parts[0].warmup_steps is None
    if not len(steps):
        return _within_last_recording(ranks, _main_loop(ranks))
    found = _steady(ranks)
    if not found.window.duration_ns:  # damaged times: the first step outlasts all others
        whole = _active(ranks)
        return replace(whole, notes=(*whole.notes, Note(_EMPTY_STEPS)))
    table = steps.table
    if not is_found or not table["declared_warmup"].all():
        return found
    loop = _main_loop(ranks)
    covered_ns = int(table["device_end_ns"].max() - table["device_start_ns"].min())
    if covered_ns < _MIN_COVERED_RATIO * loop.window.duration_ns:
        note = Note.of(
            "Only warm-up steps have markers ({n:count}), so the window does not consist of steps.",
            n=len(np.unique(table["step"])),
        )
        return replace(loop, notes=(*loop.notes, note))
    note = Note("All steps are marked as warm-up. traceprof analyzes the steps of typical length.")
    return replace(found, notes=(*found.notes, note))


def _combined(ranks: Ranks, text: str) -> Selection:
    """Return the window of parts joined by ``&``; each part is resolved inside the previous one."""
    selection = Selection(ranks.span, "all")
    labels: list[str] = []
    parts = _parts_of(ranks, text.strip())
    for part in parts:
        found = _parse(ranks, part.strip())
        window = found.window & selection.window
        selection = Selection(window, "", (*selection.notes, *found.notes))
        labels.append(found.label)
        ranks = ranks.within(window) if len(parts) > 1 else ranks
    return replace(selection, label=" & ".join(labels))


def _parts_of(ranks: Ranks, text: str) -> list[str]:
    """Return the parts of ``text`` between ``&``; a range whose name contains ``&`` is one part."""
    name = text.removeprefix("range:")
    if any(ranks.each(_has_range, name)):
        return [text]
    return [part for found in _PART_PATTERN.findall(text) if (part := found.strip())] or [text]


def _has_range(trace: Trace, name: str) -> bool:
    return bool((trace.ranges["name"].texts == name).any())


def _parse(ranks: Ranks, text: str) -> Selection:
    """Return the window of one part."""
    named: dict[str, Callable[[], Selection]] = {
        "all": lambda: Selection(ranks.span, "all"),
        "active": lambda: _active(ranks),
        "steady": lambda: _steady(ranks),
    }
    if text in named:
        return named[text]()
    if (match := _STEP_PATTERN.fullmatch(text)) and (match["first"] or match["last"]):
        return _of_steps(ranks, match)
    if match := RANGE.fullmatch(text):
        window, label, notes = find_ranges(ranks, match)
        return Selection(window, label, notes)
    if match := _EDGE_PATTERN.fullmatch(text):
        return _edge(ranks, match["side"], _length(match["duration"], ranks), text)
    if ".." in text:
        start, _, end = text.partition("..")
        begin = _instant(start, ranks, ranks.span.start_ns)
        absolute = start.strip().startswith("@")
        window = TimeWindow(begin, _instant(end, ranks, ranks.span.end_ns, absolute))
        return Selection(window & ranks.span, text)
    raise UsageError(
        f"invalid window {text!r}: expected 12ms..30ms, 30%..50%, last:2s, step:100..110, "
        "range:forward, steady, active or all"
    )


def _instant(text: str, ranks: Ranks, default: int, absolute: bool = False) -> int:
    """Return a time of the window in ns on the clock of the run; "" means ``default``."""
    text = text.strip()
    if not text:
        return default
    if text.startswith("@") or (absolute and not text.endswith("%")):
        text = text.removeprefix("@")
        return int(text) if text.isdigit() else parse_duration(text)
    return ranks.span.start_ns + _length(text, ranks)


def _length(text: str, ranks: Ranks) -> int:
    """Return a duration in ns; the text may be a share of the span."""
    if not text.rstrip().endswith("%"):
        return parse_duration(text)
    share = _SHARE_PATTERN.fullmatch(text)
    if share is None or not 0 <= Decimal(share[1]) <= _HUNDRED:
        raise UsageError(f"invalid share {text.strip()!r} of the trace: expected 0% to 100%")
    return int((Decimal(share[1]) * ranks.span.duration_ns / _HUNDRED).to_integral_value())


def _edge(ranks: Ranks, side: str, duration_ns: int, label: str) -> Selection:
    """Return a window of ``duration_ns`` at the start or the end of the span."""
    span = ranks.span
    if side == "first":
        return Selection(TimeWindow(span.start_ns, span.start_ns + duration_ns) & span, label)
    return Selection(TimeWindow(span.end_ns - duration_ns, span.end_ns) & span, label)


def _active(ranks: Ranks) -> Selection:
    """Return the window of GPU activity, else of passes on the host, else the whole span."""
    window = active_window(ranks)
    if window is None:
        on_host = host_window(ranks)
        if on_host is not None:
            return Selection(on_host, "active", (Note(_ON_HOST),))
        return Selection(ranks.span, "all", (Note(_NOTHING),))
    return Selection(window, "active")


def _main_loop(ranks: Ranks) -> Selection:
    """Return the window that is analyzed without known steps, with the reason."""
    loop = main_loop(ranks)
    if loop is None:
        return _active(ranks)
    sides = {"before": loop.before_ns, "after": loop.after_ns}
    if loop.turns_count:
        text = (
            "No step markers found. traceprof detected {turns:count} iteration(s) from the kernel "
            "sequence"
        )
    elif loop.before_ns or loop.after_ns:
        text = "No step markers found. traceprof analyzes all work except"
        text += " setup" if loop.before_ns else ""
        text += " (up to the end of {setup})" if loop.setup else ""
        end = " and the end" if loop.before_ns else " the end, where few kernels run"
        text += end if loop.after_ns else ""
    else:
        return Selection(loop.window, "active", (Note(_NO_STEPS),))
    left_out = [f"{{{side}:ns}} {side}" for side in ("before", "after") if sides[side]]
    text += f". It ignores {' and '.join(left_out)}." if left_out else "."
    turns = len(np.unique(pattern_of_ranks(ranks).table["step"]))
    values: dict[str, Any] = {"turns": turns, "setup": loop.setup}
    return Selection(loop.window, "main loop", (Note.of(text, **values, **sides),))


_NAMED_KINDS: Final = (SLOW, CUT, INCOMPLETE, *OCCASIONS)
_ON_HOST: Final = (
    "No GPU activity was recorded. The window covers all passes of the model on the host."
)
_NOTHING: Final = "No GPU activity was recorded. traceprof shows the whole trace."
_EMPTY_STEPS: Final = (
    "The steps after warm-up have no duration, so the window does not consist of steps."
)
_NO_STEPS: Final = "No step markers found. The window covers all GPU activity."


def _known_steps(ranks: Ranks) -> Steps:
    """Return the steps of the run.

    Raises:
        NotRecordedError: no steps are known.
    """
    steps = steps_of_ranks(ranks)
    if len(steps):
        return steps
    choice = ": choose times (12ms..30ms) or a range"
    if len(pattern_of_ranks(ranks)):
        choice = (
            ", only iterations in the kernel sequence: choose iterations (pattern:3..5) or "
            "times (12ms..30ms)"
        )
    how = how_to_record_steps(ranks)
    raise NotRecordedError(f"the trace contains no steps{choice}, or {how}")


def _of_steps(ranks: Ranks, match: re.Match[str]) -> Selection:
    """Return the window of the steps or iterations in ``match``."""
    what = match["what"]
    steps = _known_steps(ranks) if what == "step" else pattern_of_ranks(ranks)
    if not len(steps):
        raise UsageError("the kernel sequence contains no iterations: choose times (12ms..30ms)")
    table = steps.table
    numbers = table["step"]
    first = int(match["first"] or numbers.min())
    alone = first if not match["dots"] else int(numbers.max())
    last = int(match["last"] or alone)
    chosen = table.take((first <= numbers) & (numbers <= last))
    if chosen.empty:
        asked = first if last == first else f"{first}..{last}"
        raise UsageError(f"no {what} {asked}: the trace contains {numbers.min()}–{numbers.max()}")
    window = _window_of(chosen)
    times = window.times
    for by_process in ranks.each(recorder_times) if not chosen["on_device"].any() else ():
        for recorder_time in by_process.values():  # host periods exclude it
            times = times - recorder_time
    window = TimeWindow.of(times, window, is_of_steps=True) if len(times) else window
    found = len(np.unique(chosen["step"]))
    notes = [_with_origin("Steps detected from {origin}BORDERS.", steps, chosen, ranks)]
    values: dict[str, Any] = {"found": found, "what": "step" if what == "step" else "iteration"}
    if found != last - first + 1:
        notes.append(Note.of("The trace contains {found:count} of these {what}s.", **values))
    label = f"{what}:{first}" if first == last else f"{what}:{first}..{last}"
    return Selection(window, label, tuple(notes))


def _window_of(steps: Table) -> TimeWindow:
    """Return the window from the first start to the last end of ``steps`` on the devices."""
    start_ns, end_ns = int(steps["device_start_ns"].min()), int(steps["device_end_ns"].max())
    return TimeWindow(start_ns, end_ns, is_of_steps=True)


def _steady(ranks: Ranks) -> Selection:
    """Return the window of the steps without the leading warm-up."""
    steps = _known_steps(ranks)
    is_warmup = steps.warmup()
    if is_warmup.all():
        count = int(is_warmup.sum())
        raise UsageError(f"all {count} steps are warm-up: pass a smaller --warmup")
    table = steps.table
    kept = table.take(~is_warmup)
    window = _window_of(kept)
    numbers = kept["step"]
    values: dict[str, Any] = {"first": int(numbers.min()), "last": int(numbers.max())}
    which = "Step {first}" if values["first"] == values["last"] else "Steps {first}–{last}"
    is_found = steps.source.startswith(RECORDED_PHASES)
    text = (
        f"{which}, found from {{origin}}BORDERS." if is_found else f"{which} ({{origin}})BORDERS."
    )
    if is_warmup.any():
        dropped = table.take(is_warmup)
        each = [dropped.take(rows) for rows in rows_by_value(dropped["process"]).values()]
        lost_ns = max(int(steps["device_end_ns"].max() - steps["start_ns"].min()) for steps in each)
        count = max(map(len, each))
        why = "as warm-up" if ranks.parts[0].warmup_steps is None else "as requested"
        leading = "first step" if count == 1 else "first {dropped:count} steps"
        text += f" The {leading} ({{lost:ns}}) {'is' if count == 1 else 'are'} excluded {why}."
        values |= {"dropped": count, "lost": lost_ns}
    found = Selection(window, "steady", (_with_origin(text, steps, kept, ranks, **values),))
    return _without_unusual_steps(ranks, _within_recorded_part(ranks, found))


def _without_unusual_steps(ranks: Ranks, selection: Selection) -> Selection:
    """Return ``selection`` with unusual steps as gaps of its window, and a note on these steps.

    `traceprof.measures.steps.base` defines the usual steps, which are the same for every answer.
    """
    window = steady_window(ranks, selection.window)
    excluded = base_within(ranks, selection.window).left_out
    left_out = {kind: n_and_ns for kind, n_and_ns in excluded.items() if kind in _NAMED_KINDS}
    if window.hull == replace(selection.window, is_of_steps=True) and not window.gaps:
        return replace(selection, window=window)
    words = [f"{{n{i}:count}} {kind} ({{ns{i}:ns}})" for i, kind in enumerate(left_out)]
    values: dict[str, Any] = {}
    for i, (n, ns) in enumerate(left_out.values()):
        values |= {f"n{i}": n, f"ns{i}": ns}
    text = f"Steps excluded from the measures: {', '.join(words)}."
    notes = (Note.of(text, **values),) if left_out else ()
    return replace(selection, window=window, notes=(*selection.notes, *notes))


def _within_recorded_part(ranks: Ranks, selection: Selection) -> Selection:
    """Return ``selection``, or its part in which GPU activity was recorded.

    The embedded recorder records GPU activity in windows of a few steps, and other profilers in a
    part of the program. Outside of it, a busy GPU would appear idle. The last window is used.
    """
    ledger = ledger_within(ranks, selection.window)
    kept = ledger["is_covered"]
    windows = [item for last in ranks.each(_last_windows) for item in last.items()]
    for process, (_, last_ns) in windows:
        kept = kept & ((ledger["process"] != process) | (ledger["start_ns"] >= last_ns))
    if kept.all() or not kept.any():
        return selection
    n = max((n for _, (n, _) in windows), default=0)
    note = Note.of("GPU activity was captured in {n:count} window(s). This is the last one.", n=n)
    if not windows:
        note = Note("The profiler recorded GPU activity only in this part of the steps.")
    window = _window_of(ledger.take(kept))
    return Selection(window, f"{selection.label}, recorded", (*selection.notes, note))


def _last_windows(trace: Trace) -> dict[int, tuple[int, int]]:
    """Return the number of recorded windows and the start of the last one, by process."""
    return {
        process: (len(windows), int(windows.starts[-1]))
        for process, windows in recorded_windows(trace).items()
    }


def _within_last_recording(ranks: Ranks, selection: Selection) -> Selection:
    """Return ``selection``, or its part in the last recording, if a process has several.

    The time between recordings is unknown.
    """
    by_process = ranks.each(between_cycles)
    between = [gaps for of_rank in by_process for gaps in of_rank.values() if len(gaps)]
    if not between:
        return selection
    last = max(between, key=lambda gaps: int(gaps.ends[-1]))
    part = selection.window & TimeWindow(int(last.ends[-1]), ranks.span.end_ns)
    if not part.duration_ns:
        return selection
    note = Note.of("A process has {n:count} recordings. This is the last one.", n=len(last) + 1)
    return Selection(part, f"{selection.label}, recorded", (*selection.notes, note))


def _with_origin(text: str, steps: Steps, chosen: Table, ranks: Ranks, **values: Any) -> Note:
    """Return a note in which ``{origin}`` is the origin of the steps.

    BORDERS in ``text`` is replaced by the words for the borders of the ``chosen`` steps, or by ""
    if no GPU activity was recorded.
    """
    borders = ""
    if chosen["on_device"].any():
        borders = ", timed on the GPU"
    elif "kernels" in ranks.recorded:
        borders = ", timed on the host, because the trace does not link them to GPU activity"
    text = text.replace("BORDERS", borders)
    if steps.is_inferred:
        text = text.replace("{origin}", "{origin}, {sure:ratio} alike")
        values["sure"] = steps.confidence_ratio
    return Note.of(text, origin=steps.source, **values)


_MAX_NAMED_PARTS: Final = 3


def describe_work(ranks: Ranks) -> str:
    """Return a sentence that says in which shares of the trace kernels start."""
    starts = np.concatenate([part.kernels["start_ns"] for part in ranks])
    if not len(starts) or not ranks.span.duration_ns:
        return "the trace contains no kernels"
    percents = np.unique((starts - ranks.span.start_ns) * 100 // ranks.span.duration_ns)
    parts = np.split(percents, np.flatnonzero(np.diff(percents) > 1) + 1)
    longest = sorted(parts, key=len, reverse=True)[:_MAX_NAMED_PARTS]
    shares = sorted((int(part[0]), min(100, int(part[-1]) + 1)) for part in longest)
    named = " and ".join(f"{first}%..{last}%" for first, last in shares)
    return f"most kernels start in {named} of the trace"
