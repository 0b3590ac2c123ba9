"""Measure energy from power samples, and the energy and cost per step, sample, and token.

NVML reports the power of the whole board. Since Ampere (except A100 and its relatives), a sample
is the mean over the last second, so no span shorter than one or two seconds has a measured energy.
traceprof therefore takes the mean power over the usual steps of the recording: those that the step
time averages, or all usual steps if these last less than a second. The energy of a step is this
power times the step time, so energy, power, and time are of the same steps.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from traceprof.errors import NotRecordedError
from traceprof.hardware.catalogue import Stated
from traceprof.measures.analyses import Analysis
from traceprof.measures.device.counters import samples_named
from traceprof.measures.rows import Floats, Ints, bounds
from traceprof.measures.steps.base import base_of, counted_steps, times_of_steps
from traceprof.measures.steps.epochs import epochs_of_ranks
from traceprof.measures.steps.find import steps_of_ranks
from traceprof.measures.steps.ledger import USUAL, ledger_of_window, step_ledger
from traceprof.model.intervals import Intervals
from traceprof.model.ranks import Ranks, gpus_of
from traceprof.model.results import Note, Result, ResultSpec
from traceprof.model.table import Table
from traceprof.model.timing import TimeWindow

ENERGY_SPEC: Final = ResultSpec.of("""
    table energy: one row per GPU: power over the usual steps of the recording, or over the window
        if no steps are known
    key device: number of the GPU in the run
    same name: name of the GPU
    same span_ns: total duration of these steps
    same joules [number]: energy: power integrated over these steps
    same mean_watts [number]: mean power
    same max_watts [number]: highest power in these steps
    same idle_watts [number]: lowest sampled power in the recording, used as the idle power
    same idle_joules [number]: energy at idle power over these steps
    table units: energy and cost per unit, over all GPUs
    key per: a step; 1,000 steps; a sample or token; a million samples or tokens; an epoch, if a
        complete epoch was recorded
    same duration_ns: duration at the typical step time; for an epoch, the mean duration of the
        complete epochs
    same joules [number]: energy of all GPUs
    same idle_joules [number]: part of the energy that the GPUs would use at idle
    same cost [number]: cost of all GPUs at the specified price
    scalars:
    same steps_count: number of these steps
    same gpus_count: number of GPUs
    """)
_POWER: Final = re.compile("^power_watts$")
_INSTANT_POWER_GPUS: Final = re.compile(
    r"\b(A100|A800|A30|V100|P100|T4|Quadro RTX|TITAN|RTX 20\d\d)\b"
)
"""GPUs whose driver reports power over milliseconds, not the mean of the last second."""
_AVERAGING_DELAY_NS: Final = 500_000_000
_MIN_SPAN_NS: Final = 1_000_000_000
_MAX_GAP_PERIODS: Final = 3
_HOUR_NS: Final = 3_600_000_000_000


def measure_energy(ranks: Ranks) -> Result:
    """Return the energy of each GPU, and the energy and cost of a step, a sample, and a token.

    Raises:
        NotRecordedError: The trace has no power samples and the user specified no price.
    """
    stated = ranks.hardware.stated if ranks.hardware is not None else Stated()
    times, n_steps = _times_of_steps(ranks)
    rows = list(_gpu_rows(ranks, times)) if times.total_ns >= _MIN_SPAN_NS else []
    n_gpus = max(1, len(set(gpus_of(ranks).values())))
    has_power = len(samples_named(ranks, _POWER)) > 0
    if not has_power and stated.price_per_h is None:
        raise NotRecordedError(
            "the trace contains no power samples: record with `traceprof record` on a machine with "
            "NVML, or use --price to report the cost of a step without energy"
        )
    is_whole = len(rows) == n_gpus and n_steps
    watts = [
        sum(row[name] for row in rows) if is_whole else np.nan
        for name in ("mean_watts", "idle_watts")
    ]
    unit_rows = [*_unit_rows(ranks, stated, watts), *_epoch_rows(ranks, n_gpus)]
    units = Table.of_rows(unit_rows, ("per", "duration_ns", "joules", "idle_joules"))
    price = np.nan if stated.price_per_h is None else stated.price_per_h * n_gpus / _HOUR_NS
    units = units.assign(cost=price * units["duration_ns"].astype(np.float64))
    result = Result(
        "energy",
        ENERGY_SPEC,
        {
            "energy": ENERGY_SPEC.tables[0].of_rows(rows),
            "units": ENERGY_SPEC.table("units").of_rows(units),
        },
        {"steps_count": n_steps, "gpus_count": n_gpus},
    )
    return result.with_notes(*_notes(rows, times, n_steps, has_power=has_power))


def _times_of_steps(ranks: Ranks) -> tuple[Intervals, int]:
    """Return the times of the usual steps and their number per process.

    These are the steps that the step time averages, or all usual steps if they last less than a
    second. Without known steps, return the window and 0.
    """
    if not len(steps_of_ranks(ranks.whole)):
        return ranks.span.times, 0
    times, n_steps = Intervals.empty(), 0
    counted, ledger = counted_steps(ranks, ranks.span), step_ledger(ranks)
    candidates = ledger_of_window(ranks).take(counted), ledger.take(ledger["kind"] == USUAL)
    for steps in candidates:
        if times.total_ns < _MIN_SPAN_NS:
            n_steps = int(np.unique(steps["process"], return_counts=True)[1].max(initial=0))
            times = times_of_steps(steps)
    return times, n_steps


def _power_by_gpu(ranks: Ranks) -> Iterator[tuple[int, str, Ints, Floats]]:
    """Yield device number, name, sample times in ns, and watts of each GPU with power samples.

    A GPU with several device numbers is yielded once, under the first one with samples. The times
    are moved back by half of the averaging period of the driver.
    """
    power = samples_named(ranks, _POWER)
    seen = set()
    for device, gpu in gpus_of(ranks).items():
        samples = power.take(power["source"] == f"gpu:{device}").in_order("start_ns")
        if gpu in seen or len(samples) < 2:
            continue
        seen.add(gpu)
        delay = 0 if _INSTANT_POWER_GPUS.search(gpu[2]) else _AVERAGING_DELAY_NS
        yield device, gpu[2], samples["start_ns"] - delay, samples["value"]


def _gpu_rows(ranks: Ranks, spans: Intervals) -> Iterator[dict[str, Any]]:
    """Yield a row of table ``energy`` for each GPU with power samples for all of ``spans``."""
    seconds = spans.total_ns / 1e9
    for device, name, times, watts in _power_by_gpu(ranks):
        joules = integrate_power(times, watts, spans)
        if joules is None:
            continue
        is_inside = spans.covered_ns(times, times + 1) > 0
        edges = np.interp(np.concatenate([spans.starts, spans.ends]), times, watts)
        yield {
            "device": device,
            "name": name,
            "span_ns": spans.total_ns,
            "joules": joules,
            "mean_watts": joules / seconds,
            "max_watts": float(np.concatenate([watts[is_inside], edges]).max()),
            "idle_watts": float(watts.min()),
            "idle_joules": float(watts.min()) * seconds,
        }


def integrate_power(times_ns: Ints, watts: Floats, spans: Intervals) -> float | None:
    """Return the energy over ``spans`` in joules, by the trapezoidal rule.

    Return None if samples are missing: a gap exceeds three sampling periods. Before the first and
    after the last sample, the power of the nearest sample applies, for one sampling period at most.
    """
    gaps = np.diff(times_ns)
    period = float(np.median(gaps)) if len(gaps) else 0.0
    is_long = np.flatnonzero(gaps > _MAX_GAP_PERIODS * period)
    missing = Intervals.union_of(times_ns[is_long], times_ns[is_long + 1]) & spans
    starts, ends = spans.starts, spans.ends
    if len(missing) or not len(spans) or not len(times_ns):
        return None
    if times_ns[0] - starts[0] > period or ends[-1] - times_ns[-1] > period:
        return None
    points = np.unique(np.concatenate((starts, times_ns, ends)))
    at_points = np.interp(points.astype(np.float64), times_ns.astype(np.float64), watts)
    pieces = np.diff(points) * (at_points[1:] + at_points[:-1]) / 2
    until = np.concatenate(([0.0], np.cumsum(pieces)))
    inside = until[np.searchsorted(points, ends)] - until[np.searchsorted(points, starts)]
    return float(inside.sum() / 1e9)


def _unit_rows(ranks: Ranks, stated: Stated, watts: Sequence[float]) -> Iterator[dict[str, Any]]:
    """Yield the duration and energy of steps, samples, and tokens.

    ``watts`` are the mean power and the idle power of all GPUs together.
    """
    if not len(steps_of_ranks(ranks.whole)):
        return
    base = base_of(ranks)
    per_step = {"a step": 1.0, "1,000 steps": 1e3}
    for unit, n in ("sample", np.nan_to_num(base.samples_count)), ("token", stated.tokens):
        per_step |= {f"a {unit}": 1 / n, f"a million {unit}s": 1e6 / n} if n else {}
    for unit, steps in per_step.items():
        duration = base.step_ns * steps
        joules, idle = (power * duration / 1e9 for power in watts)
        yield {"per": unit, "duration_ns": duration, "joules": joules, "idle_joules": idle}


def _epoch_rows(ranks: Ranks, n_gpus: int) -> Iterator[dict[str, Any]]:
    """Yield the mean duration and energy of the epochs that were recorded completely."""
    epochs = epochs_of_ranks(ranks.whole)
    if epochs.empty or not epochs["is_whole"].any():
        return
    starts, ends = bounds(epochs.take(epochs["is_whole"]))
    spans = list(map(TimeWindow, starts.tolist(), ends.tolist()))
    powers = list(_power_by_gpu(ranks))
    joules_of_gpus = [
        integrate_power(times, watts, span.times) for _, _, times, watts in powers for span in spans
    ]
    known = [value for value in joules_of_gpus if value is not None]
    joules = sum(known) / len(spans) if len(known) == n_gpus * len(spans) else np.nan
    length = float((ends - starts).mean())
    idle_watts = sum(float(watts.min()) for _, _, _, watts in powers)
    idle = idle_watts * length / 1e9 if joules == joules else np.nan
    yield {"per": "an epoch", "duration_ns": length, "joules": joules, "idle_joules": idle}


def _notes(
    rows: list[dict[str, Any]], times: Intervals, n_steps: int, *, has_power: bool
) -> Iterator[Note]:
    """Yield the basis and accuracy of the energy, or the reason why it is not reported."""
    if rows and n_steps:
        yield Note.of(
            "Power is the mean over {n:count} usual steps ({ns:ns} in total). It is for the whole "
            "board, accurate to about 5% (about 10% over a few seconds). Energy is this power "
            "times the step time.",
            n=n_steps,
            ns=times.total_ns,
        )
    elif has_power and times.total_ns < _MIN_SPAN_NS:
        yield Note.of(
            "Energy is not reported: {ns:ns} of {what} is too short for 1-second power samples.",
            ns=times.total_ns,
            what="steps" if n_steps else "the window",
        )
    elif has_power and not rows:
        yield Note("Energy is not reported: some of the steps have no power samples.")


ENERGY: Final = Analysis(
    "energy",
    ENERGY_SPEC,
    uses=(
        *("kernels", "samples", "devices", "environment", "processes", "copies", "ranges"),
        *("api_calls", "marks", "overheads", "host_ops"),
    ),
    whole=("samples", "kernels", "copies", "api_calls", "ranges", "marks"),
    of_steps=True,
    of_ranks=measure_energy,
)
