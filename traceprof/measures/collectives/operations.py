"""Find every collective of a trace once: the call on the host and its kernels.

A call owns the kernel with its correlation ID and the kernels launched inside the call on its
thread. A kernel without a call is a collective by itself: its name shows the operation; its size
is unknown. Calls that NCCL runs in one kernel (a group) count as one collective.
"""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traceprof.errors import NotRecordedError
from traceprof.measures.device.times import device_time
from traceprof.measures.facts import fact, of_window
from traceprof.measures.host.launches import innermost, launches_of
from traceprof.measures.rows import are_first, bounds
from traceprof.model.activity import Activity
from traceprof.model.compact import CompactTable
from traceprof.model.grouping import find_matching_rows, groups_of, rows_by_value
from traceprof.model.intervals import Int64Array
from traceprof.model.ranks import Ranks
from traceprof.model.table import Names, Table
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace, how_to_record
from traceprof.names.messages import NON_BLOCKING, collective_op, kernel_kind
from traceprof.names.ranges import codes_containing

_KERNEL_KEYS: Final = ["process", "correlation"]
SINGLE_OPS: Final = ("send", "recv")


def one_per_kernel(calls: Table) -> Table:
    """Return the calls with exchange; calls that share a kernel are merged into one.

    The size is the sum of their sizes. Sends and receives become one ``send_recv`` with the bytes
    that are sent. If they go to and come from every rank of the group, they are an all-to-all, as
    NCCL and PyTorch implement it. exchange lists the ranks of the group in a merged exchange
    ("0,2"); it is "" if unknown and for single calls.
    """
    calls = calls.assign(exchange=Names.repeated("", len(calls)))
    with_kernel = np.flatnonzero(calls["correlation"] != ABSENT)
    kernels = groups_of(*(calls[name][with_kernel] for name in _KERNEL_KEYS))
    is_shared = np.zeros(len(calls), np.bool_)
    is_shared[with_kernel] = (kernels.counts > 1)[kernels.number]
    if not is_shared.any():
        return calls
    merged = _merge_calls(calls.take(is_shared))
    return Table.stacked([calls.take(~is_shared), merged]).in_order("start_ns")


def _merge_calls(calls: Table) -> Table:
    """Return one row per kernel: its first call, with values that hold for all its calls."""
    kernels = groups_of(*(calls[name] for name in _KERNEL_KEYS))
    first = calls.take(kernels.first_rows)
    several = kernels.differ(calls["op"].codes)
    is_exchange = several & kernels.reduced(np.logical_and, calls["op"].isin(SINGLE_OPS))
    in_exchange = is_exchange[kernels.number]
    # In an exchange only sends count: other ranks send the bytes that this rank receives.
    is_counted = ~in_exchange | (calls["op"] == "send")
    sizes = kernels.reduced(np.add, np.where(is_counted, calls["n_bytes"], 0))
    is_sized = kernels.reduced(np.logical_and, ~is_counted | (calls["n_bytes"] != ABSENT))
    op = np.where(several, "other", np.asarray(first["op"])).astype(object)
    exchange = np.full(len(first), "", object)
    exchanges = calls.take(in_exchange)
    if len(exchanges):
        op[is_exchange] = _name_exchanges(exchanges)
        exchange[is_exchange] = _list_exchange_ranks(exchanges)
    has_peers = kernels.differ(calls["peer"])
    return first.assign(
        op=Names.of(op),
        n_bytes=np.where(is_sized, sizes, ABSENT),
        end_ns=kernels.reduced(np.maximum, calls["end_ns"]),
        exchange=Names.of(exchange),
        **{name: np.where(has_peers, ABSENT, first[name]) for name in ("peer", "peer_rank")},
    )


