"""What stands out in the copies of a trace, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

import pandas as pd

from traceprof.model.results import Note, Result

__all__ = ["note_on_transfers"]

_TO_HOST_OR_BACK: Final = ("h2d", "d2h")
_NOTABLE_RATIO: Final = 0.1
_NOTABLE_BYTES: Final = 1 << 20

_Lane: TypeAlias = tuple[int, str]
"""A device and a route."""


def note_on_transfers(result: Result) -> tuple[Note, ...]:
    """Return remarks on copies, and the peaks that they are judged by."""
    if result.table.empty:
        return (Note("nothing was copied between host and devices or between devices"),)
    memory = result.tables["memory"]
    return (
        *_on_pageable(memory),
        *_on_waiting(result, memory),
        *_on_peaks(result.tables["links"]),
    )


def _on_pageable(memory: pd.DataFrame) -> Iterator[Note]:
    for direction in _TO_HOST_OR_BACK:
        own = memory[memory["direction"] == direction].set_index("memory")
        if "pageable" not in own.index:
            continue
        whole, n_bytes = int(own["size_bytes"].sum()), int(own["size_bytes"]["pageable"])
        if n_bytes < max(_NOTABLE_BYTES, _NOTABLE_RATIO * whole):
            continue
        text = (
            "{share:ratio} of the {direction} bytes are in pageable memory "
            "({size:bytes} at {rate:bytes/s}"
        )
        values = {
            "share": n_bytes / whole,
            "direction": direction,
            "size": n_bytes,
            "rate": own["rate_bytes_per_s"]["pageable"],
        }
        if "pinned" in own.index and own["large_bytes"]["pinned"]:
            text += "; large copies from pinned memory reach {large:bytes/s}"
            values["large"] = own["large_rate_bytes_per_s"]["pinned"]
        text += "): such copies go through a staging buffer and block the host"
        yield Note(text, values)


def _on_waiting(result: Result, memory: pd.DataFrame) -> Iterator[Note]:
    waited = result.scalars["synchronous_count"]
    if waited:
        yield Note.of(
            "{n:count} of {count:count} h2d copies were synchronous (cudaMemcpy): the host spent "
            "{waited:ns} in them",
            n=waited,
            count=int(memory.loc[memory["direction"] == "h2d", "count"].sum()),
            waited=result.scalars["synchronous_ns"],
        )


def _on_peaks(links: pd.DataFrame) -> Iterator[Note]:
    """Yield which peaks the rates are judged by, and for what there is none."""
    by_peak: dict[tuple[float, str, str], list[_Lane]] = {}
    unknown: list[_Lane] = []
    for link in links.to_dict("records"):
        lane = (link["device"], link["route"])
        if pd.isna(link["peak_bytes_per_s"]):
            unknown.append(lane)
        else:
            peak = (link["peak_bytes_per_s"], link["link"], link["source"])
            by_peak.setdefault(peak, []).append(lane)
    for (rate, what, source), own in by_peak.items():
        text = "peak of {lanes}: {peak:bytes/s} ({link}; {source})"
        yield Note.of(text, lanes=_named(own), peak=rate, link=what, source=source)
    if unknown:
        text = "no peak is known for {lanes}: give it by --link pcie=gen4x16 or --gpu"
        yield Note.of(text, lanes=_named(unknown))
    between = links["route"].str.startswith("p2p") & links["link"].str.contains("links of")
    if between.any():
        yield Note(
            "the peak between GPUs is that of all links of a GPU; without a switch two GPUs are "
            "joined by only some of them (--link nvlink=RATE)"
        )


def _named(lanes: Sequence[_Lane]) -> str:
    routes = dict.fromkeys(route for _, route in lanes)
    return ", ".join(
        f"{route} (GPU {', '.join(str(device) for device, own in lanes if own == route)})"
        for route in routes
    )
