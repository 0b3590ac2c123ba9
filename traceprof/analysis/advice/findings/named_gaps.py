"""Evidence: what the host was in while devices were idle, charged by overlap."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.analysis.advice.findings.context import Context
from traceprof.measures.idle.charges import NOTHING, charged_by_host, find_charges, time_by_name
from traceprof.model.intervals import Intervals, overlapping_pairs
from traceprof.model.results import Note

__all__ = ["names_of_gaps", "notes_on_names"]

_SHOWN: Final = 3
_MOST: Final = 0.5
_LEAST: Final = 0.05
"""Names below this share of the time are no evidence."""

_WORDS: Final = {
    "launching": " in {name}{mostly}",
    "other": " in {name}{mostly}, on another thread than the one that launches",
    "": " in which the host recorded nothing",
}


def notes_on_names(
    context: Context, times: Mapping[int, Intervals]
) -> tuple[tuple[Note, ...], tuple[str, ...]]:
    """Return sentences on what the host was in during the idle ``times`` of devices, and names.

    At most three of what they are charged to, the most first, and what other threads ran. Names are
    of the outermost operators; the innermost follows in parentheses where it has most of that.
    """
    charged, beside = names_of_gaps(context, times)
    if charged.empty:
        return (), ()
    least = _LEAST * charged["ns"].sum()
    ranked = _outermost(charged)
    ranked = ranked[ranked["ns"] >= least].head(_SHOWN)
    notes = [
        context.timed(int(ns), after=_WORDS[str(by)], name=str(name), mostly=str(mostly))
        for name, by, ns, mostly in ranked.itertuples(index=False)
    ]
    told = {*charged["name"].astype(str), *charged["operator"].astype(str)}
    notes += [
        context.timed(ns, before="other threads meanwhile: ", after=" in {name}", name=name)
        for name, ns in list(beside.items())[:1]
        if ns >= least and name not in told
    ]
    return tuple(notes), tuple(name for name in ranked["operator"].astype(str) if name != NOTHING)


def _outermost(charged: pd.DataFrame) -> pd.DataFrame:
    """Return operator, by, ns, and the words for the innermost name that has most of it, or ""."""
    keys = ["operator", "by"]
    most = charged.sort_values("ns", ascending=False, kind="stable").drop_duplicates(keys)
    sums = charged.groupby(keys, sort=True)["ns"].sum().rename("whole").reset_index()
    both = sums.merge(most, on=keys)
    is_told = (both["ns"] > _MOST * both["whole"]) & (both["name"] != both["operator"])
    mostly = np.where(is_told, " (mostly " + both["name"].astype(object) + ")", "")
    found = both[keys].assign(ns=both["whole"], mostly=mostly)
    return found.sort_values("ns", ascending=False, kind="stable", ignore_index=True)


def names_of_gaps(
    context: Context, times: Mapping[int, Intervals]
) -> tuple[pd.DataFrame, dict[str, int]]:
    """Return what the idle ``times`` of devices are charged to, and what else ran meanwhile.

    The first has name, operator, by and ns, the most first: ns add up to what of ``times`` the
    host held devices up. The second, by name, is what threads ran other than those that launch.
    """
    charged, running = [], []
    for part in context.ranks:
        charged.append(_within(charged_by_host(part), times))
        others = find_charges(part).running
        running.append(_within(others[others["by"] == "other"], times))
    table = pd.concat(
        [
            own[["name", "operator", "by"]]
            .astype(object)
            .assign(ns=own["end_ns"] - own["start_ns"])
            for own in charged
        ],
        ignore_index=True,
    )
    sums = table.groupby(["name", "operator", "by"], sort=True)["ns"].sum().reset_index()
    beside: dict[str, int] = {}
    for own in running:
        for name, ns in time_by_name(own).items():
            beside[name] = beside.get(name, 0) + ns
    ranked = sums.sort_values("ns", ascending=False, kind="stable", ignore_index=True)
    return ranked, dict(sorted(beside.items(), key=lambda item: -item[1]))


def _within(rows: pd.DataFrame, times: Mapping[int, Intervals]) -> pd.DataFrame:
    """Return what of ``rows`` lies in the ``times`` of their device."""
    device = rows["device"].to_numpy(np.int64)
    starts, ends = rows["start_ns"].to_numpy(np.int64), rows["end_ns"].to_numpy(np.int64)
    found: list[npt.NDArray[np.int64]] = [np.empty((3, 0), np.int64)]
    for number, time in times.items():
        own = np.flatnonzero(device == number)
        row, place = overlapping_pairs(starts[own], ends[own], time.starts, time.ends)
        row = own[row]
        first, last = (
            np.maximum(starts[row], time.starts[place]),
            np.minimum(ends[row], time.ends[place]),
        )
        found.append(np.stack((row, first, last)))
    row, first, last = np.concatenate(found, axis=1)
    return rows.take(row).assign(start_ns=first, end_ns=last)
