"""Names of ranges and operators without what makes each of them unique."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import pandas as pd

__all__ = ["plain_name", "plain_names"]

_DECORATIONS: Final = re.compile(r"(, (seq|op_id) = \d+|, sizes = \[.*\]|, input_op_ids = .*)+$")


def plain_name(name: str) -> str:
    """Return a name without what `emit_nvtx` adds: sequence and operator numbers, shapes."""
    return _DECORATIONS.sub("", name)


def plain_names(names: pd.Series) -> pd.Categorical:
    """Return the plain names of a categorical column, sorted; each distinct one is read once."""
    plain = np.array([plain_name(str(name)) for name in names.cat.categories], object)
    distinct, codes = np.unique(plain, return_inverse=True)
    return pd.Categorical.from_codes(
        codes[names.cat.codes.to_numpy()], pd.Index(distinct, dtype=object)
    )
