"""Names of ranges and operators: without what makes each of them unique, and sought by words.

`emit_nvtx` gives nearly every range a name of its own ("aten::mm, op_id = 4711"): what looks at
names looks at columns of them here, not at one after the other.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["DECORATED", "codes_containing", "plain_categories", "plain_name", "plain_names"]

_PATTERN: Final = r"(, (seq|op_id) = \d+|, sizes = \[.*\]|, input_op_ids = .*)+$"
_DECORATIONS: Final = re.compile(_PATTERN)

DECORATED: Final = ", seq = 0"
"""Stands for any decoration: no rule about names looks at the numbers in it."""


def plain_name(name: str) -> str:
    """Return a name without what `emit_nvtx` adds: sequence and operator numbers, shapes."""
    return _DECORATIONS.sub("", name)


def plain_names(names: pd.Series) -> pd.Categorical:
    """Return the plain names of a categorical column, sorted; each distinct one is read once."""
    distinct, codes = plain_categories(names.cat.categories)
    return pd.Categorical.from_codes(
        codes[names.cat.codes.to_numpy()], pd.Index(distinct, dtype=object)
    )


def plain_categories(names: pd.Index) -> tuple[npt.NDArray[np.object_], npt.NDArray[np.int64]]:
    """Return the distinct plain names among ``names``, sorted, and which of them each has."""
    found = _as_arrow(names)
    if found is None:
        plain = np.array([plain_name(str(name)) for name in names], object)
    else:
        plain = pc.replace_substring_regex(found, _PATTERN, "").to_numpy(zero_copy_only=False)
    codes, distinct = pd.factorize(plain.astype(object), sort=True)
    return np.asarray(distinct, object), np.asarray(codes, np.int64)


def codes_containing(names: pd.Index, words: Sequence[str]) -> npt.NDArray[np.int64]:
    """Return which of ``names`` contain one of ``words``, upper or lower case."""
    pattern = "|".join(map(re.escape, words))
    found = _as_arrow(names)
    if found is None:
        own = re.compile(pattern, re.IGNORECASE)
        return np.flatnonzero([own.search(str(name)) is not None for name in names])
    matches = pc.match_substring_regex(found, pattern, ignore_case=True)
    return np.flatnonzero(matches.to_numpy(zero_copy_only=False))


def _as_arrow(names: pd.Index) -> Any:
    """Return the names for Arrow; None where one of them is no Unicode text."""
    try:
        return pa.array(names.astype(object), pa.string())
    except (UnicodeEncodeError, pa.ArrowInvalid, pa.ArrowTypeError):
        return None
