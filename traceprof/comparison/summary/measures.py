"""A run in single numbers, those that are known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
import pandas as pd

from traceprof.comparison.sides import STEP, series_of
from traceprof.comparison.statistics import interval_of_mean, interval_of_median
from traceprof.measures.collectives.members import find_members
from traceprof.measures.rows import Floats
from traceprof.measures.steps.find import pattern_of_ranks
from traceprof.model.activity import PARTS
from traceprof.model.ranks import Ranks
from traceprof.model.results import Result, Unit
from traceprof.model.summary import SUMMARY, Summary
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace

_Row = tuple[str, float, Unit, str, str]
_HIGHER, _LOWER, _NEITHER = "higher", "lower", ""


def measures_of_run(
    ranks: Ranks,
    results: Mapping[str, Result],
    tables: Mapping[str, pd.DataFrame],
    steps_count: int,
) -> pd.DataFrame:
    """Return the measures of the window: measure, value, unit, scope, better, source.

    Lengths of steps and their parts are of one step (and one device), means over the window.
    """
    rows = [
        *_of_size(ranks),
        *_of_throughput(results),
        *_of_steps(tables["steps"], results),
        *_of_parts(ranks, results, steps_count),
        *_of_collectives(results),
    ]
    known = [row for row in rows if np.isfinite(row[1])]
    frame = pd.DataFrame(known, columns=["measure", "value", "unit", "scope", "better"])
    return frame.assign(
        unit=[str(unit) for unit in frame["unit"]],
        **_intervals(frame, tables["steps"]),
        source=np.where(frame["measure"] == "world_size", "recorded", "measured"),
    )


def _intervals(measures: pd.DataFrame, steps: pd.DataFrame) -> Mapping[str, Floats]:
    """Return the 95 % intervals of medians and means over steps; NaN of other measures."""
    run = Summary("", tables={"steps": SUMMARY.table("steps").frame(steps)})
    found = {name: interval_of_median(series_of(run, own, STEP)) for name, own in _MEDIANS.items()}
    least, most = interval_of_mean(series_of(run, "period_ns", STEP))
    # How far the interval of the mean reaches to either side, as a share of it.
    share = (most - least) / (most + least) if most + least > 0 else np.nan
    unknown = (np.nan, np.nan)
    ends = []
    for name, value in zip(measures["measure"], measures["value"].astype(float), strict=True):
        if name in _BY_PERIOD:
            ends.append((value * (1 - share), value * (1 + share)))
        elif name in _BY_RATE:
            # All samples over all time: what the time may be, the other way about.
            most = value / (1 - share) if share < 1 else np.nan
            ends.append((value / (1 + share), most))
        else:
            ends.append(found.get(str(name), unknown))
    pairs = np.array(ends, np.float64).reshape(-1, 2)
    return {"low": pairs[:, 0], "high": pairs[:, 1]}


_BY_PERIOD: Final = ("step_period_ns",)
_BY_RATE: Final = ("samples_per_s", "steps_per_s")
_MEDIANS: Final = {
    "median_samples_per_s": "samples_per_s",
    "median_step_period_ns": "period_ns",
}


def _of_size(ranks: Ranks) -> Iterator[_Row]:
    whole = ranks.whole
    processes = whole.table("processes").to_frame()
    said = int(processes["world_size"].max()) if len(processes) else ABSENT
    known = processes.loc[processes["rank"] != ABSENT, "rank"].nunique()
    size = max([said, known, len(find_members(whole)), *whole.each(_largest_group)])
    if size > 0:
        yield "world_size", size, Unit.COUNT, "run", _NEITHER
    used = [
        own.loc[own["used"] == 1, "device"] for own in (part.devices.to_frame() for part in whole)
    ]
    devices = {(i, int(device)) for i, own in enumerate(used) for device in own}
    yield "devices_count", len(devices) or np.nan, Unit.COUNT, "run", _NEITHER
    hosts = set(processes["host"].astype(str)) | {part.info.host for part in whole}
    yield "nodes_count", len(hosts - {""}) or np.nan, Unit.COUNT, "run", _NEITHER
    turns = pattern_of_ranks(ranks).table.to_frame().groupby("process").size().max()
    yield "turns_count", turns or np.nan, Unit.COUNT, "run", _NEITHER


def _largest_group(trace: Trace) -> int:
    sizes = trace.collectives.to_frame()["group_size"]
    return int(sizes.max()) if len(sizes) else ABSENT


def _of_throughput(results: Mapping[str, Result]) -> Iterator[_Row]:
    if "steps" not in results:
        return
    scalars = results["steps"].scalars
    for name, source in ("samples_per_s", "mean"), ("median_samples_per_s", "median"):
        rate = scalars.get(f"{source}_samples_per_s", np.nan)
        yield name, rate, Unit.PER_S, "run", _HIGHER


def _of_steps(steps: pd.DataFrame, results: Mapping[str, Result]) -> Iterator[_Row]:
    """Yield the lengths of steady steps, of all ranks: of ranks that keep step the same."""
    scalars = results["steps"].scalars if "steps" in results else {}
    is_pattern = bool(scalars.get("is_pattern"))
    what = "turn" if is_pattern else "step"
    for statistic in ("mean", "median"):
        value = scalars.get(f"{statistic}_ns", np.nan)
        yield f"{statistic}_{what}_ns", value, Unit.NS, "rank", _LOWER
    if is_pattern or steps.empty:
        return
    steady = steps[~steps["is_warmup"].astype(bool)]
    # The last period of a rank ends with its step: what lies behind it is not known.
    is_last = steady.groupby(["life", "rank"]).cumcount(ascending=False) == 0
    periods = steady[~is_last] if (~is_last).any() else steady
    count = periods["steps_count"].sum()
    if count:
        mean_ns = periods["period_ns"].sum() / count
        median_ns = (periods["period_ns"] / periods["steps_count"]).median()
        yield "step_period_ns", mean_ns, Unit.NS, "rank", _LOWER
        yield "median_step_period_ns", median_ns, Unit.NS, "rank", _LOWER
        yield "between_steps_ns", periods["between_ns"].sum() / count, Unit.NS, "rank", _LOWER
        yield "steps_per_s", 1e9 / mean_ns if mean_ns else np.nan, Unit.PER_S, "rank", _HIGHER
    if "device_ns" in steady and steady["device_ns"].notna().any():
        known = steady[steady["device_ns"].notna()]
        device_ns = known["device_ns"].sum() / known["steps_count"].sum()
        yield "step_device_ns", device_ns, Unit.NS, "rank", _LOWER
        if "waited_ns" in known:
            waited_ns = known["waited_ns"].sum() / known["steps_count"].sum()
            yield "waited_ns", waited_ns, Unit.NS, "rank", _LOWER
            yield "step_own_ns", device_ns - waited_ns, Unit.NS, "rank", _LOWER
    if "samples_count" in steady and steady["samples_count"].sum() > 0:
        fetched = steady[steady["samples_count"] > 0]  # a batch may be for several steps
        each = fetched["samples_count"] / fetched["steps_count"]
        per_rank = each.groupby(fetched["rank"]).median()
        yield "batch_count", float(per_rank.median()), Unit.COUNT, "rank", _NEITHER
        yield "global_batch_count", float(per_rank.sum()), Unit.COUNT, "run", _NEITHER


def _kernels_count(trace: Trace) -> int:
    return len(trace.kernels.to_frame())


def _of_parts(ranks: Ranks, results: Mapping[str, Result], steps_count: int) -> Iterator[_Row]:
    if "breakdown" not in results or results["breakdown"].to_frame("total").empty:
        return
    total = results["breakdown"].to_frame("total").iloc[0]
    n_devices = len(results["breakdown"].to_frame())
    for part in PARTS:
        ratio = total[f"{part}_ns"] / total["duration_ns"] if total["duration_ns"] else np.nan
        better = _NEITHER if part == "compute" else _LOWER
        yield f"{part}_ratio", ratio, Unit.RATIO, "device", better
        if steps_count and n_devices:
            each = total[f"{part}_ns"] / (n_devices * steps_count)
            yield f"{part}_ns", each, Unit.NS, "device", better or _LOWER
    names = ("utilisation_ratio", "communication_overlap_ratio", "transfer_overlap_ratio")
    for name in names:
        yield name, float(total.get(name, np.nan)), Unit.RATIO, "device", _HIGHER
    kernels = sum(ranks.each(_kernels_count))
    if steps_count and n_devices:
        each = kernels / (n_devices * steps_count)
        yield "kernels_per_step_count", each, Unit.COUNT, "device", _NEITHER
    if "classes" in results:
        matrix = results["classes"].to_frame()
        matrix = matrix[matrix["tensor_core_ns"].notna()]
        told = float((matrix["total_ns"] - matrix["tensor_core_unknown_ns"]).sum())
        ratio = float(matrix["tensor_core_ns"].sum()) / told if told else np.nan
        yield "tensor_core_ratio", ratio, Unit.RATIO, "device", _HIGHER


def _of_collectives(results: Mapping[str, Result]) -> Iterator[_Row]:
    """Yield the bus bandwidth of each operation, in the class of sizes that takes the most time."""
    if "collectives" not in results:
        return
    table = results["collectives"].to_frame()
    if "busbw_bytes_per_s" not in table:
        return
    known = table[table["busbw_bytes_per_s"].notna()].sort_values("total_ns", ascending=False)
    for row in known.drop_duplicates("op").to_dict("records"):
        name = f"{row['op']}_busbw_bytes_per_s"
        yield name, float(row["busbw_bytes_per_s"]), Unit.BYTES_PER_S, "run", _HIGHER
