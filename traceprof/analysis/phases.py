"""Host time by phase of the training loop: data, forward, backward, optimizer and so on.

Phases are read from the names of ranges: those that `traceprof record` injects, and what people
commonly write by hand. Time counts for the innermost phase, on the thread that names phases;
what none claims is shown as such, so that the parts of a process add up to the window.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from traceprof.analysis.base import Analysis
from traceprof.model.intervals import Intervals
from traceprof.model.steps import OWN_DOMAIN
from traceprof.model.trace import Trace

__all__ = ["ANALYSIS", "PHASES", "UNCLAIMED", "PhaseTime", "Phases", "measure_phases", "phase_of"]

UNCLAIMED: Final = "outside any phase"
PHASES: Final = ("data", "h2d", "forward", "eval", "backward", "communication", "optimizer")

_OWN: Final = {
    "data": "data",
    "h2d": "h2d",
    "forward": "forward",
    "eval": "eval",
    "backward": "backward",
    "optimizer": "optimizer",
    "zero_grad": "optimizer",
}
_BY_HAND: Final = tuple(
    (phase, re.compile(pattern, re.IGNORECASE))
    for phase, pattern in (
        (
            "data",
            r"(get|load|fetch|next)?[ _]?(data|batch)([ _]?(load(ing|er)?|fetch(ing)?|wait))?",
        ),
        ("h2d", r"(copy[ _]to[ _](gpu|device)|h2d|host[ _]?to[ _]?device|to[ _]?device)"),
        ("forward", r"(model[ _])?(forward|fwd)([ _]?(pass|step))?"),
        ("eval", r"eval(uat(e|ion))?|validat(e|ion)"),
        ("backward", r"(loss[ _.])?(backward|bwd)([ _]?(pass|step))?"),
        ("communication", r"(nccl:)?(all[ _]?reduce|reduce[ _]?scatter|all[ _]?gather|comm.*)"),
        ("optimizer", r"(optimi[sz]er?|opt)([ _.]?step)?|zero[ _]?grad|(weight|param)[ _]update"),
    )
)


@dataclass(frozen=True, slots=True)
class PhaseTime:
    """One phase of one process: host time, its share of the window, and how often it ran."""

    process: int
    phase: str
    host_ns: int
    host_ratio: float
    count: int


@dataclass(frozen=True, slots=True)
class Phases:
    """The phases of every process that names any; per process they add up to the window."""

    phases: tuple[PhaseTime, ...]
    notes: tuple[str, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """Return one row per process and phase, in the order of the training loop."""
        columns = ["process", "phase", "host_ns", "host_ratio", "count"]
        return pd.DataFrame(
            [[getattr(phase, column) for column in columns] for phase in self.phases],
            columns=columns,
        )


def phase_of(name: str, domain: str) -> str | None:
    """Return the phase that a range of this name stands for, None where it stands for none."""
    if domain == OWN_DOMAIN:
        return "communication" if name.startswith("comm:") else _OWN.get(name)
    for phase, pattern in _BY_HAND:
        if pattern.fullmatch(name.strip()):
            return phase
    return None


def measure_phases(trace: Trace) -> Phases:
    """Return the host time of each phase, exclusive of the phases inside it."""
    ranges = trace.ranges
    keys = ranges[["name", "domain"]].drop_duplicates()
    meaning = {
        (name, domain): phase_of(str(name), str(domain))
        for name, domain in keys.itertuples(index=False, name=None)
    }
    pairs = zip(ranges["name"], ranges["domain"], strict=True)
    phased = ranges.assign(phase=pd.Series([meaning[pair] for pair in pairs], dtype=object))
    phased = phased[phased["phase"].notna() & (phased["kind"] == "push_pop")]
    if phased.empty:
        return Phases((), ("no range names a phase (data, forward, backward, optimizer …)",))
    rows: list[PhaseTime] = []
    for process, owned in phased.groupby("process"):
        main_thread = owned.groupby("thread").size().idxmax()
        rows += _of_thread(owned[owned["thread"] == main_thread], int(str(process)), trace)
    return Phases(tuple(rows))


def _of_thread(phased: pd.DataFrame, process: int, trace: Trace) -> list[PhaseTime]:
    """Return the exclusive time per phase: what is deeper is taken from what is around it."""
    window_ns = trace.span.duration_ns
    depth = phased["depth"].to_numpy()
    claimed = Intervals.empty()
    time: dict[str, int] = dict.fromkeys(PHASES, 0)
    for level in np.unique(depth)[::-1]:
        at_level = phased[depth == level]
        for phase, rows in at_level.groupby("phase"):
            mine = Intervals.union_of(rows["start_ns"], rows["end_ns"])
            time[str(phase)] += (mine - claimed).total_ns
        claimed = claimed | Intervals.union_of(at_level["start_ns"], at_level["end_ns"])
    counts = phased["phase"].value_counts()
    found = [
        PhaseTime(process, phase, ns, ns / window_ns, int(counts[phase]))
        for phase, ns in time.items()
        if phase in counts
    ]
    rest = window_ns - claimed.total_ns
    return [*found, PhaseTime(process, UNCLAIMED, rest, rest / window_ns, 0)]


ANALYSIS = Analysis(
    name="phases",
    summary="host time by phase of the training loop",
    needs=("ranges",),
    run=measure_phases,
)
