"""The routes that copies take, and the peaks of the links on them."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.hardware.catalogue import Link, Peak
from traceprof.measures.device.peaks import Described, peak_between, peak_of

__all__ = ["peak_of_route", "route_of"]

_PEER: Final = "p2p"
_PAIR: Final = re.compile(r"p2p (\d+)→(\d+)")


def route_of(copies: pd.DataFrame) -> npt.NDArray[np.object_]:
    """Return the direction of each copy; a peer copy names its two devices ("p2p 0→3")."""
    directions = copies["direction"].astype("category").cat
    names = np.array([*map(str, directions.categories), ""], object)
    routes = names[directions.codes.to_numpy()]
    peer = np.flatnonzero(routes == _PEER)
    if len(peer):
        ends = copies[["src_device", "dst_device"]].to_numpy(np.int64)[peer]
        pairs, place = np.unique(ends, axis=0, return_inverse=True)
        named = [f"p2p {a}→{b}" if min(a, b) >= 0 else _PEER for a, b in pairs.tolist()]
        routes[peer] = np.array(named, object)[place.ravel()]
    return np.asarray(routes, object)


def peak_of_route(of: Described, device: int, route: str) -> Peak | None:
    """Return the peak of the link that copies of this route use.

    Between devices: their NVLinks where they have any, else PCI Express, as to the host.
    """
    pair = _PAIR.fullmatch(route)
    nvlink = peak_between(of, int(pair[1]), int(pair[2])) if pair else None
    return nvlink or peak_of(of, device, Link.PCIE)
