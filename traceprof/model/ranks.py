"""The ranks of a run: their traces on one clock, and their files as they were read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, cast

import numpy as np

from traceprof.hardware.catalogue import Hardware
from traceprof.model.table import Table
from traceprof.model.tables import ABSENT, TABLES, make_table, stack
from traceprof.model.timing import ClockCorrection, TimeWindow
from traceprof.model.trace import Trace, TraceInfo, make_trace

_Arguments = ParamSpec("_Arguments")
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True, eq=False)
class Ranks:
    """The traces of a run (at least one), whole or cut to a window, all over the same span.

    ``info`` describes the run. ``uncut`` is the whole run that this was cut from, None for the
    whole. ``clocks`` are the clock corrections of each process from the alignment of the ranks.
    ``facts`` is the cache of `traceprof.measures.facts` for results of all ranks together.
    """

    parts: tuple[Trace, ...]
    info: TraceInfo
    uncut: Ranks | None = None
    clocks: Mapping[int, ClockCorrection] = field(default_factory=dict, repr=False)
    facts: dict[tuple[Any, ...], Any] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(cls, trace: Trace | Ranks) -> Ranks:
        """Return a run of one trace; a run is returned unchanged, and a cut trace stays cut."""
        if isinstance(trace, Ranks):
            return trace
        if trace.uncut is None:
            return cls((trace,), trace.info)
        return cls((trace,), trace.info, cls((trace.uncut,), trace.info))

    def __len__(self) -> int:
        return len(self.parts)

    def __iter__(self) -> Iterator[Trace]:
        return iter(self.parts)

    @property
    def whole(self) -> Ranks:
        """The whole run: itself if it was not cut."""
        return self if self.uncut is None else self.uncut

    @property
    def span(self) -> TimeWindow:
        """The covered time, the same for every rank."""
        return self.parts[0].span

    @property
    def recorded(self) -> frozenset[str]:
        """The tables that any rank recorded."""
        return frozenset[str]().union(*(part.recorded for part in self.parts))

    @property
    def hardware(self) -> Hardware | None:
        """The hardware that the user specified."""
        return self.parts[0].hardware

    def require(self, *names: str) -> None:
        """Check that any rank recorded each table of ``names``.

        Raises:
            NotRecordedError: a table is missing; the message names the option that records it.
        """
        recorded = self.recorded
        for name in names:
            if name not in recorded:
                self.parts[0].require(name)

    def table(self, name: str) -> Table:
        """Return the rows of all ranks of table ``name``, in the standard order of tables.

        For small tables only. Read tables that grow with the number of kernels rank by rank.
        """
        if name == "environment":
            return self.parts[0].environment  # every rank holds that of the run
        return stack(name, [part.table(name) for part in self.parts])

    def within(self, window: TimeWindow) -> Ranks:
        """Return the part of every rank inside ``window`` (see `Trace.within`)."""
        parts = type(self.parts[0]).change_all(self.parts, Trace.within, [(window,)] * len(self))
        return replace(self, parts=tuple(parts), uncut=self.whole)

    def each(
        self,
        measure: Callable[Concatenate[Trace, _Arguments], _Answer],
        *args: _Arguments.args,
        **kwargs: _Arguments.kwargs,
    ) -> list[_Answer]:
        """Return ``measure(trace, ...)`` for every rank, computed where the trace is held.

        ``measure`` must be a module-level function. Its arguments and results must be small, since
        they may travel between processes.
        """
        return type(self.parts[0]).measure_all(self.parts, measure, [args] * len(self), kwargs)

    def each_of(
        self, measure: Callable[..., _Answer], args: Sequence[tuple[Any, ...]]
    ) -> list[_Answer]:
        """Like `each`, but with separate ``args`` for each rank."""
        return measure_of_each(self.parts, measure, args)

    def map(self, change: Callable[..., Trace], *args: Any) -> Ranks:
        """Return the ranks with ``change`` applied to each whole trace, cut to the same window."""
        return self.map_each(change, [args] * len(self))

    def map_each(self, change: Callable[..., Trace], args: Sequence[tuple[Any, ...]]) -> Ranks:
        """Return the ranks with ``change`` applied to each whole trace, with separate ``args``.

        The result is cut to the same window.
        """
        whole = replace(self.whole, parts=tuple(change_each(self.whole.parts, change, args)))
        return whole if self.uncut is None else whole.within(self.span)

    def with_warnings(self, *warnings: str) -> Ranks:
        """Return the same ranks with additional warnings about the run."""
        info = replace(self.info, warnings=(*self.info.warnings, *warnings))
        uncut = None if self.uncut is None else self.uncut.with_warnings(*warnings)
        return replace(self, info=info, uncut=uncut)

    def merged(self) -> Trace:
        """Return all ranks as one Trace, for drawings of all ranks on one page."""
        if self.uncut is not None:
            return self.uncut.merged().within(self.span)
        if len(self.parts) == 1:
            part = self.parts[0]
            return part if part.info == self.info else replace(part, info=self.info)
        kept = self.facts
        if ("merged",) not in kept:
            tables = {name: self.table(name) for name in TABLES}
            devices = tables["devices"]
            worked = devices["device"][devices["used"] == 1].tolist()
            trace = make_trace(self.info, tables, self.recorded, self.span, worked)
            first = self.parts[0]
            kept["merged",] = replace(
                trace,
                hardware=first.hardware,
                warmup_steps=first.warmup_steps,
                steps=_steps(self),
                recordings={p: w for part in self.parts for p, w in part.recordings.items()},
            )
        return cast("Trace", kept["merged",])


def _steps(ranks: Ranks) -> Any:
    """Return the steps of all ranks; None if a rank has none yet."""
    known = [part.steps for part in ranks.parts if part.steps is not None]
    if len(known) < len(ranks.parts):
        return None
    table = Table.stacked([steps.table for steps in known])
    first = max(known, key=len)
    return replace(first, table=table.in_order("process", "start_ns"))


@dataclass(frozen=True, slots=True, eq=False)
class RankTrace:
    """The trace of one rank, and how its rank was determined (``detected_by``).

    ``rank`` and ``local_rank`` are `ABSENT`, ``host`` and ``rack`` "" where unknown.
    """

    trace: Trace
    rank: int = ABSENT
    local_rank: int = ABSENT
    host: str = ""
    detected_by: str = ""
    rack: str = ""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of one rank until its end; times in ns since 1970.

    ``number`` numbers the starts of the program from 0. ``ended`` is finished, failed, or killed;
    "" if unknown. ``launcher`` names the launcher; a host may have several. ``world_size`` is the
    number of ranks, `ABSENT` if unknown.
    """

    number: int
    rank: int
    path: str
    host: str
    start_ns: int
    end_ns: int
    ended: str = ""
    world_size: int = ABSENT
    launcher: str = ""

    def numbered(self, number: int) -> Attempt:
        """Return a copy with another ``number``."""
        return replace(self, number=number)


