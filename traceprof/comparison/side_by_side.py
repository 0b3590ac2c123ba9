"""Tables of analyses of both sides, and metrics of training, beside one another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite, nan
from statistics import fmean
from typing import Any, Final

import numpy as np
import pandas as pd

from traceprof.comparison.difference import SIDES, Matched, phases_of, states_of
from traceprof.comparison.sides import Curve, Side, curve_of, metric_names, units_of
from traceprof.comparison.specs import COLLECTIVES, COPIES, KERNELS, LAYERS, METRICS, PHASES, RANKS
from traceprof.comparison.statistics import compare_runs
from traceprof.model.results import Note, Result, ResultSpec
from traceprof.model.summary import better_of

_LONGEST_NAME: Final = 600


@dataclass(frozen=True, slots=True)
class _Joined:
    """How a table of an analysis becomes one of both sides.

    ``measures`` gives, by the name of a measure here, the column that is added up there, and
    ``difference`` the one that rows are ordered by.
    """

    analysis: str
    spec: ResultSpec
    keys: tuple[str, ...]
    measures: Mapping[str, str]
    difference: str
    rates: Mapping[str, tuple[str, str]] = field(default_factory=dict)


_SUMS: Final = {"ns": "total_ns", "count": "count"}
_KERNELS: Final = _Joined("kernels", KERNELS, ("name",), _SUMS, "ns")
_CLASSES: Final = _Joined("kernels", KERNELS, ("activity",), _SUMS, "ns")
_COLLECTIVES: Final = {"exposed_ns": "exposed_ns", "waited_ns": "waited_ns", "bytes": "size_bytes"}
_LAYERS: Final = {name: name for name in ("device_ns", "host_ns", "count")}
_JOINED: Final = (
    _Joined("layers", LAYERS, ("layer",), _LAYERS, "device_ns"),
    _Joined(
        "collectives", COLLECTIVES, ("op", "sizes", "group_size"), {**_SUMS, **_COLLECTIVES}, "ns"
    ),
    _Joined(
        "copies",
        COPIES,
        ("direction", "src_kind", "dst_kind"),
        {**_SUMS, "bytes": "size_bytes"},
        "ns",
        {"rate_bytes_per_s": ("bytes", "ns")},
    ),
)


def side_by_side(base: Side, new: Side) -> dict[str, Result]:
    """Return layers, collectives, copies and phases of both sides, those that both know."""
    found: dict[str, Result] = {}
    for plan in _JOINED:
        table = _joined(plan, _frames(plan.analysis, base, new), (base, new))
        if len(table):
            table = _with_difference(table, plan.difference)
            found[plan.analysis] = _result(plan.analysis, plan.spec, table)
    phases = _phases(base, new)
    if phases is not None and len(phases):
        found["phases"] = _result("phases", PHASES, phases)
    return found


def _frames(analysis: str, base: Side, new: Side) -> list[pd.DataFrame]:
    """Return the tables of an analysis of both sides; none where one side has none."""
    frames = [own for side in (base, new) if (own := side.frame(analysis)) is not None]
    return frames if len(frames) == 2 else []


def _result(name: str, spec: ResultSpec, *tables: pd.DataFrame) -> Result:
    frames = {
        own.name: own.frame(table.reset_index(drop=True))
        for own, table in zip(spec.tables, tables, strict=False)
    }
    return Result(name, spec, frames)


def _joined(
    plan: _Joined, frames: Sequence[pd.DataFrame], sides: tuple[Side, Side]
) -> pd.DataFrame:
    keys = list(plan.keys)
    if not all(name in frame for name in keys for frame in frames) or not any(map(len, frames)):
        return pd.DataFrame()
    parts = []
    for frame, side, suffix in zip(frames, sides, SIDES, strict=True):
        known = [source for source in plan.measures.values() if source in frame]
        sums = frame.groupby(keys)[known].sum(min_count=1) / max(1, side.units_count)
        named = {source: name for name, source in plan.measures.items()}
        sums = sums.rename(columns=named).add_prefix(f"{suffix}_")
        if "busbw_bytes_per_s" in frame:
            # Of rows with one key the one that takes the longest stands for them.
            first = frame.sort_values("total_ns", ascending=False).groupby(keys)
            sums[f"{suffix}_busbw_bytes_per_s"] = first["busbw_bytes_per_s"].first()
        parts.append(sums)
    both = parts[0].join(parts[1], how="outer")
    measured = [f"{side}_{name}" for side in SIDES for name in plan.measures]
    both = _with_zeros(both, [name for name in measured if name in both]).reset_index()
    for name, (part, of) in plan.rates.items():
        for own in SIDES:
            whole = both[f"{own}_{of}"]
            both[f"{own}_{name}"] = both[f"{own}_{part}"] / whole.where(whole > 0) * 1e9
    return both


def _with_zeros(both: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Return it with 0 where the other side has the row and this one not."""
    for side in SIDES:
        own = [name for name in names if name.startswith(f"{side}_")]
        is_absent = both[own].isna().all(axis=1)
        both.loc[is_absent, own] = 0.0
    return both


