"""What one run says about scaling: its size, throughput, batch, and what a step is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite, nan
from typing import Final

import numpy as np
import pandas as pd

from traceprof.comparison.scaling.laws import Rate, mean_rate
from traceprof.comparison.scaling.losses import parts_of_step
from traceprof.model.results import Note
from traceprof.model.summary import Summary

ONE: Final = "one"
SYNCHRONISED: Final = "synchronised"
INDEPENDENT: Final = "independent"

SAMPLES: Final = "samples"
TOKENS: Final = "tokens"
STEPS: Final = "steps"
"""What a throughput counts."""

_SIZES: Final = ("gpus_count", "devices_count", "world_size", "ranks_count")
_SIZE_LABELS: Final = ("gpus", "devices", "ranks", "world_size")
_EFFICIENCIES: Final = ("efficiency_percent", "efficiency_ratio", "efficiency")
_SPEEDUPS: Final = ("speedup", "speedup_factor", "speed_up")


@dataclass(frozen=True, slots=True)
class ScalingPoint:
    """One run: NaN, None and "" are not known.

    ``devices`` is its size and ``recorded`` of how many ranks something is known. ``rate`` is of
    all devices, in samples, tokens or steps per s as ``counts`` says. ``parts`` are ns of one
    device and step by what was lost to (see `parts_of_step`), ``of_hosts``: of the hosts' phases.
    ``printed_percent`` is the efficiency that the source prints, ``speedup`` the printed speed-up
    over one device.
    """

    run: Summary
    devices: float
    nodes: float
    batch: float
    rate: Rate
    counts: str
    step_ns: float
    ranks: str
    parts: Mapping[str, int] = field(default_factory=dict)
    of_hosts: bool = False
    printed_percent: float = nan
    speedup: float = nan
    notes: tuple[Note, ...] = ()

    @property
    def counts_samples(self) -> bool:
        """Whether the rate is of what the devices share out, whatever a step is."""
        return self.counts in (SAMPLES, TOKENS)

    @property
    def is_factor(self) -> bool:
        """Whether the rate is none, but the printed speed-up over one device."""
        return isfinite(self.speedup) and self.rate.value == self.speedup

    def size(self, by_nodes: bool) -> float:
        """Return its size: devices, or nodes."""
        return self.nodes if by_nodes else self.devices


def point_of(run: Summary) -> ScalingPoint:
    """Return what ``run`` says."""
    devices, recorded = _devices(run), _recorded_ranks(run)
    kind, step_ns = ranks_of(run, devices), _step_ns(run)
    factor, notes = 1.0, []
    if recorded and kind != ONE and recorded < devices and len(run.table("steps")):
        factor = devices / recorded
        text = (
            "{run}: {recorded:count} of {n:count} ranks were recorded: throughput is taken for all "
            "as for them"
        )
        notes.append(Note.of(text, run=run.name, recorded=recorded, n=int(devices)))
    rate, counts = _rate(run, kind, factor)
    speedup = _first_printed(run, _SPEEDUPS)
    if not isfinite(rate.value) and isfinite(speedup):
        rate, counts = Rate(speedup), ""
    batch = _batch(run, devices, factor)
    if not isfinite(batch) and counts == SAMPLES and isfinite(step_ns):
        batch = rate.value * step_ns / 1e9
    parts, of_hosts = parts_of_step(run, in_step=kind != INDEPENDENT)
    known = (run, devices, _nodes(run), batch, rate, counts, step_ns, kind, parts, of_hosts)
    return ScalingPoint(*known, _printed_percent(run), speedup, tuple(notes))


def ranks_of(run: Summary, devices: float) -> str:
    """Return whether the ranks of a run keep step with one another; "" where that is not known.

    Ranks are independent where collectives were recorded and none was there.
    """
    if devices == 1:
        return ONE
    made = run.table("makeup")
    if len(made) and (made["part"] == "exposed_communication").any():
        return SYNCHRONISED
    collectives = run.results.get("collectives")
    count = None if collectives is None else collectives.scalars.get("count")
    if count is None or pd.isna(count):
        return ""
    return SYNCHRONISED if count > 0 else INDEPENDENT


def _number(value: float | None) -> float:
    return nan if value is None else value


def _devices(run: Summary) -> float:
    """Return how many devices worked: the most that anything says."""
    known = [_number(run.measure(name)) for name in _SIZES]
    known += [_labelled(run, name) for name in _SIZE_LABELS]
    known += [_number(run.devices_count), float(_recorded_ranks(run) or nan)]
    return max((value for value in known if isfinite(value) and value > 0), default=nan)


def _nodes(run: Summary) -> float:
    known = [_number(run.measure("nodes_count")), _labelled(run, "nodes")]
    nodes = run.table("lives")["node"]
    known.append(float(nodes[nodes != ""].nunique() or nan))
    return next((value for value in known if isfinite(value) and value > 0), nan)


def _labelled(run: Summary, name: str) -> float:
    try:
        return float(run.labels.get(name, ""))
    except ValueError:
        return nan


def _recorded_ranks(run: Summary) -> int:
    return int(run.table("steps")["rank"].nunique())


def _step_ns(run: Summary) -> float:
    for name in ("step_period_ns", "mean_step_ns"):
        if (value := run.measure(name)) is not None:
            return value
    rate = run.measure("steps_per_s")
    return 1e9 / rate if rate else nan


def _rate(run: Summary, kind: str, factor: float) -> tuple[Rate, str]:
    """Return the throughput of all devices, and what it counts."""
    if kind == INDEPENDENT and (own := _independent_rate(run)) is not None:
        return _times(own, factor), SAMPLES
    devices = _devices(run)
    sizes = {"": factor, "_per_device": devices, "_per_rank": devices, "_per_node": _nodes(run)}
    for counts in (SAMPLES, TOKENS):
        for each, size in sizes.items():
            rate = _measured(run, f"{counts}_per_s{each}")
            if isfinite(rate.value) and isfinite(size):
                return _times(rate, size), counts
    rate = _measured(run, "steps_per_s")
    if isfinite(rate.value):
        return rate, STEPS
    step_ns = _step_ns(run)
    return Rate(1e9 / step_ns if isfinite(step_ns) and step_ns > 0 else nan), STEPS


def _batch(run: Summary, devices: float, factor: float) -> float:
    """Return how many samples a step has on all devices."""
    batch = run.measure("global_batch_count")
    if batch is not None:
        return batch * factor
    return _number(run.measure("batch_per_device_count")) * devices


def _times(rate: Rate, factor: float) -> Rate:
    return Rate(rate.value * factor, rate.low * factor, rate.high * factor)


def _independent_rate(run: Summary) -> Rate | None:
    """Return the rates of independent ranks added up: the mean over them times their number."""
    steps = run.table("steps")
    if steps.empty or "samples_count" not in steps:
        return None
    steady = steps[~steps["is_warmup"].astype(bool)]
    sums = steady.groupby("rank")[["samples_count", "period_ns"]].sum(min_count=1).dropna()
    sums = sums[(sums > 0).all(axis=1)]
    if sums.empty:
        return None
    rates = (1e9 * sums["samples_count"] / sums["period_ns"]).astype(np.float64)
    return _times(mean_rate([Rate(value) for value in rates.tolist()]), len(rates))


def _measured(run: Summary, name: str) -> Rate:
    """Return a measure with its interval, as far as these are known."""
    rows = run.table("measures")
    rows = rows[(rows["measure"] == name).to_numpy()]
    ends = [rows[end].iloc[0] if len(rows) and end in rows else None for end in _ENDS]
    value, low, high = (nan if pd.isna(end) else float(end) for end in ends)
    return Rate(value, low, high) if isfinite(value) else Rate(nan)


_ENDS: Final = ("value", "low", "high")


def _first_printed(run: Summary, names: Sequence[str]) -> float:
    """Return a measure that a source prints, under whichever of ``names`` it is kept."""
    every = (run.measure(own) for name in names for own in (f"printed_{name}", name))
    return next((value for value in every if value is not None), nan)


def _printed_percent(run: Summary) -> float:
    for name in _EFFICIENCIES:
        value = _first_printed(run, (name,))
        if isfinite(value):
            return value if name.endswith("percent") else float(f"{100 * value:.10g}")
    return nan
