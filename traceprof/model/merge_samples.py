"""The time series of all members of a run as one table: sources of several hosts told apart."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import pandas as pd

from traceprof.model.run import RunFiles
from traceprof.model.tables import make_table

__all__ = ["merge_environments", "place_samples"]

_OF_MACHINE: Final = ("nic", "rdma")
_NUMBERED: Final = re.compile(r"\b(process|gpu):(\d+)")


def place_samples(
    run: RunFiles,
    frames: Sequence[pd.DataFrame],
    processes: Sequence[Mapping[int, int]],
    devices: Sequence[Mapping[int, int]],
) -> list[pd.DataFrame]:
    """Return the samples of each member, ``frames`` being on the common clock already.

    Processes and devices bear their numbers in the run, interfaces the name of their host where
    there are several ("nic:eth0@alpha"). A series that several members of one host recorded at the
    same time counts once, as the first of them has it.
    """
    hosts = _hosts(run)
    devices = _devices_of_hosts(hosts, devices)
    taken: dict[tuple[str, str], tuple[int, int]] = {}
    parts = []
    for i, frame in enumerate(frames):
        names = [
            _renamed(str(source), processes[i], devices[i], hosts[i] if _several(hosts) else "")
            for source in frame["source"].cat.categories
        ]
        codes = frame["source"].cat.codes.to_numpy()
        columns = {str(column): frame[column].array for column in frame}
        own = make_table("samples", {**columns, "source": np.array(names, object)[codes]})
        instants = own["start_ns"].to_numpy(np.int64)
        is_new = np.ones(len(own), np.bool_)
        for pair, rows in own.groupby(["source", "metric"], observed=True).indices.items():
            key = (hosts[i], str(pair))
            first, last = int(instants[rows].min()), int(instants[rows].max())
            if key in taken:
                since, until = taken[key]
                is_new[rows] = (instants[rows] < since) | (instants[rows] > until)
                first, last = min(first, since), max(last, until)
            taken[key] = first, last
        parts.append(own[is_new].reset_index(drop=True))
    return parts


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


def merge_environments(run: RunFiles, frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return what the first member knows, and of other hosts the interfaces, with their host."""
    hosts = _hosts(run)
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
