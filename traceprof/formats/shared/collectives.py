"""Find collectives that only an annotation records, and the kernels that execute collectives."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import numpy.typing as npt

from traceprof.model.activity import Activity
from traceprof.model.grouping import find_matching_rows, rows_by_values
from traceprof.model.table import Names, Table
from traceprof.model.tables import ABSENT, empty_table, make_table
from traceprof.names.messages import collective_op

_SINGLE: Final = ("send", "recv")
_NEVER_NS: Final = np.iinfo(np.int64).max
_LAUNCH: Final = ("process", "correlation")
_LANE: Final = ("process", "thread")
ANNOTATING_BACKENDS: Final = ("nccl", "gloo", "ucc", "mpi", "xccl", "hccl")
"""Prefixes of PyTorch's annotations of collectives, followed by a colon."""
_ANNOTATION: Final = re.compile(rf"({'|'.join(ANNOTATING_BACKENDS)}):(\w+)")


def is_annotated(name: str) -> bool:
    """Return whether a range of this name is a collective."""
    found = _ANNOTATION.match(name)
    return found is not None and collective_op(found.group(2)) != ""


def is_exchange(name: str) -> bool:
    """Return whether a kernel of this name executes sends and receives."""
    return "sendrecv" in name.lower()


def annotated_collectives(annotations: Table, kernels: Table, api_calls: Table) -> Table:
    """Return ranges or operators with names such as ``nccl:all_reduce``, linked to kernels.

    `torch.autograd.profiler.emit_nvtx` appends more text to these names.
    """
    names = [_ANNOTATION.match(name) for name in annotations["name"].texts.tolist()]
    ops = [collective_op(found.group(2)) if found else "" for found in names]
    backends = [found.group(1) if found else "" for found in names]
    rows = annotations.take(annotations["name"].by_text(np.array(ops, np.bool_)))
    if rows.empty:
        return empty_table("collectives")
    codes = rows["name"].codes
    table = make_table(
        "collectives",
        {
            **rows.select("start_ns", "end_ns", *_LANE).columns,
            "op": Names.coded(ops, codes, is_sorted=True),
            "backend": Names.coded(backends, codes, is_sorted=True),
        },
    )
    return link_by_launch(table, kernels, api_calls)


def link_by_launch(
    collectives: Table,
    kernels: Table,
    api_calls: Table,
    latest_ns: npt.NDArray[np.int64] | None = None,
) -> Table:
    """Return ``collectives`` with a correlation for those that have none.

    The correlation is that of the first communication kernel that the same thread launched inside
    the call or, if ``latest_ns`` is given, between the start of the call and that time.
    """
    is_open = collectives["correlation"] == ABSENT
    if not is_open.any():
        return collectives
    is_communication = kernels["activity"] == Activity.COMMUNICATION.value
    launches = _launches_of(kernels.take(is_communication), api_calls)
    until_ns = collectives["end_ns"] if latest_ns is None else latest_ns
    return _tied(collectives, is_open, launches, until_ns)


def _launches_of(kernels: Table, api_calls: Table) -> Table:
    """Return the API calls that launched ``kernels``."""
    candidates = api_calls.take(np.isin(api_calls["correlation"], kernels["correlation"]))
    return candidates.take(find_matching_rows(candidates, kernels, *_LAUNCH) >= 0)


def link_to_batches(collectives: Table, kernels: Table, api_calls: Table) -> Table:
    """Return ``collectives`` with the correlation of their batch, for sends and receives.

    PyTorch's ``batch_isend_irecv`` launches one kernel for all calls when the group ends, after the
    calls (pytorch#194693). That kernel is the next SendRecv kernel that the thread launches and
    that no call has, unless another collective with a kernel comes in between.
    """
    is_tied = collectives["correlation"] != ABSENT
    is_open = collectives["op"].isin(_SINGLE) & ~is_tied
    names = kernels["name"]
    is_send_recv = np.array(list(map(is_exchange, names.texts.tolist())), np.bool_)
    if not is_open.any() or not is_send_recv.any():
        return collectives
    launches = _launches_of(kernels.take(names.by_text(is_send_recv)), api_calls)
    is_claimed = find_matching_rows(launches, collectives.take(is_tied), *_LAUNCH) >= 0
    begins = collectives["start_ns"]
    until_ns = np.full(len(collectives), _NEVER_NS)
    for rows in rows_by_values(*(collectives[name] for name in _LANE)).values():
        rivals = np.sort(begins[rows[is_tied[rows]]])
        until_ns[rows] = np.append(rivals, _NEVER_NS)[np.searchsorted(rivals, begins[rows])]
    return _tied(collectives, is_open, launches.take(~is_claimed), until_ns)


def _tied(
    collectives: Table,
    is_open: npt.NDArray[np.bool_],
    launches: Table,
    until_ns: npt.NDArray[np.int64],
) -> Table:
    """Link open collectives to the next of ``launches`` on their thread before ``until_ns``."""
    if launches.empty:
        return collectives
    begins, correlation = collectives["start_ns"], collectives["correlation"].copy()
    open_rows = rows_by_values(*(collectives[name][is_open] for name in _LANE))
    launches = launches.in_order("start_ns")
    for lane, rows in rows_by_values(*(launches[name] for name in _LANE)).items():
        if lane not in open_rows:
            continue
        places = np.flatnonzero(is_open)[open_rows[lane]]
        starts = launches["start_ns"][rows]
        next_launch = np.searchsorted(starts, begins[places])
        has_next = next_launch < len(starts)
        places, next_launch = places[has_next], next_launch[has_next]
        in_time = starts[next_launch] < until_ns[places]
        correlation[places[in_time]] = launches["correlation"][rows[next_launch[in_time]]]
    return collectives.assign(correlation=correlation)