def _name_exchanges(calls: Table) -> npt.NDArray[np.object_]:
    """Return the operation of each kernel that its sends and receives form together."""
    kernels = groups_of(*(calls[name] for name in _KERNEL_KEYS))
    n_ranks = kernels.reduced(np.maximum, calls["group_size"])
    is_whole = ~kernels.differ(calls["group_size"])
    for op in SINGLE_OPS:
        kernel, peer = (values[calls["op"] == op] for values in (kernels.number, calls["peer"]))
        order = np.lexsort((peer, kernel))
        kernel, peer = kernel[order], peer[order]
        to_others = are_first(kernel, peer) & (peer >= 0) & (peer < n_ranks[kernel])
        for values in (kernel, kernel[to_others]):
            is_whole &= np.bincount(values, minlength=len(n_ranks)) == n_ranks
    all_to_all = np.where(kernels.differ(calls["n_bytes"]), "all_to_all_v", "all_to_all")
    return np.where(is_whole, all_to_all, "send_recv")


def _list_exchange_ranks(calls: Table) -> list[str]:
    """Return the ranks that take part in each kernel, comma-separated; "" if any is unknown."""
    kernel = np.tile(groups_of(*(calls[name] for name in _KERNEL_KEYS)).number, 2)
    ends = np.concatenate([calls["group_rank"], calls["peer"]])
    ranks_of_kernels = (np.unique(ends[rows]).tolist() for rows in rows_by_value(kernel).values())
    return [",".join(map(str, ranks)) if ranks[0] >= 0 else "" for ranks in ranks_of_kernels]


USED_TABLES: Final = ("collectives", "kernels", "api_calls", "ranges")
"""Tables that contain collectives and their callers."""

_ASYNC_BACKENDS: Final = ("nccl", "rccl", "hccl", "xccl", "", NON_BLOCKING)
_NUMBER_COLUMNS: Final = (
    "n_bytes",
    "group_size",
    "sequence",
    "group_rank",
    "peer",
    "peer_rank",
    "tag",
)
_CALL_COLUMNS: Final = (
    "op",
    "dtype",
    "group",
    "backend",
    "exchange",
    "correlation",
    *_NUMBER_COLUMNS,
)
_ANNOTATION: Final = re.compile(r"(?:nccl|rccl|xccl|hccl):(\w+)")


def is_recorded(trace: Trace | Ranks) -> bool:
    """Return whether the trace can contain collectives, as calls or as kernels."""
    return bool(trace.recorded & {"collectives", "kernels"})


def require_collectives(trace: Trace | Ranks) -> None:
    """Check that the trace can contain collectives.

    Raises:
        NotRecordedError: neither collectives nor kernels were recorded.
    """
    if not is_recorded(trace):
        how = how_to_record("collectives", trace.info, trace.recorded)
        raise NotRecordedError(f"no collectives recorded: {how}")


@of_window
def find_collectives(trace: Trace) -> Table:
    """Return the collectives that start in the window, one row each, in order of start.

    Columns: those of ``collectives`` from op to tag; exchange (ranks of the group that send and
    receive in one kernel; "" if unknown); start_ns and end_ns of the kernels if known, else of the
    call; is_timed (whether these are the times of the collective itself, not of a call that only
    enqueued it); call_ns and call_end_ns (`ABSENT` without a known call), process, thread, device,
    stream, algorithm and protocol ("" if unknown), kernels (number of kernels), exposed_ns (time
    not overlapped with compute on the device; NaN without kernels), row (index in the whole
    recording) and number (index among the collectives of its process in the whole recording). Times
    are not clipped to the window.
    """
    found = _collectives_of_whole(trace)
    return found if trace.uncut is None else found.take(trace.span.holds(found["start_ns"]))


@of_window
def collectives_of_ranks(ranks: Ranks) -> CompactTable:
    """Return the collectives of all ranks, in order of start.

    Columns: those of `find_collectives`, and part (position in ``ranks``; ``row`` is a row of it).
    """
    found = _of_all_ranks(ranks)
    return found if ranks.uncut is None else found.take(are_in_window(ranks))


def are_in_window(ranks: Ranks) -> npt.NDArray[np.bool_]:
    """Return which collectives of the whole recording, of all ranks, start in the window."""
    starts = _of_all_ranks(ranks)["start_ns"]
    return np.ones(len(starts), np.bool_) if ranks.uncut is None else ranks.span.holds(starts)


