"""Rows that cannot be: without a time, or on no device; those that end before they start.

A reader leaves them out of every sum and says how many there are. Nearly no file has any, so that
they are looked for in columns that are read anyway: a smallest and a greatest number tell most.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

import numpy as np

from traceprof.formats.sqlite.columns import NULL
from traceprof.formats.sqlite.table_names import quoted
from traceprof.values import dataclass

__all__ = ["LATEST_NS", "MOST_BYTES", "Soundness", "UnsoundRowsError", "soundness_of"]

LATEST_NS: Final = 1 << 62
"""Times are nearer to 0 than this, 146 years: no difference of two leaves 64 bits."""
MOST_BYTES: Final = 1 << 57
"""No address space holds more."""

_STARTS: Final = ("start", "timestamp")
_MAY_BE_OPEN: Final = ("NVTX_EVENTS", "MPI_", "UCP_")
_ON_DEVICES: Final = tuple(
    f"CUPTI_ACTIVITY_KIND_{kind}"
    for kind in ("KERNEL", "CONCURRENT_KERNEL", "GRAPH_TRACE", "MEMCPY", "MEMCPY2", "MEMSET")
)
_COUNTING: Final = {
    "CUDA_GPU_MEMORY_USAGE_EVENTS": "bytes",
    "CUDA_UM_GPU_PAGE_FAULT_EVENTS": "numberOfPageFaults",
    "GPU_METRICS": "value",
    "NET_NIC_METRIC": "value",
}
"""Of samples the column without which they say nothing."""


class UnsoundRowsError(Exception):
    """A table has rows that cannot be: it is to be read without them."""

    def __init__(self, table: str) -> None:
        super().__init__(table)
        self.table = table


@dataclass(frozen=True, slots=True)
class Soundness:
    """Which rows of one table can be.

    ``end`` is "" for instants. ``needed`` are columns that must be known, ``sizes`` those that
    are neither negative nor more than any memory. ``zero_is_lost``: the profiler wrote times of 0
    where it lost a record, which readers count by themselves, but for instants.
    """

    table: str
    start: str
    end: str
    may_be_open: bool
    needed: tuple[str, ...]
    sizes: tuple[str, ...]
    zero_is_lost: bool

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that tell."""
        return tuple(filter(None, (self.start, self.end, *self.needed, *self.sizes)))

    def is_broken(self, columns: Mapping[str, Any]) -> bool:
        """Return whether a row is unsound, as far as those of its columns tell that are given."""
        starts, ends = columns.get(self.start), columns.get(self.end)
        if starts is None or not len(starts):
            return False
        lost: Any = np.bool_(False)
        if self.zero_is_lost and self.end:
            lost = starts <= 0 if ends is None else (starts <= 0) | (ends <= 0)
        if self._has_bad_times(starts, ends, lost):
            return True
        needed = (columns[name] for name in self.needed if name in columns)
        if any(((values == NULL) & ~lost).any() for values in needed):
            return True
        return any(
            self._has_bad_size(columns[name], lost) for name in self.sizes if name in columns
        )

    def _has_bad_times(self, starts: Any, ends: Any, lost: Any) -> bool:
        is_early = int(starts.min()) <= -LATEST_NS and not (self.zero_is_lost and self.end)
        if is_early or int(starts.max()) >= LATEST_NS:
            return True
        if ends is None:
            return False
        if int(ends.max()) >= LATEST_NS:
            return True
        is_before = ends < starts
        if not is_before.any():
            return False
        is_open = self.may_be_open & (ends == NULL)
        return bool((is_before & ~lost & ~is_open).any())

    def _has_bad_size(self, values: Any, lost: Any) -> bool:
        if int(values.min()) >= 0 and int(values.max()) <= MOST_BYTES:
            return False
        is_bad = ((values < 0) & (values != NULL)) | (values > MOST_BYTES)
        return bool((is_bad & ~lost).any())

    def faults(self) -> dict[str, str]:
        """Return what can be wrong with rows: in words, and as SQL that is never NULL."""
        start, end = quoted(self.start), quoted(self.end)
        times = [start, end] if self.end else [start]
        lost = " OR ".join(f"coalesce(CAST({one} AS INTEGER), 0) <= 0" for one in times)
        open_end = self.end and self.may_be_open
        known = [one for one in times if not (one == end and open_end)]
        nothing = " OR ".join(f"{one} IS NULL" for one in known)
        beyond = " OR ".join(
            f"coalesce({one} <= -{LATEST_NS} OR {one} >= {LATEST_NS}, 0)" for one in times
        )
        found = {"no time": nothing}
        if self.zero_is_lost:
            found = {} if self.end else {"no time": lost}
        found["a time more than 146 years from 0"] = beyond
        if self.end:
            found["an end before the start"] = f"coalesce({end} < {start}, 0)"
        for name in self.needed:
            found[f"no {name}"] = f"{quoted(name)} IS NULL"
        for name in self.sizes:
            size = quoted(name)
            found[f"impossible {name}"] = f"coalesce({size} < 0 OR {size} > {MOST_BYTES}, 0)"
        if self.zero_is_lost and self.end:
            found = {words: f"NOT ({lost}) AND ({sql})" for words, sql in found.items()}
        return found

    def sql(self) -> str:
        """Return SQL that holds for the sound rows."""
        return " AND ".join(f"NOT ({fault})" for fault in self.faults().values())

    def sought(self) -> str:
        """Return SQL that holds for rows that need a look: unsound, or with no whole numbers."""
        columns = () if self.zero_is_lost else self.columns
        told = [f"typeof({quoted(one)}) NOT IN ('integer', 'null')" for one in columns]
        return " OR ".join([f"NOT ({self.sql()})", *told])


def soundness_of(
    table: str, columns: Collection[str], *, zero_is_lost: bool = False
) -> Soundness | None:
    """Return which rows of a table can be; None of one whose rows have no times."""
    start = next((name for name in _STARTS if name in columns), "")
    if not start:
        return None
    needed = ["deviceId"] if table in _ON_DEVICES else []
    needed += [_COUNTING[table]] if table in _COUNTING else []
    is_sized = table in _ON_DEVICES or _COUNTING.get(table) == "bytes"
    sizes = ["bytes"] if is_sized or table == "TRACEPROF_COLLECTIVES" else []
    return Soundness(
        table,
        start,
        "end" if "end" in columns else "",
        table.startswith(_MAY_BE_OPEN),
        tuple(name for name in needed if name in columns),
        tuple(name for name in sizes if name in columns),
        zero_is_lost,
    )
