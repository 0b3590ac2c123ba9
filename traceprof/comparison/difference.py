"""The difference of two as a sum that is exact, down to kernels, copies, waits and causes.

The two are windows, seen by their devices, or mean steps: the window of all devices over its steps
on them. Of every cause the mean is the floor of the cumulated share, so that what adds up over all
devices and steps adds up in the mean, too.

Profilers write the name of a kernel in several ways, and new versions of libraries call the same
work otherwise. Which kernel of one run is which of another is told in this order:

1. by the name, without what profilers and compilers write differently;
2. by the own name and what it applies, where sizes and types among the arguments changed;
3. by the class, where in a step it begins, and how often it runs: of what is left, the closest
   first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd

from traceprof.comparison.sides import Side, shares_of
from traceprof.comparison.specs import DIFFERENCE
from traceprof.measures.rows import Floats, Texts
from traceprof.model.activity import PARTS
from traceprof.model.results import Result
from traceprof.names.kernels import short_name
from traceprof.names.parsing import parse_name

_CASTS: Final = re.compile(
    r"\((?:unsigned |signed )?(?:int|bool|long|char|short)(?: long)?\)(?=-?\d)"
)
_SUFFIXES: Final = re.compile(r"(?<=\d)(?:u|l|ul|ull|ll)\b", re.IGNORECASE)
_LAMBDA: Final = re.compile(
    r"\{lambda\([^{}]*\)(?:#\d+)?\}|\[lambda \([^\[\]]*\)(?: \(instance \d+\))?\]"
    r"|\{lambda[^{}]*\}|'lambda\d*'\([^()]*\)"
)
_TRUTHS: Final = ((re.compile(r"\btrue\b"), "1"), (re.compile(r"\bfalse\b"), "0"))
_BLANKS: Final = re.compile(r"\s+")
_FAR: Final = 0.1
"""Kernels that begin further apart than this share of a step are not the same."""
_MOST_OFTEN: Final = 1.25
"""Nor are those of which one runs more often than the other by more than this factor."""


@dataclass(frozen=True, slots=True)
class Matched:
    """What each kernel's name stands for in both runs: the name of the new one where it has one.

    ``renamed`` gives, by that name, what the base calls it, where that is not the same name.
    """

    base: Mapping[str, str]
    new: Mapping[str, str]
    renamed: Mapping[str, str]


def canonical_name(name: str) -> str:
    """Return the name of a kernel as no profiler writes it: what all of them write, and no more.

    Casts of numbers, their suffixes, numbers of lambdas, blanks, the type that is returned and the
    types of the arguments are left out; mangled names are demangled.
    """
    taken = parse_name(name)
    template = _LAMBDA.sub("lambda", taken.template)
    template = _SUFFIXES.sub("", _CASTS.sub("", template))
    for pattern, digit in _TRUTHS:
        template = pattern.sub(digit, template)
    template = template.replace("(anonymous namespace)::", "").replace("<unnamed>::", "")
    own = f"{taken.scope}::{taken.identifier}" if taken.scope else taken.identifier or name
    return f"{own}<{_BLANKS.sub('', template)}>" if template else own


def match_kernels(base: pd.DataFrame, new: pd.DataFrame) -> Matched:
    """Return which kernels are the same.

    Both have a row per kernel: name, class, place_ratio (NaN: not known) and count (per step).
    """
    found = _Pairs(base, new)
    found.by(canonical_name, are_same=True)
    found.by(short_name, are_same=False)
    found.by_place()
    return found.matched()


class _Pairs:
    """The kernels of both runs, and those that found one another so far."""

    def __init__(self, base: pd.DataFrame, new: pd.DataFrame) -> None:
        self._left = [base.reset_index(drop=True), new.reset_index(drop=True)]
        both = set(base["name"]) & set(new["name"])
        self._names: list[dict[str, str]] = [{name: name for name in both} for _ in range(2)]
        self._renamed: dict[str, str] = {}
        self._drop()

    def by(self, normal: Callable[[str], str], *, are_same: bool) -> None:
        """Match kernels of the same class whose names are alike once they are normalised."""
        keys = [
            [(normal(str(n)), c) for n, c in zip(own["name"], own["class"], strict=True)]
            for own in self._left
        ]
        for key in sorted(set(keys[0]) & set(keys[1])):
            names = [
                [n for n, k in zip(own["name"], keys[side], strict=True) if k == key]
                for side, own in enumerate(self._left)
            ]
            self._pair(names[0], names[1], are_same=are_same)
        self._drop()

    def by_place(self) -> None:
        """Match what is left of each class by where in the step it begins and how often it runs."""
        base, new = self._left
        if base.empty or new.empty:
            return
        places = [own["place_ratio"].to_numpy(np.float64) for own in (base, new)]
        counts = [own["count"].to_numpy(np.float64) for own in (base, new)]
        classes = [own["class"].astype(str).to_numpy() for own in (base, new)]
        far = np.abs(places[0][:, None] - places[1][None, :])
        with np.errstate(divide="ignore", invalid="ignore"):
            often = np.abs(np.log(counts[0][:, None] / counts[1][None, :]))
        fits = (classes[0][:, None] == classes[1][None, :]) & (far <= _FAR)
        fits &= often <= np.log(_MOST_OFTEN)
        cost = np.where(fits, far + often, np.inf)
        order = np.argsort(cost, axis=None, kind="stable")
        free = [set(range(len(base))), set(range(len(new)))]
        for flat in order[: int(fits.sum())].tolist():
            i, j = divmod(flat, len(new))
            if i in free[0] and j in free[1]:
                free[0].remove(i)
                free[1].remove(j)
                self._pair([str(base["name"][i])], [str(new["name"][j])], are_same=False)
        self._drop()

    def matched(self) -> Matched:
        """Return what was found; what found nothing stands for itself."""
        for side, own in enumerate(self._left):
            self._names[side] |= {str(name): str(name) for name in own["name"]}
        return Matched(self._names[0], self._names[1], self._renamed)

    def _pair(self, base: list[str], new: list[str], *, are_same: bool) -> None:
        shown = min(new)
        self._names[0] |= dict.fromkeys(base, shown)
        self._names[1] |= dict.fromkeys(new, shown)
        if not are_same:
            self._renamed[shown] = min(base)

    def _drop(self) -> None:
        self._left = [
            own[~own["name"].isin(list(self._names[side]))].reset_index(drop=True)
            for side, own in enumerate(self._left)
        ]


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
