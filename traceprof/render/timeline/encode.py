"""Encode a timeline: a JSON head, then streams of bytes.

::

    4 bytes   length of the head, little endian
    head      JSON: groups → rows → channels with their number of items, palette …, and under
              `streams` the length of each stream
    streams   for each kind of row (range, api, gpu, …) the items of all its channels, one channel
              after another, as columns:
              name      0: the next new name, else its number + 1
              gap       start − previous end in the channel (first: − `first_ns`, so 0)
              duration
              count     in channels with merged items: number of events of each item …
              pause     … and for items of several events, their time that is not busy (zigzag)
              longest   … for idle time, the length of the longest event of the item …
              longest_at  … and its start − the start of the item
              bytes     + 1
              link      0: none, else 1 + zigzag of its number − previous number − 1
              names     their templates, and the numbers in them; their short forms and their
                        common forms; if items are merged, the number of events of each name in
                        such items, and their total time
              samples   per series zigzag of time − previous time as varints, then the values as
                        64-bit floats, all first bytes first

An event takes about 24 bits after gzip if the clock has noise in every ns. `assets/decode.mjs`
decodes this format.

Columns of integers are split into streams that deflate compresses well. Each number has a *symbol*
(its magnitude and three more bits) and low bits, in one stream per byte. Numbers of similar size
have equal symbols, and the noise in the low bits costs only its own bits. If the numbers of a group
(events of one name) are similar, their symbols are stored as differences from the symbol of the
group's mean. `assets/columns.mjs` decodes these columns.

::

    value < 16            symbol = value
    value ≥ 16            symbol = 8 · shift + (value >> shift), 8 ≤ value >> shift < 16
    NAME.symbol           a byte each; 255 and more: 255, and the rest as a varint in NAME.escape
    NAME.low0, .low1, …   bits 0 to 7, 8 to 15, … of numbers whose shift is above 0, 8, …, sorted
                          by shift, because equally many bits compress best together
    NAME.expected         where symbols are differences (zigzag): the symbol of each group, as
                          varints, in the order in which the groups first occur

Programs put numbers into names ("aten::add, op_id = 4711"). 200,000 such names have a few dozen
templates, and their numbers count up.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traceprof.model.intervals import Int64Array
from traceprof.model.tables import ABSENT
from traceprof.render.palette import CATEGORY_INDEX
from traceprof.render.timeline.channels import STATES, Channel, Lanes, NameTotals, channels_by_kind
from traceprof.render.timeline.marks import SampleSeries
from traceprof.render.timeline.shown_names import ShownNames

UInt64Array = npt.NDArray[np.uint64]

_MANTISSA_BITS = 3
_ESCAPE = 255


class Streams:
    """Named streams of bytes, in the order in which they were added."""

    def __init__(self) -> None:
        self._streams: dict[str, bytes] = {}

    @property
    def lengths(self) -> dict[str, int]:
        """Number of bytes of each stream."""
        return {name: len(data) for name, data in self._streams.items()}

    def joined(self) -> bytes:
        """Return the bytes of all streams, concatenated."""
        return b"".join(self._streams.values())

    def add(self, name: str, data: bytes) -> None:
        """Add a stream of bytes unchanged; an empty stream is omitted."""
        if data:
            self._streams[name] = data

    def add_numbers(self, name: str, values: Int64Array, groups: Int64Array | None = None) -> None:
        """Add a column of integers ≥ 0.

        ``groups`` (integers from 0) assign each number to a group of possibly similar numbers.
        """
        symbols, shifts = _symbols_and_shifts(values)
        if groups is not None and len(values):
            symbols = self._add_expected(name, symbols, groups)
        is_escaped = symbols >= _ESCAPE
        self.add(f"{name}.symbol", np.minimum(symbols, _ESCAPE).astype(np.uint8).tobytes())
        self.add(f"{name}.escape", encode_varints(symbols[is_escaped] - _ESCAPE))
        by_shift = np.argsort(shifts.astype(np.uint8), kind="stable")
        below = (values & ((np.int64(1) << shifts) - 1))[by_shift]
        ends = np.searchsorted(shifts[by_shift], np.arange(0, 64, 8), "right")
        for place, first in enumerate(ends.tolist()):
            self.add(f"{name}.low{place}", (below[first:] >> 8 * place).astype(np.uint8).tobytes())

    def _add_expected(self, name: str, symbols: Int64Array, groups: Int64Array) -> Int64Array:
        """Return the symbols as differences from those of their groups, if that is shorter."""
        counts = np.bincount(groups)
        means = np.bincount(groups, symbols) / np.maximum(counts, 1)
        expected = np.rint(means).astype(np.int64)
        differences = zigzag(symbols - expected[groups])
        n_used = int(np.count_nonzero(counts))
        if _bits(differences) + 8 * n_used >= _bits(symbols):
            return symbols
        self.add(f"{name}.expected", encode_varints(expected[groups[first_places(groups)]]))
        return differences


def first_places(values: Int64Array) -> Int64Array:
    """Return the index at which each distinct value first occurs, in ascending order."""
    _, places = np.unique(values, return_index=True)
    return np.sort(places)


def _symbols_and_shifts(values: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return the symbol of each number and its number of low bits."""
    bits = np.frexp(values.astype(np.float64))[1].astype(np.int64)
    shifts = np.maximum(bits - 1 - _MANTISSA_BITS, 0)
    # float64 can round a value up to the next power of two, which makes its shift too large.
    shifts -= (shifts > 0) & (values >> shifts < 1 << _MANTISSA_BITS)
    return (shifts << _MANTISSA_BITS) + (values >> shifts), shifts


