"""The lanes of the devices: one group per process and device, one lane per stream."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from traceprof.model.activity import Activity, Part
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace
from traceprof.render.palette import category_index
from traceprof.render.timeline.channels import Group, Row
from traceprof.render.timeline.events import Events, NameTable, join_events, make_rows, split_by

__all__ = ["device_groups", "make_device_group"]

_KERNEL_CATEGORY = {
    Part.COMPUTE: "compute",
    Part.COMMUNICATION: "communication",
    Part.TRANSFER: "copy",
    Part.DEVICE_MEMORY: "memset",
}
_DIRECTIONS = {
    "h2d": "Memcpy host → device",
    "d2h": "Memcpy device → host",
    "d2d": "Memcpy within the device",
    "p2p": "Memcpy device → device",
    "h2h": "Memcpy host → host",
    "memset": "Memset",
}


def device_groups(
    trace: Trace, origin_ns: int, names: NameTable
) -> Iterator[tuple[int, int, tuple[Row, ...]]]:
    """Yield (process, device, rows) for every process that used a device."""
    kernels, copies = trace.kernels, trace.copies
    events, order = join_events(
        [_kernel_events(kernels, origin_ns, names), _copy_events(copies, origin_ns, names)]
    )
    key = {
        column: np.concatenate([kernels[column].to_numpy(), copies[column].to_numpy()])[order]
        for column in ("process", "device", "stream")
    }
    for (process, device), places in split_by(key["process"], key["device"]):
        streams = key["stream"][places]
        rows: list[Row] = []
        for (stream,), inside in split_by(streams):
            label = "Stream not known" if stream == ABSENT else f"Stream {stream}"
            rows.extend(make_rows(label, "gpu", events.take(places[inside])))
        yield process, device, tuple(rows)


def describe_device(trace: Trace, device: int) -> str:
    """Return "GPU 0" with the name of the device where it is known."""
    known = trace.devices[trace.devices["device"] == device]
    name = str(known["name"].iloc[0]) if len(known) else ""
    number = "GPU" if device == ABSENT else f"GPU {device}"
    return f"{number} · {name}" if name else number


def make_device_group(
    trace: Trace, section: str, process: int, device: int, rows: tuple[Row, ...]
) -> Group:
    """Return the group of one device."""
    return Group(section, describe_device(trace, device), "device", rows, process, device=device)


def _kernel_events(kernels: pd.DataFrame, origin_ns: int, names: NameTable) -> Events:
    activities = kernels["activity"].cat
    by_code = [
        category_index(_KERNEL_CATEGORY[Activity(name).part] if name else "compute")
        for name in activities.categories
    ]
    categories = np.array([*by_code, category_index("compute")], np.int64)
    starts = kernels["start_ns"].to_numpy() - origin_ns
    return Events(
        starts=starts,
        ends=kernels["end_ns"].to_numpy() - origin_ns,
        categories=categories[activities.codes.to_numpy()],
        names=names.ids(kernels["name"].array),
        n_bytes=np.full(len(starts), ABSENT),
        correlations=kernels["correlation"].to_numpy(),
    )


def _copy_events(copies: pd.DataFrame, origin_ns: int, names: NameTable) -> Events:
    directions = copies["direction"].cat
    by_code = [category_index(d if d in _DIRECTIONS else "copy") for d in directions.categories]
    categories = np.array([*by_code, category_index("copy")], np.int64)
    return Events(
        starts=copies["start_ns"].to_numpy() - origin_ns,
        ends=copies["end_ns"].to_numpy() - origin_ns,
        categories=categories[directions.codes.to_numpy()],
        names=_copy_names(copies, names),
        n_bytes=copies["n_bytes"].to_numpy(),
        correlations=copies["correlation"].to_numpy(),
    )


def _copy_names(copies: pd.DataFrame, names: NameTable) -> np.ndarray:
    """Return names such as "Memcpy host → device (pageable → device)"."""
    ids = np.zeros(len(copies), np.int64)
    columns = [copies[c].cat for c in ("direction", "src_kind", "dst_kind")]
    codes = [np.asarray(column.codes, np.int64) for column in columns]
    for key, places in split_by(*codes):
        words = [
            str(column.categories[code]) if code >= 0 else ""
            for column, code in zip(columns, key, strict=True)
        ]
        direction, source, target = words
        label = _DIRECTIONS.get(direction, "Memcpy")
        if source and target and direction != "memset":
            label += f" ({source} → {target})"
        ids[places] = names.id_of(label)
    return ids
