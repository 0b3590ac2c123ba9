"""Match the rows of two tables by their sizes and labels, and compare them row by row.

A table with rows for 1, 2, 4, and 8 GPUs contains no repeats of one run. The change of each row is
one observation of the change between the tables.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, Final

import numpy as np

from traceprof.comparison.precision import interval_reach
from traceprof.comparison.sides import Side, devices_of, mean_of
from traceprof.comparison.specs import ROWS
from traceprof.comparison.statistics import POWER, Difference
from traceprof.errors import UsageError
from traceprof.logs.cells import number_of
from traceprof.model.results import Note, Result
from traceprof.model.summary import Summary

_SIZES: Final = ("devices_count", "nodes_count", "world_size")
_BATCHES: Final = ("global_batch_count", "batch_per_device_count")
_PER_DEVICE: Final = "_per_device"
_MAX_NAMED: Final = 4
MIN_ROWS: Final = 3
"""Number of matched rows that show how much their changes vary."""


@dataclass(frozen=True, slots=True, eq=False)
class MatchedRows:
    """The rows of two tables with equal keys; ``names`` are the parts of a key.

    Each item of ``base`` and ``new`` has the rows with the key of the same place: several if a
    table repeats them. ``unmatched`` are the keys that only one table has.
    """

    names: tuple[str, ...]
    keys: tuple[tuple[str, ...], ...]
    base: tuple[tuple[Summary, ...], ...]
    new: tuple[tuple[Summary, ...], ...]
    unmatched: tuple[tuple[str, ...], ...]

    def label(self, key: Sequence[str]) -> str:
        """Return the text of a key: devices 8, network ddp."""
        named = zip(self.names, key, strict=True)
        return ", ".join(f"{name.removesuffix('_count')} {part}" for name, part in named if part)

    def group(self, place: int) -> tuple[str, ...]:
        """Return the parts of a key that are not sizes."""
        named = zip(self.names, self.keys[place], strict=True)
        return tuple(part for name, part in named if name not in (*_SIZES, *_BATCHES))


def match_rows(base: Sequence[Summary], new: Sequence[Summary]) -> MatchedRows | None:
    """Match the rows of two tables; None if the runs are not rows, or repeat one row.

    Raises:
        UsageError: no row of a table has the sizes and labels of a row of the other table.
    """
    runs = [*base, *new]
    if any(run.table("typed").empty for run in runs):
        return None
    about = [_describe(run) for run in base], [_describe(run) for run in new]
    found = None
    for ignored in ((), _BATCHES):  # another batch size may be what the tables compare
        names = tuple(name for name in _names(*about) if name not in ignored)
        if not names:
            return None
        found = _match(names, about, base, new)
        if found.keys:
            return found
    rows = [", ".join(_first(_label(row, names) for row in side)) for side in about]
    raise UsageError(
        "no row of the base has the sizes and labels of a row of the new table "
        f"({', '.join(names)}: {rows[0]} in the base, {rows[1]} in the new table); "
        "compare tables with rows of the same sizes"
    )


def _match(
    names: tuple[str, ...],
    about: tuple[list[dict[str, str]], list[dict[str, str]]],
    base: Sequence[Summary],
    new: Sequence[Summary],
) -> MatchedRows:
    groups: list[dict[tuple[str, ...], list[Summary]]] = [{}, {}]
    for group, rows, runs in zip(groups, about, (base, new), strict=True):
        for row, run in zip(rows, runs, strict=True):
            group.setdefault(tuple(row.get(name, "") for name in names), []).append(run)
    keys = tuple(key for key in groups[0] if key in groups[1])
    every = dict.fromkeys([*groups[0], *groups[1]])
    first, second = (tuple(tuple(group[key]) for key in keys) for group in groups)
    return MatchedRows(names, keys, first, second, tuple(key for key in every if key not in keys))


def _describe(run: Summary) -> dict[str, str]:
    """Return the sizes, the labels, and the other texts of a row, by name."""
    sizes = {name: run.measure(name) for name in (*_SIZES, *_BATCHES)}
    texts = {
        str(row["heading"]): str(row["cell"])
        for row in run.table("typed").rows()
        if number_of(str(row["cell"])) is None
    }
    known = {name: f"{value:g}" for name, value in sizes.items() if value is not None}
    return {**{f"text {name}": text for name, text in texts.items()}, **run.labels, **known}


def _names(base: Sequence[Mapping[str, str]], new: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the names that tell the rows of a table apart, and that both tables have."""
    found: list[str] = []
    for name in dict.fromkeys(name for row in (*base, *new) for name in row):
        sides = [{row.get(name, "") for row in rows} for rows in (base, new)]
        varies = any(len(values) > 1 for values in sides)
        is_shared = name in _SIZES or bool(sides[0] & sides[1] - {""})
        is_same = not name.startswith("text ") or sides[0] == sides[1]
        if varies and is_shared and is_same:
            found.append(name)
    # A label that is also in a column is one name.
    columns = [[row.get(name, "") for row in (*base, *new)] for name in found]
    return [name for i, name in enumerate(found) if columns[i] not in columns[i + 1 :]]


def _label(row: Mapping[str, str], names: Sequence[str]) -> str:
    return " ".join(row.get(name, "?") for name in names)


def _first(labels: Iterator[str]) -> list[str]:
    found = list(dict.fromkeys(labels))
    return [*found[:_MAX_NAMED], *["…"] * (len(found) > _MAX_NAMED)]


