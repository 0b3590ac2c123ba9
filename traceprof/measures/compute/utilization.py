"""MFU and HFU: FLOPs of a step as a share of its GPUs' peak, and the source of these FLOPs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from traceprof.errors import NotRecordedError
from traceprof.hardware.catalogue import Stated
from traceprof.measures.analyses import Analysis
from traceprof.measures.compute.counted import COMPUTE_HEAVY, TOLD, work_of_kernels
from traceprof.measures.device.counters import samples_named
from traceprof.measures.device.peaks import flop_peak_of
from traceprof.measures.device.times import used_devices
from traceprof.measures.facts import of_window
from traceprof.measures.host.launches import launches_of
from traceprof.measures.rows import Ints, lengths_of, mean_of, rows_by, span_at
from traceprof.measures.steps.base import base_of, named_usual_steps
from traceprof.measures.steps.find import steps_of_ranks
from traceprof.measures.steps.measured import measured_steps
from traceprof.model.grouping import groups_of
from traceprof.model.ranks import Ranks, gpus_of
from traceprof.model.results import Note, Result, ResultSpec
from traceprof.model.table import Table
from traceprof.model.trace import Trace

AS_GIVEN: Final = "as given (--model-flops)"
BY_PARAMETERS: Final = "6 × parameters × tokens, as given"
BY_TORCH: Final = "counted by torch in one step (record --flops)"
BY_SHAPES: Final = "sizes of the operators' inputs"
WHOLE_MODEL: Final = "Global"
_RECOMPUTING: Final = re.compile(r"attention(?:(?!attention)\w)*_backward")
COUNTER: Final = "flop:"
"""Prefix of the metrics in which `traceprof record --flops` stores the FLOPs that torch counted."""
_COUNTED: Final = re.compile(f"^{COUNTER}")
MOVED: Final = "moved:"
"""Prefix of the metrics with the bytes of each operator without FLOPs in the same step."""
_MOVED: Final = re.compile(f"^{MOVED}")

MFU_SPEC: Final = ResultSpec.of("""
    table mfu: one row per source of the FLOPs per step; the first row counts
    key source: source of the FLOPs per step
    same model_flop: FLOPs of the model per step on all GPUs, without recomputation
    same executed_flop: FLOPs executed per step, with recomputation; empty if the source does not
        provide them
    same step_ns: typical step time
    same gpus_count: number of GPUs
    same precision: precision of most matrix multiplications, by time
    same peak_flop_per_s: dense peak of one GPU at that precision
    same achieved_flop_per_s: model_flop per second and GPU
    same mfu_ratio: model FLOPs utilization: model_flop as a share of the peak of all GPUs during
        the step
    same hfu_ratio: hardware FLOPs utilization: executed_flop as a share of the same peak
    same unknown_ratio: share of kernel time in compute-heavy kernels with unknown FLOPs
    same tokens_per_s: tokens per second on all GPUs, from the specified tokens per step
    same samples_per_s: samples per second on all GPUs
    table counted: FLOPs that torch counted in one step (`record --flops`), by module and operator;
        a module includes its submodules
    key module: module path; "Global" is the whole model
    key operator: operator
    same flop: FLOPs, summed over the recorded ranks
    """)
_NO_FLOPS: Final = (
    "the FLOPs per step are unknown: specify --model-flops, or --parameters and --tokens"
)
_MIN_THROTTLED_RATIO: Final = 0.05
_CLOCK_COLUMNS: Final = ("throttled_ratio", "sm_clock_mhz")
_SUMMED: Final = ("flop", "model_flop", "kernels_ns", "unknown_ns", "counted_by_torch_ns")
_MAX_UNKNOWN_RATIO: Final = 0.02
"""Share of kernel time with unknown FLOPs above which the FLOPs are reported as a lower bound."""


@of_window
def flop_of_steps(trace: Trace) -> Table:
    """Return one row per typical step of the window, with sums over the kernels that it launched.

    Columns: process, step, flop, model_flop, kernels_ns, unknown_ns and counted_by_torch_ns
    (recorded by PyTorch).
    """
    steps = steps_of_ranks(Ranks.of(trace)).table
    steps = steps.take(named_usual_steps(Ranks.of(trace)))
    whole = trace.whole
    sums = _summed_columns(work_of_kernels(whole), lengths_of(whole.kernels))
    launches = launches_of(whole, "kernels")
    begins = np.where(launches.is_known, launches.start_ns, whole.kernels["start_ns"])
    parts = []
    processes = whole.kernels["process"]
    for process, rows in rows_by(steps, "process").items():
        kernel_rows = np.flatnonzero(processes == process)
        spans = steps.take(rows).in_order("start_ns")
        ends = np.append(spans["start_ns"][1:], np.iinfo(np.int64).max)
        ends = np.minimum(np.maximum(spans["next_ns"], spans["end_ns"]), ends)
        place = span_at(spans["start_ns"], ends, begins[kernel_rows])
        inside, place = kernel_rows[place >= 0], place[place >= 0]
        added = {
            name: np.bincount(place, values[inside], minlength=len(spans))
            for name, values in sums.items()
        }
        parts.append(spans.select("process", "step").assign(**added))
    empty = Table(
        dict.fromkeys(("process", "step"), np.empty(0, np.int64))
        | dict.fromkeys(_SUMMED, np.empty(0))
    )
    return Table.stacked([empty, *parts])


def _summed_columns(work: Table, length: Ints) -> dict[str, Any]:
    """Return the values of each kernel that are summed, by the names of `_SUMMED`."""
    of_time = length, length * work["is_uncounted"], length * work["is_from_torch"]
    return dict(zip(_SUMMED, (work["flop"], work["model_flop"], *of_time), strict=True))


@of_window
def _flop_of_window(trace: Trace) -> dict[str, float]:
    """Return the sums over all kernels of the window, used if no steps are known."""
    work = work_of_kernels(trace).take(trace.rows_in_whole("kernels"))
    columns = _summed_columns(work, lengths_of(trace.kernels))
    return {name: float(values.sum()) for name, values in columns.items()}


def _counted_flop(ranks: Ranks) -> dict[str, float]:
    """Return the sums of the mean step of all ranks together, from the input sizes of operators.

    Without steps, the sums are those of the window, or its share of one detected iteration.
    """
    sums = dict.fromkeys(_SUMMED, 0.0)
    if named_usual_steps(ranks).any():
        for table in ranks.each(flop_of_steps):
            processes = max(1, len(np.unique(table["process"])))
            for name in _SUMMED if len(table) else ():
                sums[name] += float(table[name].mean()) * processes
        return sums
    for totals in ranks.each(_flop_of_window):
        sums = {name: sums[name] + totals[name] for name in _SUMMED}
    unit_ratio = base_of(ranks).unit_ns / max(1, ranks.span.duration_ns)
    return {name: value * unit_ratio for name, value in sums.items()}


def counted_by_torch(ranks: Ranks) -> Table:
    """Return the FLOPs that torch counted in one recorded step, by module and operator.

    Columns: module, operator, flop. FLOPs are summed over all ranks. The rows of the whole model
    are first.
    """
    samples = samples_named(ranks, _COUNTED)
    sums: dict[tuple[str, str], float] = {}
    for row in samples.rows():
        module, _, operator = row["metric"].removeprefix(COUNTER).rpartition("|")
        sums[module, operator] = sums.get((module, operator), 0.0) + float(row["value"])
    rows = [{"module": m, "operator": o, "flop": flop} for (m, o), flop in sums.items()]
    table = Table.of_rows(rows, ("module", "operator", "flop"))
    is_part = np.array([row["module"] != WHOLE_MODEL for row in rows], np.bool_)
    return table.assign(is_part=is_part).in_order("is_part", "module", "-flop").without("is_part")


def torch_flop(ranks: Ranks) -> tuple[float, float]:
    """Return the FLOPs that torch counted in a step, with and without recomputation; 0 if none.

    One of the five products in the backward pass of attention recomputes the scores.
    """
    counted = counted_by_torch(ranks)
    counted = counted.take([module == WHOLE_MODEL for module in counted["module"]])
    flop = counted["flop"].astype(np.float64)
    is_recomputing = np.array(
        [bool(_RECOMPUTING.search(str(name))) for name in counted["operator"]], np.bool_
    )
    return float(flop.sum()), float((flop * np.where(is_recomputing, 4 / 5, 1.0)).sum())


def moved_bytes(ranks: Ranks) -> float:
    """Return the bytes that operators without FLOPs move in a step on all recorded ranks."""
    return float(samples_named(ranks, _MOVED)["value"].sum())


@of_window
def _time_by_precision(trace: Trace) -> dict[str, int]:
    """Return the time of compute-heavy kernels by precision, in ns."""
    work = work_of_kernels(trace).take(trace.rows_in_whole("kernels"))
    is_heavy = trace.kernels["activity"].isin(COMPUTE_HEAVY) | (work["flop"] > 0)
    groups = groups_of(work["precision"][is_heavy])
    sums = groups.reduced(np.add, lengths_of(trace.kernels)[is_heavy])
    texts = work["precision"].texts
    return {str(texts[key]): int(ns) for (key,), ns in zip(groups.keys, sums, strict=True)}


def main_precision(ranks: Ranks) -> str:
    """Return the precision of most matrix work of the window, by time; "" if unknown."""
    times = Counter[str]()
    for rank_times in ranks.each(_time_by_precision):
        times.update(rank_times)
    return max((name for name in times if name), key=lambda name: times[name], default="")


def measure_mfu(ranks: Ranks) -> Result:
    """Return the FLOPs of a step and their share of the peak.

    Raises:
        NotRecordedError: No source provides the FLOPs per step.
    """
    stated = ranks.hardware.stated if ranks.hardware is not None else Stated()
    rows = list(_sources(ranks, stated))
    if not rows and "operator_inputs" not in ranks.recorded:
        raise NotRecordedError(f"{_NO_FLOPS}{ranks.info.recorded_by.how_to('flops')}")
    base = base_of(ranks)
    step_ns = base.step_ns if named_usual_steps(ranks).any() else base.unit_ns
    n_gpus = max(1, len(set(gpus_of(ranks).values())))
    n_job_gpus = max(n_gpus, round(n_gpus * _job_ranks_ratio(ranks)))
    precision = main_precision(ranks)
    peaks = {
        flop_peak_of(ranks, device, precision) for part in ranks for device in used_devices(part)
    }
    peak = peaks.pop() if len(peaks) == 1 else None
    seconds = step_ns / 1e9
    for row in rows:
        n = n_job_gpus if row["source"] in (AS_GIVEN, BY_PARAMETERS) else n_gpus
        peak_flop = np.nan if peak is None else peak * seconds * n
        row |= {
            "step_ns": step_ns,
            "gpus_count": n,
            "precision": precision,
            "peak_flop_per_s": np.nan if peak is None else peak,
            "achieved_flop_per_s": row["model_flop"] / seconds / n if seconds else np.nan,
            "mfu_ratio": row["model_flop"] / peak_flop,
            "hfu_ratio": row["executed_flop"] / peak_flop,
            "tokens_per_s": np.nan if stated.tokens is None else stated.tokens / seconds,
            "samples_per_s": base.samples_count * base.per_s,
        }
    table = MFU_SPEC.tables[0].of_rows(rows)
    counted = MFU_SPEC.table("counted").of_rows(counted_by_torch(ranks))
    result = Result("mfu", MFU_SPEC, {"mfu": table, "counted": counted})
    torch_notes = [
        Note.of(TOLD, share=row["told_ratio"]) for row in rows[:1] if row.get("told_ratio")
    ]
    return result.with_notes(*torch_notes, *_notes(table, base.unit), *_note_throttling(ranks))


def _note_throttling(ranks: Ranks) -> Iterator[Note]:
    """Yield a note if the clock was throttled, which lowers the rate of all kernels."""
    steps = measured_steps(ranks).table
    if "throttled_ratio" not in steps or not len(steps):
        return
    throttled, clock = (mean_of(np.asarray(steps.get(n, ()), np.float64)) for n in _CLOCK_COLUMNS)
    if throttled > _MIN_THROTTLED_RATIO:
        text = "Power or temperature limits reduced the clock in {share:ratio} of the samples"
        text += " (SM clock {clock:count} MHz)" if clock == clock else ""
        yield Note.of(f"{text}. Peaks are for the boost clock.", share=throttled, clock=clock)


def _job_ranks_ratio(ranks: Ranks) -> float:
    """Return the number of ranks of the job per recorded rank; 1 if unknown."""
    processes = ranks.whole.table("processes").known("world_size")
    known = processes.take((processes["world_size"] > 0) & (processes["rank"] >= 0))
    n = len(set(known["rank"].tolist()))
    return float(known["world_size"].max()) / n if n else 1.0


def _sources(ranks: Ranks, stated: Stated) -> Iterator[dict[str, Any]]:
    """Yield a row for each available source of the FLOPs per step, the most reliable first."""
    nothing = {"executed_flop": np.nan, "unknown_ratio": np.nan}
    if stated.step_flop is not None:
        source = AS_GIVEN if stated.model_flop is not None else BY_PARAMETERS
        yield {"source": source, "model_flop": stated.step_flop, **nothing}
    executed, model = torch_flop(ranks)
    if executed:
        yield {"source": BY_TORCH, "model_flop": model, **nothing, "executed_flop": executed}
    if "operator_inputs" in ranks.recorded:
        sums = _counted_flop(ranks)
        if sums["flop"]:
            yield {
                "source": BY_SHAPES,
                "model_flop": sums["model_flop"],
                "executed_flop": sums["flop"],
                "unknown_ratio": sums["unknown_ns"] / (sums["kernels_ns"] or np.nan),
                "told_ratio": sums["counted_by_torch_ns"] / (sums["kernels_ns"] or np.nan),
            }


def _notes(table: Table, step: str) -> list[Note]:
    """Return the basis of the MFU of the first row, and its caveats."""
    if table.empty:
        return [
            Note("Shares of peak are not reported: the window has no operator with known FLOPs.")
        ]
    first, notes = table.row(0), []
    if not np.isnan(first["mfu_ratio"]):
        notes.append(
            Note.of(
                "MFU compares {flop:flop} of the model per {step} ({ns:ns}) with the peak of "
                "{n:count} GPU(s), {peak:flop/s} each (dense {precision}).",
                flop=first["model_flop"],
                step=step,
                ns=first["step_ns"],
                n=int(first["gpus_count"]),
                peak=first["peak_flop_per_s"],
                precision=first["precision"].upper(),
            )
        )
    if first["source"] == BY_PARAMETERS:
        notes.append(
            Note(
                "The FLOPs are 6 × parameters × tokens, as specified, and do not include attention."
            )
        )
    if first["source"] in (BY_SHAPES, BY_TORCH):
        notes.append(
            Note(
                "Only matrix products, convolutions, and attention are counted. Embedding lookups "
                "and norms are not."
            )
        )
    return [*notes, *_caveats(first)]


def _caveats(first: Mapping[str, Any]) -> Iterator[Note]:
    """Yield the caveats of the FLOPs and shares in the first row."""
    if first["source"] == BY_TORCH:
        yield Note("torch counts masked attention in full and includes activation recomputation.")
    if first["executed_flop"] > first["model_flop"]:
        yield Note.of(
            "HFU also includes {more:flop} of recomputation, from activation checkpointing or from "
            "attention scores in the backward pass.",
            more=first["executed_flop"] - first["model_flop"],
        )
    if first["unknown_ratio"] > _MAX_UNKNOWN_RATIO:
        yield Note.of(
            "The FLOPs are a lower bound: compute-heavy kernels with unknown FLOPs take "
            "{share:ratio} of kernel time.",
            share=first["unknown_ratio"],
        )
    if np.isnan(first["peak_flop_per_s"]):
        yield Note(
            "Shares of peak are not reported: the peak of this GPU at this precision is unknown "
            "(--gpu, --hardware)."
        )
    if first["mfu_ratio"] > 1:
        yield Note(
            "The rate exceeds the peak, so the FLOPs are for another step, for more GPUs than "
            "recorded, or for another GPU model."
        )


MFU: Final = Analysis(
    "mfu",
    MFU_SPEC,
    uses=(
        *("kernels", "operator_inputs", "host_ops", "api_calls", "copies", "ranges", "samples"),
        *("devices", "environment", "marks", "processes"),
    ),
    whole=("operator_inputs", "kernels", "ranges"),
    of_steps=True,
    of_ranks=measure_mfu,
)
