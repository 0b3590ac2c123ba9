"""The steps of all ranks, measured: lengths, parts, throughput, how steady, which are typical."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from traceprof.measures.device.times import recorded_times, used_devices
from traceprof.measures.facts import of_window
from traceprof.measures.rows import Array, Bools, Floats, covered_ns, rows_by, unions_by
from traceprof.measures.steps.between import between_steps, cause_of_steps
from traceprof.measures.steps.completeness import WHOLE, are_seen, wholeness_of_ranks
from traceprof.measures.steps.costs import explained_by, occasions_in
from traceprof.measures.steps.find import (
    find_pattern,
    find_steps,
    pattern_of_ranks,
    recorder_times,
    steps_of_ranks,
)
from traceprof.measures.steps.parts import (
    BETWEEN_STEPS,
    DEVICE_PARTS,
    excess_of_steps,
    machine_in_steps,
    parts_of_devices,
    phases_of_host,
    profiler_in_steps,
    sums_in_steps,
)
from traceprof.measures.steps.steadiness import (
    is_mean_told,
    measure_steadiness,
    outliers_of_processes,
    typical_length,
)
from traceprof.measures.steps.undisturbed import disturbances_in, scalars_of
from traceprof.model.intervals import Intervals
from traceprof.model.ranks import Ranks
from traceprof.model.table import Table, is_known
from traceprof.model.timing import Steps
from traceprof.model.trace import DEVICE_TABLES, Trace
from traceprof.names.ranges import PHASES, PROFILER

_CUT_SHORT: Final = 0.95
_REASON: Final = "reason "
"""Before the names of columns that explain slow steps, and that nobody else sees."""

_OCCASION: Final = f"{_REASON}occasion "
"""The same of what is done now and then."""

_SUMS: Final = ("profiler_ns", "h2d_bytes", "d2h_bytes", "p2p_bytes")
"""What is 0, not unknown, in ranks where there was none of it."""

_ORDER: Final = (
    *("process", "step", "at_ns", "duration_ns", "device_ns"),
    *DEVICE_PARTS,
    *("host_at_ns", "period_ns", "between_ns", "between_cause", "lag_ns"),
    *(f"{phase}_ns" for phase in PHASES if phase != PROFILER),
    *_SUMS,
    "samples_count",
)


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredSteps:
    """The steps that lie wholly inside the window, of all ranks.

    ``table`` has one row per process and step, sorted so: process, step, at_ns (its start, from
    the start of the run), duration_ns (on the devices where its launches are known, else its
    period), device_ns (the same, NaN where not known), the five parts of the device (they add up
    to the duration), host_at_ns and period_ns (where it starts on the host, and how long until the
    next), between_ns (how much of that lies between the two) and between_cause (see
    `BETWEEN_CAUSES`; "" for nothing), lag_ns (how much later the device is done than the host), the
    host time of each phase and of the profiler, bytes by direction, samples_count, samples_per_s,
    `machine_in_steps`, is_warmup, what `excess_of_steps` says of outliers, and excess_cause: what
    of `traceprof.measures.steps.costs.OCCASIONS` made the step longer, "" where none did. NaN:
    not recorded. Columns of what was not recorded at all are not there.

    Where no steps are known but a pattern repeats (``is_pattern``), the rows are its turns;
    nothing is called slow or warm-up among them.

    ``scalars`` are those of the analysis of steps, of what is known: statistics are of the steps
    without the warm-up, those with an excess_cause, and a first or last one that the recording
    cuts short; the throughput of all without the warm-up.
    """

    table: Table
    scalars: Mapping[str, Any]

    @property
    def is_pattern(self) -> bool:
        """Whether these are no steps, but iterations of a pattern that repeats."""
        return bool(self.scalars["is_pattern"])


@of_window
def measured_steps(ranks: Ranks) -> MeasuredSteps:
    """Return every step of every rank that lies wholly inside the window."""
    steps = steps_of_ranks(ranks)
    is_pattern = not len(steps) and len(pattern_of_ranks(ranks)) > 0
    if is_pattern:
        steps = pattern_of_ranks(ranks)
    table = _joined([_measure(part, is_pattern=is_pattern) for part in ranks])
    took, table = _taken(table, _OCCASION)
    reasons, table = _taken(table, _REASON)
    is_warmup, is_cut, processes = (table[name] for name in ("is_warmup", "is_cut", "process"))
    durations, table = table["duration_ns"].astype(np.float64), table.without("is_cut")
    causes = explained_by(table, took, ~is_warmup & (not is_pattern))
    is_explained = causes != ""
    outliers = outliers_of_processes(durations, processes, is_warmup | is_pattern | is_explained)
    is_short = is_cut & (outliers < 0)
    outliers[is_short] = 0
    outliers[is_explained] = 1
    is_short &= np.isnan(table["device_ns"]) if "device_ns" in table else True
    # On devices it misses by how much they end before the host, before anything was recorded.
    is_short |= is_cut & (table["lag_ns"] < (_CUT_SHORT - 1) * durations)
    lengths = steps.whole_lengths_ns if ranks.uncut is None else steps.durations_ns
    leads, of_process = steps.warmup(), rows_by(steps.table, "process")
    first = [lengths[rows[leads[rows]]] for rows in of_process.values()]
    excess = excess_of_steps(table.assign(**reasons), outliers)
    is_typical = ~is_warmup & ~is_explained & ~is_short
    steadiness = measure_steadiness(durations[is_typical], processes[is_typical])
    for name in ("trend_ns", "drift_ratio") if is_pattern and steadiness else ():
        del steadiness[name]
    lags_ns = table["lag_ns"][~is_warmup & is_known(table["lag_ns"])]
    undisturbed = scalars_of(ranks)
    if undisturbed and "samples_count" in table:
        every = table if ranks.uncut is None else measured_steps(ranks.whole).table
        undisturbed |= _undisturbed_rate(every.take(_are_undisturbed(ranks, every)))
    steady = table.take(~is_warmup)
    scalars = {
        "source": steps.source if len(steps) else "",
        "confidence_ratio": steps.confidence_ratio if len(steps) else 1.0,
        "is_pattern": is_pattern,
        "warmup_count": max(map(len, first), default=0),
        "warmup_ns": max((int(own.sum()) for own in first), default=0),
        **({"lag_ns": float(np.median(lags_ns))} if len(lags_ns) else {}),
        **steadiness,
        **_rates_of(steady, _lengths_of_rates(steady, is_cut[~is_warmup])),
        **undisturbed,
    }
    known = table.assign(**machine_in_steps(ranks, table), **excess, excess_cause=causes)
    return MeasuredSteps(known, scalars)


@of_window
def _measure(trace: Trace, *, is_pattern: bool) -> Table:
    """Return what is known of the steps of one rank by itself."""
    steps = find_pattern(trace) if is_pattern else find_steps(trace)
    rows, known = steps.table, steps.table["on_device"]
    zero = trace.whole.span.start_ns
    columns: dict[str, Any] = {
        "process": rows["process"],
        "step": rows["step"],
        "at_ns": rows["device_start_ns"] - zero,
        "duration_ns": steps.durations_ns,
    }
    if trace.recorded & set(DEVICE_TABLES):
        on_device = np.where(known, steps.durations_ns, np.nan)
        seen, parts = are_seen(trace, rows), parts_of_devices(trace, rows)
        columns |= {"device_ns": np.where(seen, on_device, np.nan)}
        columns |= {name: np.where(seen, own, np.nan) for name, own in parts.items()}
    lag = (rows["device_end_ns"] - rows["end_ns"]).astype(np.float64)
    gaps = rows.assign(start_ns=rows["end_ns"], end_ns=rows["next_ns"])
    recorder_ns = np.nan_to_num(covered_ns(gaps, recorder_times(trace.whole)))
    columns |= {
        "host_at_ns": rows["start_ns"] - zero,
        "period_ns": steps.periods_ns,
        "between_ns": np.maximum(rows["next_ns"] - rows["end_ns"], 0) - recorder_ns,
        "between_cause": cause_of_steps(trace, rows),
        "lag_ns": np.where(known & (not steps.is_inferred), lag, np.nan),
    }
    columns |= {
        **phases_of_host(trace, rows),
        **profiler_in_steps(trace, rows.assign(end_ns=rows["next_ns"])),
        **sums_in_steps(trace, rows),
    }
    spans = _launching(rows)
    reasons = _reasons(trace, spans, _left_out(rows))
    columns |= {f"{_REASON}{name}": time for name, time in reasons.items()}
    columns |= {f"{_OCCASION}{name}": time for name, time in occasions_in(trace, spans).items()}
    return Table({**columns, "is_warmup": steps.warmup(), "is_cut": _are_cut(trace, rows)})


def _taken(table: Table, prefix: str) -> tuple[dict[str, Floats], Table]:
    """Return the columns with a prefix, without it, and ``table`` without these."""
    names = [name for name in table if name.startswith(prefix)]
    taken = {name.removeprefix(prefix): table[name].astype(np.float64) for name in names}
    return taken, table.without(*names)


def _launching(steps: Table) -> Table:
    """Return ``steps`` from and to when the host launched them.

    A span on the devices grows with what happens from the last launch of the step before to the
    last launch of its own; a period with what happens in it.
    """
    known, launched = steps["on_device"], steps["launched_ns"]
    start, end = steps["start_ns"].copy(), np.where(known, launched, steps["next_ns"])
    for rows in rows_by(steps, "process").values():
        later = rows[1:]
        start[later] = np.where(known[later], launched[rows[:-1]], start[later])
    return steps.assign(start_ns=start, end_ns=end)


def _left_out(steps: Table) -> Floats:
    """Return the recorder's own time that is in the length of none of ``steps``, by step."""
    known = steps["on_device"]
    found: Floats = np.where(known, 0.0, steps["recorder_ns"])
    for rows in rows_by(steps, "process").values():
        ahead = steps["device_start_ns"][rows[1:]] - steps["device_end_ns"][rows[:-1]]
        found[rows[1:]] = np.where(known[rows[1:]], ahead, found[rows[1:]])
    return found


