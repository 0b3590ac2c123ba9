"""Separates the ranks of one file, so that each is a trace, as in a run with one file per rank.

Where GPUs work, analyses tell the ranks of a file apart by their GPUs. Without GPUs, they tell
ranks apart by their traces.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from typing import Final

import numpy as np

from traceprof.model.ranks import Ranks
from traceprof.model.table import Table
from traceprof.model.tables import ABSENT, TABLES
from traceprof.model.trace import Trace

_PROCESS_OF_SOURCE: Final = re.compile(r"process:(\d+)")
_OF_FIRST: Final = frozenset({"devices"})
"""Tables of the machine that one trace keeps for all of them; every rank keeps the environment."""


def separate_ranks(ranks: Ranks) -> Ranks:
    """Return the ranks of a single whole file, each as a separate trace, if no GPU worked.

    Processes without a rank, and samples of the machine, are in the trace of the first rank. Runs
    of several files, and files of one rank, are returned unchanged.
    """
    trace = ranks.parts[0]
    if len(ranks) > 1 or trace.is_remote or _uses_gpu(trace):
        return ranks
    processes = trace.processes
    numbers = np.unique(processes["rank"][processes["rank"] != ABSENT]).tolist()
    if len(numbers) < 2:
        return ranks
    others = processes["process"][~np.isin(processes["rank"], numbers[1:])]
    known = [others, *(processes["process"][processes["rank"] == rank] for rank in numbers[1:])]
    named = frozenset(processes["process"].tolist())
    parts = [
        _only(trace, frozenset(kept.tolist()), named, is_first=place == 0)
        for place, kept in enumerate(known)
    ]
    return replace(ranks, parts=tuple(parts))


def _uses_gpu(trace: Trace) -> bool:
    return bool((trace.devices["used"] == 1).any())


def _only(trace: Trace, kept: frozenset[int], named: frozenset[int], *, is_first: bool) -> Trace:
    """Return the rows of the processes ``kept``; the first trace keeps rows of no named process."""
    is_other = named - kept

    def is_kept(processes: Collection[int]) -> list[bool]:
        return [one in kept or (is_first and one not in is_other) for one in processes]

    def rows_of(name: str, table: Table) -> Table:
        if "process" in table:
            codes, places = np.unique(table["process"], return_inverse=True)
            return table.take(np.array(is_kept(codes.tolist()), np.bool_)[places])
        if name == "samples":
            sources = np.unique(table["source"]).tolist()
            flags = is_kept([_process_of(source) for source in sources])
            chosen = [source for source, flag in zip(sources, flags, strict=True) if flag]
            return table.take(np.isin(table["source"], chosen))
        return table if is_first or name not in _OF_FIRST else table.head(0)

    steps = trace.steps
    found = trace.with_tables({name: rows_of(name, trace.table(name)) for name in TABLES})
    return (
        found
        if steps is None
        else found.with_steps(replace(steps, table=rows_of("steps", steps.table)))
    )


def _process_of(source: str) -> int:
    """Return the process in the name of a source of samples; `ABSENT` for the machine."""
    found = _PROCESS_OF_SOURCE.match(source)
    return int(found[1]) if found else ABSENT
