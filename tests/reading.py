"""Reading results in tests: rows by attribute, notes as sentences."""

from __future__ import annotations

from types import SimpleNamespace

import pandas as pd

from traceprof.model.results import Result
from traceprof.render.formatting import sentences

__all__ = ["records", "rows", "said"]


def records(frame: pd.DataFrame) -> list[SimpleNamespace]:
    """Return the rows of ``frame``, a column as an attribute; what is not known is None."""
    plain = frame.astype(object).where(frame.notna(), None)
    return [SimpleNamespace(**row) for row in plain.to_dict("records")]


def rows(result: Result, table: str | None = None) -> list[SimpleNamespace]:
    """Return the rows of a table of a result; of the one that answers where none is named."""
    return records(result.to_frame(table))


def said(result: Result) -> list[str]:
    """Return the notes as sentences."""
    return sentences(result.notes)
