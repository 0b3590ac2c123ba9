"""Compute the scalar measures of a run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from traceprof.comparison.sides import STEP, series_of, steady_steps
from traceprof.comparison.statistics import interval_of_mean, interval_of_median
from traceprof.measures.collectives.members import find_members
from traceprof.measures.rows import Floats, floats
from traceprof.measures.steps.base import ITERATION, WINDOW, base_of
from traceprof.measures.steps.costs import OCCASIONS
from traceprof.measures.steps.ledger import USUAL, all_steps, ledger_of_window
from traceprof.model.activity import PARTS
from traceprof.model.grouping import codes_of, grouped_by, numbered
from traceprof.model.ranks import Ranks, gpus_of
from traceprof.model.results import Result, Unit
from traceprof.model.summary import Summary
from traceprof.model.table import Table, objects
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace

_Row = tuple[str, float, Unit, str, str]
_HIGHER, _LOWER, _NEITHER = "higher", "lower", ""


def measures_of_run(
    ranks: Ranks, results: Mapping[str, Result], tables: Mapping[str, Table]
) -> Table:
    """Return the known measures of the window: measure, value, unit, scope, better, source.

    Step times and their parts are means over the window, per step (and per device).
    """
    rows = [
        *_of_size(ranks),
        *_of_throughput(ranks),
        *_of_steps(tables["steps"]),
        *_of_parts(ranks, results),
        *_of_collectives(results),
        *_of_hardware(results),
    ]
    names = ("measure", "value", "unit", "scope", "better")
    known = [dict(zip(names, row, strict=True)) for row in rows if np.isfinite(row[1])]
    table = Table.of_rows(known, names)
    return table.assign(
        unit=objects(map(str, table["unit"])),
        **_intervals(table, tables["steps"]),
        source=np.where(table["measure"] == "world_size", "recorded", "measured").astype(object),
    )


def _intervals(measures: Table, steps: Table) -> Mapping[str, Floats]:
    """Return the 95% intervals of medians and means over steps; NaN for other measures."""
    run = Summary("", tables={"steps": steps})
    found = {
        name: interval_of_median(series_of(run, column, STEP)) for name, column in _MEDIANS.items()
    }
    least, most = interval_of_mean(series_of(run, "period_ns", STEP))
    # Half the width of the interval of the mean, as a share of the mean.
    half_width_ratio = (most - least) / (most + least) if most + least > 0 else np.nan
    unknown = (np.nan, np.nan)
    ends = []
    for name, value in zip(measures["measure"], measures["value"].tolist(), strict=True):
        if name in _BY_PERIOD:
            ends.append((value * (1 - half_width_ratio), value * (1 + half_width_ratio)))
        elif name in _BY_RATE:
            # A rate is a count divided by the time, so its interval is inverted.
            most = value / (1 - half_width_ratio) if half_width_ratio < 1 else np.nan
            ends.append((value / (1 + half_width_ratio), most))
        else:
            ends.append(found.get(str(name), unknown))
    pairs = np.array(ends, np.float64).reshape(-1, 2)
    return {"low": pairs[:, 0], "high": pairs[:, 1]}


_BY_PERIOD: Final = ("step_period_ns",)
_BY_RATE: Final = ("samples_per_s", "steps_per_s")
_MEDIANS: Final = {"median_step_period_ns": "period_ns"}


def _of_size(ranks: Ranks) -> Iterator[_Row]:
    """Yield the number of ranks, devices, nodes and iterations."""
    whole = ranks.whole
    processes = whole.table("processes")
    world_size = int(processes["world_size"].max(initial=ABSENT))
    known = len(set(processes["rank"].tolist()) - {ABSENT})
    size = max([world_size, known, len(find_members(whole)), *whole.each(_largest_group)])
    if size > 0:
        yield "world_size", size, Unit.COUNT, "run", _NEITHER
    devices = len(set(gpus_of(whole).values()))
    yield "devices_count", devices or np.nan, Unit.COUNT, "run", _NEITHER
    hosts = {*processes["host"], *(part.info.host for part in whole)}
    yield "nodes_count", len(hosts - {""}) or np.nan, Unit.COUNT, "run", _NEITHER
    base = base_of(ranks)
    iterations = max(1, round(base.steps_count)) if base.unit == ITERATION else np.nan
    yield "turns_count", iterations, Unit.COUNT, "run", _NEITHER


def _largest_group(trace: Trace) -> int:
    return int(trace.collectives["group_size"].max(initial=ABSENT))


def _of_throughput(ranks: Ranks) -> Iterator[_Row]:
    """Yield the step time and the rates from the base that all commands display."""
    base = base_of(ranks)
    if not len(base.lengths_ns):
        return
    if all_steps(ranks).is_pattern:
        yield "iteration_ns", base.step_ns, Unit.NS, "rank", _LOWER
        return
    yield "samples_per_s", base.samples_count * base.per_s, Unit.PER_S, "run", _HIGHER
    yield "step_period_ns", base.step_ns, Unit.NS, "rank", _LOWER
    median_ns = float(np.median(base.lengths_ns))
    yield "median_step_period_ns", median_ns, Unit.NS, "rank", _LOWER
    yield "steps_per_s", base.per_s, Unit.PER_S, "rank", _HIGHER
    overall_ns = _overall_step_ns(ranks)
    if overall_ns > base.step_ns:
        rate = base.samples_count * 1e9 / overall_ns
        yield "overall_samples_per_s", rate, Unit.PER_S, "run", _HIGHER
        yield "overall_step_period_ns", overall_ns, Unit.NS, "rank", _LOWER
    if base.is_unprofiled:
        yield "unprofiled_count", len(base.lengths_ns), Unit.COUNT, "run", _NEITHER
        yield "profiled_count", max(1, round(base.steps_count)), Unit.COUNT, "run", _NEITHER


def _overall_step_ns(ranks: Ranks) -> float:
    """Return the mean step time with checkpoints and other periodic costs; 0 without any."""
    ledger = ledger_of_window(ranks)
    is_periodic = np.isin(ledger["kind"], OCCASIONS)
    rows = is_periodic | (ledger["kind"] == USUAL)
    return float(ledger["duration_ns"][rows].mean()) if is_periodic.any() else 0.0


def _of_steps(steps: Table) -> Iterator[_Row]:
    """Yield other means over the measured steps: host gaps, waits and batches."""
    steady = steady_steps(steps)
    if count := _sum(steady, "steps_count"):
        yield "between_steps_ns", _sum(steady, "between_ns") / count, Unit.NS, "rank", _LOWER
    known = steady.known("device_ns") if "device_ns" in steady else steady.head(0)
    if len(known) and "waited_ns" in known:
        waited_ns = _sum(known, "waited_ns") / _sum(known, "steps_count")
        device_ns = _sum(known, "device_ns") / _sum(known, "steps_count")
        yield "waited_ns", waited_ns, Unit.NS, "rank", _LOWER
        yield "step_without_waits_ns", device_ns - waited_ns, Unit.NS, "rank", _LOWER
    if "samples_count" in steady and _sum(steady, "samples_count") > 0:
        fetched = steady.take(steady["samples_count"] > 0)  # a batch may serve several steps
        each = fetched["samples_count"] / fetched["steps_count"]
        per_rank = [float(np.median(each[rows])) for rows in grouped_by(fetched, "rank")[1].rows]
        yield "batch_count", float(np.median(per_rank)), Unit.COUNT, "rank", _NEITHER
        yield "global_batch_count", sum(per_rank), Unit.COUNT, "run", _NEITHER


def _sum(table: Table, name: str) -> float:
    """Return the sum of the known values of a column."""
    return float(np.nansum(floats(table, name)[0]))


def _kernels_count(trace: Trace) -> int:
    return len(trace.kernels)


def _of_parts(ranks: Ranks, results: Mapping[str, Result]) -> Iterator[_Row]:
    """Yield the parts of GPU time, overlap, kernel counts and the tensor core share.

    They are unknown, as on the page, if too much of the GPU activity is missing.
    """
    if "breakdown" not in results or results["breakdown"].tables["total"].empty:
        return
    if "findings" in results and not results["findings"].scalars.get("is_idle_known", True):
        return
    total, base = results["breakdown"].tables["total"].row(0), base_of(ranks)
    for part in PARTS:
        better = _NEITHER if part == "compute" else _LOWER
        ratio = total[f"{part}_ratio"]
        yield f"{part}_ratio", ratio, Unit.RATIO, "device", better
        if base.unit != WINDOW:
            yield f"{part}_ns", ratio * base.unit_ns, Unit.NS, "device", better or _LOWER
    names = ("utilization_ratio", "communication_overlap_ratio", "transfer_overlap_ratio")
    for name in names:
        yield name, float(total.get(name, np.nan)), Unit.RATIO, "device", _HIGHER
    if base.unit != WINDOW:
        n_units = len(results["breakdown"].table) * base.steps_count
        each = sum(ranks.each(_kernels_count)) / n_units
        yield "kernels_per_step_count", each, Unit.COUNT, "device", _NEITHER
    if "classes" in results:
        matrix = results["classes"].table.known("tensor_core_ns")
        known_ns = float((matrix["total_ns"] - matrix["tensor_core_unknown_ns"]).sum())
        ratio = float(matrix["tensor_core_ns"].sum()) / known_ns if known_ns else np.nan
        yield "tensor_core_ratio", ratio, Unit.RATIO, "device", _HIGHER


def _of_hardware(results: Mapping[str, Result]) -> Iterator[_Row]:
    """Yield the utilization of the peak, and the energy and the cost per step."""
    if "mfu" in results and len(results["mfu"].table):
        row = results["mfu"].table.row(0)
        for name, unit, better in _UTILIZATION:
            yield name, row[name], unit, "run", better
    for row in results["energy"].tables["units"].rows() if "energy" in results else ():
        if match := re.fullmatch(r"an? (step|sample|token|epoch)", row["per"]):
            yield f"{match[1]}_joules", row["joules"], Unit.NUMBER, "run", _LOWER
            yield f"{match[1]}_cost", row["cost"], Unit.NUMBER, "run", _LOWER


_UTILIZATION: Final = (
    ("mfu_ratio", Unit.RATIO, _HIGHER),
    ("hfu_ratio", Unit.RATIO, _NEITHER),
    ("achieved_flop_per_s", Unit.FLOP_PER_S, _HIGHER),
    ("tokens_per_s", Unit.PER_S, _HIGHER),
)


def _of_collectives(results: Mapping[str, Result]) -> Iterator[_Row]:
    """Yield the bus bandwidth of each operation, in the size class with the most time."""
    if "collectives" not in results:
        return
    table = results["collectives"].table
    if "busbw_bytes_per_s" not in table:
        return
    known = table.known("busbw_bytes_per_s").in_order("-total_ns")
    for row in known.take(numbered(codes_of(known["op"]))[1]).rows():
        name = f"{row['op']}_busbw_bytes_per_s"
        yield name, float(row["busbw_bytes_per_s"]), Unit.BYTES_PER_S, "run", _HIGHER