def _reasons(trace: Trace, spans: Table, left_out: Floats) -> Mapping[str, Floats]:
    """Return what the host did while it launched each step, for what makes steps slow."""
    lost = np.nan_to_num(covered_ns(spans, unions_by(between_steps(trace))))
    profiler = profiler_in_steps(trace, spans)
    found = {name: np.maximum(time - left_out, 0) for name, time in profiler.items()}
    return {**phases_of_host(trace, spans), **found, f"{BETWEEN_STEPS}_ns": lost}


def _are_cut(trace: Trace, steps: Table) -> Bools:
    """Return which steps may seem short because the recording holds no more of them.

    When the first span of a process on the devices begins is not known for certain, and the last
    period on the host ends with the step itself.
    """
    whole, found = find_steps(trace.whole).table, np.zeros(len(steps), np.bool_)
    of_whole, starts = rows_by(whole, "process"), steps["start_ns"]
    for process, rows in rows_by(steps, "process").items():
        if process in of_whole:
            every = whole["start_ns"][of_whole[process]]
            edge = np.where(steps["on_device"][rows], every.min(), every.max())
            found[rows] = starts[rows] == edge
    return found


def _joined(tables: Sequence[Table]) -> Table:
    """Return the steps of all ranks, with their samples per second."""
    table = Table.stacked([table for table in tables if len(table)] or tables[:1])
    known = [name for name in _ORDER if name in table]
    known += [name for name in table if name.startswith(_REASON)]
    sums = {name: np.nan_to_num(table[name]) for name in known if name in _SUMS}
    joined = table.select(*known, "is_warmup", "is_cut").assign(**sums)
    if "samples_count" in joined:
        lengths = _lengths_of_rates(joined, joined["is_cut"])
        lengths = np.where(np.isnan(lengths), joined["duration_ns"], lengths)
        joined = joined.assign(samples_per_s=_rates(joined["samples_count"], lengths))
    return joined.in_order("process", "at_ns", "step")


