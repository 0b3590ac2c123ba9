"""The difference of two as a sum that is exact, down to kernels, copies, waits and causes.

The two are windows, seen by their devices, or mean steps: the window of all devices over its steps
on them. Of every cause the mean is the floor of the cumulated share, so that what adds up over all
devices and steps adds up in the mean, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from traceprof.comparison.kernel_names import Matched, match_kernels
from traceprof.comparison.sides import Side, shares_of
from traceprof.comparison.specs import DIFFERENCE
from traceprof.measures.rows import Floats, Texts
from traceprof.model.activity import PARTS
from traceprof.model.results import Result

CAUSE: Final = ["part", "kind", "name"]
"""What tells causes apart."""
SIDES: Final = ("base", "new")
_KERNEL: Final = "kernel"
_CHANGED: Final = 0.05


def causes_of(
    made: Sequence[pd.DataFrame],
    names: tuple[str, str],
    divisors: Sequence[int],
    *,
    per_unit: bool = True,
) -> pd.DataFrame:
    """Return what the first and the second of two are ``made`` of, the largest difference first.

    Args:
        made: rows of part, kind, name, ns, count and n_bytes; what else they have is kept.
        names: how the columns of the two begin: what is called ``difference_ns`` is how much
            longer the second is.
        divisors: over how many units the ns are summed up: the mean is told.
        per_unit: whether counts and sizes are means over these, too.
    """
    together = [
        _together(own).add_suffix(f"_{name}") for own, name in zip(made, names, strict=True)
    ]
    both = together[0].join(together[1], how="outer").reset_index()
    both = both.fillna({f"{what}_{name}": 0 for what in ("ns", "count") for name in names})
    totals = [both[f"ns_{name}"].to_numpy(np.int64) for name in names]
    rates = [own / max(1, n) for own, n in zip(totals, divisors, strict=True)]
    order = np.lexsort((-totals[1], -np.abs(rates[1] - rates[0])))
    order = order[(totals[0] != 0)[order] | (totals[1] != 0)[order]]
    found: pd.DataFrame = both.iloc[order].reset_index(drop=True)
    lengths, counts = [], []
    for name, ns, n in zip(names, totals, divisors, strict=True):
        size = max(1, n) if per_unit else 1
        counts.append(found[f"count_{name}"].to_numpy(np.float64) / size)
        shares = shares_of(ns[order], n)
        lengths.append(shares if per_unit else ns[order])
        found[f"{name}_ns"], found[f"{name}_rate"] = shares, ns[order] / max(1, n)
        found[f"{name}_count"] = counts[-1] if per_unit else counts[-1].astype(np.int64)
        found[f"{name}_bytes"] = found[f"n_bytes_{name}"].to_numpy(np.float64) / size
    difference = found[f"{names[1]}_ns"] - found[f"{names[0]}_ns"]
    more = np.rint(_of_number(lengths, counts) / (1 if per_unit else divisors[0]))
    is_counted = counts[0] + counts[1] > 0
    return found.assign(
        difference_ns=difference,
        more_ns=np.where(is_counted, more, np.nan),
        longer_ns=np.where(is_counted, difference - more, np.nan),
    )


def _together(made: pd.DataFrame) -> pd.DataFrame:
    """Return what all devices did, by what it was; sizes of which none is known are not known."""
    groups = made.groupby(CAUSE)
    found = groups[["ns", "count"]].sum().assign(n_bytes=groups["n_bytes"].sum(min_count=1))
    return found.assign(**{"class": groups["class"].first()}) if "class" in made else found


def _of_number(lengths: Sequence[Any], counts: Sequence[Floats]) -> Floats:
    """Return what of each difference there is because there are more of them, or fewer.

    At the mean length of those of the first; where it has none, of the second.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        usual, own = (length / count for length, count in zip(lengths, counts, strict=True))
    each = np.where(counts[0] > 0, usual, np.where(counts[1] > 0, own, 0.0))
    return np.asarray((counts[1] - counts[0]) * each, np.float64)


def parts_of(causes: pd.DataFrame, names: tuple[str, str]) -> tuple[pd.DataFrame, dict[str, int]]:
    """Return the five parts, and by the names of their columns what they add up to."""
    times = ["difference_ns", *(f"{name}_ns" for name in names)]
    parts = causes.groupby("part")[times].sum().reindex(list(PARTS), fill_value=0)
    return parts.rename_axis("part").reset_index(), {name: int(parts[name].sum()) for name in times}


