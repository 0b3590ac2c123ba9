"""Calls that NCCL runs in one kernel (its groups), as one collective each."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np
import pandas as pd

from traceprof.model.tables import ABSENT

__all__ = ["one_per_kernel"]

_KEYS: Final = ["process", "correlation"]
_SINGLE: Final = ("send", "recv")


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
        is_single=calls["op"].isin(_SINGLE),
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
    for op in _SINGLE:
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
