"""One side against another: can they be compared, is one faster, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pandas as pd

from traceprof.comparison import Comparison
from traceprof.comparison.difference import difference_of, difference_result, matched_kernels
from traceprof.comparison.judging import Limit, judge, judged_result, limits_of, steps_result
from traceprof.comparison.settings import not_recorded, settings_of, warnings_of
from traceprof.comparison.side_by_side import (
    host_phases,
    kernels_of,
    metrics_of_sides,
    ranks_of_sides,
    side_by_side,
)
from traceprof.comparison.sides import STEP, TURN, WINDOW, Side, common_unit, units_of
from traceprof.comparison.specs import ABOUT, MEASURES
from traceprof.comparison.verdict import verdict_of
from traceprof.errors import UsageError
from traceprof.model.results import Note, Result
from traceprof.model.summary import Summary


def compare(
    base: Sequence[Summary], new: Sequence[Summary], limits: Sequence[Limit] = ()
) -> Comparison:
    """Return what is different in ``new``, each of one run or of several of the same thing.

    The result "limits" says of each of ``limits`` whether it is exceeded.

    Raises:
        UsageError: a side has no run, or a limit is about what is not known.
    """
    if not base or not new:
        raise UsageError("a comparison needs a run on either side")
    unit = common_unit([*base, *new])
    sides = Side(tuple(base), unit), Side(tuple(new), unit)
    judged = judge(*sides)
    missing: dict[str, str] = {}
    matched = matched_kernels(*sides)
    difference = _difference(sides, matched, missing)
    settings, measures = settings_of(*sides, matched), _measures(*sides)
    better = dict(zip(measures.table["measure"], measures.table["better"], strict=True))
    results = {
        "judged": judged_result(judged, *sides),
        "limits": limits_of(limits, judged, sides, better) if limits else None,
        "difference": difference,
        "settings": settings,
        "kernels": kernels_of(*sides, matched),
        **side_by_side(*sides),
        "ranks": ranks_of_sides(*sides),
        "metrics": metrics_of_sides(*sides),
        "steps": steps_result(*sides),
        "measures": measures,
    }
    is_same = len(base) == len(new) == 1 and _is_same(base[0], new[0])
    same = [_BOTH_THE_SAME] if is_same else []
    shown = {
        name: own
        for name, own in results.items()
        if own is not None and not all(frame.empty for frame in own.tables.values())
    }
    return Comparison(
        title=f"{sides[1].name} against {sides[0].name}",
        results={name: shown[name] for name in ABOUT if name in shown},
        verdict=verdict_of(judged, difference, sides),
        notes=(*_notes(sides, has_windows=difference is not None), *not_recorded(*sides)),
        warnings=(*same, *warnings_of(settings)),
        missing=missing,
        about=ABOUT,
    )


def _difference(sides: tuple[Side, Side], matched: Any, missing: dict[str, str]) -> Result | None:
    phases = host_phases(*sides)
    if sides[0].composition is not None and sides[1].composition is not None:
        return difference_of(*sides, matched, phases)
    without = [side.name for side in sides if side.composition is None]
    missing["difference"] = f"no work of devices is known of {', '.join(without)}"
    if phases is None:
        return None
    length = {name: int(phases[name].sum()) for name in ("difference_ns", "base_ns", "new_ns")}
    return difference_result(sides, length, {"causes": (), "parts": (), "phases": phases})


def _measures(base: Side, new: Side) -> Result:
    """Return the single numbers that both sides know."""
    spec = MEASURES.tables[0]
    rows: list[dict[str, Any]] = []
    for row in base.runs[0].table("measures").to_dict("records"):
        name = str(row["measure"])
        values = base.measure(name), new.measure(name)
        if values[0] is None or values[1] is None:
            continue
        change = values[1] / values[0] - 1 if values[0] else float("nan")
        own = {key: row.get(key, "") for key in ("measure", "unit", "better", "scope")}
        rows.append({**own, "base": values[0], "new": values[1], "change_ratio": change})
    table = spec.frame(pd.DataFrame(rows)) if rows else spec.frame()
    return Result("measures", MEASURES, {"measures": table})


_OF_UNITS: Final = {
    TURN: Note(
        "no steps are known: iterations of a repeating pattern of kernels are compared, which may "
        "be steps, layers or requests"
    ),
    WINDOW: Note(
        "steps are not known of all runs: whole windows are compared, and differ in length "
        "whatever a step does"
    ),
}


_BOTH_THE_SAME: Final = Note(
    "every number of the one is that of the other: this is one recording, held against itself"
)


def _is_same(first: Summary, second: Summary) -> bool:
    if first is second:
        return True
    tables = [(first.table(name), second.table(name)) for name in ("measures", "steps", "makeup")]
    tables = [(one, other) for one, other in tables if len(one) or len(other)]
    return bool(tables) and all(one.equals(other) for one, other in tables)


def _notes(sides: tuple[Side, Side], *, has_windows: bool) -> list[Note]:
    unit = sides[0].unit
    notes = [] if unit == STEP or not has_windows else [_OF_UNITS[unit]]
    text = "{name}: window {window}" + (", {n:count} {unit}(s)" if unit != WINDOW else "")
    notes += [
        Note.of(text, name=run.name, window=run.window, n=units_of(run, unit), unit=unit)
        for side in sides
        for run in side.runs
        if run.window
    ]
    return notes
