"""Every collective of a trace once: what the host asked for, tied to the kernels that did it.

A call belongs to the kernel with its correlation, and to the kernels that were launched inside
it on its thread. A kernel that no call claims is a collective by itself: its name tells the
operation, and nobody knows its size. Calls that NCCL runs in one kernel (its groups) are one.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.errors import NotRecordedError
from traceprof.measures.device.times import device_time
from traceprof.measures.facts import fact, of_window
from traceprof.measures.host.launches import innermost, launches_of
from traceprof.measures.rows import ints
from traceprof.model.activity import Activity
from traceprof.model.compact import CompactTable
from traceprof.model.intervals import Int64Array
from traceprof.model.ranks import Ranks
from traceprof.model.tables import ABSENT
from traceprof.model.trace import HOW_TO_RECORD, Trace
from traceprof.names.messages import NON_BLOCKING, collective_op, kernel_kind
from traceprof.names.ranges import codes_containing

_KEYS: Final = ["process", "correlation"]
SINGLE_OPS: Final = ("send", "recv")


def one_per_kernel(calls: pd.DataFrame) -> pd.DataFrame:
    """Return the calls with exchange, those that share a kernel as one.

    Its size is that of all of them. Sends and receives together are one ``send_recv`` of the bytes
    that are sent; to and from every rank of the group they are an all-to-all, as NCCL and PyTorch
    carry it out. exchange says which ranks of the group take part in such ("0,2"), "" where that
    is not known or a call stands alone.
    """
    calls = calls.assign(exchange="")
    grouped = calls.duplicated(_KEYS, keep=False) & (calls["correlation"] != ABSENT)
    if not grouped.any():
        return calls
    plain = calls.astype(dict.fromkeys(("op", "dtype", "group", "backend"), object))
    both = pd.concat([plain[~grouped], _merged(plain[grouped])])
    return both.sort_values("start_ns", kind="stable", ignore_index=True)


def _merged(calls: pd.DataFrame) -> pd.DataFrame:
    """Return the first call of each kernel, with what holds for all of them."""
    calls = calls.assign(
        kernel=calls.groupby(_KEYS).ngroup(),
        is_single=calls["op"].isin(SINGLE_OPS),
        is_sent=calls["op"] == "send",
        is_sized=calls["n_bytes"] != ABSENT,
    )
    kernels = calls.groupby("kernel")
    first = kernels.first()
    several = kernels["op"].nunique() > 1
    exchanges = several & kernels["is_single"].all()
    in_exchange = exchanges[calls["kernel"]].to_numpy()
    # What is received in an exchange is what others send.
    counted = calls[~in_exchange | calls["is_sent"]].groupby("kernel")
    sizes = counted["n_bytes"].sum().where(counted["is_sized"].all(), ABSENT)
    op = first["op"].where(~several, "other").where(~exchanges, "send_recv")
    own = calls[in_exchange]
    if len(own):
        op = op.where(~exchanges, _names(own).reindex(op.index))
    has_peers = kernels["peer"].nunique() > 1
    merged = first.assign(
        op=op,
        n_bytes=sizes.reindex(first.index, fill_value=ABSENT).astype(np.int64),
        end_ns=kernels["end_ns"].max(),
        exchange=_ends(own).reindex(first.index, fill_value=""),
        **{name: first[name].where(~has_peers, ABSENT) for name in ("peer", "peer_rank")},
    )
    return merged.drop(columns=["is_single", "is_sent", "is_sized"]).reset_index(drop=True)


def _names(calls: pd.DataFrame) -> pd.Series:
    """Return what the sends and receives of each kernel are together."""
    kernels = calls.groupby("kernel")
    n_ranks = kernels["group_size"].max()
    is_whole = kernels["group_size"].min() == n_ranks
    for op in SINGLE_OPS:
        ends = calls[calls["op"] == op].groupby("kernel")["peer"]
        facts = (ends.size() == n_ranks) & (ends.nunique() == n_ranks)
        facts &= (ends.min() == 0) & (ends.max() == n_ranks - 1)
        is_whole &= facts.reindex(n_ranks.index, fill_value=False)
    is_even = kernels["n_bytes"].nunique() == 1
    names = np.where(is_whole, np.where(is_even, "all_to_all", "all_to_all_v"), "send_recv")
    return pd.Series(names, n_ranks.index, dtype=object)


def _ends(calls: pd.DataFrame) -> pd.Series:
    """Return the numbers of the ranks that take part in each kernel, where all are known."""
    own, other = (
        calls[["kernel", name]].set_axis(["kernel", "end"], axis=1)
        for name in ("group_rank", "peer")
    )
    ends = pd.concat([own, other])
    ends = ends.drop_duplicates().sort_values(["kernel", "end"])
    known = ends.groupby("kernel")["end"].transform("min") >= 0
    ends = ends[known]
    kernels, firsts = np.unique(ends["kernel"].to_numpy(), return_index=True)
    texts = ends["end"].astype(str).tolist()
    bounds = pairwise([*firsts.tolist(), len(texts)])
    joined = [",".join(texts[first:last]) for first, last in bounds]
    return pd.Series(joined, kernels, dtype=object)


USED_TABLES: Final = ("collectives", "kernels", "api_calls", "ranges")
"""What tells of collectives, and who called them."""
UNRECORDED: Final = f"no collectives recorded: {HOW_TO_RECORD['collectives']}"


_ENQUEUED: Final = ("nccl", "rccl", "hccl", "xccl", "", NON_BLOCKING)
_NUMBERS: Final = ("n_bytes", "group_size", "sequence", "group_rank", "peer", "peer_rank", "tag")
_FROM_CALL: Final = ("op", "dtype", "group", "backend", "exchange", "correlation", *_NUMBERS)
_ANNOTATION: Final = re.compile(r"(?:nccl|rccl|xccl|hccl):(\w+)")


def is_recorded(of: Trace | Ranks) -> bool:
    """Return whether collectives could be there, as calls or as kernels."""
    return bool(of.recorded & {"collectives", "kernels"})


def require_collectives(of: Trace | Ranks) -> None:
    """Check that collectives could be there.

    Raises:
        NotRecordedError: neither collectives nor kernels were recorded.
    """
    if not is_recorded(of):
        raise NotRecordedError(UNRECORDED)


@of_window
def find_collectives(trace: Trace) -> pd.DataFrame:
    """Return the collectives that start in the window, one row each, in the order of their start.

    Columns: those of ``collectives`` from op to tag; exchange (which ranks of the group send and
    receive in one kernel, "" where that is not known); start_ns and end_ns of the kernels
    where they are known, else of the call; is_timed (whether these are the time of the collective
    and not only of a call that enqueued it); call_ns and call_end_ns (`ABSENT` where no call is
    known), process, thread, device, stream, algorithm and protocol ("" where not named), kernels
    (how many), exposed_ns (the time that compute on the device does not hide; NaN without
    kernels), row (its number among those of the whole recording) and number (among those of its
    process there). All times are whole, whatever the window cuts.
    """
    found = _collectives_of_whole(trace)
    if trace.uncut is None:
        return found
    inside = trace.span.holds(found["start_ns"].to_numpy(np.int64))
    return found[inside].reset_index(drop=True)


@of_window
def collectives_of_ranks(ranks: Ranks) -> CompactTable:
    """Return the collectives of all ranks, in the order of their start.

    Columns: those of `find_collectives` and part (the place in ``ranks`` whose row ``row`` is).
    """
    found = _of_all_ranks(ranks)
    if ranks.uncut is None:
        return found
    return found.where(are_in_window(ranks))


def are_in_window(ranks: Ranks) -> npt.NDArray[np.bool_]:
    """Return which of the collectives of all ranks of the whole recording start in the window."""
    starts = _of_all_ranks(ranks).array("start_ns")
    return np.ones(len(starts), np.bool_) if ranks.uncut is None else ranks.span.holds(starts)


@fact
def _of_all_ranks(ranks: Ranks) -> CompactTable:
    # Not asked as facts of the ranks: the command would keep them beside what it makes of them.
    parts = [
        own.assign(part=np.full(len(own), i, np.int64))
        for i, own in enumerate(ranks.each(_compact))
    ]
    filled = [part for part in parts if len(part)] or parts[:1]
    if len(filled) == 1:
        return filled[0]
    both = CompactTable.stacked(filled)
    return both.in_order(np.lexsort((both.array("call_ns"), both.array("start_ns"))))


def _compact(trace: Trace) -> CompactTable:
    return CompactTable.of_frame(find_collectives(trace))


@fact
def _collectives_of_whole(trace: Trace) -> pd.DataFrame:
    kernels = _communication_kernels(trace)
    calls = one_per_kernel(trace.collectives.to_frame())
    owner = _owner_of_kernels(kernels, calls)
    claimed = owner >= 0
    described = _described(calls, kernels[claimed], owner[claimed])
    alone = _alone(kernels[~claimed])
    both = _as_annotated(trace, pd.concat([described, alone], ignore_index=True))
    both = both.sort_values(["start_ns", "call_ns"], kind="stable", ignore_index=True)
    return both.assign(row=np.arange(len(both)), number=both.groupby("process").cumcount())


def _as_annotated(trace: Trace, work: pd.DataFrame) -> pd.DataFrame:
    """Return ``work`` with what PyTorch calls sends and receives that share a kernel.

    It carries an all-to-all, a gather or a scatter out by them, inside a range of that name.
    """
    unnamed = np.flatnonzero((work["op"] == "send_recv") & (work["call_ns"] != ABSENT))
    if not len(unnamed):
        return work
    ranges = trace.whole.ranges.to_frame()
    names = ranges["name"].cat.categories
    ops = np.full(len(names), "", object)
    for code in codes_containing(names, ["ccl:"]).tolist():
        if match := _ANNOTATION.match(str(names[code])):
            ops[code] = collective_op(match[1])
    told = ops[ranges["name"].cat.codes] if len(ops) else np.empty(len(ranges), object)
    kept = np.flatnonzero((told != "") & (ranges["kind"] == "push_pop").to_numpy())
    if not len(kept):
        return work
    asked = work.iloc[unnamed]
    found = innermost(ranges.iloc[kept], *ints(asked, "process", "thread", "call_ns"))
    op = np.where(found >= 0, told[kept[np.maximum(found, 0)]], asked["op"])
    # Even parts of known size were recognised before; of a gather, sizes are not what they send.
    sized = (asked["n_bytes"] >= 0).to_numpy()
    uneven = np.where(op == "all_to_all", "all_to_all_v", asked["op"])
    renamed = work["op"].to_numpy(object, copy=True)
    renamed[unnamed] = np.where(sized, uneven, op)
    return work.assign(op=renamed)


def _communication_kernels(trace: Trace) -> pd.DataFrame:
    """Return the kernels with algorithm, protocol, launch, and the time that compute leaves."""
    kernels = trace.kernels.to_frame()
    rows = np.flatnonzero(kernels["activity"] == Activity.COMMUNICATION.value)
    launches = launches_of(trace, "kernels").of_rows(rows)
    kernels = kernels.take(rows).reset_index(drop=True)
    kinds = [kernel_kind(str(name)) for name in kernels["name"].cat.categories]
    codes = kernels["name"].cat.codes.to_numpy()
    told = ("op", "algorithm", "protocol")
    return kernels.assign(
        **{own: np.array([getattr(kind, own) for kind in kinds], object)[codes] for own in told},
        launch_ns=launches.start_ns,
        launch_end_ns=launches.end_ns,
        thread=launches.thread,
        exposed_ns=_exposed(trace, kernels),
    )


def _exposed(trace: Trace, kernels: pd.DataFrame) -> npt.NDArray[np.float64]:
    exposed = (kernels["end_ns"] - kernels["start_ns"]).to_numpy(np.float64)
    for device, rows in kernels.groupby("device").indices.items():
        compute = device_time(trace, int(str(device))).compute
        own = kernels.iloc[rows]
        exposed[rows] -= compute.covered_ns(own["start_ns"], own["end_ns"])
    return exposed


def _owner_of_kernels(kernels: pd.DataFrame, calls: pd.DataFrame) -> Int64Array:
    """Return the row of the call that each kernel belongs to, -1 where it belongs to none."""
    if calls.empty or kernels.empty:
        return np.full(len(kernels), ABSENT, np.int64)
    known = calls[calls["correlation"] != ABSENT]
    rows = known[_KEYS].assign(row=known.index).drop_duplicates(_KEYS, keep="last")
    by_number = kernels[_KEYS].merge(rows, on=_KEYS, how="left")["row"].fillna(ABSENT)
    threaded = calls[calls["thread"] != ABSENT]
    inside = innermost(threaded, *ints(kernels, "process", "thread", "launch_ns"))
    # Of who was called before the trace no thread is known: then there may be no calls to be in.
    by_place = np.append(threaded.index.to_numpy(np.int64), ABSENT)[inside]
    return np.where(by_number >= 0, by_number, by_place).astype(np.int64)


def _described(calls: pd.DataFrame, kernels: pd.DataFrame, owner: Int64Array) -> pd.DataFrame:
    """Return a row per call, with the time of its kernels where it has any."""
    order = np.argsort(owner, kind="stable")
    owners, firsts = np.unique(owner[order], return_index=True)
    is_enqueued = calls["backend"].isin(_ENQUEUED).to_numpy()
    counts = np.zeros(len(calls), np.int64)
    counts[owners] = np.diff(np.append(firsts, len(order)))

    def of_kernels(name: str, nothing: Any, combine: np.ufunc | None = None) -> Any:
        """Return what the kernels of each call say: the first of them, or all combined."""
        found = np.full(len(calls), nothing) if np.ndim(nothing) == 0 else nothing
        if len(owners):
            values = kernels[name].to_numpy()[order]
            found[owners] = combine.reduceat(values, firsts) if combine else values[firsts]
        return found

    starts, ends = (calls[name].to_numpy(np.int64, copy=True) for name in ("start_ns", "end_ns"))
    nowhere = np.full(len(calls), "", object)
    return pd.DataFrame(
        {
            **{name: _plain(calls[name]) for name in _FROM_CALL},
            "start_ns": of_kernels("start_ns", starts, np.minimum),
            "end_ns": of_kernels("end_ns", ends, np.maximum),
            "device": of_kernels("device", ABSENT),
            "stream": of_kernels("stream", ABSENT),
            "algorithm": of_kernels("algorithm", nowhere.copy()),
            "protocol": of_kernels("protocol", nowhere.copy()),
            "exposed_ns": of_kernels("exposed_ns", np.nan, np.add),
            "kernels": counts,
            "is_timed": (counts > 0) | ~is_enqueued,
            "call_ns": calls["start_ns"],
            "call_end_ns": calls["end_ns"],
            "process": calls["process"],
            "thread": calls["thread"],
        }
    )


def _plain(column: pd.Series) -> pd.Series:
    """Return texts as objects, numbers as they are: sums over objects cost a call per group."""
    return column if pd.api.types.is_numeric_dtype(column) else column.astype(object)


def _alone(kernels: pd.DataFrame) -> pd.DataFrame:
    """Return a row per kernel that no call claims."""
    n = len(kernels)
    columns = ["start_ns", "end_ns", "process", "thread", "device", "stream", "exposed_ns"]
    return kernels[[*columns, "algorithm", "protocol"]].assign(
        op=kernels["op"].replace("", "other"),
        **{name: np.full(n, ABSENT) for name in _NUMBERS},
        correlation=kernels["correlation"],
        dtype="",
        group="",
        backend="",
        exchange="",
        kernels=1,
        is_timed=True,
        call_ns=kernels["launch_ns"],
        call_end_ns=kernels["launch_end_ns"],
    )
