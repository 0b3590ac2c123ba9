"""Join result tables and training metrics of both sides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite, nan
from statistics import fmean
from typing import Any, Final

import numpy as np

from traceprof.comparison import specs
from traceprof.comparison.difference import SIDES, Matched, phases_of, states_of
from traceprof.comparison.sides import (
    MAX_NAME_LENGTH,
    Curve,
    Side,
    curve_of,
    metric_names,
    steady_steps,
    timed_steps,
    units_of,
)
from traceprof.comparison.statistics import compare_runs
from traceprof.measures.rows import floats, ratio_of
from traceprof.model.grouping import grouped_by, joined
from traceprof.model.results import Note, Result, ResultSpec
from traceprof.model.summary import better_of
from traceprof.model.table import Table, is_known, objects


@dataclass(frozen=True, slots=True)
class _JoinPlan:
    """How a table of an analysis is joined over both sides.

    ``measures`` maps each resulting measure to the column that is summed. ``difference`` is the
    measure that sorts the rows. ``rates`` maps each rate to its numerator, its denominator and a
    factor. ``more`` is another table, taken from the first run of each side, and its key.
    """

    analysis: str
    spec: ResultSpec
    keys: tuple[str, ...]
    measures: Mapping[str, str]
    difference: str
    rates: Mapping[str, tuple[str, str, float]] = field(default_factory=dict)
    more: tuple[str, str] | None = None


_NS_PER_S: Final = 1e9
"""Factor of rates over times in ns."""
_SUMS: Final = {"ns": "total_ns", "count": "count"}
_KERNELS: Final = _JoinPlan("kernels", specs.KERNELS, ("name",), _SUMS, "ns")
_CLASSES: Final = _JoinPlan("kernels", specs.KERNELS, ("activity",), _SUMS, "ns")
_COLLECTIVES: Final = {"exposed_ns": "exposed_ns", "waited_ns": "waited_ns", "bytes": "size_bytes"}
_LAYERS: Final = {name: name for name in ("device_ns", "host_ns", "count")}
_JOIN_PLANS: Final = (
    _JoinPlan("layers", specs.LAYERS, ("layer",), _LAYERS, "device_ns"),
    _JoinPlan(
        "collectives",
        specs.COLLECTIVES,
        ("op", "sizes", "group_size"),
        {**_SUMS, **_COLLECTIVES},
        "ns",
    ),
    _JoinPlan(
        "copies",
        specs.COPIES,
        ("direction", "src_kind", "dst_kind"),
        {**_SUMS, "bytes": "size_bytes"},
        "ns",
        {"rate_bytes_per_s": ("bytes", "ns", _NS_PER_S)},
    ),
    _JoinPlan(
        "flops",
        specs.FLOPS,
        ("operator", "precision"),
        {**_SUMS, "flop": "flop", "bytes": "moved_bytes", "known_flop_ns": "known_flop_ns"},
        "ns",
        {
            "achieved_flop_per_s": ("flop", "known_flop_ns", _NS_PER_S),
            "intensity": ("flop", "bytes", 1.0),
        },
        more=("peaks", "precision"),
    ),
)


def side_by_side(base: Side, new: Side) -> dict[str, Result]:
    """Return layers, collectives, copies, FLOPs and phases, if both sides have them."""
    found: dict[str, Result] = {}
    for plan in _JOIN_PLANS:
        table = _join_tables(plan, _tables(plan.analysis, base, new), (base, new))
        if len(table):
            more = () if plan.more is None else (_join_extra_table(plan, *plan.more, (base, new)),)
            table = _with_difference(table, plan.difference)
            found[plan.analysis] = _result(plan.analysis, plan.spec, table, *more)
    phases = _phases(base, new)
    if phases is not None and len(phases):
        found["phases"] = _result("phases", specs.PHASES, phases)
    return found


def _join_extra_table(plan: _JoinPlan, name: str, key: str, sides: tuple[Side, Side]) -> Table:
    """Join another table of the first run of both sides."""
    renamed = []
    for side, suffix in zip(sides, SIDES, strict=True):
        table = side.runs[0].results[plan.analysis].tables.get(name, Table({key: ()}))
        renamed.append(
            table.renamed(**{other: f"{suffix}_{other}" for other in table if other != key})
        )
    return joined(renamed[0], renamed[1], key)


def _tables(analysis: str, base: Side, new: Side) -> list[Table]:
    """Return the table of an analysis for both sides; [] if one side does not have it."""
    tables = [table for side in (base, new) if (table := side.table(analysis)) is not None]
    return tables if len(tables) == 2 else []


def _result(name: str, spec: ResultSpec, *tables: Table) -> Result:
    filled = {
        table_spec.name: table_spec.of_rows(table)
        for table_spec, table in zip(spec.tables, tables, strict=False)
    }
    return Result(name, spec, filled)


def _join_tables(plan: _JoinPlan, tables: Sequence[Table], sides: tuple[Side, Side]) -> Table:
    """Sum the tables of both sides by key, per step and device, and join them."""
    keys = plan.keys
    if not all(name in table for name in keys for table in tables) or not any(map(len, tables)):
        return Table({})
    parts = []
    for table, side, suffix in zip(tables, sides, SIDES, strict=True):
        known = table.known(*keys)
        if "busbw_bytes_per_s" in known:
            known = known.in_order("-total_ns")
        group_keys, groups = grouped_by(known, *keys)
        sums = {
            f"{suffix}_{name}": groups.sums(known[source]) / max(1, side.units_count)
            for name, source in plan.measures.items()
            if source in known
        }
        if "busbw_bytes_per_s" in known:
            # The row with the longest total time represents all rows with its key.
            sums[f"{suffix}_busbw_bytes_per_s"] = groups.first_known(known["busbw_bytes_per_s"])
        parts.append(group_keys.assign(**sums))
    both = joined(parts[0], parts[1], *keys)
    measured = [f"{side}_{name}" for side in SIDES for name in plan.measures]
    both = _with_zeros(both, [name for name in measured if name in both])
    rates = {
        f"{side}_{name}": ratio_of(both[f"{side}_{part}"], both[f"{side}_{of}"]) * factor
        for name, (part, of, factor) in plan.rates.items()
        for side in SIDES
    }
    return both.assign(**rates)


def _with_zeros(both: Table, names: Sequence[str]) -> Table:
    """Set unknown measures to 0 on the side that has no measure in the row."""
    for side in SIDES:
        side_columns = {name: both[name] for name in names if name.startswith(f"{side}_")}
        is_there = np.logical_or.reduce([is_known(values) for values in side_columns.values()])
        both = both.assign(
            **{name: np.where(is_there, side_columns[name], 0.0) for name in side_columns}
        )
    return both


def _with_difference(both: Table, measure: str) -> Table:
    """Add the difference and the state of each row; sort by the largest difference."""
    first, second = (both.get(f"{side}_{measure}") for side in SIDES)
    if first is None or second is None or (np.isnan(first) & np.isnan(second)).all():
        first, second = (both.get(f"{side}_host_ns") for side in SIDES)
    if first is None or second is None:
        return both
    difference, new = second - first, np.nan_to_num(second)
    state = states_of(np.nan_to_num(first), new, both.get("base_name", [""] * len(both)))
    order = np.lexsort((-new, -np.nan_to_num(np.abs(difference))))
    return both.assign(difference_ns=difference, state=state).take(order)


def kernels_of(base: Side, new: Side, matched: Matched) -> Result | None:
    """Return the kernels and kernel classes of both sides, per step and device."""
    tables = _tables("kernels", base, new)
    if not any(map(len, tables)):
        return None
    tables = [_named(tables[0], matched.base), _named(tables[1], matched.new)]
    kernels, classes = (_join_tables(plan, tables, (base, new)) for plan in (_KERNELS, _CLASSES))
    known = {
        name: activity
        for table in tables
        for name, activity in zip(table["name"], table["activity"], strict=True)
    }
    kernels = kernels.assign(
        activity=objects(known[name] for name in kernels["name"]),
        base_name=objects(matched.renamed.get(name, "") for name in kernels["name"]),
        **{
            f"{side}_mean_ns": ratio_of(kernels[f"{side}_ns"], kernels[f"{side}_count"])
            for side in SIDES
        },
    )
    return _result(
        "kernels", specs.KERNELS, *(_with_difference(table, "ns") for table in (kernels, classes))
    )


def _named(kernels: Table, names: Mapping[str, str]) -> Table:
    """Return the kernels with their shared names."""
    return kernels.assign(
        name=objects(names.get(name[:MAX_NAME_LENGTH], name) for name in kernels["name"])
    )


def _count_process_steps(side: Side) -> int:
    """Return the number of steps, summed over the processes of all runs with phases."""
    found = 0
    for run in side.runs:
        if "phases" in run.results:
            processes = run.results["phases"].table["process"]
            found += len(set(processes.tolist())) * units_of(run, side.unit)
    return found


def _phases(base: Side, new: Side) -> Table | None:
    tables = _tables("phases", base, new)
    if not tables or not all(map(len, tables)):
        return None
    parts = []
    for table, side, suffix in zip(tables, (base, new), SIDES, strict=True):
        n, (phases, groups) = max(1, _count_process_steps(side)), grouped_by(table, "phase")
        names = [name for name in ("host_ns", "device_ns") if name in table]
        parts.append(
            phases.assign(**{f"{suffix}_{name}": groups.sums(table[name]) / n for name in names})
        )
    both = joined(parts[0], parts[1], "phase")
    both = both.assign(**{name: np.nan_to_num(both[name]) for name in both if name != "phase"})
    for what in ("host", "device"):
        names = [f"{side}_{what}_ns" for side in SIDES]
        if set(names) <= set(both):
            both = both.assign(**{f"{what}_difference_ns": both[names[1]] - both[names[0]]})
    return both.take(np.argsort(-np.abs(both["host_difference_ns"]), kind="stable"))


def host_phases(base: Side, new: Side) -> Table | None:
    """Return the host phases per step and process, as an exact sum."""
    tables = _tables("phases", base, new)
    counts = [_count_process_steps(side) for side in (base, new)]
    if not tables or not all(map(len, tables)) or not all(counts):
        return None
    sums = [Counter[str](), Counter[str]()]
    for side_sums, table in zip(sums, tables, strict=True):
        for phase, ns in zip(table["phase"], table["host_ns"].tolist(), strict=True):
            side_sums[phase] += ns
    return phases_of(sums, SIDES, counts)


_RANK_MEASURES: Final = ("period_ns", "compute_ns", "idle_ns", "waited_ns")


def ranks_of_sides(base: Side, new: Side) -> Result | None:
    """Return the means of each rank over its timed steps; None if no side has several ranks."""
    parts = [_ranks_of(base, "base"), _ranks_of(new, "new")]
    if any(part.empty for part in parts) or max(map(len, parts)) < 2:
        return None
    both = joined(parts[0], parts[1], "rank")
    both = both.assign(period_change_ratio=both["new_period_ns"] / both["base_period_ns"] - 1)
    return _result(
        "ranks", specs.RANKS, both.select(*(name for name in both if is_known(both[name]).any()))
    )


def _ranks_of(side: Side, name: str) -> Table:
    tables = [run.table("steps") for run in side.runs]
    if any(table.empty for table in tables):
        return Table({})
    steps = Table.stacked([timed_steps(steady_steps(table)) for table in tables])
    ranks, groups = grouped_by(steps, "rank")
    means = {}
    for measure in _RANK_MEASURES:
        if measure in steps:
            values, counts = floats(steps, measure, "steps_count")
            counts = np.where(np.isnan(values), np.nan, counts)
            means[f"{name}_{measure}"] = groups.sums(values) / groups.sums(counts)
    return ranks.assign(**means)


_SPEED_SUFFIXES: Final = (
    *("_ns", "_per_s", "_bytes", "_per_device", "_per_rank", "_count", "mfu_ratio"),
)


def metrics_of_sides(base: Side, new: Side) -> Result | None:
    """Return the mean of each metric that all runs have; None if there is none.

    Metrics of speed and memory are omitted, because they are in `measures`.
    """
    runs = [*base.runs, *new.runs]
    names = [
        name
        for name in metric_names(runs[0])
        if not name.endswith(_SPEED_SUFFIXES) and all(name in metric_names(run) for run in runs[1:])
    ]
    rows = [row for name in names if (row := _metric_row(name, base, new)) is not None]
    if not rows:
        return None
    note = Note(
        "traceprof compares runs: means over the runs, verdicts from their best values."
        if any(row["verdict"] for row in rows)
        else "One run per side is not enough to test whether the metrics differ."
    )
    return _result("metrics", specs.METRICS, Table.of_rows(rows)).with_notes(note)


def _metric_row(name: str, base: Side, new: Side) -> dict[str, Any] | None:
    curves = [[curve_of(run, name) for run in side.runs] for side in (base, new)]
    if any(not len(curve.rows) for side_curves in curves for curve in side_curves):
        return None
    better = better_of(name)
    bests = [[_best(curve, better) for curve in side_curves] for side_curves in curves]
    row: dict[str, Any] = {"metric": name, "better": better}
    for side, side_curves, best in zip(("base", "new"), curves, bests, strict=True):
        row |= {
            f"{side}_last": fmean(float(curve.rows["value"][-1]) for curve in side_curves),
            f"{side}_best": fmean(best),
            f"{side}_epoch": _mean_of_last(side_curves, "epoch"),
            f"{side}_step": _mean_of_last(side_curves, "step"),
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
    values = [float(curve.rows[column][-1]) for curve in curves]
    return fmean(values) if all(map(isfinite, values)) else nan


def _verdict(base: Sequence[float], new: Sequence[float], better: str) -> str:
    """Return the result of the test over runs; "" if a side has only one run."""
    if min(len(base), len(new)) < 2 or not all(value > 0 for value in (*base, *new)):
        return ""
    found = compare_runs(base, new)
    if not found.excludes_zero:
        return "no difference shown"
    return "better" if (found.change_ratio > 0) == (better == "higher") else "worse"
