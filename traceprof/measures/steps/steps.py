"""The steps one by one: how long, made up of what, how steady, and why the slow ones were slow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from traceprof.measures.analyses import Analysis
from traceprof.measures.steps.costs import notes_on_occasions
from traceprof.measures.steps.find import pattern_of_ranks, steps_of_ranks
from traceprof.measures.steps.from_ranges import how_steps_get_known
from traceprof.measures.steps.measured import measured_steps
from traceprof.measures.steps.steadiness import FEWEST_FOR_PERCENTILES
from traceprof.model.ranks import Ranks
from traceprof.model.results import Column, Note, Result, ResultSpec, Unit, columns, total
from traceprof.model.table import Names
from traceprof.names.ranges import PHASES, PROFILER

_PHASES: Final[tuple[Column, ...]] = tuple(
    total(f"{phase}_ns", Unit.NS, f"when the host was in {phase}, and in no other phase inside")
    for phase in PHASES
    if phase != PROFILER
)
_ON_DEVICE: Final[tuple[Column, ...]] = columns("""
    total device_ns: on the devices: from the end of the last work that the step before launched to
        the end of the last that it launched itself (of the first step: from its start on the host,
        later where the devices lag)
    total compute_ns: when compute kernels ran; this and the next four add up
    total exposed_communication_ns: when communication ran and no compute hid it
    total exposed_transfer_ns: when copies from or to elsewhere ran and no kernel did
    total device_memory_ns: when only copies and memsets inside the device ran
    total idle_ns: when nothing ran; all five are means over the devices in use
    """)
_ON_HOST: Final[tuple[Column, ...]] = columns("""
    same host_at_ns: when it starts on the host
    total period_ns: on the host: from its start to that of the next one; of the last one to its own
        end
    total between_ns: of the period what lies between the two steps
    same between_cause: what the most of that is: evaluation, checkpoint, data wait, logging, or
        unknown
    same lag_ns: how much later the devices are done with it than the host
    """)
_MACHINE: Final[tuple[Column, ...]] = columns("""
    same sm_clock_mhz [number]: the clock of the slowest of its devices, in MHz: the mean from a
        second before it to its end
    same throttled_ratio: how often in that time power or heat held the clock of one of them down
    total alloc_retries_count: how often torch freed its cache to find memory
    total device_alloc_count: how often torch asked the device for memory
    """)
_EXCESS: Final[tuple[Column, ...]] = columns("""
    same is_warmup: whether it is warm-up, and not in the statistics
    same excess_ns: of an outlier: how much longer than the median of the others (below 0: shorter)
    same grown_part: the device's part that explains the most of it; "" for none
    same grown_part_ns: how much longer than usual that was
    same grown_phase: the same of the host's phases; also "profiler" and "between_steps"
    same grown_phase_ns: how much longer than usual that was
    same excess_cause: what made it longer that is meant to be done now and then: evaluation,
        checkpoint, compiling or loading kernels (no slow step, and not in the statistics)
    same kind: usual, warm-up, slow, cut by an edge, incomplete (work that it launched is missing),
        or excess_cause: usual ones count
    """)
SPEC: Final = ResultSpec.of(
    """
    table steps: one row per process and step (or iteration of a pattern that repeats, where no
        steps are known); columns of what was not recorded are not there
    key process: the process
    key step: the number of the step
    same at_ns: when it starts
    total duration_ns: its length: device_ns where its launches were recorded, else period_ns
    """,
    *_ON_DEVICE,
    *_ON_HOST,
    *_PHASES,
    """
    total outside_ns: when the host was in none of these phases: with them and profiler_ns it adds
        up to period_ns
    total profiler_ns: when the profiler itself took the time of the period; windows that it begins
        or ends between steps are in no period_ns
    total h2d_bytes: copies from host to device that start in it
    total d2h_bytes: copies from device to host that start in it
    total p2p_bytes: copies between devices that start in it
    total samples_count: the samples of its batches; of none nothing
    derived samples_per_s: samples_count over duration_ns; of a first step whose span is cut short
        over period_ns where that is longer
    """,
    *_MACHINE,
    *_EXCESS,
    """
    scalars:
    same source: what the steps are read from; "" where there are none
    same confidence_ratio: 1, of inferred steps the share that repeats
    same is_pattern: whether these are no steps, but iterations of a pattern of kernels that repeats
    same lag_ns: how much later devices are done than the host: the median
    same base: what shares are of: step, iteration, or window
    same base_ns: how long that is
    same step_ns: the step time: the mean over the steps that count, which all that follows is of;
        where steps were not profiled, these count, else the usual ones of the window
    same usual_count [number]: how many usual steps of a process lie in the window: the mean over
        processes
    same warmup_count: leading steps of each process that are warm-up
    same warmup_ns: how long these are, in the process that takes the longest
    same steady_count: how many steps count, of all processes
    same mean_ns: the mean of their lengths
    same median_ns: the median of their lengths
    same p10_ns: the 10th percentile of their lengths
    same p90_ns: the 90th percentile of their lengths
    same min_ns: the shortest
    same max_ns: the longest
    same spread_ratio: (p90 - p10) / median
    same trend_ns: how much longer each step is than the one before
    same drift_ratio: what the trend adds from first to last, of the median
    same steps_per_s: how many of them a process does a second
    same samples_per_s: the samples of a step, of all processes together, times steps_per_s
    same unprofiled_count: the steps of which the profiler recorded nothing, so that it added
        nothing to them; without the warm-up and the first half of each stretch of them, in which
        the host runs ahead of the devices
    same profiled_ns: how long the usual steps are that were profiled: the mean
    same profiler_overhead_ratio: how much longer these are; 0 where that may be chance
    same profiler_overhead_per_launch_ns: the same for each call that launches kernels, copies or
        memsets
    """,
)
_LEAST_DRIFT: Final = 0.05
_LEAST_LAG: Final = 0.05
_LEAST_BETWEEN: Final = 0.05
_FEWEST_FOR_DRIFT: Final = 8


def measure_steps(ranks: Ranks) -> Result:
    """Return every step that lies wholly inside the window."""
    steps = measured_steps(ranks)
    result = Result("steps", SPEC, {"steps": SPEC.tables[0].of_rows(steps.table)}, steps.scalars)
    return result if len(steps.table) else _without_steps(result, ranks)


def _without_steps(result: Result, ranks: Ranks) -> Result:
    if len(steps_of_ranks(ranks.whole)):
        what = "step"
    elif len(pattern_of_ranks(ranks.whole)):
        what = "iteration of the pattern"
    else:
        return result.lacking(f"no steps are known: {how_steps_get_known(ranks)}")
    return result.with_notes(Note(f"no {what} lies wholly inside the window: choose a larger one"))


def _finish(result: Result) -> Result:
    """Say where the steps come from, how long and steady they are, and what was dropped."""
    if result.table.empty:
        return result
    scalars = result.scalars
    n_ranks = len(np.unique(result.table["process"]))
    of = f" of {n_ranks} ranks" if n_ranks > 1 and scalars.get("steady_count") != 1 else ""
    if scalars["is_pattern"]:
        return result.with_notes(*_on_pattern(scalars, of))
    notes = [_origin(scalars), *_on_clocks(result)]
    if scalars["warmup_count"]:
        notes.append(
            Note.of(
                "the first step, {lost:ns}, is warm-up and not in the statistics"
                if scalars["warmup_count"] == 1
                else "the first {n:count} steps, {lost:ns}, are warm-up and not in the statistics",
                n=scalars["warmup_count"],
                lost=scalars["warmup_ns"],
            )
        )
    if "steady_count" not in scalars:
        return result.with_notes(*notes, Note("only warm-up steps are in this window"))
    what = "unprofiled steps" if "unprofiled_count" in scalars else "usual steps"
    notes += [_on_lengths(f"{what}{of}", scalars), *notes_on_occasions(result.table)]
    notes += _on_between(result)
    drift = scalars["drift_ratio"]
    if abs(drift) > _LEAST_DRIFT and scalars["steady_count"] >= _FEWEST_FOR_DRIFT:
        word = "longer" if drift > 0 else "shorter"
        notes.append(
            Note.of(f"steps get {word}: {{drift:ratio}} from first to last", drift=abs(drift))
        )
    rate = scalars.get("samples_per_s")
    if rate is not None:
        of = " (steps that were not profiled)" if "unprofiled_count" in scalars else ""
        notes.append(Note.of(f"throughput: {{rate:count}} samples/s{of}", rate=rate))
    return result.with_notes(*notes)


def _on_lengths(what: str, scalars: Any) -> Note:
    if scalars["steady_count"] == 1:
        return Note.of(f"1 {what.removesuffix('s')}: {{mean:ns}}", mean=scalars["mean_ns"])
    few = scalars["steady_count"] < FEWEST_FOR_PERCENTILES
    ends = "{min:ns} to {max:ns}" if few else "p10 {p10:ns}, p90 {p90:ns}, spread {spread:ratio}"
    names = ("median", "mean", *(("min", "max") if few else ("p10", "p90")))
    return Note.of(
        f"{{n:count}} {what}: median {{median:ns}}, mean {{mean:ns}}, {ends}",
        n=scalars["steady_count"],
        **{name: scalars[f"{name}_ns"] for name in names},
        **({} if few else {"spread": scalars["spread_ratio"]}),
    )


def _on_pattern(scalars: Any, of: str) -> Iterator[Note]:
    yield Note.of(
        "no steps are known: these are iterations of a repeating pattern of kernels ({sure:ratio} "
        "of it repeats), which may be steps, layers or requests",
        sure=scalars["confidence_ratio"],
    )
    yield _on_lengths(f"iterations{of}", scalars)


def _origin(scalars: Any) -> Note:
    text, confidence = "steps are from: {source}", scalars["confidence_ratio"]
    if confidence < 1:
        text += " ({confidence:ratio} of them are alike); times are the device's"
    return Note.of(text, source=scalars["source"], confidence=confidence)


def _on_clocks(result: Result) -> Iterator[Note]:
    """Say where steps are told by the host alone, and where the devices lag behind it."""
    scalars, table = result.scalars, result.table
    if "device_ns" in table and np.isnan(table["device_ns"]).all():
        yield Note(
            "which work a step launched was not recorded: steps are periods of the host, and the "
            "devices may lag behind"
        )
    lag, median = scalars.get("lag_ns", 0.0), scalars.get("median_ns", 0.0)
    if lag >= _LEAST_LAG * median > 0:
        yield Note.of("the devices lag behind the host by {lag:ns} (median)", lag=lag)


def _on_between(result: Result) -> Iterator[Note]:
    """Say how much of the periods lies between the steps, and why."""
    steady = result.table.take(~result.table["is_warmup"])
    between_ns, period_ns = int(steady["between_ns"].sum()), int(steady["period_ns"].sum())
    if between_ns < _LEAST_BETWEEN * period_ns or not between_ns:
        return
    causes = Names.of(np.asarray(steady["between_cause"]))
    sums = np.bincount(causes.codes, steady["between_ns"])
    yield Note.of(
        "{share:ratio} of the host's time lies between steps, {between:ns} in all, mostly {cause}",
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
