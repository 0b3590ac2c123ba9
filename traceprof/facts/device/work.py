"""The work of each device in the order in which it began, with what launched it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.facts.cache import fact
from traceprof.facts.device.times import used_devices
from traceprof.facts.launches import Launches, launches_of
from traceprof.model.activity import Activity
from traceprof.model.grouping import rows_by_value
from traceprof.model.trace import DEVICE_TABLES, Trace
from traceprof.values import dataclass

__all__ = ["DeviceWork", "Pieces", "work_of_devices"]

_Int64Array = npt.NDArray[np.int64]
_BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class DeviceWork:
    """The kernels and copies of one device in the whole recording, by start.

    There are none where the recording is a part of one in which the device worked at other times.
    ``rows`` are their places among all kernels and, behind these, all copies; ``starts`` when they
    begin. ``by_end`` are the same rows by end, ``ends_sorted`` these ends.
    """

    rows: npt.NDArray[Any]
    starts: _Int64Array
    by_end: npt.NDArray[Any]
    ends_sorted: _Int64Array

    def after(self, instants: _Int64Array) -> _Int64Array:
        """Return the row of the first that begins at or after each instant, -1 where none does."""
        place = np.searchsorted(self.starts, instants, side="left")
        return self._row(self.rows, place, place < len(self.starts))

    def before(self, instants: _Int64Array) -> _Int64Array:
        """Return the row of what ended last at or before each instant, -1 where nothing did."""
        place = np.searchsorted(self.ends_sorted, instants, side="right") - 1
        return self._row(self.by_end, place, place >= 0)

    def _row(self, rows: npt.NDArray[Any], place: _Int64Array, is_any: _BoolArray) -> _Int64Array:
        if not len(rows):
            return np.full(len(place), -1, np.int64)
        return np.where(is_any, rows[np.where(is_any, place, 0)], -1)


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Some of the work of a whole recording: ``rows`` as `DeviceWork` has them.

    What is told of a row below 0 means nothing.
    """

    trace: Trace
    rows: _Int64Array

    @property
    def process(self) -> _Int64Array:
        """The process of each."""
        return self._of_either(*(self.trace.table(name)["process"] for name in DEVICE_TABLES))

    @property
    def is_shared(self) -> _BoolArray:
        """Whether another device takes part: in communication, in copies between devices."""
        kernels, copies = self.trace.kernels["activity"], self.trace.copies["direction"]
        return self._of_either(kernels == Activity.COMMUNICATION.value, copies == "p2p")

    @property
    def launches(self) -> Launches:
        """What launched each."""
        of_tables = [launches_of(self.trace, name) for name in DEVICE_TABLES]
        call = self._of_either(*(launches.call for launches in of_tables))
        return Launches(call, self.process, self.trace.api_calls)

    @property
    def names(self) -> pd.Categorical:
        """The name of each kernel, the direction of each copy; "" where there is no row."""
        names, directions = self.trace.kernels["name"].cat, self.trace.copies["direction"].cat
        labels = [*map(str, names.categories), *map(str, directions.categories), ""]
        places, distinct = pd.factorize(np.array(labels, object))
        codes = self._of_either(
            names.codes, directions.codes.to_numpy(np.int64) + len(names.categories)
        )
        codes = np.where(self.rows >= 0, places[codes], places[-1])
        return pd.Categorical.from_codes(codes, pd.Index(distinct, dtype=object))

    def _of_either(self, of_kernels: Any, of_copies: Any) -> npt.NDArray[Any]:
        """Return the values of the rows, of columns of both tables."""
        kernels, copies = np.asarray(of_kernels), np.asarray(of_copies)
        if not len(kernels):
            kernels = np.zeros(1, copies.dtype)  # for what is below 0
            return np.concatenate((kernels, copies))[np.maximum(self.rows + 1, 0)]
        rows = self.rows
        if bool((rows < 0).any()):
            rows = np.where(rows < 0, len(kernels) - 1, rows)
        return np.concatenate((kernels, copies))[rows]


@fact
def work_of_devices(trace: Trace) -> Mapping[int, DeviceWork]:
    """Return the work of each device in the whole recording."""
    tables = [trace.table(name) for name in DEVICE_TABLES]
    starts, ends = (
        np.concatenate([table[name] for table in tables]) for name in ("start_ns", "end_ns")
    )
    device = np.concatenate([table["device"] for table in tables])
    rows_of = dict.fromkeys(used_devices(trace), np.empty(0, np.int64))
    rows_of.update(rows_by_value(device))
    return {number: _in_order(rows, starts[rows], ends[rows]) for number, rows in rows_of.items()}


def _in_order(rows: _Int64Array, starts: _Int64Array, ends: _Int64Array) -> DeviceWork:
    by_start = np.argsort(starts, kind="stable")
    rows, ends = rows[by_start], ends[by_start]
    by_end = np.argsort(ends, kind="stable")
    small = np.min_scalar_type(-int(rows.max(initial=0)) - 1)
    return DeviceWork(
        rows=rows.astype(small),
        starts=starts[by_start],
        by_end=rows[by_end].astype(small),
        ends_sorted=ends[by_end],
    )
