"""Why slow steps took longer than the typical one, for the panel of a page: what `explain` says."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any, Final

import numpy as np

from traceprof.comparison.explaining import explain_ranks
from traceprof.errors import TraceprofError
from traceprof.measures.rows import rows_by
from traceprof.measures.steps.find import steps_of_ranks
from traceprof.model.ranks import Ranks
from traceprof.model.results import Result
from traceprof.model.timing import TimeWindow
from traceprof.render.escape import plain_text
from traceprof.render.palette import category_of
from traceprof.render.shown import Row

_SLOWER: Final = 1.05
"""So much longer than the median a step is before its reasons are looked for."""
_MOST_STEPS: Final = 8
_MOST_OF_MANY: Final = 2
_MANY_RANKS: Final = 8
_MOST_CAUSES: Final = 6
_MOST_EVENTS: Final = 1_000_000
_LEAST_SHARE: Final = 0.01
_RANK: Final = re.compile(r"rank (\d{1,7})")
_BARE: Final = ("kernel", "copy", "collective")


def describe_reasons(ranks: Ranks, window: TimeWindow, n_events: int) -> dict[str, dict[str, Any]]:
    """Return, by their labels ("step 7"), why the slowest steps in ``window`` took longer.

    To explain a step costs the more the more ranks there are: of many ranks fewer are explained,
    of a page of very many events none.
    """
    if n_events > _MOST_EVENTS:
        return {}
    most = _MOST_STEPS if len(ranks) <= _MANY_RANKS else _MOST_OF_MANY
    found = {}
    for step in _slow_steps(ranks, window)[:most]:
        with suppress(TraceprofError):
            _, result = explain_ranks(ranks, f"step:{step}")
            if result.scalars["difference_ns"] > 0:
                found[f"step {step}"] = _told(result)
    return found


def _slow_steps(ranks: Ranks, window: TimeWindow) -> list[int]:
    """Return the numbers of the steps that are longer than usual, the longest first."""
    steps = steps_of_ranks(ranks.whole)
    if not len(steps):
        return []
    table = steps.table
    lengths = {
        step: float(steps.durations_ns[rows].mean())
        for step, rows in rows_by(table, "step").items()
        if int(table["start_ns"][rows].min()) < window.end_ns
        and int(table["end_ns"][rows].max()) > window.start_ns
    }
    usual_ns = float(np.median([*lengths.values()])) if lengths else 0.0
    slow = [step for step, ns in lengths.items() if ns > _SLOWER * usual_ns]
    return sorted(slow, key=lambda step: -lengths[step])


def _told(result: Result) -> dict[str, Any]:
    scalars = result.scalars
    least_ns = _LEAST_SHARE * abs(scalars["difference_ns"])
    causes = result.tables["causes"].rows()[:_MOST_CAUSES]
    return {
        "reference": scalars["reference"],
        "difference_ns": scalars["difference_ns"],
        "devices": scalars["devices_count"],
        "causes": [_cause(row) for row in causes if abs(row["difference_ns"]) >= least_ns],
    }


def _cause(row: Row) -> dict[str, Any]:
    name, kind = plain_text(str(row["name"]), 600), str(row["kind"])
    words = name if kind in _BARE else f"{kind} {name}".strip()
    rank = _RANK.fullmatch(name) if kind == "waiting" else None
    if kind == "waiting":
        words = f"waiting for {name.strip('()')}"
    elif kind not in _BARE:
        words = f"{category_of(str(row['part'])).label}: {words}"
    device = row.get("device", np.nan)
    return {
        "words": words,
        "ns": row["difference_ns"],
        "part": str(row["part"]),
        "kernel": name if kind == "kernel" else "",
        "device": int(device) if device == device else -1,
        "rank": int(rank[1]) if rank else -1,
    }
