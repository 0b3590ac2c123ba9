"""The steps one by one: how long, made up of what, how steady, and why the slow ones were slow."""

from __future__ import annotations

from typing import Any, Final

from traceprof.analysis.base import Analysis
from traceprof.facts.names.phases import PHASES
from traceprof.facts.steps.find import steps_of_ranks
from traceprof.facts.steps.measured import MeasuredSteps, measured_steps
from traceprof.model.ranks import Ranks
from traceprof.model.results import (
    Column,
    Note,
    Result,
    ResultSpec,
    TableSpec,
    Unit,
    derived,
    key,
    same,
    total,
)

__all__ = ["ANALYSIS"]

_PHASES: Final[tuple[Column, ...]] = tuple(
    total(f"{phase}_ns", Unit.NS, f"when the host was in {phase}, and in no other phase inside")
    for phase in PHASES
)
_ON_DEVICE: Final[tuple[Column, ...]] = (
    total("device_ns", Unit.NS, "from the end of the previous step's last work to that of its own"),
    total("compute_ns", Unit.NS, "when compute kernels ran; this and the next four add up"),
    total("exposed_communication_ns", Unit.NS, "when communication ran and no compute hid it"),
    total("exposed_transfer_ns", Unit.NS, "when copies from or to elsewhere ran and no kernel did"),
    total("device_memory_ns", Unit.NS, "when only copies and memsets inside the device ran"),
    total("idle_ns", Unit.NS, "when nothing ran; all five are means over the devices in use"),
)
_EXCESS: Final[tuple[Column, ...]] = (
    same("is_warmup", Unit.FLAG, "whether it is warm-up, and not in the statistics"),
    same(
        "excess_ns",
        Unit.NS,
        "of an outlier: how much longer than the median of the others (below 0: shorter)",
    ),
    same("grown_part", Unit.TEXT, 'the device\'s part that explains the most of it; "" for none'),
    same("grown_part_ns", Unit.NS, "how much longer than usual that was"),
    same("grown_phase", Unit.TEXT, 'the same of the host\'s phases, and "profiler" for itself'),
    same("grown_phase_ns", Unit.NS, "how much longer than usual that was"),
)
SPEC: Final = ResultSpec(
    tables=(
        TableSpec(
            "steps",
            "one row per process and step; columns of what was not recorded are not there",
            (
                key("process", "the process", Unit.NUMBER),
                key("step", "the number of the step", Unit.NUMBER),
                same("at_ns", Unit.AT_NS, "when it starts"),
                total("duration_ns", Unit.NS, "its length on the host; if inferred, on the device"),
                *_ON_DEVICE,
                *_PHASES,
                total("profiler_ns", Unit.NS, "when the profiler itself took the time"),
                total("h2d_bytes", Unit.BYTES, "copies from host to device that start in it"),
                total("d2h_bytes", Unit.BYTES, "copies from device to host that start in it"),
                total("p2p_bytes", Unit.BYTES, "copies between devices that start in it"),
                total("samples_count", Unit.COUNT, "the samples of its batches"),
                derived("samples_per_s", Unit.PER_S, "samples_count over duration_ns"),
                *_EXCESS,
            ),
        ),
    ),
    scalars=(
        same("source", Unit.TEXT, 'what the steps are read from; "" where there are none'),
        same("confidence_ratio", Unit.RATIO, "1, of inferred steps the share that repeats"),
        same("warmup_count", Unit.COUNT, "leading steps of each process that are warm-up"),
        same("warmup_ns", Unit.NS, "how long these are in the first process"),
        same("steady_count", Unit.COUNT, "the other steps, of all processes"),
        same("mean_ns", Unit.NS, "the mean of their lengths"),
        same("median_ns", Unit.NS, "the median of their lengths"),
        same("p10_ns", Unit.NS, "the 10th percentile of their lengths"),
        same("p90_ns", Unit.NS, "the 90th percentile of their lengths"),
        same("min_ns", Unit.NS, "the shortest"),
        same("max_ns", Unit.NS, "the longest"),
        same("spread_ratio", Unit.RATIO, "(p90 - p10) / median"),
        same("trend_ns", Unit.NS, "how much longer each step is than the one before"),
        same("drift_ratio", Unit.RATIO, "what the trend adds from first to last, of the median"),
        same("mean_samples_per_s", Unit.PER_S, "throughput: all samples over all time"),
        same("median_samples_per_s", Unit.PER_S, "throughput: the median over steps"),
    ),
)
_LEAST_DRIFT: Final = 0.05
_FEWEST_FOR_DRIFT: Final = 8


