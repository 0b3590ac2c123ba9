"""From what a step would take at the peaks to what it takes: a sum that is exact, to the ns.

Of every kernel the time that it adds (what runs at once counts for the one that began first) is
split: its FLOPs at the peak of what it multiplies in; what its bytes take longer than that at the
memory's peak; and the rest, by what tells why. All other time of the devices is split by what
they did or waited for, as `explain` does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from traceprof.errors import NotRecordedError
from traceprof.hardware.catalogue import Stated
from traceprof.measures.analyses import Analysis
from traceprof.measures.collectives.blame import find_blame
from traceprof.measures.collectives.by_size import COLLECTIVES
from traceprof.measures.composition import COLLECTIVE, WAITING, composition_of_devices, first_claims
from traceprof.measures.compute.counted import counted_kernels
from traceprof.measures.compute.rates import measured_kernels
from traceprof.measures.compute.utilization import main_precision, torch_flop
from traceprof.measures.device.occupancy import launch_shapes
from traceprof.measures.device.peaks import flop_peak_of
from traceprof.measures.device.times import (
    device_time,
    places_in_part,
    recorded_times,
    used_devices,
)
from traceprof.measures.idle.losses import scaled_to_base
from traceprof.measures.rows import Floats, Ints, lengths_of
from traceprof.measures.steps.base import WINDOW, base_of
from traceprof.model.activity import BUSY_PARTS
from traceprof.model.ranks import Ranks, gpus_of
from traceprof.model.results import Note, Result, ResultSpec
from traceprof.model.table import Table
from traceprof.model.trace import Trace
from traceprof.names.kernels import SHORT_NS

AT_PEAK: Final = "FLOPs at the peak"
AT_BANDWIDTH: Final = "memory traffic at its bandwidth"
WAVES: Final = "waves that do not fill the GPU"
SHORT: Final = "short kernels, below 10 µs"
BELOW_PEAK: Final = "matrix work below its roofline"
BELOW_BANDWIDTH: Final = "other work below the memory's bandwidth"
UNKNOWN_MATRIX: Final = "matrix work whose FLOPs are not known"
UNKNOWN: Final = "other kernels, whose bytes are not known"
AT_LINK: Final = "exposed communication at the link's peak"
BELOW_LINK: Final = "communication below the link's peak"
COMMUNICATION: Final = "exposed communication"
WAITS: Final = "waiting for other ranks"
_OF_PARTS: Final = {
    "exposed_communication": COMMUNICATION,
    "exposed_transfer": "exposed transfers",
    "device_memory": "copies inside the device",
}
_OF_IDLE: Final = {
    "queued": "pauses between kernels",
    "launch": "launching",
    "data": "waiting for data",
    "synchronizing": "synchronizing",
    "communication": "communication by the host",
    "host": "host code",
    "peer": "waiting for another device",
    "edge": "before the first and after the last work",
    "unknown": "idle, the cause not recorded",
    "profiler": "the profiler",
}
PARTS: Final = (
    *(AT_PEAK, AT_BANDWIDTH, WAVES, SHORT, BELOW_PEAK, BELOW_BANDWIDTH, UNKNOWN_MATRIX, UNKNOWN),
    *(AT_LINK, BELOW_LINK, COMMUNICATION, WAITS, *list(_OF_PARTS.values())[1:], *_OF_IDLE.values()),
)
"""From the ideal to the measured step, in this order."""
_COMPUTE: Final = "compute"
_CAUSES: Final = {part: cause for cause, part in _OF_IDLE.items()}
_LEAST_SHARE: Final = 0.001

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


def _kernels_of(trace: Trace) -> dict[str, int]:
    """Return what the compute of all devices in the window is, in ns by part."""
    kernels, work = trace.kernels, measured_kernels(trace)
    is_heavy = counted_kernels(trace)["is_uncounted"]
    claimed = _claimed_ns(trace)
    length = np.maximum(lengths_of(kernels), 1)
    share = claimed / length
    at_peak = _whole(np.nan_to_num(work["ideal_ns"]) * share, claimed)
    traffic = np.nan_to_num(work["memory_ns"]) * share - at_peak
    moving = _whole(np.maximum(traffic, 0.0), claimed - at_peak)
    has_peak = (work["known_flop_ns"] > 0) & ~np.isnan(work["ideal_ns"])
    has_memory = (work["known_bytes_ns"] > 0) & ~np.isnan(work["memory_ns"])
    is_known = has_peak | (has_memory & ~is_heavy)
    left = np.where(is_known, claimed - at_peak - moving, 0)
    of_waves = _whole(claimed * _unfilled(trace), left)
    left -= of_waves
    is_short = lengths_of(trace.whole.kernels)[trace.rows_in_whole("kernels")] < SHORT_NS
    unknown = np.where(is_known, 0, claimed - at_peak - moving)
    sums = {
        AT_PEAK: at_peak.sum(),
        AT_BANDWIDTH: moving.sum(),
        WAVES: of_waves.sum(),
        SHORT: left.sum(where=is_short),
        BELOW_PEAK: left.sum(where=~is_short & has_peak),
        BELOW_BANDWIDTH: left.sum(where=~is_short & ~has_peak),
        UNKNOWN_MATRIX: unknown.sum(where=is_heavy),
        UNKNOWN: unknown.sum(where=~is_heavy),
    }
    return {name: int(own) for name, own in sums.items()}


def _whole(ns: Floats, most: Ints) -> Ints:
    return np.minimum(np.rint(ns).astype(np.int64), most)


def _claimed_ns(trace: Trace) -> Ints:
    """Return what each kernel adds to the compute of its device, in ns; 0 of other kernels."""
    found = np.zeros(len(trace.kernels), np.int64)
    places = places_in_part(trace, "kernels")
    for device in used_devices(trace):
        own = np.flatnonzero((trace.kernels["device"] == device) & (places == 0))
        rows = trace.kernels.select("start_ns", "end_ns").take(own)
        exposed = device_time(trace, device).within(recorded_times(trace, device)).parts()
        left = exposed[BUSY_PARTS[0]]
        found[own] = left.covered_ns(*first_claims(rows))
    return found


def _unfilled(trace: Trace) -> Floats:
    """Return what share of the places for blocks is empty while each kernel runs; 0: not known."""
    shapes = launch_shapes(trace)
    waves = np.asarray(shapes.table["waves"], np.float64)
    whole = np.maximum(np.ceil(np.nan_to_num(waves)), 1)
    empty = np.where(np.isnan(waves), 0.0, 1 - waves / whole)
    found: Floats = shapes.of_kernel[trace.rows_in_whole("kernels")].pick(empty)
    return found


def measure_ideal(ranks: Ranks) -> Result:
    """Return the waterfall of the mean step of the window, or of the window."""
    spans = {
        (place, device): ranks.span
        for place, part in enumerate(ranks.parts)
        for device in used_devices(part)
    }
    if not spans:
        ranks.require("kernels")
        raise NotRecordedError("this recording contains no GPU activity to compare with the ideal")
    why_not = find_blame(ranks).why_not
    made = composition_of_devices(ranks, spans, knows_waits=not why_not)
    sums = Counter[str]()
    for part, kind, name, ns in zip(
        *(np.asarray(made[own]) for own in ("part", "kind", "name", "ns")), strict=True
    ):
        if part == "idle":
            sums[_OF_IDLE.get(str(kind), _OF_IDLE["unknown"])] += int(ns)
        elif part == "exposed_communication" and kind == WAITING:
            sums[WAITS] += int(ns)
        elif part == "exposed_communication" and kind == COLLECTIVE:
            sums[f"{COLLECTIVE} {name}"] += int(ns)
        else:
            sums[_OF_PARTS.get(str(part), _COMPUTE)] += int(ns)
    kernels = Counter[str]()
    for own in ranks.each(_kernels_of):
        kernels.update(own)
    kernels[UNKNOWN] += sums.pop(_COMPUTE, 0) - sum(kernels.values())
    sums.update(kernels)
    _split_communication(ranks, sums)
    caveats = _put_stated(ranks, sums, spans)
    return _as_steps(ranks, sums, len(spans)).with_notes(*caveats)


def _split_communication(ranks: Ranks, sums: Counter[str]) -> None:
    """Split exposed collectives into what they take at the link's peak and the rest, if known."""
    ops = [name for name in sums if name.startswith(f"{COLLECTIVE} ")]
    reached = _reached_by_op(ranks) if ops else {}
    for name in ops:
        ns, ratio = sums.pop(name), reached.get(name.partition(" ")[2])
        if ratio is None:
            sums[COMMUNICATION] += ns
            continue
        at_link = min(ns, round(ns * ratio))
        sums[AT_LINK] += at_link
        sums[BELOW_LINK] += ns - at_link


