"""The savings that `traceprof try` measured for advice: a file next to the trace."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from traceprof.files import new_file
from traceprof.model.results import Note, Result
from traceprof.session.options import tried_savings_path

_SCHEMA: Final = 1
_MAX_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class TriedAdvice:
    """The measured saving of a change that a rule advises, as a share of the step."""

    rule: str
    change: str
    saving_ratio: float


def write_tried_savings(trace: Path, measured: Sequence[TriedAdvice]) -> None:
    """Write the measured savings next to a trace; for each rule, only the largest one.

    Raises:
        UsageError: the file cannot be written.
    """
    best: dict[str, TriedAdvice] = {}
    for advice in sorted(measured, key=lambda advice: advice.saving_ratio):
        best[advice.rule] = advice
    rules = {
        advice.rule: {"change": advice.change, "saving_ratio": advice.saving_ratio}
        for advice in best.values()
    }
    with new_file(tried_savings_path(trace), force=True) as path:
        path.write_text(json.dumps({"schema": _SCHEMA, "rules": rules}, indent=1) + "\n")


def read_tried_savings(trace: Path) -> dict[str, TriedAdvice]:
    """Return the measured savings of a trace by rule; an invalid file counts as empty."""
    path = tried_savings_path(trace)
    if trace.is_dir() or not path.is_file():
        return {}
    try:
        with path.open("rb") as file:
            found: Mapping[str, Any] = json.loads(file.read(_MAX_BYTES))["rules"]
        return {
            str(rule): TriedAdvice(str(rule), str(entry["change"]), _ratio(entry["saving_ratio"]))
            for rule, entry in found.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def _ratio(value: Any) -> float:
    """Return ``value`` as a finite number.

    Raises:
        ValueError: ``value`` is not a finite number.
    """
    found = float(value)
    if not math.isfinite(found):
        raise ValueError
    return found


def with_measured(findings: Result, paths: Sequence[Path]) -> Result:
    """Return ``findings`` with the measured savings of their advice, if the trace is one file."""
    measured = read_tried_savings(paths[0]) if len(paths) == 1 else {}
    rows = findings.table.rows()
    if not any(row["rule"] in measured for row in rows):
        return findings
    for row in rows:
        if advice := measured.get(row["rule"]):
            row["evidence"] = Note.of(
                "{evidence}; tried with `traceprof try`: {change} saved {ratio:ratio} of step time",
                evidence=row["evidence"],
                change=advice.change,
                ratio=advice.saving_ratio,
            )
            row["measured_ratio"] = advice.saving_ratio
    return findings.with_table(findings.spec.tables[0].of_rows(rows))
