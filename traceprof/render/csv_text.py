"""A result as CSV, safe to open in a spreadsheet."""

from __future__ import annotations

from typing import Any

import pandas as pd

__all__ = ["to_csv"]


def to_csv(frame: pd.DataFrame) -> str:
    """Return ``frame`` as CSV with a header; unknown values are empty.

    Text that a spreadsheet would take for a formula gets a quotation mark in front.
    """
    safe = frame.copy()
    for column in safe:
        if not pd.api.types.is_numeric_dtype(safe[column]):
            safe[column] = [_harmless(value) for value in safe[column]]
    return str(safe.to_csv(index=False, lineterminator="\n"))


def _harmless(value: Any) -> Any:
    if isinstance(value, str) and value.lstrip().startswith(("=", "+", "-", "@")):
        return "'" + value
    return value
