"""Split the difference of two windows into an exact sum over kernels, copies, waits and causes.

Either two windows are compared by their devices, or mean steps: the total over all devices divided
by the steps on them. The mean of each cause is the floor of the cumulated share, so sums over
devices and steps equal sums of the means.

Profilers format kernel names differently, and new library versions rename kernels. Kernels of both
runs are matched in this order:

1. by name, without the differences between profilers and compilers;
2. by function name and functor, if sizes and types among the arguments changed;
3. by class, place in the step, count and total time: of the remaining kernels, those with the most
   time first, each with the closest one.
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
"""Maximum distance of the starts of two matching kernels, as a share of a step."""
_MAX_COUNT_FACTOR: Final = 1.25
"""Maximum factor between the counts of two matching kernels."""
_MAX_TIME_FACTOR: Final = 4.0
"""Maximum factor between the total times of two matching kernels."""
_TIME_WEIGHT: Final = 0.1
"""Distance for a factor of e in total time, as a share of a step."""


@dataclass(frozen=True, slots=True)
class Matched:
    """The shared name of each kernel of both runs: the name in the new run if it has one.

    ``renamed`` maps a shared name to the name in the base, if they differ.
    """

    base: Mapping[str, str]
    new: Mapping[str, str]
    renamed: Mapping[str, str]


def canonical_name(name: str) -> str:
    """Return a kernel name without the differences between profilers.

    Casts of numbers, number suffixes, lambda numbers, spaces, the return type and the argument
    types are removed. Mangled names are demangled.
    """
    parsed = parse_name(name)
    template = _LAMBDA.sub("lambda", parsed.template)
    template = _SUFFIXES.sub("", _CASTS.sub("", template))
    for pattern, digit in _BOOLEANS:
        template = pattern.sub(digit, template)
    template = template.replace("(anonymous namespace)::", "").replace("<unnamed>::", "")
    function = parsed.identifier or name
    if parsed.scope:
        function = f"{parsed.scope}::{parsed.identifier}"
    return f"{function}<{_BLANKS.sub('', template)}>" if template else function


def match_kernels(base: Table, new: Table) -> Matched:
    """Match the kernels of two runs.

    Both tables have a row per kernel: name, class, place_ratio (NaN: unknown), count and ns. Count
    and ns are totals per step and device.
    """
    found = _Pairs(base, new)
    found.by(canonical_name, are_same=True)
    found.by(short_name, are_same=False)
    found.by_place()
    return found.matched()


class _Pairs:
    """The kernels of both runs, and the matches found so far."""

    def __init__(self, base: Table, new: Table) -> None:
        self._unmatched = [base, new]
        both = set(base["name"]) & set(new["name"])
        self._names: list[dict[str, str]] = [{name: name for name in both} for _ in range(2)]
        self._renamed: dict[str, str] = {}
        self._drop()

    def by(self, normalize: Callable[[str], str], *, are_same: bool) -> None:
        """Match kernels of the same class that have equal names after ``normalize``."""
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
        """Match the remaining kernels of each class by place in the step, count and total time.

        Kernels of the base with the most time choose first. Otherwise a short helper that starts at
        the same place could be matched with a kernel that takes most of the step.
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
        """Return the matches; kernels without a match keep their own names."""
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
    """Return the distance between each kernel of the base and each new kernel.

    Shape: (kernels of the base, new kernels). Infinite: the kernels cannot match.
    """
    classes = [np.asarray(kernels["class"]) for kernels in (base, new)]
    places = [floats(kernels, "place_ratio")[0] for kernels in (base, new)]
    place_gap = np.abs(places[0][:, None] - places[1][None, :])
    count_factor, time_factor = (_factors(base, new, name) for name in ("count", "ns"))
    is_candidate = classes[0][:, None] == classes[1][None, :]
    is_candidate &= place_gap <= _MAX_PLACE_GAP_RATIO
    is_candidate &= count_factor <= np.log(_MAX_COUNT_FACTOR)
    is_candidate &= time_factor <= np.log(_MAX_TIME_FACTOR)
    return np.where(is_candidate, place_gap + count_factor + _TIME_WEIGHT * time_factor, np.inf)


def _factors(base: Table, new: Table, name: str) -> Floats:
    """Return the absolute logarithm of the ratio of each base value and each new value."""
    values = [floats(kernels, name)[0] for kernels in (base, new)]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.abs(np.log(values[0][:, None] / values[1][None, :])), np.float64)


CAUSE: Final = ("part", "kind", "name")
"""The columns that identify a cause."""
SIDES: Final = ("base", "new")
_KERNEL: Final = "kernel"
_MIN_CHANGE_RATIO: Final = 0.05


