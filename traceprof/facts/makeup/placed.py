"""Where in a step the work of a device begins, by what it is: runs are matched by that, too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.facts.device.times import devices_of_processes
from traceprof.facts.makeup.collectives import COLLECTIVE, released_collectives
from traceprof.facts.makeup.devices import work_of_trace
from traceprof.facts.steps.find import pattern_of_ranks, steps_of_ranks
from traceprof.facts.steps.spans import rows_by
from traceprof.model.ranks import Ranks
from traceprof.model.trace import Trace

__all__ = ["place_of_work"]

_Int64Array = npt.NDArray[np.int64]
_Spans = Mapping[int, tuple[_Int64Array, _Int64Array]]
_KEYS: Final = ["kind", "name"]


def place_of_work(ranks: Ranks) -> pd.DataFrame:
    """Return what kind of work it is and where in a step it begins.

    One row per kind and name, as `makeup_of_devices` has them, of kernels, copies and collectives:
    class (of kernels; "" of others) and place_ratio, the mean from 0 (where the step begins) to 1;
    NaN where no step holds it. Where no steps are known turns of a repeating pattern count.
    """
    spans = _spans(ranks)
    tables = ranks.each_of(_placed_work, [(own,) for own in spans])
    shared = released_collectives(ranks, knows_waits=False)
    shared = shared.where(ranks.span.holds(shared.array("start_ns")))
    own = shared[["start_ns", "device"]].assign(kind=COLLECTIVE, name=shared["op"])
    tables.append(_placed(own, {device: both for own in spans for device, both in own.items()}))
    sums = pd.concat(tables).groupby(_KEYS)[["place", "known"]].sum().reset_index()
    found = sums[_KEYS].assign(place_ratio=sums["place"] / sums["known"].where(sums["known"] > 0))
    classes = _classes(ranks)
    is_kernel = found["kind"] == "kernel"
    return found.assign(**{"class": found["name"].map(classes).where(is_kernel, "").fillna("")})


def _placed_work(trace: Trace, spans: _Spans) -> pd.DataFrame:
    return _placed(work_of_trace(trace), spans)


def _spans(ranks: Ranks) -> list[_Spans]:
    """Return when each step begins and ends on each device of each rank."""
    steps = steps_of_ranks(ranks.whole)
    table = (steps if len(steps) else pattern_of_ranks(ranks.whole)).table
    by_process = rows_by(table, "process")
    starts, ends = (table[name].to_numpy(np.int64) for name in ("device_start_ns", "device_end_ns"))
    found: list[_Spans] = []
    for part in ranks.whole.parts:
        own: dict[int, tuple[_Int64Array, _Int64Array]] = {}
        for process, devices in devices_of_processes(part).items():
            rows = by_process.get(process)
            if rows is not None:
                order = rows[np.argsort(starts[rows], kind="stable")]
                own |= dict.fromkeys(devices, (starts[order], ends[order]))
        found.append(own)
    return found


def _placed(work: pd.DataFrame, spans: _Spans) -> pd.DataFrame:
    """Return the sum of the places of each kind and name, and of how many it is known."""
    instants = work["start_ns"].to_numpy(np.int64)
    devices = work["device"].to_numpy(np.int64)
    place = np.full(len(work), np.nan)
    for device in np.unique(devices).tolist():
        if device not in spans:
            continue
        rows = np.flatnonzero(devices == device)
        starts, ends = spans[device]
        step = np.searchsorted(starts, instants[rows], side="right") - 1
        kept = np.flatnonzero(step >= 0)
        rows, step = rows[kept], step[kept]
        inside = instants[rows] < ends[step]
        rows, step = rows[inside], step[inside]
        place[rows] = (instants[rows] - starts[step]) / np.maximum(1, ends[step] - starts[step])
    own = work[_KEYS].assign(place=np.nan_to_num(place), known=~np.isnan(place))
    groups = own.groupby(_KEYS, sort=False, observed=True)
    sums = groups[["place", "known"]].sum().reset_index()
    return sums.astype(dict.fromkeys(_KEYS, object))


def _classes(ranks: Ranks) -> dict[str, str]:
    """Return the class of each kernel by its name."""
    return {name: own for part in ranks.whole.each(_classes_of) for name, own in part.items()}


def _classes_of(trace: Trace) -> dict[str, str]:
    pairs = trace.kernels[["name", "activity"]].drop_duplicates()
    return dict(zip(pairs["name"].astype(str), pairs["activity"].astype(str), strict=True))
