"""The binary form of a timeline: a JSON head, then streams of bytes.

::

    4 bytes   length of the head, little endian
    head      JSON: groups → rows → channels with their number of items, palette …, and under
              `streams` the length of each stream
    streams   of each kind of row (range, api, gpu, …) the items of all its channels, one channel
              after another, as columns:
              name      0: the next new name, else its number + 1
              gap       start − previous end of the channel (first: − `first_ns`, so 0)
              duration
              count     of channels with merged items: how many events an item stands for …
              pause     … and of those that stand for several, how long they are not busy (zigzag)
              longest   … of idle times, how long the longest of them is, and how long after
              longest_at  the start of the item it begins
              bytes     + 1
              link      0: none, else 1 + zigzag of its number − previous number − 1
              of names  their templates, and the numbers in them; their short forms and what is
                        alike; where items are merged how many events of each name are in such
                        items, and for how long
              samples   per series zigzag of time − previous one as varints, then the values as
                        64-bit floats, all first bytes first

About 24 bits per event after gzip where the clock has noise in every ns. `assets/decode.mjs`
reads it.

Columns of integers are streams that are cut so that deflate finds what there is to find.
A number is a *symbol*, its magnitude with three more bits, and what lies below that, in one stream
for each byte. Symbols of like numbers are alike, and the noise below them costs its own bits only.
Where the numbers of a group (events of one name) are alike, their symbol is that of the group's
mean and a difference. `assets/columns.mjs` reads it.

::

    value < 16            symbol = value
    value ≥ 16            symbol = 8 · shift + (value >> shift), 8 ≤ value >> shift < 16
    NAME.symbol           a byte each; 255 and more: 255, and the rest as a varint in NAME.escape
    NAME.low0, .low1, …   bits 0 to 7, 8 to 15, … of those whose shift is above 0, 8, …: first all
                          numbers of the smallest shift, since equally many bits pack best together
    NAME.expected         where symbols are differences (zigzag): the symbol of each group, as
                          varints, in the order in which the groups come first

Programs number what they name ("aten::add, op_id = 4711"): of 200 000 such names a few dozen
templates remain, and numbers that count up.
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
        """The number of bytes of each stream."""
        return {name: len(data) for name, data in self._streams.items()}

    def joined(self) -> bytes:
        """Return all streams one after another."""
        return b"".join(self._streams.values())

    def add(self, name: str, data: bytes) -> None:
        """Add bytes as they are; none are left out."""
        if data:
            self._streams[name] = data

    def add_numbers(self, name: str, values: Int64Array, groups: Int64Array | None = None) -> None:
        """Add integers from 0; ``groups`` (from 0) tell which of them may be alike."""
        symbols, shifts = _divided(values)
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
        """Return the symbols as differences from those of their groups, where that is shorter."""
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
    """Return the place at which each distinct value comes first, ascending."""
    _, places = np.unique(values, return_index=True)
    return np.sort(places)


def _divided(values: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return the symbol of each number, and how many bits lie below it."""
    bits = np.frexp(values.astype(np.float64))[1].astype(np.int64)
    shifts = np.maximum(bits - 1 - _MANTISSA_BITS, 0)
    shifts -= (shifts > 0) & (values >> shifts < 1 << _MANTISSA_BITS)  # rounded up to 2^n
    return (shifts << _MANTISSA_BITS) + (values >> shifts), shifts


def _bits(symbols: Int64Array) -> float:
    """Return how many bits the symbols take by their frequencies alone."""
    counts = np.bincount(symbols)
    counts = counts[counts > 0]
    return float(-(counts * np.log2(counts / len(symbols))).sum())


def zigzag(values: Int64Array) -> Int64Array:
    """Return integers from 0 for signed ones: 0, -1, 1, -2 … as 0, 1, 2, 3 …."""
    return np.where(values >= 0, 2 * values, -2 * values - 1)


def encode_varints(values: Int64Array | UInt64Array) -> bytes:
    """Return the numbers, each in as many bytes of 7 bits as it needs, least significant first."""
    if len(values) == 0:
        return b""
    rest = values.astype(np.uint64)
    n_bytes = np.ones(len(rest), np.int64)
    for bits in range(7, int(rest.max()).bit_length(), 7):
        n_bytes += rest >= np.uint64(1 << bits)
    places = np.concatenate(([0], np.cumsum(n_bytes)))
    out = np.empty(int(places[-1]), np.uint8)
    for k in range(int(n_bytes.max())):
        has_byte = n_bytes > k
        low = (rest[has_byte] & np.uint64(127)).astype(np.uint8)
        more = np.where(n_bytes[has_byte] > k + 1, 128, 0).astype(np.uint8)
        out[places[:-1][has_byte] + k] = low | more
        rest >>= np.uint64(7)
    return out.tobytes()


_DEVICE = "gpu"


