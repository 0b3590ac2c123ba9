"""What stands over all lanes: steps, the window that is analysed, whose rank a process is."""

from __future__ import annotations

from typing import Any

import pandas as pd

from traceprof.measures.steps.find import pattern_of_ranks, steps_of_ranks
from traceprof.model.ranks import Ranks
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace
from traceprof.render.escape import plain_text
from traceprof.session.selection import select_default

__all__ = ["describe_focus", "describe_processes", "describe_steps", "describe_turns"]


def describe_steps(trace: Trace | Ranks, window: TimeWindow) -> dict[str, Any]:
    """Return the steps of the process that has most of them, in ns after the window's start."""
    return _described(steps_of_ranks(Ranks.of(trace)).table, window, "step")


def describe_turns(trace: Trace | Ranks, window: TimeWindow) -> dict[str, Any]:
    """Return the same of the turns of a pattern of kernels, which repeats where no steps are."""
    return _described(pattern_of_ranks(Ranks.of(trace)).table, window, "turn")


def _described(table: pd.DataFrame, window: TimeWindow, word: str) -> dict[str, Any]:
    if len(table):
        table = table[table["process"] == table["process"].mode().iloc[0]]
        table = table[(table["start_ns"] < window.end_ns) & (table["end_ns"] > window.start_ns)]
    return {
        "starts": (table["start_ns"] - window.start_ns).tolist(),
        "ends": (table["end_ns"] - window.start_ns).tolist(),
        "labels": [f"{word} {number}" for number in table["step"]],
    }


def describe_processes(trace: Trace | Ranks) -> dict[str, dict[str, Any]]:
    """Return the rank (-1 where it has none) and the host of each process, by its number."""
    known = Ranks.of(trace).table("processes")
    return {
        str(process): {"rank": int(rank), "host": plain_text(str(host), 120)}
        for process, rank, host in zip(known["process"], known["rank"], known["host"], strict=True)
    }


def describe_focus(ranks: Ranks, window: TimeWindow) -> dict[str, Any] | None:
    """Return the window that the analyses look at by default; None where it is all of the page."""
    chosen = select_default(ranks)
    inside = chosen.window & window
    if inside == window or inside.duration_ns == 0:
        return None
    label = {"steady": "Steady steps", "active": "While devices work"}.get(
        chosen.label, chosen.label
    )
    return {
        "start": inside.start_ns - window.start_ns,
        "end": inside.end_ns - window.start_ns,
        "label": label,
    }
