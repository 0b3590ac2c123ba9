"""Splits the host time between two steps by the ranges on any thread of the process."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from traceprof.measures.device.times import recorder_times
from traceprof.measures.facts import fact, of_window
from traceprof.measures.host.phases import phases_of_all_ranges
from traceprof.measures.host.states import find_host_states
from traceprof.measures.rows import Ints, Texts, are_named, ints, lengths_of, rows_by, unions_by
from traceprof.measures.steps.find import find_steps
from traceprof.model.grouping import find_matching_rows, grouped_by, is_in
from traceprof.model.intervals import Intervals
from traceprof.model.table import Names, Table
from traceprof.model.trace import Trace
from traceprof.names.ranges import PHASES

EVALUATION: Final = "evaluation"
CHECKPOINT: Final = "checkpoint"
DATA_WAIT: Final = "data wait"
LOGGING: Final = "logging"
SYNCHRONIZATION: Final = "host synchronization"
UNKNOWN: Final = "unknown"
ROLLOUT: Final = "rollout"
_NAMED: Final = (EVALUATION, CHECKPOINT, DATA_WAIT, LOGGING)
BETWEEN_CAUSES: Final = (*_NAMED, SYNCHRONIZATION, UNKNOWN)
"""Causes of the time between two steps, in the order in which they claim time.

