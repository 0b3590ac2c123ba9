"""What one run says about scaling: its size, throughput, batch, and what a step is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from math import isclose, isfinite, nan
from typing import Final

import numpy as np

from traceprof.comparison.scaling.laws import Rate, mean_rate
from traceprof.comparison.sides import (
    STEP,
    devices_of,
    ranks_count_of,
    shares_of,
    steady_steps,
    table_of,
    timed_steps,
    units_of,
)
from traceprof.measures.composition import NOT_IN_STEP, WAITING
from traceprof.measures.rows import Ints, Texts, floats
from traceprof.model.activity import IDLE
from traceprof.model.grouping import grouped_by
from traceprof.model.results import Note
from traceprof.model.summary import Summary
from traceprof.model.table import Column, Table, is_unknown, objects
from traceprof.names.ranges import PHASES, UNCLAIMED

_PART_LOSSES: Final = {
    "compute": "slower compute",
    "exposed_communication": "exposed communication",
    "exposed_transfer": "exposed transfers",
    "device_memory": "device memory",
    IDLE: "other idle",
}
_STRAGGLERS: Final = "waiting for stragglers"
_STARTING: Final = "ranks not in step yet"
_INPUT: Final = "waiting for input"
OUTSIDE: Final = "outside the window"
"""What the throughputs differ in and the steps of the windows do not."""

_HOST: Final = "host: {}"
LOSSES: Final = (
    *(_PART_LOSSES["exposed_communication"], _STRAGGLERS, _STARTING, _PART_LOSSES["compute"]),
    *(_PART_LOSSES["exposed_transfer"], _PART_LOSSES["device_memory"], _INPUT, _PART_LOSSES[IDLE]),
    *(_HOST.format(phase) for phase in (*PHASES, UNCLAIMED)),
    OUTSIDE,
)
"""All that efficiency can be lost to."""


def parts_of_step(run: Summary, *, in_step: bool = True) -> tuple[Mapping[str, int], bool]:
    """Return ns of one device and step by what they are, and whether hosts stand for devices.

    Nothing where the contents of the window, or its steps, are not known. Of a run without
    devices it is the time of the hosts' phases, which add up to the window, too. Ranks that are
    not ``in_step`` do not fill the window that holds them all: what is at its edges is left out.
    """
    made, devices, steps = run.table("makeup"), run.devices_count, units_of(run, STEP)
    if not steps:
        return {}, False
    if devices and len(made):
        if not in_step:
            made = made.take(made["kind"] != "edge")
        return shared_out(_sum_by_name(_loss_names(made), made["ns"]), devices * steps), False
    phases = run.results.get("phases")
    if phases is None or phases.table.empty or "host_ns" not in phases.table:
        return {}, False
    table = phases.table
    if not in_step:
        table = table.take(table["phase"] != UNCLAIMED)
    n = steps * len(set(table["process"].tolist()))
    totals = _sum_by_name(table["phase"], table["host_ns"])
    return shared_out({_HOST.format(phase): ns for phase, ns in totals.items() if ns}, n), True


def _sum_by_name(names: Column, ns: Ints) -> dict[str, int]:
    """Return the sum of each name, in the order of these."""
    keys, groups = grouped_by(Table({"name": names}), "name")
    return dict(zip(keys["name"], groups.sums(ns).tolist(), strict=True))


def _loss_names(made: Table) -> Texts:
    """Return what each row of the composition would be lost to."""
    part, kind, name = (np.asarray(made[column]) for column in ("part", "kind", "name"))
    losses = objects(_PART_LOSSES[one] for one in part)
    losses[(kind == WAITING) | ((part == IDLE) & (kind == "peer"))] = _STRAGGLERS
    losses[(kind == WAITING) & (name == NOT_IN_STEP)] = _STARTING
    losses[(part == IDLE) & (kind == "data")] = _INPUT
    return losses


def shared_out(totals: Mapping[str, int], n: int) -> dict[str, int]:
    """Return the ``n``-th part of each, by floor of the cumulated share: sums stay exact."""
    shares = shares_of(np.array(list(totals.values()), np.int64), n)
    return dict(zip(totals, shares.tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class Loss:
    """What took longer: ns of a step of one device, and of the base for as many samples."""

    name: str
    actual_ns: int
    base_ns: int

    @property
    def lost_ns(self) -> int:
        """How much longer."""
        return self.actual_ns - self.base_ns


def split_losses(
    parts: Mapping[str, int], base_parts: Mapping[str, int], share: float, efficiency: float
) -> list[Loss]:
    """Return what a step takes longer than the base's for as many samples, by what it is.

    ``own`` and ``base`` are the ns of a step's parts. ``share`` is how many samples a device has in
    a step, of those in the base: 1 in weak scaling, the fewer the more devices in strong scaling.
    All together are 1 - ``efficiency`` of the own step; what the throughputs differ in and the
    steps of the windows do not is `OUTSIDE`. Nothing where one of them is not known.
    """
    if not (parts and base_parts and isfinite(share) and isfinite(efficiency)):
        return []
    names = [name for name in LOSSES if name in parts or name in base_parts]
    reached = accumulate((base_parts.get(name, 0) for name in names), initial=0)
    # Rounded where they are added up, so that the parts are the whole.
    ends = [round(share * ns) for ns in reached]
    usual = [after - before for before, after in pairwise(ends)]
    found = [Loss(name, parts.get(name, 0), ns) for name, ns in zip(names, usual, strict=True)]
    outside = Loss(OUTSIDE, 0, round(efficiency * sum(parts.values())) - ends[-1])
    return [*found, outside] if outside.base_ns else found


ONE: Final = "one"
SYNCHRONISED: Final = "synchronised"
INDEPENDENT: Final = "independent"

SAMPLES: Final = "samples"
TOKENS: Final = "tokens"
STEPS: Final = "steps"
"""What a throughput counts."""

_SIZE_LABELS: Final = ("gpus", "devices", "ranks", "world_size")
_EFFICIENCIES: Final = ("efficiency_percent", "efficiency_ratio", "efficiency")
_SPEEDUPS: Final = ("speedup", "speedup_factor", "speed_up")


@dataclass(frozen=True, slots=True)
class ScalingPoint:
    """One run: NaN, None and "" are not known.

    ``size`` is what it is told by, its devices or its nodes. ``rate`` is of all devices, in
    samples, tokens or steps per s as ``counts`` says. ``parts`` are ns of one device and step by
    what was lost to (see `parts_of_step`), ``of_hosts``: of the hosts' phases.
    ``printed_percent`` is the efficiency that the source prints, ``speedup`` the printed speed-up
    over one device. ``factor`` is how many times the recorded devices all of them are.
    """

    run: Summary
    size: float
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
    factor: float = 1.0

    def of_step(self, name: str) -> float:
        """Return a measure of a step that adds up over devices, of all; NaN: not known of all."""
        recorded = self.run.devices_count
        if recorded is not None and not isclose(recorded * self.factor, self.devices):
            return nan
        return or_nan(self.run.measure(name)) * self.factor

    @property
    def counts_samples(self) -> bool:
        """Whether the rate is of what the devices share out, whatever a step is."""
        return self.counts in (SAMPLES, TOKENS)

    @property
    def is_factor(self) -> bool:
        """Whether the rate is none, but the printed speed-up over one device."""
        return isfinite(self.speedup) and self.rate.value == self.speedup


def point_of(run: Summary, *, by_nodes: bool) -> ScalingPoint:
    """Return what ``run`` says; its size are its nodes or its devices."""
    devices, nodes, recorded = _devices(run), _nodes(run), ranks_count_of(run)
    size = nodes if by_nodes else devices
    kind, step_ns = ranks_of(run, devices), _step_ns(run)
    factor, notes = 1.0, []
    if recorded and kind != ONE and recorded < devices and len(run.table("steps")):
        factor = devices / recorded
        text = (
            "{run}: {recorded:count} of {n:count} ranks were recorded. traceprof assumes the same "
            "throughput for the other ranks."
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
    known = (run, size, devices, nodes, batch, rate, counts, step_ns, kind, parts, of_hosts)
    return ScalingPoint(*known, _printed_percent(run), speedup, tuple(notes), factor)


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
    if count is None or is_unknown(count):
        return ""
    return SYNCHRONISED if count > 0 else INDEPENDENT


def or_nan(value: float | None) -> float:
    """Return a number as it is; NaN where it is not known."""
    return nan if value is None else float(value)


def _devices(run: Summary) -> float:
    """Return how many devices worked: the most that anything says."""
    known = [devices_of(run), *(_label_number(run, name) for name in _SIZE_LABELS)]
    known.append(float(ranks_count_of(run) or nan))
    return max((value for value in known if isfinite(value) and value > 0), default=nan)


def _nodes(run: Summary) -> float:
    known = [or_nan(run.measure("nodes_count")), _label_number(run, "nodes")]
    nodes = set(run.table("lives").known("node")["node"]) - {""}
    known.append(float(len(nodes) or nan))
    return next((value for value in known if isfinite(value) and value > 0), nan)


def _label_number(run: Summary, name: str) -> float:
    try:
        return float(run.labels.get(name, ""))
    except ValueError:
        return nan


def _step_ns(run: Summary) -> float:
    for name in ("step_period_ns", "mean_step_ns"):
        if (value := run.measure(name)) is not None:
            return value
    rate = run.measure("steps_per_s")
    return 1e9 / rate if rate else nan


def _rate(run: Summary, kind: str, factor: float) -> tuple[Rate, str]:
    """Return the throughput of all devices, and what it counts."""
    if kind == INDEPENDENT and (independent := _independent_rate(run)) is not None:
        return _scale_rate(independent, factor), SAMPLES
    devices = _devices(run)
    sizes = {"": factor, "_per_device": devices, "_per_rank": devices, "_per_node": _nodes(run)}
    for counts in (SAMPLES, TOKENS):
        for each, size in sizes.items():
            rate = _measured_rate(run, f"{counts}_per_s{each}")
            if isfinite(rate.value) and isfinite(size):
                return _scale_rate(rate, size), counts
    rate = _measured_rate(run, "steps_per_s")
    if isfinite(rate.value):
        return rate, STEPS
    step_ns = _step_ns(run)
    return Rate(1e9 / step_ns if isfinite(step_ns) and step_ns > 0 else nan), STEPS


def _batch(run: Summary, devices: float, factor: float) -> float:
    """Return how many samples a step has on all devices."""
    batch = run.measure("global_batch_count")
    if batch is not None:
        return batch * factor
    return or_nan(run.measure("batch_per_device_count")) * devices


def _scale_rate(rate: Rate, factor: float) -> Rate:
    return Rate(rate.value * factor, rate.low * factor, rate.high * factor)


def _independent_rate(run: Summary) -> Rate | None:
    """Return the rates of independent ranks added up: the mean over them times their number."""
    steps = run.table("steps")
    if steps.empty or "samples_count" not in steps:
        return None
    timed = timed_steps(steady_steps(steps))
    _, groups = grouped_by(timed, "rank")
    samples, times = (groups.sums(timed[name]) for name in ("samples_count", "period_ns"))
    known = (samples > 0) & (times > 0)
    if not known.any():
        return None
    rates = 1e9 * samples[known] / times[known]
    return _scale_rate(mean_rate([Rate(value) for value in rates.tolist()]), len(rates))


def _measured_rate(run: Summary, name: str) -> Rate:
    """Return a measure with its interval, as far as these are known."""
    rows = table_of(run, "measures")
    found = floats(rows, "value", "low", "high", rows=rows["measure"] == name)
    value, low, high = (values.tolist()[0] if len(values) else nan for values in found)
    return Rate(value, low, high) if isfinite(value) else Rate(nan)


def _first_printed(run: Summary, names: Sequence[str]) -> float:
    """Return a measure that a source prints, under whichever of ``names`` it is kept."""
    every = (run.measure(measure) for name in names for measure in (f"printed_{name}", name))
    return next((value for value in every if value is not None), nan)


def _printed_percent(run: Summary) -> float:
    for name in _EFFICIENCIES:
        value = _first_printed(run, (name,))
        if isfinite(value):
            return value if name.endswith("percent") else float(f"{100 * value:.10g}")
    return nan
