"""Collectives: those that only an annotation tells, and which kernels carry them out."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.formats.sqlite.columns import categorical
from traceprof.model.activity import Activity
from traceprof.model.tables import ABSENT, empty_table, make_table
from traceprof.names.messages import collective_op

_SINGLE: Final = ("send", "recv")
_NEVER_NS: Final = np.iinfo(np.int64).max
_LAUNCH: Final = ["process", "correlation"]
_LANE: Final = ["process", "thread"]
ANNOTATING_BACKENDS: Final = ("nccl", "gloo", "ucc", "mpi", "xccl", "hccl")
"""What PyTorch's annotations of collectives begin with, before a colon."""
_ANNOTATION: Final = re.compile(rf"({'|'.join(ANNOTATING_BACKENDS)}):(\w+)")


def is_annotated(name: str) -> bool:
    """Return whether a range of this name is a collective."""
    found = _ANNOTATION.match(name)
    return found is not None and collective_op(found.group(2)) != ""


def is_exchange(name: str) -> bool:
    """Return whether a kernel of this name carries out sends and receives."""
    return "sendrecv" in name.lower()


def annotated_collectives(
    annotations: pd.DataFrame, kernels: pd.DataFrame, api_calls: pd.DataFrame
) -> pd.DataFrame:
    """Return the ranges or operators called ``nccl:all_reduce`` and the like.

    They are tied to the kernels that they launch. `torch.autograd.profiler.emit_nvtx` writes
    them with more behind the name.
    """
    names = [_ANNOTATION.match(str(name)) for name in annotations["name"].cat.categories]
    ops = [collective_op(found.group(2)) if found else "" for found in names]
    backends = [found.group(1) if found else "" for found in names]
    chosen = np.array([bool(op) for op in ops], np.bool_)[annotations["name"].cat.codes]
    rows = annotations[chosen]
    if rows.empty:
        return empty_table("collectives")
    codes = rows["name"].cat.codes.to_numpy()
    table = make_table(
        "collectives",
        {
            **{name: rows[name].to_numpy() for name in ("start_ns", "end_ns", "process", "thread")},
            "op": categorical(codes, ops),
            "backend": categorical(codes, backends),
        },
    )
    return tied_by_launch(table, kernels, api_calls)


def tied_by_launch(
    collectives: pd.DataFrame,
    kernels: pd.DataFrame,
    api_calls: pd.DataFrame,
    latest_ns: npt.NDArray[np.int64] | None = None,
) -> pd.DataFrame:
    """Return ``collectives`` with a correlation for those that have none.

    It is that of the first communication kernel that the same thread launched inside the call
    or, where ``latest_ns`` is given, between its start and that time.
    """
    is_communication = kernels["activity"] == Activity.COMMUNICATION.value
    launched = kernels.loc[is_communication, _LAUNCH].drop_duplicates()
    may_launch = np.isin(api_calls["correlation"].to_numpy(), launched["correlation"].to_numpy())
    launches = api_calls[may_launch].merge(launched, on=_LAUNCH)
    is_open = (collectives["correlation"] == ABSENT).to_numpy()
    until = collectives["end_ns"].to_numpy() if latest_ns is None else latest_ns
    return _tied(collectives, is_open, launches, until)


def tied_to_batches(
    collectives: pd.DataFrame, kernels: pd.DataFrame, api_calls: pd.DataFrame
) -> pd.DataFrame:
    """Return ``collectives`` with the correlation of the batch that sends and receives are part of.

    PyTorch's ``batch_isend_irecv`` launches one kernel for all of them when the group ends, after
    the calls (pytorch#194693): it is the next SendRecv kernel that the thread launches and no
    call claims, unless another collective with a kernel comes in between.
    """
    is_tied = (collectives["correlation"] != ABSENT).to_numpy()
    is_open = collectives["op"].isin(_SINGLE).to_numpy() & ~is_tied
    names = kernels["name"].cat
    exchanging = np.array([is_exchange(str(name)) for name in names.categories], np.bool_)
    if not is_open.any() or not exchanging.any():
        return collectives
    exchanges = kernels.loc[exchanging[names.codes], _LAUNCH].drop_duplicates()
    claimed = collectives.loc[is_tied, _LAUNCH].drop_duplicates().assign(is_claimed=True)
    launches = api_calls.merge(exchanges, on=_LAUNCH).merge(claimed, how="left", on=_LAUNCH)
    begins = collectives["start_ns"].to_numpy()
    until = np.full(len(collectives), _NEVER_NS)
    for rows in collectives.groupby(_LANE).indices.values():
        rivals = np.sort(begins[rows[is_tied[rows]]])
        following = np.searchsorted(rivals, begins[rows])
        until[rows] = np.append(rivals, _NEVER_NS)[following]
    return _tied(collectives, is_open, launches[launches["is_claimed"].isna()], until)


def _tied(
    collectives: pd.DataFrame,
    is_open: npt.NDArray[np.bool_],
    launches: pd.DataFrame,
    until_ns: npt.NDArray[np.int64],
) -> pd.DataFrame:
    """Tie those that are open to the next of ``launches`` of their thread, if it is in time."""
    if not is_open.any() or launches.empty:
        return collectives
    begins = collectives["start_ns"].to_numpy()
    correlation = collectives["correlation"].to_numpy().copy()
    wanted = collectives[is_open].groupby(_LANE).indices
    for lane, mine in launches.sort_values("start_ns", kind="stable").groupby(_LANE):
        if lane not in wanted:
            continue
        places = np.flatnonzero(is_open)[wanted[lane]]
        starts = mine["start_ns"].to_numpy()
        first = np.searchsorted(starts, begins[places])
        found = first < len(starts)
        places, first = places[found], first[found]
        in_time = starts[first] < until_ns[places]
        correlation[places[in_time]] = mine["correlation"].to_numpy()[first[in_time]]
    return collectives.assign(correlation=correlation)
