"""The binary form of a timeline: a JSON head, then streams of bytes.

::

    4 bytes   length of the head, little endian
    head      JSON: groups → rows → channels with their number of items, palette …, and under
              `streams` the length of each stream
    streams   of each kind of row (range, api, gpu, …) the items of all its channels, one channel
              after another, as columns (`columns.py`):
              name      0: the next new name, else its number + 1
              gap       start − previous end of the channel (first: − `first_ns`, so 0)
              duration
              count     of channels with merged items: how many events an item stands for …
              pause     … and of those that stand for several, how long they are not busy (zigzag)
              bytes     + 1
              link      0: none, else 1 + zigzag of its number − previous number − 1
              of names  their templates, and the numbers in them; where items are merged how many
                        events of each name are in such items, and for how long
              samples   per series zigzag of time − previous one as varints, then the values as
                        64-bit floats, all first bytes first

About 24 bits per event after gzip where the clock has noise in every ns. `assets/decode.mjs`
reads it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from traceprof.model.intervals import Int64Array
from traceprof.render.timeline.channels import (
    Channel,
    Lanes,
    NameTotals,
    channels_by_kind,
)
from traceprof.render.timeline.columns import Streams, encode_varints, zigzag
from traceprof.render.timeline.links import code_links, number_links
from traceprof.render.timeline.names import Templates, code_names
from traceprof.render.timeline.samples import SampleSeries

__all__ = ["encode_lanes"]


def encode_lanes(
    lanes: Lanes,
    head: Mapping[str, Any],
    category_index: Mapping[str, int],
    samples: Sequence[SampleSeries] = (),
    merged: NameTotals | None = None,
    templates: Templates | None = None,
) -> bytes:
    """Return the binary form of ``lanes``; ``head`` holds what else the page must know.

    Lanes without names are a part of others, whose page knows the names. ``merged`` are the totals
    of the events that have no item of their own. ``templates`` are those of the names, for who
    encodes them again.
    """
    streams = Streams()
    if templates is None or templates.names is not lanes.names:
        templates = Templates(lanes.names)
    by_kind = channels_by_kind(lanes)
    links = number_links(lanes, (c for channels in by_kind.values() for c in channels))
    n_names = 0
    for kind, channels in by_kind.items():
        names, n_names = code_names(_joined(c.names for c in channels), n_names)
        streams.add_numbers(f"{kind}.name", names)
        of_names = templates.of_names[_joined(c.names for c in channels)] if lanes.names else None
        _add_columns(streams, kind, channels, of_names)
        linked = [links[id(c)] for c in channels if id(c) in links]
        streams.add_numbers(f"{kind}.link", code_links(_joined(linked)))
    templates.add_to(streams)
    if merged is not None:
        streams.add_numbers("names.merged_count", merged.counts)
        streams.add_numbers("names.merged_ns", merged.times_ns)
    for place, series in enumerate(samples):
        times = zigzag(np.diff(series.times, prepend=0))
        streams.add(f"samples{place}.time", encode_varints(times))
        by_byte = series.values.astype("<f8").view(np.uint8).reshape(-1, 8).T
        streams.add(f"samples{place}.value", by_byte.tobytes())
    text = json.dumps(
        {
            **head,
            "name_templates": templates.texts,
            "n_names": len(lanes.names),
            "groups": [group.described(_describer(category_index)) for group in lanes.groups],
            "samples": [
                {"metric": s.metric, "source": s.source, "n": len(s.times)} for s in samples
            ],
            "streams": streams.lengths,
        },
        separators=(",", ":"),
        allow_nan=False,
    ).encode()
    return b"".join((len(text).to_bytes(4, "little"), text, streams.joined()))


def _add_columns(
    streams: Streams, kind: str, channels: Sequence[Channel], groups: Int64Array | None
) -> None:
    """Add what all items of the rows of one kind have in common; ``groups`` may be alike."""
    starts, ends = (_joined(getattr(c, key) for c in channels) for key in ("starts", "ends"))
    gaps = starts - np.concatenate((starts[:1], ends[:-1]))
    gaps[np.cumsum([0, *map(len, filter(len, channels))])[:-1]] = 0
    streams.add_numbers(f"{kind}.gap", gaps, groups)
    streams.add_numbers(f"{kind}.duration", ends - starts, groups)
    counts = _joined(c.counts for c in channels if c.counts is not None)
    streams.add_numbers(f"{kind}.count", counts)
    pauses = _joined(c.ends - c.starts - c.busy_ns for c in channels if c.busy_ns is not None)
    streams.add_numbers(f"{kind}.pause", zigzag(pauses[counts > 1]))
    n_bytes = _joined(c.n_bytes for c in channels if c.n_bytes is not None)
    streams.add_numbers(f"{kind}.bytes", n_bytes + 1)


def _joined(columns: Iterable[Int64Array]) -> Int64Array:
    parts = list(columns)
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _describer(category_index: Mapping[str, int]) -> Callable[[Channel], dict[str, Any]]:
    def describe(channel: Channel) -> dict[str, Any]:
        return {
            "category": category_index[channel.category],
            "n": len(channel),
            "first_ns": int(channel.starts[0]) if len(channel) else 0,
            "is_condensed": channel.counts is not None,
            "has_bytes": channel.n_bytes is not None,
            "has_links": channel.correlations is not None,
        }

    return describe
