"""The difference of a step as a sum that is exact, down to kernels, copies, waits and causes.

A mean step is the window of all devices over its steps on them. Of every cause it has the floor of
the cumulated share, so that what adds up over all devices and steps adds up in the mean, too.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.comparison.kernel_names import Matched, match_kernels
from traceprof.comparison.sides import Side
from traceprof.comparison.specs import DIFFERENCE
from traceprof.model.activity import PARTS
from traceprof.model.results import Result

_Int64Array = npt.NDArray[np.int64]
_Float64Array = npt.NDArray[np.float64]

_KERNEL: Final = "kernel"
_KEYS: Final = ["part", "kind", "name"]
_SIDES: Final = ("base", "new")
_CHANGED: Final = 0.05


def matched_kernels(base: Side, new: Side) -> Matched:
    """Return which kernels of the makeup of both sides are the same."""
    return match_kernels(_kernels_of(base), _kernels_of(new))


def _kernels_of(side: Side) -> pd.DataFrame:
    """Return one row per kernel: name, class, place_ratio and how many per step and device."""
    made = side.makeup
    if made is None:
        return pd.DataFrame({"name": [], "class": [], "place_ratio": [], "count": []})
    own = made[(made["kind"] == _KERNEL).to_numpy()]
    weight = own["count"].where(own["place_ratio"].notna(), 0)
    own = own.assign(weight=weight, place=own["place_ratio"].fillna(0) * weight)
    groups = own.groupby("name")
    sums = groups[["count", "weight", "place"]].sum()
    found = pd.DataFrame(
        {
            "name": sums.index.to_numpy(),
            "class": groups["class"].first().to_numpy(),
            "place_ratio": (sums["place"] / sums["weight"].where(sums["weight"] > 0)).to_numpy(),
            "count": sums["count"].to_numpy() / max(1, side.units_count),
        }
    )
    return found.reset_index(drop=True)


def difference_of(base: Side, new: Side, matched: Matched, phases: pd.DataFrame | None) -> Result:
    """Return what makes a step of ``new`` longer than one of ``base``; both have a makeup."""
    causes = _causes(base, new, matched)
    times = ["difference_ns", "base_ns", "new_ns"]
    parts = causes.groupby("part")[times].sum().reindex(list(PARTS), fill_value=0)
    parts = parts.rename_axis("part").reset_index()
    length = {name: int(parts[name].sum()) for name in times}
    parts["share_ratio"] = parts["difference_ns"] / (length["base_ns"] or np.nan)
    kinds = causes.groupby(["part", "kind"])[times].sum().reset_index()
    order = np.argsort(-kinds["difference_ns"].abs().to_numpy(), kind="stable")
    tables = {"causes": causes, "parts": parts, "kinds": kinds.iloc[order]}
    if phases is not None:
        tables["phases"] = phases
    return Result(
        "difference",
        DIFFERENCE,
        {
            name: DIFFERENCE.table(name).frame(table.reset_index(drop=True))
            for name, table in tables.items()
        },
        {
            "base": base.name,
            "new": new.name,
            "per": base.unit,
            **length,
            "base_count": base.units_count,
            "new_count": new.units_count,
        },
    )


def _causes(base: Side, new: Side, matched: Matched) -> pd.DataFrame:
    both = _together(base, matched.base).add_suffix("_base")
    both = both.join(_together(new, matched.new).add_suffix("_new"), how="outer").reset_index()
    both = both.fillna({f"{name}_{side}": 0 for name in ("ns", "count") for side in _SIDES})
    both = both[((both["ns_base"] != 0) | (both["ns_new"] != 0)).to_numpy()]
    divisors = {"base": base.units_count, "new": new.units_count}
    totals = {side: both[f"ns_{side}"].to_numpy(np.int64) for side in _SIDES}
    counts = {
        side: both[f"count_{side}"].to_numpy(np.float64) / max(1, divisors[side]) for side in _SIDES
    }
    rough = totals["new"] / max(1, divisors["new"]) - totals["base"] / max(1, divisors["base"])
    order = np.lexsort((-totals["new"], -np.abs(rough)))
    rates = [totals[side][order] / max(1, divisors[side]) for side in _SIDES]
    both, counts = both.iloc[order], {side: own[order] for side, own in counts.items()}
    found: dict[str, Any] = {name: both[name].to_numpy() for name in _KEYS}
    for side in _SIDES:
        found[f"{side}_ns"] = shares_of(totals[side][order], divisors[side])
        found[f"{side}_count"] = counts[side]
        sizes = both[f"n_bytes_{side}"].to_numpy(np.float64)
        found[f"{side}_bytes"] = sizes / max(1, divisors[side])
    found["difference_ns"] = found["new_ns"] - found["base_ns"]
    more = _of_number(found, counts)
    is_counted = counts["base"] + counts["new"] > 0
    found["more_ns"] = np.where(is_counted, np.rint(more), np.nan)
    found["longer_ns"] = np.where(is_counted, found["difference_ns"] - np.rint(more), np.nan)
    first = both["class_new"].where(both["class_new"].fillna("") != "", both["class_base"])
    found["class"] = first.fillna("").to_numpy()
    is_kernel = found["kind"] == _KERNEL
    old = [matched.renamed.get(str(name), "") for name in found["name"]]
    found["base_name"] = np.where(is_kernel, np.array(old, object), "")
    found["state"] = states_of(rates[0], rates[1], found["base_name"])
    return pd.DataFrame(found)


def _together(side: Side, names: Any) -> pd.DataFrame:
    """Return what all devices of all runs of a side did, by what it is on both sides."""
    made = side.makeup
    assert made is not None
    is_kernel = (made["kind"] == _KERNEL).to_numpy()
    own = made["name"].astype(object).to_numpy()
    shown = np.array([names.get(str(name), name) for name in own], object)
    made = made.assign(name=np.where(is_kernel, shown, own))
    groups = made.groupby(_KEYS)
    sums = groups[["ns", "count"]].sum()
    return sums.assign(
        n_bytes=groups["n_bytes"].sum(min_count=1), **{"class": groups["class"].first()}
    )


def shares_of(totals: _Int64Array, n: int) -> _Int64Array:
    """Return the ``n``-th part of each, by floor of the cumulated share: they add up as all do."""
    reached = np.append(0, np.cumsum(totals)) // max(1, n)
    return np.asarray(np.diff(reached), np.int64)


def _of_number(found: dict[str, Any], counts: dict[str, _Float64Array]) -> _Float64Array:
    """Return what of each difference there is because there are more of them, or fewer.

    At the mean length of those of the base; where it has none, of the new one's.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        usual = found["base_ns"] / counts["base"]
        own = found["new_ns"] / counts["new"]
    each = np.where(counts["base"] > 0, usual, np.where(counts["new"] > 0, own, 0.0))
    return np.asarray((counts["new"] - counts["base"]) * each, np.float64)


def states_of(base_ns: Any, new_ns: Any, base_names: Any) -> npt.NDArray[np.object_]:
    """Return what became of each: new, gone, renamed, changed or same."""
    base, new = np.asarray(base_ns, np.float64), np.asarray(new_ns, np.float64)
    changed = np.abs(new - base) >= _CHANGED * np.maximum(base, new)
    renamed = np.array([bool(name) for name in base_names], np.bool_)
    state = np.where(changed, "changed", "same").astype(object)
    state[renamed] = "renamed"
    state[(base == 0) & (new > 0) & ~renamed] = "new"
    state[(new == 0) & (base > 0)] = "gone"
    return state
