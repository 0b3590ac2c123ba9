"""Cutting a trace file to a part: the request, the report, and the note inside the new file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from traceprof.model.tables import TABLES
from traceprof.model.timing import TimeWindow

REMOVED: Final = "[removed by traceprof]"
"""Replaces removed environment variables and program output."""

CutProgress: TypeAlias = Callable[[int, int, str], None]
"""Called with the amount done, the total, and their unit: rows or bytes."""
_MAX_DEVICES: Final = 1 << 20
"""Upper bound of a valid device number. Devices are numbered from 0."""


def no_progress(_done: int, _total: int, _unit: str) -> None:
    """Report no progress."""


@dataclass(frozen=True, slots=True)
class CutRequest:
    """Which part of a file to keep.

    Args:
        window: on the trace's own clock.
        label: the window in the user's words, stored in the new file.
        source: the name of the original file, also stored.
        devices: the devices whose work is kept, by their number on the machine; None: all.
        processes: the processes whose events are kept; None: all.
        tables: the kept tables, by their name in `traceprof.model.tables.TABLES` or in the file;
            None: all.
        clip: shorten events that cross the border of the window.
        keep_environment: keep environment variables, program output, and other secrets.
        zero_ns: time in the file that is 0 on the trace's own clock; None: detect it.
        is_noted: store in the file what it was cut from.
        is_packed: compress text formats with gzip.
        span: the time range of the whole trace, if known. An unknown table whose times are far
            outside it uses another clock and is not cut.
    """

    window: TimeWindow
    label: str = ""
    source: str = ""
    devices: frozenset[int] | None = None
    processes: frozenset[int] | None = None
    tables: frozenset[str] | None = None
    clip: bool = False
    keep_environment: bool = False
    zero_ns: int | None = None
    is_noted: bool = True
    is_packed: bool = False
    span: TimeWindow | None = None

    @property
    def reach(self) -> TimeWindow:
        """The window, including the instant at its end if the trace ends there."""
        window = self.window
        if self.span is None or window.end_ns < self.span.end_ns:
            return window
        return TimeWindow(window.start_ns, window.end_ns + 1)

    @property
    def covered(self) -> TimeWindow:
        """The recorded part of the window, as far as it is known."""
        return self.window if self.span is None else self.window & self.span

    def takes(self, names: frozenset[str]) -> bool:
        """Return whether to keep events of a table that is known under one of ``names``."""
        return self.tables is None or not self.tables.isdisjoint(names)


@dataclass(frozen=True, slots=True)
class CutReport:
    """The outcome of cutting a file.

    ``n_events`` counts the kept events. ``unknown`` maps each table that traceprof does not know to
    a description of how it was treated. ``left_out`` names data that cannot be copied. ``zero_ns``
    is the time in the file that is 0 on the clock of the window.
    """

    n_events: int
    unknown: Mapping[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    zero_ns: int = 0


class Cutter(Protocol):
    """Function that cuts a file of one format."""

    def __call__(
        self, source: Path, target: Path, request: CutRequest, progress: CutProgress
    ) -> CutReport:
        """Write the requested part of ``source`` to the empty file ``target``.

        Raises:
            TraceError: ``source`` cannot be read.
            UsageError: ``target`` cannot be written.
        """
        ...


@dataclass(frozen=True, slots=True)
class CutNote:
    """The note in a file about how it was cut.

    ``window`` is None for a file that was not cut. ``recorded`` names the tables of the original,
    ``devices`` the devices that worked in it, ``tables`` the kept tables (None: all).
    ``has_some_devices_only``: only the work of some devices was kept, but all API calls.
    """

    window: TimeWindow | None = None
    recorded: frozenset[str] = frozenset()
    devices: frozenset[int] = frozenset()
    tables: frozenset[str] | None = None
    has_some_devices_only: bool = False

    def recorded_of(self, has_rows: Collection[str], recorded: Collection[str]) -> frozenset[str]:
        """Return the tables that count as recorded: ``recorded``, without tables that were dropped.

        ``has_rows`` names the tables with rows.
        """
        found = frozenset(recorded) | self.recorded
        if self.tables is None:
            return found
        kept = {name for name in found if not TABLES[name].has_times} | set(has_rows)
        return found & (kept | self.tables)


WHOLE: Final = CutNote()


def noted_names(value: Any) -> frozenset[str]:
    """Return the table names in a list from a file; empty if ``value`` is no list."""
    names = value if isinstance(value, list) else []
    return frozenset(name for name in names if isinstance(name, str) and name in TABLES)


def noted_numbers(value: Any) -> frozenset[int]:
    """Return the device numbers in a list from a file; empty if ``value`` is no list."""
    numbers = value if isinstance(value, list) else []
    return frozenset(
        number for number in numbers if type(number) is int and 0 <= number < _MAX_DEVICES
    )
