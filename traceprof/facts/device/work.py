"""The work of each device in the order in which it began, with what launched it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.facts.cache import fact
from traceprof.facts.launches import Launches, launches_of
from traceprof.model.activity import Activity
from traceprof.model.trace import DEVICE_TABLES, Trace

__all__ = ["DeviceWork", "work_of_devices"]

_Int64Array = npt.NDArray[np.int64]
_BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class DeviceWork:
    """The kernels and copies of one device in the whole recording, by start (at least one).

    ``name`` is the place in `labels` of the kernel's name or the copy's direction, ``launch_ns``
    and ``launched_ns`` are start and end of the launching call and ``thread`` is that of the call
    (meaningless unless ``is_linked``), ``is_shared`` says whether another device takes part
    (communication, copies between devices). ``by_end`` are the rows by end, ``ends_sorted`` these
    ends.
    """

    starts: _Int64Array
    ends: _Int64Array
    process: _Int64Array
    name: _Int64Array
    launch_ns: _Int64Array
    launched_ns: _Int64Array
    thread: _Int64Array
    is_linked: _BoolArray
    is_shared: _BoolArray
    by_end: _Int64Array
    ends_sorted: _Int64Array
    labels: pd.Index

    def after(self, instants: _Int64Array) -> _Int64Array:
        """Return the first work that begins at or after each instant, -1 where none does."""
        place = np.searchsorted(self.starts, instants, side="left")
        return np.where(place < len(self.starts), place, -1)

    def before(self, instants: _Int64Array) -> _Int64Array:
        """Return the work that ended last at or before each instant, -1 where none did."""
        place = np.searchsorted(self.ends_sorted, instants, side="right") - 1
        return np.where(place >= 0, self.by_end[place], -1)


@fact
def work_of_devices(trace: Trace) -> Mapping[int, DeviceWork]:
    """Return the work of each device in the whole recording."""
    kernels, copies = trace.kernels, trace.copies
    tables = [trace.table(name) for name in DEVICE_TABLES]
    launches = [launches_of(trace, name) for name in DEVICE_TABLES]
    names, directions = kernels["name"].cat, copies["direction"].cat
    labels = pd.Index([*map(str, names.categories), *map(str, directions.categories)], dtype=object)
    labels, place = _distinct(labels)
    codes = [
        place[names.codes.to_numpy(np.int64)],
        place[directions.codes.to_numpy(np.int64) + len(names.categories)],
    ]
    shared = [kernels["activity"] == Activity.COMMUNICATION.value, copies["direction"] == "p2p"]
    device = np.concatenate([table["device"] for table in tables])
    starts = np.concatenate([table["start_ns"] for table in tables])
    order = np.lexsort((starts, device))
    columns = (
        starts,
        np.concatenate([table["end_ns"] for table in tables]),
        np.concatenate([table["process"] for table in tables]),
        np.concatenate(codes),
        _stacked(launches, "start_ns"),
        _stacked(launches, "end_ns"),
        _stacked(launches, "thread"),
        np.concatenate([own.is_known for own in launches]),
        np.concatenate([own.to_numpy(np.bool_) for own in shared]),
    )
    numbers, first = np.unique(device[order], return_index=True)
    groups = np.split(order, first[1:])
    return {
        number: _of_rows([column[rows] for column in columns], labels)
        for number, rows in zip(numbers.tolist(), groups, strict=False)
    }


def _of_rows(columns: list[npt.NDArray[np.int64]], labels: pd.Index) -> DeviceWork:
    starts, ends, process, name, launch, launched, thread, linked, shared = columns
    by_end = np.argsort(ends, kind="stable")
    return DeviceWork(
        starts=starts,
        ends=ends,
        process=process,
        name=name,
        launch_ns=launch,
        launched_ns=launched,
        thread=thread,
        is_linked=linked.astype(np.bool_),
        is_shared=shared.astype(np.bool_),
        by_end=by_end,
        ends_sorted=ends[by_end],
        labels=labels,
    )


def _distinct(labels: pd.Index) -> tuple[pd.Index, _Int64Array]:
    """Return the labels, each once, and the place of each of ``labels`` among them."""
    codes, distinct = pd.factorize(labels)
    return pd.Index(distinct, dtype=object), np.asarray(codes, np.int64)


def _stacked(launches: list[Launches], column: str) -> _Int64Array:
    return np.concatenate([getattr(own, column) for own in launches])
