import json
from pathlib import Path

import numpy as np
import pytest

from tests.builders import TraceBuilder, plain
from traceprof.errors import UsageError
from traceprof.measures.steps.find import (
    find_pattern,
    find_steps,
    mark_steps,
    pattern_of_ranks,
    steps_of_ranks,
)
from traceprof.model.activity import Activity
from traceprof.model.ranks import Ranks
from traceprof.model.timing import TimeWindow
from traceprof.session.options import Opening
from traceprof.session.run import open_run

COLUMNS = ("process", "step", "start_ns", "end_ns")


def test_no_annotations_and_no_kernels_make_no_steps() -> None:
    steps = find_steps(TraceBuilder().build())
    assert (len(steps), steps.source) == (0, "")


def test_explicit_steps_win_over_everything() -> None:
    trace = (
        TraceBuilder()
        .step(0, 10, number=5)
        .step(10, 30, number=6)
        .range("ProfilerStep#1", 0, 40)
        .build()
    )
    steps = find_steps(trace)
    assert steps.source == "traceprof.step()"
    assert plain(steps.table.to_frame(), *COLUMNS) == [(1, 5, 0, 10), (1, 6, 10, 30)]


def test_steps_of_recorded_phases_last_to_the_next_batch() -> None:
    builder = TraceBuilder()
    for start in (0, 100):
        builder.phase("data", start, start + 10).phase("forward", start + 10, start + 40)
        builder.phase("backward", start + 40, start + 80).phase("optimizer", start + 80, start + 90)
    steps = find_steps(builder.build())
    assert steps.source == "recorded phases"
    # The last step has no next batch: it ends with its optimizer.
    assert plain(steps.table.to_frame(), *COLUMNS) == [(1, 0, 0, 100), (1, 1, 100, 190)]


def test_gradient_accumulation_is_one_step() -> None:
    builder = TraceBuilder()
    for start in (0, 50):
        builder.phase("data", start, start + 5).phase("forward", start + 5, start + 20)
        builder.phase("backward", start + 20, start + 50)
    builder.phase("optimizer", 100, 110)
    assert plain(find_steps(builder.build()).table.to_frame(), *COLUMNS) == [(1, 0, 0, 110)]


def test_evaluation_belongs_to_no_step() -> None:
    trace = (
        TraceBuilder()
        .phase("data", 0, 5)
        .phase("forward", 5, 10)
        .phase("backward", 10, 20)
        .phase("optimizer", 20, 30)
        .phase("data", 40, 45)
        .phase("eval", 45, 60)
        .build()
    )
    assert plain(find_steps(trace).table.to_frame(), *COLUMNS) == [(1, 0, 0, 40)]


@pytest.mark.parametrize(
    ("names", "numbers"),
    [
        (["step 3", "step 4"], [3, 4]),
        (["iteration", "iteration"], [0, 1]),
        (["Warm-up Step 5", "Warm-up Step 6"], [5, 6]),
        (["train_step_7", "train_step_8"], [7, 8]),
        (["ProfilerStep#1", "ProfilerStep#2"], [1, 2]),
        (["Epoch 1, Batch 30", "Epoch 1, Batch 31"], [30, 31]),
        # The numbers restart: places tell the steps apart.
        (["epoch 0 step 0", "epoch 1 step 0"], [0, 1]),
    ],
)
def test_names_that_people_give_steps(names: list[str], numbers: list[int]) -> None:
    builder = TraceBuilder()
    for i, name in enumerate(names):
        builder.range(name, 10 * i, 10 * i + 9)
    assert find_steps(builder.build()).table.to_frame()["step"].tolist() == numbers


def test_steps_between_the_ends_of_pytorchs_optimizer() -> None:
    builder = TraceBuilder()
    for i in range(4):
        builder.range("Optimizer.step#SGD.step", 100 * i + 80, 100 * i + 90)
        builder.range("Optimizer.step#SGD.step", 100 * i + 70, 100 * i + 80, process=2)
    builder.range("Optimizer.step#Adam.step", 40, 50)
    steps = find_steps(builder.build())
    assert steps.source == "ends of Optimizer.step"
    expected = [(1, i, 100 * i - 10, 100 * i + 90) for i in range(1, 4)]
    expected += [(2, i, 100 * i - 20, 100 * i + 80) for i in range(1, 4)]
    assert plain(steps.table.to_frame(), *COLUMNS) == expected


