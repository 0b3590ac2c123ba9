"""Pipeline stages: which ranks they are, and how long they stand still."""

from __future__ import annotations

from fractions import Fraction

import pytest

from tests.builders import TraceBuilder
from tests.reading import rows, said
from tests.running import run
from traceprof.measures.ranks.pipeline import Stage, find_stages
from traceprof.model.ranks import Ranks
from traceprof.model.trace import Trace


def gpipe(n_stages: int, n_micro: int, *, named: bool = False, n_steps: int = 2) -> Trace:
    """All forwards (10 ns each), then all backwards (20 ns): stage s begins s slots later."""
    builder = TraceBuilder()
    length = 30 * (n_micro + n_stages - 1)
    for stage in range(n_stages):
        builder.process(stage + 1, rank=10 - stage)
        for step in range(n_steps):
            begin = 1000 * step
            add_stage(builder, stage, n_stages, n_micro, begin, named)
            builder.step(begin, begin + length + 5, step, process=stage + 1)
    return builder.build()


def add_stage(
    builder: TraceBuilder, stage: int, n_stages: int, n_micro: int, begin: int, named: bool
) -> None:
    process = stage + 1
    half = begin + 10 * (n_micro + n_stages - 1)
    for micro in range(n_micro):
        forward = begin + 10 * (stage + micro)
        backward = half + 20 * (n_stages - 1 - stage + micro)
        for name, start, duration in (("fwd gemm", forward, 10), ("bwd gemm", backward, 20)):
            builder.kernel(name, start, start + duration, process=process, device=stage)
        if named:
            builder.range(f"stage {stage} micro {micro}", forward, forward + 1, process=process)
            continue
        for sends, start in ((stage < n_stages - 1, forward), (stage > 0, backward)):
            if sends:
                builder.collective("send", start, start + 1, n_bytes=8, process=process)


@pytest.mark.parametrize(("n_stages", "n_micro"), [(2, 4), (4, 8), (4, 1)])
def test_the_bubble_of_gpipe_is_what_the_paper_says(n_stages: int, n_micro: int) -> None:
    stages = rows(run("pipeline", gpipe(n_stages, n_micro)))
    ideal = Fraction(n_stages - 1, n_micro + n_stages - 1)
    assert [stage.stage for stage in stages] == list(range(n_stages))
    assert [stage.rank for stage in stages] == [10 - stage for stage in range(n_stages)]
    for stage in stages:
        assert stage.bubble_ratio == pytest.approx(float(ideal))
        assert stage.ideal_ratio == pytest.approx(float(ideal))
        assert (stage.micro_batches, stage.step_count) == (n_micro, 2)
        assert stage.bubble_ns + stage.busy_ns == stage.span_ns


def test_stages_that_ranges_name_need_no_sends() -> None:
    result = run("pipeline", gpipe(3, 5, named=True))
    assert [stage.stage for stage in rows(result)] == [0, 1, 2]
    assert rows(result)[0].ideal_ratio is None
    assert said(result) == ["3 stages (detected from ranges): 28.6% bubble"]


def test_collectives_are_work_and_receives_are_waiting() -> None:
    trace = (
        TraceBuilder()
        .range("stage 0", 0, 1, process=1)
        .range("stage 1", 0, 1, process=2)
        .kernel("gemm", 0, 100, process=1, device=0)
        .kernel("ncclDevKernel_SendRecv", 0, 60, process=2, device=1)
        .kernel("ncclDevKernel_AllReduce", 60, 80, process=2, device=1)
        .kernel("gemm", 80, 100, process=2, device=1)
        .build()
    )
    first, second = rows(run("pipeline", trace))
    assert (first.bubble_ns, second.bubble_ns) == (0, 60)


def test_ranks_that_only_reduce_are_no_pipeline() -> None:
    builder = TraceBuilder()
    for process in (1, 2):
        builder.kernel("ncclDevKernel_SendRecv", 0, 60, process=process, device=process)
    result = run("pipeline", builder.build())
    assert result.table.empty
    assert "No pipeline stages found" in said(result)[0]


def one_f_one_b(pipelines: list[list[int]], n_micro: int) -> Trace:
    """Pipelines side by side: forwards down, backwards up, the messages told by global ranks.

    The first stage computes last, so that only the messages tell the order.
    """
    builder = TraceBuilder()
    for chain in pipelines:
        for place, rank in enumerate(chain):
            process = rank + 1
            builder.process(process, rank=rank)
            builder.step(0, 2000, 0, process=process)
            builder.kernel("gemm", 500 - 100 * place, 1000, process=process, device=rank)
            for micro in range(n_micro):
                for op, other, at in _messages(chain, place, micro):
                    more = {"peer_rank": other, "peer": other, "n_bytes": 8, "process": process}
                    builder.collective(op, at, at + 5, group_size=8, backend="gloo", **more)
    return builder.build()


def _messages(chain: list[int], place: int, micro: int) -> list[tuple[str, int, int]]:
    down, up = 10 * (place + micro), 1000 - 10 * place + 10 * micro
    found = []
    if place > 0:
        found += [("recv", chain[place - 1], down), ("send", chain[place - 1], up)]
    if place < len(chain) - 1:
        found += [("send", chain[place + 1], down), ("recv", chain[place + 1], up)]
    return found


def test_pipelines_side_by_side_are_told_by_who_sends_first() -> None:
    result = run("pipeline", one_f_one_b([[3, 1, 5], [2, 0, 4]], n_micro=4))
    assert [(s.pipeline, s.stage, s.rank) for s in rows(result)] == [
        (0, 0, 2),
        (0, 1, 0),
        (0, 2, 4),
        (1, 0, 3),
        (1, 1, 1),
        (1, 2, 5),
    ]
    assert {stage.micro_batches for stage in rows(result)} == {4}
    assert said(result)[0].startswith("6 stages in 2 pipelines (detected from messages):")


def test_an_all_to_all_of_sends_makes_no_pipeline() -> None:
    builder = TraceBuilder()
    for rank in (0, 1):
        builder.process(rank + 1, rank=rank)
        builder.kernel("gemm", 0, 50, process=rank + 1, device=rank)
        for op in ("send", "recv"):
            for peer in (0, 1):
                ends = {"group_rank": rank, "peer": peer, "process": rank + 1, "correlation": 9}
                builder.collective(op, 60, 61, n_bytes=8, **ends)
        kernel = {"process": rank + 1, "device": rank, "correlation": 9}
        builder.kernel("ncclDevKernel_SendRecv", 70, 90, **kernel)
    assert run("pipeline", builder.build()).table.empty


def test_calls_whose_kernel_is_missing_make_no_pipeline() -> None:
    builder = TraceBuilder()
    for process in (1, 2):
        builder.kernel("gemm", 0, 50, process=process, device=process)
        for op in ("send", "recv", "send", "recv"):
            builder.collective(op, 60, 61, process=process, group="", group_size=-1)
    assert not any(stage.detected_by == "messages" for stage in _stages(builder.build()))


def _stages(trace: Trace) -> tuple[Stage, ...]:
    return find_stages(Ranks.of(trace))
