"""The tables of a trace: their columns, types, and meaning.

One row per interval, sorted by ``start_ns``. Times are ``int64`` nanoseconds on the trace's own
clock. Texts are codes of a dictionary. In an integer column, `ABSENT` (-1) means "not applicable or
unknown"; in a float column, NaN does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traceprof.cache import scratch
from traceprof.model.compact import CompactTable
from traceprof.model.grouping import pieces_of
from traceprof.model.table import Names, Table, objects, spill_to_disk
from traceprof.registries import check_distinct

ABSENT: Final = -1
_LAUNCH_KEY: Final = ("start_ns", "end_ns", "device", "stream", "process", "correlation")


class ColumnKind(StrEnum):
    """The type of a column."""

    TIME = "time"  # int64 ns on the clock of the trace
    NUMBER = "number"  # int64, ABSENT where unknown
    FLOAT = "float"  # float64, NaN where unknown
    NAME = "name"  # str, few distinct values: `Names`
    TEXT = "text"  # str, many distinct values


@dataclass(frozen=True, slots=True)
class TableSchema:
    """The schema of one table: its columns in order, and whether rows are spans or instants.

    ``has_times``: rows have a time (devices and similar tables do not). ``has_spans``: rows last
    from ``start_ns`` to ``end_ns``. ``pro_rata`` names the columns that are divided in proportion
    when a window cuts a row. ``detail_of``: the rows match those of that table one to one and add
    columns; the table is read only on request.
    """

    name: str
    summary: str
    columns: Mapping[str, ColumnKind]
    has_times: bool
    has_spans: bool
    pro_rata: tuple[str, ...] = ()
    detail_of: str = ""


def _tables(text: str) -> Mapping[str, TableSchema]:
    """Return the tables that ``text`` declares, separated by blank lines: NAME: SUMMARY | COLUMNS.

    "NAME of TABLE" declares details of another table. A column that is not an integer has its kind
    behind a colon. "~" behind its name marks a column that is divided pro rata.
    """
    tables: dict[str, TableSchema] = {}
    for declared in text.strip().split("\n\n"):
        head, _, named = " ".join(declared.split()).partition(" | ")
        title, _, summary = head.partition(": ")
        name, _, detail_of = title.partition(" of ")
        parts = [column.partition(":") for column in named.split()]
        check_distinct(f"column of {name}", (column.rstrip("~") for column, _, _ in parts))
        check_distinct("table", (*tables, name))
        kinds = {column.rstrip("~"): kind for column, _, kind in parts}
        times = dict.fromkeys(("start_ns", "end_ns"), ColumnKind.TIME)
        tables[name] = TableSchema(
            name,
            summary,
            {c: ColumnKind(kind or times.get(c, ColumnKind.NUMBER)) for c, kind in kinds.items()},
            has_times="start_ns" in kinds,
            has_spans="end_ns" in kinds,
            pro_rata=tuple(column[:-1] for column, _, _ in parts if column.endswith("~")),
            detail_of=detail_of,
        )
    return tables


TABLES: Final = _tables("""
kernels: GPU kernels; a CUDA graph that was traced as a whole is one row
| start_ns end_ns device stream process correlation name:name activity:name graph_node

kernel_shapes of kernels: launch configuration of kernels: grid, block, registers per thread, shared
memory per block (shared_bytes is static plus dynamic), context
| start_ns end_ns device stream process correlation context grid_x grid_y grid_z block_x block_y
block_z registers static_shared_bytes dynamic_shared_bytes shared_bytes

copies: copies and memsets on a GPU; direction: h2d d2h d2d p2p h2h memset unknown
| start_ns end_ns device stream process correlation direction:name n_bytes~ src_kind:name
dst_kind:name src_device dst_device graph_node

api_calls: calls to the CUDA (or HIP) runtime and driver on the host
| start_ns end_ns process thread correlation name:name

ranges: host annotations such as NVTX ranges; kind: push_pop or start_end
| start_ns end_ns process thread domain:name category name:name depth payload:float kind:name