@pytest.mark.parametrize(
    "name",
    [
        "optimizer step 3",
        "Optimizer.zero_grad#SGD.zero_grad",
        "lr_scheduler step 1",
        "stepping",
        "x",
    ],
)
def test_names_that_are_no_steps(name: str) -> None:
    assert len(find_steps(TraceBuilder().range(name, 0, 10).build())) == 0


def test_a_step_inside_a_step_is_not_another() -> None:
    trace = TraceBuilder().range("step 1", 0, 100).range("step 2", 10, 20).build()
    assert find_steps(trace).table.to_frame()["step"].tolist() == [1]


def test_the_thread_with_most_steps_speaks_for_its_process() -> None:
    trace = (
        TraceBuilder()
        .range("step 1", 0, 10)
        .range("step 2", 10, 20)
        .range("step 9", 5, 8, thread=2)
        .range("step 1", 2, 12, process=7)
        .build()
    )
    found = plain(find_steps(trace).table.to_frame(), *COLUMNS)
    assert found == [(1, 1, 0, 10), (1, 2, 10, 20), (7, 1, 2, 12)]


def test_payloads_number_steps_without_numbers() -> None:
    trace = (
        TraceBuilder().range("step", 0, 5, payload=40.0).range("step", 5, 9, payload=41.0).build()
    )
    assert find_steps(trace).table.to_frame()["step"].tolist() == [40, 41]


def test_the_name_may_declare_a_warmup() -> None:
    builder = TraceBuilder()
    for i in range(8):
        name = f"warmup step {i}" if i < 2 else f"step {i}"
        builder.range(name, 10 * i, 10 * i + 10)
    assert find_steps(builder.build()).warmup().tolist() == [True] * 2 + [False] * 6


def test_warmup_can_be_given() -> None:
    builder = TraceBuilder()
    for i in range(4):
        builder.step(10 * i, 10 * i + 10, number=i)
        builder.step(10 * i, 10 * i + 10, number=i, process=2)
    trace = builder.build()
    assert find_steps(trace.with_warmup(0)).warmup().sum() == 0
    assert find_steps(trace.with_warmup(3)).warmup().tolist() == [True, True, True, False] * 2


def test_the_warmup_of_a_window_is_that_of_the_whole_trace() -> None:
    builder, at = TraceBuilder(), 0
    for i, duration in enumerate([90, 90, 10, 10, 10, 10, 10, 10]):
        builder.step(at, at + duration, number=i)
        at += duration
    cut = builder.build().within(TimeWindow(90, 220))
    assert find_steps(cut).warmup().tolist() == [True, False, False, False, False]


def test_a_cut_trace_keeps_the_steps_that_are_whole() -> None:
    trace = TraceBuilder().step(0, 10, number=1).step(10, 20, number=2).step(20, 30, 3).build()
    cut = trace.within(TimeWindow(5, 30)).within(TimeWindow(5, 29))
    assert plain(find_steps(cut).table.to_frame(), *COLUMNS) == [(1, 2, 10, 20)]


def test_steps_of_the_users_own_pattern() -> None:
    trace = TraceBuilder().step(0, 99).range("it-1-x", 0, 10).range("it-2-x", 10, 20).build()
    steps = steps_of_ranks(mark_steps(Ranks.of(trace), r"it-(\d+)-x"))
    assert steps.source == "ranges selected as steps"
    assert plain(steps.table.to_frame(), *COLUMNS) == [(1, 1, 0, 10), (1, 2, 10, 20)]


@pytest.mark.parametrize("pattern", ["(", "nothing like this"])
def test_a_bad_step_pattern_is_an_error(pattern: str) -> None:
    with pytest.raises(UsageError, match="step pattern"):
        mark_steps(Ranks.of(TraceBuilder().range("a", 0, 1).build()), pattern)


def training_kernels(n_steps: int, optimizer: str) -> TraceBuilder:
    """Steps of 100 ns: three layers of two kernels, a loss, an optimizer, and a pause of 10 ns."""
    builder = TraceBuilder()
    for step in range(n_steps):
        names = ["gemm", "relu"] * 3 + ["loss", optimizer, optimizer]
        for i, name in enumerate(names):
            at = 100 * step + 10 * i
            builder.kernel(name, at, at + 10)
    return builder


