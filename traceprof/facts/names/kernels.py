"""What the names of kernels tell beyond their activity, and which kernels are short."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

__all__ = ["SHORT_NS", "uses_tensor_cores"]

SHORT_NS: Final = 10_000
"""A kernel shorter than this costs about as much to launch as to run."""

_TENSOR_CORES: Final = re.compile(
    r"tensorop|wmma|wgmma|[hi]mma|nvjet|[sh]16816|[sh]1688|[sh]884|_tc_|tcgen05"
    r"|sm\d+_xmma_.*(f16|bf16|tf32|e4m3|e5m2)|flash_(fwd|bwd)|fmha|xmma_.*_(f16|bf16|tf32)",
    re.IGNORECASE,
)


def uses_tensor_cores(names: pd.Series) -> npt.NDArray[np.bool_]:
    """Return which kernels have names of tensor-core instructions."""
    matches = [bool(_TENSOR_CORES.search(str(name))) for name in names.cat.categories]
    codes = names.cat.codes.to_numpy()
    return np.asarray(matches, np.bool_)[codes] if len(matches) else np.zeros(0, np.bool_)
