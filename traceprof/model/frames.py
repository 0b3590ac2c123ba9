"""Putting tables together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from traceprof.model.tables import empty_table, make_table

__all__ = ["stack"]


def stack(name: str, parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return the rows of all ``parts`` (tables called ``name``) as one table."""
    filled = [part for part in parts if len(part)]
    if len(filled) <= 1:
        return filled[0] if filled else empty_table(name)
    columns: dict[str, object] = {}
    for column in filled[0].columns:
        pieces = [part[column] for part in filled]
        if isinstance(pieces[0].dtype, pd.CategoricalDtype):
            columns[column] = pd.api.types.union_categoricals(pieces)
        else:
            columns[column] = np.concatenate([piece.to_numpy() for piece in pieces])
    return make_table(name, columns)
