"""Copies and memsets by device, direction and kind of memory, with bytes and bandwidth."""

from __future__ import annotations

from typing import Final

import numpy as np

from traceprof.facts.transfers.sizes import known_sizes
from traceprof.measures.analyses import Analysis
from traceprof.measures.durations import DURATIONS, finish_durations, summarise
from traceprof.model.intervals import union_lengths
from traceprof.model.results import Result, ResultSpec, TableSpec, Unit, derived, key, total
from traceprof.model.trace import Trace

__all__ = ["ANALYSIS"]

SPEC: Final = ResultSpec(
    tables=(
        TableSpec(
            "copies",
            "one row per device, direction and kind of memory at both ends, by total time",
            (
                key("device", "the number of the device in the run", Unit.NUMBER),
                key("direction", "from where to where; or memset"),
                key("src_kind", "the memory that was read"),
                key("dst_kind", "the memory that was written"),
                *DURATIONS[:2],
                total("busy_ns", Unit.NS, "when any of them ran: copies may run side by side"),
                total("size_bytes", Unit.BYTES, "what they moved"),
                derived(
                    "rate_bytes_per_s",
                    Unit.BYTES_PER_S,
                    "size_bytes over total_ns, that is, of one copy at a time",
                ),
                *DURATIONS[2:],
            ),
        ),
    )
)
_KEYS: Final = SPEC.tables[0].keys


def measure_copies(trace: Trace) -> Result:
    """Return the copies by direction; one that the window cuts counts with its part inside."""
    copies = trace.copies
    table, samples = summarise(copies, _KEYS)
    size_bytes = np.zeros(len(table), np.int64)
    sizes = copies["n_bytes"].to_numpy(np.int64)
    np.add.at(size_bytes, samples.rows, np.maximum(sizes, 0))
    is_unsized = np.zeros(len(table), np.bool_)
    is_unsized[samples.rows[sizes < 0]] = True
    busy_ns = union_lengths(samples.rows, copies["start_ns"], copies["end_ns"], len(table))
    table = table.assign(busy_ns=busy_ns, size_bytes=known_sizes(size_bytes, is_unsized))
    return Result("copies", SPEC, {"copies": table}, samples={"copies": samples})


def _finish(result: Result) -> Result:
    finished = finish_durations(result)
    table = finished.table
    seconds = table["total_ns"].where(table["total_ns"] > 0) / 1e9
    return finished.with_table(table.assign(rate_bytes_per_s=table["size_bytes"] / seconds))


ANALYSIS = Analysis(
    name="copies",
    spec=SPEC,
    needs=("copies",),
    of_rank=measure_copies,
    finish=_finish,
)