@dataclass(frozen=True, slots=True, eq=False)
class RunFiles:
    """One execution.

    ``members`` are sorted by rank. ``world_size`` is the number of ranks of the program, `ABSENT`
    if unknown. ``warnings`` are one-line sentences about missing or guessed data. ``attempts`` are
    all known starts of its ranks; ``members`` belong to start number ``attempt``.
    """

    label: str
    members: tuple[RankTrace, ...]
    world_size: int = ABSENT
    warnings: tuple[str, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    attempt: int = 0

    def __len__(self) -> int:
        return len(self.members)

    def __iter__(self) -> Iterator[RankTrace]:
        return iter(self.members)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks with a trace."""
        return tuple(member.rank for member in self.members)

    @property
    def traces(self) -> list[Trace]:
        """The traces of all members."""
        return [member.trace for member in self.members]

    @property
    def missing_ranks(self) -> tuple[int, ...]:
        """The ranks of the program without a trace."""
        expected = max(self.world_size, max(self.ranks, default=ABSENT) + 1)
        return tuple(sorted({*range(expected)}.difference(self.ranks)))


def of_process(trace: Trace, process: int) -> Trace:
    """Return the events of one process, on the clock and over the span of the whole trace.

    Rows that belong to no process (samples, devices, environment) stay.
    """
    tables = {name: trace.table(name) for name in TABLES}
    mine: dict[str, Any] = {
        name: frame.take(frame["process"] == process)
        for name, frame in tables.items()
        if "process" in frame
    }
    worked = np.unique(np.concatenate([mine["kernels"]["device"], mine["copies"]["device"]]))
    devices = trace.devices.assign(used=np.isin(trace.devices["device"], worked).astype(np.int64))
    return replace(trace, **mine, devices=make_table("devices", devices.columns))


def measure_each(
    traces: Sequence[Trace],
    measure: Callable[Concatenate[Trace, _Arguments], _Answer],
    *args: _Arguments.args,
    **kwargs: _Arguments.kwargs,
) -> list[_Answer]:
    """Return ``measure(trace, ...)`` for every trace, computed in the process that holds the trace.

    ``measure`` must be a module-level function with small arguments and results.
    """
    return measure_of_each(traces, measure, [args] * len(traces), kwargs)


def gpus_of(ranks: Ranks) -> dict[int, tuple[str, str, str]]:
    """Return host, identifier, and model of the GPU behind each used device.

    Ranks that share a GPU have one device each; the identifier shows that it is the same GPU.
    Recordings of torch.profiler have no identifier. On a host with one GPU, it must be that GPU.
    """
    whole = ranks.whole
    parts = [(part.info.host, part.devices) for part in whole]
    return identified_gpus(parts, whole.table("environment"))


def identified_gpus(
    parts: Sequence[tuple[str, Table]], environment: Table
) -> dict[int, tuple[str, str, str]]:
    """Return host, GPU identifier, and model of each used device, as in `gpus_of`.

    ``parts`` are the host and the devices of each rank. ``environment`` is that of the run.
    """
    hosts = {host for host, _ in parts}
    facts = zip(environment["name"], environment["value"], strict=True)
    uuids = [value for name, value in facts if _UUID.fullmatch(name)]
    found = {}
    for host, devices in parts:
        used = devices.take(devices["used"] == 1)
        is_only = len(hosts) == len(uuids) == len(used) == 1
        for device, name, uuid in zip(*(used[column] for column in _GPU_COLUMNS), strict=True):
            identifier = uuid if uuid.strip("-0") else (uuids[0] if is_only else f"device {device}")
            plain = identifier.lower().removeprefix("gpu-").replace("-", "")
            found[int(device)] = host, plain, _RANK_PREFIX.sub("", str(name))
    return found


SAME_GPU: Final = "the same GPU as"
"""Part of the name of each device that shares a GPU, except for the first one."""
_UUID: Final = re.compile(r"gpu\.\d+\.uuid")
_RANK_PREFIX: Final = re.compile(rf"^(rank \d+ ?)?(\((shared by|{SAME_GPU})[^)]*\) ?)?")
_GPU_COLUMNS: Final = ("device", "name", "uuid")


def measure_of_each(
    traces: Sequence[Trace],
    measure: Callable[..., _Answer],
    args: Sequence[tuple[Any, ...]],
    kwargs: Mapping[str, Any] | None = None,
) -> list[_Answer]:
    """Return ``measure`` of every trace with separate arguments for each (see `measure_each`)."""
    return type(traces[0]).measure_all(traces, measure, args, kwargs or {}) if traces else []


def change_each(
    traces: Sequence[Trace],
    change: Callable[..., Trace],
    args: Sequence[tuple[Any, ...]],
    *,
    takes_part: bool = False,
) -> list[Trace]:
    """Return ``change(trace, ...)`` for every trace, in the process that holds it.

    ``takes_part``: the trace is still needed, since several traces are derived from it.
    """
    if not traces:
        return []
    return type(traces[0]).change_all(traces, change, args, takes_part=takes_part)
