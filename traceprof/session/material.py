"""The rows of a run for export and queries: each row once, in parts, without secrets.

A single SQLite file is read one time span after another, so memory use is bounded. Other data needs
more memory: ranges, marks, and collectives as whole tables; other formats and runs of several files
one whole rank at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Final

import numpy as np

from traceprof.formats import open_trace, outline
from traceprof.formats.contract import (
    LAUNCHING_TABLES,
    WINDOWED_TABLES,
    ReadOptions,
    narrowed,
    rows_in,
)
from traceprof.model.ranks import Ranks
from traceprof.model.table import Table
from traceprof.model.tables import TABLES
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace
from traceprof.session.caveats import selected
from traceprof.session.opening import rules_of
from traceprof.session.run import SELF_DESCRIPTION, Run
from traceprof.session.selection import Selection, check_ranks

_IN_PARTS: Final = (*WINDOWED_TABLES, *LAUNCHING_TABLES)
_ROWS_OF_PART: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Portion:
    """Rows of one file: ``tables`` has the rows of this part, by table.

    ``trace`` has these rows and the calls that launched them.
    """

    tables: Mapping[str, Table]
    trace: Trace


@dataclass
class Material:
    """A run, or its rows that overlap with its window, on one clock.

    Rows are whole even if the window cuts them. API calls that launched GPU activity in the window
    are included. Without ``window``, all rows are included. ``only_ranks`` omits the rows of other
    ranks.
    """

    run: Run
    only_ranks: Collection[int] | None = None
    rows_of_part: int = field(default=_ROWS_OF_PART, repr=False)

    @cached_property
    def ranks(self) -> Ranks:
        """The run with the tables that describe it; with all events if `parts` needs them."""
        tables = SELF_DESCRIPTION if self._is_in_parts else frozenset(TABLES)
        ranks = self.run.of_files(tables)
        return ranks if self.only_ranks is None else ranks.map(self._without_other_ranks)

    def _without_other_ranks(self, trace: Trace) -> Trace:
        kept = {name: self._of_ranks(trace.table(name)) for name in ("processes", "threads")}
        return trace.with_tables(kept)

    @cached_property
    def _processes(self) -> frozenset[int] | None:
        """The processes of the wanted ranks (None: all)."""
        if self.only_ranks is None:
            return None
        processes = self.run.within("all").of_ranks(SELF_DESCRIPTION).whole.table("processes")
        check_ranks(self.only_ranks, processes["rank"])
        chosen = processes["process"][np.isin(processes["rank"], list(self.only_ranks))]
        return frozenset(chosen.tolist())

    def _of_ranks(self, table: Table) -> Table:
        """Return the rows of the wanted ranks."""
        if self._processes is None or "process" not in table:
            return table
        return table.take(np.isin(table["process"], list(self._processes)))

    @cached_property
    def selection(self) -> Selection | None:
        """The selected window (None: everything)."""
        return None if self.run.window in (None, "all") else selected(self.run)

    @property
    def window(self) -> TimeWindow | None:
        """The window on the clock of the run (None: everything)."""
        return None if self.selection is None else self.selection.window

    @property
    def span(self) -> TimeWindow:
        """The time span of the rows."""
        return self.ranks.span if self.window is None else self.window

    def parts(self, tables: Collection[str] = TABLES) -> Iterator[Portion]:
        """Yield the rows of ``tables`` that have times, each row once; each table in time order.

        Raises:
            TraceError: a file cannot be read.
        """
        wanted = frozenset(name for name in tables if TABLES[name].has_times)
        if not self._is_in_parts:
            for trace in self.ranks:
                yield self._whole_part(trace, wanted)
            return
        for group in ({"ranges", "marks"}, {"collectives"}):
            if group & wanted:
                trace = self._read(frozenset(group & wanted))
                yield self._whole_part(trace, frozenset(group & wanted))
        if wanted.intersection(_IN_PARTS):
            yield from self._spans(wanted.intersection(_IN_PARTS))

    @cached_property
    def _is_in_parts(self) -> bool:
        """Whether the file is read one time span after another."""
        return self.run.is_read_in_parts

    def _read(self, tables: frozenset[str], window: TimeWindow | None = None) -> Trace:
        """Return the file with ``tables``, and only the events in ``window``."""
        known = self.ranks.parts[0]
        opening = self.run.opening
        options = ReadOptions(
            rules_of(opening), tables, window, known, keeps_secrets=opening.keeps_secrets
        )
        trace = open_trace(self.run.paths[0], options)
        self.run.warn(trace.info.warnings)
        return trace

    def _whole_part(self, trace: Trace, tables: frozenset[str]) -> Portion:
        """Return a portion with all rows of ``tables`` in the window."""
        if self.window is not None:
            trace = narrowed(trace, ReadOptions(window=self.window))
            rest = tables - {*_IN_PARTS}
            trace = trace.with_tables({n: rows_in(trace, n, self.window) for n in rest})
        found = {name: trace.table(name) for name in TABLES if name in tables}
        return self._part(found, trace)

    def _part(self, tables: Mapping[str, Table], trace: Trace) -> Portion:
        return Portion({name: self._of_ranks(rows) for name, rows in tables.items()}, trace)

    def _spans(self, tables: frozenset[str]) -> Iterator[Portion]:
        """Yield portions of the events, one time span after another."""
        n_rows = outline(self.run.paths[0]).n_rows
        n_parts = 1 + sum(n_rows[TABLES[n].detail_of or n] for n in tables) // self.rows_of_part
        span = self.span
        edges = np.linspace(span.start_ns, span.end_ns, n_parts + 1).astype(np.int64).tolist()
        # Events at the very end of the recording belong to the last part.
        edges[0], edges[-1] = span.start_ns, span.end_ns + (self.window is None)
        for first, end in pairwise(edges):
            if first == end:
                continue
            trace = self._read(tables, TimeWindow(first, end))
            begins = None if first == edges[0] else first
            found = {n: _begun(trace.table(n), begins, end) for n in TABLES if n in tables}
            yield self._part(found, trace)


def _begun(table: Table, first_ns: int | None, end_ns: int) -> Table:
    """Return the rows that start before ``end_ns`` and not before ``first_ns`` (None: no limit)."""
    starts = table["start_ns"]
    first = 0 if first_ns is None else int(np.searchsorted(starts, first_ns))
    return table.take(slice(first, int(np.searchsorted(starts, end_ns))))
