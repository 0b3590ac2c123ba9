"""How each kernel was launched: the rows of `kernel_shapes`, tied to those of `kernels`."""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd

from traceprof.model.tables import ABSENT, TABLES

__all__ = ["SHAPE_COLUMNS", "shapes_of"]

_PLACE: Final = ("start_ns", "end_ns", "device", "stream", "process", "correlation")
SHAPE_COLUMNS: Final = tuple(
    column for column in TABLES["kernel_shapes"].columns if column not in _PLACE
)


def shapes_of(kernels: pd.DataFrame, shapes: pd.DataFrame) -> pd.DataFrame:
    """Return `SHAPE_COLUMNS`, a row for each of ``kernels``; `ABSENT` where it is not known.

    Both tables are of one trace, and are sorted alike: mostly they match row by row. Where they
    do not (kernels of another source between them), rows are tied by time, place and correlation
    id, and of those that have all of these in common none is taken for another.
    """
    if _are_alike(kernels, shapes):
        return shapes[list(SHAPE_COLUMNS)].reset_index(drop=True)
    place = list(_PLACE)
    single = shapes.drop_duplicates(place, keep=False)
    found = kernels[place].merge(single, on=place, how="left")[list(SHAPE_COLUMNS)]
    return found.fillna(ABSENT).astype(np.int64)


def _are_alike(kernels: pd.DataFrame, shapes: pd.DataFrame) -> bool:
    return len(kernels) == len(shapes) and all(
        np.array_equal(kernels[column].to_numpy(), shapes[column].to_numpy()) for column in _PLACE
    )
