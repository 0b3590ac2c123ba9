"""FLOPs of a step against what its GPUs could do in that time: MFU and HFU, and their source."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from traceprof.errors import NotRecordedError
from traceprof.hardware.catalogue import Stated
from traceprof.measures.analyses import Analysis
from traceprof.measures.compute.counted import TOLD, UNCOUNTED, work_of_kernels
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
_AGAIN: Final = re.compile(r"attention(?:(?!attention)\w)*_backward")
COUNTER: Final = "flop:"
"""How the metrics begin in which `traceprof record --flops` leaves what torch counted."""
_COUNTED: Final = re.compile(f"^{COUNTER}")

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
_HOW: Final = "the FLOPs per step are unknown: specify --model-flops, or --parameters and --tokens"
_SLIGHT: Final = 0.02
"""What share of the kernel time may lack its FLOPs before a utilization is "at least"."""


@of_window
def flop_of_steps(trace: Trace) -> Table:
    """Return what each typical step of the window launched: process, step, and sums over kernels.

    Columns flop, model_flop, kernels_ns, unknown_ns and counted_by_torch_ns.
    """
    steps = steps_of_ranks(Ranks.of(trace)).table
    steps = steps.take(named_usual_steps(Ranks.of(trace)))
    whole = trace.whole
    sums = _sums_of(work_of_kernels(whole), lengths_of(whole.kernels))
    launches = launches_of(whole, "kernels")
    begins = np.where(launches.is_known, launches.start_ns, whole.kernels["start_ns"])
    parts = []
    process = whole.kernels["process"]
    for own, rows in rows_by(steps, "process").items():
        mine = np.flatnonzero(process == own)
        spans = steps.take(rows).in_order("start_ns")
        ends = np.append(spans["start_ns"][1:], np.iinfo(np.int64).max)
        ends = np.minimum(np.maximum(spans["next_ns"], spans["end_ns"]), ends)
        place = span_at(spans["start_ns"], ends, begins[mine])
        inside, place = mine[place >= 0], place[place >= 0]
        added = {
            name: np.bincount(place, values[inside], minlength=len(spans))
            for name, values in sums.items()
        }
        parts.append(spans.select("process", "step").assign(**added))
    nothing = dict.fromkeys(("process", "step"), np.empty(0, np.int64))
    empty = Table(nothing | dict.fromkeys(_SUMS, np.empty(0)))
    return Table.stacked([empty, *parts])


_SUMS: Final = ("flop", "model_flop", "kernels_ns", "unknown_ns", "counted_by_torch_ns")


def _sums_of(work: Table, length: Ints) -> dict[str, Any]:
    """Return what is added up of kernels, by the names of `_SUMS`."""
    of_time = length, length * work["is_uncounted"], length * work["is_told"]
    return dict(zip(_SUMS, (work["flop"], work["model_flop"], *of_time), strict=True))


@of_window
def _flop_of_window(trace: Trace) -> dict[str, float]:
    """Return the sums over all kernels of the window, where no steps are known."""
    work = work_of_kernels(trace).take(trace.rows_in_whole("kernels"))
    sums = _sums_of(work, lengths_of(trace.kernels))
    return {name: float(own.sum()) for name, own in sums.items()}


def _counted_flop(ranks: Ranks) -> dict[str, float]:
    """Return what the sizes of operators tell of a step of all ranks together: the mean step."""
    sums = dict.fromkeys(_SUMS, 0.0)
    if named_usual_steps(ranks).any():
        for table in ranks.each(flop_of_steps):
            processes = max(1, len(np.unique(table["process"])))
            for name in _SUMS if len(table) else ():
                sums[name] += float(table[name].mean()) * processes
        return sums
    for own in ranks.each(_flop_of_window):
        sums = {name: sums[name] + own[name] for name in _SUMS}
    return sums


def counted_by_torch(ranks: Ranks) -> Table:
    """Return the FLOPs of a step that torch counted while it was recorded: module, operator, flop.

    Of all ranks together; the whole model first.
    """
    own = samples_named(ranks, _COUNTED)
    sums: dict[tuple[str, str], float] = {}
    for row in own.rows():
        module, _, operator = row["metric"].removeprefix(COUNTER).rpartition("|")
        sums[module, operator] = sums.get((module, operator), 0.0) + float(row["value"])
    rows = [{"module": m, "operator": o, "flop": flop} for (m, o), flop in sums.items()]
    table = Table.of_rows(rows, ("module", "operator", "flop"))
    is_part = np.array([row["module"] != WHOLE_MODEL for row in rows], np.bool_)
    return table.assign(is_part=is_part).in_order("is_part", "module", "-flop").without("is_part")


def torch_flop(ranks: Ranks) -> tuple[float, float]:
    """Return the FLOPs that torch counted in a step, and those without what runs twice; 0: none.

    Of the five products in the backward pass of attention one computes the scores again.
    """
    counted = counted_by_torch(ranks)
    counted = counted.take([module == WHOLE_MODEL for module in counted["module"]])
    flop = counted["flop"].astype(np.float64)
    again = np.array([bool(_AGAIN.search(str(name))) for name in counted["operator"]], np.bool_)
    return float(flop.sum()), float((flop * np.where(again, 4 / 5, 1.0)).sum())


@of_window
def _time_by_precision(trace: Trace) -> dict[str, int]:
    """Return the time of the kernels that compute much, by what they multiply in."""
    work = work_of_kernels(trace).take(trace.rows_in_whole("kernels"))
    is_heavy = trace.kernels["activity"].isin([own.value for own in UNCOUNTED]) | (work["flop"] > 0)
    groups = groups_of(work["precision"].packed[is_heavy])
    sums = groups.reduced(np.add, lengths_of(trace.kernels)[is_heavy])
    texts = work["precision"].texts
    return {str(texts[key]): int(ns) for (key,), ns in zip(groups.keys, sums, strict=True)}


def main_precision(ranks: Ranks) -> str:
    """Return what most of the matrix work of the window multiplies in; "" where nothing tells."""
    times: dict[str, int] = {}
    for own in ranks.each(_time_by_precision):
        for name, ns in own.items():
            times[name] = times.get(name, 0) + ns
    return max((name for name in times if name), key=lambda name: times[name], default="")


def measure_mfu(ranks: Ranks) -> Result:
    """Return the FLOPs of a step and what share of the peak they are."""
    stated = ranks.hardware.stated if ranks.hardware is not None else Stated()
    rows = list(_sources(ranks, stated))
    if not rows and "operator_inputs" not in ranks.recorded:
        raise NotRecordedError(f"{_HOW}{ranks.info.recorded_by.how_to('flops')}")
    base = base_of(ranks)
    step_ns = base.step_ns if named_usual_steps(ranks).any() else base.unit_ns
    gpus = gpus_of(ranks)
    n_gpus = max(1, len(set(gpus.values())))
    n_all = max(n_gpus, round(n_gpus * _part_of_job(ranks)))
    precision = main_precision(ranks)
    devices = [device for part in ranks for device in used_devices(part)]
    peaks = {flop_peak_of(ranks, device, precision) for device in devices}
    peak = peaks.pop() if len(peaks) == 1 else None
    samples = base.samples_count * base.per_s
    seconds = step_ns / 1e9
    for row in rows:
        n = n_all if row["source"] in (AS_GIVEN, BY_PARAMETERS) else n_gpus
        could = np.nan if peak is None else peak * seconds * n
        row |= {
            "step_ns": step_ns,
            "gpus_count": n,
            "precision": precision,
            "peak_flop_per_s": np.nan if peak is None else peak,
            "achieved_flop_per_s": row["model_flop"] / seconds / n if seconds else np.nan,
            "mfu_ratio": row["model_flop"] / could,
            "hfu_ratio": row["executed_flop"] / could,
            "tokens_per_s": np.nan if stated.tokens is None else stated.tokens / seconds,
            "samples_per_s": samples,
        }
    table = MFU_SPEC.tables[0].of_rows(rows)
    counted = MFU_SPEC.table("counted").of_rows(counted_by_torch(ranks))
    found = Result("mfu", MFU_SPEC, {"mfu": table, "counted": counted})
    told = [Note.of(TOLD, share=row["told_ratio"]) for row in rows[:1] if row.get("told_ratio")]
    return found.with_notes(*told, *_notes(table, base.unit), *_on_clocks(ranks))


_HELD: Final = 0.05


def _on_clocks(ranks: Ranks) -> Iterator[Note]:
    """Yield that the clock was held down, which makes a rate low whatever the kernels do."""
    steps = measured_steps(ranks).table
    if "throttled_ratio" not in steps or not len(steps):
        return
    held, clock = (mean_of(np.asarray(steps.get(n, ()), np.float64)) for n in _CLOCKS)
    if held > _HELD:
        text = "Power or temperature limits reduced the clock in {share:ratio} of the samples"
        text += " (SM clock {clock:count} MHz)" if clock == clock else ""
        yield Note.of(f"{text}. Peaks are for the boost clock.", share=held, clock=clock)


_CLOCKS: Final = ("throttled_ratio", "sm_clock_mhz")


def _part_of_job(ranks: Ranks) -> float:
    """Return how many ranks the job has for each that was recorded; 1 where nothing tells."""
    processes = ranks.whole.table("processes").known("world_size")
    known = processes.take((processes["world_size"] > 0) & (processes["rank"] >= 0))
    n = len(set(known["rank"].tolist()))
    return float(known["world_size"].max()) / n if n else 1.0


def _sources(ranks: Ranks, stated: Stated) -> Iterator[dict[str, Any]]:
    """Yield the sources of FLOPs that there are, the surest first."""
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
    if table.empty:
        text = "Shares of peak are not reported: the window has no operator with known FLOPs."
        return [Note(text)]
    first, notes = table.row(0), []
    if not np.isnan(first["mfu_ratio"]):
        text = (
            "MFU compares {flop:flop} of the model per {step} ({ns:ns}) with the peak of {n:count} "
            "GPU(s), {peak:flop/s} each (dense {precision})."
        )
        told = {"flop": first["model_flop"], "step": step, "ns": first["step_ns"]}
        told |= {"n": int(first["gpus_count"]), "peak": first["peak_flop_per_s"]}
        notes.append(Note.of(text, **told, precision=first["precision"].upper()))
    if first["source"] == BY_PARAMETERS:
        text = "The FLOPs are 6 × parameters × tokens, as specified, and do not include attention."
        notes.append(Note(text))
    if first["source"] in (BY_SHAPES, BY_TORCH):
        text = (
            "Only matrix products, convolutions, and attention are counted. Embedding lookups and "
            "norms are not."
        )
        notes.append(Note(text))
    return [*notes, *_caveats(first)]


def _caveats(first: Mapping[str, Any]) -> Iterator[Note]:
    """Yield what else must be known of what counts."""
    if first["source"] == BY_TORCH:
        yield Note("torch counts masked attention in full and includes activation recomputation.")
    if first["executed_flop"] > first["model_flop"]:
        text = (
            "HFU also includes {more:flop} of recomputation, from activation checkpointing or from "
            "attention scores in the backward pass."
        )
        yield Note.of(text, more=first["executed_flop"] - first["model_flop"])
    if first["unknown_ratio"] > _SLIGHT:
        text = (
            "The FLOPs are a lower bound: compute-heavy kernels with unknown FLOPs take "
            "{share:ratio} of kernel time."
        )
        yield Note.of(text, share=first["unknown_ratio"])
    if np.isnan(first["peak_flop_per_s"]):
        text = "Shares of peak are not reported: the peak of this GPU at this precision is unknown"
        yield Note(f"{text} (--gpu, --hardware).")
    if first["mfu_ratio"] > 1:
        text = (
            "The rate exceeds the peak, so the FLOPs are for another step, for more GPUs than "
            "recorded, or for another GPU model."
        )
        yield Note(text)


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
