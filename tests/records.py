"""Rows of a table as objects, as tests look at them."""

from __future__ import annotations

from types import SimpleNamespace

import pandas as pd

__all__ = ["records"]


def records(frame: pd.DataFrame) -> list[SimpleNamespace]:
    """Return the rows of ``frame``; what is not known is None."""
    plain = frame.astype(object).where(frame.notna(), None)
    return [SimpleNamespace(**row) for row in plain.to_dict("records")]
