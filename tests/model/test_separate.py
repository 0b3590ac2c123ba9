"""Ranks of one file become one trace each, where no GPU tells them apart."""

from __future__ import annotations

from tests.builders import TraceBuilder
from tests.training import MS
from traceprof.model.ranks import Ranks
from traceprof.model.separate import separate_ranks
from traceprof.model.trace import Trace


def file_of(n_ranks: int, *, on_gpu: bool = False) -> Trace:
    """Return a file with a launcher and the phases of so many ranks, of 10 ms each."""
    builder = TraceBuilder().process(1, name="launcher")
    for rank in range(n_ranks):
        process = 10 + rank
        builder.process(process, rank=rank, world_size=n_ranks)
        builder.phase("forward", 0, 10 * MS, process=process)
        builder.sample("cpu_seconds", 0, 1.0 + rank, source=f"process:{process}")
        if on_gpu:
            builder.kernel("gemm", 0, MS, process=process, device=rank)
    return builder.sample("bytes_sent", 0, 5.0, source="nic:eth0").build()


def test_each_rank_of_a_file_is_a_trace() -> None:
    found = separate_ranks(Ranks.of(file_of(2)))
    assert [part.ranges["process"].tolist() for part in found] == [[10], [11]]
    # The launcher and the machine belong to the first rank.
    assert [part.processes["process"].tolist() for part in found] == [[1, 10], [11]]
    sources = [sorted(part.samples["source"].tolist()) for part in found]
    assert sources == [["nic:eth0", "process:10"], ["process:11"]]
    assert len({part.span for part in found}) == 1


def test_no_row_is_lost_or_doubled() -> None:
    file = file_of(3)
    found = separate_ranks(Ranks.of(file))
    for name in ("ranges", "processes", "samples"):
        assert sum(len(part.table(name)) for part in found) == len(file.table(name)), name


def test_a_file_of_one_rank_or_with_work_on_gpus_stays_whole() -> None:
    for file in (file_of(1), file_of(2, on_gpu=True)):
        ranks = Ranks.of(file)
        assert separate_ranks(ranks) is ranks
