"""Sends and receives of several ranks, which several tests look at."""

from __future__ import annotations

from tests.builders import TraceBuilder

SEND_RECV = "ncclDevKernel_SendRecv"


def ranks(n: int) -> TraceBuilder:
    builder = TraceBuilder()
    for rank in range(n):
        builder.process(rank + 1, rank=rank)
    return builder


def add(
    builder: TraceBuilder, op: str, own: int, other: int, times: tuple[int, int], **more: object
) -> TraceBuilder:
    """A send or receive of rank ``own`` over gloo in a group of 4, told by global ranks."""
    facts = {"n_bytes": 1000, "group_size": 4, "backend": "gloo", "peer_rank": other, **more}
    return builder.collective(op, *times, process=own + 1, **facts)


def exchange(n: int, peers: dict[int, list[int]], n_bytes: int = 100) -> TraceBuilder:
    """Each rank sends to and receives from its peers in one kernel, over NCCL."""
    builder = TraceBuilder()
    for rank in range(n):
        builder.process(rank + 1, rank=rank).device(rank, "NVIDIA H100 80GB HBM3")
        for op in ("send", "recv"):
            for peer in peers[rank]:
                facts = {"group_size": n, "group_rank": rank, "peer": peer, "n_bytes": n_bytes}
                builder.collective(op, 0, 5, process=rank + 1, correlation=1, **facts)
        times = (100 + rank, 200)
        builder.kernel(SEND_RECV, *times, correlation=1, process=rank + 1, device=rank)
    return builder
