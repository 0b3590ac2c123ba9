"""Link to time spans in the timeline of a page, and draw still pictures of time spans as SVG.

A picture has one line per device. Each pixel column of a line stacks the five parts of the
device's time; the height of a part is its exact share of the column.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from traceprof.measures.device.times import (
    device_times,
    devices_of_processes,
    recorded_times,
    trace_of_device,
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
from traceprof.render.formatting import is_known, process_label
from traceprof.render.page.document import Link
from traceprof.render.palette import category_of
from traceprof.render.shown import Row
from traceprof.units import format_duration, format_ratio

_MIN_MARGIN_NS: Final = 1_000
_RANK: Final = re.compile(r"\brank (\d{1,6})\b")


def address_of(
    start_ns: int, end_ns: int, places: Mapping[str, Collection[int]] | None = None
) -> str:
    """Return the URL fragment of a time span in a timeline, in ns from the start of the run.

    The timeline shows the span with a margin of a quarter of its length on each side, marks the
    span, and opens the lanes of ``places``: numbers by "rank" and "device".
    """
    margin = max(_MIN_MARGIN_NS, (end_ns - start_ns) // 4)
    parameters = [f"#at={start_ns - margin}..{end_ns + margin}"]
    if end_ns > start_ns:
        parameters.append(f"mark={start_ns}..{end_ns}")
    for kind, numbers in (places or {}).items():
        known = sorted(number for number in numbers if number != ABSENT)
        if known:
            parameters.append(f"{kind}={'.'.join(map(str, known))}")
    return "&".join(parameters)


def link_to(
    run: TimeWindow,
    place: TimeWindow,
    shown: TimeWindow,
    places: Mapping[str, Collection[int]] | None = None,
) -> str | None:
    """Return the address of ``place`` in the page; None if the timeline does not contain it.

    ``run`` is the time span of the whole run: times in the address count from its start.
    ``shown`` is the time span of the timeline.
    """
    if place.start_ns < shown.start_ns or place.end_ns > shown.end_ns:
        return None
    return address_of(place.start_ns - run.start_ns, place.end_ns - run.start_ns, places)


def links_of_rows(run: TimeWindow, shown: TimeWindow) -> Link:
    """Return a function that gives the address of a row from its ``at_ns`` and ``duration_ns``.

    ``run`` and ``shown`` are those of `link_to`. The address is None if a time is unknown.
    """

    def link(row: Row) -> str | None:
        place = _window_at(run, row["at_ns"], row.get("duration_ns", 0))
        return None if place is None else link_to(run, place, shown, places_of_row(row))

    return link


def _window_at(run: TimeWindow, at_ns: float, duration_ns: float) -> TimeWindow | None:
    """Return the window ``at_ns`` after the start of ``run``; None if a time is unknown."""
    if not (is_known(at_ns) and is_known(duration_ns)):
        return None
    start = run.start_ns + int(at_ns)
    return TimeWindow(start, start + int(duration_ns))


@dataclass(frozen=True, slots=True)
class PageContext:
    """What a figure knows about its page.

    ``whole`` is the whole run, ``window`` the analyzed window, ``shown`` the time span of the
    page's timeline, and ``ranks`` maps processes to ranks.
    """

    whole: Ranks
    window: TimeWindow
    shown: TimeWindow
    ranks: Mapping[int, int]

    @property
    def run(self) -> TimeWindow:
        """The time span of the whole run. Times in addresses count from its start."""
        return self.whole.span

    def link(self, at_ns: float, duration_ns: float, process: int | None = None) -> str:
        """Return the address of a time span, ``at_ns`` after the start of the run.

        Returns "" if a time is unknown or the timeline does not contain the span.
        """
        place = _window_at(self.run, at_ns, duration_ns)
        if place is None:
            return ""
        rank = self.ranks.get(process) if process is not None else None
        lanes = {} if rank is None else {"rank": {rank}}
        return link_to(self.run, place, self.shown, lanes) or ""

    def step_link(self, steps: Result | None) -> Callable[[int, int], str]:
        """Return a function that gives the address of a step from its process and number.

        The address is "" if the timeline does not contain the step.
        """
        places: dict[tuple[int, int], tuple[int, int]] = {}
        if steps is not None and "process" in steps.table:
            names = ("process", "step", "at_ns", "duration_ns")
            rows = zip(*(steps.table[name].tolist() for name in names), strict=True)
            places = {(process, step): (at, ns) for process, step, at, ns in rows}

        def link(process: int, step: int) -> str:
            place = places.get((process, step))
            return self.link(*place, process) if place else ""

        return link

    def process_label(self, process: int) -> str:
        """Return "rank N", or "process N" if the rank is unknown."""
        return process_label(process, self.ranks.get(process))


def places_of_row(row: Row) -> Mapping[str, Collection[int]]:
    """Return the rank and the device of a table row, by "rank" and "device", if it has them."""
    values = {kind: str(row.get(kind)) for kind in ("rank", "device")}
    return {kind: (int(value),) for kind, value in values.items() if value.isdigit()}


def ranks_named(*texts: str) -> Mapping[str, Collection[int]]:
    """Return the ranks that sentences name: {2} by "rank" for "the others wait for rank 2"."""
    return {"rank": {int(number) for text in texts for number in _RANK.findall(text)}}


_WIDTH: Final = 720
_LEFT: Final = 128
_LINE: Final = 15
_GAP: Final = 4
_BOTTOM: Final = 18
_PLACE_COLUMNS: Final = 148
_WHOLE_COLUMNS: Final = 296
_MAX_PLACE_DEVICES: Final = 4
_MAX_WHOLE_DEVICES: Final = 64
_MAX_STEP_LABELS: Final = 24

_Shares = npt.NDArray[np.float64]


@dataclass(frozen=True)
class StillPictures:
    """Draws still pictures of time spans of the run ``ranks``."""

    ranks: Ranks

    @cached_property
    def _ranks(self) -> Mapping[int, int]:
        """The rank of each device's process; ABSENT if unknown."""
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
        """For each device, the first device on the same GPU, because ranks may share a GPU."""
        first: dict[object, int] = {}
        gpus = {device: gpu[:2] for device, gpu in gpus_of(self.ranks).items()}
        return {device: first.setdefault(gpu, device) for device, gpu in gpus.items()}

    @cached_property
    def devices(self) -> list[int]:
        """The devices with activity, in the order of their ranks."""
        used = [device for part in self.ranks for device in used_devices(part)]
        return sorted(used, key=lambda device: (self._ranks.get(device, ABSENT), device))

    def of_place(self, place: TimeWindow, named: Mapping[str, Collection[int]]) -> str:
        """Return a picture of device activity before, in, and after ``place``, which is marked.

        It shows at most four devices; those of the ranks in ``named["rank"]`` come first. Returns
        "" if no device has activity.
        """
        devices = self._devices_at(place, named.get("rank", ()))
        if not devices:
            return ""
        margin_ns = max(_MIN_MARGIN_NS, place.duration_ns // 2)
        shown = TimeWindow(place.start_ns - margin_ns, place.end_ns + margin_ns) & self.ranks.span
        picture = _Picture(shown, len(devices), _PLACE_COLUMNS)
        return picture.svg(
            f"{self._largest_parts(place, devices)}; at {self._time(place.start_ns)}, "
            f"for {format_duration(place.duration_ns)}",
            [*self._lines(picture, devices), picture.mark(place), *self._ends(picture)],
            "chart place",
        )

    def of_whole(self, window: TimeWindow, steps: Sequence[tuple[str, int]]) -> str:
        """Return a picture of device activity in ``window``; "" if no device has activity.

        ``steps`` are names and start times of steps, which the picture marks.
        """
        devices = self.devices[:_MAX_WHOLE_DEVICES]
        if not devices:
            return ""
        picture = _Picture(window, len(devices), _WHOLE_COLUMNS)
        every = max(1, -(-len(steps) // _MAX_STEP_LABELS))
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

    def _devices_at(self, place: TimeWindow, first_ranks: Collection[int]) -> list[int]:
        """Return the devices of ``first_ranks``, then those that were recorded most in ``place``.

        At most four are returned, in the order of `devices`.
        """

        def order(device: int) -> tuple[bool, int]:
            recorded = recorded_times(trace_of_device(self.ranks, device), device)
            inside_ns = recorded.clip(place.start_ns, place.end_ns).total_ns
            return self._ranks.get(device, ABSENT) not in first_ranks, -inside_ns

        chosen = sorted(self.devices, key=order)[:_MAX_PLACE_DEVICES]
        return sorted(chosen, key=self.devices.index)

    def _label(self, device: int) -> str:
        rank = self._ranks.get(device, ABSENT)
        gpu = f"GPU {self._gpus.get(device, device)}"
        return gpu if rank == ABSENT else f"rank {rank} · {gpu}"

    def _time(self, at_ns: int) -> str:
        return format_duration(at_ns - self.ranks.span.start_ns)

    def _largest_parts(self, place: TimeWindow, devices: Sequence[int]) -> str:
        """Return a sentence with the largest part of each device's time in ``place``."""
        edges = np.array([place.start_ns, max(place.end_ns, place.start_ns + 1)])
        labels = []
        for device, shares in zip(devices, self._shares(devices, edges), strict=True):
            largest = max(PARTS, key=lambda part: shares[part][0])
            share = format_ratio(float(shares[largest][0]))
            labels.append(f"{self._label(device)} {category_of(largest).label.lower()} {share}")
        return "; ".join(labels)

    def _shares(
        self, devices: Sequence[int], edges: npt.NDArray[np.int64]
    ) -> list[dict[str, _Shares]]:
        """Return the result of `_shares_of` for each of ``devices``."""
        parts = [trace_of_device(self.ranks, device) for device in devices]
        return measure_of_each(parts, _shares_of, [(device, edges) for device in devices])

    def _lines(self, picture: _Picture, devices: Sequence[int]) -> Iterator[str]:
        shares = self._shares(devices, picture.edges)
        for line, (device, device_shares) in enumerate(zip(devices, shares, strict=True)):
            yield picture.label(line, self._label(device))
            yield from picture.parts(line, device_shares)

    def _ends(self, picture: _Picture) -> Iterator[str]:
        window = picture.window
        yield picture.time(window.start_ns, self._time(window.start_ns), "start")
        yield picture.time(window.end_ns, self._time(window.end_ns), "end")


def _shares_of(trace: Trace, device: int, edges: npt.NDArray[np.int64]) -> dict[str, _Shares]:
    """Return the share of each part of ``device``'s time in each interval between ``edges``.

    The shares of an interval add up to its recorded share, which is 1 if all of it was recorded.
    """
    lengths = np.maximum(1, np.diff(edges))
    parts = device_times(trace)[device].clip(int(edges[0]), int(edges[-1])).parts()
    shares = {
        part: times.covered_ns(edges[:-1], edges[1:]) / lengths for part, times in parts.items()
    }
    recorded = recorded_times(trace, device).covered_ns(edges[:-1], edges[1:]) / lengths
    shares[IDLE] = np.maximum(0.0, recorded - sum(shares.values(), np.zeros(len(lengths))))
    return shares


@dataclass(frozen=True)
class _Picture:
    """Maps times and lines to pixels and returns the SVG elements of a picture."""

    window: TimeWindow
    n_lines: int
    n_columns: int

    @cached_property
    def edges(self) -> npt.NDArray[np.int64]:
        """The times at which the columns begin and end, in ns."""
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
        """Yield one path per part, stacked on the parts before it in every column."""
        top = line * (_LINE + _GAP)
        xs = [self.x(int(edge)) for edge in self.edges]
        lower = np.zeros(len(xs) - 1)
        for part in PARTS:
            upper = lower + shares[part]
            path = "".join(_boxes(xs, top + _LINE * (1 - upper), _LINE * (upper - lower)))
            if path:
                yield element("path", d=path, style=f"fill:var(--{part})")
            lower = upper

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


def _boxes(xs: Sequence[float], tops: _Shares, heights: _Shares) -> Iterator[str]:
    """Yield the boxes of a part as path commands; equal neighbors (within 0.05 px) are merged."""
    start = 0
    for i in range(1, len(heights) + 1):
        if i < len(heights) and all(abs(ys[i] - ys[start]) < 0.05 for ys in (tops, heights)):
            continue
        if heights[start] > 0.01:
            width = xs[i] - xs[start]
            yield (
                f"M{xs[start]:.1f} {tops[start]:.1f}h{width:.1f}v{heights[start]:.1f}h{-width:.1f}z"
            )
        start = i
