"""Bytes that copies moved, where the size of each is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

__all__ = ["known_sizes"]


def known_sizes(size_bytes: Any, is_unsized: Any) -> Any:
    """Return sums of sizes, NaN where the size of a copy in them is not known."""
    unsized = np.asarray(is_unsized, np.bool_)
    return pd.Series(size_bytes).where(~unsized) if unsized.any() else size_bytes
