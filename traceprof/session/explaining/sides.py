"""The two windows that are held against one another: of every device and process its own."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

import numpy as np
import pandas as pd

from traceprof.errors import UsageError
from traceprof.measures.composition import DeviceSpans, HostSpans
from traceprof.measures.device.times import devices_of_processes, used_devices
from traceprof.measures.steps.find import pattern_of_ranks, steps_of_ranks
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note
from traceprof.model.timing import Steps, TimeWindow
from traceprof.session.selection import Selection, select
from traceprof.values import dataclass

__all__ = ["SLOWEST", "Side", "side_of", "typical_side"]

SLOWEST: Final = "slowest"
_REPEATED: Final = "several steps have the number {step}: the first one is meant"
_ONE: Final = re.compile(r"(?P<what>step|pattern):\s*(?P<number>\d+)")


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two: what it is called, the window that holds it, and whose time is when.

    ``of_devices`` and ``of_hosts`` are the spans of each, ``step`` its number (None: it is a
    window, the same for all) and ``notes`` what must be known of it.
    """

    name: str
    selection: Selection
    of_devices: DeviceSpans
    of_hosts: HostSpans
    step: int | None = None
    notes: tuple[Note, ...] = ()


def side_of(ranks: Ranks, text: str) -> Side:
    """Return what ``text`` means: a step, a turn of the pattern, the slowest step, or a window.

    Raises:
        UsageError: it is none, or not of this run.
    """
    text = text.strip()
    if text == SLOWEST:
        text = _slowest(ranks)
    match = _ONE.fullmatch(text)
    selection = select(ranks, text)
    if match is None:
        return _of_window(ranks, selection)
    steps = pattern_of_ranks(ranks) if match["what"] == "pattern" else steps_of_ranks(ranks)
    return _of_step(ranks, steps, int(match["number"]), selection)


def typical_side(ranks: Ranks, side: Side) -> Side:
    """Return the steady step whose length is the median, without the one that is explained.

    Of an even number of steps the shorter one of the middle. It is a real step: one can look at it.

    Raises:
        UsageError: a window has no typical one, or there is no other step.
    """
    if side.step is None:
        raise UsageError(
            f"{side.name} is no single step: say what to hold it against, "
            "as in --against step:12 or --against 1s..2s"
        )
    is_pattern = side.selection.label.startswith("pattern")
    steps = pattern_of_ranks(ranks) if is_pattern else steps_of_ranks(ranks)
    lengths, kind = _candidates(steps, side)
    if lengths.empty:
        raise UsageError(
            f"{side.name} has no other to be held against: choose a window, as in --against 1s..2s"
        )
    order = lengths.sort_values(kind="stable")
    number = int(order.index[(len(order) - 1) // 2])
    what = "pattern" if is_pattern else "step"
    chosen = _of_step(ranks, steps, number, select(ranks, f"{what}:{number}"))
    text = f"{{name}} is the one of median length among {{n:count}} {kind}"
    note = Note.of(text, name=chosen.name, n=len(lengths))
    return replace(chosen, notes=(*chosen.notes, note))


def _candidates(steps: Steps, side: Side) -> tuple[pd.Series, str]:
    """Return the lengths of the steps that may be typical, by number, and what they are called."""
    table = steps.table.assign(length=steps.durations_ns, is_steady=~steps.warmup())
    own = table[table["step"] == side.step]
    table = table[(table["step"] != side.step) & table["process"].isin(own["process"])]
    table = table[table["on_device"] == bool(own["on_device"].iloc[0])]
    steady = table[table["is_steady"]]
    kind = "other turns of the pattern" if steps.is_pattern else "other steady steps"
    if steady.empty:
        steady, kind = table, "other steps, all of them warm-up"
    once = steady.drop_duplicates(["process", "step"])
    by_step = once.groupby("step")["length"]
    complete = by_step.size() == own["process"].nunique()
    lengths = by_step.mean()
    return (lengths[complete] if complete.any() else lengths), kind


def _slowest(ranks: Ranks) -> str:
    """Return the steady step that takes the longest, of turns of a pattern where there are none."""
    steps = steps_of_ranks(ranks)
    steps = steps if len(steps) else pattern_of_ranks(ranks)
    if not len(steps):
        raise UsageError("no steps are known in this trace: say which window, as in 1s..2s")
    kept = ~steps.warmup() if not steps.warmup().all() else np.ones(len(steps), np.bool_)
    table = steps.table.assign(length=steps.durations_ns)[kept]
    lengths = table.groupby("step")["length"].mean()
    number = int(lengths.index.to_numpy(np.int64)[lengths.argmax()])
    return f"{'pattern' if steps.is_pattern else 'step'}:{number}"


def _of_step(ranks: Ranks, steps: Steps, number: int, selection: Selection) -> Side:
    rows = steps.table[steps.table["step"] == number]
    notes: tuple[Note, ...] = ()
    if rows["process"].duplicated().any():
        notes = (
            Note.of("several steps have the number {step}: the first one is meant", step=number),
        )
    rows = rows.drop_duplicates("process").set_index("process")
    windows = {
        int(str(process)): TimeWindow(int(row["device_start_ns"]), int(row["device_end_ns"]))
        for process, row in rows.iterrows()
    }
    if notes:
        starts, ends = zip(*((w.start_ns, w.end_ns) for w in windows.values()), strict=True)
        hull = TimeWindow(min(starts), max(ends))
        selection = Selection(hull, selection.label)
    spans: dict[tuple[int, int], TimeWindow] = {}
    for place, trace in enumerate(ranks.whole.parts):
        for process, devices in devices_of_processes(trace).items():
            for device in devices if process in windows else ():
                spans.setdefault((place, device), windows[process])
    name = f"turn {number} of the pattern" if steps.is_pattern else f"step {number}"
    hosts = {} if steps.is_inferred or steps.is_pattern else _hosts_of(rows)
    return Side(name, selection, spans, hosts, number, notes)


def _hosts_of(rows: pd.DataFrame) -> HostSpans:
    return {
        int(str(process)): (
            TimeWindow(int(row["start_ns"]), int(row["end_ns"])),
            max(0, int(row["next_ns"] - row["end_ns"])),
        )
        for process, row in rows.iterrows()
    }


def _of_window(ranks: Ranks, selection: Selection) -> Side:
    window = selection.window
    spans = {
        (place, device): window
        for place, trace in enumerate(ranks.whole.parts)
        for device in used_devices(trace)
    }
    processes = {
        int(process)
        for trace in ranks.whole
        for process in trace.ranges["process"].unique().tolist()
    }
    hosts = dict.fromkeys(processes, (window, 0))
    return Side(selection.label, selection, spans, hosts)
