"""Classes of message sizes: small messages pay for latency, large ones for bandwidth.

K and M in the names of classes are binary (4K = 4096 bytes), as the sizes of buffers are.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = [
    "ALL_SIZES",
    "UNKNOWN_SIZE",
    "classify_sizes",
    "labels_of_sizes",
    "order_of_size",
    "places_of_sizes",
]

ALL_SIZES: Final = "all"
UNKNOWN_SIZE: Final = "unknown"

_KIB: Final = 1 << 10
_MIB: Final = 1 << 20
_LIMITS: Final = np.array([4 * _KIB, 64 * _KIB, _MIB, 16 * _MIB, 256 * _MIB], np.int64)
_LABELS: Final = (
    "< 4K",
    "4K–64K",
    "64K–1M",
    "1M–16M",
    "16M–256M",
    "≥ 256M",
    UNKNOWN_SIZE,
)


def classify_sizes(n_bytes: npt.NDArray[np.int64]) -> npt.NDArray[np.object_]:
    """Return the class of each size; sizes below 0 are not known."""
    return labels_of_sizes(places_of_sizes(n_bytes))


def places_of_sizes(n_bytes: npt.NDArray[np.int64]) -> npt.NDArray[np.int8]:
    """Return the place of the class of each size among the classes."""
    place = np.searchsorted(_LIMITS, n_bytes, side="right").astype(np.int8)
    place[n_bytes < 0] = len(_LABELS) - 1
    return place


def labels_of_sizes(places: npt.NDArray[np.int8]) -> npt.NDArray[np.object_]:
    """Return the classes at ``places``."""
    return np.asarray(np.array(_LABELS, object)[places], object)


def order_of_size(label: str) -> int:
    """Return the place of a class among the others, `ALL_SIZES` first."""
    return -1 if label == ALL_SIZES else _LABELS.index(label)
