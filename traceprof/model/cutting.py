"""Cutting a file: what is asked for, what came of it, and what the part knows of the whole."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from traceprof.model.tables import TABLES
from traceprof.model.timing import TimeWindow

REMOVED: Final = "[removed by traceprof]"
"""Stands where an environment, or what a program printed, was."""

CutProgress: TypeAlias = Callable[[int, int, str], None]
"""Is told how much is done, of how much, and in which unit: rows or bytes."""
_MAX_DEVICES: Final = 1 << 20
"""Devices are numbered from 0; no machine has so many."""


def no_progress(_done: int, _total: int, _unit: str) -> None:
    """Tell nobody."""


@dataclass(frozen=True, slots=True)
class CutRequest:
    """What of a file is wanted.

    Args:
        window: on the trace's own clock.
        label: the window in the user's words; it is noted in the file.
        source: the name of the file that is cut; it is noted, too.
        devices: the devices whose work is kept, by their number on the machine; None: of all.
        processes: the processes whose events are kept, None: of all.
        tables: the tables of `traceprof.model.tables.TABLES`, and those of the file by their own
            names, whose events are kept; None: of all.
        clip: shorten what crosses the border of the window to what is inside.
        keep_environment: leave environments, what programs printed, and other secrets in.
        zero_ns: what the trace's own clock counts from, in times of the file; None: it is found.
        is_noted: say in the file what it was cut from.
        is_packed: write what is text as gzip.
        span: the time that the whole trace covers, where it is known: an unknown table whose
            times lie far from it is on another clock and is not cut.
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
        """The window, with the instant at its end where the trace ends there, too."""
        window = self.window
        if self.span is None or window.end_ns < self.span.end_ns:
            return window
        return TimeWindow(window.start_ns, window.end_ns + 1)

    @property
    def covered(self) -> TimeWindow:
        """The part of the window that was recorded, as far as that is known."""
        return self.window if self.span is None else self.window & self.span

    def takes(self, names: frozenset[str]) -> bool:
        """Return whether events are kept that go by one of ``names``."""
        return self.tables is None or not self.tables.isdisjoint(names)


@dataclass(frozen=True, slots=True)
class CutReport:
    """What came of it.

    ``n_events`` counts the events that were kept. ``unknown`` says of each table that traceprof
    does not know what was done with it, and ``left_out`` names what cannot be copied.
    ``zero_ns`` is what the clock of the window counts from, in times of the file.
    """

    n_events: int
    unknown: Mapping[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    zero_ns: int = 0


class Cutter(Protocol):
    """Cuts a file of one format."""

    def __call__(
        self, source: Path, target: Path, request: CutRequest, progress: CutProgress
    ) -> CutReport:
        """Write what ``request`` asks for of ``source`` to the empty file ``target``.

        Raises:
            TraceError: ``source`` cannot be read.
            UsageError: ``target`` cannot be written.
        """
        ...


@dataclass(frozen=True, slots=True)
class CutNote:
    """What a file says of how it was cut.

    ``window`` is None for a file that was not cut. ``recorded`` names the tables that the whole
    had, ``devices`` those that worked in it, ``tables`` what alone was kept, None for everything.
    ``is_of_some``: only the work of some devices was kept, and all calls.
    """

    window: TimeWindow | None = None
    recorded: frozenset[str] = frozenset()
    devices: frozenset[int] = frozenset()
    tables: frozenset[str] | None = None
    is_of_some: bool = False

    def recorded_of(self, has_rows: Collection[str], recorded: Collection[str]) -> frozenset[str]:
        """Return what was recorded: what ``recorded`` says, but for what was not kept.

        ``has_rows`` names the tables that have rows.
        """
        found = frozenset(recorded) | self.recorded
        if self.tables is None:
            return found
        kept = {name for name in found if not TABLES[name].has_times} | set(has_rows)
        return found & (kept | self.tables)


WHOLE: Final = CutNote()


def noted_names(value: Any) -> frozenset[str]:
    """Return the names of tables in a list, as a file has it; none of what is no list."""
    names = value if isinstance(value, list) else []
    return frozenset(name for name in names if isinstance(name, str) and name in TABLES)


def noted_numbers(value: Any) -> frozenset[int]:
    """Return the numbers of devices in a list, as a file has it."""
    numbers = value if isinstance(value, list) else []
    return frozenset(
        number for number in numbers if type(number) is int and 0 <= number < _MAX_DEVICES
    )
