"""Lists the steps with their parts, reports how steady they are, and explains slow steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from traceprof.measures.analyses import Analysis
from traceprof.measures.steps.costs import notes_on_occasions
from traceprof.measures.steps.drift import find_drift
from traceprof.measures.steps.find import pattern_of_ranks, steps_of_ranks
from traceprof.measures.steps.from_ranges import how_to_record_steps
from traceprof.measures.steps.measured import measured_steps
from traceprof.measures.steps.steadiness import FEWEST_FOR_PERCENTILES
from traceprof.model.ranks import Ranks
from traceprof.model.results import Column, Note, Result, ResultSpec, Unit, columns, total
from traceprof.model.table import Names
from traceprof.names.ranges import PHASES, PROFILER

_PHASES: Final[tuple[Column, ...]] = tuple(
    total(f"{phase}_ns", Unit.NS, f"CPU time in the {phase} phase, without nested phases")
    for phase in PHASES
    if phase != PROFILER
)
_ON_DEVICE: Final[tuple[Column, ...]] = columns("""
    total device_ns: step time on the GPUs, from the end of the previous step's GPU work to the end
        of this step's GPU work; the first step starts when it starts on the host, or later if the
        GPUs lag
    total compute_ns: time in which compute kernels ran; the five times from compute to idle are
        means over the GPUs in use and add up to duration_ns
    total exposed_communication_ns: time in which communication ran and compute kernels did not
    total exposed_transfer_ns: time in which copies to or from the host or another GPU ran and
        kernels did not
    total device_memory_ns: time in which only copies and memsets within GPU memory ran
    total idle_ns: time in which nothing ran
    """)
_ON_HOST: Final[tuple[Column, ...]] = columns("""
    same host_at_ns: start of the step on the host
    total period_ns: step time on the host, from the start of the step to the start of the next
        step; for the last step, to its own end
    total between_ns: part of period_ns between the end of the step and the start of the next step
    same between_cause: main cause of between_ns (evaluation, checkpoint, data wait, logging,
        host synchronization, or unknown)
    same lag_ns: time from the end of the step on the host to its end on the GPUs
    """)
_MACHINE: Final[tuple[Column, ...]] = columns("""
    same sm_clock_mhz [number]: SM clock of the slowest GPU of the process, in MHz; mean from one
        second before the step to its end
    same throttled_ratio: share of the samples in the same time in which a power or thermal limit
        reduced the clock of a GPU
    total alloc_retries_count: number of allocation retries, for which PyTorch freed its cache
    total device_alloc_count: number of times that PyTorch allocated memory from the GPU
    total cpu_ns: time in which the training thread ran on a CPU core
    total cpu_wait_ns: time in which the training thread was ready to run and waited for a CPU core
    """)
_EXCESS: Final[tuple[Column, ...]] = columns("""
    same is_warmup: whether the step is warm-up; the statistics exclude warm-up
    same excess_ns: for an outlier, its duration minus the median of the other steps (negative if
        the step is shorter)
    same grown_part: part of GPU time that explains most of excess_ns; "" if none does
    same grown_part_ns: growth of grown_part compared with its usual time
    same grown_phase: phase on the host that explains most of excess_ns, or "profiler",
        "between_steps", or "cpu_wait" (the thread waits for a CPU core); "" if none does
    same grown_phase_ns: growth of grown_phase compared with its usual time
    same excess_cause: periodic cost that made the step longer (evaluation, checkpoint, compiling,
        loading kernels, or garbage collection); such a step does not count as slow, and the
        statistics exclude it
    same kind: usual, warm-up, slow, cut by an edge (partly outside the recording), incomplete
        (GPU work is missing from the trace), or the excess_cause; the statistics use usual steps
    """)
SPEC: Final = ResultSpec.of(
    """
    table steps: one row per process and step (or iteration, if the trace contains no step markers),
        without columns for data that was not recorded
    key process: process ID
    key step: step number
    same at_ns: start of the step
    total duration_ns: step time, equal to device_ns if the step's launches were recorded, else to
        period_ns
    """,
    *_ON_DEVICE,
    *_ON_HOST,
    *_PHASES,
    """
    total outside_ns: CPU time outside these phases; the phases, outside_ns, and profiler_ns add up
        to period_ns
    total profiler_ns: part of period_ns that the profiler itself used; period_ns excludes the time
        in which the profiler starts or stops between steps
    total h2d_bytes: bytes copied from host to GPU by copies that start in the step
    total d2h_bytes: bytes copied from GPU to host by copies that start in the step
    total p2p_bytes: bytes copied between GPUs by copies that start in the step
    total generated_tokens_count: number of tokens generated in the step. For loops of forward
        passes, it includes the padding of sequences that ended early
    total least_tokens_count: part of generated_tokens_count that is a lower bound: tokens of
        speculative decoding, of which not all accepted drafts are known
    total processed_tokens_count: tokens that an inference server processed in the step: those of
        prompts and one for each running sequence, from the name of the step
    total sequences_count: sequences in the batch of an inference server, from the name of the step
    total samples_count: number of samples in the step's batches; empty if no batch was seen; in
        post-training, the number of generated sequences
    derived samples_per_s: samples_count divided by duration_ns; for a first step that the recording
        cuts short, divided by period_ns if period_ns is longer
    """,
    *_MACHINE,
    *_EXCESS,
    """
    scalars:
    same source: source of the step boundaries; "" if no steps were found
    same confidence_ratio: for inferred steps, the share that repeats; otherwise 1
    same is_pattern: whether the rows are iterations detected from the kernel sequence instead of
        steps
    same lag_ns: median lag of the GPUs behind the host
    same base: base of the shares (step, iteration, or window)
    same base_ns: duration of the base
    same step_ns: step time, the mean over the counted steps; if the recording contains unprofiled
        steps, these are counted, else the usual steps in the window; the scalars below use the same
        steps
    same usual_count [number]: number of usual steps in the window, the mean over processes
    same warmup_count: number of leading steps of each process that are warm-up
    same warmup_ns: duration of the warm-up in the process in which it is longest
    same steady_count: number of counted steps, over all processes
    same mean_ns: mean step time
    same median_ns: median step time
    same p10_ns: 10th percentile of the step time
    same p90_ns: 90th percentile of the step time
    same min_ns: shortest step
    same max_ns: longest step
    same spread_ratio: (p90 - p10) / median
    same trend_ns: trend of the step time, in ns per step
    same drift_ratio: total change of the step time from the first to the last step along the trend,
        divided by the median
    same steps_per_s: steps per second of one process
    same independent_count: number of processes with steps that are not ranks of one job; their
        steps have nothing in common
    same samples_per_s: samples per step, summed over all processes, times steps_per_s
    same tokens_per_s: generated tokens per second of step time, summed over all processes
    same processed_tokens_per_s: tokens that one process of an inference server processes per second
        of step time
    same generation_tokens_per_s: generated tokens per second of generation, summed over all
        processes
    same least_tokens_per_s: lower bound of tokens_per_s, which is then unknown
    same least_generation_tokens_per_s: lower bound of generation_tokens_per_s
    same unprofiled_count: number of steps without profiling overhead, because the profiler recorded
        nothing in them; excludes warm-up and the first half of each unprofiled stretch, in which
        the host runs ahead of the GPUs
    same profiled_ns: mean duration of the usual profiled steps
    same profiler_overhead_ratio: slowdown of profiled steps compared with unprofiled steps; 0 if
        the difference is not significant
    same profiler_overhead_per_launch_ns: profiling overhead per call that launches a kernel, copy,
        or memset
    """,
)
_MIN_LAG_RATIO: Final = 0.05
_MIN_BETWEEN_RATIO: Final = 0.05


def measure_steps(ranks: Ranks) -> Result:
    """Return every step that lies completely inside the window."""
    steps = measured_steps(ranks)
    result = Result("steps", SPEC, {"steps": SPEC.tables[0].of_rows(steps.table)}, steps.scalars)
    if not len(steps.table):
        return _without_steps(result, ranks)
    drift = find_drift(ranks)
    return result if drift is None else result.with_notes(*drift.notes())


def _without_steps(result: Result, ranks: Ranks) -> Result:
    """Return ``result`` with a note on why it has no steps."""
    if len(steps_of_ranks(ranks.whole)):
        what = "step"
    elif len(pattern_of_ranks(ranks.whole)):
        what = "iteration"
    else:
        return result.lacking(f"the trace contains no steps: {how_to_record_steps(ranks)}")
    return result.with_notes(Note(f"The window contains no whole {what}. Choose a larger window."))


def _finish(result: Result) -> Result:
    """Add notes on the source, duration, and steadiness of the steps, and on excluded steps."""
    if result.table.empty:
        return result
    scalars = result.scalars
    n_ranks = len(np.unique(result.table["process"]))
    noun = "independent processes" if scalars.get("independent_count") else "ranks"
    of_ranks = f" of {n_ranks} {noun}" if n_ranks > 1 and scalars.get("steady_count") != 1 else ""
    if scalars["is_pattern"]:
        return result.with_notes(*_on_pattern(scalars, of_ranks))
    notes = [_origin(scalars), *_on_clocks(result)]
    if scalars["warmup_count"]:
        notes.append(
            Note.of(
                "The first step ({lost:ns}) is warm-up. The statistics exclude it."
                if scalars["warmup_count"] == 1
                else "The first {n:count} steps ({lost:ns}) are warm-up. The statistics exclude "
                "them.",
                n=scalars["warmup_count"],
                lost=scalars["warmup_ns"],
            )
        )
    if "steady_count" not in scalars:
        is_warmup = bool(result.table["is_warmup"].all())
        text = "The window contains only warm-up steps." if is_warmup else _NO_USUAL_STEP
        return result.with_notes(*notes, Note(text))
    what = "unprofiled steps" if "unprofiled_count" in scalars else "usual steps"
    notes += [_on_lengths(f"{what}{of_ranks}", scalars), *notes_on_occasions(result.table)]
    notes += _on_between(result)
    rate = scalars.get("samples_per_s")
    if rate is not None:
        of_ranks = " (unprofiled steps)" if "unprofiled_count" in scalars else ""
        notes.append(Note.of(f"Throughput: {{rate:count}} samples/s{of_ranks}", rate=rate))
    return result.with_notes(*notes)


_NO_USUAL_STEP: Final = (
    "No step in this window is complete and usual, so traceprof gives no mean step time."
)


def _on_lengths(what: str, scalars: Any) -> Note:
    """Return a note on the number and duration of the steps."""
    if scalars["steady_count"] == 1:
        return Note.of(f"1 {what.removesuffix('s')}: {{mean:ns}}", mean=scalars["mean_ns"])
    few = scalars["steady_count"] < FEWEST_FOR_PERCENTILES
    many = "p10 {p10:ns}, p90 {p90:ns}, spread {spread:ratio}"
    ends = "min {min:ns}, max {max:ns}" if few else many
    names = ("median", "mean", *(("min", "max") if few else ("p10", "p90")))
    return Note.of(
        f"{{n:count}} {what}: median {{median:ns}}, mean {{mean:ns}}, {ends}",
        n=scalars["steady_count"],
        **{name: scalars[f"{name}_ns"] for name in names},
        **({} if few else {"spread": scalars["spread_ratio"]}),
    )


def _on_pattern(scalars: Any, of: str) -> Iterator[Note]:
    """Yield notes on the iterations of a kernel pattern."""
    yield Note.of(
        "No step markers found. traceprof detected iterations from the kernel sequence, of which "
        "{sure:ratio} repeats. An iteration may be a step, a layer, or a request.",
        sure=scalars["confidence_ratio"],
    )
    yield _on_lengths(f"iterations{of}", scalars)


def _origin(scalars: Any) -> Note:
    """Return a note on the source of the steps."""
    text, confidence = "Steps come from {source}.", scalars["confidence_ratio"]
    if confidence < 1:
        text += " {confidence:ratio} of the steps are alike. Times are GPU times."
    return Note.of(text, source=scalars["source"], confidence=confidence)


def _on_clocks(result: Result) -> Iterator[Note]:
    """Yield notes if step times are host times, and if the devices lag behind the host."""
    scalars, table = result.scalars, result.table
    if "device_ns" in table and np.isnan(table["device_ns"]).all():
        yield Note(
            "The trace does not link GPU work to steps, so step times are CPU times. The GPUs may "
            "lag behind the CPU."
        )
    lag, median = scalars.get("lag_ns", 0.0), scalars.get("median_ns", 0.0)
    if lag >= _MIN_LAG_RATIO * median > 0:
        yield Note.of("The GPUs lag behind the CPU by {lag:ns} (median).", lag=lag)


def _on_between(result: Result) -> Iterator[Note]:
    """Yield a note on the share of the periods between steps, and its main cause."""
    steady = result.table.take(~result.table["is_warmup"])
    between_ns, period_ns = int(steady["between_ns"].sum()), int(steady["period_ns"].sum())
    if between_ns < _MIN_BETWEEN_RATIO * period_ns or not between_ns:
        return
    causes = Names.of(np.asarray(steady["between_cause"]))
    sums = np.bincount(causes.codes, steady["between_ns"])
    yield Note.of(
        "{share:ratio} of CPU time is between steps ({between:ns} in total). Main cause: {cause}.",
        share=between_ns / period_ns,
        between=between_ns,
        cause=causes.texts[sums.argmax()],
    )


STEPS = Analysis(
    "steps",
    SPEC,
    uses=("ranges", "marks", "kernels", "copies", "api_calls", "overheads", "devices", "samples"),
    whole=("ranges", "marks", "kernels", "copies", "api_calls", "samples"),
    of_steps=True,
    of_ranks=measure_steps,
    finish=_finish,
)
