"""What profilers call copies in their lists: ``[CUDA memcpy HtoD]``."""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd

__all__ = ["copy_titles"]

_TITLES: Final = {
    "h2d": "[CUDA memcpy HtoD]",
    "d2h": "[CUDA memcpy DtoH]",
    "d2d": "[CUDA memcpy DtoD]",
    "h2h": "[CUDA memcpy HtoH]",
    "p2p": "[CUDA memcpy PtoP]",
    "memset": "[CUDA memset]",
}
_UNKNOWN: Final = "[CUDA memcpy]"


def copy_titles(copies: pd.DataFrame) -> pd.Categorical:
    """Return the title of each copy and memset; migrations of unified memory are told apart."""
    directions = copies["direction"].cat
    plain = [_TITLES.get(str(one), _UNKNOWN) for one in directions.categories]
    titles = [*plain, *(title.replace("CUDA", "CUDA Unified Memory") for title in plain)]
    is_managed = (copies["src_kind"] == "managed") & (copies["dst_kind"] == "managed")
    codes = directions.codes.to_numpy(np.int64) + len(plain) * is_managed.to_numpy(np.int64)
    distinct = list(dict.fromkeys(titles))
    place = np.array([distinct.index(title) for title in titles], np.int64)
    named = pd.Categorical.from_codes(place[codes], pd.Index(distinct, dtype=object))
    return named.remove_unused_categories()
