"""Lists every operation of the GPUs in time order: kernels, copies, and memsets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from traceprof.measures.device.ncu import function_names, launch_numbers, recorded_program
from traceprof.measures.device.occupancy import contexts_of_streams, launch_shapes
from traceprof.measures.host.range_work import nested_ranges, ranges_of_work
from traceprof.measures.rows import Bools, Ints
from traceprof.model.results import TableSpec
from traceprof.model.table import Names, Table, objects
from traceprof.model.tables import ABSENT
from traceprof.model.trace import DEVICE_TABLES, Trace
from traceprof.names.kernels import copy_titles
from traceprof.names.ranges import plain_names
from traceprof.names.user_patterns import UserPattern, user_pattern
from traceprof.session.caveats import refuses_with_caveats
from traceprof.session.run import Run

_CHUNK: Final = 20_000
_LAUNCHING: Final = frozenset({"ranges", "api_calls"})
_TABLES: Final = frozenset({*DEVICE_TABLES, "kernel_shapes", "devices", "processes", "environment"})


OPERATIONS: Final = TableSpec.of("""
    table operations: one row per kernel, copy and memset on a GPU, ordered by start time
    key at_ns: start time, counted from the start of the run
    same duration_ns: duration
    same rank: rank whose process launched the operation
    same device: number of the GPU in the run
    same context [number]: CUDA context; for copies only if kernels on the same stream record it
    same stream: stream number
    same correlation [number]: correlation ID that connects the operation to its launch
    same grid_x [number]: grid size in x
    same grid_y [number]: grid size in y
    same grid_z [number]: grid size in z
    same block_x [number]: block size in x
    same block_y [number]: block size in y
    same block_z [number]: block size in z
    same registers [number]: registers per thread
    same static_shared_bytes: static shared memory per block
    same dynamic_shared_bytes: dynamic shared memory per block
    same shared_bytes: static plus dynamic shared memory per block
    same occupancy_ratio: theoretical occupancy
    same n_bytes: bytes moved by a copy or memset
    same bytes_per_s: n_bytes divided by the duration
    same src_kind: memory kind of the source of a copy
    same dst_kind: memory kind of the destination of a copy
    same range: innermost range that launched the operation, for the longest operations; "" for none
    key name: kernel name, or [CUDA memcpy HtoD] and similar
    """)
LAUNCHES: Final = TableSpec.of("""
    table launches: one row per kernel, with the options that select it in Nsight Compute
    key at_ns: start time, counted from the start of the run
    same duration_ns: duration
    same rank: rank whose process launched the kernel
    key function: function name of the kernel
    same skip [count]: number of earlier launches of the function in the same process
    same command: command of the program, if recorded
    """)


@dataclass(frozen=True, slots=True)
class OperationFilter:
    """Conditions on operations; an operation must meet all of them.

    ``name`` is a regular expression that is searched in the name, ignoring case. Durations are in
    ns. ``longest_first``: sort by duration instead of start, and add the range that launched each
    operation.
    """

    name: str | None = None
    kind: Literal["kernel", "copy", "memset"] | None = None
    devices: Sequence[int] | None = None
    ranks: Sequence[int] | None = None
    streams: Sequence[int] | None = None
    min_ns: int | None = None
    max_ns: int | None = None
    n_rows: int | None = None
    longest_first: bool = False

    def pattern(self) -> UserPattern | None:
        """Return the compiled pattern of names, or None.

        Raises:
            UsageError: ``name`` is not a valid regular expression.
        """
        return None if self.name is None else user_pattern(self.name, "--name", ignore_case=True)


@dataclass(frozen=True, slots=True)
class Operations:
    """The chosen operations. `chunks` yields them in tables of some thousand rows."""

    sources: Sequence[_Source]
    order: Ints

    @property
    def n_rows(self) -> int:
        """The number of chosen operations."""
        return len(self.order)

    def chunks(self) -> Iterator[Table]:
        """Yield tables with the columns of `OPERATIONS`, in order."""
        return self._tables(_Source.operations, OPERATIONS)

    def launches(self) -> Iterator[Table]:
        """Yield tables with the columns of `LAUNCHES` for the kernels, in order."""
        return self._tables(_Source.launches, LAUNCHES)

    def _tables(self, make: Callable[[_Source, Ints], Table], spec: TableSpec) -> Iterator[Table]:
        """Yield tables of ``spec``, each made of up to `_CHUNK` rows."""
        firsts = np.cumsum([0, *(len(source.rows) for source in self.sources)])
        for begin in range(0, len(self.order), _CHUNK):
            wanted = self.order[begin : begin + _CHUNK]
            owner = np.searchsorted(firsts, wanted, side="right") - 1
            parts, places = [], []
            for number in np.unique(owner).tolist():
                places.append(np.flatnonzero(owner == number))
                source = self.sources[number]
                parts.append(make(source, source.rows[wanted[places[-1]] - firsts[number]]))
            yield spec.of_rows(Table.stacked(parts).take(np.argsort(np.concatenate(places))))


@dataclass(frozen=True, slots=True)
class _Source:
    """The chosen rows of one table of one rank."""

    trace: Trace
    table: str
    rows: Ints
    zero_ns: int
    has_ranges: bool = False

    def operations(self, rows: Ints) -> Table:
        """Return rows of the table with the columns of `OPERATIONS`."""
        events = self.trace.table(self.table).take(rows)
        duration = events["end_ns"] - events["start_ns"]
        found = events.select("device", "stream", "correlation").assign(
            at_ns=events["start_ns"] - self.zero_ns,
            duration_ns=duration,
            rank=_ranks_of(self.trace, events["process"]),
        )
        if self.has_ranges:
            found = found.assign(range=self._ranges_of(rows))
        if self.table == "kernels":
            return found.assign(**self._shape_columns(rows), name=events["name"].plain())
        streams = contexts_of_streams(self.trace)
        keys = ("process", "device", "stream")
        context = dict(zip(_keys(streams, keys), streams["context"].tolist(), strict=True))
        with np.errstate(divide="ignore", invalid="ignore"):
            rate = events["n_bytes"] * 1e9 / np.where(duration > 0, duration, np.nan)
        return found.assign(
            context=np.array([context.get(key, ABSENT) for key in _keys(events, keys)], np.int64),
            n_bytes=events["n_bytes"],
            bytes_per_s=rate,
            src_kind=_kinds(events["src_kind"]),
            dst_kind=_kinds(events["dst_kind"]),
            name=copy_titles(events).plain(),
        )

    def launches(self, rows: Ints) -> Table:
        """Return rows of the kernels with the columns of `LAUNCHES`."""
        kernels = self.trace.kernels.take(rows)
        return Table(
            {
                "at_ns": kernels["start_ns"] - self.zero_ns,
                "duration_ns": kernels["end_ns"] - kernels["start_ns"],
                "rank": _ranks_of(self.trace, kernels["process"]),
                "function": function_names(kernels).plain(),
                "skip": launch_numbers(self.trace)[rows],
                "command": recorded_program(self.trace.environment),
            },
            len(kernels),
        )

    def _ranges_of(self, rows: Ints) -> npt.NDArray[np.object_]:
        """Return the plain name of the innermost range that launched each row."""
        place = ranges_of_work(self.trace, self.table)[rows]
        ranges = self.trace.ranges.take(nested_ranges(self.trace).rows)
        found: npt.NDArray[np.object_] = np.append(plain_names(ranges["name"]).plain(), "")[place]
        return found

    def _shape_columns(self, rows: Ints) -> dict[str, Any]:
        """Return the columns on launch dimensions and contexts of kernels."""
        trace = self.trace
        if trace.kernel_shapes.empty:
            return {}
        launched = launch_shapes(trace)
        shapes = launched.table.take(launched.of_kernel[rows].wide())
        shown = [c.name for c in OPERATIONS if c.name in shapes and c.name != "device"]
        columns: dict[str, Any] = {name: shapes[name] for name in shown}
        return {**columns, "context": launched.contexts[rows].wide()}


def _ranks_of(trace: Trace, processes: Ints) -> Ints:
    """Return the rank of each process, ABSENT for none."""
    rank_of = dict(zip(*(trace.processes[n].tolist() for n in ("process", "rank")), strict=True))
    distinct, place = np.unique(processes, return_inverse=True)
    return np.array([rank_of.get(process, ABSENT) for process in distinct.tolist()], np.int64)[
        place.ravel()
    ]


def _keys(table: Table, names: Sequence[str]) -> list[tuple[int, ...]]:
    """Return the values of the columns ``names`` as a list of tuples, one per row."""
    return list(zip(*(table[name].tolist() for name in names), strict=True))


def _kinds(kinds: Names) -> npt.NDArray[np.object_]:
    """Return memory kinds as texts, with "" for unknown ones."""
    texts: npt.NDArray[np.object_] = kinds.by_text(
        objects("" if text == "unknown" else text for text in kinds.texts)
    )
    return texts


@refuses_with_caveats
def operations(
    run: Run, chosen: OperationFilter | None = None, *, counts_launches: bool = False
) -> Operations:
    """Return the chosen operations that overlap with the window of the run, each in full.

    ``counts_launches``: the caller uses `Operations.launches`, which counts from the first launch.

    Raises:
        NotRecordedError: no GPU activity was recorded.
        UsageError: the window is invalid, or the name is not a valid regular expression.
    """
    chosen = chosen or OperationFilter()
    pattern = chosen.pattern()
    whole = frozenset({"kernels"}) if counts_launches else frozenset[str]()
    tables = _TABLES
    if chosen.longest_first:  # the launches of operations may be before the window
        tables, whole = tables | _LAUNCHING, whole | _LAUNCHING
    ranks = run.of_ranks(tables, whole)
    if not ranks.recorded & set(DEVICE_TABLES):
        ranks.require("kernels")
    zero_ns = ranks.whole.span.start_ns
    sources = []
    for part in ranks:
        for table in DEVICE_TABLES:
            rows = _chosen_rows(part, table, chosen, pattern)
            if len(rows):
                sources.append(_Source(part.whole, table, rows, zero_ns, chosen.longest_first))
    return Operations(sources, _order(sources, chosen))


def _order(sources: Sequence[_Source], chosen: OperationFilter) -> Ints:
    """Return the order of the rows of all sources, limited to the requested number."""
    if not sources:
        return np.empty(0, np.int64)
    tables = [source.trace.table(source.table) for source in sources]
    starts, ends = (
        np.concatenate([table[time][s.rows] for table, s in zip(tables, sources, strict=True)])
        for time in ("start_ns", "end_ns")
    )
    first = (starts, starts - ends) if chosen.longest_first else (starts,)
    return np.lexsort(first)[: chosen.n_rows]


def _chosen_rows(
    part: Trace, table: str, chosen: OperationFilter, pattern: UserPattern | None
) -> Ints:
    """Return the indices of the chosen rows in the table of the whole trace."""
    whole = part.whole.table(table)
    rows = np.arange(len(whole))[part.rows_in_whole(table)]
    events = whole.take(rows)
    keep = np.ones(len(rows), np.bool_)
    for column, wanted in (("device", chosen.devices), ("stream", chosen.streams)):
        if wanted is not None:
            keep &= np.isin(events[column], list(wanted))
    if chosen.ranks is not None:
        keep &= np.isin(_ranks_of(part, events["process"]), list(chosen.ranks))
    duration = events["end_ns"] - events["start_ns"]
    if chosen.min_ns is not None:
        keep &= duration >= chosen.min_ns
    if chosen.max_ns is not None:
        keep &= duration <= chosen.max_ns
    if chosen.kind is not None:
        keep &= _is_of_kind(events, table, chosen.kind)
    if pattern is not None:
        names = events["name"] if table == "kernels" else copy_titles(events)
        keep &= names.by_text(pattern.found_in(names.texts.tolist()))
    return rows[keep]


def _is_of_kind(events: Table, table: str, kind: str) -> Bools:
    """Return which events are of a ``kind``: kernel, copy, or memset."""
    if table == "kernels" or kind == "kernel":
        return np.full(len(events), (table == "kernels") == (kind == "kernel"), np.bool_)
    return np.asarray((events["direction"] == "memset") == (kind == "memset"), np.bool_)