@fact
def _of_all_ranks(ranks: Ranks) -> CompactTable:
    # Do not store this as a fact of each rank: the process would keep both copies in memory.
    parts = [
        work.assign(part=np.full(len(work), i, np.int64))
        for i, work in enumerate(ranks.each(_compact))
    ]
    filled = [part for part in parts if len(part)] or parts[:1]
    if len(filled) == 1:
        return filled[0]
    both = CompactTable.stacked(filled)
    return both.take(both.order("start_ns", "call_ns")).laid_out()


def _compact(trace: Trace) -> CompactTable:
    """Return the collectives of a trace in a form that is cheap to send between processes."""
    return CompactTable(find_collectives(trace).columns)


@fact
def _collectives_of_whole(trace: Trace) -> Table:
    kernels = _communication_kernels(trace)
    calls = one_per_kernel(trace.collectives)
    owner = _owner_of_kernels(kernels, calls)
    claimed = owner >= 0
    described = _describe_calls(calls, kernels.take(claimed), owner[claimed])
    both = Table.stacked([described, _describe_unclaimed(kernels.take(~claimed))])
    both = _rename_annotated(trace, both).in_order("start_ns", "call_ns")
    return both.assign(row=np.arange(len(both)), number=groups_of(both["process"]).earlier)


def _rename_annotated(trace: Trace, work: Table) -> Table:
    """Return ``work`` with the names that PyTorch gives to exchanges in one kernel.

    PyTorch runs all-to-all, gather and scatter as sends and receives inside a range with that name.
    """
    unnamed = np.flatnonzero((work["op"] == "send_recv") & (work["call_ns"] != ABSENT))
    if not len(unnamed):
        return work
    ranges = trace.whole.ranges
    names = ranges["name"].texts
    ops = np.full(len(names), "", object)
    likely = codes_containing(names, ["ccl:"])
    for code, text in zip(likely, names[likely], strict=True):
        if match := _ANNOTATION.match(text):
            ops[code] = collective_op(match[1])
    op_of_range = ranges["name"].by_text(ops)
    kept = np.flatnonzero((op_of_range != "") & (ranges["kind"] == "push_pop"))
    if not len(kept):
        return work
    exchanges = work.take(unnamed)
    found = innermost(
        ranges.take(kept), exchanges["process"], exchanges["thread"], exchanges["call_ns"]
    )
    recorded_op = np.asarray(exchanges["op"])
    op = np.where(found >= 0, op_of_range[kept[np.maximum(found, 0)]], recorded_op)
    # All-to-alls with even, known sizes have their name already. Sizes of a gather are unreliable.
    uneven = np.where(op == "all_to_all", "all_to_all_v", recorded_op)
    renamed = np.asarray(work["op"]).copy()
    renamed[unnamed] = np.where(exchanges["n_bytes"] >= 0, uneven, op)
    return work.assign(op=Names.of(renamed))


def _communication_kernels(trace: Trace) -> Table:
    """Return the communication kernels with op, algorithm, protocol, launch, and exposed_ns."""
    rows = np.flatnonzero(trace.kernels["activity"] == Activity.COMMUNICATION.value)
    launches = launches_of(trace, "kernels").of_rows(rows)
    kernels = trace.kernels.take(rows)
    names = kernels["name"].used()
    kinds = [kernel_kind(str(name)) for name in names.texts]
    return kernels.assign(
        **{
            column: Names.coded([getattr(kind, column) for kind in kinds], names.packed)
            for column in ("op", "algorithm", "protocol")
        },
        launch_ns=launches.start_ns,
        launch_end_ns=launches.end_ns,
        thread=launches.thread,
        exposed_ns=_exposed_ns(trace, kernels),
    )