def _with_difference(both: pd.DataFrame, measure: str) -> pd.DataFrame:
    first, second = both.get(f"base_{measure}"), both.get(f"new_{measure}")
    if first is None or second is None or (first.isna() & second.isna()).all():
        first, second = both.get("base_host_ns"), both.get("new_host_ns")
    if first is None or second is None:
        return both
    difference = second - first
    old = both["base_name"] if "base_name" in both else [""] * len(both)
    both = both.assign(
        difference_ns=difference, state=states_of(first.fillna(0), second.fillna(0), old)
    )
    order = np.lexsort((-second.fillna(0).to_numpy(), -difference.abs().fillna(0).to_numpy()))
    return both.iloc[order]


def kernels_of(base: Side, new: Side, matched: Matched) -> Result | None:
    """Return the kernels and classes of both sides, per step and device."""
    frames = _frames("kernels", base, new)
    if not any(map(len, frames)):
        return None
    frames = [_named(frames[0], matched.base), _named(frames[1], matched.new)]
    kernels, classes = (_joined(plan, frames, (base, new)) for plan in (_KERNELS, _CLASSES))
    known = pd.concat(frames).drop_duplicates("name", keep="last").set_index("name")
    kernels["activity"] = kernels["name"].map(known["activity"].astype(object))
    kernels["base_name"] = [matched.renamed.get(str(name), "") for name in kernels["name"]]
    for side in SIDES:
        count = kernels[f"{side}_count"]
        kernels[f"{side}_mean_ns"] = kernels[f"{side}_ns"] / count.where(count > 0)
    return _result("kernels", KERNELS, *(_with_difference(own, "ns") for own in (kernels, classes)))


def _named(kernels: pd.DataFrame, names: Mapping[str, str]) -> pd.DataFrame:
    """Return the kernels with the names that they have on both sides."""
    shown = [names.get(str(name)[:_LONGEST_NAME], str(name)) for name in kernels["name"]]
    return kernels.assign(name=np.array(shown, object))


def _processes_of(side: Side) -> int:
    """Return how many steps of how many processes the phases of all runs add up."""
    found = 0
    for run in side.runs:
        if "phases" in run.results:
            table = run.results["phases"].to_frame()
            found += int(table["process"].nunique()) * units_of(run, side.unit)
    return found


def _phases(base: Side, new: Side) -> pd.DataFrame | None:
    frames = _frames("phases", base, new)
    if not frames or not all(map(len, frames)):
        return None
    parts = []
    for frame, side, suffix in zip(frames, (base, new), SIDES, strict=True):
        own = [name for name in ("host_ns", "device_ns") if name in frame]
        sums = frame.groupby("phase", sort=False)[own].sum() / max(1, _processes_of(side))
        parts.append(sums.add_prefix(f"{suffix}_"))
    both = parts[0].join(parts[1], how="outer").fillna(0.0).rename_axis("phase").reset_index()
    for what in ("host", "device"):
        names = [f"{side}_{what}_ns" for side in SIDES]
        if set(names) <= set(both):
            both[f"{what}_difference_ns"] = both[names[1]] - both[names[0]]
    order = np.argsort(-both["host_difference_ns"].abs().to_numpy(), kind="stable")
    return both.iloc[order]