def _bits(symbols: Int64Array) -> float:
    """Return the entropy of the symbols in bits."""
    counts = np.bincount(symbols)
    counts = counts[counts > 0]
    return float(-(counts * np.log2(counts / len(symbols))).sum())


def zigzag(values: Int64Array) -> Int64Array:
    """Map signed integers to integers ≥ 0: 0, -1, 1, -2 … become 0, 1, 2, 3 …."""
    return np.where(values >= 0, 2 * values, -2 * values - 1)


def encode_varints(values: Int64Array | UInt64Array) -> bytes:
    """Encode numbers ≥ 0 in groups of 7 bits, least significant first. Bit 7 marks continuation."""
    if len(values) == 0:
        return b""
    remaining = values.astype(np.uint64)
    n_bytes = np.ones(len(remaining), np.int64)
    for bits in range(7, int(remaining.max()).bit_length(), 7):
        n_bytes += remaining >= np.uint64(1 << bits)
    places = np.concatenate(([0], np.cumsum(n_bytes)))
    out = np.empty(int(places[-1]), np.uint8)
    for k in range(int(n_bytes.max())):
        has_byte = n_bytes > k
        low = (remaining[has_byte] & np.uint64(127)).astype(np.uint8)
        continuation = np.where(n_bytes[has_byte] > k + 1, 128, 0).astype(np.uint8)
        out[places[:-1][has_byte] + k] = low | continuation
        remaining >>= np.uint64(7)
    return out.tobytes()


_DEVICE = "gpu"


