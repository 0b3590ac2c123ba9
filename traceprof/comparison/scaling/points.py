"""Size, throughput, batch, and step composition of one run, for scaling."""

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
_STARTING: Final = "ranks not synchronized yet"
_INPUT: Final = "waiting for input"
OUTSIDE: Final = "outside the window"
"""Loss for a difference of throughputs that the steps in the windows do not show."""

_HOST: Final = "host: {}"
LOSSES: Final = (
    *(_PART_LOSSES["exposed_communication"], _STRAGGLERS, _STARTING, _PART_LOSSES["compute"]),
    *(_PART_LOSSES["exposed_transfer"], _PART_LOSSES["device_memory"], _INPUT, _PART_LOSSES[IDLE]),
    *(_HOST.format(phase) for phase in (*PHASES, UNCLAIMED)),
    OUTSIDE,
)
"""All kinds of losses, in the order in which they are added up."""


def parts_of_step(run: Summary, *, in_step: bool = True) -> tuple[Mapping[str, int], bool]:
    """Return the ns per step and device by loss, and whether they are from host phases.

    The result is empty if the composition of the window or its steps are unknown. Without GPU
    activity, host phases are used, which also add up to the window. Ranks that are not ``in_step``
    do not fill their common window, so the parts at its edges are dropped.
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
    """Return the sum of each name, in order of the names."""
    keys, groups = grouped_by(Table({"name": names}), "name")
    return dict(zip(keys["name"], groups.sums(ns).tolist(), strict=True))


def _loss_names(made: Table) -> Texts:
    """Return the loss of each row of the composition."""
    part, kind, name = (np.asarray(made[column]) for column in ("part", "kind", "name"))
    losses = objects(_PART_LOSSES[part_name] for part_name in part)
    is_waiting = (kind == WAITING) | ((part == IDLE) & ((kind == "peer") | (kind == "role")))
    losses[is_waiting] = _STRAGGLERS
    losses[(kind == WAITING) & (name == NOT_IN_STEP)] = _STARTING
    losses[(part == IDLE) & (kind == "data")] = _INPUT
    return losses


def shared_out(totals: Mapping[str, int], n: int) -> dict[str, int]:
    """Divide each total by ``n`` with the floor of the cumulated share, so sums stay exact."""
    shares = shares_of(np.array(list(totals.values()), np.int64), n)
    return dict(zip(totals, shares.tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class Loss:
    """A part of a step of one device, and the same part of the base for as many samples, in ns."""

    name: str
    actual_ns: int
    base_ns: int

    @property
    def lost_ns(self) -> int:
        """The time lost to this part."""
        return self.actual_ns - self.base_ns


def split_losses(
    parts: Mapping[str, int], base_parts: Mapping[str, int], share: float, efficiency: float
) -> list[Loss]:
    """Compare the parts of a step with those of the base for as many samples.

    ``parts`` and ``base_parts`` are ns per step. ``share`` is the number of samples per device and
    step as a ratio of the base: 1 in weak scaling, less with more devices in strong scaling. The
    losses add up to 1 - ``efficiency`` of the step; `OUTSIDE` is the difference between throughputs
    and steps in the windows. The result is empty if an input is unknown.
    """
    if not (parts and base_parts and isfinite(share) and isfinite(efficiency)):
        return []
    names = [name for name in LOSSES if name in parts or name in base_parts]
    reached = accumulate((base_parts.get(name, 0) for name in names), initial=0)
    # Cumulated times are rounded, so that the parts add up to the total.
    ends = [round(share * ns) for ns in reached]
    base_times = [after - before for before, after in pairwise(ends)]
    found = [Loss(name, parts.get(name, 0), ns) for name, ns in zip(names, base_times, strict=True)]
    outside = Loss(OUTSIDE, 0, round(efficiency * sum(parts.values())) - ends[-1])
    return [*found, outside] if outside.base_ns else found


ONE: Final = "one"
SYNCHRONIZED: Final = "synchronized"
INDEPENDENT: Final = "independent"

SAMPLES: Final = "samples"
TOKENS: Final = "tokens"
STEPS: Final = "steps"
"""Units of a throughput."""

_SIZE_LABELS: Final = ("gpus", "devices", "ranks", "world_size")
_EFFICIENCIES: Final = ("efficiency_percent", "efficiency_ratio", "efficiency")
_SPEEDUPS: Final = ("speedup", "speedup_factor", "speed_up")


@dataclass(frozen=True, slots=True)
class ScalingPoint:
    """One run; NaN, None and "" mean unknown.

    ``size`` is the number of devices or nodes, depending on the comparison. ``rate`` is the
    throughput of all devices in samples, tokens or steps per s, as ``counts`` says. ``parts`` are
    ns per step and device by loss (see `parts_of_step`); ``of_hosts``: they are from host phases.
    ``printed_percent`` is the efficiency that the source prints, and ``speedup`` the printed
    speedup over one device. ``factor`` is the number of devices divided by the number of recorded
    devices.
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
        """Return an additive measure per step over all devices; NaN if devices are missing."""
        recorded = self.run.devices_count
        if recorded is not None and not isclose(recorded * self.factor, self.devices):
            return nan
        return or_nan(self.run.measure(name)) * self.factor

    @property
    def counts_samples(self) -> bool:
        """Whether the rate counts samples or tokens, so that it is independent of the batch."""
        return self.counts in (SAMPLES, TOKENS)

    @property
    def is_factor(self) -> bool:
        """Whether the rate is a printed speedup over one device instead of a throughput."""
        return isfinite(self.speedup) and self.rate.value == self.speedup


