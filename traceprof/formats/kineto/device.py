"""What happened on the devices, from the events of a Kineto trace."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.formats.contract import ReadOptions
from traceprof.formats.kineto.arguments import NO_SHAPE, SHAPE
from traceprof.formats.kineto.rows import Rows
from traceprof.formats.sqlite.database import categorical
from traceprof.model.tables import ABSENT, empty_table, make_table
from traceprof.names.classes import classify

__all__ = ["make_copies", "make_kernel_shapes", "make_kernels", "make_syncs"]

_DIRECTION: Final = re.compile(
    r"(Host|Device|Peer|Array|[HDPA])[tT]o(Host|Device|Peer|Array|[HDPA])"
)
_DIRECTIONS: Final = {
    "HH": "h2h",
    "HD": "h2d",
    "HA": "h2d",
    "DH": "d2h",
    "AH": "d2h",
    "PP": "p2p",
}
_KINDS: Final = re.compile(r"\((?:(?P<source>[\w ]+?) -> )?(?P<target>[\w ]+?)\)")
_SYNC_KINDS: Final = {
    "Event Sync": "event",
    "Stream Wait Event": "stream_wait",
    "Stream Sync": "stream",
    "Context Sync": "context",
}
_NO_STREAM: Final = 1 << 31


def make_kernels(rows: Rows, options: ReadOptions) -> pd.DataFrame:
    """Return the kernels. CPU rows of Triton that name a stream are none: they have a category."""
    return make_table(
        "kernels",
        {
            **_place(rows),
            "name": rows.name,
            "activity": classify(rows.name, options.rules),
            "graph_node": rows.number("graph node id"),
        },
    )


def make_kernel_shapes(rows: Rows) -> pd.DataFrame:
    """Return how the kernels were launched: a row for each; none where no event says it."""
    shapes = rows.shapes
    if shapes is None or not len(shapes) or (shapes == NO_SHAPE).all():
        return empty_table("kernel_shapes")
    columns = dict(zip(SHAPE, shapes.T, strict=True))
    return make_table("kernel_shapes", {**_place(rows), **columns})


def make_copies(rows: Rows) -> pd.DataFrame:
    """Return the copies and memsets; their names tell the direction and the kinds of memory."""
    names = [str(name) for name in rows.name.categories]
    directions = [_direction(name) for name in names]
    kinds = [_KINDS.search(name) for name in names]
    sources = [
        "" if direction == "memset" else _kind(found, "source")
        for direction, found in zip(directions, kinds, strict=True)
    ]
    codes = rows.name.codes
    return make_table(
        "copies",
        {
            **_place(rows),
            "direction": categorical(codes, directions),
            "n_bytes": rows.number("bytes"),
            "src_kind": categorical(codes, sources),
            "dst_kind": categorical(codes, [_kind(found, "target") for found in kinds]),
            "src_device": rows.number("fromDevice"),
            "dst_device": rows.number("toDevice"),
            "graph_node": rows.number("graph node id"),
        },
    )


def make_syncs(rows: Rows) -> pd.DataFrame:
    """Return the synchronisations of host and streams."""
    kinds = [_SYNC_KINDS.get(str(name), "unknown") for name in rows.name.categories]
    return make_table("syncs", {**_place(rows), "kind": categorical(rows.name.codes, kinds)})


def _place(rows: Rows) -> dict[str, npt.NDArray[np.int64]]:
    """Return when and where each row was. Device work bears the device in place of a process."""
    device, stream = rows.number("device"), rows.number("stream")
    stream = np.where(stream == ABSENT, rows.thread, stream)
    return {
        "start_ns": rows.start_ns,
        "end_ns": rows.end_ns,
        "device": np.where(device == ABSENT, rows.process, device),
        "stream": np.where((stream < 0) | (stream >= _NO_STREAM), ABSENT, stream),
        "process": np.full(len(rows), rows.host_process),
        "correlation": rows.number("correlation"),
    }


def _direction(name: str) -> str:
    if "memset" in name.lower() or "fillbuffer" in name.lower():
        return "memset"
    found = _DIRECTION.search(name)
    if not found:
        return "unknown"
    ends = found.group(1)[0] + found.group(2)[0]
    return _DIRECTIONS.get(ends, "d2d")


def _kind(found: re.Match[str] | None, group: str) -> str:
    text = found.group(group) if found else None
    return text.lower().replace(" ", "_") if text else "unknown"
