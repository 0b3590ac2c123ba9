"""Energy by samples of power, and what a run costs: for each step, sample and token.

NVML's power is of the whole board. From Ampere on, but for the A100 and its kin, it is the mean of
the last second, so that nothing shorter than a second or two has an energy of its own: power is
integrated over all steady steps of the recording, and shared out evenly.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from traceprof.errors import NotRecordedError
from traceprof.hardware.catalogue import Stated
from traceprof.measures.analyses import Analysis
from traceprof.measures.device.counters import samples_named
from traceprof.measures.rows import Floats, Ints
from traceprof.measures.steps.find import steps_of_ranks
from traceprof.measures.steps.measured import measured_steps, typical_step_ns
from traceprof.model.ranks import Ranks, gpus_of
from traceprof.model.results import Note, Result, ResultSpec
from traceprof.model.timing import TimeWindow

ENERGY_SPEC: Final = ResultSpec.of("""
    table energy: one row per GPU: power over the steady steps of the whole recording, or over the
        window where no steps are known
    key device: the number of the device in the run
    same name: what it is
    same span_ns: how long that is
    same joules [number]: power integrated over that time
    same mean_watts [number]: the mean power
    same most_watts [number]: the most that was sampled
    same idle_watts [number]: the least that was sampled anywhere in the recording: at rest
    same idle_joules [number]: what it would have drawn at rest in that time
    table units: what one of each takes on all GPUs together
    key per: a step; a thousand steps; a million samples or tokens
    same duration_ns: how long it takes, at the length of a typical step
    same joules [number]: the energy of all GPUs
    same cost [number]: what all GPUs cost in that time, at the price that was given for each
    scalars:
    same steps_count: over how many steps power was integrated
    same gpus_count: how many GPUs
    """)
_POWER: Final = re.compile("^power_watts$")
_AT_ONCE: Final = re.compile(r"\b(A100|A800|A30|V100|P100|T4|Quadro RTX|TITAN|RTX 20\d\d)\b")
"""GPUs whose driver tells power of milliseconds, not the mean of a second."""
_HALF_SECOND_NS: Final = 500_000_000
_SHORTEST_NS: Final = 1_000_000_000
_MOST_PERIODS: Final = 3
_THOUSAND, _MILLION = 1_000, 1_000_000
_HOUR_NS: Final = 3_600_000_000_000


def measure_energy(ranks: Ranks) -> Result:
    """Return the energy of each GPU, and energy and cost of a step, a sample and a token."""
    stated = ranks.hardware.stated if ranks.hardware is not None else Stated()
    span, n_steps = _span(ranks)
    rows = list(_devices(ranks, span)) if span.duration_ns >= _SHORTEST_NS else []
    gpus = gpus_of(ranks)
    n_gpus = max(1, len(set(gpus.values())))
    has_power = len(samples_named(ranks, _POWER)) > 0
    if not has_power and stated.price_per_h is None:
        raise NotRecordedError(
            "no power was sampled: record with `traceprof record` where NVML is; --price tells "
            "what a step costs without it"
        )
    is_whole = bool(rows) and len(rows) == n_gpus
    joules = sum(row["joules"] for row in rows) if is_whole and n_steps else np.nan
    units = list(_units(ranks, stated, joules / max(1, n_steps), n_gpus))
    found = Result(
        "energy",
        ENERGY_SPEC,
        {
            "energy": ENERGY_SPEC.tables[0].of_rows(rows),
            "units": ENERGY_SPEC.table("units").of_rows(units),
        },
        {"steps_count": n_steps, "gpus_count": n_gpus},
    )
    return found.with_notes(*_notes(rows, span, n_steps, has_power=has_power))


def _span(ranks: Ranks) -> tuple[TimeWindow, int]:
    """Return from the first to the last steady step of the whole recording, and how many."""
    steps = steps_of_ranks(ranks.whole)
    table = steps.table.take(~steps.warmup()) if len(steps) else steps.table
    if table.empty:
        return ranks.span, 0
    start, end = int(table["start_ns"].min()), int(table["next_ns"].max())
    counts = np.unique(table["process"], return_counts=True)[1]
    return TimeWindow(start, end), int(counts.max())


def _devices(ranks: Ranks, span: TimeWindow) -> Iterator[dict[str, Any]]:
    """Yield a row for each GPU whose power is known all the time."""
    power = samples_named(ranks, _POWER)
    seen = set()
    for device, gpu in gpus_of(ranks).items():
        own = power.take(power["source"] == f"gpu:{device}").in_order("start_ns")
        if gpu in seen or len(own) < 2:
            continue
        name = gpu[2]
        delay = 0 if _AT_ONCE.search(name) else _HALF_SECOND_NS
        times, watts = own["start_ns"] - delay, own["value"]
        joules = integrated(times, watts, span)
        if joules is None:
            continue
        seen.add(gpu)
        inside = watts[(times >= span.start_ns) & (times <= span.end_ns)]
        seconds = span.duration_ns / 1e9
        yield {
            "device": device,
            "name": name,
            "span_ns": span.duration_ns,
            "joules": joules,
            "mean_watts": joules / seconds,
            "most_watts": float(inside.max()) if len(inside) else np.nan,
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


def _units(ranks: Ranks, stated: Stated, joules: float, n_gpus: int) -> Iterator[dict[str, Any]]:
    """Yield what a step takes, and many samples and tokens."""
    if not len(steps_of_ranks(ranks.whole)):
        return
    step_ns = typical_step_ns(ranks)
    scalars = measured_steps(ranks).scalars
    rate = scalars.get("undisturbed_samples_per_s", scalars.get("mean_samples_per_s"))
    per_step = {"a step": 1.0, "1 000 steps": float(_THOUSAND)}
    if rate:
        per_step["a million samples"] = _MILLION / (rate * step_ns / 1e9)
    if stated.tokens:
        per_step["a million tokens"] = _MILLION / stated.tokens
    price = np.nan if stated.price_per_h is None else stated.price_per_h
    for unit, steps in per_step.items():
        ns = step_ns * steps
        yield {
            "per": unit,
            "duration_ns": ns,
            "joules": joules * steps,
            "cost": price * n_gpus * ns / _HOUR_NS,
        }


def _notes(
    rows: list[dict[str, Any]], span: TimeWindow, n_steps: int, *, has_power: bool
) -> Iterator[Note]:
    if rows and n_steps:
        yield Note.of(
            "power over {n:count} steady steps of the whole recording, {ns:ns}, shared out evenly; "
            "it is of the whole board, right to about 5 %, over few seconds to about 10 %",
            n=n_steps,
            ns=span.duration_ns,
        )
    elif has_power and span.duration_ns < _SHORTEST_NS:
        text = "no energy: {ns:ns} of {what} are too short for power that is the mean of a second"
        yield Note.of(text, ns=span.duration_ns, what="steps" if n_steps else "the window")
    elif has_power and not rows:
        yield Note("no energy: samples of power are missing for a part of the steps")


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
