"""Where no steps are known the loop is judged, not its set-up."""

from tests.builders import TraceBuilder
from traceprof.measures.steps.main_loop import main_loop
from traceprof.model.ranks import Ranks


def irregular(at: int, n_kernels: int, builder: TraceBuilder) -> TraceBuilder:
    """Kernels without a pause, of which no two are alike."""
    for i in range(n_kernels):
        called = (at + 10 * i - 5, at + 10 * i - 4)
        builder.kernel(f"k{i}", at + 10 * i, at + 10 * i + 10, launched_ns=called)
    return builder


def test_a_set_up_of_ten_times_the_loop_is_left_out() -> None:
    builder = TraceBuilder()
    for i in range(50):
        builder.copy("h2d", 200 * i, 200 * i + 190, n_bytes=1000)
    found = main_loop(Ranks.of(irregular(10_000, 100, builder).build()))
    assert found is not None
    assert (found.window.start_ns, found.window.end_ns) == (10_000, 11_000)
    assert (found.before_ns, found.after_ns, found.turns_count) == (10_000, 0, 0)


def test_copies_throughout_are_no_set_up() -> None:
    builder = TraceBuilder()
    for i in range(50):
        builder.copy("h2d", 200 * i, 200 * i + 100)
        builder.kernel(f"k{i}", 200 * i + 100, 200 * i + 110)
    found = main_loop(Ranks.of(builder.build()))
    assert found is not None
    assert (found.before_ns, found.after_ns) == (0, 0)


def test_what_is_copied_back_in_the_end_is_left_out() -> None:
    builder = irregular(0, 100, TraceBuilder()).copy("d2h", 1_500, 4_000)
    found = main_loop(Ranks.of(builder.build()))
    assert found is not None
    assert (found.window.end_ns, found.after_ns) == (1_000, 3_000)


def test_ranges_that_are_called_set_up_are_left_out_with_their_work() -> None:
    builder = irregular(100, 100, TraceBuilder()).range("init_model", 0, 50)
    builder.range("warm-up", 95, 296)
    found = main_loop(Ranks.of(builder.build()))
    assert found is not None
    # The last kernel of the warm-up is launched at 295 and ends at 310.
    assert (found.window.start_ns, found.setup) == (310, "warm-up")


def test_a_first_turn_that_loads_kernels_is_left_out() -> None:
    builder, at = TraceBuilder(), 0
    for turn in range(9):
        for name in ("gemm", "relu", "norm", "softmax"):
            at += 2_000 if turn == 0 else 20
            builder.kernel(name, at, at + 100, launched_ns=(at - 9, at - 5))
            at += 100
    found = main_loop(Ranks.of(builder.build()))
    assert found is not None
    assert found.turns_count == 7  # and the last has no next
    assert 6_000 <= found.before_ns < 9_000


def test_without_device_work_there_is_no_loop() -> None:
    assert main_loop(Ranks.of(TraceBuilder().range("x", 0, 10).build())) is None
