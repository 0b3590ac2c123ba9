"""The difference of two as a sum that is exact, down to kernels, copies, waits and causes.

The two are windows, seen by their devices, or mean steps: the window of all devices over its steps
on them. Of every cause the mean is the floor of the cumulated share, so that what adds up over all
devices and steps adds up in the mean, too.

Profilers write the name of a kernel in several ways, and new versions of libraries call the same
work otherwise. Which kernel of one run is which of another is told in this order:

1. by the name, without what profilers and compilers write differently;
2. by the own name and what it applies, where sizes and types among the arguments changed;
3. by the class, where in a step it begins, how often it runs and how long it takes in total: of
   what is left, the kernels that take the most time first, each with the closest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from traceprof.comparison.sides import Side, shares_of
from traceprof.comparison.specs import DIFFERENCE
from traceprof.measures.rows import Floats, Texts, floats
from traceprof.model.activity import PARTS
from traceprof.model.grouping import grouped_by, joined
from traceprof.model.results import Result
from traceprof.model.table import Table, objects
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
_BOOLEANS: Final = ((re.compile(r"\btrue\b"), "1"), (re.compile(r"\bfalse\b"), "0"))
_BLANKS: Final = re.compile(r"\s+")
_MAX_PLACE_GAP_RATIO: Final = 0.1
"""Kernels that begin further apart than this share of a step are not the same."""
_MAX_COUNT_FACTOR: Final = 1.25
"""Nor are those of which one runs more often than the other by more than this factor."""
_MAX_TIME_FACTOR: Final = 4.0
"""Nor are those of which one takes more time in total than the other by more than this factor."""
_TIME_WEIGHT: Final = 0.1
"""How much a factor of e in total time separates two kernels, as a share of a step."""


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
    parsed = parse_name(name)
    template = _LAMBDA.sub("lambda", parsed.template)
    template = _SUFFIXES.sub("", _CASTS.sub("", template))
    for pattern, digit in _BOOLEANS:
        template = pattern.sub(digit, template)
    template = template.replace("(anonymous namespace)::", "").replace("<unnamed>::", "")
    base_name = (
        f"{parsed.scope}::{parsed.identifier}" if parsed.scope else parsed.identifier or name
    )
    return f"{base_name}<{_BLANKS.sub('', template)}>" if template else base_name


def match_kernels(base: Table, new: Table) -> Matched:
    """Return which kernels are the same.

    Both have a row per kernel: name, class, place_ratio (NaN: not known), and count and ns (in
    total), both per step and device.
    """
    found = _Pairs(base, new)
    found.by(canonical_name, are_same=True)
    found.by(short_name, are_same=False)
    found.by_place()
    return found.matched()


class _Pairs:
    """The kernels of both runs, and those that found one another so far."""

    def __init__(self, base: Table, new: Table) -> None:
        self._unmatched = [base, new]
        both = set(base["name"]) & set(new["name"])
        self._names: list[dict[str, str]] = [{name: name for name in both} for _ in range(2)]
        self._renamed: dict[str, str] = {}
        self._drop()

    def by(self, normalize: Callable[[str], str], *, are_same: bool) -> None:
        """Match kernels of the same class whose names are alike once they are normalised."""
        keys = [
            [(normalize(str(n)), c) for n, c in zip(kernels["name"], kernels["class"], strict=True)]
            for kernels in self._unmatched
        ]
        for key in sorted(set(keys[0]) & set(keys[1])):
            names = [
                [n for n, k in zip(kernels["name"], keys[side], strict=True) if k == key]
                for side, kernels in enumerate(self._unmatched)
            ]
            self._pair(names[0], names[1], are_same=are_same)
        self._drop()

    def by_place(self) -> None:
        """Match the rest of each class by place in the step, number and total time.

        The kernels of the base that take the most time choose first: a short helper that begins
        at the same place is not the successor of a kernel that takes most of the step.
        """
        base, new = self._unmatched
        if base.empty or new.empty:
            return
        cost = _distances(base, new)
        for i in np.argsort(-floats(base, "ns")[0], kind="stable").tolist():
            j = int(np.argmin(cost[i]))
            if np.isfinite(cost[i, j]):
                cost[:, j] = np.inf
                self._pair([str(base["name"][i])], [str(new["name"][j])], are_same=False)
        self._drop()

    def matched(self) -> Matched:
        """Return what was found; what found nothing stands for itself."""
        for side, kernels in enumerate(self._unmatched):
            self._names[side] |= {str(name): str(name) for name in kernels["name"]}
        return Matched(self._names[0], self._names[1], self._renamed)

    def _pair(self, base: list[str], new: list[str], *, are_same: bool) -> None:
        shown = min(new)
        self._names[0] |= dict.fromkeys(base, shown)
        self._names[1] |= dict.fromkeys(new, shown)
        if not are_same:
            self._renamed[shown] = min(base)

    def _drop(self) -> None:
        self._unmatched = [
            kernels.take([name not in self._names[side] for name in kernels["name"]])
            for side, kernels in enumerate(self._unmatched)
        ]


def _distances(base: Table, new: Table) -> Floats:
    """Return how far each kernel of the base is from each new one; infinite: not the same.

    Shape: (kernels of the base, new kernels).
    """
    classes = [np.asarray(kernels["class"]) for kernels in (base, new)]
    places = [floats(kernels, "place_ratio")[0] for kernels in (base, new)]
    place_gap = np.abs(places[0][:, None] - places[1][None, :])
    count_factor, time_factor = (_factors(base, new, name) for name in ("count", "ns"))
    is_candidate = (classes[0][:, None] == classes[1][None, :]) & (
        place_gap <= _MAX_PLACE_GAP_RATIO
    )
    is_candidate &= (count_factor <= np.log(_MAX_COUNT_FACTOR)) & (
        time_factor <= np.log(_MAX_TIME_FACTOR)
    )
    return np.where(is_candidate, place_gap + count_factor + _TIME_WEIGHT * time_factor, np.inf)


def _factors(base: Table, new: Table, name: str) -> Floats:
    """Return the factor between each value of the base and each new one, as a logarithm."""
    values = [floats(kernels, name)[0] for kernels in (base, new)]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.abs(np.log(values[0][:, None] / values[1][None, :])), np.float64)


CAUSE: Final = ("part", "kind", "name")
"""What tells causes apart."""
SIDES: Final = ("base", "new")
_KERNEL: Final = "kernel"
_MIN_CHANGE_RATIO: Final = 0.05


def causes_of(
    made: Sequence[Table], names: tuple[str, str], divisors: Sequence[int], *, per_unit: bool = True
) -> Table:
    """Return what the first and the second of two are ``made`` of, the largest difference first.

    Args:
        made: rows of part, kind, name, ns, count and n_bytes; what else they have is kept.
        names: how the columns of the two begin: what is called ``difference_ns`` is how much
            longer the second is.
        divisors: over how many units the ns are summed up: the mean is told.
        per_unit: whether counts and sizes are means over these, too.
    """
    first, second = map(_sum_by_cause, made, names)
    both = joined(first, second, *CAUSE)
    totals = [np.nan_to_num(both[f"ns_{name}"]).astype(np.int64) for name in names]
    rates = [sums / max(1, n) for sums, n in zip(totals, divisors, strict=True)]
    order = np.lexsort((-totals[1], -np.abs(rates[1] - rates[0])))
    order = order[(totals[0] != 0)[order] | (totals[1] != 0)[order]]
    both, lengths, counts = both.take(order), [], []
    columns: dict[str, Any] = {}
    for name, total, n in zip(names, totals, divisors, strict=True):
        ns, size = total[order], max(1, n) if per_unit else 1
        count, n_bytes = floats(both, f"count_{name}", f"n_bytes_{name}")
        counts.append(np.nan_to_num(count) / size)
        shares = shares_of(ns, n)
        lengths.append(shares if per_unit else ns)
        columns |= {f"ns_{name}": ns, f"{name}_ns": shares, f"{name}_rate": ns / max(1, n)}
        columns[f"{name}_count"] = counts[-1] if per_unit else counts[-1].astype(np.int64)
        columns[f"{name}_bytes"] = n_bytes / size
    difference = columns[f"{names[1]}_ns"] - columns[f"{names[0]}_ns"]
    more = np.rint(_difference_by_count(lengths, counts) / (1 if per_unit else divisors[0]))
    is_counted = counts[0] + counts[1] > 0
    return both.assign(
        **columns,
        difference_ns=difference,
        more_ns=np.where(is_counted, more, np.nan),
        longer_ns=np.where(is_counted, difference - more, np.nan),
    )


def _sum_by_cause(made: Table, suffix: str) -> Table:
    """Return what all devices did, by what it was; sizes of which none is known are not known."""
    keys, groups = grouped_by(made, *CAUSE)
    sums = {f"{name}_{suffix}": groups.sums(made[name]) for name in ("ns", "count", "n_bytes")}
    if "class" in made:
        sums[f"class_{suffix}"] = groups.first_known(made["class"])
    return keys.assign(**sums)


def _difference_by_count(lengths: Sequence[Any], counts: Sequence[Floats]) -> Floats:
    """Return what of each difference there is because there are more of them, or fewer.

    At the mean length of those of the first; where it has none, of the second.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        base_mean, new_mean = (
            length / count for length, count in zip(lengths, counts, strict=True)
        )
    mean_length = np.where(counts[0] > 0, base_mean, np.where(counts[1] > 0, new_mean, 0.0))
    return np.asarray((counts[1] - counts[0]) * mean_length, np.float64)