def _rates(counts: Array, times_ns: Array) -> Floats:
    """Return how many a second; of no time infinitely many."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(counts / (times_ns / 1e9), np.float64)


def _lengths_of_rates(steps: Table, is_cut: Bools) -> Floats:
    """Return how long each of the steady ``steps`` is to rates; NaN of one that is left out.

    Of what runs on devices it is the span there: the host runs ahead, and its periods are short
    while queues fill. Where the first span begins is not certain: there the host's period counts
    where that is longer, and nothing where it still is far too short. The last step on the host has
    no next, and goes to its own end: where that is shorter than all others it is left out.
    """
    lengths = np.array(steps["duration_ns"], np.float64)
    on_device = ~np.isnan(np.asarray(steps.get("device_ns", np.full(len(steps), np.nan)), float))
    lengths = np.where(is_cut & on_device, np.fmax(lengths, steps["period_ns"]), lengths)
    for rows in rows_by(steps, "process").values():
        for row in rows[is_cut[rows]] if len(rows) > 1 else ():
            least = float(np.fmin.reduce(lengths[rows[rows != row]]))  # NaN: of none
            if lengths[row] < (_CUT_SHORT * least if on_device[row] else least):
                lengths[row] = np.nan
    return np.asarray(lengths, np.float64)


def _rates_of(steady: Table, lengths_ns: Floats) -> dict[str, float]:
    """Return steps per second of a process, and samples per second of all processes together.

    The mean is all samples over all time, the median of the rates of single steps, or of those
    from one that fetches to the next one that does.
    """
    kept = ~np.isnan(lengths_ns)
    whole_ns = float(lengths_ns[kept].sum())
    found = {"steps_per_s": kept.sum() / whole_ns * 1e9} if whole_ns > 0 else {}
    samples = np.nan_to_num(steady.get("samples_count", np.empty(0)))
    if not samples.any():
        return found
    means, medians = [], []
    for rows in rows_by(steady, "process").values():
        whole = rows[kept[rows]]
        counts, times_ns = samples[whole], lengths_ns[whole]
        means.append(_rates(counts.sum(), times_ns.sum()))
        # With several steps for each batch, the rate is that from one batch to the next.
        turns = np.flatnonzero(counts > 0)
        if len(turns):
            sums = (np.add.reduceat(own, turns) for own in (counts, times_ns))
            medians.append(np.median(_rates(*sums)))
    found["mean_samples_per_s"] = float(np.nansum(means))
    return found | {"median_samples_per_s": float(np.nansum(medians))}


def _undisturbed_rate(steps: Table) -> dict[str, float]:
    """Return the throughput of steps that nobody disturbed; the last one's next is not known."""
    lengths = steps["period_ns"].astype(np.float64)
    for rows in rows_by(steps, "process").values():
        lengths[rows[-1:] if len(rows) > 1 else rows[:0]] = np.nan
    rate = _rates_of(steps, lengths).get("mean_samples_per_s")
    return {} if rate is None else {"undisturbed_samples_per_s": rate}


