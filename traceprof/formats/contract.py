"""The interface of a trace format: recognize a file by its content, read it, outline it, cut it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from traceprof.errors import missing_extra
from traceprof.model.cutting import Cutter
from traceprof.model.grouping import find_matching_rows, groups_of
from traceprof.model.table import Table
from traceprof.model.tables import ABSENT, TABLES, empty_table
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import DEVICE_TABLES, Trace, make_trace
from traceprof.names.classes import UserRule

_DEFAULT_TABLES: Final = frozenset(name for name, table in TABLES.items() if not table.detail_of)
WINDOWED_TABLES: Final = ("kernels", "kernel_shapes", "copies", "syncs", "samples", "overheads")
"""Tables of which only the rows that overlap the window are read."""
LAUNCHING_TABLES: Final = ("api_calls", "host_ops")
"""Tables that are read from the first launch of the window's device work to the window's end."""
OUTLINED_TABLES: Final = ("api_calls", "ranges", "host_ops")
"""Tables whose rows an `Outline` counts per process."""
_LAUNCH: Final = ("process", "correlation")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A file or folder to recognize.

    ``head`` are the first bytes of a file, ``tables`` the tables of a SQLite file. ``files`` are
    the names of the files in a folder.
    """

    path: Path
    head: bytes
    tables: frozenset[str] = frozenset()
    files: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What to read, and how. By default everything is read.

    ``tables`` names the tables of `traceprof.model.tables.TABLES` to read (None: all but the detail
    tables); all other tables are empty. ``window``, on the clock of the trace, saves reading time
    but does not cut: every row that overlaps it is returned whole, and rows outside it are not
    returned. This applies to `WINDOWED_TABLES`. For `LAUNCHING_TABLES` the window begins with the
    earliest launch of the kernels and copies in it. All other tables are read whole, because steps
    need every range.

    ``recorded``, ``span``, and ``info`` of the Trace always describe the whole file, as do its
    devices, processes, threads, and environment if they are wanted. ``known`` is a Trace read
    earlier from the same file; readers reuse its description of the file instead of reading it
    again. ``only_steps``: only ranges that can be steps, or forward and backward passes, are
    needed, and all ranges of traceprof itself; readers may return more. ``keeps_secrets``: secrets
    are not masked.
    """

    rules: Sequence[UserRule] = ()
    tables: frozenset[str] | None = None
    window: TimeWindow | None = None
    known: Trace | None = None
    only_steps: bool = False
    keeps_secrets: bool = False

    def __post_init__(self) -> None:
        unknown = (self.tables or frozenset()) - TABLES.keys()
        if unknown:
            raise ValueError(f"unknown tables: {sorted(unknown)}")

    def wants(self, *names: str) -> bool:
        """Return whether at least one of these tables is wanted."""
        return not (_DEFAULT_TABLES if self.tables is None else self.tables).isdisjoint(names)

    def needs(self, name: str) -> bool:
        """Return whether a table must be read: it is wanted, or needed to find the launches."""
        finds_launches = self.window is not None and name in ("kernels", "copies", "api_calls")
        return self.wants(name) or (finds_launches and self.wants(*LAUNCHING_TABLES))

    def reads_whole(self, name: str) -> bool:
        """Return whether a table is read with all its rows."""
        is_cut = self.window is not None and name in (*WINDOWED_TABLES, *LAUNCHING_TABLES)
        is_cut |= self.only_steps and name == "ranges"
        return self.needs(name) and not is_cut


@dataclass(frozen=True, slots=True, eq=False)
class Outline:
    """What a file contains: the counts that a full read would give.

    ``n_rows`` maps each table with times to its number of rows. ``device_rows`` counts kernels and
    copies: table → (process, device) → rows. ``process_rows`` counts the rows of `OUTLINED_TABLES`:
    table → process → rows. Devices and processes without rows are omitted. ``trace`` has no events.
    """

    trace: Trace
    n_rows: Mapping[str, int]
    device_rows: Mapping[str, Mapping[tuple[int, int], int]]
    process_rows: Mapping[str, Mapping[int, int]]


def import_and_call(module: str, name: str, *given: Any) -> Any:
    """Import ``module`` and call its function ``name`` with the arguments ``given``.

    Raises:
        UsageError: the module needs a library that is not installed.
    """
    try:
        called = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        raise missing_extra(error, "Parquet and Arrow files need", "arrow", "pyarrow") from None
    return called(*given)


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """One trace format. To add one, define ``FORMAT`` in a module and list it in ``FORMATS``.

    Every format tests every file, so a format module must not import its reader: ``read`` and the
    other functions are partial calls of `import_and_call`. ``read`` may return more than
    `ReadOptions` select; `open_trace` drops the excess. If ``outline`` is None, the outline comes
    from a full read. ``export`` converts a file to a readable one in a temporary folder; all other
    functions get the converted file. An export may already be in the folder of the file, under the
    same name. ``repeats`` names a format whose files in the same folder contain everything that a
    file of this format does. ``cut`` writes a part of a file in the same format. ``secrets``
    returns the secret values in environments and arguments of a file, longest first; event names
    may repeat them.
    """

    name: str
    summary: str
    recognizes: Callable[[Candidate], bool]
    read: Callable[[Path, ReadOptions], Trace]
    outline: Callable[[Path], Outline] | None = None
    export: Callable[[Path], AbstractContextManager[Path]] | None = None
    repeats: str = ""
    cut: Cutter | None = None
    secrets: Callable[[Path], Sequence[str]] = lambda _: ()


def narrowed(trace: Trace, options: ReadOptions) -> Trace:
    """Return ``trace`` without the tables and rows that ``options`` exclude.

    The description of the whole file (``info``, ``recorded``, ``span``) stays.
    """
    frames: dict[str, Any] = {}
    if options.window is not None:
        window = options.window
        frames |= {name: rows_in(trace, name, window) for name in WINDOWED_TABLES}
        if options.wants(*LAUNCHING_TABLES):
            work = (frames[name] for name in DEVICE_TABLES)
            reach = from_first_launch(window, work, trace.api_calls)
            frames |= {name: rows_in(trace, name, reach) for name in LAUNCHING_TABLES}
    frames |= {name: empty_table(name) for name in TABLES if not options.wants(name)}
    return replace(trace, **frames) if frames else trace


def from_first_launch(window: TimeWindow, work: Iterable[Table], api_calls: Table) -> TimeWindow:
    """Return ``window``, extended back to the first launch of its device ``work``.

    ``api_calls`` needs the columns process, correlation, and start_ns.
    """
    parts = [table.select(*_LAUNCH) for table in work]
    launched = Table.stacked([part.take(part["correlation"] != ABSENT) for part in parts])
    early = api_calls.take(api_calls["start_ns"] < window.start_ns)
    is_launch = find_matching_rows(early, launched, *_LAUNCH) >= 0
    return TimeWindow(int(early["start_ns"][is_launch].min(initial=window.start_ns)), window.end_ns)


def rows_in(trace: Trace, name: str, window: TimeWindow) -> Table:
    """Return the rows of a table that overlap ``window``, unclipped."""
    table = trace.table(name)
    inside = window.overlaps(
        table["start_ns"], table["end_ns" if TABLES[name].has_spans else "start_ns"]
    )
    return table if inside.all() else table.take(inside)


def outline_of(trace: Trace) -> Outline:
    """Return the outline of a Trace that was read in full."""
    events = [name for name, table in TABLES.items() if table.has_times]
    return Outline(
        trace.with_tables({name: empty_table(name) for name in events}),
        {name: len(trace.table(name)) for name in events if not TABLES[name].detail_of},
        {name: _count_rows(trace.table(name), "process", "device") for name in DEVICE_TABLES},
        {
            name: {
                process: n for (process,), n in _count_rows(trace.table(name), "process").items()
            }
            for name in OUTLINED_TABLES
        },
    )


def trace_of_outline(outline: Outline) -> Trace:
    """Return a Trace without events that has the description in ``outline``."""
    described = outline.trace
    worked = {device for rows in outline.device_rows.values() for _, device in rows}
    tables = {name: described.table(name) for name in TABLES}
    return make_trace(described.info, tables, described.recorded, described.span, worked)


def _count_rows(table: Table, *columns: str) -> dict[Any, int]:
    """Return the number of rows per combination of values in ``columns``."""
    groups = groups_of(*(table[name] for name in columns))
    return dict(zip(groups.keys, groups.counts.tolist(), strict=True))