def number_links(lanes: Lanes, order: Iterable[Channel]) -> Mapping[int, Int64Array]:
    """Renumber correlations so that they compress well; return them by the id() of each channel.

    Events of one process with equal numbers are linked, as events with equal correlations are. The
    numbers count up in the ``order`` of the channels. Events without a partner on the other side
    (host or device) have ABSENT. Channels without correlations are missing in the result.
    """
    owner = {
        id(channel): (group.process, row.kind == _DEVICE)
        for group in lanes.groups
        for row in group.rows
        for channel in row.channels
    }
    by_process: dict[int, list[tuple[Channel, bool]]] = defaultdict(list)
    for channel in order:
        if channel.correlations is not None and id(channel) in owner:
            process, is_device = owner[id(channel)]
            by_process[process].append((channel, is_device))
    numbers_by_channel: dict[int, Int64Array] = {}
    for channels in by_process.values():
        columns = [c.correlations for c, _ in channels if c.correlations is not None]
        sides = np.repeat([is_device for _, is_device in channels], list(map(len, columns)))
        ends = np.cumsum(list(map(len, columns)))[:-1]
        numbers = np.split(_link_numbers(np.concatenate(columns), sides), ends)
        numbers_by_channel |= {id(c): part for (c, _), part in zip(channels, numbers, strict=True)}
    return numbers_by_channel


def _link_numbers(correlations: Int64Array, is_device: np.ndarray) -> Int64Array:
    """Number the correlations that occur on host and device, by first use.

    Other correlations get ABSENT.
    """
    values, first, place = np.unique(correlations, return_index=True, return_inverse=True)
    on_device = np.bincount(place[is_device], minlength=len(values)) > 0
    on_host = np.bincount(place[~is_device], minlength=len(values)) > 0
    linked = np.flatnonzero(on_device & on_host & (values != ABSENT))
    number = np.full(len(values), ABSENT)
    number[linked[np.argsort(first[linked])]] = np.arange(len(linked))
    return number[place]


def code_links(numbers: Int64Array) -> Int64Array:
    """Return 0 for events without a partner, else 1 + zigzag(number − previous number − 1)."""
    codes = np.zeros(len(numbers), np.int64)
    linked = np.flatnonzero(numbers != ABSENT)
    codes[linked] = 1 + zigzag(np.diff(numbers[linked], prepend=ABSENT) - 1)
    return codes


_NUMBER: Final = re.compile(r"(?<![0-9])(0|[1-9][0-9]{0,14})(?![0-9])", re.ASCII)
_PLACE: Final = "\x01"  # `plain_text` removes this character from names


def number_names_by_use(lanes: Lanes) -> Lanes:
    """Return the lanes with names numbered by first use, one kind of rows after another.

    Names that no item has are last: they can belong to events that were merged into an item.
    """
    kinds = channels_by_kind(lanes)
    channels = [c for kind, members in kinds.items() if kind != STATES for c in members]
    if not channels:
        return lanes
    used_names = np.concatenate([c.names[_are_single(c)] for c in channels])
    used, first = np.unique(used_names, return_index=True)
    order = np.append(used[np.argsort(first)], np.setdiff1d(np.arange(len(lanes.names)), used))
    place = np.zeros(len(lanes.names), np.int64)
    place[order] = np.arange(len(order))

    ordered = renumbered(lanes, place)
    return Lanes(ordered.groups, tuple(lanes.names[i] for i in order.tolist()))


def renumbered(lanes: Lanes, place: Int64Array) -> Lanes:
    """Return the lanes with names renumbered to ``place``; items of several events have name 0."""
    if not len(place):
        return lanes
    return lanes.mapped(
        lambda channel: channel.changed(
            names=np.where(_are_single(channel), place[channel.names], 0)
        )
    )


def _are_single(channel: Channel) -> npt.NDArray[np.bool_]:
    """Return a mask of the items that stand for a single event."""
    if channel.counts is None:
        return np.ones(len(channel), np.bool_)
    return np.asarray(channel.counts == 1, np.bool_)


def code_names(names: Int64Array, n_before: int) -> tuple[Int64Array, int]:
    """Return 0 for each next new name, else its number + 1, and the number of names known so far.

    ``n_before`` is one more than the greatest number that was coded before.
    """
    if len(names) == 0:
        return names, n_before
    greatest = np.maximum.accumulate(np.concatenate(([n_before - 1], names)))
    return np.where(names == greatest[:-1] + 1, 0, names + 1), int(greatest[-1]) + 1