def host_phases(base: Side, new: Side) -> pd.DataFrame | None:
    """Return the phases of the hosts as a sum that is exact, per step and process."""
    frames = _frames("phases", base, new)
    counts = [_processes_of(side) for side in (base, new)]
    if not frames or not all(map(len, frames)) or not all(counts):
        return None
    sums = [own.groupby("phase", sort=False)["host_ns"].sum() for own in frames]
    return phases_of(sums, SIDES, counts)


_OF_RANKS: Final = ("period_ns", "compute_ns", "idle_ns", "waited_ns")


def ranks_of_sides(base: Side, new: Side) -> Result | None:
    """Return the ranks of both sides, where one has several: means over their steady steps."""
    parts = [_ranks_of(side) for side in (base, new)]
    if any(part.empty for part in parts) or max(map(len, parts)) < 2:
        return None
    both = parts[0].add_prefix("base_").join(parts[1].add_prefix("new_"), how="outer")
    both = both.rename_axis("rank").reset_index()
    change = both["new_period_ns"] / both["base_period_ns"] - 1
    return _result(
        "ranks", RANKS, both.assign(period_change_ratio=change).dropna(axis=1, how="all")
    )


def _ranks_of(side: Side) -> pd.DataFrame:
    tables = [run.table("steps") for run in side.runs]
    if any(table.empty for table in tables):
        return pd.DataFrame()
    steps = pd.concat(tables, ignore_index=True)
    steps = steps[~steps["is_warmup"].astype(bool)]
    measures = [name for name in _OF_RANKS if name in steps]
    means: dict[str, Any] = {}
    for name in measures:
        known = steps[steps[name].notna()]
        groups = known.groupby("rank")
        means[name] = groups[name].sum() / groups["steps_count"].sum()
    return pd.DataFrame(means)


_OF_SPEED: Final = ("_ns", "_per_s", "_bytes", "_per_device", "_per_rank", "_count", "mfu_ratio")


def metrics_of_sides(base: Side, new: Side) -> Result | None:
    """Return the metrics that all runs have, of each side its mean; None without any.

    What tells of speed and memory is left out: `measures` has it.
    """
    runs = [*base.runs, *new.runs]
    names = [
        name
        for name in metric_names(runs[0])
        if not name.endswith(_OF_SPEED) and all(name in metric_names(run) for run in runs[1:])
    ]
    rows = [row for name in names if (row := _row(name, base, new)) is not None]
    if not rows:
        return None
    note = Note(
        "the run is the unit: means of the runs, judged by their best values"
        if any(row["verdict"] for row in rows)
        else "one run of each does not tell whether metrics differ by more than chance"
    )
    return _result("metrics", METRICS, pd.DataFrame(rows)).with_notes(note)


def _row(name: str, base: Side, new: Side) -> dict[str, Any] | None:
    curves = [[curve_of(run, name) for run in side.runs] for side in (base, new)]
    if any(not len(curve.rows) for own in curves for curve in own):
        return None
    better = better_of(name)
    bests = [[_best(curve, better) for curve in own] for own in curves]
    row: dict[str, Any] = {"metric": name, "better": better}
    for side, own, best in zip(("base", "new"), curves, bests, strict=True):
        row |= {
            f"{side}_last": fmean(float(curve.rows["value"].iloc[-1]) for curve in own),
            f"{side}_best": fmean(best),
            f"{side}_epoch": _mean_of_last(own, "epoch"),
            f"{side}_step": _mean_of_last(own, "step"),
        }
    return {
        **row,
        "last_difference": row["new_last"] - row["base_last"],
        "best_difference": row["new_best"] - row["base_best"],
        "verdict": _verdict(bests[0], bests[1], better),
    }


def _best(curve: Curve, better: str) -> float:
    values = curve.rows["value"]
    if not better:
        return nan
    return float(values.min() if better == "lower" else values.max())


def _mean_of_last(curves: Sequence[Curve], column: str) -> float:
    values = [float(curve.rows[column].iloc[-1]) for curve in curves]
    return fmean(values) if all(map(isfinite, values)) else nan


def _verdict(base: Sequence[float], new: Sequence[float], better: str) -> str:
    """Return what several runs of each side tell; "" of one of each."""
    if min(len(base), len(new)) < 2 or not all(value > 0 for value in (*base, *new)):
        return ""
    found = compare_runs(base, new)
    if not found.excludes_zero:
        return "no difference shown"
    return "better" if (found.change_ratio > 0) == (better == "higher") else "worse"
