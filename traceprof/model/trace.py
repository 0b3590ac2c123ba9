"""The Trace: one recording, as columnar tables. It holds data; analyses are functions of it."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

import numpy as np

from traceprof.cache import scratch
from traceprof.errors import NotRecordedError
from traceprof.hardware.catalogue import Hardware
from traceprof.model.clipping import rows_inside, rows_of_rows
from traceprof.model.grouping import places_of
from traceprof.model.table import RowsOf, Table, opened, set_aside
from traceprof.model.tables import (
    ABSENT,
    TABLES,
    ColumnKind,
    empty_table,
    make_table,
)
from traceprof.model.timing import Steps, TimeWindow

DEVICE_TABLES = ("kernels", "copies")
"""The tables whose rows occupy a device."""

_Answer = TypeVar("_Answer")


class RecordedBy(StrEnum):
    """What made a recording, as people call it."""

    OWN = "traceprof"
    NSYS = "nsys"
    NVPROF = "nvprof"
    TORCH = "torch.profiler"
    ROCPROF = "rocprofv3"
    JAX = "jax.profiler"
    XLA = "jax.profiler or TensorFlow"  # the file does not say which
    UNKNOWN = ""

    def how_to(self, what: str) -> str:
        """Return what records ``what``, or helps with it: a table, or what recording.toml has."""
        texts = _advice()
        return texts.get(self, {}).get(what, texts["any"][what])

    def naming(self, name: str) -> str:
        """Return what a program names a part ``name`` by: a call, or a range of a library."""
        parts = self.how_to("parts")
        if parts.endswith(" ranges"):
            return f'the {parts[:-1]} "{name}"'
        return f'{parts.removesuffix("()")}("{name}")'


@cache
def _advice() -> dict[str, dict[str, str]]:
    import tomllib  # noqa: PLC0415 (asked for where something was not recorded)

    return tomllib.loads(Path(__file__).with_name("recording.toml").read_text("utf-8"))


_BY_FORMAT: Final[Mapping[str, RecordedBy]] = {
    "nsys": RecordedBy.NSYS,
    "nvprof": RecordedBy.NVPROF,
    "kineto": RecordedBy.TORCH,
    "rocpd": RecordedBy.ROCPROF,
    "xplane": RecordedBy.XLA,
    "xplane-json": RecordedBy.XLA,
}
FIRST_EPOCH_NS: Final = 10**18
"""September 2001: an earlier time is that of no wall clock."""


@dataclass(frozen=True, slots=True)
class TraceInfo:
    """Where a trace comes from.

    ``utc_epoch_ns`` is the wall clock (ns since 1970) at time 0 of the trace, None where it is
    not known. ``warnings`` are one-line sentences about what makes the trace suspicious.
    ``is_part``: it was cut out of a larger one; what its last calls launched is not in it.
    ``is_of_some``: nor is what calls launched on devices that were left out of the part.
    """

    path: str = ""
    format: str = ""
    profiler: str = ""
    schema_version: str = ""
    host: str = ""
    utc_epoch_ns: int | None = None
    warnings: tuple[str, ...] = ()
    is_part: bool = False
    is_of_some: bool = False

    @property
    def recorded_by(self) -> RecordedBy:
        """What recorded it, by its format and what the file says."""
        found = _BY_FORMAT.get(self.format, RecordedBy.UNKNOWN)
        named = self.profiler.partition(" ")[0]
        is_named = named == RecordedBy.OWN or (named == RecordedBy.JAX and self.profiler != found)
        return RecordedBy(named) if is_named else found


MOST_ALIKE: Final = 8
"""Warnings that differ in numbers alone are told one by one up to so many."""


def told_once(warnings: Sequence[str]) -> tuple[str, ...]:
    """Return warnings; of many that differ in numbers alone, as of ranks, the first and a count."""
    similar: dict[str, list[str]] = {}
    for text in warnings:
        similar.setdefault(re.sub(r"\d+(,\d+)*", "0", text), []).append(text)
    more = "{} (and {} similar warnings: `traceprof info --json` lists all)".format
    return tuple(
        text
        for kind in similar.values()
        for text in (kind if len(kind) <= MOST_ALIKE else [more(kind[0], len(kind) - 1)])
    )


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Trace:
    """One recording. The tables are described in `traceprof.model.tables`; do not modify them.

    ``recorded`` names the tables that the profiler was asked to fill: a table that is empty
    and recorded means "none happened", one that is not in ``recorded`` means "not known".
    ``span`` is the time that this Trace covers: of a whole one from the first to the last row of
    any table (of all ranks, where it is one of several), else the window that it was cut to.
    ``uncut`` is the recording that this Trace was cut from, None for a whole one, and ``rows`` says
    which rows of its tables the cut ones are. ``hardware`` is what the user said of the hardware,
    in front of the table that is built in, ``warmup_steps`` how many leading steps the user calls
    warm-up (None: they are found), and ``steps`` the steps where they have been decided for all
    ranks together. ``recordings`` is when each process was recorded, where its file covers less
    than the run, and ``own_devices`` are the numbers that its file gives the devices of the run,
    where these have others. ``facts`` is where `traceprof.measures.facts` keeps, by name, what was
    computed of this very Trace.
    """

    info: TraceInfo
    recorded: frozenset[str]
    span: TimeWindow
    kernels: Table
    kernel_shapes: Table
    copies: Table
    api_calls: Table
    ranges: Table
    marks: Table
    host_ops: Table
    operator_inputs: Table
    syncs: Table
    collectives: Table
    samples: Table
    overheads: Table
    devices: Table
    processes: Table
    threads: Table
    environment: Table
    uncut: Trace | None = None
    hardware: Hardware | None = None
    warmup_steps: int | None = None
    steps: Steps | None = None
    recordings: Mapping[int, TimeWindow] = field(default_factory=dict, repr=False)
    own_devices: Mapping[int, int] = field(default_factory=dict, repr=False)
    rows: Mapping[str, Any] = field(default_factory=dict, repr=False)
    facts: dict[tuple[Any, ...], Any] = field(default_factory=dict, init=False, repr=False)

    is_remote: ClassVar = False
    """Whether another process holds its events: see `traceprof.workers.remote`."""

    @property
    def whole(self) -> Trace:
        """The whole recording: the Trace itself unless it was cut."""
        return self if self.uncut is None else self.uncut

    def table(self, name: str) -> Table:
        """Return the table called ``name``."""
        found: Table = getattr(self, TABLES[name].name)
        return found

    def with_worked(self, devices: Collection[int]) -> Trace:
        """Return the same with ``devices`` among those that worked, whatever its rows tell."""
        known = set(self.devices["device"][self.devices["used"] == 1].tolist())
        if known.issuperset(devices):
            return self
        return replace(self, devices=_with_used_devices(self.devices, {*known, *devices}))

    def rows_in_whole(self, name: str) -> RowsOf:
        """Return which rows of table ``name`` of the whole Trace those of this one are.

        A slice or row numbers: what indexes an array that has an element per row of the whole.
        """
        rows: RowsOf = opened(self.rows.get(name, slice(None)))
        return rows

    def require(self, *names: str) -> None:
        """Check that the tables ``names`` were recorded.

        Raises:
            NotRecordedError: at least one was not; the message names the option that records it.
        """
        for name in names:
            if name not in self.recorded:
                advice = how_to_record(name, self.info, self.recorded)
                raise NotRecordedError(f"no {name.replace('_', ' ')} recorded: {advice}")

    @property
    def is_by_traceprof(self) -> bool:
        """Whether `traceprof record` made it, as far as its tables tell."""
        return _is_by_traceprof(self.info, self.recorded)

    def within(self, window: TimeWindow) -> Trace:
        """Return the part of the trace inside ``window``: rows clipped, bytes pro rata.

        A copy that the window cuts keeps the share of its bytes that its time inside the
        window is of its whole time, so that adjacent windows add up to the whole exactly.
        """
        if self.uncut is not None and window == self.span:
            return self
        known = _cuts.get((id(self), window))
        if known is not None and known.uncut is self:
            return known
        cut: dict[str, Any] = {}
        rows: dict[str, Any] = {}
        for name, table in TABLES.items():
            if table.has_times:
                clipped, inside = rows_inside(self.table(name), window, table)
                cut[name] = clipped.on_disk() if scratch.files else clipped
                whole_rows = rows_of_rows(self.rows_in_whole(name), inside)
                rows[name] = whole_rows if isinstance(whole_rows, slice) else set_aside(whole_rows)
        found = replace(self, span=window, uncut=self.whole, rows=rows, **cut)
        _cuts[id(self), window] = found
        return found

    def fact(self, key: tuple[Any, ...], measure: Callable[..., _Answer], *given: Any) -> _Answer:
        """Return what ``measure`` says of a Trace that is elsewhere; keep it under ``key``."""
        raise NotImplementedError

    @classmethod
    def measure_all(
        cls,
        traces: Sequence[Any],
        measure: Callable[..., _Answer],
        args: Sequence[tuple[Any, ...]],
        kwargs: Mapping[str, Any],
    ) -> list[_Answer]:
        """Return what ``measure`` says of each of ``traces``, all of this class, where it is."""
        return [
            measure(trace, *trace_args, **kwargs)
            for trace, trace_args in zip(traces, args, strict=True)
        ]

    @classmethod
    def change_all(
        cls,
        traces: Sequence[Any],
        change: Callable[..., Trace],
        args: Sequence[tuple[Any, ...]],
        *,
        takes_part: bool = False,  # noqa: ARG003 (of those that are elsewhere)
    ) -> list[Trace]:
        """Return what ``change`` makes of each of ``traces``, all of this class, where it is."""
        return [change(trace, *trace_args) for trace, trace_args in zip(traces, args, strict=True)]

    def with_warmup(self, n_steps: int) -> Trace:
        """Return the same trace with this many leading steps taken as warm-up."""
        return self._with_whole(warmup_steps=n_steps, steps=None)

    def with_steps(self, steps: Steps) -> Trace:
        """Return the same trace with the steps that were decided for all ranks together."""
        return self._with_whole(steps=steps)

    def with_hardware(self, hardware: Hardware) -> Trace:
        """Return the same trace on the hardware that the user described."""
        return self._with_whole(hardware=hardware)

    def _with_whole(self, **changes: Any) -> Trace:
        """Return the trace with ``changes`` that hold for the whole of it, cut or not."""
        if self.uncut is None:
            return replace(self, **changes)
        return replace(self.uncut, **changes).within(self.span)

    def with_tables(self, tables: Mapping[str, Table]) -> Trace:
        """Return the same whole trace with other rows in these tables."""
        changes: dict[str, Any] = {name: rows for name, rows in tables.items() if name in TABLES}
        return replace(self, **changes)

    def with_warnings(self, *warnings: str) -> Trace:
        """Return the same trace with more warnings."""
        info = replace(self.info, warnings=(*self.info.warnings, *warnings))
        return replace(self, info=info)


_cuts: Final = weakref.WeakValueDictionary[tuple[int, TimeWindow], Trace]()
"""Traces that were cut and are still held by somebody, with their facts."""


def how_to_record(name: str, info: TraceInfo, recorded: Collection[str]) -> str:
    """Return what would record table ``name``, of a recording that has not, by its recorder."""
    is_by_traceprof = _is_by_traceprof(info, recorded)
    return (RecordedBy.OWN if is_by_traceprof else info.recorded_by).how_to(name)


def _is_by_traceprof(info: TraceInfo, recorded: Collection[str]) -> bool:
    """Return whether `traceprof record` made a recording: none but Kineto has collectives alone."""
    is_named = info.recorded_by in (RecordedBy.OWN, RecordedBy.TORCH)
    has_only_collectives = "collectives" in recorded and "ranges" not in recorded
    return info.recorded_by is RecordedBy.OWN if is_named else has_only_collectives


def make_trace(
    info: TraceInfo,
    tables: Mapping[str, Table],
    recorded: Iterable[str],
    span: TimeWindow | None = None,
    worked: Iterable[int] | None = None,
) -> Trace:
    """Return a Trace of ``tables``; those left out are empty, and not recorded unless named.

    Without ``span`` the trace covers its rows, from the first start to the last end. Without
    ``worked`` the devices that worked are those of the kernels and copies given.
    """
    whole: dict[str, Any] = {name: tables.get(name, empty_table(name)) for name in TABLES}
    if worked is None:
        worked = (one for name in DEVICE_TABLES for one in places_of(whole[name]["device"])[1])
    whole["devices"] = _with_used_devices(whole["devices"], worked)
    return Trace(info=info, recorded=frozenset(recorded), span=span or span_of(whole), **whole)


def _with_used_devices(listed: Table, worked: Iterable[int]) -> Table:
    """Return the devices, marked where they worked, and with a row for each that did."""
    at_work, known = set(worked), listed["device"].tolist()
    missing = sorted(at_work.difference(known))
    columns: dict[str, Any] = {"used": [int(device in at_work) for device in [*known, *missing]]}
    if not missing:
        return listed.assign(used=np.array(columns["used"], np.int64))
    for name, kind in TABLES["devices"].columns.items():
        unknown = "" if kind is ColumnKind.TEXT else ABSENT
        columns.setdefault(name, [*listed[name], *([unknown] * len(missing))])
    return make_table("devices", columns | {"device": [*known, *missing]})


def span_of(frames: Mapping[str, Table], *known: TimeWindow) -> TimeWindow:
    """Return the time from the first start to the last end of tables, and of windows ``known``."""
    starts, ends = [window.start_ns for window in known], [window.end_ns for window in known]
    for name, table in TABLES.items():
        frame = frames[name]
        if table.has_times and len(frame):
            starts.append(int(frame["start_ns"][0]))
            ends.append(int(frame["end_ns" if table.has_spans else "start_ns"].max()))
    return TimeWindow(min(starts, default=0), max(ends, default=0))