def parts_of(causes: Table, names: tuple[str, str]) -> tuple[Table, dict[str, int]]:
    """Return the five parts, and by the names of their columns what they add up to."""
    times = ["difference_ns", *(f"{name}_ns" for name in names)]
    rows = [causes["part"] == part for part in PARTS]
    sums = {
        name: np.array([causes[name][is_part].sum() for is_part in rows], np.int64)
        for name in times
    }
    length = {name: int(is_part.sum()) for name, is_part in sums.items()}
    return Table({"part": list(PARTS), **sums}), length


def phases_of(
    sums: Sequence[Mapping[str, int]], names: tuple[str, str], divisors: Sequence[int]
) -> Table:
    """Return the phases of hosts of two, ns by name, as `causes_of` does: a sum that is exact.

    Where differences are equal they are in the order of the second's ``sums``.
    """
    phases = list(dict.fromkeys([*sums[1], *sums[0]]))
    totals = [np.array([phase_ns.get(phase, 0) for phase in phases], np.int64) for phase_ns in sums]
    rates = [phase_ns / max(1, n) for phase_ns, n in zip(totals, divisors, strict=True)]
    order = np.argsort(-np.abs(rates[1] - rates[0]), kind="stable")
    means = [shares_of(phase_ns[order], n) for phase_ns, n in zip(totals, divisors, strict=True)]
    times = {f"{name}_ns": phase_ns for name, phase_ns in zip(names, means, strict=True)}
    found = {"phase": objects(phases)[order], "difference_ns": means[1] - means[0]}
    return Table({**found, **times})


