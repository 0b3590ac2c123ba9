"""Measures the steps of all ranks: durations, parts, throughput, steadiness, outliers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from traceprof.measures.device.times import recorder_times
from traceprof.measures.facts import fact, of_window
from traceprof.measures.rows import Array, Floats, covered_ns, rows_by, unions_by
from traceprof.measures.steps.base import base_of, independent_processes
from traceprof.measures.steps.between import between_steps, cause_of_steps
from traceprof.measures.steps.costs import OCCASIONS
from traceprof.measures.steps.find import find_pattern, find_steps, rows_inside
from traceprof.measures.steps.ledger import (
    CUT,
    SLOW,
    USUAL,
    WARMUP,
    all_steps,
    are_timed,
    launching_spans,
    ledger_of_window,
    rows_of_rank,
    step_ledger,
)
from traceprof.measures.steps.parts import (
    BETWEEN_STEPS,
    DEVICE_PARTS,
    bytes_in_steps,
    excess_of_steps,
    machine_in_steps,
    parts_of_devices,
    phases_of_host,
    profiler_in_steps,
    tokens_in_steps,
    work_of_engine,
)
from traceprof.measures.steps.steadiness import measure_steadiness
from traceprof.measures.steps.undisturbed import profiler_overhead
from traceprof.model.ranks import Ranks
from traceprof.model.table import Table, is_known
from traceprof.model.timing import Steps
from traceprof.model.trace import DEVICE_TABLES, Trace
from traceprof.names.ranges import PHASES, PROFILER

_REASON: Final = "reason "
"""Prefix of internal columns that explain slow steps. The columns are dropped from the result."""

_SUMS: Final = (
    *("profiler_ns", "h2d_bytes", "d2h_bytes", "p2p_bytes"),
    *("generated_tokens_count", "least_tokens_count"),
)
"""Columns that are 0, not unknown, for ranks without such data."""

_ORDER: Final = (
    *("process", "step", "at_ns", "duration_ns", "device_ns"),
    *DEVICE_PARTS,
    *("host_at_ns", "period_ns", "between_ns", "between_cause", "lag_ns"),
    *(f"{phase}_ns" for phase in PHASES if phase != PROFILER),
    "outside_ns",
    *_SUMS,
    "processed_tokens_count",
    "sequences_count",
)


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredSteps:
    """The steps of all ranks that lie completely inside the window.

    ``table`` has one row per process and step, sorted by process and time. Columns: process, step.
    at_ns: start, from the start of the run. duration_ns: device time if the launches are known,
    else the period. device_ns: the same, NaN if unknown. The five parts of the device: they add up
    to the duration. host_at_ns and period_ns: start on the host, and time until the next step.
    between_ns: part of the period between the two steps. between_cause: see `BETWEEN_CAUSES`, "" if
    none. lag_ns: time from the end on the host to the end on the devices. Host time of each phase
    and of the profiler. Bytes by direction. samples_count, samples_per_s. `machine_in_steps`.
    is_warmup. The columns of `excess_of_steps` for outliers. excess_cause: the cost (of
    `traceprof.measures.steps.costs.OCCASIONS`) that made the step longer, "" if none. NaN means not
    recorded. Columns without any recorded data are absent.

    If no steps are known but kernels repeat (``is_pattern``), the rows are the iterations; none is
    slow or warm-up.

    ``scalars`` are those of the analysis of steps, as far as known. Statistics exclude warm-up,
    steps with an excess_cause, and a first or last step that the recording cuts. Throughput
    excludes only the warm-up.
    """

    table: Table
    scalars: Mapping[str, Any]

    @property
    def is_pattern(self) -> bool:
        """Whether the rows are iterations of a repeating kernel pattern instead of steps."""
        return bool(self.scalars["is_pattern"])


@of_window
def measured_steps(ranks: Ranks) -> MeasuredSteps:
    """Return every step of every rank that lies completely inside the window."""
    steps, ledger = all_steps(ranks.whole), ledger_of_window(ranks)
    table = _join_ranks(ranks.whole.each(_measure_rank, is_pattern=steps.is_pattern))
    if ranks.uncut is not None:
        table = table.take(rows_inside(step_ledger(ranks), ranks.span))
    if not np.isnan(step_ledger(ranks)["samples_count"]).all():
        samples, lengths = ledger["samples_count"], table["duration_ns"]
        lengths = np.where(ledger["kind"] == CUT, np.maximum(lengths, table["period_ns"]), lengths)
        table = table.assign(samples_count=samples, samples_per_s=_rates(samples, lengths))
    reasons, table = _split_columns(table, _REASON)
    kind, causes = ledger["kind"], np.where(np.isin(ledger["kind"], OCCASIONS), ledger["kind"], "")
    is_longer = (kind == SLOW) | (causes != "")
    outliers = is_longer.astype(np.int64) - ledger["is_fast"]
    machine = machine_in_steps(ranks, table)
    excess = excess_of_steps(table.assign(**reasons, **machine), outliers)
    table = table.assign(**machine, **excess, excess_cause=causes, kind=kind)
    return MeasuredSteps(table, _scalars(ranks, steps, table))


def _scalars(ranks: Ranks, steps: Steps, table: Table) -> dict[str, Any]:
    """Return the scalars of `MeasuredSteps` for the steps of the window."""
    base, ledger = base_of(ranks), ledger_of_window(ranks)
    steadiness = measure_steadiness(base.lengths_ns, base.processes)
    for name in ("trend_ns", "drift_ratio") if steps.is_pattern and steadiness else ():
        del steadiness[name]
    lags_ns = table["lag_ns"][~table["is_warmup"] & is_known(table["lag_ns"])]
    return {
        "base": base.unit,
        "base_ns": base.unit_ns,
        "step_ns": base.step_ns,
        "usual_count": base.steps_count,
        **({"independent_count": n} if (n := independent_processes(ranks)) else {}),
        "source": steps.source if len(ledger) else "",
        "confidence_ratio": steps.confidence_ratio if len(ledger) else 1.0,
        "is_pattern": steps.is_pattern and len(ledger) > 0,
        **_of_warmup(ranks),
        **({"lag_ns": float(np.median(lags_ns))} if len(lags_ns) else {}),
        **steadiness,
        **_rates_of(ranks),
        **_rates_of_tokens(table),
        **_of_profiling(ranks),
    }


def _of_profiling(ranks: Ranks) -> dict[str, float]:
    """Return the number of unprofiled steps, the duration of profiled steps, and the overhead."""
    base = base_of(ranks)
    if not base.is_unprofiled:
        return {}
    return {
        "unprofiled_count": len(base.lengths_ns),
        "profiled_ns": base.profiled_ns,
        **profiler_overhead(ranks),
    }


def _of_warmup(ranks: Ranks) -> dict[str, int]:
    """Return the number of warm-up steps, and their duration in the slowest process."""
    ledger = ledger_of_window(ranks)
    warmup = ledger.take(ledger["kind"] == WARMUP)
    lengths = warmup["whole_ns" if ranks.uncut is None else "duration_ns"]
    sums = [(len(rows), int(lengths[rows].sum())) for rows in rows_by(warmup, "process").values()]
    return {
        "warmup_count": max((n for n, _ in sums), default=0),
        "warmup_ns": max((ns for _, ns in sums), default=0),
    }


@fact
def _measure_rank(trace: Trace, *, is_pattern: bool) -> Table:
    """Return the measures of the steps of one rank that do not depend on the window."""
    steps = find_pattern(trace) if is_pattern else find_steps(trace)
    rows, known = steps.table, steps.table["on_device"]
    origin_ns = trace.span.start_ns
    columns: dict[str, Any] = {
        "process": rows["process"],
        "step": rows["step"],
        "at_ns": rows["device_start_ns"] - origin_ns,
        "duration_ns": steps.durations_ns,
    }
    if trace.recorded & set(DEVICE_TABLES):
        on_device = np.where(known, steps.durations_ns, np.nan)
        is_recorded = rows_of_rank(trace, is_pattern=is_pattern)["is_covered"] & are_timed(rows)
        parts = parts_of_devices(trace, rows)
        columns |= {"device_ns": np.where(is_recorded, on_device, np.nan)}
        columns |= {name: np.where(is_recorded, values, np.nan) for name, values in parts.items()}
    lag = (rows["device_end_ns"] - rows["end_ns"]).astype(np.float64)
    gaps = rows.assign(start_ns=rows["end_ns"], end_ns=rows["next_ns"])
    recorder_ns = np.nan_to_num(covered_ns(gaps, recorder_times(trace)))
    columns |= {
        "host_at_ns": rows["start_ns"] - origin_ns,
        "period_ns": steps.periods_ns,
        "between_ns": np.maximum(rows["next_ns"] - rows["end_ns"], 0) - recorder_ns,
        "between_cause": cause_of_steps(trace, rows),
        "lag_ns": np.where(known & (not steps.is_inferred), lag, np.nan),
    }
    columns |= {**host_times(trace, steps), **bytes_in_steps(trace, rows)}
    columns |= {**tokens_in_steps(trace, rows), **work_of_engine(trace, rows)}
    reasons = _launching_times(trace, launching_spans(rows), _recorder_outside_steps(rows))
    columns |= {f"{_REASON}{name}": time for name, time in reasons.items()}
    return Table({**columns, "is_warmup": steps.warmup()})


def host_times(trace: Trace, steps: Steps) -> dict[str, Floats]:
    """Return host phases, profiler time, and time outside them; together they add up to the period.

    The profiler time excludes the start and stop of its windows, which the period already excludes.
    """
    rows = steps.table
    phases = phases_of_host(trace, rows)
    profiler = profiler_in_steps(trace, rows.assign(end_ns=rows["next_ns"]))
    nothing = np.zeros(len(rows))
    claimed = np.sum([nothing, *(np.nan_to_num(time) for time in phases.values())], axis=0)
    unclaimed = np.maximum(steps.periods_ns - claimed, 0.0)
    # Profiler time within a phase counts for the phase.
    profiler = {
        name: np.minimum(np.maximum(time - rows["recorder_ns"], 0.0), unclaimed)
        for name, time in profiler.items()
    }
    if not phases:
        return {**profiler}
    outside = unclaimed - np.sum([nothing, *profiler.values()], axis=0)
    is_known = ~np.isnan(next(iter(phases.values())))
    return {**phases, **profiler, "outside_ns": np.where(is_known, outside, np.nan)}


def _split_columns(table: Table, prefix: str) -> tuple[dict[str, Floats], Table]:
    """Return the columns with ``prefix`` (removed from the names), and ``table`` without them."""
    names = [name for name in table if name.startswith(prefix)]
    taken = {name.removeprefix(prefix): table[name].astype(np.float64) for name in names}
    return taken, table.without(*names)


def _recorder_outside_steps(steps: Table) -> Floats:
    """Return per step the recorder time that is not part of any step's duration, in ns."""
    known = steps["on_device"]
    found: Floats = np.where(known, 0.0, steps["recorder_ns"])
    for rows in rows_by(steps, "process").values():
        ahead = steps["device_start_ns"][rows[1:]] - steps["device_end_ns"][rows[:-1]]
        found[rows[1:]] = np.where(known[rows[1:]], ahead, found[rows[1:]])
    return found


