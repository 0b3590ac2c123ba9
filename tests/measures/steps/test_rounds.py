"""Rounds: steps, and of programs that train nothing the forward passes."""

from __future__ import annotations

from tests.builders import TraceBuilder, plain
from traceprof.measures.steps.main_loop import find_iterations

COLUMNS = ("round", "start_ns", "end_ns", "is_warmup")


def forward_only(
    lengths: list[int], *, has_batches: bool = True, name: str = "forward"
) -> TraceBuilder:
    """Return passes of these lengths: 2 ns for the batch, the rest forward, a loss at the end."""
    builder, now = TraceBuilder(), 0
    for length in lengths:
        if has_batches:
            builder.phase("data", now, now + 2)
        builder.phase(name, now + 2, now + length - 3)
        if has_batches:
            builder.phase(name, now + length - 2, now + length)
        now += length
    return builder


def test_a_round_goes_from_batch_to_batch() -> None:
    rounds = find_iterations(forward_only([20, 30, 25]).build())
    assert plain(rounds, *COLUMNS) == [(0, 0, 20, False), (1, 20, 50, False), (2, 50, 75, False)]


def test_passes_without_gradients_are_rounds_where_there_are_no_others() -> None:
    rounds = find_iterations(forward_only([20, 30], name="eval").build())
    assert plain(rounds, "start_ns", "end_ns") == [(0, 20), (20, 50)]
    builder = forward_only([20, 30]).phase("data", 50, 52).phase("eval", 52, 60)
    assert len(find_iterations(builder.build())) == 2


def test_without_batches_every_pass_is_a_round() -> None:
    rounds = find_iterations(forward_only([20, 30], has_batches=False).build())
    assert plain(rounds, "start_ns", "end_ns") == [(2, 22), (22, 47)]


def test_the_start_of_an_iterator_belongs_to_the_first_round() -> None:
    trace = TraceBuilder().phase("data", 0, 3).phase("data", 4, 6).phase("forward", 6, 9).build()
    assert plain(find_iterations(trace), "start_ns", "end_ns") == [(0, 9)]


def test_leading_slow_rounds_are_warm_up() -> None:
    rounds = find_iterations(forward_only([90, 20, 20, 20, 20]).build())
    assert rounds["is_warmup"].tolist() == [True, False, False, False, False]


def test_steps_are_rounds_until_the_next_one_starts() -> None:
    trace = TraceBuilder().step(0, 10).step(15, 25).step(30, 40).build()
    assert plain(find_iterations(trace), "start_ns", "end_ns") == [(0, 15), (15, 30), (30, 40)]


def test_a_process_that_trains_without_steps_has_none() -> None:
    builder = TraceBuilder().phase("forward", 0, 10).phase("backward", 10, 20)
    builder.phase("forward", 0, 10, process=2).phase("backward", 10, 20, process=2)
    builder.phase("optimizer", 20, 30, process=2)
    assert find_iterations(builder.build())["process"].tolist() == [2]


def test_every_process_has_its_own() -> None:
    builder = TraceBuilder().phase("forward", 0, 10, process=1).phase("forward", 5, 30, process=2)
    rounds = find_iterations(builder.build())
    assert plain(rounds, "process", "start_ns", "end_ns") == [(1, 0, 10), (2, 5, 30)]