def phases_of(
    sums: Sequence[pd.Series], names: tuple[str, str], divisors: Sequence[int]
) -> pd.DataFrame:
    """Return the phases of hosts of two, ns by name, as `causes_of` does: a sum that is exact.

    Where differences are equal they are in the order of the second's ``sums``.
    """
    phases = list(dict.fromkeys([*sums[1].index, *sums[0].index]))
    totals = [own.reindex(phases, fill_value=0).to_numpy(np.int64) for own in sums]
    rates = [own / max(1, n) for own, n in zip(totals, divisors, strict=True)]
    order = np.argsort(-np.abs(rates[1] - rates[0]), kind="stable")
    means = [shares_of(own[order], n) for own, n in zip(totals, divisors, strict=True)]
    times = {f"{name}_ns": own for name, own in zip(names, means, strict=True)}
    found = {"phase": np.array(phases, object)[order], "difference_ns": means[1] - means[0]}
    return pd.DataFrame({**found, **times})


def matched_kernels(base: Side, new: Side) -> Matched:
    """Return which kernels of the composition of both sides are the same."""
    return match_kernels(_kernels_of(base), _kernels_of(new))


def _kernels_of(side: Side) -> pd.DataFrame:
    """Return one row per kernel: name, class, place_ratio and how many per step and device."""
    made = side.composition
    if made is None:
        return pd.DataFrame({"name": [], "class": [], "place_ratio": [], "count": []})
    own = made[(made["kind"] == _KERNEL).to_numpy()]
    weight = own["count"].where(own["place_ratio"].notna(), 0)
    own = own.assign(weight=weight, place=own["place_ratio"].fillna(0) * weight)
    groups = own.groupby("name")
    sums = groups[["count", "weight", "place"]].sum()
    place = sums["place"] / sums["weight"].where(sums["weight"] > 0)
    count = sums["count"] / max(1, side.units_count)
    found = {"class": groups["class"].first(), "place_ratio": place, "count": count}
    return pd.DataFrame(found).rename_axis("name").reset_index()


def difference_of(base: Side, new: Side, matched: Matched, phases: pd.DataFrame | None) -> Result:
    """Return what makes a step of ``new`` longer than one of ``base``; both have a composition."""
    made = [_named(base, matched.base), _named(new, matched.new)]
    causes = _judged(causes_of(made, SIDES, (base.units_count, new.units_count)), matched)
    parts, length = parts_of(causes, SIDES)
    parts["share_ratio"] = parts["difference_ns"] / (length["base_ns"] or np.nan)
    kinds = causes.groupby(["part", "kind"])[list(length)].sum().reset_index()
    order = np.argsort(-kinds["difference_ns"].abs().to_numpy(), kind="stable")
    kinds = kinds.iloc[order].reset_index(drop=True)
    return difference_result(
        (base, new),
        length,
        {"causes": causes, "parts": parts, "kinds": kinds, "phases": phases},
        base_count=base.units_count,
        new_count=new.units_count,
    )


def difference_result(
    sides: tuple[Side, Side],
    length: dict[str, int],
    tables: dict[str, Any],
    **scalars: int,
) -> Result:
    """Return the tables of a difference, as far as they are known, with its ``length``."""
    frames = {
        name: DIFFERENCE.table(name).frame(table)
        for name, table in tables.items()
        if table is not None
    }
    base, new = sides
    said = {"base": base.name, "new": new.name, "per": base.unit, **length, **scalars}
    return Result("difference", DIFFERENCE, frames, said)


def _named(side: Side, names: Any) -> pd.DataFrame:
    """Return what all devices of all runs of a side did, by what it is called on both sides."""
    made = side.composition
    assert made is not None
    own = made["name"].astype(object).to_numpy()
    shown = np.array([names.get(str(name), name) for name in own], object)
    return made.assign(name=np.where((made["kind"] == _KERNEL).to_numpy(), shown, own))


def _judged(causes: pd.DataFrame, matched: Matched) -> pd.DataFrame:
    """Return the causes with their classes, the names of the base and what became of each."""
    first = causes["class_new"].where(causes["class_new"].fillna("") != "", causes["class_base"])
    old = np.array([matched.renamed.get(str(name), "") for name in causes["name"]], object)
    old = np.where(causes["kind"] == _KERNEL, old, "")
    state = states_of(causes["base_rate"], causes["new_rate"], old)
    columns: dict[str, Any] = {"class": first.fillna(""), "base_name": old, "state": state}
    return causes.assign(**columns)


def states_of(base_ns: Any, new_ns: Any, base_names: Any) -> Texts:
    """Return what became of each: new, gone, renamed, changed or same."""
    base, new = np.asarray(base_ns, np.float64), np.asarray(new_ns, np.float64)
    changed = np.abs(new - base) >= _CHANGED * np.maximum(base, new)
    renamed = np.array([bool(name) for name in base_names], np.bool_)
    state = np.where(changed, "changed", "same").astype(object)
    state[renamed] = "renamed"
    state[(base == 0) & (new > 0) & ~renamed] = "new"
    state[(new == 0) & (base > 0)] = "gone"
    return state