class Templates:
    """The distinct ``names`` without their numbers; ``of_names`` is the template of each name."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        places: dict[str, int] = {}
        of_names = []
        numbers: dict[int, list[list[str]]] = defaultdict(list)
        for name in names:
            parts = _NUMBER.split(name)
            template = _PLACE.join(parts[::2])
            place = places.setdefault(template, len(places))
            of_names.append(place)
            numbers[place].append(parts[1::2])
        self.texts = tuple(places)
        self.of_names = np.array(of_names, np.int64)
        steps = [np.diff(np.array(rows, np.int64).T, prepend=0) for rows in numbers.values()]
        flat = [part.reshape(-1) for part in steps if part.size]
        self._steps = zigzag(np.concatenate(flat) if flat else np.zeros(0, np.int64))

    def add_to(self, streams: Streams) -> None:
        """Add the template of each name, then the numbers of each template by position."""
        streams.add_numbers("names.template", self.of_names)
        streams.add_numbers("names.number", self._steps)


def encode_lanes(
    lanes: Lanes,
    head: Mapping[str, Any],
    samples: Sequence[SampleSeries] = (),
    merged: NameTotals | None = None,
    templates: Templates | None = None,
    shown: ShownNames | None = None,
) -> bytes:
    """Encode ``lanes`` in the binary form; ``head`` is added to its JSON head.

    Lanes without names are part of a page that already has the names. ``merged`` has the totals of
    the events that have no item of their own. ``templates`` are the templates of the names, for
    callers that encode the same names repeatedly. ``shown`` are the shown names of the exact lanes,
    needed if these lanes are condensed.
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
    if shown is None:
        shown = ShownNames.of(lanes)
    streams.add_numbers("names.short", shown.short, templates.of_names)
    streams.add_numbers("names.alike", shown.common, templates.of_names)
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
            "shown_names": shown.texts,
            "groups": [group.described(_channel_head) for group in lanes.groups],
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
    """Add the columns that items of every kind have.

    ``groups`` assign each item to a group of similar values (its name template).
    """
    starts, ends = (_joined(getattr(c, key) for c in channels) for key in ("starts", "ends"))
    gaps = starts - np.concatenate((starts[:1], ends[:-1]))
    gaps[np.cumsum([0, *map(len, filter(len, channels))])[:-1]] = 0
    streams.add_numbers(f"{kind}.gap", gaps, groups)
    streams.add_numbers(f"{kind}.duration", ends - starts, groups)
    counts = _joined(c.counts for c in channels if c.counts is not None)
    streams.add_numbers(f"{kind}.count", counts)
    pauses = _joined(c.ends - c.starts - c.busy_ns for c in channels if c.busy_ns is not None)
    streams.add_numbers(f"{kind}.pause", zigzag(pauses[counts > 1]))
    has_longest = _joined(
        c.counts for c in channels if c.counts is not None and c.longest_ns is not None
    )
    longest = _joined(c.longest_ns for c in channels if c.longest_ns is not None)
    streams.add_numbers(f"{kind}.longest", longest[has_longest > 1])
    after = _joined(c.longest_starts - c.starts for c in channels if c.longest_starts is not None)
    streams.add_numbers(f"{kind}.longest_at", after[has_longest > 1])
    n_bytes = _joined(c.n_bytes for c in channels if c.n_bytes is not None)
    streams.add_numbers(f"{kind}.bytes", n_bytes + 1)


def _joined(columns: Iterable[Int64Array]) -> Int64Array:
    parts = list(columns)
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _channel_head(channel: Channel) -> dict[str, Any]:
    """Return the JSON description of a channel."""
    return {
        "category": CATEGORY_INDEX[channel.category],
        "n": len(channel),
        "first_ns": int(channel.starts[0]) if len(channel) else 0,
        "is_condensed": channel.counts is not None,
        "has_longest": channel.longest_ns is not None,
        "has_bytes": channel.n_bytes is not None,
        "has_links": channel.correlations is not None,
    }
