"""The share of each part of the time that a verdict is about, without what the profiler added."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from traceprof.model.activity import IDLE, PARTS, Activity, Part
from traceprof.model.grouping import groups_of
from traceprof.model.results import Note, Result
from traceprof.model.table import Bools, Names, Table
from traceprof.names.kernels import MATRIX_WORK, precision_of
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


_CAUSES: Final = {
    "data": "data",
    "synchronising": "synchronisation",
    "launch": "launches",
    "host": "host code",
    "queued": "queued work",
    "peer": "other devices",
    "edge": "start and end",
    "unknown": "not recorded",
}
"""What a bar calls the causes of idle time."""
_LEAST_TOLD: Final = 0.01
_MOST_CLASSES: Final = 5
_CLASSES: Final = {
    Activity.GEMM: "GEMM",
    Activity.MOE: "MoE",
    Activity.FFT: "FFT",
    Activity.SORT_INDEX: "sorting and indexing",
    Activity.RNG_DROPOUT: "random numbers",
    Activity.CUDA_GRAPH: "CUDA graphs",
    Activity.OTHER: "other kernels",
}


def idle_by_cause(
    results: Mapping[str, Result], parts: Mapping[str, float], *, is_mean: bool
) -> dict[str, float]:
    """Return what share of the time that ``parts`` are of is idle for which cause.

    The largest first, in words; causes of less than 1 % are left out. ``is_mean``: slow steps are
    in that time, whose losses `findings` do not tell by cause.
    """
    losses = table_of(results, "findings", "losses")
    if not parts or losses.empty:
        return {}
    scalars, steps = results["findings"].scalars, results.get("steps")
    own = losses.take(np.isin(losses["loss"].astype(str), list(_CAUSES)))
    slow_ratio = scalars["slow_ratio"] if is_mean else 0.0
    whole_ns = scalars["judged_ns"] / (1 - slow_ratio) if slow_ratio < 1 else np.inf
    if is_undisturbed(steps):
        whole_ns, slow_ratio = float(own["total_ns"].sum()) / max(parts[IDLE], 1e-9), 0.0
    # What follows a wait for the device would not be without it, as findings have it.
    after_ns = own["after_wait_ns"] * (own["loss"] != "synchronising")
    shares = {
        _CAUSES[loss]: ns / whole_ns
        for loss, ns in zip(
            own["loss"].tolist(), (own["total_ns"] - after_ns).tolist(), strict=True
        )
    }
    waits = _CAUSES["synchronising"]
    shares[waits] = shares.get(waits, 0.0) + float(after_ns.sum()) / whole_ns
    if slow_ratio:
        shares["slow steps"] = parts[IDLE] - sum(shares.values())
    ranked = sorted(shares.items(), key=lambda one: -one[1])
    return {name: share for name, share in ranked if share >= _LEAST_TOLD}


def on_idle(idle: Mapping[str, float], base: str) -> tuple[Note, ...]:
    """Return what devices are idle for, as shares of ``base``, where that is much."""
    if sum(idle.values()) < CONSIDERABLE:
        return ()
    return (_listed(f"idle, of {base}: ", idle),)


def on_compute(results: Mapping[str, Result], parts: Mapping[str, float]) -> tuple[Note, ...]:
    """Return what the compute is: the classes of its kernels, matrix work with its precision."""
    table = table_of(results, "kernels")
    if not parts or table.empty:
        return ()
    table = table.take(np.array([Activity(own).part is Part.COMPUTE for own in table["activity"]]))
    whole_ns = float(table["total_ns"].sum())
    if not whole_ns or parts["compute"] < CONSIDERABLE:
        return ()
    names = Names.of(
        [_class_of(*row) for row in zip(table["activity"], table["name"], strict=True)]
    )
    groups = groups_of(names.codes)
    sums = groups.reduced(np.add, table["total_ns"]) / whole_ns
    labels = [names.texts[key[0]] for key in groups.keys]
    ranked = sorted(zip(sums.tolist(), labels, strict=True), key=lambda one: (-one[0], one[1]))
    shown = {name: share for share, name in ranked[:_MOST_CLASSES] if share >= _LEAST_TOLD}
    if (rest := 1 - sum(shown.values())) >= _LEAST_TOLD:
        shown["others"] = rest
    return (_listed("compute, of the time of its kernels: ", shown),)


_MOST_UNKNOWN: Final = 0.1
LEAST_MFU: Final = 0.001
"""A share that is 0.0 % where it is printed says nothing of how well a GPU multiplies."""


def on_peak(results: Mapping[str, Result]) -> tuple[Note, ...]:
    """Return what share of the peak the GPUs reach, where most FLOPs of a step are known."""
    table = table_of(results, "mfu")
    if table.empty:
        return ()
    row = table.row(0)
    unknown = np.nan_to_num(row["unknown_ratio"])
    if not row["mfu_ratio"] >= LEAST_MFU or unknown > _MOST_UNKNOWN:
        return ()
    text = (
        "at {more}{share:ratio} of the dense {precision} peak (MFU): {flop:flop} of the model in "
        "{step:ns}, {rate:flop/s} a GPU; FLOPs: {source}"
    )
    more = "least " if unknown > _LEAST_UNKNOWN else ""
    told = {"flop": row["model_flop"], "step": row["step_ns"], "source": row["source"]}
    told |= {"precision": row["precision"].upper(), "rate": row["achieved_flop_per_s"]}
    return (Note.of(text, more=more, share=row["mfu_ratio"], **told),)


_LEAST_UNKNOWN: Final = 0.02


def _class_of(activity: str, name: str) -> str:
    kind = Activity(activity)
    words = _CLASSES.get(kind, kind.value.replace("_", " "))
    precision = precision_of(name).upper() if kind in MATRIX_WORK else ""
    return f"{precision} {words}" if precision else words


def _listed(start: str, shares: Mapping[str, float]) -> Note:
    words = ", ".join(f"{{name{i}}} {{share{i}:ratio}}" for i in range(len(shares)))
    values: dict[str, Any] = {}
    for i, (name, share) in enumerate(shares.items()):
        values |= {f"name{i}": name, f"share{i}": float(share)}
    return Note.of(start + words, **values)