def _are_undisturbed(ranks: Ranks, steps: Table) -> Bools:
    """Return which of ``steps`` no profiler disturbed."""
    found = np.zeros(len(steps), np.bool_)
    for process, own in disturbances_in(ranks).items():
        found |= (steps["process"] == process) & np.isin(steps["step"], own.steps)
    return found


def named_steps(steps: Steps) -> Steps:
    """Return the steps that can be judged: none where all of them are warm-up."""
    is_none = not len(steps) or steps.warmup().all()
    return Steps(steps.table.head(0), "") if is_none else steps


@of_window
def are_typical(ranks: Ranks) -> Bools:
    """Return which of the steps of the window are neither warm-up nor slow."""
    steps = steps_of_ranks(ranks)
    if not len(named_steps(steps)):
        return np.zeros(len(steps), np.bool_)
    excess_ns = measured_steps(ranks).table["excess_ns"]
    is_typical = ~steps.warmup() & ~np.asarray(excess_ns > 0, np.bool_)
    found: Bools = is_typical & (wholeness_of_ranks(ranks) == WHOLE)
    return found


@of_window
def typical_time(ranks: Ranks) -> Intervals:
    """Return when the typical steps were; the window where steps are not known."""
    table = steps_of_ranks(ranks).table
    is_typical = are_typical(ranks)
    if is_typical.any():
        kept = _union_of(table) - _union_of(table.take(~is_typical))
        if len(kept):
            return kept
    return Intervals.single(ranks.span.start_ns, ranks.span.end_ns)


@of_window
def typical_step_ns(ranks: Ranks) -> float:
    """Return the length of a typical step; the window where steps are not known.

    Of those that no profiler disturbed, where there are any.
    """
    is_typical = are_typical(ranks)
    if not is_typical.any():
        return float(ranks.span.duration_ns)
    undisturbed_ns = measured_steps(ranks).scalars.get("undisturbed_ns")
    if undisturbed_ns is not None:
        return float(undisturbed_ns)
    return typical_length(steps_of_ranks(ranks).durations_ns[is_typical].astype(np.float64))


@of_window
def typical_step_name(ranks: Ranks) -> str:
    """Return what `typical_step_ns` is the length of."""
    is_typical = are_typical(ranks)
    if not is_typical.any():
        return "the window"
    lengths = steps_of_ranks(ranks).durations_ns[is_typical].astype(np.float64)
    is_told = "undisturbed_ns" in measured_steps(ranks).scalars
    return "the mean step" if is_mean_told(lengths) and not is_told else "a step"


@of_window
def judged_times(ranks: Ranks) -> Mapping[int, Intervals]:
    """Return when each device that ever worked is judged, as far as its rank was recorded."""
    found: dict[int, Intervals] = {}
    for part in ranks:
        for device in used_devices(part):
            found[device] = typical_time(ranks) & recorded_times(part, device)
    return found


def _union_of(steps: Table) -> Intervals:
    return Intervals.union_of(steps["device_start_ns"], steps["device_end_ns"])
