"""Places in time: links to them in the timeline of a page, and still pictures of them as SVG.

In a picture each device is a line of the five parts of its time, exact in every column: as high
as their share.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traceprof.measures.device.times import (
    device_times,
    devices_of_processes,
    part_of_device,
    recorded_times,
    used_devices,
)
from traceprof.model.activity import IDLE, PARTS
from traceprof.model.ranks import Ranks, gpus_of, measure_of_each
from traceprof.model.results import Result
from traceprof.model.tables import ABSENT
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace
from traceprof.render.charts.svg import drawing, element, text
from traceprof.render.escape import plain_text
from traceprof.render.formatting import is_known
from traceprof.render.page.document import Link
from traceprof.render.palette import category_of
from traceprof.render.shown import Row
from traceprof.units import format_duration, format_ratio

_LEAST_MARGIN_NS: Final = 1_000
_RANK: Final = re.compile(r"\brank (\d{1,6})\b")


def address_of(
    start_ns: int, end_ns: int, places: Mapping[str, Collection[int]] | None = None
) -> str:
    """Return the address of a span of a timeline, ns from the start of the run.

    The timeline shows it with a quarter of it on each side, marks it, and opens the lanes of
    ``places``: numbers by "rank" and "device".
    """
    margin = max(_LEAST_MARGIN_NS, (end_ns - start_ns) // 4)
    words = [f"#at={start_ns - margin}..{end_ns + margin}"]
    if end_ns > start_ns:
        words.append(f"mark={start_ns}..{end_ns}")
    for kind, numbers in (places or {}).items():
        known = sorted(number for number in numbers if number != ABSENT)
        if known:
            words.append(f"{kind}={'.'.join(map(str, known))}")
    return "&".join(words)


def link_to(
    run: TimeWindow,
    place: TimeWindow,
    shown: TimeWindow,
    places: Mapping[str, Collection[int]] | None = None,
) -> str | None:
    """Return the address of ``place`` within the page; None where its timeline ends before it.

    ``run`` is the whole run, whose start the address counts from.
    """
    if place.start_ns < shown.start_ns or place.end_ns > shown.end_ns:
        return None
    return address_of(place.start_ns - run.start_ns, place.end_ns - run.start_ns, places)


def links_of_rows(run: TimeWindow, shown: TimeWindow) -> Link:
    """Return a function that gives the address of a row with ``at_ns`` and ``duration_ns``."""

    def link(row: Row) -> str | None:
        at, duration = row["at_ns"], row.get("duration_ns", 0)
        if not (is_known(at) and is_known(duration)):
            return None
        start = run.start_ns + int(at)
        return link_to(run, TimeWindow(start, start + int(duration)), shown, places_of_row(row))

    return link


@dataclass(frozen=True, slots=True)
class Around:
    """What the page is about: the whole run, the window that is analysed, ranks by process.

    ``shown`` is what the timeline of the page has.
    """

    whole: Ranks
    window: TimeWindow
    shown: TimeWindow
    ranks: Mapping[int, int]

    @property
    def run(self) -> TimeWindow:
        """The whole run, after whose start addresses count."""
        return self.whole.span

    def link(self, at_ns: float, duration_ns: float, process: int | None = None) -> str:
        """Return the address of a place after the start of the run; "" where it is not shown."""
        if not (is_known(at_ns) and is_known(duration_ns)):
            return ""
        start = self.run.start_ns + int(at_ns)
        place = TimeWindow(start, start + int(duration_ns))
        rank = self.ranks.get(process) if process is not None else None
        named = {} if rank is None else {"rank": {rank}}
        return link_to(self.run, place, self.shown, named) or ""

    def steps(self, steps: Result | None) -> Callable[[int, int], str]:
        """Return what gives the address of a step of a process; "" where it is not shown."""
        places: dict[tuple[int, int], tuple[int, int]] = {}
        if steps is not None and "process" in steps.table:
            names = ("process", "step", "at_ns", "duration_ns")
            rows = zip(*(steps.table[name].tolist() for name in names), strict=True)
            places = {(process, step): (at, ns) for process, step, at, ns in rows}

        def link(process: int, step: int) -> str:
            known = places.get((process, step))
            return self.link(*known, process) if known else ""

        return link

    def who(self, process: int) -> str:
        """Return what a process is called."""
        rank = self.ranks.get(process)
        return f"process {process}" if rank is None else f"rank {rank}"


def places_of_row(row: Row) -> Mapping[str, Collection[int]]:
    """Return the rank and the device that a row of a table is about, as far as it says so."""
    found: dict[str, tuple[int, ...]] = {}
    for kind in ("rank", "device"):
        value: Any = row.get(kind)
        if is_known(value) and str(value).isdigit():
            found[kind] = (int(value),)
    return found


def ranks_named(*texts: str) -> Mapping[str, Collection[int]]:
    """Return the ranks that sentences name: "the others wait for rank 2"."""
    return {"rank": {int(number) for text in texts for number in _RANK.findall(text)}}


_WIDTH: Final = 720
_LEFT: Final = 128
_LINE: Final = 15
_GAP: Final = 4
_BOTTOM: Final = 18
_COLUMNS: Final = {"place": 148, "whole": 296}
_MOST_OF_A_PLACE: Final = 4
_MOST_OF_THE_WHOLE: Final = 64
_MOST_STEPS: Final = 24

_Shares = npt.NDArray[np.float64]


@dataclass(frozen=True)
class StillPictures:
    """Makes pictures of parts of the whole run ``ranks``."""

    ranks: Ranks

    @cached_property
    def _ranks(self) -> Mapping[int, int]:
        """The rank of the process of each device, where it has one."""
        table = self.ranks.table("processes")
        ranks = dict(zip(table["process"].tolist(), table["rank"].tolist(), strict=True))
        return {
            device: ranks.get(process, ABSENT)
            for part in self.ranks
            for process, devices in devices_of_processes(part).items()
            for device in devices
        }

    @cached_property
    def _gpus(self) -> Mapping[int, int]:
        """The first device of the GPU that each device is: ranks may share one."""
        first: dict[object, int] = {}
        gpus = {device: gpu[:2] for device, gpu in gpus_of(self.ranks).items()}
        return {device: first.setdefault(gpu, device) for device, gpu in gpus.items()}

    @cached_property
    def devices(self) -> list[int]:
        """The devices that worked, in the order of their ranks."""
        worked = [device for part in self.ranks for device in used_devices(part)]
        return sorted(worked, key=lambda n: (self._ranks.get(n, ABSENT), n))

    def of_place(self, place: TimeWindow, named: Mapping[str, Collection[int]]) -> str:
        """Return what devices did around ``place``, which is marked; "" where none worked.

        Those of ranks that are ``named`` ("rank") come first, four at most.
        """
        devices = self._concerned(named.get("rank", ()), place)
        if not devices:
            return ""
        around = max(1_000, place.duration_ns // 2)
        shown = TimeWindow(place.start_ns - around, place.end_ns + around) & self.ranks.span
        picture = _Picture(shown, len(devices), _COLUMNS["place"])
        words = self._words(place, devices)
        return picture.svg(
            f"{words}; at {self._time(place.start_ns)}, for {format_duration(place.duration_ns)}",
            [*self._lines(picture, devices), picture.mark(place), *self._ends(picture)],
            "chart place",
        )

    def of_whole(self, window: TimeWindow, steps: Sequence[tuple[str, int]]) -> str:
        """Return what devices did in ``window``, with the names and starts of ``steps``."""
        devices = self.devices[:_MOST_OF_THE_WHOLE]
        if not devices:
            return ""
        picture = _Picture(window, len(devices), _COLUMNS["whole"])
        every = max(1, -(-len(steps) // _MOST_STEPS))
        left_out = len(self.devices) - len(devices)
        more = f'<p class="note">{left_out} more GPUs are not shown.</p>' if left_out else ""
        svg = picture.svg(
            f"GPU activity from {self._time(window.start_ns)} to {self._time(window.end_ns)}",
            [
                *self._lines(picture, devices),
                *(picture.step(name, at) for name, at in steps[::every]),
                *self._ends(picture),
            ],
            "chart whole",
        )
        return svg + more

    def _concerned(self, named: Collection[int], place: TimeWindow) -> list[int]:
        """Return devices of ranks that are named, then those that were recorded at ``place``."""

        def order(device: int) -> tuple[bool, int]:
            recorded = recorded_times(part_of_device(self.ranks, device), device)
            inside_ns = recorded.clip(place.start_ns, place.end_ns).total_ns
            return self._ranks.get(device, ABSENT) not in named, -inside_ns

        first = sorted(self.devices, key=order)[:_MOST_OF_A_PLACE]
        return sorted(first, key=self.devices.index)

    def _name(self, device: int) -> str:
        rank = self._ranks.get(device, ABSENT)
        number = f"GPU {self._gpus.get(device, device)}"
        return number if rank == ABSENT else f"rank {rank} · {number}"

    def _time(self, at_ns: int) -> str:
        return format_duration(at_ns - self.ranks.span.start_ns)

    def _words(self, place: TimeWindow, devices: Sequence[int]) -> str:
        """Return the largest part of each device in ``place``, in words."""
        edges = np.array([place.start_ns, max(place.end_ns, place.start_ns + 1)])
        words = []
        for device, shares in zip(devices, self._shares(devices, edges), strict=True):
            largest = max(PARTS, key=lambda part: shares[part][0])
            share = format_ratio(float(shares[largest][0]))
            words.append(f"{self._name(device)} {category_of(largest).label.lower()} {share}")
        return "; ".join(words)

    def _shares(
        self, devices: Sequence[int], edges: npt.NDArray[np.int64]
    ) -> list[dict[str, _Shares]]:
        """Return the shares of each of ``devices``, as `_shares_of` does."""
        parts = [part_of_device(self.ranks, device) for device in devices]
        return measure_of_each(parts, _shares_of, [(device, edges) for device in devices])

    def _lines(self, picture: _Picture, devices: Sequence[int]) -> Iterator[str]:
        shares = self._shares(devices, picture.edges)
        for line, (device, own) in enumerate(zip(devices, shares, strict=True)):
            yield picture.label(line, self._name(device))
            yield from picture.parts(line, own)

    def _ends(self, picture: _Picture) -> Iterator[str]:
        window = picture.window
        yield picture.time(window.start_ns, self._time(window.start_ns), "start")
        yield picture.time(window.end_ns, self._time(window.end_ns), "end")


def _shares_of(trace: Trace, device: int, edges: npt.NDArray[np.int64]) -> dict[str, _Shares]:
    """Return the share of each part between neighbouring ``edges``: one where recorded."""
    lengths = np.maximum(1, np.diff(edges))
    own = device_times(trace)[device].clip(int(edges[0]), int(edges[-1])).parts()
    found = {part: times.covered_ns(edges[:-1], edges[1:]) / lengths for part, times in own.items()}
    known = recorded_times(trace, device).covered_ns(edges[:-1], edges[1:]) / lengths
    found[IDLE] = np.maximum(0.0, known - sum(found.values(), np.zeros(len(lengths))))
    return found


@dataclass(frozen=True)
class _Picture:
    """Where times and lines are, in pixels."""

    window: TimeWindow
    n_lines: int
    n_columns: int

    @cached_property
    def edges(self) -> npt.NDArray[np.int64]:
        """Where the columns begin and end."""
        n_columns = max(1, min(self.n_columns, self.window.duration_ns))
        return np.linspace(self.window.start_ns, self.window.end_ns, n_columns + 1).astype(np.int64)

    @property
    def _height(self) -> int:
        return self.n_lines * (_LINE + _GAP)

    def x(self, at_ns: int) -> float:
        share = (at_ns - self.window.start_ns) / max(1, self.window.duration_ns)
        return _LEFT + (_WIDTH - _LEFT) * min(1.0, max(0.0, share))

    def label(self, line: int, name: str) -> str:
        y = line * (_LINE + _GAP) + _LINE - 3
        return text(_LEFT - 6, y, plain_text(name, 40), "end")

    def parts(self, line: int, shares: Mapping[str, _Shares]) -> Iterator[str]:
        """Return a path per part: in each column it stands on those before it."""
        top = line * (_LINE + _GAP)
        xs = [self.x(int(edge)) for edge in self.edges]
        below = np.zeros(len(xs) - 1)
        for part in PARTS:
            above = below + shares[part]
            path = "".join(_columns(xs, top + _LINE * (1 - above), _LINE * (above - below)))
            if path:
                yield element("path", d=path, style=f"fill:var(--{part})")
            below = above

    def mark(self, place: TimeWindow) -> str:
        left, right = self.x(place.start_ns), self.x(place.end_ns)
        width = max(2.0, right - left)
        return element("rect", class_="mark", x=left, y=-2, width=width, height=self._height)

    def step(self, name: str, at_ns: int) -> str:
        if not self.window.start_ns <= at_ns <= self.window.end_ns:
            return ""
        x = self.x(at_ns)
        line = element("line", class_="step", x1=x, x2=x, y1=0, y2=self._height)
        return line + text(x + 2, self._height + 24, plain_text(name, 20))

    def time(self, at_ns: int, words: str, anchor: str) -> str:
        return text(self.x(at_ns), self._height + 11, words, anchor)

    def svg(self, label: str, parts: Sequence[str], kind: str) -> str:
        height = self._height + _BOTTOM + (12 if "whole" in kind else 0)
        return drawing((_WIDTH, height + 3), kind, label, *parts, top=-3)


def _columns(xs: Sequence[float], tops: _Shares, heights: _Shares) -> Iterator[str]:
    """Yield the boxes of a part; neighbours that are equal are one."""
    start = 0
    for i in range(1, len(heights) + 1):
        both = (own[i : i + 1] - own[start] for own in (tops, heights))
        if i < len(heights) and all(abs(by[0]) < 0.05 for by in both):
            continue
        if heights[start] > 0.01:
            width = xs[i] - xs[start]
            yield (
                f"M{xs[start]:.1f} {tops[start]:.1f}h{width:.1f}v{heights[start]:.1f}h{-width:.1f}z"
            )
        start = i
