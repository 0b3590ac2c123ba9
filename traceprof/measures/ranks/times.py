"""Compare the ranks: time breakdown of each rank, and its waiting for other ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from traceprof.measures.analyses import Analysis
from traceprof.measures.collectives.blame import why_withheld
from traceprof.measures.collectives.matches import find_matches
from traceprof.measures.collectives.members import Member, find_members, member_of_rows
from traceprof.measures.collectives.operations import SINGLE_OPS, collectives_of_ranks
from traceprof.measures.collectives.waits import find_waits
from traceprof.measures.device.times import device_parts, devices_of_processes
from traceprof.measures.facts import fact, of_window
from traceprof.measures.rows import sums_at
from traceprof.measures.steps.base import base_of, independent_processes
from traceprof.model.activity import PARTS
from traceprof.model.grouping import groups_of
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note, Result, ResultSpec
from traceprof.model.table import Table, is_known
from traceprof.model.tables import ABSENT
from traceprof.model.trace import DEVICE_TABLES, Trace, make_trace

_MIN_NOTABLE_RATIO: Final = 0.5
_MIN_NOTABLE_BYTES: Final = 1 << 20
_MAX_LISTED_OPS: Final = 3
_PARTS_NS: Final = tuple(f"{part}_ns" for part in PARTS)


@of_window
def parts_of_members(ranks: Ranks) -> Mapping[int, Mapping[str, Any]]:
    """Return, by position in `find_members`, the time parts of a rank, summed over its devices.

    Keys: device (its number as text; "all" for several) and the parts in ns (compute_ns …).
    Members without a device or without recorded device work are left out.
    """
    if not ranks.recorded & set(DEVICE_TABLES):
        return {}
    rows_of: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for part in ranks:
        for row in _parts_by_process(part):
            for device in {row["device"], ABSENT}:
                rows_of.setdefault((row["process"], device), []).append(row)
    found = {}
    for place, member in enumerate(find_members(ranks)):
        if rows := rows_of.get((member.process, member.device)):
            label = str(rows[0]["device"]) if len(rows) == 1 else "all"
            label = "" if rows[0]["device"] == ABSENT else label  # the device is unknown
            sums = {name: sum(row[name] for row in rows) for name in _PARTS_NS}
            found[place] = {"device": label, **sums}
    return found


def _parts_by_process(trace: Trace) -> Iterator[dict[str, Any]]:
    """Yield the parts of each process on each of its devices."""
    pairs = _process_device_pairs(trace)
    pair_of = {device: (process, device) for process, device in pairs}
    source = trace
    if len(pair_of) < len(pairs):
        source, pair_of = _split_shared_devices(trace).within(trace.span), dict(enumerate(pairs))
    for row in device_parts(source).rows():
        if row["device"] in pair_of:
            process, device = pair_of[row["device"]]
            parts = {name: row[name] for name in _PARTS_NS}
            yield {"process": process, "device": device, **parts}


def _process_device_pairs(trace: Trace) -> list[tuple[int, int]]:
    """Return each process with each device that it uses in the recording."""
    return [
        (process, device)
        for process, devices in devices_of_processes(trace).items()
        for device in devices
    ]


@fact
def _split_shared_devices(trace: Trace) -> Trace:
    """Return the device work of a trace with separate devices for each process.

    Device numbers are positions in `_process_device_pairs`.
    """
    place: dict[tuple[int, ...], int] = {
        pair: i for i, pair in enumerate(_process_device_pairs(trace))
    }
    tables = {"ranges": trace.ranges}  # they show when devices were recorded
    for name in DEVICE_TABLES:
        table = trace.table(name)
        users = groups_of(table["process"], table["device"])
        places = np.array([place.get(pair, ABSENT) for pair in users.keys], np.int64)
        tables[name] = table.assign(device=places[users.number])
    return replace(
        make_trace(trace.info, tables, trace.recorded, trace.span), recordings=trace.recordings
    )


@of_window
def times_of_ranks(ranks: Ranks) -> Table:
    """Return one row per rank, in the order of `find_members`.

    Independent processes without kernels have a row each, with their step time.

    Columns: rank, device, step_ns (step time), compute_ns, exposed_communication_ns,
    exposed_transfer_ns, device_memory_ns, idle_ns, waited_ns (exposed waiting for the last rank in
    shared collectives and for messages), last_ratio (share of these in which the rank arrived
    last), collectives_count (number of shared collectives), host, process. waited_ns and last_ratio
    count only after the ranks were in step. Values are None if unknown or withheld (see
    `why_withheld`).
    """
    base = base_of(ranks)
    by_process = groups_of(base.processes)
    means = (column.tolist() for column in (*by_process.values, by_process.means(base.lengths_ns)))
    step_ns = dict(zip(*means, strict=True))
    members, parts, waits = find_members(ranks), parts_of_members(ranks), find_waits(ranks)
    if independent_processes(ranks):
        others = step_ns.keys() - {member.process for member in members}
        members = (*members, *(Member(process, host=ranks.info.host) for process in sorted(others)))
    member_of_wait, in_step = waits["member"], waits["is_in_step"]
    # The last rank is known only if the ranks were in step before.
    is_last = in_step & (waits["last_member"] == member_of_wait)
    counts, waited, last, known = (
        sums_at(member_of_wait, values, len(members)).tolist()
        for values in (1, waits["exposed_ns"], is_last, in_step)
    )
    is_reliable = not why_withheld(ranks)
    rows: list[dict[str, Any]] = []
    for i, member in enumerate(members):
        breakdown = parts.get(i, {})
        rows.append(
            {
                "rank": member.known_rank,
                "device": breakdown.get("device", ""),
                "step_ns": step_ns.get(member.process),
                **{name: breakdown.get(name) for name in _PARTS_NS},
                "waited_ns": waited[i] if counts[i] and is_reliable else None,
                "last_ratio": last[i] / known[i] if known[i] and is_reliable else None,
                "collectives_count": counts[i],
                "host": member.host,
                "process": member.process,
            }
        )
    return Table.of_rows(rows)


def describe_parallelism(ranks: Ranks) -> tuple[Note, ...]:
    """Return a note on how the devices exchange data, and the evidence.

    Collectives if there are any. Otherwise peer copies (replicas that copy to each other), or
    copies to and from the same devices (through the host, like a parameter server). Empty with one
    device.
    """
    work = collectives_of_ranks(ranks)
    if len(work):
        n_ranks = len(set(member_of_rows(find_members(ranks), work).tolist()) - {-1})
        n_members = max(n_ranks, int(work["group_size"].max()))
        ops, by_op = work["op"], groups_of(work["op"])
        most_frequent = np.lexsort((by_op.first_rows, -by_op.counts))[:_MAX_LISTED_OPS]
        named = ", ".join(ops.texts[by_op.keys[place][0]] for place in most_frequent)
        backends = ", ".join(sorted({*work["backend"].distinct()} - {""}))
        whose = "GPUs" if any((part.devices["used"] == 1).any() for part in ranks) else "ranks"
        how = "messages" if ops.isin(SINGLE_OPS).all() else "collectives"
        text = f"The {whose} exchange data by {how} ({{backends}}): {{ops}}"
        if n_members > 1:
            text += " among {n:count} ranks"
            text += " ({recorded:count} recorded)" if n_ranks < n_members else ""
        values = {"ops": named.replace("other", "unknown operation"), "n": n_members}
        values |= {"backends": backends or "kernels", "recorded": n_ranks}
        return (Note.of(f"{text}.", **values),)
    if sum(len(np.unique(part.copies["device"])) for part in ranks) < 2:
        return ()
    peer, down, up = (_sum_bytes(ranks, direction) for direction in ("p2p", "h2d", "d2h"))
    if peer >= max(_MIN_NOTABLE_BYTES, _MIN_NOTABLE_RATIO * min(down, up)):
        text = "The GPUs exchange data by peer copies ({peer:bytes}), without collectives."
        return (Note.of(text, peer=peer),)
    if min(down, up) >= max(_MIN_NOTABLE_BYTES, _MIN_NOTABLE_RATIO * max(down, up)):
        text = (
            "The GPUs exchange data through the host, like a parameter server: {up:bytes} to the "
            "host, {down:bytes} to the GPUs, no collectives. Use collectives between GPUs (NCCL)."
        )
        return (Note.of(text, up=up, down=down),)
    return ()


def _sum_bytes(ranks: Ranks, direction: str) -> int:
    """Return the bytes of all copies in one direction."""
    return sum(
        int(copies["n_bytes"][copies["direction"] == direction].clip(0).sum())
        for copies in (part.copies for part in ranks)
    )


SPEC: Final = ResultSpec.of("""
    table ranks: one row per rank: time breakdown of its GPU, step time, and waiting
    key rank: rank
    key device [text]: GPU of the rank; all, if the rank uses several GPUs
    same step_ns: step time
    total compute_ns: time with compute kernels
    total exposed_communication_ns: communication time not overlapped with compute
    total idle_ns: time without GPU activity
    total waited_ns: time spent in shared collectives waiting for the last rank
    derived last_ratio: share of the shared collectives in which this rank arrived last
    total exposed_transfer_ns: copy time not overlapped with kernels
    total device_memory_ns: time with only copies inside the GPU
    total collectives_count: number of collectives shared with other ranks
    same host: host of the rank
    key process: process of the rank
    scalars:
    total shared_count: number of collectives recorded on several ranks
    total partial_count: number of these recorded on some of the ranks only
    total unmatched_count: number of collectives recorded on only one rank
    """)
_RANKS: Final = SPEC.tables[0]
_TOTALS: Final = (
    "The step time is a mean. The other times are totals of the window ({n:count} usual step(s))."
)


def measure_ranks(ranks: Ranks) -> Result:
    """Return where the time of each rank went in the window."""
    matches = find_matches(ranks)
    table = _RANKS.of_rows(times_of_ranks(ranks))
    scalars = {
        "shared_count": len(matches.table),
        "partial_count": int((matches.table["members"] < len(matches.members)).sum()),
        "unmatched_count": int((matches.rows["match"] < 0).sum()),
    }
    notes = (_describe_matches(len(matches.members), **scalars), *describe_parallelism(ranks))
    base = base_of(ranks)
    if len(base.lengths_ns) and "compute_ns" in table and is_known(table["compute_ns"]).any():
        notes += (Note.of(_TOTALS, n=round(base.steps_count)),)
    if n_apart := independent_processes(ranks):
        text = "{n:count} independent processes: no rank and no process group was recorded."
        notes = (Note.of(text, n=n_apart), *notes[1:])
    return Result("ranks", SPEC, {"ranks": table}, scalars, notes)


def _describe_matches(
    n_ranks: int, shared_count: int, partial_count: int, unmatched_count: int
) -> Note:
    if not shared_count:
        return Note("Rank wait times are unknown: no collective was recorded on several ranks.")
    text = "{shared:count} collectives were recorded on several ranks"
    if partial_count:
        text += ", {partial:count} of them on some of the {ranks:count} ranks only"
    if unmatched_count:
        text += ", and {alone:count} on only one rank"
    return Note.of(
        f"{text}.", shared=shared_count, partial=partial_count, alone=unmatched_count, ranks=n_ranks
    )


RANKS: Final = Analysis(
    "ranks",
    SPEC,
    uses=("kernels", "copies", "collectives", "api_calls", "ranges", "processes", "devices"),
    of_steps=True,
    of_ranks=measure_ranks,
)
