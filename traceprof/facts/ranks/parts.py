"""The five parts of the time of each rank's devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pandas as pd

from traceprof.facts.collectives.members import find_members
from traceprof.measures.device.times import device_parts, devices_of_processes
from traceprof.measures.facts import fact, of_window
from traceprof.model.activity import PARTS
from traceprof.model.ranks import Ranks
from traceprof.model.tables import ABSENT
from traceprof.model.trace import DEVICE_TABLES, Trace, make_trace

__all__ = ["parts_of_members"]

_PARTS_NS: Final = tuple(f"{part}_ns" for part in PARTS)


@of_window
def parts_of_members(ranks: Ranks) -> Mapping[int, Mapping[str, Any]]:
    """Return, by place in `find_members`, the parts of a rank's device, or of its devices added up.

    Keys: device (its number as text, "all" of several) and the parts in ns (compute_ns …). A
    member that uses no device, or of which device work was not recorded, is left out.
    """
    if not ranks.recorded & set(DEVICE_TABLES):
        return {}
    rows_of: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for part in ranks:
        for row in _rows(part):
            for device in (row["device"], ABSENT):
                rows_of.setdefault((row["process"], device), []).append(row)
    found = {}
    for place, member in enumerate(find_members(ranks)):
        if own := rows_of.get((member.process, member.device)):
            label = str(own[0]["device"]) if len(own) == 1 else "all"
            sums = {name: sum(row[name] for row in own) for name in _PARTS_NS}
            found[place] = {"device": label, **sums}
    return found


def _rows(trace: Trace) -> Iterator[dict[str, Any]]:
    """Yield the parts of each process on each of its devices."""
    pairs = _pairs(trace)
    pair_of = {device: (process, device) for process, device in pairs}
    own = trace
    if len(pair_of) < len(pairs):
        own, pair_of = _apart(trace).within(trace.span), dict(enumerate(pairs))
    for row in device_parts(own).to_dict("records"):
        if row["device"] in pair_of:
            process, device = pair_of[row["device"]]
            parts = {name: row[name] for name in _PARTS_NS}
            yield {"process": process, "device": device, **parts}


def _pairs(trace: Trace) -> list[tuple[int, int]]:
    """Return each process with each device that it uses, anywhere in the recording."""
    by_process = devices_of_processes(trace)
    return [(process, device) for process, own in by_process.items() for device in own]


@fact
def _apart(trace: Trace) -> Trace:
    """Return the device work of a trace as if each process had devices of its own.

    Their numbers are places among the pairs of process and device.
    """
    places = pd.MultiIndex.from_tuples(_pairs(trace))
    tables = {}
    for name in DEVICE_TABLES:
        frame = trace.table(name)
        users = pd.MultiIndex.from_frame(frame[["process", "device"]])
        tables[name] = frame.assign(device=places.get_indexer(users).astype(np.int64))
    apart = make_trace(trace.info, tables, trace.recorded, trace.span)
    return replace(apart, recordings=trace.recordings)
