"""Recordings that one process made one after the other, as one trace with windows.

torch.profiler writes a file for each cycle of its schedule, and nsys one for each range that is
captured: they are windows of one process, no ranks. What lies between them was not recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from traceprof.formats.contract import Outline
from traceprof.model.table import Table
from traceprof.model.tables import ABSENT, TABLES, make_table, stack
from traceprof.model.timing import OWN_DOMAIN
from traceprof.model.trace import Trace, make_trace
from traceprof.names.ranges import CYCLE

_TIMES: Final = ("start_ns", "end_ns")
_LINKED: Final = tuple(name for name, own in TABLES.items() if "correlation" in own.columns)


def begins_ns(trace: Trace) -> int:
    """Return when a trace begins, in ns since 1970 where it tells its clock."""
    return (trace.info.utc_epoch_ns or 0) + trace.span.start_ns


def are_in_turn(traces: Sequence[Trace]) -> bool:
    """Return whether recordings of what may be one process follow one another on one clock."""
    if len(traces) < 2 or any(one.info.utc_epoch_ns is None for one in traces):
        return False
    ordered = sorted(traces, key=begins_ns)
    ends = [begins_ns(one) + one.span.duration_ns for one in ordered]
    return all(end <= begins_ns(after) for end, after in zip(ends, ordered[1:], strict=False))


def joined_cycles(traces: Sequence[Trace]) -> Trace:
    """Return recordings of one process as one Trace, on the clock of the first.

    Ranges of our own say when each was made. Correlations of a later one are others than those of
    an earlier one.
    """
    ordered = sorted(traces, key=begins_ns)
    first = ordered[0]
    parts: dict[str, list[Table]] = {name: [] for name in TABLES}
    spans, number = [], 0
    for trace in ordered:
        shift = (trace.info.utc_epoch_ns or 0) - (first.info.utc_epoch_ns or 0)
        spans.append((trace.span.start_ns + shift, trace.span.end_ns + shift))
        for name, table in TABLES.items():
            rows = trace.table(name)
            if table.has_times:
                rows = _moved(rows, shift)
            if name in _LINKED:
                known = rows["correlation"] >= 0
                rows = rows.assign(correlation=rows["correlation"] + np.where(known, number, 0))
            parts[name].append(rows)
        number += 1 + max(
            (int(trace.table(name)["correlation"].max(initial=0)) for name in _LINKED), default=0
        )
    tables = {
        name: stack(name, own) if TABLES[name].has_times else _distinct(name, own)
        for name, own in parts.items()
    }
    tables["ranges"] = stack("ranges", [tables["ranges"], _cycles(first, spans)])
    recorded = frozenset[str]().union(*(one.recorded for one in ordered))
    warnings = dict.fromkeys(text for one in ordered for text in one.info.warnings)
    info = replace(first.info, warnings=tuple(warnings))
    used = tables["devices"]["device"][tables["devices"]["used"] == 1]
    return make_trace(info, tables, recorded, worked=used.tolist())


def _moved(rows: Table, shift: int) -> Table:
    times = [name for name in _TIMES if name in rows]
    return rows.assign(**{name: rows[name] + shift for name in times})


def _distinct(name: str, parts: Sequence[Table]) -> Table:
    """Return rows of tables without times, each once."""
    rows = list({tuple(row.values()): row for own in parts for row in own.rows()}.values())
    columns = TABLES[name].columns
    found = make_table(name, {column: [row[column] for row in rows] for column in columns})
    if name != "devices":
        return found
    worked = set(found["device"][found["used"] == 1].tolist())
    one = found.take(np.unique(found["device"], return_index=True)[1])
    return one.assign(used=np.isin(one["device"], list(worked)).astype(np.int64))


def _cycles(trace: Trace, spans: Sequence[tuple[int, int]]) -> Table:
    """Return a range for each recording and process."""
    processes = trace.processes["process"].tolist()
    rows = [(start, end, process) for start, end in spans for process in processes]
    columns = np.array(rows, np.int64).reshape(-1, 3).T
    n_rows = len(rows)
    return make_table(
        "ranges",
        {
            **dict(zip(("start_ns", "end_ns", "process"), columns, strict=True)),
            "thread": np.full(n_rows, ABSENT),
            "domain": [OWN_DOMAIN] * n_rows,
            "name": [CYCLE] * n_rows,
            "kind": ["start_end"] * n_rows,
        },
    )


def joined_outlines(outlines: Sequence[Outline], trace: Trace) -> Outline:
    """Return what several files of one process contain together; ``trace`` is theirs, joined."""

    def added(every: Sequence[Mapping[Any, int]]) -> dict[Any, int]:
        keys = dict.fromkeys(key for own in every for key in own)
        return {key: sum(own.get(key, 0) for own in every) for key in keys}

    def by_table(every: Sequence[Mapping[str, Mapping[Any, int]]]) -> dict[str, dict[Any, int]]:
        return {name: added([own[name] for own in every]) for name in every[0]}

    return Outline(
        trace,
        added([one.n_rows for one in outlines]),
        by_table([one.device_rows for one in outlines]),
        by_table([one.process_rows for one in outlines]),
    )