def point_of(run: Summary, *, by_nodes: bool) -> ScalingPoint:
    """Return the scaling data of ``run``; its size is the number of nodes or devices."""
    devices, nodes, recorded = _devices(run), _nodes(run), ranks_count_of(run)
    kind, step_ns = ranks_of(run, devices), _step_ns(run)
    factor, notes = 1.0, []
    if recorded and kind != ONE and recorded < devices and len(run.table("steps")):
        factor = devices / recorded
        notes.append(
            Note.of(
                "{run}: {recorded:count} of {n:count} ranks were recorded. traceprof assumes the "
                "same throughput for the other ranks.",
                run=run.name,
                recorded=recorded,
                n=int(devices),
            )
        )
    rate, counts = _rate(run, kind, factor)
    speedup = _first_printed(run, _SPEEDUPS)
    if not isfinite(rate.value) and isfinite(speedup):
        rate, counts = Rate(speedup), ""
    batch = _batch(run, devices, factor)
    if not isfinite(batch) and counts == SAMPLES and isfinite(step_ns):
        batch = rate.value * step_ns / 1e9
    parts, of_hosts = parts_of_step(run, in_step=kind != INDEPENDENT)
    return ScalingPoint(
        run=run,
        size=nodes if by_nodes else devices,
        devices=devices,
        nodes=nodes,
        batch=batch,
        rate=rate,
        counts=counts,
        step_ns=step_ns,
        ranks=kind,
        parts=parts,
        of_hosts=of_hosts,
        printed_percent=_printed_percent(run),
        speedup=speedup,
        notes=tuple(notes),
        factor=factor,
    )


def ranks_of(run: Summary, devices: float) -> str:
    """Return whether the ranks of a run are synchronized; "" if unknown.

    Ranks are independent if collectives were recorded and there are none.
    """
    if devices == 1:
        return ONE
    made = run.table("makeup")
    if len(made) and (made["part"] == "exposed_communication").any():
        return SYNCHRONIZED
    collectives = run.results.get("collectives")
    count = None if collectives is None else collectives.scalars.get("count")
    if count is None or is_unknown(count):
        return ""
    return SYNCHRONIZED if count > 0 else INDEPENDENT


def or_nan(value: float | None) -> float:
    """Return a number as a float; NaN if it is unknown."""
    return nan if value is None else float(value)


def _devices(run: Summary) -> float:
    """Return the number of devices: the maximum over all sources."""
    known = [devices_of(run), *(_label_number(run, name) for name in _SIZE_LABELS)]
    known.append(float(ranks_count_of(run) or nan))
    return max((value for value in known if isfinite(value) and value > 0), default=nan)


def _nodes(run: Summary) -> float:
    """Return the number of nodes, from the first source that has it; NaN if unknown."""
    known = [or_nan(run.measure("nodes_count")), _label_number(run, "nodes")]
    nodes = set(run.table("attempts").known("node")["node"]) - {""}
    known.append(float(len(nodes) or nan))
    return next((value for value in known if isfinite(value) and value > 0), nan)


def _label_number(run: Summary, name: str) -> float:
    """Return a label as a number; NaN if it is missing or not a number."""
    try:
        return float(run.labels.get(name, ""))
    except ValueError:
        return nan


def _step_ns(run: Summary) -> float:
    """Return the mean step time in ns; NaN if unknown."""
    for name in ("step_period_ns", "mean_step_ns"):
        if (value := run.measure(name)) is not None:
            return value
    rate = run.measure("steps_per_s")
    return 1e9 / rate if rate else nan


def _rate(run: Summary, kind: str, factor: float) -> tuple[Rate, str]:
    """Return the throughput of all devices, and the unit that it counts."""
    if kind == INDEPENDENT and (independent := _independent_rate(run)) is not None:
        return _scale_rate(independent, factor), SAMPLES
    devices = _devices(run)
    sizes = {"": factor, "_per_device": devices, "_per_rank": devices, "_per_node": _nodes(run)}
    for counts in (SAMPLES, TOKENS):
        for suffix, size in sizes.items():
            rate = _measured_rate(run, f"{counts}_per_s{suffix}")
            if isfinite(rate.value) and isfinite(size):
                return _scale_rate(rate, size), counts
    rate = _measured_rate(run, "steps_per_s")
    if isfinite(rate.value):
        return rate, STEPS
    step_ns = _step_ns(run)
    return Rate(1e9 / step_ns if isfinite(step_ns) and step_ns > 0 else nan), STEPS


def _batch(run: Summary, devices: float, factor: float) -> float:
    """Return the number of samples per step on all devices; NaN if unknown."""
    batch = run.measure("global_batch_count")
    if batch is not None:
        return batch * factor
    return or_nan(run.measure("batch_per_device_count")) * devices


def _scale_rate(rate: Rate, factor: float) -> Rate:
    return Rate(rate.value * factor, rate.low * factor, rate.high * factor)


def _independent_rate(run: Summary) -> Rate | None:
    """Return the total rate of independent ranks: their mean rate times their number."""
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
    """Return a measure with its interval; NaN if unknown."""
    rows = table_of(run, "measures")
    found = floats(rows, "value", "low", "high", rows=rows["measure"] == name)
    value, low, high = (values.tolist()[0] if len(values) else nan for values in found)
    return Rate(value, low, high) if isfinite(value) else Rate(nan)


def _first_printed(run: Summary, names: Sequence[str]) -> float:
    """Return the first measure that a source prints under one of ``names``; NaN if none."""
    values = (run.measure(measure) for name in names for measure in (f"printed_{name}", name))
    return next((value for value in values if value is not None), nan)


def _printed_percent(run: Summary) -> float:
    """Return the printed efficiency in %; NaN if none is printed."""
    for name in _EFFICIENCIES:
        value = _first_printed(run, (name,))
        if isfinite(value):
            return value if name.endswith("percent") else float(f"{100 * value:.10g}")
    return nan