marks: instant annotations on the host
| start_ns process thread domain:name name:name payload:float

host_ops: host operators; source: cpu_op, osrt, cudnn, cublas, mpi, async …
| start_ns end_ns process thread source:name name:name correlation

functions: calls of Python functions (torch.profiler, with_stack=True) that last 50 µs or more; the
time of shorter calls belongs to their caller; or runs of samples of Python stacks (nsys,
--python-sampling=true); name: "file(line): function"
| start_ns end_ns process thread name:name

operator_inputs of host_ops: operator inputs from PyTorch (record_shapes), as JSON lists with one
element per input: dims are the sizes, types the element types, concrete the numbers and booleans
as text; flop and gigabytes are the values that PyTorch recorded
| start_ns end_ns process thread name:name dims:name types:name concrete:name flop:name
  gigabytes:name

syncs: synchronization: waits of the host or of a stream; kind: event stream_wait stream context
| start_ns end_ns device stream process correlation kind:name

collectives: collective and point-to-point calls on the host; n_bytes: input size of this rank (its
shard for all_gather and gather, the whole tensor for reduce_scatter and all_to_all), or the output
size for scatter and recv; group_rank: this rank's number in the group; peer: destination of a send,
or source of a receive, as a number in the group; peer_rank: the same rank's number in the job; tag:
message tag of MPI or torch
| start_ns end_ns process thread op:name n_bytes dtype:name group:name group_size backend:name
sequence correlation group_rank peer peer_rank tag

samples: time series of network, GPU, and host counters; the metric names the unit of the value
| start_ns source:name metric:name value:float

overheads: profiler overhead
| start_ns end_ns process thread name:name

devices: accelerators of the machine; used: 1 if the trace contains work on the device;
compute_capability: for NVIDIA GPUs, 86 for 8.6
| device used name:text uuid:text memory_bytes memory_bytes_per_s sm_count compute_capability

processes: processes with rows in this trace
| process name:text rank local_rank world_size host:text rack:text

threads: thread names
| process thread name:text