def test_bursts_of_optimizer_kernels_end_steps() -> None:
    trace = training_kernels(6, "multi_tensor_apply_kernel").build()
    steps = find_steps(trace)
    assert steps.source == "optimizer kernels (inferred)"
    assert steps.is_inferred
    expected = [(1, i, 100 * i - 10, 100 * i + 90) for i in range(1, 6)]
    assert plain(steps.table.to_frame(), *COLUMNS) == expected


def test_optimizer_kernels_all_over_the_place_end_no_steps() -> None:
    builder = TraceBuilder()
    for i in range(40):
        builder.kernel("gemm", 20 * i, 20 * i + 9)
        builder.kernel("multi_tensor_apply_kernel", 20 * i + 10, 20 * i + 19)
    assert find_steps(builder.build()).source != "optimizer kernels (inferred)"


def test_the_period_of_the_kernels_makes_a_pattern_and_no_steps() -> None:
    trace = training_kernels(8, "update").build()
    assert (len(find_steps(trace)), find_steps(trace).source) == (0, "")
    pattern = find_pattern(trace)
    assert pattern.is_pattern
    assert pattern.source == "repeating pattern of kernels"
    assert pattern.confidence_ratio == 0.99
    expected = [(1, i, 100 * i - 10, 100 * i + 90) for i in range(1, 8)]
    assert plain(pattern.table.to_frame(), *COLUMNS) == expected
    cut = find_pattern(trace.within(TimeWindow(150, 500)))
    assert plain(cut.table.to_frame(), *COLUMNS) == expected[1:4]


ENGINES = [
    "execute_context_1(888_788544)_generation_0(0)",
    "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk32)",
    "execute_context_{}(17)_generation_{}(3)",
    "step[DECODE bs={}]",
    "step[EXTEND bs=15 toks={}]",
]


@pytest.mark.parametrize("name", ENGINES)
def test_engines_of_servers_name_their_steps(name: str) -> None:
    """Within the step of one engine another one's may be named again."""
    builder = TraceBuilder()
    for i in range(4):
        builder.range(name.format(i, i), 100 * i, 100 * i + 90)
        builder.range("step[DECODE bs=8]", 100 * i + 10, 100 * i + 80)
    steps = find_steps(builder.build())
    assert steps.source == "steps of a server's engine"
    expected = [(1, i, 100 * i, 100 * i + 90) for i in range(4)]
    assert plain(steps.table.to_frame(), *COLUMNS) == expected


@pytest.mark.parametrize("name", ["execute_diffusion_1_256x256", "step[x]", "execute_model"])
def test_what_engines_call_otherwise_is_no_step(name: str) -> None:
    assert len(find_steps(TraceBuilder().range(name, 0, 10).range(name, 10, 20).build())) == 0


MS = 1_000_000


def test_work_from_before_the_recording_is_no_part_of_the_first_step() -> None:
    """It is not in the file: the first kernel of a stream waits, launched, for nothing known."""
    builder = TraceBuilder().step(0, 9 * MS, number=1)
    builder.kernel("other stream", 20_000, 30_000, launched_ns=(10_000, 15_000), stream=9)
    builder.kernel("first", 8 * MS, 9 * MS, launched_ns=(30_000, 40_000))
    (step,) = find_steps(builder.build(span=(0, 9 * MS))).table.rows()
    assert (step["device_start_ns"], step["device_end_ns"]) == (8 * MS, 9 * MS)


@pytest.mark.parametrize(
    ("name", "n_turns"), [("forward pass", 0), ("backward", 0), ("serving", 7), ("eval", 7)]
)
def test_what_repeats_within_one_pass_is_its_layers(name: str, n_turns: int) -> None:
    builder = TraceBuilder().range(name, 0, 800)
    for turn in range(8):
        for i, kernel in enumerate(["norm", "gemm", "softmax", "gelu", "add"]):
            at = 100 * turn + 10 * i
            builder.kernel(kernel, at + 5, at + 15, launched_ns=(at, at + 4))
    trace = builder.build()
    assert (len(find_steps(trace)), len(find_pattern(trace))) == (0, n_turns)