def _exposed_ns(trace: Trace, kernels: Table) -> npt.NDArray[np.float64]:
    """Return the time of each kernel that does not overlap with compute on its device."""
    starts, ends = bounds(kernels)
    exposed = (ends - starts).astype(np.float64)
    for device, rows in rows_by_value(kernels["device"]).items():
        compute = device_time(trace, device).compute
        exposed[rows] -= compute.covered_ns(starts[rows], ends[rows])
    return exposed


def _owner_of_kernels(kernels: Table, calls: Table) -> Int64Array:
    """Return the row of the call that owns each kernel; -1 without a call."""
    if calls.empty or kernels.empty:
        return np.full(len(kernels), ABSENT, np.int64)
    # The last call with a correlation ID counts, since IDs may be reused.
    known = np.flatnonzero(calls["correlation"] != ABSENT)[::-1]
    place = find_matching_rows(kernels, calls.take(known), *_KERNEL_KEYS)
    by_correlation = np.append(known, ABSENT)[place]
    threaded = np.flatnonzero(calls["thread"] != ABSENT)
    launches = (kernels[name] for name in ("process", "thread", "launch_ns"))
    # Launches before the trace have no known thread, so no call contains them.
    by_launch = np.append(threaded, ABSENT)[innermost(calls.take(threaded), *launches)]
    return np.where(by_correlation >= 0, by_correlation, by_launch)


def _describe_calls(calls: Table, kernels: Table, owner: Int64Array) -> Table:
    """Return one row per call, with the times of its kernels if it has any."""
    order = np.argsort(owner, kind="stable")
    owners, firsts = np.unique(owner[order], return_index=True)
    is_enqueued = calls["backend"].isin(_ASYNC_BACKENDS)
    counts = np.zeros(len(calls), np.int64)
    counts[owners] = np.diff(np.append(firsts, len(order)))

    def of_kernels(name: str, nothing: Any, combine: np.ufunc | None = None) -> Any:
        """Return column ``name`` of the first kernel of each call, or of all its kernels combined.

        ``nothing`` is the value (or one value per call) for calls without kernels.
        """
        found = np.full(len(calls), nothing) if np.ndim(nothing) == 0 else nothing.copy()
        if len(owners):
            values = kernels[name][order]
            found[owners] = combine.reduceat(values, firsts) if combine else values[firsts]
        return found

    first = np.full(len(calls), len(kernels))
    first[owners] = order[firsts]
    named = {
        name: Names.joined([kernels[name], Names.repeated("", 1)])[first]
        for name in ("algorithm", "protocol")
    }
    starts, ends = bounds(calls)
    return calls.select(*_CALL_COLUMNS).assign(
        start_ns=of_kernels("start_ns", starts, np.minimum),
        end_ns=of_kernels("end_ns", ends, np.maximum),
        device=of_kernels("device", ABSENT),
        stream=of_kernels("stream", ABSENT),
        **named,
        exposed_ns=of_kernels("exposed_ns", np.nan, np.add),
        kernels=counts,
        is_timed=(counts > 0) | ~is_enqueued,
        # A collective without a thread has the times of its kernel.
        call_ns=np.where(calls["thread"] == ABSENT, ABSENT, starts),
        call_end_ns=np.where(calls["thread"] == ABSENT, ABSENT, ends),
        process=calls["process"],
        thread=calls["thread"],
    )


def _describe_unclaimed(kernels: Table) -> Table:
    """Return one row per kernel that no call owns."""
    columns = ["start_ns", "end_ns", "process", "thread", "device", "stream", "exposed_ns"]
    op, nothing = kernels["op"], Names.repeated("", len(kernels))
    return kernels.select(*columns, "algorithm", "protocol", "correlation").assign(
        op=Names.coded([text or "other" for text in op.texts.tolist()], op.packed),
        **dict.fromkeys(_NUMBER_COLUMNS, ABSENT),
        **dict.fromkeys(("dtype", "group", "backend", "exchange"), nothing),
        kernels=1,
        is_timed=True,
        call_ns=kernels["launch_ns"],
        call_end_ns=kernels["launch_end_ns"],
    )
