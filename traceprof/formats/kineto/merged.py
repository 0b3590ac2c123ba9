"""Assign GPU activity to processes in files into which traces of several processes were merged.

GPU rows have a device in place of a process, and correlations count from 1 in each process.
Processes of several hosts may have the same ID, and their devices the same number. A kernel belongs
to the process with a call of the same correlation before it. If that is ambiguous, its position in
the file decides: concatenated traces form blocks of the file.
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
from traceprof.formats.kineto.parse import PROCESS_ID_OFFSET, whole
from traceprof.formats.kineto.rows import API_CALLS, COPIES, KERNELS, MEMORY, ON_HOST, SYNCS, Rows
from traceprof.model.grouping import groups_of, renamed, rows_by_value
from traceprof.model.intervals import Int64Array
from traceprof.model.table import Table
from traceprof.model.tables import ABSENT, make_table

_Floats = npt.NDArray[np.float64]
_Bools = npt.NDArray[np.bool_]

_MIN_MATCH_RATIO: Final = 0.95
_TIE_RATIO: Final = 0.01
_MIN_REPEATED_RATIO: Final = 0.2
_MIN_OVERLAP_RATIO: Final = 0.05
_NEVER_NS: Final = float(1 << 62)
_RANK: Final = re.compile(r"\b(?:rank|TP|DP|PP|EP)[ _:#-]*(\d+)", re.IGNORECASE)
_COMMUNICATES: Final = re.compile(r"nccl|rccl|oneccl", re.IGNORECASE)


@dataclass(frozen=True, slots=True, eq=False)
class Merged:
    """The rows of a file with the process of each row, and with distinct device numbers.

    ``given`` maps each device to its number in the file; it is empty if no number changed.
    ``processes`` are those that launch GPU work, in the order of the file. ``labelled`` maps
    processes to their number in the file, if labels distinguish processes.
    """

    rows: Rows
    processes: tuple[int, ...]
    given: Mapping[int, int]
    labelled: Mapping[int, int] = field(default_factory=dict)

    @property
    def warnings(self) -> list[str]:
        """Warnings about processes and devices whose numbers differ from those in the file."""
        sentences = []
        for number in dict.fromkeys(map(process_id, self.processes)):
            same_id = [process for process in self.processes if process_id(process) == number]
            if len(same_id) > 1:
                sentences.append(
                    f"{len(same_id)} processes in the file have the same ID {number}; traceprof "
                    f"gives each its own ID (the last process has ID {same_id[-1]})"
                )
        if self.given:
            sentences.append(
                "several processes in the file use the same GPU number; traceprof numbers the "
                f"GPUs 0 to {len(self.given) - 1}, in the order of the processes"
            )
        return sentences

    def ranks(self, names: Mapping[int, str], infos: object, world_size: int) -> Mapping[int, int]:
        """Return the rank of each of several processes, as far as the file contains it.

        Sources, in this order: the name of the process ("rank 3"); the header's description of each
        process, which are the ``infos`` in the order of the processes; the device numbers, if each
        process has one device and there are as many processes as ranks.
        """
        listed = infos if isinstance(infos, list) else []
        for numbers in (
            [
                int(match[1])
                for process in self.processes
                if (
                    match := _RANK.search(
                        names.get(self.labelled.get(process, process_id(process)), "")
                    )
                )
            ],
            [whole(info.get("rank")) for info in listed if isinstance(info, dict)],
            self._by_device() if world_size in (ABSENT, len(self.processes)) else [],
        ):
            if len(numbers) == len(set(numbers) - {ABSENT}) == len(self.processes):
                return dict(zip(self.processes, numbers, strict=True))
        return {}

    def _by_device(self) -> list[int]:
        """Return the device of each process; another number of devices if that is ambiguous."""
        if self.given:
            return []
        work = self.rows.of(*KERNELS)
        device = work.number("device")
        device = np.where(device == ABSENT, work.process, device)
        pairs = groups_of(work.owners, device).keys
        return [
            device
            for launcher in self.processes
            for process, device in pairs
            if process == launcher
        ]


def process_id(process: int) -> int:
    """Return the ID that the file gives a process."""
    return process % PROCESS_ID_OFFSET


def is_labelled(events: KinetoEvents) -> bool:
    """Return whether calls belong to processes with a text as ID, as merging tools write them."""
    is_call = events.category.isin(API_CALLS)
    return bool(is_call.any() and (events.process[is_call] == ABSENT).any())


def bind_device_work(rows: Rows) -> Merged:
    """Return the rows of a file with GPU rows assigned to the process that launched them."""
    merged = _bound(rows)
    host = rows.process[rows.category.isin(ON_HOST)]
    if not (host >= PROCESS_ID_OFFSET).any():
        return merged
    ids: dict[int, int] = {}
    for process in dict.fromkeys([*merged.processes, *np.unique(host).tolist()]):
        free_id = process_id(process) if process >= 0 else process
        while free_id in ids.values():
            free_id += PROCESS_ID_OFFSET
        ids[process] = free_id
    distinct_rows = replace(
        merged.rows,
        process=renamed(merged.rows.process, ids),
        owner=None if merged.rows.owner is None else renamed(merged.rows.owner, ids),
    )
    distinct_rows = replace(
        distinct_rows, host_process=ids.get(rows.host_process, rows.host_process)
    )
    short = tuple(ids[process] for process in merged.processes)
    return Merged(distinct_rows, short, merged.given, {new: old for old, new in ids.items()})


def _bound(rows: Rows) -> Merged:
    """Return the rows with an owner each.

    The IDs of processes with one ID in the file still differ by `PROCESS_ID_OFFSET`.
    """
    is_call = rows.category.isin(API_CALLS) & (rows.process != ABSENT)
    if not is_call.any():
        return Merged(rows, (), {})
    rows = _with_distinct_processes(rows, is_call)
    calls = np.flatnonzero(is_call)
    groups = groups_of(rows.process[calls])
    processes = tuple(groups.values[0][np.argsort(groups.first_rows)].tolist())
    if len(processes) < 2:
        return Merged(rows, processes, {})
    work = np.flatnonzero(rows.category.isin((*KERNELS, *COPIES, *SYNCS)))
    if (rows.process[work] >= PROCESS_ID_OFFSET).any():  # the ID after the label is the device
        device = np.array(rows.number("device"))
        unnumbered = work[device[work] == ABSENT]
        device[unnumbered] = rows.process[unnumbered] % PROCESS_ID_OFFSET
        rows = replace(rows, arguments={**rows.arguments, "device": device})
    owner = np.where(rows.process == ABSENT, rows.host_process, rows.process)
    owner[work] = _owners(rows, calls, work, processes)
    return _with_distinct_devices(replace(rows, owner=owner), work, processes)


def _with_distinct_processes(rows: Rows, is_call: _Bools) -> Rows:
    """Return the rows with different process IDs for processes that share one ID.

    A process uses each correlation of its calls once. If a file is a concatenation of traces, all
    calls with a repeated correlation follow the first ones. Otherwise threads distinguish the
    processes.
    """
    process, correlation = rows.process, rows.number("correlation")
    distinct = process
    for shared_id in np.unique(process[is_call]).tolist():
        calls = np.flatnonzero(is_call & (process == shared_id) & (correlation > 0))
        groups = groups_of(correlation[calls])
        repetition = groups.earlier
        if not len(calls) or (groups.counts > 1).sum() < _MIN_REPEATED_RATIO * len(groups.counts):
            continue
        part_of_row = _by_block(rows, calls, repetition)
        part_of_row = _by_thread(rows, calls, repetition) if part_of_row is None else part_of_row
        if part_of_row is not None:
            distinct = distinct.copy() if distinct is process else distinct
            has_shared_id = process == shared_id
            distinct[has_shared_id] = shared_id + part_of_row[has_shared_id] * PROCESS_ID_OFFSET
    return rows if distinct is process else replace(rows, process=distinct)


def _by_block(rows: Rows, calls: Int64Array, repetition: Int64Array) -> Int64Array | None:
    """Return the block of the file that each row is in; None if the calls do not form blocks."""
    n = int(repetition.max()) + 1
    firsts = np.full(n, len(rows), np.int64)
    lasts = np.full(n, -1, np.int64)
    np.minimum.at(firsts, repetition, calls)
    np.maximum.at(lasts, repetition, calls)
    if not (lasts[:-1] < firsts[1:]).all():
        return None
    borders = _borders(rows, lasts[:-1], firsts[1:])
    return np.searchsorted(borders, np.arange(len(rows)), side="right").astype(np.int64)


def _borders(rows: Rows, lasts: Int64Array, firsts: Int64Array) -> list[int]:
    """Return the first row of each block except the first block.

    ``lasts`` are the last calls of all blocks except the last; ``firsts`` are the first calls of
    the following blocks. Between the two, a block begins with the first row of a category that
    precedes all calls of the file and does not follow them: Kineto writes operators first.
    """
    calls = np.flatnonzero(rows.category.isin(API_CALLS))
    codes = rows.category.codes
    begins = np.setdiff1d(codes[: calls[0]], codes[calls[-1] + 1 :])
    found = []
    for last, first in zip(lasts.tolist(), firsts.tolist(), strict=True):
        starts_of_block = np.flatnonzero(np.isin(codes[last + 1 : first], begins))
        found.append(last + 1 + int(starts_of_block[0]) if len(starts_of_block) else first)
    return found


def _by_thread(rows: Rows, calls: Int64Array, repetition: Int64Array) -> Int64Array | None:
    """Return the process of each row of an ID by its thread; None if processes share threads."""
    process_of_thread: dict[int, int] = {}
    for thread, thread_rows in rows_by_value(rows.thread[calls]).items():
        counts = np.bincount(repetition[thread_rows])
        process_of_thread[thread] = int(counts.argmax())
        if counts.max() < _MIN_MATCH_RATIO * counts.sum():
            return None
    found = np.zeros(len(rows), np.int64)
    for thread, thread_rows in rows_by_value(rows.thread).items():
        found[thread_rows] = process_of_thread.get(thread, 0)
    return found


def _owners(
    rows: Rows, calls: Int64Array, work: Int64Array, processes: tuple[int, ...]
) -> Int64Array:
    """Return the process that launched each GPU row; the same for all rows of a lane, if possible.

    A lane is a device as the file shows it: the value in place of a process, and the device number.
    """
    device = rows.number("device")[work]
    lanes = groups_of(rows.process[work], np.where(device == ABSENT, rows.process[work], device))
    lane, n_lanes = lanes.number, len(lanes.counts)
    block = _blocks(rows, calls, work, processes)
    n_launched = np.zeros((len(processes), n_lanes))
    n_in_block, delay = np.zeros_like(n_launched), np.zeros_like(n_launched)
    for index, process in enumerate(processes):
        delays = _delays(rows, calls, work, process)
        is_launched = delays < _NEVER_NS
        n_launched[index] = np.bincount(lane, is_launched, n_lanes)
        delay[index] = np.bincount(lane, np.where(is_launched, delays, 0), n_lanes)
        n_in_block[index] = np.bincount(lane, block == index, n_lanes)
    delay /= np.maximum(n_launched, 1)
    launched_ratio, block_ratio = n_launched / lanes.counts, n_in_block / lanes.counts
    # Of the processes that may have launched nearly all rows of a lane, take the one in the same
    # block of the file, otherwise the one with the shortest delay.
    is_candidate = launched_ratio >= launched_ratio.max(axis=0) - _TIE_RATIO
    candidate_ratio = np.where(is_candidate, block_ratio, -1)
    is_candidate &= candidate_ratio >= candidate_ratio.max(axis=0) - _TIE_RATIO
    best = np.where(is_candidate, delay, np.inf).argmin(axis=0)
    labels = np.array(processes, np.int64) // PROCESS_ID_OFFSET
    is_labelled_lane = np.zeros(n_lanes, np.bool_)
    for lane_index, label in enumerate((lanes.values[0] // PROCESS_ID_OFFSET).tolist()):
        matching = np.flatnonzero(labels == label)
        if label > 0 and len(matching) == 1:
            best[lane_index], is_labelled_lane[lane_index] = matching[0], True
    in_order = np.lexsort(lanes.values)
    if (
        n_lanes == len(processes) > len(set(best.tolist()))
        and (is_candidate[np.argsort(processes), in_order]).all()
    ):
        # Ranks in lockstep, each of which may have launched everything: assign lanes in order.
        best[in_order] = np.argsort(processes)
    is_shared = launched_ratio[best, np.arange(n_lanes)] < _MIN_MATCH_RATIO
    is_shared |= _has_two_at_once(rows, work, lane, n_lanes)
    is_shared |= (
        (block >= 0).any()
        & (block_ratio.max(axis=0) < _MIN_MATCH_RATIO)
        & (block_ratio.sum(axis=0) > _MIN_MATCH_RATIO)
    )
    is_shared &= ~is_labelled_lane
    owner = best[lane]  # an index of `processes` for each row
    shared = np.flatnonzero(is_shared[lane])
    if len(shared):
        delays = np.array([_delays(rows, calls, work[shared], process) for process in processes])
        soonest = np.where(delays.min(axis=0) < _NEVER_NS, delays.argmin(axis=0), owner[shared])
        owner[shared] = np.where(block[shared] >= 0, block[shared], soonest)
    found: Int64Array = np.array(processes, np.int64)[owner]
    return found


def _delays(rows: Rows, calls: Int64Array, work: Int64Array, process: int) -> _Floats:
    """Return how long after its call by ``process`` each row started, in ns.

    The call is the one with the same correlation. `_NEVER_NS` if there is none before the row.
    """
    correlation = rows.number("correlation")
    process_calls = calls[rows.process[calls] == process]
    process_calls = process_calls[np.argsort(correlation[process_calls], kind="stable")]
    call_correlation, work_correlation = correlation[process_calls], correlation[work]
    place = np.minimum(np.searchsorted(call_correlation, work_correlation), len(process_calls) - 1)
    late = rows.start_ns[work] - rows.start_ns[process_calls[place]]
    is_launched = (
        (call_correlation[place] == work_correlation) & (work_correlation != ABSENT) & (late >= 0)
    )
    return np.where(is_launched, late.astype(np.float64), _NEVER_NS)


def _blocks(
    rows: Rows, calls: Int64Array, work: Int64Array, processes: tuple[int, ...]
) -> Int64Array:
    """Return whose block of the file each GPU row is in; `ABSENT` if there are no blocks.

    A process is given by its index in ``processes``.
    """
    calls_of_each = [calls[rows.process[calls] == process] for process in processes]
    edges = sorted(
        (int(calls[0]), int(calls[-1]), place) for place, calls in enumerate(calls_of_each)
    )
    if any(last > first for (_, last, _), (first, _, _) in pairwise(edges)):
        return np.full(len(work), ABSENT, np.int64)
    lasts = np.array([last for _, last, _ in edges[:-1]], np.int64)
    firsts = np.array([first for first, _, _ in edges[1:]], np.int64)
    number = np.searchsorted(_borders(rows, lasts, firsts), work, side="right")
    return np.array([place for _, _, place in edges], np.int64)[number]


def _has_two_at_once(rows: Rows, work: Int64Array, lane: Int64Array, n_lanes: int) -> _Bools:
    """Return the lanes on which kernels of one stream overlap, as kernels of two GPUs do."""
    is_kernel = rows.category.isin(KERNELS)[work] & (rows.number("graph node id")[work] <= 0)
    chosen, stream = np.flatnonzero(is_kernel), rows.number("stream")[work]
    order = chosen[np.lexsort((rows.start_ns[work][chosen], stream[chosen], lane[chosen]))]
    starts, ends = rows.start_ns[work][order], rows.end_ns[work][order]
    is_same = (lane[order][1:] == lane[order][:-1]) & (stream[order][1:] == stream[order][:-1])
    overlaps = is_same & (starts[1:] < ends[:-1])
    n_overlaps = np.bincount(lane[order][1:][overlaps], minlength=n_lanes)
    n_kernels = np.bincount(lane[order], minlength=n_lanes)
    has_two: _Bools = n_overlaps > _MIN_OVERLAP_RATIO * np.maximum(n_kernels, 1)
    return has_two


def _with_distinct_devices(rows: Rows, work: Int64Array, processes: tuple[int, ...]) -> Merged:
    """Return the rows with different device numbers, if two processes use one number for two GPUs.

    One GPU may serve several processes. Two lanes of the file are two GPUs. Processes that
    communicate also use two GPUs, because NCCL requires one GPU per rank.
    """
    assert rows.owner is not None
    recorded = rows.number("device")
    device = np.where(recorded == ABSENT, rows.process, recorded)
    pairs = groups_of(rows.owner[work], device[work], rows.process[work])
    is_communication = rows.named(lambda name: _COMMUNICATES.search(name) is not None)[work]
    communicates = np.bincount(pairs.number, is_communication, len(pairs.counts)) > 0
    # Profilers may record a synchronization with the number of another GPU.
    is_used = np.bincount(pairs.number, ~rows.category.isin(SYNCS)[work], len(pairs.counts)) > 0
    users: dict[int, list[tuple[int, int, bool]]] = {}
    for (owner, number, lane), is_talking, used in zip(
        pairs.keys, communicates.tolist(), is_used.tolist(), strict=True
    ):
        if used:
            users.setdefault(number, []).append((owner, lane, is_talking))
    is_ambiguous = any(
        len({owner for owner, _, _ in uses}) > 1
        and (len({lane for _, lane, _ in uses}) > 1 or sum(talking for *_, talking in uses) > 1)
        for uses in users.values()
    )
    if not is_ambiguous:
        return Merged(rows, processes, {})
    distinct = {(owner, number) for owner, number, _ in pairs.keys}
    ordered = sorted(distinct, key=lambda pair: (processes.index(pair[0]), pair[1]))
    number_of_pair = {pair: place for place, pair in enumerate(ordered)}
    renamed = dict(rows.arguments)
    is_work = np.zeros(len(rows), np.bool_)
    is_work[work] = True
    renamed["device"] = _renumbered(device, rows.owner, number_of_pair, is_work, recorded)
    for name in ("fromDevice", "toDevice", "Device Id"):
        chosen = rows.category.isin(MEMORY) if name == "Device Id" else is_work
        renamed[name] = _renumbered(
            rows.number(name), rows.owner, number_of_pair, chosen, rows.number(name)
        )
    given = {place: number for (_, number), place in number_of_pair.items()}
    return Merged(replace(rows, arguments=renamed), processes, given)


def _renumbered(
    device: Int64Array,
    owner: Int64Array,
    new: Mapping[tuple[int, int], int],
    chosen: _Bools,
    others: Int64Array,
) -> Int64Array:
    """Return ``others`` with new device numbers in the ``chosen`` rows."""
    found = np.array(others)
    for (process, number), place in new.items():
        found[chosen & (owner == process) & (device == number)] = place
    return found


def devices_of(devices: Table, given: Mapping[int, int]) -> Table:
    """Return the devices of a file with one row per distinct device; ``given`` as in `Merged`."""
    if not given:
        return devices
    row_of = {number: row for row, number in enumerate(devices["device"].tolist())}
    known = [(new, row_of[old]) for new, old in given.items() if old in row_of]
    found = devices.take(np.array([row for _, row in known], np.int64))
    numbers = [new for new, _ in known]
    return make_table("devices", {**found.columns, "uuid": [""] * len(known), "device": numbers})
