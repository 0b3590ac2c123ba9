"""One member of a run moved to the clock of the run, with the numbers that it has there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

import numpy as np
import pandas as pd

from traceprof.model.merge_samples import PlaceOfSamples, placed_samples
from traceprof.model.tables import ABSENT, TABLES, make_table
from traceprof.model.trace import Trace, make_trace
from traceprof.model.window import TimeWindow
from traceprof.values import dataclass

__all__ = ["Placement", "place", "processes_in"]


@dataclass(frozen=True, slots=True)
class Placement:
    """What a run knows of one member: who it is, what to add to its times, its new numbers.

    ``processes`` and ``devices`` map its own numbers to those in the run. ``recorded``, ``span``
    and ``environment`` are those of the run.
    """

    rank: int
    local_rank: int
    host: str
    rack: str
    offset_ns: int
    processes: Mapping[int, int]
    devices: Mapping[int, int]
    samples: PlaceOfSamples
    recorded: frozenset[str]
    span: TimeWindow
    environment: pd.DataFrame = field(repr=False)


def processes_in(trace: Trace) -> list[int]:
    """Return the processes that any table of ``trace`` names, in order."""
    frames = [trace.table(name) for name in TABLES]
    owners = [frame["process"].unique() for frame in frames if "process" in frame]
    return [int(process) for process in np.unique(np.concatenate(owners)) if process != ABSENT]


def place(trace: Trace, placement: Placement) -> Trace:
    """Return the member ``trace`` as a part of the run."""
    tables = _moved(trace, placement)
    tables["samples"] = placed_samples(tables["samples"], placement.samples)
    tables["environment"] = placement.environment
    placed = make_trace(
        trace.info, tables, placement.recorded, placement.span, placement.devices.values()
    )
    own_devices = {new: old for old, new in placement.devices.items() if new != old}
    return replace(placed, recordings=_recordings(trace, placement), own_devices=own_devices)


def _recordings(trace: Trace, placement: Placement) -> dict[int, TimeWindow]:
    """Return when each process of a member was recorded, by its id in the run.

    Where no process did anything it is told under `ABSENT`: devices of the file may be known.
    """
    offset_ns = placement.offset_ns
    own = TimeWindow(trace.span.start_ns + offset_ns, trace.span.end_ns + offset_ns)
    return dict.fromkeys(placement.processes.values() or (ABSENT,), own)


def _moved(trace: Trace, placement: Placement) -> dict[str, pd.DataFrame]:
    """Return the member's tables on the common clock, with the ids of the run."""
    moved = {}
    for name in TABLES:
        frame = trace.table(name)
        if name == "devices":
            frame = _with_rank(frame[frame["used"] == 1], placement.rank)
        if name == "processes":
            frame = _with_roles(frame, placement)
        if frame.empty:
            moved[name] = frame
            continue
        columns: dict[str, Any] = {str(column): frame[column].array for column in frame}
        for time in columns.keys() & {"start_ns", "end_ns"}:
            columns[time] = frame[time].to_numpy() + placement.offset_ns
        for column in columns.keys() & {"process"}:
            columns[column] = _renamed(frame[column], placement.processes)
        for column in columns.keys() & {"device", "src_device", "dst_device"}:
            columns[column] = _renamed(frame[column], placement.devices)
        moved[name] = make_table(name, columns)
    return moved


def _with_rank(devices: pd.DataFrame, rank: int) -> pd.DataFrame:
    if rank == ABSENT:
        return devices
    return devices.assign(name=[f"rank {rank} {name}".strip() for name in devices["name"]])


def _with_roles(processes: pd.DataFrame, member: Placement) -> pd.DataFrame:
    """Return the processes with what the run knows of them where they do not say it themselves.

    Where one says that it is the rank, the others are its helpers.
    """
    known = processes["rank"] != ABSENT
    placed = processes.assign(
        host=[own or member.host for own in processes["host"]],
        rack=[own or member.rack for own in processes["rack"]],
    )
    if known.any():
        return placed
    return placed.assign(rank=member.rank, local_rank=member.local_rank)


def _renamed(values: pd.Series, names: Mapping[int, int]) -> np.ndarray:
    if all(old == new for old, new in names.items()):
        return values.to_numpy()
    return values.map(lambda value: names.get(value, value)).to_numpy(np.int64)
