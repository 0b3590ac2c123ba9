"""Results as JSON: one versioned document, the same shape for every analysis."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

import numpy as np
import pandas as pd

from traceprof.analysis.advice.verdict import Verdict
from traceprof.analysis.base import Result, table_of
from traceprof.model.trace import Trace
from traceprof.session.selection import Selection

__all__ = ["SCHEMA", "document_of", "records_of", "to_json"]

SCHEMA: Final = "traceprof.analysis/1"
"""The shape of the document; the number grows when a reader of the old one would break."""


def document_of(
    trace: Trace,
    selection: Selection,
    results: Mapping[str, Result],
    not_recorded: Mapping[str, str],
    verdict: Verdict | None = None,
) -> dict[str, Any]:
    """Return the document of several results: times in ns, sizes in bytes, unknown as null."""
    return {
        "schema": SCHEMA,
        **({} if verdict is None else {"verdict": asdict(verdict)}),
        "trace": {
            "path": trace.info.path,
            "format": trace.info.format,
            "profiler": trace.info.profiler,
            "host": trace.info.host,
            "recorded": sorted(trace.recorded),
            "warnings": list(trace.info.warnings),
        },
        "window": {
            "label": selection.label,
            "start_ns": selection.window.start_ns,
            "end_ns": selection.window.end_ns,
            "duration_ns": selection.window.duration_ns,
            "notes": list(selection.notes),
        },
        "results": {
            name: {"notes": list(result.notes), "rows": records_of(table_of(result, trace))}
            for name, result in results.items()
        },
        "not_recorded": dict(not_recorded),
    }


def records_of(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of ``frame`` as plain values."""
    columns = [str(column) for column in frame.columns]
    values = [[_plain(value) for value in frame[column].tolist()] for column in frame.columns]
    return [dict(zip(columns, row, strict=True)) for row in zip(*values, strict=True)]


def to_json(document: Any) -> str:
    """Return ``document`` as text that ends with a newline."""
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    if value is None or value is pd.NaT:
        return None
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