@pytest.mark.parametrize(("is_one_launch", "n_turns"), [(True, 0), (False, 7)])
def test_what_repeats_within_one_graph_is_its_layers(is_one_launch: bool, n_turns: int) -> None:
    builder = TraceBuilder()
    for turn in range(8):
        launched = (0, 5) if is_one_launch else (100 * turn, 100 * turn + 5)
        for i, kernel in enumerate(["norm", "gemm", "softmax", "gelu", "add"]):
            at = 100 * turn + 10 * i + 10
            builder.kernel(kernel, at, at + 9, launched_ns=launched)
    trace = builder.build()
    assert (len(find_steps(trace)), len(find_pattern(trace))) == (0, n_turns)


def test_where_steps_are_known_there_is_no_pattern() -> None:
    builder = training_kernels(8, "update")
    for i in range(8):
        builder.range(f"step {i}", 100 * i, 100 * i + 90)
    ranks = Ranks.of(builder.build())
    assert len(steps_of_ranks(ranks)) == 8
    assert len(pattern_of_ranks(ranks)) == 0


def test_kernels_in_no_order_make_no_steps() -> None:
    builder = TraceBuilder()
    names = np.random.default_rng(1).integers(0, 50, 400)
    for i, name in enumerate(names):
        builder.kernel(f"k{name}", i, i + 1, activity=Activity.OTHER)
    assert len(find_steps(builder.build())) == 0


def forward_only(domain_phase: bool) -> TraceBuilder:
    builder = TraceBuilder()
    for start in range(0, 500, 100):
        if domain_phase:
            builder.phase("data", start, start + 10).phase("eval", start + 10, start + 90)
        else:
            builder.range("forward", start + 10, start + 90)
    return builder


def test_rounds_of_a_program_that_does_not_train_are_its_steps() -> None:
    steps = find_steps(forward_only(domain_phase=True).build())
    assert steps.source == "forward passes (no training)"
    assert plain(steps.table.to_frame(), *COLUMNS) == [
        *((1, i, 100 * i, 100 * i + 100) for i in range(4)),
        (1, 4, 400, 490),
    ]


def test_requests_are_rounds() -> None:
    builder = TraceBuilder()
    for start in (0, 100, 200):
        builder.phase("generation", start, start + 80)
        builder.phase("eval", start + 10, start + 30).phase("eval", start + 40, start + 60)
    steps = find_steps(builder.build())
    assert plain(steps.table.to_frame(), "start_ns") == [(0,), (100,), (200,)]


def test_named_forward_passes_are_no_rounds_because_the_program_may_train() -> None:
    assert len(find_steps(forward_only(domain_phase=False).build())) == 0


def test_one_forward_pass_is_no_loop() -> None:
    assert len(find_steps(TraceBuilder().phase("eval", 0, 10).build())) == 0


def test_a_program_that_trains_has_no_rounds() -> None:
    builder = forward_only(domain_phase=True).phase("backward", 500, 600)
    assert "forward passes" not in find_steps(builder.build()).source


def on_the_cpu(n_passes: int, n_forward: int) -> dict[str, object]:
    """Return a Kineto trace of passes of 100 µs: operators of a forward pass, then a backward."""
    events = []
    for number in range(n_passes):
        names = [f"aten::op{place}" for place in range(n_forward)]
        names += ["autograd::engine::evaluate_function: AddmmBackward0"] * 2
        for place, name in enumerate(names):
            begin = 100 * number + 10 * place
            place_of = {"ph": "X", "cat": "cpu_op", "pid": 7, "tid": 7}
            events.append({"name": name, "ts": begin, "dur": 9, "args": {}, **place_of})
            if "autograd" in name:
                events.append(
                    {"name": "aten::mm", "ts": begin + 1, "dur": 5, "args": {}, **place_of}
                )
    return {"schemaVersion": 1, "traceEvents": events}


@pytest.mark.parametrize(("n_forward", "n_steps"), [(4, 5), (2, 0)])
def test_backward_passes_are_steps_of_programs_on_the_cpu(
    tmp_path: Path, n_forward: int, n_steps: int
) -> None:
    """The steps are between the ends of six passes; two operators may be hooks of a backward."""
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(on_the_cpu(6, n_forward)), "utf-8")
    steps = open_run([path], Opening(is_cached=False)).result("steps")
    assert steps.table["duration_ns"].tolist() == [100_000] * n_steps
    if n_steps:
        assert steps.scalars["source"] == "backward passes (no PyTorch optimizer found)"
