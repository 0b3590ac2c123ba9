"""Sentences of the page on CPU time: phases, ranges, and operators."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import numpy as np

from traceprof.measures.steps.between import EVALUATION
from traceprof.measures.steps.from_phases import RECORDED_PHASES, ROLLOUT
from traceprof.model.grouping import groups_of, rows_by_value
from traceprof.model.results import Note, Result
from traceprof.model.table import Table, is_known
from traceprof.model.timing import TRACEPROF_DOMAIN
from traceprof.names.ranges import PHASE_WORDS, UNCLAIMED, UPDATE, UPDATE_PHASES
from traceprof.session.shares import LEAST_SHARE, table_of, with_shares

_MAIN_RATIO: Final = 0.5
_MAX_OPERATORS: Final = 5
_MAX_RANGES: Final = 5
_MAX_CALLS: Final = 3
_MIN_CHANGED_RATIO: Final = 0.05
"""The minimum share of the window of a range whose change is always reported."""
_SOURCES: Final = ("cpu_op", "xla")
_MIN_COUNT_FOR_CHANGE: Final = 10
_MIN_NESTED_FACTOR: Final = 1.01
"""The sum of the durations exceeds the time by this factor if ranges contain each other."""
OUTSIDE: Final = "outside of ranges"


def on_host_time(
    results: Mapping[str, Result], start: str, values: Mapping[str, Any]
) -> Iterator[Note]:
    """Yield notes on the shares of phases, ranges, and operators in CPU time.

    ``start`` names the base of the shares of phases, with ``values``.
    """
    yield from on_phases(results, start, values)
    yield from _range_shares(main_ranges(results))
    yield from _operator_shares(table_of(results, "operators"))


def on_phases(
    results: Mapping[str, Result],
    start: str,
    values: Mapping[str, Any],
    *,
    only_rollouts: bool = False,
) -> Iterator[Note]:
    """Yield a note on the shares of the phases on the CPU of the first process that has steps.

    With ``only_rollouts``, yield it only if the process rolls out and learns from it.
    """
    phases, steps = table_of(results, "phases"), results.get("steps")
    if phases.empty:
        return
    with_steps = table_of(results, "steps")
    has_steps = np.isin(phases["process"], with_steps["process"] if len(with_steps) else [])
    first = phases.take(phases["process"] == phases["process"][int(has_steps.argmax())])
    shares = dict(zip(first["phase"].tolist(), first["host_ratio"].tolist(), strict=True))
    has_rollouts = bool(shares.keys() & {"generation", "environment"}) and _has_rollouts(steps)
    if only_rollouts and not has_rollouts:
        return
    if has_rollouts:
        shares = _with_update(shares)
    elif UPDATE in shares:
        shares[UNCLAIMED] = shares.get(UNCLAIMED, 0.0) + shares.pop(UPDATE)
    if "eval" in shares:
        shares[_name_of_evaluation(steps, shares)] = shares.pop("eval")
    named: dict[str, float] = {
        PHASE_WORDS.get(phase, str(phase)): share for phase, share in shares.items()
    }
    yield from with_shares(f"CPU time {start}", named, values)
    if has_rollouts:
        yield from _on_rates(first, shares, steps)


def _on_rates(phases: Table, shares: Mapping[str, float], steps: Result | None) -> Iterator[Note]:
    """Yield notes on the tokens per second of updates and on the environment steps per second."""
    for name, words in (("tokens_per_s", ""), ("least_tokens_per_s", "at least ")):
        tokens = steps.scalars.get(name) if steps is not None else None
        if tokens is not None and shares.get(UPDATE):
            text = f"Updates train on {words}{{rate:count}} generated tokens/s."
            yield Note.of(text, rate=tokens / shares[UPDATE])
    for row in phases.rows():
        if row["phase"] == "environment" and row["host_ratio"]:
            seconds = row["host_ns"] / row["host_ratio"] / 1e9
            text = "{rate:count} environment steps/s ({n:count} calls, each counted as one step)."
            yield Note.of(text, rate=row["count"] / seconds, n=int(row["count"]))


def _has_rollouts(steps: Result | None) -> bool:
    """Return whether generation is part of the steps; otherwise it is an evaluation."""
    source = steps.scalars["source"] if steps is not None else ""
    return ROLLOUT in source or not source.startswith(RECORDED_PHASES)


def _with_update(shares: Mapping[str, float]) -> dict[str, float]:
    """Return the shares of the phases of post-training, with the passes of updates as one phase."""
    update = sum(shares.get(phase, 0.0) for phase in UPDATE_PHASES)
    others = {phase: share for phase, share in shares.items() if phase not in UPDATE_PHASES}
    return {**others, UPDATE: update}


def main_ranges(results: Mapping[str, Result]) -> Table:
    """Return the rows of `range-times` on the busiest thread of each process.

    The busiest thread has the most time in ranges of one kind. The result is empty if only
    traceprof marked ranges, which are phases, or if only the steps have ranges.
    """
    table = table_of(results, "range-times")
    if table.empty:
        return table
    lanes = groups_of(table["process"], table["thread"], table["kind"])
    times = lanes.sums(table["self_ns"])[lanes.number]
    busiest = [
        lanes.number[rows[times[rows].argmax()]]
        for rows in rows_by_value(table["process"]).values()
    ]
    main = table.take(np.isin(lanes.number, busiest))
    is_of_program = (main["domain"] != TRACEPROF_DOMAIN) & (main["total_ratio"] >= LEAST_SHARE)
    n_names = len(set(main.take(is_of_program)["name"].tolist()))
    min_names = 1 if table_of(results, "steps").empty else 2
    return main.take(slice(None if n_names >= min_names else 0))


def _range_shares(ranges: Table) -> Iterator[Note]:
    """Yield a note on the share of each range in the time of the window, without nested ranges."""
    if ranges.empty:
        return
    n_processes = len(np.unique(ranges["process"]))
    groups = groups_of(ranges["name"])
    sums = groups.sums(ranges["share_ratio"]) / n_processes
    names = ranges["name"][groups.first_rows].tolist()
    shares = dict(sorted(zip(names, sums.tolist(), strict=True), key=lambda item: -item[1]))
    n_shown = len(shares) if len(shares) == _MAX_RANGES + 1 else _MAX_RANGES
    shown = dict([*shares.items()][:n_shown])
    rest = sum(shares.values()) - sum(shown.values())
    shown |= {"other ranges": rest, OUTSIDE: max(0.0, 1 - sum(shares.values()))}
    of = " (mean of {processes:count} processes)" if n_processes > 1 else ""
    yield from with_shares(
        f"CPU time in the window by range{of}", shown, {"processes": n_processes}
    )


def on_ranges(results: Mapping[str, Result]) -> Iterator[Note]:
    """Yield notes on how often the main ranges run, how long they take, and on lasting changes.

    The ranges are those with the most time in the first process, and all that change.
    """
    table = main_ranges(results)
    if table.empty:
        return
    first = table.take(table["process"] == table["process"][0])
    changes = is_known(first["change_at_ns"]) & (first["total_ratio"] >= _MIN_CHANGED_RATIO)
    is_long = (np.arange(len(first)) < _MAX_RANGES) & (first["share_ratio"] >= LEAST_SHARE)
    for row in first.take(is_long | changes).rows():
        yield _on_range(row)


def _on_range(row: Mapping[str, Any]) -> Note:
    """Return the note on the number and the durations of the ranges of one name."""
    names = ("name", "count", "total_ns", "mean_ns", "min_ns", "max_ns")
    values = {name: row[name] for name in names}
    if row["count"] == 1:
        return Note.of("Range {name}: once, {total_ns:ns}", **values)
    is_nested = row["count"] * row["mean_ns"] > _MIN_NESTED_FACTOR * row["total_ns"]
    nested = " (nested)" if is_nested else ""
    text = f"Range {{name}}: {{count:count}} times{nested}, {{total_ns:ns}} in total, "
    text += "mean {mean_ns:ns}"
    text += " ({min_ns:ns}–{max_ns:ns})" if row["max_ns"] > row["min_ns"] else ""
    if not np.isnan(row["change_at_ns"]):
        values |= {name: row[name] for name in ("before_ns", "after_ns")}
        ratio = row["after_ns"] / row["before_ns"] - 1
        values |= {"at": row["change_at_ns"], "change": abs(ratio)}
        sign = "+" if ratio > 0 else "−"
        text += "; median {before_ns:ns} before {at:ns}, {after_ns:ns} after it "
        text += f"({sign}{{change:ratio}})"
    elif row["count"] >= _MIN_COUNT_FOR_CHANGE:
        text += "; no lasting change of the duration"
    return Note.of(text, **values)


def _operator_shares(table: Table) -> Iterator[Note]:
    """Yield a note on the PyTorch or XLA operators with the most CPU time."""
    rows = table.take(np.isin(table["source"].astype(str), _SOURCES)) if len(table) else table
    total_ns = float(rows["self_ns"].sum()) if len(rows) else 0.0
    if rows.empty and len(table):
        yield from _longest_calls(table.take(table["source"] == "osrt"))
    if total_ns:
        shares = zip(rows["name"].tolist(), (rows["self_ns"] / total_ns).tolist(), strict=True)
        largest = dict(list(shares)[:_MAX_OPERATORS])
        yield from with_shares("Operator self time", largest, {})


def _longest_calls(calls: Table) -> Iterator[Note]:
    """Yield a note on the OS runtime functions with the most time; ``calls`` are in this order."""
    longest = calls.take(calls["total_ns"] > 0).take(slice(_MAX_CALLS))
    if len(longest):
        words = [f"{{name{i}}} {{ns{i}:ns}} in {{n{i}:count}} call(s)" for i in range(len(longest))]
        values: dict[str, Any] = {}
        for i, row in enumerate(longest.rows()):
            values |= {f"name{i}": row["name"], f"ns{i}": row["total_ns"], f"n{i}": row["count"]}
        text = "OS runtime calls, summed over threads, with waiting: "
        yield Note.of(f"{text}{', '.join(words)}.", **values)


def _name_of_evaluation(steps: Result | None, phases: Iterable[str]) -> str:
    """Return the name of forward passes without gradients.

    If most steps have such passes (a teacher or frozen encoder), or there is no backward pass (a
    server), they are not an evaluation.
    """
    if steps is not None and "eval_ns" in steps.table:
        is_work = (steps.table["eval_ns"] > 0).mean() > _MAIN_RATIO
    else:
        is_work = "backward" not in phases
    return "forward without gradients" if is_work else EVALUATION
