"""Join consecutive recordings of one process into one trace.

torch.profiler writes a file for each cycle of its schedule, and nsys one for each captured range.
These files are windows of one process, not ranks. The time between them was not recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from traceprof.formats.contract import Outline
from traceprof.model.table import Table
from traceprof.model.tables import ABSENT, TABLES, make_table, stack
from traceprof.model.timing import TRACEPROF_DOMAIN
from traceprof.model.trace import Trace, make_trace
from traceprof.names.ranges import CYCLE

_TIMES: Final = ("start_ns", "end_ns")
_LINKED: Final = tuple(name for name, table in TABLES.items() if "correlation" in table.columns)


def start_utc_ns(trace: Trace) -> int:
    """Return the start of a trace in ns since 1970, or on its own clock if that is unknown."""
    return (trace.info.utc_epoch_ns or 0) + trace.span.start_ns


def are_consecutive(traces: Sequence[Trace]) -> bool:
    """Return whether recordings follow one another on one clock, like those of one process."""
    if len(traces) < 2 or any(trace.info.utc_epoch_ns is None for trace in traces):
        return False
    ordered = sorted(traces, key=start_utc_ns)
    ends = [start_utc_ns(trace) + trace.span.duration_ns for trace in ordered]
    return all(
        end <= start_utc_ns(following) for end, following in zip(ends, ordered[1:], strict=False)
    )


def joined_cycles(traces: Sequence[Trace]) -> Trace:
    """Return recordings of one process as one Trace, on the clock of the first.

    Ranges in traceprof's own domain mark the recordings. Correlations are renumbered, so that those
    of different recordings differ.
    """
    ordered = sorted(traces, key=start_utc_ns)
    first = ordered[0]
    parts: dict[str, list[Table]] = {name: [] for name in TABLES}
    spans, offset = [], 0
    for trace in ordered:
        shift = (trace.info.utc_epoch_ns or 0) - (first.info.utc_epoch_ns or 0)
        spans.append((trace.span.start_ns + shift, trace.span.end_ns + shift))
        for name, table in TABLES.items():
            rows = trace.table(name)
            if table.has_times:
                rows = _moved(rows, shift)
            if name in _LINKED:
                known = rows["correlation"] >= 0
                rows = rows.assign(correlation=rows["correlation"] + np.where(known, offset, 0))
            parts[name].append(rows)
        offset += 1 + max(
            (int(trace.table(name)["correlation"].max(initial=0)) for name in _LINKED), default=0
        )
    tables = {
        name: stack(name, pieces) if TABLES[name].has_times else _distinct(name, pieces)
        for name, pieces in parts.items()
    }
    tables["ranges"] = stack("ranges", [tables["ranges"], _cycles(first, spans)])
    recorded = frozenset[str]().union(*(part.recorded for part in ordered))
    warnings = dict.fromkeys(text for part in ordered for text in part.info.warnings)
    info = replace(first.info, warnings=tuple(warnings))
    used = tables["devices"]["device"][tables["devices"]["used"] == 1]
    return make_trace(info, tables, recorded, worked=used.tolist())


def _moved(rows: Table, shift: int) -> Table:
    """Return ``rows`` with all times moved by ``shift`` ns."""
    times = [name for name in _TIMES if name in rows]
    return rows.assign(**{name: rows[name] + shift for name in times})


def _distinct(name: str, parts: Sequence[Table]) -> Table:
    """Return the distinct rows of tables without times."""
    rows = list({tuple(row.values()): row for part in parts for row in part.rows()}.values())
    columns = TABLES[name].columns
    found = make_table(name, {column: [row[column] for row in rows] for column in columns})
    if name != "devices":
        return found
    worked = set(found["device"][found["used"] == 1].tolist())
    distinct = found.take(np.unique(found["device"], return_index=True)[1])
    return distinct.assign(used=np.isin(distinct["device"], list(worked)).astype(np.int64))


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
            "domain": [TRACEPROF_DOMAIN] * n_rows,
            "name": [CYCLE] * n_rows,
            "kind": ["start_end"] * n_rows,
        },
    )


def joined_outlines(outlines: Sequence[Outline], trace: Trace) -> Outline:
    """Return the outline of several files of one process; ``trace`` is their joined trace."""

    def add_counts(counts_of_files: Sequence[Mapping[Any, int]]) -> dict[Any, int]:
        """Return the sum of the counts per key."""
        keys = dict.fromkeys(key for counts in counts_of_files for key in counts)
        return {key: sum(counts.get(key, 0) for counts in counts_of_files) for key in keys}

    def by_table(
        counts_of_files: Sequence[Mapping[str, Mapping[Any, int]]],
    ) -> dict[str, dict[Any, int]]:
        """Return the sums of the counts per table and key."""
        return {
            name: add_counts([counts[name] for counts in counts_of_files])
            for name in counts_of_files[0]
        }

    return Outline(
        trace,
        add_counts([outline.n_rows for outline in outlines]),
        by_table([outline.device_rows for outline in outlines]),
        by_table([outline.process_rows for outline in outlines]),
    )
