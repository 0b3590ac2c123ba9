"""The Trace: one recording as columnar tables. It is data; analyses are functions of it."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar, cast

import numpy as np

from traceprof.cache import scratch
from traceprof.errors import NotRecordedError
from traceprof.hardware.catalogue import Hardware
from traceprof.model.clipping import rows_inside, rows_of_rows
from traceprof.model.grouping import places_of
from traceprof.model.intervals import Intervals
from traceprof.model.table import RowsOf, Table, opened, spill_to_disk
from traceprof.model.tables import (
    ABSENT,
    TABLES,
    ColumnKind,
    empty_table,
    make_table,
)
from traceprof.model.timing import Steps, TimeWindow

DEVICE_TABLES = ("kernels", "copies")
"""The tables with work on a device."""

_Answer = TypeVar("_Answer")


class RecordedBy(StrEnum):
    """The program that made a recording, under its usual name."""

    OWN = "traceprof"
    NSYS = "nsys"
    NVPROF = "nvprof"
    TORCH = "torch.profiler"
    ROCPROF = "rocprofv3"
    JAX = "jax.profiler"
    XLA = "jax.profiler or TensorFlow"  # the file does not say which
    UNKNOWN = ""

    def how_to(self, what: str) -> str:
        """Return advice on how to record ``what``: a table, or another key of recording.toml."""
        texts = _advice()
        return texts.get(self, {}).get(what, texts["any"][what])

    def naming(self, name: str) -> str:
        """Return the call or library range with which a program names one of its parts ``name``."""
        parts = self.how_to("parts")
        if parts.endswith(" ranges"):
            return f'the {parts[:-1]} "{name}"'
        return f'{parts.removesuffix("()")}("{name}")'


@cache
def _advice() -> dict[str, dict[str, str]]:
    import tomllib  # noqa: PLC0415 (needed only if something was not recorded)

    return tomllib.loads(Path(__file__).with_name("recording.toml").read_text("utf-8"))


_BY_FORMAT: Final[Mapping[str, RecordedBy]] = {
    "nsys": RecordedBy.NSYS,
    "nvprof": RecordedBy.NVPROF,
    "kineto": RecordedBy.TORCH,
    "rocpd": RecordedBy.ROCPROF,
    "rocprofv3-json": RecordedBy.ROCPROF,
    "xplane": RecordedBy.XLA,
    "xplane-json": RecordedBy.XLA,
}
FIRST_EPOCH_NS: Final = 10**18
"""September 2001: an earlier time does not come from a wall clock."""


@dataclass(frozen=True, slots=True)
class RecordingCost:
    """The least and most share of the CPU time that recording took, and the warning about it."""

    ratios: tuple[float, float]
    warning: str


@dataclass(frozen=True, slots=True)
class TraceInfo:
    """The origin of a trace.

    ``utc_epoch_ns`` is the wall clock (ns since 1970) at time 0 of the trace, None if unknown.
    ``warnings`` are one-line sentences about suspicious data. ``is_part``: the trace was cut out of
    a larger one, without the work that its last calls launched. ``has_some_devices_only``: it also
    lacks the work that calls launched on devices that were left out. ``recording`` is the CPU
    time that recording took, None if it is small or unknown. ``is_without_gpu``: the recorder found
    no GPU in the machine. ``unread`` names data in the file that traceprof does not read.
    """

    path: str = ""
    format: str = ""
    profiler: str = ""
    schema_version: str = ""
    host: str = ""
    utc_epoch_ns: int | None = None
    warnings: tuple[str, ...] = ()
    is_part: bool = False
    has_some_devices_only: bool = False
    recording: RecordingCost | None = None
    is_without_gpu: bool = False
    unread: tuple[str, ...] = ()

    @property
    def recorded_by(self) -> RecordedBy:
        """The program that recorded the trace, by its format and the name in the file."""
        found = _BY_FORMAT.get(self.format, RecordedBy.UNKNOWN)
        named = self.profiler.partition(" ")[0]
        is_named = named == RecordedBy.OWN or (named == RecordedBy.JAX and self.profiler != found)
        return RecordedBy(named) if is_named else found


MAX_SIMILAR_WARNINGS: Final = 8
"""Up to this many warnings that differ only in numbers are listed one by one."""


def merge_similar_warnings(warnings: Sequence[str]) -> tuple[str, ...]:
    """Return warnings; many that differ only in numbers become the first one and a count."""
    similar: dict[str, list[str]] = {}
    for text in warnings:
        similar.setdefault(re.sub(r"\d+(,\d+)*", "0", text), []).append(text)
    more = "{} (and {} similar warnings: `traceprof info --json` lists all)".format
    return tuple(
        text
        for kind in similar.values()
        for text in (kind if len(kind) <= MAX_SIMILAR_WARNINGS else [more(kind[0], len(kind) - 1)])
    )


def warnings_by_rank(
    infos: Sequence[tuple[int, TraceInfo]],
) -> tuple[list[str], RecordingCost | None]:
    """Return the warnings of the ranks, and the mean cost of recording.

    Only the rank with the highest cost warns about it, and says how many ranks have a cost.
    """
    costs = [info.recording for _, info in infos if info.recording is not None]
    highest = max(costs, key=lambda cost: cost.ratios, default=None)
    others = {cost.warning for cost in costs if cost is not highest}
    n = f"all {len(infos)}" if len(costs) == len(infos) else f"{len(costs)} of {len(infos)}"
    place = f" (highest cost; {n} ranks have this warning)" if len(costs) > 1 else ""
    warnings = [
        f"rank {rank}{place if info.recording and warning == info.recording.warning else ''}: "
        f"{warning}"
        for rank, info in infos
        for warning in info.warnings
        if warning not in others or info.recording is highest
    ]
    if highest is None:
        return warnings, None
    least, most = (sum(cost.ratios[end] for cost in costs) / len(infos) for end in (0, 1))
    return warnings, RecordingCost((least, most), highest.warning)


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Trace:
    """One recording. The tables are described in `traceprof.model.tables`; do not modify them.

    - ``recorded`` names the tables that the profiler was asked to fill. A recorded table without
      rows means "none happened"; a table that is not in ``recorded`` is unknown.
    - ``span`` is the covered time. For a whole trace, it lasts from the first to the last row of
      any table (of all ranks, if it is one of several). For a cut trace, it is the window.
    - ``uncut`` is the recording that this trace was cut from, None for a whole one. ``rows`` are
      the row numbers of the cut tables in the whole ones.
    - ``hardware`` is the hardware that the user specified, which overrides the built-in table.
    - ``warmup_steps`` is the user's number of leading warm-up steps (None: detect it).
    - ``steps`` are the steps, if they were determined for all ranks together.
    - ``waits_for_roles`` is the idle time of each device in which it waits for ranks with another
    role, if that was determined from all ranks together.
    - ``recordings`` is the recorded time of each process, if its file covers less than the run.
    - ``device_numbers_in_file`` maps devices of the run to their numbers in the file, if they
    differ.
    - ``facts`` is the cache of `traceprof.measures.facts` for results of this trace, by name.
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
    functions: Table
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
    waits_for_roles: Mapping[int, Intervals] = field(default_factory=dict, repr=False)
    recordings: Mapping[int, TimeWindow] = field(default_factory=dict, repr=False)
    device_numbers_in_file: Mapping[int, int] = field(default_factory=dict, repr=False)
    rows: Mapping[str, Any] = field(default_factory=dict, repr=False)
    facts: dict[tuple[Any, ...], Any] = field(default_factory=dict, init=False, repr=False)

    is_remote: ClassVar = False
    """Whether another process holds the events: see `traceprof.workers.remote`."""

    @property
    def whole(self) -> Trace:
        """The whole recording: the trace itself if it was not cut."""
        return self if self.uncut is None else self.uncut

    def table(self, name: str) -> Table:
        """Return the table called ``name``."""
        return cast("Table", getattr(self, TABLES[name].name))

    def with_worked(self, devices: Collection[int]) -> Trace:
        """Return the same trace with ``devices`` marked as used, whatever its rows show."""
        known = set(self.devices["device"][self.devices["used"] == 1].tolist())
        if known.issuperset(devices):
            return self
        return replace(self, devices=_with_used_devices(self.devices, {*known, *devices}))

    def rows_in_whole(self, name: str) -> RowsOf:
        """Return the row numbers of table ``name`` in the whole trace: a slice or an array.

        They index an array with one element per row of the whole table.
        """
        return cast("RowsOf", opened(self.rows.get(name, slice(None))))

    def require(self, *names: str) -> None:
        """Check that the tables ``names`` were recorded.

        Raises:
            NotRecordedError: a table is missing; the message names the option that records it.
        """
        for name in names:
            if name not in self.recorded:
                advice = how_to_record(name, self.info, self.recorded)
                raise NotRecordedError(f"no {name.replace('_', ' ')} recorded: {advice}")

    @property
    def is_by_traceprof(self) -> bool:
        """Whether `traceprof record` made the recording, as far as its tables show."""
        return _is_by_traceprof(self.info, self.recorded)

    def within(self, window: TimeWindow) -> Trace:
        """Return the part of the trace inside ``window``, with clipped rows and bytes pro rata.

        A cut copy keeps the share of its bytes that equals the share of its time inside the window,
        so that adjacent windows add up to the whole exactly.
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
                rows[name] = (
                    whole_rows if isinstance(whole_rows, slice) else spill_to_disk(whole_rows)
                )
        found = replace(self, span=window, uncut=self.whole, rows=rows, **cut)
        _cuts[id(self), window] = found
        return found

    def fact(self, key: tuple[Any, ...], measure: Callable[..., _Answer], *given: Any) -> _Answer:
        """Return ``measure`` of a trace in another process, and cache it under ``key``."""
        raise NotImplementedError

    @classmethod
    def measure_all(
        cls,
        traces: Sequence[Any],
        measure: Callable[..., _Answer],
        args: Sequence[tuple[Any, ...]],
        kwargs: Mapping[str, Any],
    ) -> list[_Answer]:
        """Return ``measure(trace, ...)`` for each of ``traces``, which all have this class."""
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
        takes_part: bool = False,  # noqa: ARG003 (used by RemoteTrace)
    ) -> list[Trace]:
        """Return ``change(trace, ...)`` for each of ``traces``, which all have this class."""
        return [change(trace, *trace_args) for trace, trace_args in zip(traces, args, strict=True)]

    def with_warmup(self, n_steps: int) -> Trace:
        """Return the same trace with ``n_steps`` leading warm-up steps."""
        return self._with_whole(warmup_steps=n_steps, steps=None)

    def with_steps(self, steps: Steps) -> Trace:
        """Return the same trace with the steps that were determined for all ranks together."""
        return self._with_whole(steps=steps)

    def with_waits_for_roles(self, waits: Mapping[int, Intervals]) -> Trace:
        """Return the same trace with the idle time of devices that wait for another role."""
        return self._with_whole(waits_for_roles=waits)

    def with_hardware(self, hardware: Hardware) -> Trace:
        """Return the same trace on the hardware that the user described."""
        return self._with_whole(hardware=hardware)

    def _with_whole(self, **changes: Any) -> Trace:
        """Return the trace with ``changes`` applied to the whole of it, cut or not."""
        if self.uncut is None:
            return replace(self, **changes)
        return replace(self.uncut, **changes).within(self.span)

    def with_tables(self, tables: Mapping[str, Table]) -> Trace:
        """Return the same whole trace with these tables replaced."""
        changes: dict[str, Any] = {name: rows for name, rows in tables.items() if name in TABLES}
        return replace(self, **changes)

    def with_warnings(self, *warnings: str) -> Trace:
        """Return the same trace with additional warnings."""
        info = replace(self.info, warnings=(*self.info.warnings, *warnings))
        return replace(self, info=info)


_cuts: Final = weakref.WeakValueDictionary[tuple[int, TimeWindow], Trace]()
"""Cut traces that are still in use, so that their facts are shared."""


_OF_DEVICES: Final = frozenset({*DEVICE_TABLES, "kernel_shapes", "api_calls", "syncs"})
WITHOUT_GPU: Final = "recorded on a machine without a GPU"


def how_to_record(name: str, info: TraceInfo, recorded: Collection[str]) -> str:
    """Return how to record table ``name`` with the recorder of this trace."""
    if info.is_without_gpu and name in _OF_DEVICES:
        return WITHOUT_GPU
    is_by_traceprof = _is_by_traceprof(info, recorded)
    how = (RecordedBy.OWN if is_by_traceprof else info.recorded_by).how_to(name)
    # PyTorch operators without a CUDA call: they ran on the CPU, or the profiler ignored the GPU.
    is_on_cpu = "host_ops" in recorded and not {*DEVICE_TABLES, "api_calls"} & set(recorded)
    return f"{how}, if the program uses a GPU" if is_on_cpu and name in _OF_DEVICES else how


def _is_by_traceprof(info: TraceInfo, recorded: Collection[str]) -> bool:
    """Return whether `traceprof record` made a recording.

    If the file does not name its recorder: only traceprof records collectives without ranges.
    """
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
    """Return a Trace of ``tables``; missing tables are empty, and unknown unless in ``recorded``.

    Without ``span``, the trace covers its rows, from the first start to the last end. Without
    ``worked``, the used devices are those of the given kernels and copies.
    """
    whole: dict[str, Any] = {name: tables.get(name, empty_table(name)) for name in TABLES}
    if worked is None:
        worked = (
            device for name in DEVICE_TABLES for device in places_of(whole[name]["device"])[1]
        )
    whole["devices"] = _with_used_devices(whole["devices"], worked)
    return Trace(info=info, recorded=frozenset(recorded), span=span or span_of(whole), **whole)


def _with_used_devices(listed: Table, worked: Iterable[int]) -> Table:
    """Return the devices with their ``used`` mark, and a row for each used device."""
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
    """Return the window from the first start to the last end of tables and of windows ``known``."""
    starts, ends = [window.start_ns for window in known], [window.end_ns for window in known]
    for name, table in TABLES.items():
        frame = frames[name]
        if table.has_times and len(frame):
            starts.append(int(frame["start_ns"][0]))
            ends.append(int(frame["end_ns" if table.has_spans else "start_ns"].max()))
    return TimeWindow(min(starts, default=0), max(ends, default=0))
