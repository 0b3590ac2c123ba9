"""Names of megabytes: every page and every table would repeat them in full."""

from __future__ import annotations

from hashlib import sha256
from typing import Final

import pandas as pd

from traceprof.model.tables import TABLES, ColumnKind
from traceprof.model.trace import Trace

__all__ = ["MOST_CHARACTERS", "shortened"]

MOST_CHARACTERS: Final = 1 << 16
"""A mangled C++ name has some ten thousand at most."""


def shortened(trace: Trace) -> Trace:
    """Return ``trace`` with the beginning of each name that has more than `MOST_CHARACTERS`.

    What is left says how long it was and ends in a hash of all of it, so that names stay distinct.
    """
    changes = {name: _of_frame(name, trace.table(name)) for name in TABLES}
    changes = {name: frame for name, frame in changes.items() if frame is not trace.table(name)}
    return trace.with_tables(changes) if changes else trace


def _of_frame(table: str, frame: pd.DataFrame) -> pd.DataFrame:
    columns = {}
    for column, kind in TABLES[table].columns.items():
        if kind is ColumnKind.NAME:
            names = frame[column].cat
            if _are_long(names.categories):
                columns[column] = names.rename_categories(_shortened)
        elif kind is ColumnKind.TEXT and _are_long(frame[column]):
            columns[column] = frame[column].map(_shortened)
    return frame.assign(**columns) if columns else frame


def _are_long(texts: pd.Index | pd.Series) -> bool:
    return max(map(len, texts), default=0) > MOST_CHARACTERS


def _shortened(text: str) -> str:
    if len(text) <= MOST_CHARACTERS:
        return text
    hashed = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{text[:MOST_CHARACTERS]}… ({len(text)} characters, {hashed})"
