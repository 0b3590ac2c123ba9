"""Waterfall from the ideal step time to the measured step time; the sum is exact to the nanosecond.

Each kernel contributes the time that it adds to the busy time of its device. Of overlapping
kernels, the first one counts. The time of a kernel is split into three parts: the FLOPs at the peak
of the kernel's precision; the additional time that its bytes need at the peak memory bandwidth; and
the remaining time, by cause. All other time of the devices is split by activity or by idle cause,
as in `explain`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from traceprof.errors import NotRecordedError
from traceprof.hardware.catalogue import Link, Stated
from traceprof.measures.analyses import Analysis
from traceprof.measures.collectives.blame import find_blame
from traceprof.measures.collectives.by_size import COLLECTIVES
from traceprof.measures.composition import COLLECTIVE, WAITING, composition_of_devices, first_claims
from traceprof.measures.compute.counted import counted_kernels
from traceprof.measures.compute.rates import measured_kernels
from traceprof.measures.compute.utilization import main_precision, moved_bytes, torch_flop
from traceprof.measures.device.occupancy import launch_shapes
from traceprof.measures.device.peaks import flop_peak_of, peak_of
from traceprof.measures.device.times import (
    device_time,
    indices_in_part,
    recorded_times,
    used_devices,
)
from traceprof.measures.facts import of_window
from traceprof.measures.idle.losses import scale_to_steps
from traceprof.measures.rows import Floats, Ints, lengths_of
from traceprof.measures.steps.base import WINDOW, base_of
from traceprof.model.activity import BUSY_PARTS
from traceprof.model.ranks import Ranks, gpus_of
from traceprof.model.results import Note, Result, ResultSpec
from traceprof.model.table import Table
from traceprof.model.trace import Trace
from traceprof.names.kernels import SHORT_NS

AT_PEAK: Final = "ideal time at peak"
AT_BANDWIDTH: Final = "memory-bound work at peak bandwidth"
WAVES: Final = "wave quantization"
SHORT: Final = "short kernels (below 10 µs)"
BELOW_PEAK: Final = "matrix kernels below the roofline"
BELOW_BANDWIDTH: Final = "memory-bound kernels below the roofline"
UNKNOWN_MATRIX: Final = "matrix kernels, FLOPs not known"
UNKNOWN: Final = "other kernels, bytes not known"
AT_LINK: Final = "exposed communication at peak link bandwidth"
BELOW_LINK: Final = "exposed communication below peak link bandwidth"
COMMUNICATION: Final = "exposed communication"
WAITS: Final = "waiting for other ranks"
_PART_LABELS: Final = {
    "exposed_communication": COMMUNICATION,
    "exposed_transfer": "exposed transfers",
    "device_memory": "copies inside the device",
}
_IDLE_LABELS: Final = {
    "queued": "gaps between queued kernels",
    "launch": "CPU-bound: kernel launches",
    "data": "CPU-bound: input pipeline",
    "synchronizing": "host synchronization",
    "communication": "communication by the CPU",
    "host": "CPU-bound: framework overhead",
    "peer": "waiting for another GPU",
    "role": "waiting for another role",
    "edge": "idle before the first and after the last kernel",
    "unknown": "idle, cause not recorded",
    "profiler": "profiler overhead",
}
PARTS: Final = (
    *(AT_PEAK, AT_BANDWIDTH, WAVES, SHORT, BELOW_PEAK, BELOW_BANDWIDTH, UNKNOWN_MATRIX, UNKNOWN),
    *(
        AT_LINK,
        BELOW_LINK,
        COMMUNICATION,
        WAITS,
        *list(_PART_LABELS.values())[1:],
        *_IDLE_LABELS.values(),
    ),
)
"""Parts of the waterfall, in order from the ideal to the measured step time."""
_COMPUTE: Final = "compute"
_CAUSES: Final = {part: cause for cause, part in _IDLE_LABELS.items()}
_MIN_SHARE_RATIO: Final = 0.001

IDEAL_SPEC: Final = ResultSpec.of("""
    table ideal: waterfall from the ideal step time to the measured step time. The parts add up
        exactly to length_ns
    key part: part of the step time
    same step_ns: time per step, mean over steps and GPUs; time in the window if no steps are known
    same cumulative_ns: cumulative sum up to this part
    same share_ratio: step_ns as a share of length_ns
    same total_ns: total over all GPUs and steps in the window
    scalars:
    same base: unit of step_ns: step, iteration, or window
    same length_ns: duration of that unit; equals the sum of step_ns
    same steps_count: number of steps of a process that the step time is the mean of
    same devices_count: number of GPUs
    """)


def _measure_compute_parts(trace: Trace) -> dict[str, int]:
    """Return the compute time of all devices in the window, in ns by part."""
    kernels, work = trace.kernels, measured_kernels(trace)
    is_heavy = counted_kernels(trace)["is_uncounted"]
    claimed_ns = _claimed_ns(trace)
    share = claimed_ns / np.maximum(lengths_of(kernels), 1)
    at_peak_ns = _round_capped(np.nan_to_num(work["ideal_ns"]) * share, claimed_ns)
    excess_ns = np.nan_to_num(work["memory_ns"]) * share - at_peak_ns
    traffic_ns = _round_capped(np.maximum(excess_ns, 0.0), claimed_ns - at_peak_ns)
    has_peak = (work["known_flop_ns"] > 0) & ~np.isnan(work["ideal_ns"])
    has_memory = (work["known_bytes_ns"] > 0) & ~np.isnan(work["memory_ns"])
    is_known = has_peak | (has_memory & ~is_heavy)
    remaining_ns = np.where(is_known, claimed_ns - at_peak_ns - traffic_ns, 0)
    waves_ns = _round_capped(claimed_ns * _unfilled_ratios(trace), remaining_ns)
    remaining_ns -= waves_ns
    is_short = lengths_of(trace.whole.kernels)[trace.rows_in_whole("kernels")] < SHORT_NS
    unknown_ns = np.where(is_known, 0, claimed_ns - at_peak_ns - traffic_ns)
    sums = {
        AT_PEAK: at_peak_ns.sum(),
        AT_BANDWIDTH: traffic_ns.sum(),
        WAVES: waves_ns.sum(),
        SHORT: remaining_ns.sum(where=is_short),
        BELOW_PEAK: remaining_ns.sum(where=~is_short & has_peak),
        BELOW_BANDWIDTH: remaining_ns.sum(where=~is_short & ~has_peak),
        UNKNOWN_MATRIX: unknown_ns.sum(where=is_heavy),
        UNKNOWN: unknown_ns.sum(where=~is_heavy),
    }
    return {name: int(total) for name, total in sums.items()}


def _round_capped(ns: Floats, limit: Ints) -> Ints:
    """Return times rounded to whole ns, at most ``limit``."""
    return np.minimum(np.rint(ns).astype(np.int64), limit)


def _claimed_ns(trace: Trace) -> Ints:
    """Return the time that each kernel adds to the compute of its device, in ns.

    The time is 0 for kernels that do not count as compute.
    """
    found = np.zeros(len(trace.kernels), np.int64)
    places = indices_in_part(trace, "kernels")
    for device in used_devices(trace):
        rows = np.flatnonzero((trace.kernels["device"] == device) & (places == 0))
        kernels = trace.kernels.select("start_ns", "end_ns").take(rows)
        parts = device_time(trace, device).within(recorded_times(trace, device)).parts()
        found[rows] = parts[BUSY_PARTS[0]].covered_ns(*first_claims(kernels))
    return found


def _unfilled_ratios(trace: Trace) -> Floats:
    """Return the share of block slots that are empty while each kernel runs; 0 if unknown."""
    shapes = launch_shapes(trace)
    waves = np.asarray(shapes.table["waves"], np.float64)
    whole = np.maximum(np.ceil(np.nan_to_num(waves)), 1)
    empty = np.where(np.isnan(waves), 0.0, 1 - waves / whole)
    found: Floats = shapes.of_kernel[trace.rows_in_whole("kernels")].pick(empty)
    return found


def measure_ideal(ranks: Ranks) -> Result:
    """Return the waterfall of the mean step of the window, or of the window if no steps are known.

    Raises:
        NotRecordedError: The recording contains no GPU activity.
    """
    spans = {
        (place, device): ranks.span
        for place, part in enumerate(ranks.parts)
        for device in used_devices(part)
    }
    if not spans:
        ranks.require("kernels")
        raise NotRecordedError("this recording contains no GPU activity to compare with the ideal")
    why_not = find_blame(ranks).why_not
    composition = composition_of_devices(ranks, spans, knows_waits=not why_not)
    sums = Counter[str]()
    for part, kind, name, ns in zip(
        *(np.asarray(composition[column]) for column in ("part", "kind", "name", "ns")), strict=True
    ):
        if part == "idle":
            sums[_IDLE_LABELS.get(str(kind), _IDLE_LABELS["unknown"])] += int(ns)
        elif part == "exposed_communication" and kind == WAITING:
            sums[WAITS] += int(ns)
        elif part == "exposed_communication" and kind == COLLECTIVE:
            sums[f"{COLLECTIVE} {name}"] += int(ns)
        else:
            sums[_PART_LABELS.get(str(part), _COMPUTE)] += int(ns)
    compute_parts = Counter[str]()
    for parts_of_rank in ranks.each(_measure_compute_parts):
        compute_parts.update(parts_of_rank)
    compute_parts[UNKNOWN] += sums.pop(_COMPUTE, 0) - sum(compute_parts.values())
    sums.update(compute_parts)
    _split_communication(ranks, sums)
    _apply_moved_bytes(ranks, sums, spans)
    notes = _apply_stated_flop(ranks, sums, spans)
    return _as_steps(ranks, sums, len(spans)).with_notes(*notes)


def _split_communication(ranks: Ranks, sums: Counter[str]) -> None:
    """Split the time of exposed collectives into the time at the link's peak and the excess.

    Collectives without a known peak are added to `COMMUNICATION`. Changes ``sums`` in place.
    """
    ops = [name for name in sums if name.startswith(f"{COLLECTIVE} ")]
    peak_ratios = _peak_ratios_by_op(ranks) if ops else {}
    for name in ops:
        ns, ratio = sums.pop(name), peak_ratios.get(name.partition(" ")[2])
        if ratio is None:
            sums[COMMUNICATION] += ns
            continue
        at_link = min(ns, round(ns * ratio))
        sums[AT_LINK] += at_link
        sums[BELOW_LINK] += ns - at_link


def _peak_ratios_by_op(ranks: Ranks) -> dict[str, float]:
    """Return the share of the link's peak that each operation reaches; without unknown operations.

    The share is a mean weighted by the time of the collectives.
    """
    assert COLLECTIVES.of_ranks is not None
    try:
        table = COLLECTIVES.finish(COLLECTIVES.of_ranks(ranks)).table
    except NotRecordedError:
        return {}
    weights_by_op: dict[str, list[tuple[float, float]]] = {}
    for row in table.rows():
        if row["peak_ratio"] == row["peak_ratio"]:
            weights_by_op.setdefault(row["op"], []).append((row["peak_ratio"], row["total_ns"]))
    return {
        op: sum(ratio * ns for ratio, ns in pairs) / (sum(ns for _, ns in pairs) or np.nan)
        for op, pairs in weights_by_op.items()
    }


def _apply_stated_flop(
    ranks: Ranks, sums: Counter[str], spans: Mapping[tuple[int, int], Any]
) -> list[Note]:
    """Replace matrix work with unknown FLOPs by the FLOPs per step that the user or torch provides.

    Changes ``sums`` in place. Returns a note if the FLOPs cannot belong to this step.
    """
    stated = ranks.hardware.stated if ranks.hardware is not None else Stated()
    flop = stated.step_flop or torch_flop(ranks)[0]
    devices = [device for _, device in spans]
    precision = main_precision(ranks)
    peaks = [flop_peak_of(ranks, device, precision) for device in devices]
    base = base_of(ranks)
    n_steps = 0 if base.unit == WINDOW else base.steps_count
    if not flop or not n_steps or not all(peaks):
        return []
    n_gpus = max(1, len(set(gpus_of(ranks).values())))
    ideal_ns = round(1e9 * flop * n_steps / (float(peaks[0] or 0) * n_gpus)) * len(devices)
    matrix_ns = sum(sums[part] for part in (AT_PEAK, WAVES, SHORT, BELOW_PEAK, UNKNOWN_MATRIX))
    moved_ns = min(max(0, ideal_ns - sums[AT_PEAK]), sums[UNKNOWN_MATRIX])
    sums[AT_PEAK] += moved_ns
    sums[BELOW_PEAK] += sums.pop(UNKNOWN_MATRIX) - moved_ns
    if ideal_ns <= matrix_ns:
        return []
    note = Note.of(
        "The specified FLOPs per step take {ns:ns} at peak, longer than all matrix work of the "
        "step. The FLOPs are for another step or more GPUs, or the GPU is not the recorded one.",
        ns=ideal_ns / (n_steps * len(devices)),
    )
    return [note]


def _apply_moved_bytes(
    ranks: Ranks, sums: Counter[str], spans: Mapping[tuple[int, int], Any]
) -> None:
    """Split kernels with unknown bytes by the bytes of a step that the recording counted.

    The bytes are those of separate operators. So they are unknown if the kernels are generated and
    fuse operators. Changes ``sums`` in place.
    """
    n_bytes, base = moved_bytes(ranks), base_of(ranks)
    peaks = [peak_of(ranks, device, Link.MEMORY) for _, device in spans]
    n_steps = 0 if base.unit == WINDOW else base.steps_count
    is_fused = any(ranks.each(_has_generated_kernels))
    if not n_bytes or not n_steps or is_fused or "operator_inputs" in ranks.recorded:
        return
    if peaks[0] is None or None in peaks:
        return
    ideal_ns = round(1e9 * n_bytes * n_steps / peaks[0].bytes_per_s)
    unknown_ns = sums.pop(UNKNOWN, 0)
    at_bandwidth_ns = min(ideal_ns, unknown_ns)
    sums[AT_BANDWIDTH] += at_bandwidth_ns
    sums[BELOW_BANDWIDTH] += unknown_ns - at_bandwidth_ns


@of_window
def _has_generated_kernels(trace: Trace) -> bool:
    """Return whether kernels of the window are generated by Triton."""
    names = trace.kernels["name"]
    return bool(names.by_text([name.startswith("triton_") for name in names.texts]).any())


def _as_steps(ranks: Ranks, sums: Counter[str], n_devices: int) -> Result:
    """Return the sums as means over steps and devices; they add up to the step time of the base."""
    parts = [name for name in PARTS if sums[name]]
    total = np.array([sums[name] for name in parts], np.int64)
    scaled, units = scale_to_steps(ranks, total, [_CAUSES.get(part, "") for part in parts])
    until = np.rint(np.cumsum(scaled) / units).astype(np.int64)
    step = np.diff(until, prepend=0)
    length = int(until[-1]) if len(until) else 0
    table = Table(
        {
            "part": np.array(parts, object),
            "step_ns": step,
            "cumulative_ns": until,
            "share_ratio": step / (length or np.nan),
            "total_ns": total,
        },
        len(parts),
    )
    base = base_of(ranks)
    scalars = {
        "base": base.unit,
        "length_ns": length,
        "steps_count": 0 if base.unit == WINDOW else round(base.timed_count),
        "devices_count": n_devices,
    }
    notes = _notes(parts, table, scalars, ranks.info.recorded_by.how_to("flops"))
    tables = {"ideal": IDEAL_SPEC.tables[0].of_rows(table)}
    return Result("ideal", IDEAL_SPEC, tables, scalars, tuple(notes))


def _notes(
    parts: Sequence[str], table: Table, scalars: Mapping[str, Any], flops: str
) -> list[Note]:
    """Return the measured step time and the ideal time at peak.

    ``flops`` is the sentence on how to record FLOPs.
    """
    mean_text = "mean of {n:count} {base}(s), " if scalars["steps_count"] else ""
    text = f"Measured {{base}}: {{ns:ns}} ({mean_text}{{devices:count}} GPU(s))"
    values = {"ns": scalars["length_ns"], "n": scalars["steps_count"]}
    notes = [Note.of(text, base=scalars["base"], devices=scalars["devices_count"], **values)]
    if AT_PEAK not in parts:
        notes.append(
            Note(
                "The ideal time at peak is unknown, since the FLOPs are unknown. Specify "
                f"--model-flops, or --parameters and --tokens{flops}"
            )
        )
    else:
        ideal = int(table["step_ns"][parts.index(AT_PEAK)])
        share = ideal / (scalars["length_ns"] or np.nan)
        known = "known " if UNKNOWN_MATRIX in parts else ""
        text = f"At peak, the {known}FLOPs of the {{base}} take {{ideal:ns}}: "
        text += "less than 0.1%" if share < _MIN_SHARE_RATIO else "{share:ratio}"
        notes.append(Note.of(f"{text} of its time", base=scalars["base"], ideal=ideal, share=share))
    return notes


IDEAL: Final = Analysis(
    "ideal",
    IDEAL_SPEC,
    needs=("kernels",),
    uses=(
        *("operator_inputs", "host_ops", "api_calls", "copies", "ranges", "samples", "devices"),
        *("environment", "marks", "processes", "kernel_shapes", "collectives", "syncs"),
        "overheads",
    ),
    whole=(
        *("operator_inputs", "kernels", "kernel_shapes", "copies", "api_calls", "ranges", "marks"),
        *("collectives", "samples"),
    ),
    of_steps=True,
    of_ranks=measure_ideal,
)
