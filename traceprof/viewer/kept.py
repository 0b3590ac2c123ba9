"""The lanes of a viewer in a file: columns one after another, then a JSON head that names them.

What is read is mapped, not loaded: a start takes no longer for more events, and the system takes
the memory back when it needs it.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

from traceprof.model.grouping import compact
from traceprof.render.timeline.channels import Channel, Group, Lanes, NameTotals, Row
from traceprof.render.timeline.samples import SampleSeries
from traceprof.viewer.pyramid import COLUMNS, Level
from traceprof.viewer.timeline import About, Timeline

__all__ = ["read_timeline", "write_timeline"]

_ALIGNED_BYTES: Final = 8
_INSTANTS: Final = ("starts", "ends")
"""These stay 64 bits wide: binary searches would convert the whole of a narrower column."""

_Column = npt.NDArray[Any]


def write_timeline(timeline: Timeline, path: Path) -> None:
    """Write ``timeline`` with all its levels; of these those of one channel are there at a time."""
    with path.open("wb") as file:
        columns = _Columns(file)

        def channel(own: Channel) -> dict[str, Any]:
            levels = [
                {"bin_ns": level.bin_ns, **columns.of_channel(level.channel)}
                for level in timeline.build_levels(own)
            ]
            return {"category": own.category, "levels": levels}

        head = {
            "groups": [group.described(channel) for group in timeline.lanes.groups],
            "names": timeline.lanes.names,
            "samples": [
                {
                    "metric": series.metric,
                    "source": series.source,
                    "times": columns.add(series.times),
                    "values": columns.add(series.values),
                }
                for series in timeline.samples
            ],
            "counts": columns.add(timeline.totals.counts),
            "times": columns.add(timeline.totals.times_ns),
            "page": timeline.head,
            "about": timeline.about._asdict(),
        }
        packed = json.dumps(head).encode()
        start = file.tell()
        file.write(packed)
        file.write(b"".join(n.to_bytes(8, "little") for n in (start, len(packed))))


def read_timeline(path: Path) -> Timeline:
    """Return what `write_timeline` wrote; the file may lose its name meanwhile, not its content."""
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    start, length = (int.from_bytes(part, "little") for part in (mapped[-16:-8], mapped[-8:]))
    head = json.loads(mapped[start : start + length])
    levels: dict[Channel, tuple[Level, ...]] = {}

    def column(place: tuple[int, int, str]) -> _Column:
        offset, n, kind = place
        return np.frombuffer(mapped, np.dtype(kind), n, offset)

    def channel(told: Mapping[str, Any]) -> Channel:
        found = tuple(
            Level(level["bin_ns"], _channel(told["category"], level, column))
            for level in told["levels"]
        )
        levels[found[0].channel] = found
        return found[0].channel

    groups = tuple(_group(told, channel) for told in head["groups"])
    samples = [
        SampleSeries(s["metric"], s["source"], column(s["times"]), column(s["values"]))
        for s in head["samples"]
    ]
    totals = NameTotals(column(head["counts"]), column(head["times"]))
    about = head["about"]
    return Timeline(
        lanes=Lanes(groups, tuple(head["names"])),
        samples=samples,
        totals=totals,
        head=head["page"],
        about=About(**{**about, "warnings": tuple(about["warnings"])}),
        levels=levels,
    )


class _Columns:
    """Writes columns, each at an aligned place, as narrow as its values allow."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def of_channel(self, channel: Channel) -> dict[str, Any]:
        """Return the places of the columns that ``channel`` has."""
        values = {name: getattr(channel, name) for name in COLUMNS}
        return {
            name: self.add(value if name in _INSTANTS else compact(value))
            for name, value in values.items()
            if value is not None
        }

    def add(self, values: _Column) -> tuple[int, int, str]:
        """Return the place, the number and the kind of the values that were written."""
        place = -(-self._file.tell() // _ALIGNED_BYTES) * _ALIGNED_BYTES
        self._file.write(b"\0" * (place - self._file.tell()))
        self._file.write(np.ascontiguousarray(values).data)
        return place, len(values), values.dtype.str


def _channel(category: str, told: Mapping[str, Any], column: Callable[[Any], _Column]) -> Channel:
    return Channel(category, **{name: column(told[name]) for name in COLUMNS if name in told})


def _group(told: dict[str, Any], channel: Callable[[Any], Channel]) -> Group:
    def rows() -> Iterator[Row]:
        for row in told["rows"]:
            yield Row(row["label"], row["kind"], tuple(map(channel, row["channels"])))

    return Group(**{**told, "rows": tuple(rows()), "states": tuple(map(channel, told["states"]))})
