"""How fast copies to and from devices could be: the link's peak, or what the best reach."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from traceprof.hardware.catalogue import Link
from traceprof.measures.device.peaks import peak_of
from traceprof.measures.facts import fact
from traceprof.model.ranks import Ranks
from traceprof.model.trace import Trace

__all__ = ["copy_speeds"]

_BEST_SHARE: Final = 0.9
_LARGE_BYTES: Final = 1_000_000
_DIRECTIONS: Final = ("d2h", "h2d", "p2p")
_OVER_PCIE: Final = ("h2d", "d2h")


@fact
def copy_speeds(ranks: Ranks) -> Mapping[str, float]:
    """Return the speed of each direction of copies in bytes per s: the link's peak if known.

    Elsewhere what the best tenth of the large copies of the run reach.
    """
    reached = {}
    for direction in _DIRECTIONS:
        rates = np.concatenate([_rates_of_large(part).get(direction, ()) for part in ranks])
        if len(rates):
            reached[direction] = float(np.quantile(rates, _BEST_SHARE))
    peaks = [
        peak_of(part, int(device), Link.PCIE)
        for part in ranks
        for device in part.devices.loc[part.devices["used"] == 1, "device"]
    ]
    known = [peak.bytes_per_s for peak in peaks if peak is not None]
    if not known or len(known) < len(peaks):
        return reached
    return reached | dict.fromkeys(_OVER_PCIE, min(known))


@fact
def _rates_of_large(trace: Trace) -> Mapping[str, npt.NDArray[np.float64]]:
    """Return the bytes per s of each large copy, by direction."""
    copies = trace.copies
    n_bytes = copies["n_bytes"].to_numpy(np.float64)
    lengths = (copies["end_ns"] - copies["start_ns"]).to_numpy(np.float64)
    large = n_bytes >= _LARGE_BYTES
    rates = n_bytes / np.maximum(lengths, 1) * 1e9
    return {name: rates[large & (copies["direction"] == name)] for name in _DIRECTIONS}
