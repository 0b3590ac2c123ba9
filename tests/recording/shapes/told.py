"""What a program printed of itself, beside what its recording says."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from traceprof.comparison.summary.history import history_of_run
from traceprof.measures.steps.find import find_steps
from traceprof.measures.steps.parts import batches_of_steps
from traceprof.model.ranks import Ranks
from traceprof.model.trace import Trace

__all__ = ["Told", "check", "truths"]

_TRUTH = re.compile(r"^truth (\{.*\})$", re.MULTILINE)
_RATE_TOLERANCE = 0.02


@dataclass(frozen=True)
class Told:
    """Of one process: how many steps, updates and epochs, and when its steps began."""

    batch: int
    steps: int
    updates: int
    epochs: int
    starts_ns: list[int]
    rank: int = 0


def truths(stdout: str) -> list[Told]:
    """Return what the processes of a program printed, by rank."""
    found: list[dict[str, Any]] = [json.loads(text) for text in _TRUTH.findall(stdout)]
    assert found, stdout
    return sorted((Told(**one) for one in found), key=lambda one: one.rank)


def check(told: Told, trace: Trace, process: int) -> None:
    """Hold the recording of a process against what it printed."""
    steps = find_steps(trace).table.to_frame()
    own = steps[steps["process"] == process]
    ranges = trace.ranges.to_frame()[trace.ranges.to_frame()["process"] == process]
    names = ranges["name"].astype(str)
    assert len(own) == told.steps
    # As windows and --steps see them, and perhaps one that was begun and left.
    live, left = names.isin(["step", "user_step"]).sum(), (names == "step.left").sum()
    assert live - left == told.steps
    outermost = ranges[names.str.fullmatch(r"optimizer(#\d+)?") & (ranges["kind"] == "push_pop")]
    assert len(_outermost(outermost[["start_ns", "end_ns"]].to_numpy())) == told.updates
    epochs = history_of_run(Ranks.of(trace)).get("epochs")
    assert (0 if epochs is None else len(epochs)) == told.epochs
    batches = batches_of_steps(trace)
    sizes = batches["payload"][batches["process"] == process].astype(int)
    assert not (told.batch % sizes).any()  # some train with several batches a step
    _check_rate(told, own["start_ns"].to_numpy(np.int64), ranges)


def _check_rate(told: Told, starts: np.ndarray, ranges: Any) -> None:
    """Compare samples per second, by each clock over the same steps."""
    epoch = np.array(told.starts_ns, np.int64)
    if len(starts) < 4:
        return
    fetched = ranges[ranges["name"] == "data"].set_index("start_ns")["end_ns"].to_dict()
    # The program looks at its clock when it has its batch.
    starts = np.array([fetched.get(start, start) for start in starts.tolist()], np.int64)
    # From the second step on. A process may be interrupted between its look at the clock and ours,
    # which moves one of the two: the ratio of periods is the median over pairs of steps that lie
    # far apart. How many steps there are is counted exactly.
    first = np.arange(1, len(starts) - len(starts) // 2)
    longer = starts[first + len(starts) // 2] - starts[first]
    ratio = float(np.median(longer / (epoch[first + len(epoch) // 2] - epoch[first])))
    assert abs(ratio - 1) <= _RATE_TOLERANCE, ratio


def _outermost(spans: np.ndarray) -> list[tuple[int, int]]:
    kept: list[tuple[int, int]] = []
    for start, end in sorted(map(tuple, spans.tolist())):
        if not kept or start >= kept[-1][1]:
            kept.append((start, end))
    return kept
