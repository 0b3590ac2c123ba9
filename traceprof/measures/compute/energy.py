"""Energy by samples of power, and what a run costs: for each step, sample and token.

NVML's power is of the whole board. From Ampere on, but for the A100 and its kin, it is the mean of
the last second, so that nothing shorter than a second or two has an energy of its own: power is
integrated over all steady steps of the recording, and shared out evenly.
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
from traceprof.measures.steps.base import base_of
from traceprof.measures.steps.epochs import epochs_of_ranks
from traceprof.measures.steps.find import steps_of_ranks
from traceprof.model.ranks import Ranks, gpus_of
from traceprof.model.results import Note, Result, ResultSpec
from traceprof.model.table import Table
from traceprof.model.timing import TimeWindow

ENERGY_SPEC: Final = ResultSpec.of("""
    table energy: one row per GPU: power over the steady steps of the whole recording, or over the
        window if no steps are known
    key device: number of the GPU in the run
    same name: name of the GPU
    same span_ns: duration of that period
    same joules [number]: energy: power integrated over the period
    same mean_watts [number]: mean power
    same max_watts [number]: highest sampled power
    same idle_watts [number]: lowest sampled power in the recording, used as the idle power
    same idle_joules [number]: energy at idle power over the period
    table units: energy and cost per unit, over all GPUs
    key per: a step; 1,000 steps; a sample or token; a million samples or tokens; an epoch, if a
        complete epoch was recorded
    same duration_ns: duration at the typical step time; for an epoch, the mean duration of the
        complete epochs
    same joules [number]: energy of all GPUs
    same idle_joules [number]: part of the energy that the GPUs would use at idle
    same cost [number]: cost of all GPUs at the specified price
    scalars:
    same steps_count: number of steps in the period
    same gpus_count: number of GPUs
    """)
_POWER: Final = re.compile("^power_watts$")
_AT_ONCE: Final = re.compile(r"\b(A100|A800|A30|V100|P100|T4|Quadro RTX|TITAN|RTX 20\d\d)\b")
"""GPUs whose driver tells power of milliseconds, not the mean of a second."""
_HALF_SECOND_NS: Final = 500_000_000
_SHORTEST_NS: Final = 1_000_000_000
_MOST_PERIODS: Final = 3
_HOUR_NS: Final = 3_600_000_000_000


def measure_energy(ranks: Ranks) -> Result:
    """Return the energy of each GPU, and energy and cost of a step, a sample and a token."""
    stated = ranks.hardware.stated if ranks.hardware is not None else Stated()
    span, n_steps = _span(ranks)
    rows = list(_devices(ranks, span)) if span.duration_ns >= _SHORTEST_NS else []
    n_gpus = max(1, len(set(gpus_of(ranks).values())))
    has_power = len(samples_named(ranks, _POWER)) > 0
    if not has_power and stated.price_per_h is None:
        raise NotRecordedError(
            "the trace contains no power samples: record with `traceprof record` on a machine with "
            "NVML, or use --price to report the cost of a step without energy"
        )
    is_whole = len(rows) == n_gpus and n_steps
    of_step = [
        sum(row[name] for row in rows) / n_steps if is_whole else np.nan
        for name in ("joules", "idle_joules")
    ]
    every = [*_units(ranks, stated, of_step), *_epoch(ranks, n_gpus)]
    units = Table.of_rows(every, ("per", "duration_ns", "joules", "idle_joules"))
    price = np.nan if stated.price_per_h is None else stated.price_per_h * n_gpus / _HOUR_NS
    units = units.assign(cost=price * units["duration_ns"].astype(np.float64))
    found = Result(
        "energy",
        ENERGY_SPEC,
        {
            "energy": ENERGY_SPEC.tables[0].of_rows(rows),
            "units": ENERGY_SPEC.table("units").of_rows(units),
        },
        {"steps_count": n_steps, "gpus_count": n_gpus},
    )
    step_ns = base_of(ranks).step_ns if n_steps else 0.0
    return found.with_notes(*_notes(rows, span, n_steps, step_ns, has_power=has_power))


def _span(ranks: Ranks) -> tuple[TimeWindow, int]:
    """Return from the first to the last steady step of the whole recording, and how many."""
    steps = steps_of_ranks(ranks.whole)
    table = steps.table.take(~steps.warmup()) if len(steps) else steps.table
    if table.empty:
        return ranks.span, 0
    start, end = int(table["start_ns"].min()), int(table["next_ns"].max())
    counts = np.unique(table["process"], return_counts=True)[1]
    return TimeWindow(start, end), int(counts.max())


def _powers(ranks: Ranks) -> Iterator[tuple[int, str, Ints, Floats]]:
    """Yield the first device of each GPU with power: its number and name, times and watts."""
    power = samples_named(ranks, _POWER)
    seen = set()
    for device, gpu in gpus_of(ranks).items():
        own = power.take(power["source"] == f"gpu:{device}").in_order("start_ns")
        if gpu in seen or len(own) < 2:
            continue
        seen.add(gpu)
        delay = 0 if _AT_ONCE.search(gpu[2]) else _HALF_SECOND_NS
        yield device, gpu[2], own["start_ns"] - delay, own["value"]


def _devices(ranks: Ranks, span: TimeWindow) -> Iterator[dict[str, Any]]:
    """Yield a row for each GPU whose power is known all the time."""
    seconds = span.duration_ns / 1e9
    for device, name, times, watts in _powers(ranks):
        joules = integrated(times, watts, span)
        if joules is None:
            continue
        inside = watts[(times >= span.start_ns) & (times <= span.end_ns)]
        yield {
            "device": device,
            "name": name,
            "span_ns": span.duration_ns,
            "joules": joules,
            "mean_watts": joules / seconds,
            "max_watts": float(inside.max()) if len(inside) else np.nan,
            "idle_watts": float(watts.min()),
            "idle_joules": float(watts.min()) * seconds,
        }


def integrated(times_ns: Ints, watts: Floats, span: TimeWindow) -> float | None:
    """Return the joules over a span by trapezoids; None where samples are missing for long.

    Before the first and after the last sample power is that of the next one, for a period at most.
    """
    gaps = np.diff(times_ns)
    period = float(np.median(gaps)) if len(gaps) else 0.0
    longest = _MOST_PERIODS * period
    first = int(np.searchsorted(times_ns, span.start_ns))
    last = int(np.searchsorted(times_ns, span.end_ns, side="right"))
    inside = times_ns[first:last]
    at = np.concatenate(([span.start_ns], inside, [span.end_ns])).astype(np.float64)
    around = times_ns[max(0, first - 1) : last + 1]
    if not len(around) or np.diff(around).max(initial=0) > longest:
        return None
    if around[0] - span.start_ns > period or span.end_ns - around[-1] > period:
        return None
    values = np.interp(at, times_ns.astype(np.float64), watts)
    return float(np.trapezoid(values, at) / 1e9)


def _units(ranks: Ranks, stated: Stated, of_step: Sequence[float]) -> Iterator[dict[str, Any]]:
    """Yield what a step takes, ``of_step`` joules and of them at rest, and samples and tokens."""
    if not len(steps_of_ranks(ranks.whole)):
        return
    base = base_of(ranks)
    step_ns = base.step_ns
    per_step = {"a step": 1.0, "1,000 steps": 1e3}
    for unit, n in ("sample", np.nan_to_num(base.samples_count)), ("token", stated.tokens):
        per_step |= {f"a {unit}": 1 / n, f"a million {unit}s": 1e6 / n} if n else {}
    for unit, steps in per_step.items():
        joules, idle = (steps * own for own in of_step)
        length = step_ns * steps
        yield {"per": unit, "duration_ns": length, "joules": joules, "idle_joules": idle}


def _epoch(ranks: Ranks, n_gpus: int) -> Iterator[dict[str, Any]]:
    """Yield what an epoch takes, the mean of those that were recorded whole."""
    epochs = epochs_of_ranks(ranks.whole)
    if epochs.empty or not epochs["is_whole"].any():
        return
    starts, ends = bounds(epochs.take(epochs["is_whole"]))
    spans = list(map(TimeWindow, starts.tolist(), ends.tolist()))
    powers = list(_powers(ranks))
    parts = [integrated(times, watts, span) for _, _, times, watts in powers for span in spans]
    known = [part for part in parts if part is not None]
    joules = sum(known) / len(spans) if len(known) == n_gpus * len(spans) else np.nan
    length = float((ends - starts).mean())
    rest = sum(float(watts.min()) for _, _, _, watts in powers) * length / 1e9
    idle = rest if joules == joules else np.nan
    yield {"per": "an epoch", "duration_ns": length, "joules": joules, "idle_joules": idle}


def _notes(
    rows: list[dict[str, Any]], span: TimeWindow, n_steps: int, step_ns: float, *, has_power: bool
) -> Iterator[Note]:
    if rows and n_steps:
        yield Note.of(
            "Energy is the mean over {n:count} steady steps of the whole recording ({ns:ns}). "
            "Power is for the whole board, accurate to about 5% (about 10% over a few seconds).",
            n=n_steps,
            ns=span.duration_ns,
        )
        each = span.duration_ns / n_steps
        if abs(each - step_ns) > 0.05 * step_ns:
            text = "Energy is for the mean step period of {each:ns}. Times and costs are for a "
            yield Note.of(f"{text}typical step.", each=each)
    elif has_power and span.duration_ns < _SHORTEST_NS:
        text = "Energy is not reported: {ns:ns} of {what} is too short for 1-second power samples."
        yield Note.of(text, ns=span.duration_ns, what="steps" if n_steps else "the window")
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
