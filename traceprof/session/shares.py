"""The share of each part of the time that a verdict is about, without what the profiler added."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from traceprof.model.activity import PARTS
from traceprof.model.results import Note, Result
from traceprof.model.table import Bools, Table
from traceprof.names.ranges import PROFILER

COMMUNICATION: Final = "exposed_communication"
UNDISTURBED: Final = "undisturbed_ns"
CONSIDERABLE: Final = 0.05
_BY_HOST: Final = "communication"
"""The cause of idle time that is communication, though no device carries it out."""
_LEAST_ADDED: Final = 0.02


def parts_of(
    results: Mapping[str, Result], steps: Result | None, rows: Bools | None
) -> dict[str, float]:
    """Return the share of each of the five parts, {} where no device worked.

    Of the ``rows`` of the steps (None: of the window), and without what the profiler added where
    that is known; idle time in which the host communicates is communication.
    """
    total = table_of(results, "breakdown", "total")
    parts = _undisturbed(_parts(total, steps, rows), steps)
    return _with_communication(parts, results)


def missing_work(results: Mapping[str, Result]) -> tuple[Note, ...]:
    """Return what of the devices' work is missing in the recording, why, and what to do."""
    findings = results.get("findings")
    if findings is None or "lost" not in findings.tables or findings.tables["lost"].empty:
        return ()
    return tuple(findings.tables["lost"].plain("message").tolist())


def _parts(total: Table, steps: Result | None, rows: Bools | None) -> dict[str, float]:
    """Return the share of each of the five parts, of all devices together."""
    if total.empty or not total["duration_ns"][0]:
        return {}
    if steps is not None and rows is not None and "compute_ns" in steps.table:
        own = steps.table.take(rows)
        sums = {part: float(np.nansum(own[f"{part}_ns"])) for part in PARTS}
        if whole := sum(sums.values()):
            return {part: ns / whole for part, ns in sums.items()}
    row = total.row(0)
    return {part: float(row[f"{part}_ns"] / row["duration_ns"]) for part in PARTS}


def _undisturbed(parts: dict[str, float], steps: Result | None) -> dict[str, float]:
    """Return the share of each part of a step that no profiler disturbed, where that is known.

    The devices do in it what they do in recorded ones, and are idle for the rest of it.
    """
    if not parts or steps is None or not is_undisturbed(steps) or "compute_ns" not in steps.table:
        return parts
    own = steps.table.take(are_typical(steps.table))
    means = {part: float(np.nanmean(own[f"{part}_ns"])) for part in PARTS} if len(own) else {}
    busy_ns = sum(means.values()) - means.get("idle", 0.0)
    if not busy_ns > 0:
        return parts
    whole_ns = max(busy_ns, float(steps.scalars[UNDISTURBED]))
    means["idle"] = whole_ns - busy_ns
    return {part: ns / whole_ns for part, ns in means.items()}


def _with_communication(parts: dict[str, float], results: Mapping[str, Result]) -> dict[str, float]:
    """Return the parts, idle time in which the host communicates being exposed communication."""
    by_host = _ratio_by_host(parts, results)
    moved = {COMMUNICATION: by_host, "idle": -by_host}
    return {name: share + moved.get(name, 0.0) for name, share in parts.items()}


def _ratio_by_host(parts: Mapping[str, float], results: Mapping[str, Result]) -> float:
    causes = table_of(results, "idle", "causes")
    if not parts or causes.empty:
        return 0.0
    total = causes["total_ns"]
    if is_undisturbed(results.get("steps")):
        total = np.where(causes["cause"] == PROFILER, 0, total)
    by_host = total[causes["cause"] == _BY_HOST].sum()
    return float(parts["idle"] * by_host / total.sum()) if by_host else 0.0


def on_recording(steps: Result, results: Mapping[str, Result]) -> tuple[str, dict[str, Any]]:
    """Return what recording did to the steps, and the values of these words."""
    scalars = steps.scalars
    ratio = scalars["disturbance_ratio"]
    values = {"factor": 1 + ratio, "each": scalars.get("disturbance_per_launch_ns")}
    if ratio < _LEAST_ADDED:
        return "; with it they take as long", values
    text = "; with it they take {factor:number} times as long"
    text += " ({each:ns} more for each launch)" if values["each"] is not None else ""
    causes, devices = (table_of(results, "idle", name) for name in ("causes", "devices"))
    if devices.empty:
        return text, values
    own_ns = causes["total_ns"][causes["cause"] == PROFILER].sum()
    left = ratio / (1 + ratio) - own_ns / devices["recorded_ns"].sum()
    if left <= CONSIDERABLE:
        return f"{text}, which is taken out", values
    return f"{text}, and {{left:ratio}} of the time cannot be taken out", {**values, "left": left}


def causes_of_idle(results: Mapping[str, Result]) -> Table:
    """Return what devices were idle for, without what is in another part, or in none.

    The host's communication is a part of its own, and what the profiler added is in no part where
    steps without it are known.
    """
    causes = table_of(results, "idle", "causes")
    others = (_BY_HOST, PROFILER) if is_undisturbed(results.get("steps")) else (_BY_HOST,)
    return causes.take(~np.isin(causes["cause"], others)) if len(causes) else causes


def is_undisturbed(steps: Result | None) -> bool:
    """Return whether it is known how long the steps are without a profiler."""
    return steps is not None and UNDISTURBED in steps.scalars


def are_typical(steps: Table) -> Bools:
    """Return which steps are no warm-up, and not longer by what is done now and then."""
    typical: Bools = ~steps["is_warmup"] & (steps["excess_cause"] == "")
    return typical


def table_of(results: Mapping[str, Result], name: str, table: str | None = None) -> Table:
    """Return a table of an analysis, without rows and columns where there is no such result."""
    if name not in results:
        return Table({})
    return results[name].table if table is None else results[name].tables[table]
