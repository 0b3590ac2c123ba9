"""Find the pair of steps in which each row of a comparison changes most, and draw flame graphs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final
from urllib.parse import quote

import numpy as np

from traceprof.comparison.difference import canonical_name
from traceprof.measures.composition import (
    COLLECTIVE,
    WAITING,
    released_collectives,
    work_of_trace,
)
from traceprof.measures.device.times import device_time, used_devices
from traceprof.measures.host.states import phase_times
from traceprof.measures.idle.charges import find_charges
from traceprof.measures.rows import Ints, bounds, span_at
from traceprof.measures.steps.ledger import CUT, INCOMPLETE, WARMUP, step_ledger
from traceprof.model.activity import BUSY_PARTS, IDLE
from traceprof.model.grouping import grouped_by, joined
from traceprof.model.ranks import Ranks
from traceprof.model.results import Result
from traceprof.model.table import Table
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace
from traceprof.render.charts.flame import FlameMeasure, flame_graph
from traceprof.render.escape import html_text
from traceprof.render.shown import Row
from traceprof.render.timeline.beside import WHOLE, SideBySideTimeline, TimelineSide
from traceprof.session.answer import answer
from traceprof.session.run import run_of

_MEASURES: Final = (
    FlameMeasure("GPU time", "ns", "new_device_ns", "base_device_ns"),
    FlameMeasure("CPU time", "ns", "new_host_ns", "base_host_ns"),
)
_ABOUT: Final = (
    "Width: time of base and new together. Orange boxes take longer in the new run, green boxes "
    "take less time. Point at a box to see both times."
)
_MAX_NAME_LETTERS: Final = 600
"""The summary of a run keeps this many letters of a kernel name."""
_MAX_FIND_LETTERS: Final = 200
"""The timeline searches for at most this many letters."""
_MAX_FLAMES: Final = 12
_MAX_ZOOM: Final = 50
"""A place is shown in at most this many times its own length."""
_KERNELS: Final = "kernels"
_PHASES: Final = "phases"
"""Values of the column part for rows that are not a part of GPU time."""
_KEYS: Final = ("part", "kind", "name")
_COMMUNICATION: Final = "exposed_communication"
_CHANGES: Final = ("difference_ns", "host_difference_ns", "device_difference_ns")


@dataclass(frozen=True, slots=True)
class StepPair:
    """The same step of two recordings.

    ``spans`` are its start and end on the clock of each side, in ns after the start of the side's
    span. ``on_axis`` is its span on the common axis. ``address`` is the URL fragment that shows
    both steps.
    """

    label: str
    spans: tuple[tuple[int, int], ...]
    on_axis: tuple[int, int]

    def address(self, mark: tuple[int, int] | None = None) -> str:
        """Return the URL fragment that selects ``mark`` on the axis, or both steps.

        A short mark is shown in a part of the steps.
        """
        (left, right), (start, end) = self.on_axis, mark or self.on_axis
        edge, reach = max(1, (right - left) // 50), _MAX_ZOOM * (end - start) // 2
        left, right = max(left - edge, start - reach), min(right + edge, end + reach)
        return f"#at={left}..{right}&mark={start}..{end}"


def pairs_of(beside: SideBySideTimeline) -> list[StepPair]:
    """Return the steps that both sides have; warm-up, cut, and incomplete ones only without others.

    Without steps, both recordings are the only pair.
    """
    axis, usable = beside.axis, []
    for side in beside.sides:
        ledger = step_ledger(Ranks.of(side.trace))
        starts = ledger["start_ns"][~np.isin(ledger["kind"], (WARMUP, INCOMPLETE, CUT))]
        usable.append(set((starts - side.span.start_ns).tolist()))
    pairs = [
        StepPair("both recordings" if label.startswith(WHOLE) else label, spans, on_axis)
        for label, spans, on_axis in zip(
            axis.labels,
            zip(*axis.step_spans, strict=True),
            zip(axis.starts, axis.ends, strict=True),
            strict=True,
        )
        if None not in spans
    ]
    kept = [
        pair
        for pair in pairs
        if all(span[0] in starts for span, starts in zip(pair.spans, usable, strict=True))
    ]
    return kept or pairs


def typical_pair(beside: SideBySideTimeline) -> StepPair | None:
    """Return the pair of steps nearest to the median step time of both sides; None if none match.

    Without steps, both recordings are the pair.
    """
    pairs = pairs_of(beside)
    if not pairs:
        return None
    lengths = np.array([[end - start for start, end in pair.spans] for pair in pairs], np.float64)
    relative = lengths / np.maximum(np.median(lengths, axis=0), 1)
    return pairs[int(np.abs(relative - 1).sum(axis=1).argmin())]


@dataclass(frozen=True, slots=True)
class _SideTimes:
    """What took time on one side: ``keys`` are the causes, ``times`` their events.

    ``times`` also has cause (a row of ``keys``) and step (the index of the pair; -1 for none).
    ``sums`` are the ns by cause and pair, per device.
    """

    keys: Table
    times: Table
    sums: Any

    @classmethod
    def of(cls, side: TimelineSide, spans: Sequence[tuple[int, int]]) -> _SideTimes:
        """Return what took time in each of the steps of one side, which ``spans`` holds."""
        times = _times_by_cause(side.trace.within(side.span))
        keys, groups = grouped_by(times, *_KEYS)
        starts, ends = np.array(spans, np.int64).reshape(-1, 2).T
        step = span_at(starts, ends, times["start_ns"] - side.span.start_ns)
        place = (groups.number * len(spans) + step)[step >= 0]
        sums = np.bincount(place, times["ns"][step >= 0], len(keys) * len(spans))
        per_device = sums.reshape(len(keys), len(spans)) / max(1, len(used_devices(side.trace)))
        return cls(keys, times.assign(cause=groups.number, step=step), per_device)

    def are_meant(self, wanted: Mapping[str, str]) -> Any:
        """Return a mask of the causes that a row of the comparison is about."""
        columns = zip(*(np.asarray(self.keys[name]).tolist() for name in wanted), strict=True)
        texts = tuple(wanted.values())
        return np.array([all(map(_is_meant, names, texts)) for names in columns], np.bool_)


def _is_meant(known: str, text: str) -> bool:
    """Return whether two names mean the same; idle time without a name has one in parentheses."""
    return (
        known[:_MAX_NAME_LETTERS] == text
        or (not known and text.startswith("("))
        or ("<" in text and "<" in known and canonical_name(known) == canonical_name(text))
    )


class Changes:
    """Leads from each row of a comparison to the place where it changes most.

    ``pairs`` are the measured steps of both sides, ``used`` those that rows lead to, the typical
    one first.
    """

    def __init__(self, beside: SideBySideTimeline) -> None:
        """Find the pairs of steps of ``beside``."""
        self.beside = beside
        self.pairs = pairs_of(beside)
        self.typical = typical_pair(beside)
        self.used = dict.fromkeys(filter(None, [self.typical]))

    @cached_property
    def _sides(self) -> list[_SideTimes]:
        spans = zip(*(pair.spans for pair in self.pairs), strict=True)
        return [_SideTimes.of(*each) for each in zip(self.beside.sides, spans, strict=True)]

    def link(self, row: Row) -> str | None:
        """Return the address of the place where a row changes most; None without common steps.

        The pair of steps is the one with the largest change in the direction of the row. The place
        is on the side that takes longer. Other rows lead to the typical pair.
        """
        wanted = _wanted(row)
        change = next((row[name] for name in _CHANGES if row.get(name)), 0)
        if self.typical is None:
            return None
        if not wanted or not change:
            return self.typical.address()
        before = {"name": str(row.get("base_name") or wanted.get("name"))}
        names = (wanted | (before if "name" in wanted else {}), wanted)
        meant = [side.are_meant(texts) for side, texts in zip(self._sides, names, strict=True)]
        base, new = (
            side.sums[chosen].sum(axis=0) for side, chosen in zip(self._sides, meant, strict=True)
        )
        more = (new - base) * np.sign(change)
        if more.max() <= 0:
            return self.typical.address()
        step, number = int(more.argmax()), int(change > 0)
        pair = self.pairs[step]
        self.used[pair] = None
        base_times, new_times = (
            side.times.take(chosen[side.times["cause"]] & (side.times["step"] == step))
            for side, chosen in zip(self._sides, meant, strict=True)
        )
        place = _largest(*((new_times, base_times) if number else (base_times, new_times)))
        return self._address(pair, number, place, names[number])

    def _address(self, pair: StepPair, number: int, place: Row, names: Mapping[str, str]) -> str:
        """Return the URL fragment that shows an event of side ``number`` in a pair of steps."""
        clock, zero = self.beside.axis.clocks[number], self.beside.sides[number].span.start_ns
        start = int(clock.starts(np.array([place["start_ns"] - zero]))[0])
        end = max(start + 1, int(clock.ends(np.array([place["end_ns"] - zero]))[0]))
        lanes = "".join(f"&{w}={place[w]}" for w in ("device", "rank") if place[w] != ABSENT)
        find = names.get("name", "")[:_MAX_FIND_LETTERS] if names.get("part") == _KERNELS else ""
        find = f"&find={quote(find)}" if find else ""
        return f"{pair.address((start, end))}&side={number}{lanes}{find}"


def _wanted(row: Row) -> dict[str, str]:
    """Return the columns of `_times_by_cause` that a row of a table is about; {} if unknown."""
    if "phase" in row:
        return {"part": _PHASES, "kind": str(row["phase"])}
    if "part" not in row and "activity" in row:
        column, key = ("name", "name") if "name" in row else ("kind", "activity")
        return {"part": _KERNELS, column: str(row[key])}
    return {name: str(row[name]) for name in _KEYS if name in row} if "part" in row else {}


def _largest(events: Table, other: Table) -> Row:
    """Return the event of ``events`` that takes most time.

    If both sides have equally many events, each is compared with its counterpart, in order of
    device and start.
    """
    events, other = (table.in_order("device", "start_ns") for table in (events, other))
    more = events["ns"] - other["ns"] if len(events) == len(other) else events["ns"]
    return events.row(int(more.argmax()))


def _times_by_cause(trace: Trace) -> Table:
    """Return what took time in the window of ``trace``: a row for each event.

    Columns: part, kind, and name (those of `composition_of_devices`, or `_KERNELS` with the class
    and the name of a kernel, or `_PHASES` with the phase as kind), start_ns, end_ns, ns, device,
    and rank (`ABSENT`: the other one names the lane). ns is the duration; of work of a device, the
    time that is exposed. The kernel of a collective is a row, too: only the order of steps counts.
    """
    kernels, charges = trace.kernels, find_charges(trace).times
    known = trace.processes
    ranks = dict(zip(known["process"].tolist(), known["rank"].tolist(), strict=True))
    found = [
        _rows(bounds(kernels), kernels["device"], _KERNELS, kernels["activity"], kernels["name"]),
        _rows(bounds(charges), charges["device"], IDLE, charges["cause"], charges["name"]),
    ]
    for process, phases in phase_times(trace).items():
        for phase, times in phases.items():
            rows = _rows((times.starts, times.ends), ABSENT, _PHASES, phase, "")
            found.append(rows.assign(rank=ranks.get(process, ABSENT)))
    released = released_collectives(Ranks.of(trace), knows_waits=True)
    work = work_of_trace(trace)
    for device in used_devices(trace):
        exposed = device_time(trace, device).parts()
        collectives = released.take(released["device"] == device)
        (starts, ends), release = bounds(collectives), collectives["release_ns"]
        for kind, name, spans in (
            (WAITING, "waits_for", (starts, release)),
            (COLLECTIVE, "op", (release, ends)),
        ):
            rows = _rows((starts, ends), device, _COMMUNICATION, kind, collectives[name])
            found.append(rows.assign(ns=exposed[_COMMUNICATION].covered_ns(*spans)))
        for place, part in enumerate(BUSY_PARTS):
            here = work.take((work["device"] == device) & (work["place"] == place))
            rows = _rows(bounds(here), device, part, here["kind"], here["name"])
            found.append(rows.assign(ns=exposed[part].covered_ns(*bounds(here))))
    return Table.stacked(found)


def _rows(spans: tuple[Ints, Ints], device: Any, part: str, kind: Any, name: Any) -> Table:
    starts, ends = spans
    return Table(
        {
            "start_ns": starts,
            "end_ns": ends,
            "ns": ends - starts,
            "device": device,
            "rank": ABSENT,
            "part": part,
            "kind": kind,
            "name": name,
        },
        len(starts),
    )


def flames_of(changes: Changes) -> Iterator[tuple[StepPair, str]]:
    """Yield the pairs of steps that rows lead to, with their flame graphs; only one is visible."""
    hidden = ""
    for pair in [*changes.used][:_MAX_FLAMES]:
        if flame := pair_flame(changes.beside, pair):
            start, end = pair.on_axis
            yield (
                pair,
                f'<div class="pair" data-from="{start}" data-to="{end}"{hidden}>'
                f'<p class="note">{step_links([pair], "Show ")}</p>{flame}</div>',
            )
            hidden = " hidden"


def step_links(pairs: Sequence[StepPair], before: str = "") -> str:
    """Return links that show pairs of steps in the timeline."""
    return ", ".join(
        f'<a href="{pair.address()}">{before}{html_text(pair.label)}</a>' for pair in pairs
    )


def pair_flame(beside: SideBySideTimeline, pair: StepPair) -> str:
    """Return the differential flame graph of a pair of steps; "" if the sides share no names."""
    for name in ("function-stacks", "tree"):
        base, new = (_measured(beside, pair, side, name) for side in (0, 1))
        if base and new and base.scalars["source"] == new.scalars["source"]:
            label = f"Differential flame graph of {pair.label}"
            return flame_graph(_joined(base.table, new.table), label, _MEASURES, _ABOUT)
    return ""


def _measured(beside: SideBySideTimeline, pair: StepPair, side: int, name: str) -> Result | None:
    """Return the result ``name`` of one step; None if the trace lacks the data."""
    recording = beside.sides[side]
    offset_ns = recording.span.start_ns - recording.trace.span.start_ns
    start, end = (offset_ns + ns for ns in pair.spans[side])
    run = run_of(Ranks.of(recording.trace))
    result = answer(run.within(f"{start}ns..{end}ns"), [name]).results.get(name)
    return result if result is not None and len(result.table) else None


def _joined(base: Table, new: Table) -> Table:
    """Return the paths of both sides, with the times of each side in separate columns."""
    first, second = (
        Table(
            {"path": table["path"]}
            | {f"{side}_{name}": table[name] for name in ("host_ns", "device_ns") if name in table}
        )
        for side, table in (("base", base), ("new", new))
    )
    return joined(first, second, "path")
