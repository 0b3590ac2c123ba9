"""SQL on a run: its tables and steps as views, in the window, without secrets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from traceprof.errors import NotRecordedError
from traceprof.measures import load_analysis
from traceprof.model.results import Unit
from traceprof.model.table import Column, Table, is_known
from traceprof.model.tables import ABSENT, TABLES
from traceprof.query.columns import VIEWS_OF_TABLES, plain_columns
from traceprof.query.engine import (
    Limits,
    QueryRows,
    View,
    ViewColumn,
    answer_parts,
    out_of_memory,
    out_of_time,
)
from traceprof.session.caveats import Caveats, caveats_of_stream, refuses_with_caveats
from traceprof.session.material import Material
from traceprof.session.run import Run
from traceprof.workers.limited import Limited, OutOfTimeError, ProcessDiedError

STEPS: Final = "steps"
_PREPARING_S: Final = 20.0
"""Time limit to start a process and prepare the statement: a nested WITH may be a bomb."""
_GRACE_S: Final = 1.0
"""SQLite stops at the time limit, unless a single function call takes longer."""
_TYPES: Final = {Unit.TEXT: "TEXT", Unit.RATIO: "REAL", Unit.PER_S: "REAL"}
_BORDERS: Final = (
    ViewColumn("start_ns", "INTEGER", "time in ns since the start of the run"),
    ViewColumn("end_ns", "INTEGER", "start_ns + duration_ns"),
)


@dataclass(frozen=True, slots=True)
class Answer:
    """The rows of a query, and remarks on requested data that was not recorded."""

    rows: QueryRows
    remarks: tuple[str, ...]
    caveats: Caveats


def views() -> tuple[View, ...]:
    """Return the views that a query may read: the tables of a trace, and the steps."""
    table = load_analysis(STEPS).spec.tables[0]
    columns = [
        ViewColumn(column.name, _TYPES.get(column.unit, "INTEGER"), column.meaning)
        for column in table
        if column.name != "at_ns"
    ]
    rank = ViewColumn("rank", "INTEGER", "rank of the process")
    first, rest = columns[:2], columns[2:]
    about = "one row per process and step, like `traceprof show steps`; NULL: not recorded"
    steps = View(STEPS, about, (first[0], rank, first[1], *_BORDERS, *rest))
    return (*VIEWS_OF_TABLES.values(), steps)


@refuses_with_caveats
def query(run: Run, sql: str, limits: Limits | None = None) -> Answer:
    """Return the rows of one SELECT on the run; without a window, on all of it.

    Rows that the window cuts are clipped, with a proportional part of their bytes, as in analyses.

    Raises:
        UsageError: the statement is wrong or not a SELECT, or exceeds the time or memory limit.
        TraceError: a file cannot be read.
        NotRecordedError: nothing that the statement reads was recorded.
    """
    limits = limits or Limits()
    try:
        with Limited(answer_parts, sql, views(), limits) as worker:
            source = _Source(run, worker.answer(_PREPARING_S))
            remarks = tuple(source.remarks())
            if remarks and len(remarks) == len(source.reads):
                raise NotRecordedError(remarks[0])
            for part in source.rows():
                worker.send(part)
            worker.finish()
            worker.answer()
            rows = worker.answer(limits.seconds + _GRACE_S)
    except OutOfTimeError as error:
        raise out_of_time(limits) from error
    except ProcessDiedError as error:
        raise out_of_memory() from error
    return Answer(rows, remarks, caveats_of_stream(run))


@dataclass
class _Source:
    """The columns ``reads`` (by view) of a run."""

    run: Run
    reads: Mapping[str, frozenset[str]]

    @cached_property
    def material(self) -> Material:
        """The run without secrets."""
        return Material(self.run)

    @cached_property
    def ranks(self) -> dict[int, int]:
        """The rank of each process, or ABSENT."""
        processes = self.material.ranks.table("processes")
        return dict(zip(processes["process"].tolist(), processes["rank"].tolist(), strict=True))

    def remarks(self) -> Iterator[str]:
        """Yield a remark for each view whose data was not recorded, so that it is empty."""
        for name in self.reads:
            if name in TABLES and TABLES[name].has_times:
                try:
                    self.material.ranks.require(name)
                except NotRecordedError as error:
                    yield str(error)
        if STEPS in self.reads and not len(self.steps):
            yield "the trace contains no steps"

    def rows(self) -> Iterator[tuple[str, dict[str, list[Any]], int]]:
        """Yield the views that are read: name, columns, and number of rows, in parts."""
        for name, table in self._tables():
            kinds, wanted = TABLES[name].columns, self.reads[name]
            zero_ns = self.material.ranks.whole.span.start_ns
            yield name, plain_columns(table, kinds, wanted, zero_ns, self.ranks), len(table)
        if STEPS in self.reads:
            yield STEPS, self._columns_of_steps(), len(self.steps)

    def _tables(self) -> Iterator[tuple[str, Table]]:
        """Yield the tables that are read, in parts."""
        names = [name for name in self.reads if name in TABLES]
        events = frozenset(name for name in names if TABLES[name].has_times)
        for name in names:
            if name not in events:
                yield name, self.material.ranks.table(name)
        if not events:
            return
        if self.material.window is None:
            for part in self.material.parts(events):
                yield from part.tables.items()
            return
        for trace in self.run.of_ranks(events):
            for name in sorted(events):
                yield name, trace.table(name)

    @cached_property
    def steps(self) -> Table:
        """The steps in the window; empty if they were not recorded."""
        try:
            result = self.run.within(self.run.window or "all").result(STEPS)
        except NotRecordedError:
            return Table({})
        # Iterations of a pattern are not steps.
        return result.table.head(0) if result.scalars["is_pattern"] else result.table

    def _columns_of_steps(self) -> dict[str, list[Any]]:
        """Return the columns of the view ``steps`` that are read."""
        steps, wanted = self.steps, self.reads[STEPS]
        found = {name: _plain(steps[name]) for name in steps if name in wanted}
        if "start_ns" in wanted:
            found["start_ns"] = _plain(steps["at_ns"])
        if "end_ns" in wanted:
            found["end_ns"] = _plain(steps["at_ns"] + steps["duration_ns"])
        if "rank" in wanted:
            ranks = (self.ranks.get(process, ABSENT) for process in steps["process"].tolist())
            found["rank"] = [None if rank == ABSENT else rank for rank in ranks]
        return found


def _plain(values: Column) -> list[Any]:
    """Return the values of a result's column in types that SQLite accepts."""
    pairs = zip(values.tolist(), is_known(values).tolist(), strict=True)
    return [value if is_known else None for value, is_known in pairs]
