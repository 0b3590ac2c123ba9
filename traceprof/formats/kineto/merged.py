"""Files into which the traces of several processes were merged: whose is which work of devices.

Rows of devices bear a device in place of a process, correlations count from 1 in each process, and
processes of several hosts may have one id, or devices of one number. Who launched a kernel is told
by its correlation among the calls before it, else by the place in the file: traces that were put
one behind the other are blocks of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from traceprof.formats.kineto.events import KinetoEvents
from traceprof.formats.kineto.parse import APART, whole
from traceprof.formats.kineto.rows import API_CALLS, COPIES, KERNELS, MEMORY, ON_HOST, SYNCS, Rows
from traceprof.model.grouping import groups_of, renamed, rows_by_value
from traceprof.model.intervals import Int64Array
from traceprof.model.table import Table
from traceprof.model.tables import ABSENT, make_table

_Floats = npt.NDArray[np.float64]
_Bools = npt.NDArray[np.bool_]

_MOST: Final = 0.95
_ALIKE: Final = 0.01
_CLASHES: Final = 0.2
_NEVER: Final = float(1 << 62)
_RANK: Final = re.compile(r"\b(?:rank|TP|DP|PP|EP)[ _:#-]*(\d+)", re.IGNORECASE)
_COMMUNICATES: Final = re.compile(r"nccl|rccl|oneccl", re.IGNORECASE)


@dataclass(frozen=True, slots=True, eq=False)
class Merged:
    """The rows of a file with the process of each, and devices that are told apart.

    ``given`` is the number that the file gives each device; empty where none has another.
    ``processes`` are those that launch work, by when they come first in the file, and ``labelled``
    what those are called in it that it tells apart by labels.
    """

    rows: Rows
    processes: tuple[int, ...]
    given: Mapping[int, int]
    labelled: Mapping[int, int] = field(default_factory=dict)

    @property
    def warnings(self) -> list[str]:
        """What is to be said of processes and devices that have other numbers in the file."""
        told = []
        for own in dict.fromkeys(map(process_id, self.processes)):
            alike = [process for process in self.processes if process_id(process) == own]
            if len(alike) > 1:
                told.append(
                    f"{len(alike)} processes in the file have the same ID {own}; traceprof gives "
                    f"each its own ID (the last process has ID {alike[-1]})"
                )
        if self.given:
            told.append(
                "several processes in the file use the same GPU number; traceprof numbers the "
                f"GPUs 0 to {len(self.given) - 1}, in the order of the processes"
            )
        return told

    def ranks(self, names: Mapping[int, str], told: object, world_size: int) -> Mapping[int, int]:
        """Return the rank of each of several processes, as far as the file tells.

        By the name of the process ("rank 3"), by what the header says of each (``told``, in the
        order of the processes), or by devices: one for each process, of as many as there are ranks.
        """
        listed = told if isinstance(told, list) else []
        for numbers in (
            [
                int(match[1])
                for own in self.processes
                if (match := _RANK.search(names.get(self.labelled.get(own, process_id(own)), "")))
            ],
            [whole(one.get("rank")) for one in listed if isinstance(one, dict)],
            self._by_device() if world_size in (ABSENT, len(self.processes)) else [],
        ):
            if len(numbers) == len(set(numbers) - {ABSENT}) == len(self.processes):
                return dict(zip(self.processes, numbers, strict=True))
        return {}

    def _by_device(self) -> list[int]:
        """Return the device of each process, where each has one of its own; else fewer, or more."""
        if self.given:
            return []
        work = self.rows.of(*KERNELS)
        device = work.number("device")
        device = np.where(device == ABSENT, work.process, device)
        pairs = groups_of(work.owners, device).keys
        return [device for own in self.processes for process, device in pairs if process == own]


def process_id(process: int) -> int:
    """Return the id that the file gives a process."""
    return process % APART


def is_labelled(events: KinetoEvents) -> bool:
    """Return whether calls are of processes that a text names, as mergers write them."""
    is_call = events.category.isin(API_CALLS)
    return bool(is_call.any() and (events.process[is_call] == ABSENT).any())


def told_apart(rows: Rows) -> Merged:
    """Return the rows of a file with the work of devices bound to the process that launched it."""
    merged = _bound(rows)
    host = rows.process[rows.category.isin(ON_HOST)]
    if not (host >= APART).any():
        return merged
    ids: dict[int, int] = {}
    for process in dict.fromkeys([*merged.processes, *np.unique(host).tolist()]):
        number = process_id(process) if process >= 0 else process
        while number in ids.values():
            number += APART
        ids[process] = number
    owner = None if merged.rows.owner is None else renamed(merged.rows.owner, ids)
    own = replace(merged.rows, process=renamed(merged.rows.process, ids), owner=owner)
    own = replace(own, host_process=ids.get(rows.host_process, rows.host_process))
    short = tuple(ids[process] for process in merged.processes)
    return Merged(own, short, merged.given, {new: old for old, new in ids.items()})


def _bound(rows: Rows) -> Merged:
    is_call = rows.category.isin(API_CALLS) & (rows.process != ABSENT)
    if not is_call.any():
        return Merged(rows, (), {})
    rows = _with_own_processes(rows, is_call)
    calls = np.flatnonzero(is_call)
    groups = groups_of(rows.process[calls])
    order = np.argsort(groups.first_rows)
    processes = tuple(groups.values[0][order].tolist())
    if len(processes) < 2:
        return Merged(rows, processes, {})
    work = np.flatnonzero(rows.category.isin((*KERNELS, *COPIES, *SYNCS)))
    if (rows.process[work] >= APART).any():  # of the label the device is the rest
        device = np.array(rows.number("device"))
        own = work[device[work] == ABSENT]
        device[own] = rows.process[own] % APART
        rows = replace(rows, arguments={**rows.arguments, "device": device})
    owner = np.where(rows.process == ABSENT, rows.host_process, rows.process)
    owner[work] = _owners(rows, calls, work, processes)
    return _with_own_devices(replace(rows, owner=owner), work, processes)


def _with_own_processes(rows: Rows, is_call: _Bools) -> Rows:
    """Return the rows with an id for each of several processes that have one and the same.

    A process numbers each of its calls once. Of calls whose number comes a second time all lie
    behind the first ones where files were put one behind the other; else threads tell them apart.
    """
    process, correlation = rows.process, rows.number("correlation")
    found = process
    for own in np.unique(process[is_call]).tolist():
        calls = np.flatnonzero(is_call & (process == own) & (correlation > 0))
        groups = groups_of(correlation[calls])
        turn = groups.earlier
        if not len(calls) or (groups.counts > 1).sum() < _CLASHES * len(groups.counts):
            continue
        part = _by_block(rows, calls, turn)
        part = _by_thread(rows, calls, turn) if part is None else part
        if part is not None:
            found = found.copy() if found is process else found
            mine = process == own
            found[mine] = own + part[mine] * APART
    return rows if found is process else replace(rows, process=found)


def _by_block(rows: Rows, calls: Int64Array, turn: Int64Array) -> Int64Array | None:
    """Return the block of the file that each row is in; None where calls do not lie in blocks."""
    n = int(turn.max()) + 1
    firsts = np.full(n, len(rows), np.int64)
    lasts = np.full(n, -1, np.int64)
    np.minimum.at(firsts, turn, calls)
    np.maximum.at(lasts, turn, calls)
    if not (lasts[:-1] < firsts[1:]).all():
        return None
    borders = _borders(rows, lasts[:-1], firsts[1:])
    return np.searchsorted(borders, np.arange(len(rows)), side="right").astype(np.int64)


def _borders(rows: Rows, lasts: Int64Array, firsts: Int64Array) -> list[int]:
    """Return the first row of each block but the first.

    ``lasts`` are the last calls of all blocks but the last, ``firsts`` the first ones of the next.
    What lies between two is of the next one from the first kind of row on that stands before all
    calls of the file and not behind them: Kineto writes operators first.
    """
    calls = np.flatnonzero(rows.category.isin(API_CALLS))
    codes = rows.category.codes
    begins = np.setdiff1d(codes[: calls[0]], codes[calls[-1] + 1 :])
    found = []
    for last, first in zip(lasts.tolist(), firsts.tolist(), strict=True):
        behind = np.flatnonzero(np.isin(codes[last + 1 : first], begins))
        found.append(last + 1 + int(behind[0]) if len(behind) else first)
    return found


def _by_thread(rows: Rows, calls: Int64Array, turn: Int64Array) -> Int64Array | None:
    """Return the process that each row of an id is of, by its thread; None where that is shared."""
    number: dict[int, int] = {}
    for thread, own in rows_by_value(rows.thread[calls]).items():
        counts = np.bincount(turn[own])
        number[thread] = int(counts.argmax())
        if counts.max() < _MOST * counts.sum():
            return None
    found = np.zeros(len(rows), np.int64)
    for thread, own in rows_by_value(rows.thread).items():
        found[own] = number.get(thread, 0)
    return found


def _owners(
    rows: Rows, calls: Int64Array, work: Int64Array, processes: tuple[int, ...]
) -> Int64Array:
    """Return the process that launched each row of devices: one for a lane, where one can be.

    A lane is a device as the file shows it: what stands in place of a process, and the number.
    """
    device = rows.number("device")[work]
    lanes = groups_of(rows.process[work], np.where(device == ABSENT, rows.process[work], device))
    lane, n_lanes = lanes.number, len(lanes.counts)
    block = _blocks(rows, calls, work, processes)
    fits = np.zeros((len(processes), n_lanes))
    inside, delay = np.zeros_like(fits), np.zeros_like(fits)
    for place, process in enumerate(processes):
        late = _delays(rows, calls, work, process)
        is_fit = late < _NEVER
        fits[place] = np.bincount(lane, is_fit, n_lanes)
        delay[place] = np.bincount(lane, np.where(is_fit, late, 0), n_lanes)
        inside[place] = np.bincount(lane, block == place, n_lanes)
    delay /= np.maximum(fits, 1)
    fits, inside = fits / lanes.counts, inside / lanes.counts
    # Of those that may have launched nearly all, who stands beside it in the file; else soonest.
    may = fits >= fits.max(axis=0) - _ALIKE
    shares = np.where(may, inside, -1)
    may &= shares >= shares.max(axis=0) - _ALIKE
    best = np.where(may, delay, np.inf).argmin(axis=0)
    labels, is_told = np.array(processes, np.int64) // APART, np.zeros(n_lanes, np.bool_)
    for number, label in enumerate((lanes.values[0] // APART).tolist()):
        alike = np.flatnonzero(labels == label)
        if label > 0 and len(alike) == 1:
            best[number], is_told[number] = alike[0], True
    columns = np.arange(n_lanes)
    in_order = np.lexsort(lanes.values)
    if (
        n_lanes == len(processes) > len(set(best.tolist()))
        and (may[np.argsort(processes), in_order]).all()
    ):
        # Ranks in lockstep, of which each may have launched all: one for each, by their numbers.
        best[in_order] = np.argsort(processes)
    is_shared = (fits[best, columns] < _MOST) | _has_two_at_once(rows, work, lane, n_lanes)
    is_shared |= (block >= 0).any() & (inside.max(axis=0) < _MOST) & (inside.sum(axis=0) > _MOST)
    is_shared &= ~is_told
    place = best[lane]
    rows_of_shared = np.flatnonzero(is_shared[lane])
    if len(rows_of_shared):
        own = work[rows_of_shared]
        late = np.array([_delays(rows, calls, own, process) for process in processes])
        soonest = np.where(late.min(axis=0) < _NEVER, late.argmin(axis=0), place[rows_of_shared])
        told = block[rows_of_shared]
        place[rows_of_shared] = np.where(told >= 0, told, soonest)
    found: Int64Array = np.array(processes, np.int64)[place]
    return found


def _delays(rows: Rows, calls: Int64Array, work: Int64Array, process: int) -> _Floats:
    """Return how long after the call of ``process`` with its correlation each row began.

    `_NEVER` where there is no such call before it.
    """
    correlation = rows.number("correlation")
    own = calls[rows.process[calls] == process]
    own = own[np.argsort(correlation[own], kind="stable")]
    known, sought = correlation[own], correlation[work]
    place = np.minimum(np.searchsorted(known, sought), len(own) - 1)
    late = rows.start_ns[work] - rows.start_ns[own[place]]
    is_launched = (known[place] == sought) & (sought != ABSENT) & (late >= 0)
    return np.where(is_launched, late.astype(np.float64), _NEVER)


def _blocks(
    rows: Rows, calls: Int64Array, work: Int64Array, processes: tuple[int, ...]
) -> Int64Array:
    """Return whose block of the file each row of devices is in, `ABSENT` where there are none."""
    own = [calls[rows.process[calls] == process] for process in processes]
    edges = sorted((int(one[0]), int(one[-1]), place) for place, one in enumerate(own))
    if any(last > first for (_, last, _), (first, _, _) in pairwise(edges)):
        return np.full(len(work), ABSENT, np.int64)
    lasts = np.array([last for _, last, _ in edges[:-1]], np.int64)
    firsts = np.array([first for first, _, _ in edges[1:]], np.int64)
    number = np.searchsorted(_borders(rows, lasts, firsts), work, side="right")
    return np.array([place for _, _, place in edges], np.int64)[number]


def _has_two_at_once(rows: Rows, work: Int64Array, lane: Int64Array, n_lanes: int) -> _Bools:
    """Return on which lanes kernels of one stream run at once, as they do of two devices."""
    found = np.zeros(n_lanes, np.bool_)
    is_kernel = rows.category.isin(KERNELS)[work] & (rows.number("graph node id")[work] <= 0)
    chosen, stream = np.flatnonzero(is_kernel), rows.number("stream")[work]
    order = chosen[np.lexsort((rows.start_ns[work][chosen], stream[chosen], lane[chosen]))]
    starts, ends = rows.start_ns[work][order], rows.end_ns[work][order]
    is_same = (lane[order][1:] == lane[order][:-1]) & (stream[order][1:] == stream[order][:-1])
    overlaps = is_same & (starts[1:] < ends[:-1])
    n_over = np.bincount(lane[order][1:][overlaps], minlength=n_lanes)
    n_all = np.bincount(lane[order], minlength=n_lanes)
    found[:] = n_over > 0.05 * np.maximum(n_all, 1)
    return found


def _with_own_devices(rows: Rows, work: Int64Array, processes: tuple[int, ...]) -> Merged:
    """Return the rows with a number for each device, where two processes use one number.

    One GPU may serve several processes; two lanes of the file are two GPUs, and so are those of
    processes that communicate: NCCL takes a GPU for each rank.
    """
    assert rows.owner is not None
    told = rows.number("device")
    device = np.where(told == ABSENT, rows.process, told)
    pairs = groups_of(rows.owner[work], device[work], rows.process[work])
    talks = rows.named(lambda name: _COMMUNICATES.search(name) is not None)[work]
    communicates = np.bincount(pairs.number, talks, len(pairs.counts)) > 0
    users: dict[int, list[tuple[int, int, bool]]] = {}
    for (owner, number, lane), is_talking in zip(pairs.keys, communicates.tolist(), strict=True):
        users.setdefault(number, []).append((owner, lane, is_talking))
    is_told_apart = any(
        len({owner for owner, _, _ in own}) > 1
        and (len({lane for _, lane, _ in own}) > 1 or sum(talking for *_, talking in own) > 1)
        for own in users.values()
    )
    if not is_told_apart:
        return Merged(rows, processes, {})
    used = {(owner, number) for owner, number, _ in pairs.keys}
    ordered = sorted(used, key=lambda one: (processes.index(one[0]), one[1]))
    new = {pair: place for place, pair in enumerate(ordered)}
    renamed = dict(rows.arguments)
    is_work = np.zeros(len(rows), np.bool_)
    is_work[work] = True
    renamed["device"] = _renumbered(device, rows.owner, new, is_work, told)
    for name in ("fromDevice", "toDevice", "Device Id"):
        chosen = rows.category.isin(MEMORY) if name == "Device Id" else is_work
        renamed[name] = _renumbered(rows.number(name), rows.owner, new, chosen, rows.number(name))
    given = {place: number for (_, number), place in new.items()}
    return Merged(replace(rows, arguments=renamed), processes, given)


def _renumbered(
    device: Int64Array,
    owner: Int64Array,
    new: Mapping[tuple[int, int], int],
    chosen: _Bools,
    others: Int64Array,
) -> Int64Array:
    found = np.array(others)
    for (process, number), place in new.items():
        found[chosen & (owner == process) & (device == number)] = place
    return found


def devices_of(devices: Table, given: Mapping[int, int]) -> Table:
    """Return the devices of a file with a row for each that is told apart; ``given`` as above."""
    if not given:
        return devices
    row_of = {number: row for row, number in enumerate(devices["device"].tolist())}
    known = [(new, row_of[old]) for new, old in given.items() if old in row_of]
    found = devices.take(np.array([row for _, row in known], np.int64))
    uuids = {name: [""] * len(known) for name in ("uuid",)}
    return make_table("devices", {**found.columns, **uuids, "device": [new for new, _ in known]})
