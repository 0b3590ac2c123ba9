"""The binary form of a timeline: a JSON head, then columns of variable-length integers.

::

    4 bytes   length of the head, little endian
    head      JSON: names, palette, groups → rows → channels with their number of items
    columns   per channel, in the order of the head, each item a varint (7 bits a byte):
              start − previous end (first: − ``first_ns``) · duration · name ·
              [busy] · [count] · [bytes + 1] · [zigzag of correlation − previous one]
    samples   per series: zigzag of time − previous one, then its values as 64-bit floats

About 4.5 bytes per event after gzip. `assets/decode.mjs` reads it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from traceprof.model.intervals import Int64Array
from traceprof.render.timeline.channels import Channel, Group, Lanes
from traceprof.render.timeline.samples import SampleSeries

__all__ = ["encode_lanes", "encode_varints"]

UInt64Array = npt.NDArray[np.uint64]


def encode_lanes(
    lanes: Lanes,
    head: Mapping[str, Any],
    category_index: Mapping[str, int],
    samples: Sequence[SampleSeries] = (),
) -> bytes:
    """Return the binary form of ``lanes``; ``head`` holds what else the page must know."""
    parts: list[bytes] = []

    def describe(channel: Channel) -> dict[str, Any]:
        parts.extend(encode_varints(column) for column in _columns(channel))
        return {
            "category": category_index[channel.category],
            "n": len(channel),
            "first_ns": int(channel.starts[0]) if len(channel) else 0,
            "is_condensed": channel.counts is not None,
            "has_bytes": channel.n_bytes is not None,
            "has_correlations": channel.correlations is not None,
        }

    groups = [_describe_group(group, describe) for group in lanes.groups]
    for series in samples:
        parts.append(encode_varints(_zigzag(np.diff(series.times, prepend=0))))
        parts.append(series.values.astype("<f8").tobytes())
    described = [{"metric": s.metric, "source": s.source, "n": len(s.times)} for s in samples]
    text = json.dumps(
        {**head, "names": lanes.names, "groups": groups, "samples": described},
        separators=(",", ":"),
        allow_nan=False,
    ).encode()
    return b"".join((len(text).to_bytes(4, "little"), text, *parts))


def _describe_group(group: Group, describe: Any) -> dict[str, Any]:
    return {
        "section": group.section,
        "label": group.label,
        "kind": group.kind,
        "process": group.process,
        "device": group.device,
        "rows": [
            {"label": row.label, "kind": row.kind, "channels": [describe(c) for c in row.channels]}
            for row in group.rows
        ],
        "states": [describe(c) for c in group.states],
    }


def _columns(channel: Channel) -> Iterator[UInt64Array]:
    starts, ends = channel.starts, channel.ends
    gaps = np.diff(starts, prepend=starts[:1])
    gaps[1:] = starts[1:] - ends[:-1]
    yield gaps.astype(np.uint64)
    yield (ends - starts).astype(np.uint64)
    yield channel.names.astype(np.uint64)
    if channel.busy_ns is not None and channel.counts is not None:
        yield channel.busy_ns.astype(np.uint64)
        yield channel.counts.astype(np.uint64)
    if channel.n_bytes is not None:
        yield (channel.n_bytes + 1).astype(np.uint64)
    if channel.correlations is not None:
        yield _zigzag(np.diff(channel.correlations, prepend=0))


def _zigzag(values: Int64Array) -> UInt64Array:
    return np.where(values >= 0, 2 * values, -2 * values - 1).astype(np.uint64)


def encode_varints(values: UInt64Array) -> bytes:
    """Return the numbers, each in as many bytes of 7 bits as it needs, least significant first."""
    if len(values) == 0:
        return b""
    n_bytes = np.ones(len(values), np.int64)
    for bits in range(7, int(values.max()).bit_length(), 7):
        n_bytes += values >= np.uint64(1 << bits)
    places = np.concatenate(([0], np.cumsum(n_bytes)))
    out = np.empty(int(places[-1]), np.uint8)
    rest = values.copy()
    for k in range(int(n_bytes.max())):
        has_byte = n_bytes > k
        low = (rest[has_byte] & np.uint64(127)).astype(np.uint8)
        more = np.where(n_bytes[has_byte] > k + 1, 128, 0).astype(np.uint8)
        out[places[:-1][has_byte] + k] = low | more
        rest >>= np.uint64(7)
    return out.tobytes()