def measure_steps(ranks: Ranks) -> Result:
    """Return every step that lies wholly inside the window."""
    steps = measured_steps(ranks)
    result = Result("steps", SPEC, {"steps": SPEC.tables[0].frame(steps.table)}, _scalars(steps))
    return result if len(steps.table) else result.with_notes(_why_none(ranks))


def _why_none(ranks: Ranks) -> Note:
    if len(steps_of_ranks(ranks.whole)):
        return Note("no step lies wholly inside the window: choose a larger one")
    return Note("no steps are known: record with `traceprof record`, or call traceprof.step()")


def _scalars(steps: MeasuredSteps) -> dict[str, Any]:
    scalars: dict[str, Any] = {
        "source": steps.source,
        "confidence_ratio": steps.confidence_ratio,
        "warmup_count": steps.warmup_count,
        "warmup_ns": steps.warmup_ns,
    }
    steady, throughput = steps.steadiness, steps.throughput
    if steady is not None:
        names = [column.name for column in SPEC.scalars if hasattr(steady, column.name)]
        scalars |= {"steady_count": steady.count} | {name: getattr(steady, name) for name in names}
    if throughput is not None:
        scalars["mean_samples_per_s"] = throughput.mean_per_s
        scalars["median_samples_per_s"] = throughput.median_per_s
    return scalars


def _finish(result: Result) -> Result:
    """Say where the steps come from, how long and steady they are, and what was dropped."""
    if result.table.empty:
        return result
    scalars = result.scalars
    notes = [_origin(scalars)]
    if scalars["warmup_count"]:
        notes.append(
            Note.of(
                "{n:count} leading step(s), {lost:ns}, are warm-up and not in the statistics",
                n=scalars["warmup_count"],
                lost=scalars["warmup_ns"],
            )
        )
    if "steady_count" not in scalars:
        return result.with_notes(*notes, Note("only warm-up steps are in this window"))
    notes.append(
        Note.of(
            "{n:count} steady steps: median {median:ns}, mean {mean:ns}, p10 {p10:ns}, "
            "p90 {p90:ns}, spread {spread:ratio}",
            n=scalars["steady_count"],
            median=scalars["median_ns"],
            mean=scalars["mean_ns"],
            p10=scalars["p10_ns"],
            p90=scalars["p90_ns"],
            spread=scalars["spread_ratio"],
        )
    )
    drift = scalars["drift_ratio"]
    if abs(drift) > _LEAST_DRIFT and scalars["steady_count"] >= _FEWEST_FOR_DRIFT:
        word = "longer" if drift > 0 else "shorter"
        notes.append(
            Note.of(f"steps get {word}: {{drift:ratio}} from first to last", drift=abs(drift))
        )
    if "mean_samples_per_s" in scalars:
        rate = scalars["mean_samples_per_s"]
        notes.append(Note.of("throughput: {rate:number} samples/s", rate=rate))
    return result.with_notes(*notes)


def _origin(scalars: Any) -> Note:
    text, confidence = "steps are from: {source}", scalars["confidence_ratio"]
    if confidence < 1:
        text += " ({confidence:ratio} of it repeats); times are the device's"
    return Note.of(text, source=scalars["source"], confidence=confidence)


ANALYSIS = Analysis(
    name="steps",
    spec=SPEC,
    uses=("ranges", "marks", "kernels", "copies", "api_calls", "overheads", "devices"),
    whole=("ranges", "kernels", "copies"),
    of_ranks=measure_steps,
    finish=_finish,
)
