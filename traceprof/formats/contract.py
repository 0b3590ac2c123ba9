"""What a trace format is: how it is recognised by its content, read in part, and outlined."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from traceprof.model.cutting import Cutter
from traceprof.model.grouping import first_alike, groups_of
from traceprof.model.table import Table
from traceprof.model.tables import ABSENT, TABLES, empty_table
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import DEVICE_TABLES, Trace, make_trace
from traceprof.names.classes import OwnRule

_BY_DEFAULT: Final = frozenset(name for name, table in TABLES.items() if not table.detail_of)
WINDOWED_TABLES: Final = ("kernels", "kernel_shapes", "copies", "syncs", "samples", "overheads")
"""Of these only the rows that overlap the window are read."""
LAUNCHING_TABLES: Final = ("api_calls", "host_ops")
"""Of these also what lies between the first launch of the window's device work and the window."""
OUTLINED_TABLES: Final = ("api_calls", "ranges", "host_ops")
"""What an `Outline` counts for each process."""
_LAUNCH: Final = ("process", "correlation")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A file to be recognised: its first bytes and, if it is SQLite, its tables.

    Of a folder it is the names of the ``files`` in it.
    """

    path: Path
    head: bytes
    tables: frozenset[str] = frozenset()
    files: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How to read, and what: by default everything.

    ``tables`` names those of `traceprof.model.tables.TABLES` that are wanted (None: all but the
    details of others); the others come back empty. ``window`` (on the trace's own clock) is a
    saving, not a cut: every row that overlaps it comes back whole, rows outside it do not. That
    holds for
    `WINDOWED_TABLES`; for `LAUNCHING_TABLES` the window begins with the earliest launch of the
    kernels and copies in it; all other tables are whole, since steps need every range.

    Whatever is asked for, ``recorded``, ``span`` and ``info`` of the Trace are those of the whole
    file, and so are its devices, processes, threads and environment where they are wanted.
    ``known`` is what was read of the same file before: what a file says of itself is taken from
    there, by readers that would look for it. ``only_steps``: of ranges those that can be steps,
    or forward and backward passes, are enough (of traceprof itself all); readers may bring more.
    ``keeps_secrets``: what is secret is not masked.
    """

    rules: Sequence[OwnRule] = ()
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
        return not (_BY_DEFAULT if self.tables is None else self.tables).isdisjoint(names)

    def needs(self, name: str) -> bool:
        """Return whether a table must be read: it is wanted, or tells where launches are."""
        tells_launches = self.window is not None and name in ("kernels", "copies", "api_calls")
        return self.wants(name) or (tells_launches and self.wants(*LAUNCHING_TABLES))

    def reads_whole(self, name: str) -> bool:
        """Return whether a table is read, and every row of it."""
        is_cut = self.window is not None and name in (*WINDOWED_TABLES, *LAUNCHING_TABLES)
        is_cut |= self.only_steps and name == "ranges"
        return self.needs(name) and not is_cut


@dataclass(frozen=True, slots=True, eq=False)
class Outline:
    """What a file contains, as a full read would tell it.

    ``n_rows`` counts the rows of every table that has times. ``device_rows`` counts the kernels
    and the copies: table → (process, device) → rows; ``process_rows`` those of `OUTLINED_TABLES`:
    table → process → rows; who has none is left out. ``trace`` has no events.
    """

    trace: Trace
    n_rows: Mapping[str, int]
    device_rows: Mapping[str, Mapping[tuple[int, int], int]]
    process_rows: Mapping[str, Mapping[int, int]]


def loaded_late(module: str, name: str, *given: Any) -> Any:
    """Call the function ``name`` of ``module``, which is loaded for that."""
    return getattr(import_module(module), name)(*given)


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """One format. To add one: a module that defines ``FORMAT``, and its line in ``FORMATS``.

    Every file is shown to every format, so that this module imports no reader: ``read`` and the
    others are parts of `loaded_late`. It may hand out more than `ReadOptions` ask for: `open_trace`
    drops it. Without ``outline`` the outline comes from reading everything. ``export`` gives what
    files of this format are read through, in a temporary folder: all else is asked of that. An
    export may also stand beside them under the same name. ``repeats`` names a format whose files in
    the same folder hold all that such a file does. ``cut`` writes a part of a file as a file
    of the same format. ``secrets`` returns what a file tells to be secret: values of environments
    and arguments, which names of events may repeat; the longest first.
    """

    name: str
    summary: str
    recognises: Callable[[Candidate], bool]
    read: Callable[[Path, ReadOptions], Trace]
    outline: Callable[[Path], Outline] | None = None
    export: Callable[[Path], AbstractContextManager[Path]] | None = None
    repeats: str = ""
    cut: Cutter | None = None
    secrets: Callable[[Path], Sequence[str]] = lambda _: ()


def narrowed(trace: Trace, options: ReadOptions) -> Trace:
    """Return ``trace`` without what ``options`` do not ask for; what it says of itself stays."""
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
    """Return ``window`` with the time before it in which its device ``work`` was launched.

    Of ``api_calls`` the columns process, correlation and start_ns are used.
    """
    parts = [table.select(*_LAUNCH) for table in work]
    launched = Table.stacked([part.take(part["correlation"] != ABSENT) for part in parts])
    early = api_calls.take(api_calls["start_ns"] < window.start_ns)
    is_launch = first_alike(early, launched, *_LAUNCH) >= 0
    starts = early["start_ns"][is_launch]
    return TimeWindow(int(starts.min(initial=window.start_ns)), window.end_ns)


def rows_in(trace: Trace, name: str, window: TimeWindow) -> Table:
    """Return the rows of a table that overlap ``window``, whole."""
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
        {name: _n_of(trace.table(name), "process", "device") for name in DEVICE_TABLES},
        {
            name: {own: n for (own,), n in _n_of(trace.table(name), "process").items()}
            for name in OUTLINED_TABLES
        },
    )


def trace_of_outline(outline: Outline) -> Trace:
    """Return the Trace of which only ``outline`` is known: it has no events."""
    own = outline.trace
    worked = {device for rows in outline.device_rows.values() for _, device in rows}
    tables = {name: own.table(name) for name in TABLES}
    return make_trace(own.info, tables, own.recorded, own.span, worked)


def _n_of(table: Table, *columns: str) -> dict[Any, int]:
    """Return how many rows have each combination of values."""
    groups = groups_of(*(table[name] for name in columns))
    return dict(zip(groups.keys, groups.counts.tolist(), strict=True))
