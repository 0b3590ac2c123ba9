"""Rounds of a loop: its steps, and where nothing is trained the forward passes, batch by batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import pandas as pd

from traceprof.facts.cache import fact
from traceprof.facts.launches import phases_of_all_ranges
from traceprof.facts.steps.find import find_steps
from traceprof.facts.steps.warmup import count_warmup
from traceprof.model.trace import Trace
from traceprof.names.ranges import PHASES

__all__ = ["find_rounds"]

_DATA, _FORWARD, _EVAL = map(PHASES.index, ("data", "forward", "eval"))
_TRAINS: Final = (PHASES.index("backward"), PHASES.index("optimizer"))
_COLUMNS: Final = ("process", "round", "start_ns", "end_ns", "is_warmup")


@fact
def find_rounds(trace: Trace) -> pd.DataFrame:
    """Return the rounds of each process: process, round, start_ns, end_ns, is_warmup.

    A step goes to the start of the next one. In a process that names forward passes (where there
    are none: evaluations) and trains nothing, a round goes from a batch to the next; of programs
    that name no batches every such pass is a round. Others have none.
    """
    steps = find_steps(trace.whole).table
    found = [
        pd.DataFrame(
            {
                "process": steps["process"].to_numpy(np.int64),
                "round": steps["step"].to_numpy(np.int64),
                "start_ns": steps["start_ns"].to_numpy(np.int64),
                "end_ns": steps["next_ns"].to_numpy(np.int64),
                "is_warmup": steps["is_warmup"].to_numpy(bool),
            }
        )
    ]
    found += _forward_rounds(trace.whole, set(steps["process"].tolist()))
    return pd.concat(found, ignore_index=True)[list(_COLUMNS)]


def _forward_rounds(trace: Trace, stepping: set[int]) -> Iterator[pd.DataFrame]:
    """Yield the rounds of each process that only runs forward."""
    ranges = trace.ranges
    phase = phases_of_all_ranges(trace)
    is_own = (phase >= 0) & (ranges["kind"] == "push_pop").to_numpy()
    own = ranges[["process", "thread", "start_ns", "end_ns"]][is_own].assign(phase=phase[is_own])
    for process, events in own.groupby("process"):
        number = int(str(process))
        if number in stepping or events["phase"].isin(_TRAINS).any():
            continue
        passes = _FORWARD if (events["phase"] == _FORWARD).any() else _EVAL
        speaker = events.loc[events["phase"] == passes, "thread"].mode()
        if speaker.empty:
            continue
        main = events[events["thread"] == speaker.iloc[0]].sort_values("start_ns", kind="stable")
        main = main.assign(phase=main["phase"].replace(passes, _FORWARD))
        columns = (main[name].tolist() for name in ("phase", "start_ns", "end_ns"))
        spans = list(_passes(zip(*columns, strict=True), bool((main["phase"] == _DATA).any())))
        starts, ends = (np.array(side, np.int64) for side in zip(*spans, strict=True))
        n_warm = count_warmup(ends - starts)
        yield pd.DataFrame(
            {
                "process": number,
                "round": np.arange(len(spans)),
                "start_ns": starts,
                "end_ns": ends,
                "is_warmup": np.arange(len(spans)) < n_warm,
            }
        )


def _passes(events: Iterable[tuple[int, int, int]], has_batches: bool) -> Iterator[tuple[int, int]]:
    """Yield from when to when each round goes, of (phase, start, end) sorted by start."""
    opens, has_forward, reach = -1, False, -1
    for phase, start, end in events:
        is_next = phase == (_DATA if has_batches else _FORWARD) and start >= reach
        if is_next and has_forward:
            yield opens, start
            opens, has_forward = -1, False
        if phase in (_DATA, _FORWARD):
            opens = start if opens < 0 else opens
        if phase == _FORWARD:
            has_forward, reach = True, max(reach, end)
    if has_forward:
        yield opens, reach
