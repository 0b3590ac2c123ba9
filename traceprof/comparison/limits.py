"""Limits on how much worse a run may get: what they are about, and whether they are exceeded."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import pandas as pd

from traceprof.comparison.judging import MAIN, Judged
from traceprof.comparison.sides import Side
from traceprof.comparison.specs import LIMITS
from traceprof.errors import UsageError
from traceprof.model.results import Note, Result
from traceprof.values import dataclass

__all__ = ["Limit", "limits_of", "parse_limit"]

_TEXT: Final = re.compile(
    r"(?:(?P<name>[\w.-]+)\s*=\s*)?(?P<number>\d+(?:\.\d*)?|\.\d+)\s*(?P<percent>%)?"
)
_MAIN: Final = frozenset({"", "throughput", "time"})


@dataclass(frozen=True, slots=True)
class Limit:
    """How much worse a measure may get; ``measure`` "" is what the comparison is about."""

    measure: str
    ratio: float


def parse_limit(text: str) -> Limit:
    """Return the limit that ``text`` means: "5%", "0.05", "step_own_ns=5%".

    Raises:
        UsageError: it is none.
    """
    match = _TEXT.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"limit {text!r} is not understood: expected 5% or MEASURE=5%")
    ratio = float(match["number"]) / (100 if match["percent"] else 1)
    if not match["percent"] and ratio > 1:
        raise UsageError(f"limit {text!r} is more than all of it: is {match['number']}% meant?")
    return Limit(match["name"] or "", ratio)


def limits_of(
    limits: Sequence[Limit],
    judged: Mapping[str, Judged],
    sides: tuple[Side, Side],
    better: Mapping[str, str],
) -> Result:
    """Return which limits are exceeded.

    What is judged by statistics exceeds its limit where the medians differ by more than that and a
    difference is shown; where too few steps are known to tell, and of any other measure, the
    numbers alone decide, and it is said.

    Raises:
        UsageError: a measure is not known of both sides, or gets neither better nor worse.
    """
    rows = [_row(limit, judged, sides, better) for limit in limits]
    table = LIMITS.tables[0].frame(pd.DataFrame(rows))
    return Result("limits", LIMITS, {"limits": table})


def _row(
    limit: Limit, judged: Mapping[str, Judged], sides: tuple[Side, Side], better: Mapping[str, str]
) -> dict[str, object]:
    name = limit.measure
    if name in _MAIN:
        name = next((own for own in MAIN if own in judged), "")
        if not name:
            raise UsageError(
                "no throughput, step or turn is known of both sides: name a measure, as in "
                f"--max-regression idle_ratio=5%; both know {_known(better)}"
            )
    if name in judged:
        return _of_judged(limit, judged[name])
    way = better.get(name)
    values = [side.measure(name) for side in sides]
    if way is None or values[0] is None or values[1] is None:
        raise UsageError(f"{name} is not known of both sides: they know {_known(better)}")
    if not way:
        raise UsageError(f"{name} gets neither better nor worse: a limit says nothing about it")
    change = values[1] / values[0] - 1 if values[0] else (0.0 if not values[1] else float("inf"))
    worse = -change if way == "higher" else change
    why = Note("the numbers alone: how much runs differ in it is not known")
    return {
        "measure": name,
        "limit_ratio": limit.ratio,
        "worse_ratio": worse,
        "is_exceeded": worse > limit.ratio,
        "why": why,
    }


def _of_judged(limit: Limit, one: Judged) -> dict[str, object]:
    found = one.difference
    worse = one.worse_ratio
    is_beyond = worse > limit.ratio
    if not found.is_known:
        why = Note.of("the numbers alone: {why}", why=found.why)
        is_exceeded = is_beyond
    elif not is_beyond:
        why, is_exceeded = Note("within the limit"), False
    elif found.is_shown:
        why, is_exceeded = Note("beyond the limit, and a difference is shown"), True
    else:
        why, is_exceeded = Note("beyond the limit, but no difference is shown"), False
    return {
        "measure": one.name,
        "limit_ratio": limit.ratio,
        "worse_ratio": worse,
        "is_exceeded": is_exceeded,
        "why": why,
    }


def _known(better: Mapping[str, str]) -> str:
    return ", ".join(sorted(name for name, way in better.items() if way)) or "none"