environment: properties of the machine and the software, without secrets
| name:text value:text
""")
_EMPTY: Final[dict[str, Table]] = {}


def unit_of(column: str) -> str:
    """Return the unit in the name of a column: ns, bytes, bytes/s, or ""."""
    units = (("_ns", "ns"), ("_bytes_per_s", "bytes/s"), ("_bytes", "bytes"))
    return next((unit for ending, unit in units if column.endswith(ending)), "")


def empty_table(name: str) -> Table:
    """Return table ``name`` without rows, with the correct column types."""
    if name not in _EMPTY:
        _EMPTY[name] = make_table(name, {})
    return _EMPTY[name]


def make_table(name: str, columns: Mapping[str, Any]) -> Table:
    """Return table ``name`` from ``columns`` (name → array), typed, complete, and sorted.

    Missing columns are filled with the value for "unknown". Rows are sorted by start and, for equal
    starts, by descending end, so that an enclosing row comes first.

    Raises:
        ValueError: the table does not have a column, or columns have different lengths.
    """
    table = TABLES[name]
    unknown = set(columns) - set(table.columns)
    if unknown:
        raise ValueError(f"table {name} has no columns {sorted(unknown)}")
    length = max(map(len, columns.values()), default=0)
    if columns and not length:
        return empty_table(name)
    typed = (
        (column, _typed(columns.get(column), kind, length))
        for column, kind in table.columns.items()
    )
    # Detail tables are rarely used: store them in compact form.
    made: Table
    if table.detail_of and length:
        made = CompactTable.of_each(typed, length)
    else:  # one column at a time to limit memory
        is_long = 8 * length >= scratch.MIN_DISK_BYTES
        made = Table(
            {name: spill_to_disk(values) if is_long else values for name, values in typed}, length
        )
    order = sort_order(made, table)
    if not scratch.files:
        return made if order is None else made.take(order)
    if order is None or table.detail_of:
        return (made if order is None else made.take(order)).on_disk()
    return Table({column: spill_to_disk(made[column][order]) for column in made}, length)


def _typed(values: Any, kind: ColumnKind, length: int) -> Any:
    match kind:
        case ColumnKind.TIME:
            if values is None and length:
                raise ValueError("a column of times must be given")
            return np.asarray(() if values is None else values, np.int64)
        case ColumnKind.NUMBER:
            return np.full(length, ABSENT) if values is None else np.asarray(values, np.int64)
        case ColumnKind.FLOAT:
            return np.full(length, np.nan) if values is None else np.asarray(values, np.float64)
        case ColumnKind.NAME:
            return Names.repeated("", length) if values is None else Names.of(values)
        case ColumnKind.TEXT:
            return objects([""] * length if values is None else values)


def sort_order(
    columns: Mapping[str, Any] | Table, table: TableSchema
) -> npt.NDArray[np.int64] | None:
    """Return the row order by start and, for equal starts, descending end; None if sorted."""
    if not table.has_times or len(columns["start_ns"]) < 2:
        return None
    starts = np.asarray(columns["start_ns"])
    if not table.has_spans:
        is_sorted = bool((starts[1:] >= starts[:-1]).all())
        return None if is_sorted else np.argsort(starts, kind="stable")
    ends = np.asarray(columns["end_ns"])
    is_after, tied = starts[1:] > starts[:-1], starts[1:] == starts[:-1]
    if bool((is_after | (tied & (ends[1:] <= ends[:-1]))).all()):
        return None
    order = np.argsort(starts, kind="stable")  # fast for nearly sorted rows
    are_tied = np.zeros(len(order), np.bool_)
    for piece in pieces_of(len(order)):
        ordered = starts[order[piece.start : piece.stop + 1]]
        are_tied[piece][: len(ordered) - 1] = ordered[1:] == ordered[:-1]
    are_tied[1:] |= are_tied[:-1]
    rows = np.flatnonzero(are_tied)
    tied_rows = order[rows]
    order[rows] = tied_rows[np.lexsort((tied_rows, -ends[tied_rows], starts[tied_rows]))]
    return order


def stack(name: str, parts: Sequence[Table]) -> Table:
    """Return the rows of all ``parts`` (tables called ``name``) as one table."""
    filled = [part for part in parts if len(part)]
    if len(filled) <= 1:
        return filled[0] if filled else empty_table(name)
    stacked = Table.stacked(filled)
    return make_table(name, {column: stacked[column] for column in stacked})


SHAPE_COLUMNS: Final = tuple(
    column for column in TABLES["kernel_shapes"].columns if column not in _LAUNCH_KEY
)


def shapes_of(kernels: Table, shapes: Table) -> Table:
    """Return `SHAPE_COLUMNS` with a row for each of ``kernels``; `ABSENT` where unknown.

    Both tables belong to one trace and have the same order, so they usually match row by row. If
    they do not (for example with kernels of another source in between), rows are matched by time,
    device, stream, process, and correlation ID. Ambiguous matches are not used.
    """
    shapes_only = (
        shapes.narrowed(*SHAPE_COLUMNS)
        if isinstance(shapes, CompactTable)
        else shapes.select(*SHAPE_COLUMNS)
    )
    if _match_row_by_row(kernels, shapes):
        return shapes_only
    places = [
        list(zip(*(table[column].tolist() for column in _LAUNCH_KEY), strict=True))
        for table in (kernels, shapes)
    ]
    times = Counter(places[1])
    row_of = {place: row for row, place in enumerate(places[1]) if times[place] == 1}
    rows = np.array([row_of.get(place, -1) for place in places[0]], np.int64)
    return Table(
        {name: np.append(shapes_only[name], ABSENT)[rows] for name in SHAPE_COLUMNS}, len(kernels)
    )


def _match_row_by_row(kernels: Table, shapes: Table) -> bool:
    """Return whether both tables have the same launches in the same order."""
    return len(kernels) == len(shapes) and all(
        np.array_equal(kernels[column], shapes[column]) for column in _LAUNCH_KEY
    )