def number_links(lanes: Lanes, order: Iterable[Channel]) -> Mapping[int, Int64Array]:
    """Return, by the id() of each channel with correlations, numbers that say the same in less.

    Equal numbers of one process are linked, as equal correlations are. They count up in the
    ``order`` of the channels; an event without a partner on the other side has ABSENT.
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
    found: dict[int, Int64Array] = {}
    for channels in by_process.values():
        columns = [c.correlations for c, _ in channels if c.correlations is not None]
        sides = np.repeat([is_device for _, is_device in channels], list(map(len, columns)))
        ends = np.cumsum(list(map(len, columns)))[:-1]
        numbers = np.split(_numbers(np.concatenate(columns), sides), ends)
        found |= {id(c): part for (c, _), part in zip(channels, numbers, strict=True)}
    return found


def _numbers(correlations: Int64Array, is_device: np.ndarray) -> Int64Array:
    values, first, place = np.unique(correlations, return_index=True, return_inverse=True)
    on_device = np.bincount(place[is_device], minlength=len(values)) > 0
    on_host = np.bincount(place[~is_device], minlength=len(values)) > 0
    linked = np.flatnonzero(on_device & on_host & (values != ABSENT))
    number = np.full(len(values), ABSENT)
    number[linked[np.argsort(first[linked])]] = np.arange(len(linked))
    return number[place]


def code_links(numbers: Int64Array) -> Int64Array:
    """Return 0 for events without a partner, else 1 and how far it is from the one that follows."""
    codes = np.zeros(len(numbers), np.int64)
    known = np.flatnonzero(numbers != ABSENT)
    codes[known] = 1 + zigzag(np.diff(numbers[known], prepend=ABSENT) - 1)
    return codes


_NUMBER: Final = re.compile(r"(?<![0-9])(0|[1-9][0-9]{0,14})(?![0-9])", re.ASCII)
_PLACE: Final = "\x01"  # `plain_text` leaves no such character in a name


def in_order_of_use(lanes: Lanes) -> Lanes:
    """Return the same lanes with names numbered as they come first, kind by kind of the rows.

    Names that no item has stand behind the others: several events may bear them that are one item.
    """
    kinds = channels_by_kind(lanes)
    channels = [c for kind, found in kinds.items() if kind != STATES for c in found]
    if not channels:
        return lanes
    every = np.concatenate([c.names[_are_single(c)] for c in channels])
    used, first = np.unique(every, return_index=True)
    order = np.append(used[np.argsort(first)], np.setdiff1d(np.arange(len(lanes.names)), used))
    place = np.zeros(len(lanes.names), np.int64)
    place[order] = np.arange(len(order))

    ordered = renumbered(lanes, place)
    return Lanes(ordered.groups, tuple(lanes.names[i] for i in order.tolist()))


def renumbered(lanes: Lanes, place: Int64Array) -> Lanes:
    """Return the same lanes, names at their ``place``; items of several events have none: 0."""
    if not len(place):
        return lanes
    return lanes.mapped(
        lambda channel: channel.changed(
            names=np.where(_are_single(channel), place[channel.names], 0)
        )
    )


def _are_single(channel: Channel) -> npt.NDArray[np.bool_]:
    if channel.counts is None:
        return np.ones(len(channel), np.bool_)
    return np.asarray(channel.counts == 1, np.bool_)


def code_names(names: Int64Array, n_before: int) -> tuple[Int64Array, int]:
    """Return 0 for a name that is the next new one, else its number and 1; and how many are known.

    ``n_before`` is one more than the greatest number so far.
    """
    if len(names) == 0:
        return names, n_before
    known = np.maximum.accumulate(np.concatenate(([n_before - 1], names)))
    return np.where(names == known[:-1] + 1, 0, names + 1), int(known[-1]) + 1


class Templates:
    """``names`` without their numbers; ``of_names`` is the template of each name."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        places: dict[str, int] = {}
        of_names = []
        numbers: list[list[list[str]]] = []
        for name in names:
            parts = _NUMBER.split(name)
            template = _PLACE.join(parts[::2])
            place = places.setdefault(template, len(places))
            if place == len(numbers):
                numbers.append([])
            of_names.append(place)
            numbers[place].append(parts[1::2])
        self.texts = tuple(places)
        self.of_names = np.array(of_names, np.int64)
        steps = [np.diff(np.array(own, np.int64).T, prepend=0) for own in numbers]
        flat = [part.reshape(-1) for part in steps if part.size]
        self._steps = zigzag(np.concatenate(flat) if flat else np.zeros(0, np.int64))

    def add_to(self, streams: Streams) -> None:
        """Add the template of each name, then of each template the numbers, place by place."""
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
    """Return the binary form of ``lanes``; ``head`` holds what else the page must know.

    Lanes without names are a part of others, whose page knows the names. ``merged`` are the totals
    of the events that have no item of their own. ``templates`` are those of the names, for who
    encodes them again; ``shown`` are those of exact lanes, where these are condensed.
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
    streams.add_numbers("names.alike", shown.alike, templates.of_names)
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
            "groups": [group.described(_described) for group in lanes.groups],
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


def _described(channel: Channel) -> dict[str, Any]:
    return {
        "category": CATEGORY_INDEX[channel.category],
        "n": len(channel),
        "first_ns": int(channel.starts[0]) if len(channel) else 0,
        "is_condensed": channel.counts is not None,
        "has_longest": channel.longest_ns is not None,
        "has_bytes": channel.n_bytes is not None,
        "has_links": channel.correlations is not None,
    }