def _launching_times(trace: Trace, spans: Table, left_out: Floats) -> Mapping[str, Floats]:
    """Return what the host did while it launched each step; used to explain slow steps."""
    between_ns = np.nan_to_num(covered_ns(spans, unions_by(between_steps(trace, has_waits=False))))
    profiler = profiler_in_steps(trace, spans)
    profiler_ns = {name: np.maximum(time - left_out, 0) for name, time in profiler.items()}
    return {**phases_of_host(trace, spans), **profiler_ns, f"{BETWEEN_STEPS}_ns": between_ns}


def _join_ranks(tables: Sequence[Table]) -> Table:
    """Return the steps of all ranks in one table, sorted by process and time."""
    table = Table.stacked([table for table in tables if len(table)] or tables[:1])
    known = [name for name in _ORDER if name in table]
    known += [name for name in table if name.startswith(_REASON)]
    sums = {name: np.nan_to_num(table[name]) for name in known if name in _SUMS}
    return table.select(*known, "is_warmup").assign(**sums).in_order("process", "at_ns", "step")


def _rates(counts: Array, times_ns: Array) -> Floats:
    """Return the rate per second; infinity if the time is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(counts / (times_ns / 1e9), np.float64)


def _rates_of(ranks: Ranks) -> dict[str, float]:
    """Return steps per second of one process, and samples per second of all processes.

    Both use the steps and step time of the base, so their ratio is the number of samples per step.
    """
    base = base_of(ranks)
    if not len(base.lengths_ns) or not base.step_ns:
        return {}
    found = {"steps_per_s": base.per_s}
    if not np.isnan(base.samples_count):
        found["samples_per_s"] = base.samples_count * base.per_s
    return found


def _rates_of_tokens(table: Table) -> dict[str, float]:
    """Return the tokens per second of the usual steps that the program generates or processes.

    Generated tokens are summed over the processes, also per second of generation. Processed tokens
    are those of one process, because the processes of an engine can share each batch.
    """
    usual = table.take(table["kind"] == USUAL)
    if "processed_tokens_count" in usual and usual["duration_ns"].sum():
        tokens = np.nansum(usual["processed_tokens_count"])
        return {"processed_tokens_per_s": tokens * 1e9 / usual["duration_ns"].sum()}
    if "generated_tokens_count" not in usual or not usual["generated_tokens_count"].sum():
        return {}
    tokens, n = usual["generated_tokens_count"].sum(), len(np.unique(usual["process"]))
    # Consumers of rates do not know lower bounds, so these have other names.
    least = "least_" if "least_tokens_count" in usual and usual["least_tokens_count"].any() else ""
    found = {f"{least}tokens_per_s": n * tokens * 1e9 / usual["duration_ns"].sum()}
    generation_ns = float(np.nansum(usual.get("generation_ns", 0.0)))
    if generation_ns:
        found[f"{least}generation_tokens_per_s"] = n * tokens * 1e9 / generation_ns
    return found


def named_steps(steps: Steps) -> Steps:
    """Return the steps that can be analyzed: none if all of them are warm-up."""
    is_none = not len(steps) or steps.warmup().all()
    return Steps(steps.table.head(0), "") if is_none else steps