def causes_of(
    made: Sequence[Table], names: tuple[str, str], divisors: Sequence[int], *, per_unit: bool = True
) -> Table:
    """Compare the composition of two windows by cause, the largest difference first.

    Args:
        made: two tables of part, kind, name, ns, count and n_bytes; other columns are kept.
        names: the column prefixes of the two; ``difference_ns`` is the second minus the first.
        divisors: the number of units that each table adds up; times are means over them.
        per_unit: whether counts and sizes are also means over these units.
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
        from_count_ns=np.where(is_counted, more, np.nan),
        from_duration_ns=np.where(is_counted, difference - more, np.nan),
    )


def _sum_by_cause(made: Table, suffix: str) -> Table:
    """Sum the composition over all devices by cause; a size without any known value is unknown."""
    keys, groups = grouped_by(made, *CAUSE)
    sums = {f"{name}_{suffix}": groups.sums(made[name]) for name in ("ns", "count", "n_bytes")}
    if "class" in made:
        sums[f"class_{suffix}"] = groups.first_known(made["class"])
    return keys.assign(**sums)


def _difference_by_count(lengths: Sequence[Any], counts: Sequence[Floats]) -> Floats:
    """Return the part of each difference that is due to more or fewer calls.

    A call counts with the mean duration in the first table; if it has none, in the second.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        base_mean, new_mean = (
            length / count for length, count in zip(lengths, counts, strict=True)
        )
    mean_length = np.where(counts[0] > 0, base_mean, np.where(counts[1] > 0, new_mean, 0.0))
    return np.asarray((counts[1] - counts[0]) * mean_length, np.float64)


def parts_of(causes: Table, names: tuple[str, str]) -> tuple[Table, dict[str, int]]:
    """Return the five parts of GPU time, and their totals by column name."""
    times = ["difference_ns", *(f"{name}_ns" for name in names)]
    rows = [causes["part"] == part for part in PARTS]
    sums = {
        name: np.array([causes[name][is_part].sum() for is_part in rows], np.int64)
        for name in times
    }
    length = {name: int(ns.sum()) for name, ns in sums.items()}
    return Table({"part": list(PARTS), **sums}), length


def phases_of(
    sums: Sequence[Mapping[str, int]], names: tuple[str, str], divisors: Sequence[int]
) -> Table:
    """Compare host phases (ns by name) of two windows as an exact sum, as in `causes_of`.

    Equal differences are in the order of the second element of ``sums``.
    """
    phases = list(dict.fromkeys([*sums[1], *sums[0]]))
    totals = [np.array([ns.get(phase, 0) for phase in phases], np.int64) for ns in sums]
    rates = [total / max(1, n) for total, n in zip(totals, divisors, strict=True)]
    order = np.argsort(-np.abs(rates[1] - rates[0]), kind="stable")
    means = [shares_of(total[order], n) for total, n in zip(totals, divisors, strict=True)]
    times = {f"{name}_ns": mean for name, mean in zip(names, means, strict=True)}
    return Table({"phase": objects(phases)[order], "difference_ns": means[1] - means[0], **times})


def matched_kernels(base: Side, new: Side) -> Matched:
    """Match the kernels in the compositions of both sides."""
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
    """Explain the difference of the mean steps of two sides; both have a composition."""
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
    """Return the known tables of a difference as a result, with the totals in ``length``."""
    known = {
        name: DIFFERENCE.table(name).of_rows(table)
        for name, table in tables.items()
        if table is not None
    }
    base, new = sides
    scalar_values = {"base": base.name, "new": new.name, "per": base.unit, **length, **scalars}
    return Result("difference", DIFFERENCE, known, scalar_values)


def _named(side: Side, names: Mapping[str, str]) -> Table:
    """Return the composition of a side with the shared kernel names."""
    made = side.composition
    assert made is not None
    before = np.asarray(made["name"])
    after = objects(names.get(str(name), name) for name in before)
    return made.assign(name=np.where(made["kind"] == _KERNEL, after, before))


def _with_states(causes: Table, matched: Matched) -> Table:
    """Add the class, the name in the base, and the state of each cause."""
    pairs = zip(causes["class_new"], causes["class_base"], strict=True)
    old = objects(matched.renamed.get(str(name), "") for name in causes["name"])
    old = np.where(causes["kind"] == _KERNEL, old, "")
    state = states_of(causes["base_rate"], causes["new_rate"], old)
    return causes.assign(
        base_name=old, state=state, **{"class": objects(new or base or "" for new, base in pairs)}
    )


def states_of(base_ns: Any, new_ns: Any, base_names: Any) -> Texts:
    """Return the state of each row: new, gone, renamed, changed or same."""
    base, new = np.asarray(base_ns, np.float64), np.asarray(new_ns, np.float64)
    changed = np.abs(new - base) >= _MIN_CHANGE_RATIO * np.maximum(base, new)
    renamed = np.array([bool(name) for name in base_names], np.bool_)
    state = np.where(changed, "changed", "same").astype(object)
    state[renamed] = "renamed"
    state[(base == 0) & (new > 0) & ~renamed] = "new"
    state[(new == 0) & (base > 0)] = "gone"
    return state