def pairs_of(base: Side, new: Side, name: str) -> tuple[list[float], list[float]]:
    """Return the values of a measure in the matched rows that have it in both tables."""
    values = zip(
        *([mean_of(runs, name) for runs in side.groups] for side in (base, new)), strict=True
    )
    known = [(first, second) for first, second in values if first and second]
    return [first for first, _ in known], [second for _, second in known]


def compare_rows(base: Sequence[float], new: Sequence[float]) -> Difference:
    """Test the mean change of matched rows: a t-test of the logarithms of their changes."""
    logs = [np.log(np.asarray(values, np.float64)) for values in (base, new)]
    changes, n = logs[1] - logs[0], len(base)
    change = math.expm1(float(changes.mean()))
    first, second = (float(np.exp(values.mean())) for values in logs)
    found = Difference(
        first, second, n, n, change, of_runs=True, why="too few rows are in both tables"
    )
    if n < MIN_ROWS:
        return found
    error = float(changes.std(ddof=1)) / math.sqrt(n)
    reach = interval_reach(n - 1.0) * error
    middle = math.log1p(change)
    return replace(
        found,
        low_ratio=math.expm1(middle - reach),
        high_ratio=math.expm1(middle + reach),
        smallest_ratio=math.expm1(reach + NormalDist().inv_cdf(POWER) * error),
        larger_ratio=float((changes > 0).mean()),
        why="",
    )


def rows_result(matched: MatchedRows | None, measures: Sequence[str]) -> Result | None:
    """Return the change of each matched row, and the scaling efficiency of both tables."""
    if matched is None:
        return None
    rows: list[dict[str, Any]] = []
    for name in measures:
        values = [[mean_of(runs, name) for runs in side] for side in (matched.base, matched.new)]
        efficiencies = [_efficiencies(matched, side, name) for side in values]
        for place, key in enumerate(matched.keys):
            base, new = values[0][place], values[1][place]
            if base and new:
                rows.append(
                    {
                        "row": matched.label(key),
                        "measure": name,
                        "base": base,
                        "new": new,
                        "change_ratio": new / base - 1,
                        "base_efficiency_ratio": efficiencies[0][place],
                        "new_efficiency_ratio": efficiencies[1][place],
                    }
                )
    return Result("rows", ROWS, {"rows": ROWS.tables[0].of_rows(rows)})


def _efficiencies(matched: MatchedRows, values: Sequence[float | None], name: str) -> list[float]:
    """Return throughput per GPU as a ratio of that of the fewest GPUs with the same labels."""
    is_total = name.endswith("_per_s") and _PER_DEVICE not in name
    places = [place for place, value in enumerate(values) if value and is_total]
    sizes = [devices_of(runs[0]) for runs in matched.base]
    found = [math.nan] * len(values)
    for place in places:
        group = [other for other in places if matched.group(other) == matched.group(place)]
        fewest = min(group, key=lambda other: sizes[other])
        if sizes[place] > sizes[fewest]:
            each, first = ((values[i] or math.nan) / sizes[i] for i in (place, fewest))
            found[place] = each / first
    return found


def _change_of(row: Mapping[str, Any]) -> float:
    return float(row["change_ratio"])


def _signed(name: str, row: Mapping[str, Any]) -> str:
    return f"{'−' if _change_of(row) < 0 else '+'}{{{name}:ratio}}"


def notes_of(matched: MatchedRows | None, result: Result | None) -> Iterator[Note]:
    """Yield the range of the changes, the scaling of the largest size, and the unmatched rows."""
    if matched is None or result is None:
        return
    rows = result.table.rows()
    rows = [row for row in rows if row["measure"] == rows[0]["measure"]]
    if len(rows) > 1:
        least, most = (pick(rows, key=_change_of) for pick in (min, max))
        yield Note.of(
            "{n:count} rows are matched by {names}. The change of {measure} is "
            f"{_signed('least', least)} ({{least_row}}) to {_signed('most', most)} ({{most_row}}).",
            n=len(rows),
            names=", ".join(name.removesuffix("_count") for name in matched.names),
            measure=rows[0]["measure"],
            least=abs(_change_of(least)),
            least_row=least["row"],
            most=abs(_change_of(most)),
            most_row=most["row"],
        )
    scaled = [row for row in rows if math.isfinite(row["base_efficiency_ratio"])]
    if scaled:
        yield Note.of(
            "Scaling efficiency ({row}): {base:ratio} in the base, {new:ratio} in the new table.",
            row=scaled[-1]["row"],
            base=scaled[-1]["base_efficiency_ratio"],
            new=scaled[-1]["new_efficiency_ratio"],
        )
    if matched.unmatched:
        yield Note.of(
            "traceprof does not compare {n:count} row(s) without a counterpart: {rows}.",
            n=len(matched.unmatched),
            rows="; ".join(_first(matched.label(key) for key in matched.unmatched)),
        )


def sides_of(
    matched: MatchedRows | None, base: Sequence[Summary], new: Sequence[Summary], unit: str
) -> tuple[Side, Side]:
    """Return both sides: the matched rows only, or all runs if no rows are matched."""
    if matched is None:
        return Side(tuple(base), unit), Side(tuple(new), unit)
    first, second = (
        Side(tuple(run for group in groups for run in group), unit, groups)
        for groups in (matched.base, matched.new)
    )
    return first, second
