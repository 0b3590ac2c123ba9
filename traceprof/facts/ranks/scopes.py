"""Collectives inside a host or rack, and across them."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.facts.collectives.matches import Matches
from traceprof.facts.ranks.groups import Grouping
from traceprof.model.results import Note, TableSpec, Unit, derived, key, total
from traceprof.model.tables import ABSENT

__all__ = ["SCOPES", "describe_scopes", "scopes_by_group", "scopes_of_run", "with_scopes"]

_INSIDE: Final = "inside"
_ACROSS: Final = "across"
_NOT_KNOWN: Final = "not known"

SCOPES: Final = TableSpec(
    "scopes",
    "the shared collectives by where their ranks are",
    (
        key("scope", "inside: all ranks are of one group; across; not known: some have no trace"),
        total("count", Unit.COUNT, "how many"),
        total("total_ns", Unit.NS, "their time without waiting, added up"),
        derived("sized_ratio", Unit.RATIO, "the share of them of which the bandwidth is known"),
        derived("busbw_bytes_per_s", Unit.BYTES_PER_S, "the busbw of those together"),
    ),
)


def with_scopes(matches: Matches, names: npt.NDArray[np.object_]) -> pd.DataFrame:
    """Return each shared collective once for each group that has a part in it; ``names`` of ranks.

    Columns: match, group, duration_ns, bus_bytes, scope: inside (all its ranks are of one group),
    across, or not known where it has ranks without a trace and the others are of one group.
    """
    rows = matches.shared
    table = matches.table
    codes, kinds = pd.factorize(names)
    match, code = rows.array("match"), codes[rows.array("member")]
    is_new = ~pd.Series(match * len(kinds) + code).duplicated().to_numpy()
    own = pd.DataFrame({"match": match[is_new], "group": kinds[code[is_new]]})
    several = own.groupby("match").size().reindex(table.index, fill_value=0).to_numpy() > 1
    size = table["group_size"].to_numpy(np.int64)
    is_whole = (size == ABSENT) | (table["members"].to_numpy(np.int64) >= size)
    scope = np.where(several, _ACROSS, np.where(is_whole, _INSIDE, _NOT_KNOWN))
    scoped = table[["duration_ns", "bus_bytes"]].assign(scope=scope)
    return own.merge(scoped, left_on="match", right_index=True)


def scopes_by_group(shared: pd.DataFrame, groups: list[str]) -> dict[str, dict[str, int]]:
    """Return, by group, how many collectives are inside it and across, and their time."""
    nothing = {"inside_count": 0, "inside_ns": 0, "across_count": 0, "across_ns": 0}
    found = {group: dict(nothing) for group in groups}
    sums = shared.groupby(["group", "scope"])["duration_ns"].agg(["size", "sum"])
    for (group, scope), count, time in sums.itertuples():
        if scope != _NOT_KNOWN:
            found[group] |= {f"{scope}_count": int(count), f"{scope}_ns": int(time)}
    return found


def scopes_of_run(shared: pd.DataFrame) -> pd.DataFrame:
    """Return the table `SCOPES` of collectives as `with_scopes` returns them."""
    each = shared.drop_duplicates("match")
    is_sized = each["bus_bytes"].notna() & (each["duration_ns"] > 0)
    rows: list[dict[str, Any]] = []
    for scope in (_INSIDE, _ACROSS, _NOT_KNOWN):
        own, sized = each[each["scope"] == scope], each[is_sized & (each["scope"] == scope)]
        if own.empty:
            continue
        seconds = int(sized["duration_ns"].sum()) / 1e9
        rows.append(
            {
                "scope": scope,
                "count": len(own),
                "total_ns": int(own["duration_ns"].sum()),
                "sized_ratio": len(sized) / len(own),
                "busbw_bytes_per_s": sized["bus_bytes"].sum() / seconds if seconds else None,
            }
        )
    return SCOPES.frame(rows)


def describe_scopes(grouping: Grouping, scopes: pd.DataFrame) -> list[Note]:
    """Return how many collectives there are in each scope, and their bandwidth where known."""
    words = {_INSIDE: f"inside a {grouping.value}", _ACROSS: f"across {grouping.value}s"}
    notes = []
    for row in scopes.to_dict("records"):
        if row["scope"] not in words:
            text = "{n:count} have ranks without a trace: where these ran is not known"
            notes.append(Note.of(text, n=row["count"]))
            continue
        values = {"n": row["count"], "time": row["total_ns"]}
        text = f"{words[row['scope']]}: {{n:count}} collectives, {{time:ns}} without waiting"
        if row["sized_ratio"]:
            text += ", busbw {rate:bytes/s}"
            values["rate"] = row["busbw_bytes_per_s"]
            if row["sized_ratio"] < 1:
                text += " ({share:ratio})"
                values["share"] = row["sized_ratio"]
        notes.append(Note.of(text, **values))
    return notes