def _reached_by_op(ranks: Ranks) -> dict[str, float]:
    """Return the share of the link's peak that each operation reaches, where it is known."""
    assert COLLECTIVES.of_ranks is not None
    try:
        table = COLLECTIVES.finish(COLLECTIVES.of_ranks(ranks)).table
    except NotRecordedError:
        return {}
    found: dict[str, list[tuple[float, float]]] = {}
    for row in table.rows():
        if row["peak_ratio"] == row["peak_ratio"]:
            found.setdefault(row["op"], []).append((row["peak_ratio"], row["total_ns"]))
    return {
        op: sum(ratio * ns for ratio, ns in own) / (sum(ns for _, ns in own) or np.nan)
        for op, own in found.items()
    }


def _put_stated(
    ranks: Ranks, sums: Counter[str], spans: Mapping[tuple[int, int], Any]
) -> list[Note]:
    """Put what is said of the FLOPs of a step in the place of matrix work that is not known.

    Returns what must be known of it.
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
    more = min(max(0, ideal_ns - sums[AT_PEAK]), sums[UNKNOWN_MATRIX])
    sums[AT_PEAK] += more
    sums[BELOW_PEAK] += sums.pop(UNKNOWN_MATRIX) - more
    text = "The specified FLOPs per step take {ns:ns} at peak, longer than all matrix work of the "
    text += "step. The FLOPs are for another step or more GPUs, or the GPU is not the recorded one."
    each_ns = ideal_ns / (n_steps * len(devices))
    return [Note.of(text, ns=each_ns)] if ideal_ns > matrix_ns else []


def _as_steps(ranks: Ranks, sums: Counter[str], n_devices: int) -> Result:
    """Return the sums as means over steps and devices, which add up to the step of the base."""
    parts = [name for name in PARTS if sums[name]]
    total = np.array([sums[name] for name in parts], np.int64)
    scaled, units = scaled_to_base(ranks, total, [_CAUSES.get(part, "") for part in parts])
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
    tables = {"ideal": IDEAL_SPEC.tables[0].of_rows(table)}
    notes = tuple(_notes(parts, table, scalars, ranks.info.recorded_by.how_to("flops")))
    return Result("ideal", IDEAL_SPEC, tables, scalars, notes)


def _notes(
    parts: Sequence[str], table: Table, scalars: Mapping[str, Any], flops: str
) -> list[Note]:
    of = "mean of {n:count} {base}(s), " if scalars["steps_count"] else ""
    text = f"Measured {{base}}: {{ns:ns}} ({of}{{devices:count}} GPU(s))"
    told = {"ns": scalars["length_ns"], "n": scalars["steps_count"]}
    notes = [Note.of(text, base=scalars["base"], devices=scalars["devices_count"], **told)]
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
        text += "less than 0.1%" if share < _LEAST_SHARE else "{share:ratio}"
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
