"""What the ranks that share a collective say of it, put together."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.model.compact import CompactTable

__all__ = ["summarise"]


def summarise(rows: CompactTable) -> pd.DataFrame:
    """Return one row per match of ``rows``, all of which have one, as `Matches` holds it."""
    groups = _Groups(rows)
    starts, ends, sizes = (groups.of(name) for name in ("start_ns", "end_ns", "n_bytes"))
    first_start, last_start = groups.least(starts), groups.most(starts)
    members = np.diff(np.append(groups.firsts, len(rows)))
    # A receive is the other end of a send: the match is called after the latter.
    op = groups.first("op")
    op[op == "recv"] = "send"
    table = pd.DataFrame(
        {
            "op": pd.Series(op, groups.index, dtype=object),
            "group": pd.Series(groups.first("group"), groups.index, dtype=object),
            "group_size": groups.first("group_size"),
            "n_bytes": groups.first("n_bytes"),
            "members": members,
            "first_start_ns": first_start,
            "last_start_ns": last_start,
            "end_ns": groups.least(ends),
            "duration_ns": groups.least(ends - starts),
            "operation_bytes": groups.first_known("operation_bytes"),
            "bus_bytes": groups.first_known("bus_bytes"),
            "matched_by": pd.Series(groups.first("matched_by"), groups.index, dtype=object),
            "least_bytes": groups.least(sizes),
            "most_bytes": groups.most(sizes),
            "mean_bytes": groups.total(sizes) / members,
        },
        index=groups.index,
    )
    table = _uneven(table)
    return table.assign(
        spread_ns=groups.most(ends) - table["end_ns"].to_numpy(),
        waited_ns=last_start * members - groups.total(starts),
        last_member=groups.first_of("member", starts == np.repeat(last_start, members)),
    ).drop(columns=["least_bytes", "most_bytes", "mean_bytes"])


class _Groups:
    """The rows of each match side by side, in the order of the matches."""

    def __init__(self, rows: CompactTable) -> None:
        match = rows.array("match")
        self._rows = rows
        self._order = np.argsort(match, kind="stable")
        ordered = match[self._order]
        self._is_first = np.ones(len(ordered), np.bool_)
        self._is_first[1:] = ordered[1:] != ordered[:-1]
        self.firsts = np.flatnonzero(self._is_first)
        self.index = pd.Index(ordered[self.firsts], name="match")

    def of(self, name: str) -> npt.NDArray[Any]:
        """Return a column with the rows of each match side by side."""
        found: npt.NDArray[Any] = self._rows.array(name)[self._order]
        return found

    def first(self, name: str) -> npt.NDArray[Any]:
        """Return the value of the first row of each match."""
        found: npt.NDArray[Any] = self._rows.array(name)[self._order[self.firsts]]
        return found

    def first_of(self, name: str, chosen: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
        """Return the value of the first of the chosen rows of each match; each has one."""
        return self.first_in(name, np.flatnonzero(chosen))[1]

    def first_known(self, name: str) -> npt.NDArray[np.float64]:
        """Return the value of the first row of each match that knows it, else NaN."""
        found = np.full(len(self.firsts), np.nan)
        places, values = self.first_in(name, np.flatnonzero(~np.isnan(self.of(name))))
        found[places] = values
        return found

    def first_in(
        self, name: str, places: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
        """Return the matches, and of each the value of the first of its rows at ``places``."""
        numbers = np.searchsorted(self.firsts, places, side="right") - 1
        own, first = np.unique(numbers, return_index=True)
        return own, self._rows.array(name)[self._order[places[first]]]

    def least(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the least of each match; ``values`` are as `of` gives them."""
        return np.asarray(np.minimum.reduceat(values, self.firsts))

    def most(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the most of each match."""
        return np.asarray(np.maximum.reduceat(values, self.firsts))

    def total(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the sum of each match."""
        return np.asarray(np.add.reduceat(values, self.firsts))


def _uneven(table: pd.DataFrame) -> pd.DataFrame:
    """Return ``table`` with the mean for the size of all-to-alls with uneven parts.

    Their S is what a rank hands in on average, as in Mixture-of-Experts, where ranks differ.
    """
    is_uneven = (table["op"] == "all_to_all_v") & (table["least_bytes"] >= 0)
    mean = table["mean_bytes"].where(is_uneven & (table["mean_bytes"] > 0))
    return table.assign(
        n_bytes=table["n_bytes"].where(~is_uneven, table["mean_bytes"].round()).astype(np.int64),
        operation_bytes=table["operation_bytes"].where(~is_uneven, table["mean_bytes"]),
        imbalance=table["most_bytes"] / mean,
    )
