"""Explain why a step took longer than the typical step, or a window longer than another window.

The explanation is an exact sum over the five parts of GPU time, averaged over the GPUs, and over
their causes. Means are floors of cumulated shares, so sums over all GPUs equal sums of the means.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final, TypeAlias

import numpy as np

from traceprof.comparison import EXPLAIN
from traceprof.comparison.difference import CAUSE, causes_of, parts_of, phases_of
from traceprof.comparison.specs import EXPLAIN_SPEC
from traceprof.errors import NotRecordedError, UsageError
from traceprof.measures.collectives.blame import find_blame
from traceprof.measures.composition import (
    DeviceSpans,
    HostSpans,
    composition_of_devices,
    composition_of_hosts,
)
from traceprof.measures.device.times import devices_of_processes, recorder_times, used_devices
from traceprof.measures.rows import Floats, mean_of, rows_by
from traceprof.measures.steps.base import ITERATION, STEP
from traceprof.measures.steps.find import pattern_of_ranks, steps_of_ranks
from traceprof.measures.steps.ledger import (
    INCOMPLETE,
    SLOW,
    USUAL,
    WARMUP,
    all_steps,
    step_ledger,
)
from traceprof.measures.steps.measured import measured_steps
from traceprof.measures.steps.parts import MIN_EXPLAINED_RATIO
from traceprof.model.grouping import find_matching_rows, grouped_by, numbered, rows_by_value
from traceprof.model.intervals import Intervals
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note, Result
from traceprof.model.table import Table
from traceprof.model.timing import Steps, TimeWindow
from traceprof.model.trace import Trace
from traceprof.session.answer import Document, document_about
from traceprof.session.caveats import caveats_of, refuses_with_caveats
from traceprof.session.run import Run
from traceprof.session.selection import Selection, select
from traceprof.units import format_ratio, sentence_duration

SLOWEST: Final = "slowest"
_SINGLE_STEP: Final = re.compile(r"(?P<what>step|pattern):\s*(?P<number>\d+)")


@dataclass(frozen=True, slots=True)
class WindowSide:
    """One of the two compared windows: its name, its window, and its spans.

    ``of_devices`` and ``of_hosts`` are the spans of each device and each process. ``step`` is the
    step number; None for a plain window, which is the same for all. ``launched`` is the window in
    which each process launched the work of the step; None: the work is everything that runs in the
    span. ``notes`` are caveats. ``is_median`` is whether a typical step has the median length.
    """

    name: str
    selection: Selection
    of_devices: DeviceSpans
    of_hosts: HostSpans
    step: int | None = None
    launched: Mapping[int, TimeWindow] | None = None
    notes: tuple[Note, ...] = ()
    is_median: bool = True

    def shared_with(self, other: WindowSide) -> WindowSide:
        """Return the side limited to the devices and the processes that ``other`` also has."""
        devices = {key: span for key, span in self.of_devices.items() if key in other.of_devices}
        hosts = {key: span for key, span in self.of_hosts.items() if key in other.of_hosts}
        return replace(self, of_devices=devices, of_hosts=hosts)


def side_of(ranks: Ranks, text: str) -> WindowSide:
    """Return the side that ``text`` names: a step, an iteration, the slowest step, or a window.

    Raises:
        UsageError: ``text`` is not valid, or does not exist in this run.
    """
    text = text.strip()
    if text == SLOWEST:
        text = _slowest(ranks)
    match = _SINGLE_STEP.fullmatch(text)
    selection = select(ranks, text)
    if match is None:
        return _of_window(ranks, selection)
    steps = pattern_of_ranks(ranks) if match["what"] == "pattern" else steps_of_ranks(ranks)
    return _of_step(ranks, steps, int(match["number"]), selection)


def typical_side(ranks: Ranks, side: WindowSide) -> WindowSide:
    """Return the usual step with the median duration, excluding the explained step.

    If the number of steps is even, it is the shorter of the two middle steps. A real step can be
    inspected, unlike a mean.

    Raises:
        UsageError: ``side`` is a window, or the trace has no other step.
    """
    if side.step is None:
        raise UsageError(
            f"{side.name} is not a single step: choose a reference window, "
            "for example --against step:12 or --against 1s..2s"
        )
    is_pattern = side.selection.label.startswith("pattern")
    steps = pattern_of_ranks(ranks) if is_pattern else steps_of_ranks(ranks)
    lengths, kind = _candidates(step_ledger(ranks), side)
    if not lengths:
        raise UsageError(
            f"the trace has no other step to compare with {side.name}: choose a reference window, "
            "for example --against 1s..2s"
        )
    ordered = sorted(lengths, key=lambda step: lengths[step])
    number, longer = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    is_median = lengths[longer] <= (1 + _MIN_NOTABLE_RATIO) * lengths[number]
    what = "pattern" if is_pattern else "step"
    chosen = _of_step(ranks, steps, number, select(ranks, f"{what}:{number}"))
    kind = kind.replace("step", ITERATION) if is_pattern else kind
    which = "has the median length of" if is_median else "is the shorter median step among"
    note = Note.of(f"{{name}} {which} {{n:count}} {kind}.", name=chosen.name, n=len(lengths))
    return replace(chosen, notes=(*chosen.notes, note), is_median=is_median)


def _candidates(ledger: Table, side: WindowSide) -> tuple[dict[int, float], str]:
    """Return the durations of candidates for the typical step, by number, and a phrase for them.

    Candidates were recorded like the explained step: both with GPU activity, or both without.
    """
    explained = ledger.take(ledger["step"] == side.step)
    processes = set(explained["process"].tolist())
    is_other = (ledger["step"] != side.step) & np.isin(ledger["process"], explained["process"])
    others = ledger.take(is_other & (ledger["is_covered"] == explained["is_covered"][0]))
    usual, kind = others.take(others["kind"] == USUAL), "other usual step(s)"
    if usual.empty:
        usual, kind = others, "other step(s), none of which is usual"
    once = usual.take(numbered(usual["process"], usual["step"])[1])
    lengths = {step: once["duration_ns"][rows] for step, rows in rows_by(once, "step").items()}
    complete = {step: ns for step, ns in lengths.items() if len(ns) == len(processes)}
    return {step: float(ns.mean()) for step, ns in (complete or lengths).items()}, kind


def _slowest(ranks: Ranks) -> str:
    """Return the slow step with the largest excess time, as tables and the page name it.

    Without slow steps, return the longest step or iteration after the warm-up, among those with
    recorded GPU activity if there are any.

    Raises:
        NotRecordedError: the trace contains no steps.
    """
    ledger = step_ledger(ranks)
    if ledger.empty:
        raise NotRecordedError("the trace contains no steps: choose a window, for example 1s..2s")
    kept = np.ones(len(ledger), np.bool_)
    for condition in (ledger["is_covered"], ledger["kind"] != WARMUP):
        kept = kept & condition if (kept & condition).any() else kept
    slow = kept & (ledger["kind"] == SLOW)
    if slow.any():
        most = measured_steps(ranks.whole).table["excess_ns"][slow].argmax()
        number = int(ledger["step"][slow][most])
    else:
        length, rows = ledger["duration_ns"][kept], rows_by_value(ledger["step"][kept])
        number = max(rows, key=lambda step: float(length[rows[step]].mean()))
    return f"{'pattern' if all_steps(ranks).is_pattern else 'step'}:{number}"


def _of_step(ranks: Ranks, steps: Steps, number: int, selection: Selection) -> WindowSide:
    """Return the side for step ``number``, with the devices that were recorded in the step."""
    step_rows = steps.table.take(steps.table["step"] == number).rows()
    rows = {row["process"]: row for row in reversed(step_rows)}
    notes: tuple[Note, ...] = ()
    windows = {
        process: TimeWindow(row["device_start_ns"], row["device_end_ns"])
        for process, row in rows.items()
    }
    if len(rows) < len(step_rows):
        text = "Several steps have the number {step}. traceprof uses the first."
        notes = (Note.of(text, step=number),)
        starts, ends = zip(*((w.start_ns, w.end_ns) for w in windows.values()), strict=True)
        selection = Selection(TimeWindow(min(starts), max(ends)), selection.label)
    spans: dict[tuple[int, int], TimeWindow] = {}
    ledger = step_ledger(ranks)
    is_recorded = ledger["is_covered"] | (ledger["kind"] == INCOMPLETE)
    covered = set(ledger["process"][is_recorded & (ledger["step"] == number)].tolist())
    for place, trace in enumerate(ranks.whole.parts):
        for process, devices in devices_of_processes(trace).items():
            for device in devices if process in windows and process in covered else ():
                spans.setdefault((place, device), windows[process])
    name = f"iteration {number} of the pattern" if steps.is_pattern else f"step {number}"
    is_named = not (steps.is_inferred or steps.is_pattern)
    hosts = _host_spans(ranks, rows) if is_named else {}
    launched = _launch_windows(steps, rows) if is_named else None
    return WindowSide(name, selection, spans, hosts, number, launched, notes)


def _launch_windows(
    steps: Steps, rows: Mapping[int, Mapping[str, Any]]
) -> Mapping[int, TimeWindow]:
    """Return the launch window of a step by process.

    The window starts at the end of the previous step on the host.
    """
    of_process, found = rows_by(steps.table, "process"), {}
    for process, row in rows.items():
        ends = steps.table["end_ns"][of_process[process]]
        before = ends[ends <= row["start_ns"]]
        start_ns = int(before.max()) if len(before) else row["start_ns"]
        found[process] = TimeWindow(start_ns, row["end_ns"])
    return found


def _host_spans(ranks: Ranks, rows: Mapping[int, Mapping[str, Any]]) -> HostSpans:
    """Return the time of each process in the step, and up to the next step, in ns.

    They add up to the period of the step, which excludes the recorder's own time.
    """
    found, recorder = {}, dict(chain.from_iterable(map(dict.items, ranks.each(recorder_times))))
    for process, row in rows.items():
        start_ns, next_ns = row["start_ns"], row["next_ns"]
        period = Intervals.single(start_ns, next_ns) - recorder.get(process, Intervals.empty())
        step = period.clip(start_ns, min(row["end_ns"], next_ns))
        found[process] = (step, period.total_ns - step.total_ns)
    return found


def _of_window(ranks: Ranks, selection: Selection) -> WindowSide:
    """Return the side for a plain window: the same span for all devices and processes."""
    window = selection.window
    spans = {
        (place, device): window
        for place, trace in enumerate(ranks.whole.parts)
        for device in used_devices(trace)
    }
    processes = (np.unique(trace.ranges["process"]).tolist() for trace in ranks.whole)
    hosts = dict.fromkeys(chain.from_iterable(processes), (window.times, 0))
    return WindowSide(selection.label, selection, spans, hosts)


@refuses_with_caveats
def explain(run: Run, text: str, against: str | None = None) -> Document:
    """Explain why the window ``text`` is longer than ``against``, or than the typical step.

    Raises:
        UsageError: a window does not exist in this run, or there is no step to compare with.
        NotRecordedError: no GPU was active in both windows, or there is no GPU activity and no
            host phase.
    """
    ranks = run.within("all").of_ranks().whole
    side, result = explain_ranks(ranks, text, against)
    return replace(
        document_about(ranks, side.selection, {EXPLAIN: result}), lost=caveats_of(ranks).missing
    )


def explain_ranks(ranks: Ranks, text: str, against: str | None = None) -> tuple[WindowSide, Result]:
    """Return the side that ``text`` names, and the result that explains it."""
    ranks = ranks.whole
    side = side_of(ranks, text)
    other = typical_side(ranks, side) if against is None else side_of(ranks, against)
    is_slowest = against is None and text.strip() == SLOWEST
    side, other = side.shared_with(other), other.shared_with(side)
    has_devices = any(map(used_devices, ranks.parts)) and not _are_steps_without_devices(
        side, other
    )
    if has_devices and not side.of_devices:
        raise NotRecordedError(f"no GPU was active in both {side.name} and {other.name}")
    made = []
    for each in (other, side):
        table = composition_of_hosts(ranks, each.of_hosts).in_order("-ns")
        made.append(dict(zip(table["phase"], table["ns"].tolist(), strict=True)))
    n_hosts = max(1, len(side.of_hosts))
    phases = phases_of(made, _WINDOWS, (n_hosts, n_hosts))
    tables, length, explanation_notes = (
        _explain_devices(ranks, side, other) if has_devices else _explain_hosts(ranks, phases)
    )
    notes = [*other.notes, *side.notes, *explanation_notes]
    notes += _notes_on_lag(ranks, side) if has_devices and not phases.empty else []
    if (side.step is None) != (other.step is None):
        notes.insert(0, _STEP_AND_WINDOW)
    ratio = length["difference_ns"] / (length["reference_ns"] or np.nan)
    is_usual = against is None and _is_usual(ranks, side)
    is_usual &= is_slowest or abs(ratio) < _MIN_NOTABLE_RATIO
    answer = (
        _usual_answer(side, other, ratio, is_slowest=is_slowest)
        if is_usual
        else _answer(side, other, length["difference_ns"], has_devices=has_devices)
    )
    if not is_usual or abs(ratio) >= _MIN_NOTABLE_RATIO:
        answer += _cpu_shortage(ranks, side, other, length["difference_ns"])
    return side, Result(
        EXPLAIN,
        EXPLAIN_SPEC,
        {
            name: EXPLAIN_SPEC.table(name).of_rows(table)
            for name, table in {**tables, "phases": phases}.items()
        },
        {
            "answer": answer,
            "is_usual": is_usual,
            "explained": side.name,
            "reference": other.name,
            **{name: length[name] for name in ("explained_ns", "reference_ns", "difference_ns")},
            "devices_count": len(side.of_devices) if has_devices else 0,
        },
        tuple(notes),
    )


def _is_usual(ranks: Ranks, side: WindowSide) -> bool:
    """Return whether ``side`` is a step (or iteration) that is usual in all processes."""
    ledger = step_ledger(ranks)
    is_of_ledger = side.selection.label.startswith("pattern") == all_steps(ranks).is_pattern
    kinds = set(ledger["kind"][ledger["step"] == side.step].tolist())
    return is_of_ledger and kinds == {USUAL}


def _notes_on_lag(ranks: Ranks, side: WindowSide) -> list[Note]:
    """Return a note if the CPU phases of a step run long before its GPU work."""
    ledger = step_ledger(ranks)
    rows = ledger.take(ledger["on_device"] & (ledger["step"] == side.step))
    lag_ns = mean_of(rows["device_start_ns"] - rows["start_ns"])  # NaN without rows
    is_long = lag_ns >= _MIN_LAG_RATIO * mean_of(rows["duration_ns"])
    text = "The GPUs start this step {lag:ns} after the CPU, so its CPU phases overlap earlier GPU "
    return [Note.of(f"{text}work.", lag=lag_ns)] if is_long else []


def _usual_answer(side: WindowSide, other: WindowSide, ratio: float, *, is_slowest: bool) -> str:
    """Return that a step does not stand out; ``ratio`` is its difference from the typical step."""
    typical = "the median" if other.is_median else other.name
    change = f"{format_ratio(abs(ratio))} {'shorter' if ratio < 0 else 'longer'} than {typical}"
    change += "." if abs(ratio) < _MIN_NOTABLE_RATIO else ", within the variation of the steps."
    if is_slowest:
        noun = ITERATION if side.name.startswith(ITERATION) else STEP
        return f"No {noun} of the window was slow: the slowest is {change}"
    return f"{side.name.capitalize()} is not slow: it is {change}"


def _answer(side: WindowSide, other: WindowSide, ns: int, *, has_devices: bool) -> str:
    """Return by how much ``side`` is longer."""
    change = f"{sentence_duration(abs(ns))} {'longer' if ns > 0 else 'shorter'} than"
    text = f"{side.name} is {change if ns else 'as long as'} {other.name}"
    n, noun = (len(side.of_devices), "GPUs") if has_devices else (len(side.of_hosts), "processes")
    return text + (f", mean of {n} {noun}" if n > 1 else "")


def _cpu_shortage(ranks: Ranks, side: WindowSide, other: WindowSide, ns: int) -> str:
    """Return how long the training thread waits for a CPU core, if that explains most of ``ns``.

    All phases of the host take longer then, so no phase is the cause.
    """
    waited_ns, usual_ns = (_cpu_wait_ns(ranks, each) for each in (side, other))
    if not 0 < MIN_EXPLAINED_RATIO * ns <= waited_ns - usual_ns:
        return ""
    return (
        f"\nThe training thread waits for a CPU core for {sentence_duration(waited_ns)}, and in "
        f"{other.name} for {sentence_duration(usual_ns)}."
    )


def _cpu_wait_ns(ranks: Ranks, side: WindowSide) -> float:
    """Return how long the training threads of a step wait for a CPU core; NaN if unknown."""
    # Measuring the steps of many ranks takes long, and few recordings have times of threads.
    if side.step is None or not side.of_hosts or not any(ranks.each(_has_cpu_waits)):
        return np.nan
    table = measured_steps(ranks).table
    is_known = "cpu_wait_ns" in table
    return mean_of(table["cpu_wait_ns"][table["step"] == side.step]) if is_known else np.nan


def _has_cpu_waits(trace: Trace) -> bool:
    return bool((trace.samples["metric"] == "thread_cpu_wait_ns").any())


def _are_steps_without_devices(side: WindowSide, other: WindowSide) -> bool:
    """Return whether both sides are steps without GPU activity."""
    return side.step is not None and other.step is not None and not side.of_devices


_WINDOWS: Final = ("reference", "explained")
_MIN_LAG_RATIO: Final = 0.5
_MIN_NOTABLE_RATIO: Final = 0.02
"""A usual step whose length differs less from the median does not stand out."""
_STEP_AND_WINDOW: Final = Note(
    "traceprof compares a step with a window. Their lengths differ regardless of the step."
)
_NO_DEVICE: Final = Note(
    "No GPU activity was recorded in these steps. traceprof compares the host phases."
)


_Explanation: TypeAlias = tuple[dict[str, Any], dict[str, int], tuple[Note, ...]]
"""The explanation by devices or by hosts: tables, durations, notes."""


def _explain_devices(ranks: Ranks, explained: WindowSide, other: WindowSide) -> _Explanation:
    """Explain the difference by the parts of GPU time and their causes."""
    why_not = find_blame(ranks).why_not
    n = len(explained.of_devices)
    made = [
        composition_of_devices(
            ranks, side.of_devices, knows_waits=not why_not, launched=side.launched
        )
        for side in (other, explained)
    ]
    causes = causes_of(made, _WINDOWS, (n, n), per_unit=False)
    if n > 1:
        causes = causes.assign(device=_main_device(made, causes))
    parts, length = parts_of(causes, _WINDOWS)
    parts = parts.assign(share_ratio=parts["difference_ns"] / (length["difference_ns"] or np.nan))
    note = Note.of("traceprof cannot attribute the waiting to a rank: {why}", why=why_not)
    return {"causes": causes, "parts": parts}, length, (note,) if why_not else ()


def _explain_hosts(ranks: Ranks, phases: Table) -> _Explanation:
    """Explain the difference by host phases, for traces without GPU activity."""
    if phases.empty:
        ranks.require("kernels", "copies")
        raise NotRecordedError("the trace contains no GPU activity and no ranges for step phases")
    length = {name: int(phases[name].sum()) for name in map(str, phases) if name != "phase"}
    return {"causes": (), "parts": ()}, length, (_NO_DEVICE,)


def _main_device(made: Sequence[Table], causes: Table) -> Floats:
    """Return the device with more than half of the difference of each cause, otherwise NaN."""
    both = Table.stacked([made[1], made[0].assign(ns=-made[0]["ns"])])
    by_device, groups = grouped_by(both, *CAUSE, "device")
    ns, row = groups.sums(both["ns"]), find_matching_rows(by_device, causes, *CAUSE)
    gap = np.append(causes["ns_explained"] - causes["ns_reference"], 0)[row]
    main_rows = np.flatnonzero((row >= 0) & (ns * np.sign(gap) * 2 > np.abs(gap)))
    found = np.full(len(causes), np.nan)
    # The row with the largest difference comes last and wins.
    main_rows = main_rows[np.argsort(-np.abs(ns[main_rows]), kind="stable")[::-1]]
    found[row[main_rows]] = by_device["device"][main_rows]
    return found
