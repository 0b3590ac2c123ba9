"""How a column is shown: its unit is the suffix of its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pandas as pd

from traceprof.analysis.base import Result, table_of
from traceprof.model.trace import Trace
from traceprof.render.escape import plain_text
from traceprof.units import (
    format_bytes,
    format_count,
    format_duration,
    format_rate,
    format_ratio,
)

__all__ = ["format_cell", "is_number", "shown_table", "title_of"]

_FORMATS: Final[tuple[tuple[str, Callable[[Any], str]], ...]] = (
    ("_bytes_per_s", format_rate),
    ("_bytes", format_bytes),
    ("_ns", format_duration),
    ("_ratio", format_ratio),
    ("count", format_count),
)


def shown_table(result: Result, trace: Trace) -> pd.DataFrame:
    """Return the table of ``result`` for people: ranks instead of the processes that they name."""
    frame = table_of(result, trace)
    if not {"rank", "process"} <= {*frame}:
        return frame
    pairs = frame[["rank", "process"]].drop_duplicates()
    return frame if pairs["rank"].duplicated().any() else frame.drop(columns="process")


def title_of(column: str) -> str:
    """Return the heading of ``column``: its name without the unit, in words."""
    if column.endswith("_ratio"):
        return column.removesuffix("_ratio").replace("_", " ") + " %"
    for suffix, _ in _FORMATS:
        if column.endswith(suffix) and suffix.startswith("_"):
            column = column.removesuffix(suffix)
    return column.replace("_", " ")


def format_cell(column: str, value: Any) -> str:
    """Return ``value`` of ``column`` for people; what is not known is a dash."""
    for suffix, format_value in _FORMATS:
        if column.endswith(suffix):
            return "–" if pd.isna(value) else format_value(value)
    if value is None or (isinstance(value, float) and pd.isna(value)):
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}"
    return plain_text(value).removeprefix("void ")


def is_number(frame: pd.DataFrame, column: str) -> bool:
    """Return whether ``column`` is shown aligned to the right."""
    has_unit = any(column.endswith(suffix) for suffix, _ in _FORMATS)
    return has_unit or pd.api.types.is_numeric_dtype(frame[column])