evaluation: ranges with such a name, or forward passes without training; this includes teacher
models and generation that no step learns from. checkpoint: ranges
that save. data wait: ranges that load data. logging: ranges that log. host synchronization: the CPU
waits for the GPU (`.item()`, `torch.cuda.synchronize()`). unknown: nothing of this was recorded.
"""

_NAMES: Final = {
    EVALUATION: r"(?i)(^|[^a-z])(eval|(evalu|valid)at[a-z]*|valid|val|test|testing)([^a-z]|$)",
    # Must not match activation checkpointing ("CheckpointFunction") or "save_for_backward".
    CHECKPOINT: (
        r"(?i)^checkpoint(ing)?$|(sav|writ|stor)\w{0,40}[ _.-]{0,3}checkpoint"
        r"|checkpoint[ _.-]{0,3}(sav|writ|stor)"
        r"|(^|[^a-z])ckpt|(^|[^a-z])save([^a-z_]|$)|save[ _](model|state|weights|params)"
    ),
    DATA_WAIT: r"(?i)data[ _]?load|__next__|(^|[^a-z])fetch|(get|next|load)[ _]?(data|batch)",
    LOGGING: r"(?i)(^|[^a-z])log(ging|ger|s)?([^a-z]|$)|tensorboard|wandb|mlflow",
    "forward": "$^",
    "backward": "$^",
    ROLLOUT: "$^",
}
_PHASES_OF: Final = {
    name: tuple(map(PHASES.index, phases))
    for name, phases in (
        # Rollouts that no step learns from are an evaluation.
        *((EVALUATION, ("eval", "generation", "logprobs")), (DATA_WAIT, ("data",))),
        *(("forward", ("forward",)), ("backward", ("backward",))),
        (ROLLOUT, ("rollout", "generation", "logprobs")),
    )
}


_OF_AUTOGRAD: Final = re.compile("autograd::")
"""The backward engine "evaluates" functions; such ranges are not an evaluation."""


@of_window
def between_steps(trace: Trace, has_waits: bool = True) -> Table:
    """Return the time between the steps in the window, split where the cause changes.

    Columns: process, step (the previous step, whose period contains the time), start_ns, end_ns,
    and cause (of `BETWEEN_CAUSES`). The rows of a step cover exactly its time between steps. Rows
    are sorted by process and start. Without ``has_waits``, host synchronization is unknown, which
    saves reading the states of the CPU.
    """
    whole = _between_all_steps(trace, has_waits)
    if trace.uncut is None:
        return whole
    return whole.take(find_matching_rows(whole, find_steps(trace).table, "process", "step") >= 0)


def cause_of_steps(trace: Trace, steps: Table) -> Texts:
    """Return the main cause of the time between each of ``steps`` and the next step; "" if none."""
    between = between_steps(trace)
    keys, groups = grouped_by(between, "process", "step", "cause")
    order = np.argsort(groups.reduced(np.add, lengths_of(between)), kind="stable")
    longest_first = keys.take(order[::-1])
    place = find_matching_rows(steps, longest_first, "process", "step")
    return np.append(longest_first["cause"], "")[place]


@fact
def _between_all_steps(trace: Trace, has_waits: bool) -> Table:
    """Return the rows of `between_steps` for the whole recording."""
    steps, activity = find_steps(trace).table, activity_of_ranges(trace)
    recorder, nothing = recorder_times(trace), np.empty(0, np.int64)
    states = find_host_states(trace) if has_waits else {}
    tables = [_cut(0, Intervals.empty(), nothing, nothing, UNKNOWN)]
    for process, rows in rows_by(steps, "process").items():
        starts, ends, number = ints(steps, "end_ns", "next_ns", "step", rows=rows)
        gaps = ends > starts
        if not gaps.any():
            continue
        starts, ends, number = starts[gaps], ends[gaps], number[gaps]
        unclaimed = Intervals.union_of(starts, ends) - recorder.get(process, Intervals.empty())
        times = {name: activity.get((process, name), Intervals.empty()) for name in _NAMES}
        waits = states[process].synchronizing if process in states else Intervals.empty()
        times[SYNCHRONIZATION] = waits
        if not len(times["backward"] & unclaimed):  # forward passes alone are no training
            times[EVALUATION] = times[EVALUATION] | times["forward"]
        found = times[EVALUATION] & unclaimed, times[DATA_WAIT] & unclaimed
        loops = _evaluation_loops(starts, ends, *found)
        times[EVALUATION] = times[EVALUATION] | (loops - times[CHECKPOINT])
        for cause in BETWEEN_CAUSES:
            time = unclaimed if cause == UNKNOWN else unclaimed & times[cause]
            unclaimed = unclaimed - time
            tables.append(_cut(process, time, starts, number, cause))
    return Table.stacked(tables).in_order("process", "start_ns")


def _evaluation_loops(
    starts: Ints, ends: Ints, evaluated: Intervals, fetched: Intervals
) -> Intervals:
    """Return the evaluation loops, one per gap between steps that contains an evaluation.

    A loop begins at the first fetch or evaluation of the gap and ends with the last evaluation.
    Data fetched after the last forward pass may belong to the next step.
    """
    first, last = _reach(starts, ends, evaluated)
    is_held = last > first
    begins = np.minimum(first, _reach(starts, ends, fetched)[0])
    return Intervals.union_of(begins[is_held], last[is_held])


def _reach(starts: Ints, ends: Ints, times: Intervals) -> tuple[Ints, Ints]:
    """Return first start and last end of ``times`` in each gap; if none, gap end and gap start."""
    known_starts, known_ends = np.append(times.starts, ends.max()), np.append(0, times.ends)
    first = known_starts[np.searchsorted(times.starts, starts)]
    last = known_ends[np.searchsorted(times.starts, ends)]
    return np.minimum(first, ends), np.maximum(last, starts)


def _cut(process: int, found: Intervals, starts: Ints, number: Ints, cause: str) -> Table:
    """Return ``found`` as rows with step numbers, split where the next gap begins."""
    inner = starts[~is_in(starts, found.starts)]
    inner = inner[found.covered_ns(inner, inner + 1) > 0]
    begins = np.sort(np.concatenate((found.starts, inner)))
    place = np.searchsorted(found.starts, begins, side="right") - 1
    following = np.append(begins[1:], np.iinfo(np.int64).max)
    ends = np.minimum(found.ends[place], following)
    owner = np.searchsorted(starts, begins, side="right") - 1
    return Table(
        {
            "process": process,
            "step": number[owner],
            "start_ns": begins,
            "end_ns": ends,
            "cause": Names.repeated(cause, len(begins)),
        }
    )


@fact
def activity_of_ranges(trace: Trace) -> dict[tuple[int, str], Intervals]:
    """Return when any thread of a process was in a range of each cause, by process and cause.

    In addition to `BETWEEN_CAUSES`, the phases "forward", "backward", and `ROLLOUT` are included.
    """
    names, phases = trace.ranges["name"], phases_of_all_ranges(trace)
    ranges = trace.ranges.select("process", "start_ns", "end_ns")
    of_autograd = are_named(names, _OF_AUTOGRAD)
    found: dict[tuple[int, str], Intervals] = {}
    for cause, pattern in _NAMES.items():
        named = are_named(names, re.compile(pattern)) & ~of_autograd
        chosen = named | np.isin(phases, _PHASES_OF.get(cause, ()))
        found |= {
            (process, cause): time for process, time in unions_by(ranges.take(chosen)).items()
        }
    return found
