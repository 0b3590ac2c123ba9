"""The time series of all members of a run: sources of several hosts told apart."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, cast

import numpy as np
import pandas as pd

from traceprof.model.elsewhere import measure_each
from traceprof.model.run import RunFiles
from traceprof.model.tables import make_table
from traceprof.model.trace import Trace
from traceprof.values import dataclass

__all__ = ["PlaceOfSamples", "merge_environments", "placed_samples", "places_of_samples"]

_OF_MACHINE: Final = ("nic", "rdma")
_NUMBERED: Final = re.compile(r"\b(process|gpu):(\d+)")


@dataclass(frozen=True, slots=True)
class PlaceOfSamples:
    """What a run knows of the samples of one member.

    ``names`` are those of its sources in the run. Of a series, a pair of source and metric there,
    ``taken`` are the instants between which another member has it already.
    """

    names: Mapping[str, str]
    taken: Mapping[tuple[str, str], tuple[int, int]]


def places_of_samples(
    run: RunFiles,
    offsets_ns: Sequence[int],
    processes: Sequence[Mapping[int, int]],
    devices: Sequence[Mapping[int, int]],
) -> list[PlaceOfSamples]:
    """Return what becomes of the samples of each member, whose times move by ``offsets_ns``.

    Processes and devices bear their numbers in the run, interfaces the name of their host where
    there are several ("nic:eth0@alpha"). A series that several members of one host recorded at the
    same time counts once, as the first of them has it.
    """
    hosts = _hosts(run)
    devices = _devices_of_hosts(hosts, devices)
    taken: dict[tuple[str, str, str], tuple[int, int]] = {}
    places = []
    for i, series in enumerate(measure_each([member.trace for member in run], _series_in)):
        host = hosts[i] if _several(hosts) else ""
        names = {
            source: _renamed(source, processes[i], devices[i], host)
            for source in dict.fromkeys(source for source, _ in series)
        }
        edges: dict[tuple[str, str], list[int]] = {}
        for (source, metric), both in series.items():
            edges.setdefault((names[source], metric), []).extend(both)
        own: dict[tuple[str, str], tuple[int, int]] = {}
        for pair, instants in edges.items():
            first, last = min(instants) + offsets_ns[i], max(instants) + offsets_ns[i]
            if (hosts[i], *pair) in taken:
                own[pair] = since, until = taken[hosts[i], *pair]
                first, last = min(first, since), max(last, until)
            taken[hosts[i], *pair] = first, last
        places.append(PlaceOfSamples(names, own))
    return places


def placed_samples(frame: pd.DataFrame, place: PlaceOfSamples) -> pd.DataFrame:
    """Return the samples of a member, on the clock of the run already, as they are in the run."""
    names = [place.names.get(source, source) for source in frame["source"].cat.categories]
    codes = frame["source"].cat.codes.to_numpy()
    columns = {str(column): frame[column].array for column in frame}
    own = make_table("samples", {**columns, "source": np.array(names, object)[codes]})
    instants = own["start_ns"].to_numpy(np.int64)
    is_new = np.ones(len(own), np.bool_)
    for series, rows in own.groupby(["source", "metric"], observed=True).indices.items():
        pair = cast("tuple[str, str]", series)
        if pair in place.taken:
            since, until = place.taken[pair]
            is_new[rows] = (instants[rows] < since) | (instants[rows] > until)
    return own[is_new].reset_index(drop=True)


def _series_in(trace: Trace) -> dict[tuple[str, str], tuple[int, int]]:
    """Return source and metric of each series, and its first and last instant on its own clock."""
    by_series = trace.samples.groupby(["source", "metric"], observed=True)["start_ns"]
    found = by_series.agg(["min", "max"])
    return {
        (str(source), str(metric)): (int(first), int(last))
        for (source, metric), first, last in zip(
            found.index, found["min"], found["max"], strict=True
        )
    }


def _devices_of_hosts(
    hosts: Sequence[str], devices: Sequence[Mapping[int, int]]
) -> list[dict[int, int]]:
    """Return the numbers in the run of all devices of each member's host, its own first.

    A member samples all devices of its machine, not only those that it works on.
    """
    of_host: dict[str, dict[int, int]] = {}
    for host, own in zip(hosts, devices, strict=True):
        of_host.setdefault(host, {}).update(own)
    return [of_host[host] | dict(own) for host, own in zip(hosts, devices, strict=True)]


def merge_environments(run: RunFiles) -> pd.DataFrame:
    """Return what the first member knows, and of other hosts the interfaces, with their host."""
    hosts, frames = _hosts(run), [member.trace.environment for member in run]
    parts = [frames[0]]
    if _several(hosts):
        for host in dict.fromkeys(hosts):
            frame = frames[hosts.index(host)]
            names = [_at_host(str(name), host) for name in frame["name"]]
            parts.append(frame.assign(name=names)[[bool(name) for name in names]])
    return pd.concat(parts, ignore_index=True)


def _hosts(run: RunFiles) -> list[str]:
    return [member.host or member.trace.info.host for member in run]


def _several(hosts: Sequence[str]) -> bool:
    return len(set(hosts)) > 1


def _renamed(
    source: str, processes: Mapping[int, int], devices: Mapping[int, int], host: str
) -> str:
    numbers = {"process": processes, "gpu": devices}

    def renumbered(match: re.Match[str]) -> str:
        kind, old = match[1], int(match[2])
        return f"{kind}:{numbers[kind].get(old, old)}"

    if host and source.startswith(tuple(f"{kind}:" for kind in _OF_MACHINE)):
        name, _, protocol = source.partition(" ")
        return f"{name}@{host} {protocol}".strip()
    return _NUMBERED.sub(renumbered, source)


def _at_host(name: str, host: str) -> str:
    """Return the name of a fact about an interface with its host; "" for other facts."""
    kind, _, rest = name.partition(".")
    interface, dot, fact = rest.rpartition(".")
    return f"{kind}.{interface}@{host}{dot}{fact}" if kind in _OF_MACHINE and dot else ""