def matched_kernels(base: Side, new: Side) -> Matched:
    """Return which kernels of the composition of both sides are the same."""
    return match_kernels(_kernels_of(base), _kernels_of(new))


def _kernels_of(side: Side) -> Table:
    """Return one row per kernel: name, class, place_ratio, count and ns per step and device."""
    made = side.composition
    if made is None:
        return Table(dict.fromkeys(("name", "class", "place_ratio", "count", "ns"), ()))
    kernels = made.take(made["kind"] == _KERNEL)
    keys, groups = grouped_by(kernels, "name")
    means = {
        "place_ratio": groups.weighted_means(kernels["place_ratio"], kernels["count"]),
        "count": groups.sums(kernels["count"]) / max(1, side.units_count),
        "ns": groups.sums(kernels["ns"]) / max(1, side.units_count),
    }
    return keys.assign(**means, **{"class": groups.first_known(kernels["class"])})


def difference_of(base: Side, new: Side, matched: Matched, phases: Table | None) -> Result:
    """Return what makes a step of ``new`` longer than one of ``base``; both have a composition."""
    made = [_named(base, matched.base), _named(new, matched.new)]
    causes = _with_states(causes_of(made, SIDES, (base.units_count, new.units_count)), matched)
    parts, length = parts_of(causes, SIDES)
    parts = parts.assign(share_ratio=parts["difference_ns"] / (length["base_ns"] or np.nan))
    kinds, groups = grouped_by(causes, "part", "kind")
    kinds = kinds.assign(**{name: groups.sums(causes[name]) for name in length})
    kinds = kinds.take(np.argsort(-np.abs(kinds["difference_ns"]), kind="stable"))
    return difference_result(
        (base, new),
        length,
        {"causes": causes, "parts": parts, "kinds": kinds, "phases": phases},
        base_count=base.units_count,
        new_count=new.units_count,
    )


def difference_result(
    sides: tuple[Side, Side], length: dict[str, int], tables: dict[str, Any], **scalars: int
) -> Result:
    """Return the tables of a difference, as far as they are known, with its ``length``."""
    known = {
        name: DIFFERENCE.table(name).of_rows(table)
        for name, table in tables.items()
        if table is not None
    }
    base, new = sides
    scalar_values = {"base": base.name, "new": new.name, "per": base.unit, **length, **scalars}
    return Result("difference", DIFFERENCE, known, scalar_values)


def _named(side: Side, names: Mapping[str, str]) -> Table:
    """Return what all devices of all runs of a side did, by what it is called on both sides."""
    made = side.composition
    assert made is not None
    before = np.asarray(made["name"])
    after = objects(names.get(str(name), name) for name in before)
    return made.assign(name=np.where(made["kind"] == _KERNEL, after, before))


def _with_states(causes: Table, matched: Matched) -> Table:
    """Return the causes with their classes, the names of the base and what became of each."""
    pairs = zip(causes["class_new"], causes["class_base"], strict=True)
    old = objects(matched.renamed.get(str(name), "") for name in causes["name"])
    old = np.where(causes["kind"] == _KERNEL, old, "")
    state = states_of(causes["base_rate"], causes["new_rate"], old)
    classes = objects(new or base or "" for new, base in pairs)
    return causes.assign(base_name=old, state=state, **{"class": classes})


def states_of(base_ns: Any, new_ns: Any, base_names: Any) -> Texts:
    """Return what became of each: new, gone, renamed, changed or same."""
    base, new = np.asarray(base_ns, np.float64), np.asarray(new_ns, np.float64)
    changed = np.abs(new - base) >= _MIN_CHANGE_RATIO * np.maximum(base, new)
    renamed = np.array([bool(name) for name in base_names], np.bool_)
    state = np.where(changed, "changed", "same").astype(object)
    state[renamed] = "renamed"
    state[(base == 0) & (new > 0) & ~renamed] = "new"
    state[(new == 0) & (base > 0)] = "gone"
    return state
