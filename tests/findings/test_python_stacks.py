"""Findings name the Python function that keeps the GPU waiting, if stacks were recorded."""

import pytest

from tests.builders import TraceBuilder
from tests.findings.found import Found, findings_of
from traceprof.model.timing import PYTHON_SAMPLES_DOMAIN
from traceprof.model.trace import Trace, TraceInfo

MS = 1_000_000
TORCH = TraceInfo(format="kineto", profiler="torch.profiler (Kineto)")
EVALUATE = "train.py(88): evaluate"
COUNT = "metrics.py(31): count"


def loop(*functions: tuple[str, int, int], n_steps: int = 6, thread: int = 1) -> Trace:
    """Steps of 100 ms: a kernel of 20 ms, then CPU work that no range names.

    ``functions`` are (name, start, end) in ms since the start of each step.
    """
    builder = TraceBuilder().function("train.py(1): <module>", 0, 100 * n_steps * MS)
    builder.function("train.py(5): train", 0, 100 * n_steps * MS)
    for step in range(n_steps):
        at = 100 * step * MS
        builder.step(at, at + 100 * MS, number=step)
        builder.kernel("gemm", at + MS, at + 21 * MS, launched_ns=(at, at + 10_000))
        builder.function("torch/nn/modules/module.py(7): _call_impl", at, at + MS)
        for name, start, end in functions:
            builder.function(name, at + start * MS, at + end * MS, thread=thread)
    return builder.build(info=TORCH)


def host_code(trace: Trace) -> Found:
    (found,) = [one for one in findings_of(trace) if one.rule == "host_code"]
    return found


def test_the_function_and_the_function_that_it_calls() -> None:
    found = host_code(loop((EVALUATE, 22, 98), (COUNT, 23, 97)))
    assert f", mostly {EVALUATE}: the GPU is idle for" in found.title
    assert f"while the CPU is in {EVALUATE} (mostly {COUNT})" in found.evidence[1]
    assert found.action.startswith("Call this function less often")


def test_a_function_with_a_small_part_of_the_gap_is_not_the_cause() -> None:
    found = host_code(loop((EVALUATE, 22, 32)))
    assert "mostly" not in found.title
    assert "Find the Python code" in found.action
    assert "with_stack" not in found.action


def test_a_function_that_launches_the_work_is_not_the_cause() -> None:
    """The loop and a training step contain launches; the gap in the step is named by its callee."""
    found = host_code(loop(("train.py(20): training_step", 0, 99), (EVALUATE, 30, 95)))
    assert f", mostly {EVALUATE}: the GPU is idle for" in found.title


def test_code_in_the_loop_itself_is_not_a_function_to_move() -> None:
    builder = TraceBuilder()
    for step in range(6):
        at = 100 * step * MS
        builder.kernel("gemm", at + MS, at + 21 * MS, launched_ns=(at, at + 10_000))
    builder.function("train.py(5): train", 0, 600 * MS)
    found = host_code(builder.build(info=TORCH))
    assert any("while the CPU is in train.py(5): train" in note for note in found.evidence)
    assert "mostly" not in found.title
    assert found.action.startswith("Find the Python code")


@pytest.mark.parametrize("wait", ["<built-in method acquire of _thread.lock>", "queue.py(1): get"])
def test_a_thread_that_waits_is_not_the_cause(wait: str) -> None:
    found = host_code(loop(("worker.py(3): run", 0, 100), (wait, 0, 100), thread=2))
    assert "worker.py" not in found.title
    assert not any("worker.py" in note for note in found.evidence)


def test_time_in_a_library_belongs_to_the_function_that_called_it() -> None:
    found = host_code(loop((EVALUATE, 22, 98), ("json/encoder.py(1): encode", 23, 97)))
    assert f"while the CPU is in {EVALUATE}" in found.evidence[1]
    assert not any("json" in note for note in found.evidence)


def test_without_stacks_the_advice_is_to_record_them() -> None:
    builder = TraceBuilder()
    for step in range(6):
        at = 100 * step * MS
        builder.step(at, at + 100 * MS, number=step)
        builder.kernel("gemm", at + MS, at + 21 * MS, launched_ns=(at, at + 10_000))
    found = host_code(builder.build(info=TORCH))
    assert "profile(with_stack=True)" in found.action


def test_sampled_functions_say_of_how_many_samples() -> None:
    """A sampled call ends with the next sample, up to 10 ms late: after the next launch."""
    builder = TraceBuilder()
    for step in range(6):
        at = 100 * step * MS
        builder.step(at, at + 100 * MS, number=step)
        builder.kernel("gemm", at + MS, at + 21 * MS, launched_ns=(at, at + 10_000))
        builder.function(EVALUATE, at + 20 * MS, at + 105 * MS)
    for time in range(0, 600, 10):
        builder.mark("", time * MS, domain=PYTHON_SAMPLES_DOMAIN, thread=9)
    found = host_code(
        builder.build(info=TraceInfo(format="nsys", profiler="NVIDIA Nsight Systems"))
    )
    assert f", mostly {EVALUATE}: the GPU is idle for" in found.title
    assert "functions estimated from 60 samples of the Python stacks" in found.evidence


def slow_step(*functions: tuple[str, int, int]) -> Found:
    """Return the finding on step 5 of 12, which takes 400 ms instead of 20 ms."""
    builder = TraceBuilder().function("train.py(5): train", 0, 620 * MS)
    at = 0
    for step in range(12):
        length = 400 if step == 5 else 20
        builder.step(at * MS, (at + length) * MS, number=step)
        builder.kernel("gemm", (at + 1) * MS, (at + 19) * MS, launched_ns=(at * MS, at * MS + 10))
        for name, start, end in functions if step == 5 else ():
            builder.function(name, (at + start) * MS, (at + end) * MS)
        at += length
    (found,) = [one for one in findings_of(builder.build(info=TORCH)) if one.rule == "slow_steps"]
    return found


def test_the_function_of_a_slow_step_is_named() -> None:
    named = slow_step(("train.py(70): save", 20, 399))
    assert any("train.py(70): save" in note for note in named.evidence)
    unnamed = slow_step()
    assert not any("train.py" in note for note in (unnamed.title, *unnamed.evidence))


def on_cpu(end: int) -> list[Found]:
    """Training without a GPU: steps of 100 ms with a function from 30 ms to ``end``."""
    builder = TraceBuilder().function("train.py(1): <module>", 0, 600 * MS)
    for step in range(6):
        at = 100 * step * MS
        builder.step(at, at + 100 * MS, number=step)
        for phase, start, stop in (("forward", 0, 10), ("backward", 10, 20), ("optimizer", 20, 25)):
            builder.phase(phase, at + start * MS, at + stop * MS)
        builder.host_op("aten::mm", at + MS, at + 2 * MS)
        builder.function("stack.py(5): tokenize_again", at + 30 * MS, at + end * MS)
        builder.function("stack.py(3): split", at + 31 * MS, at + (end - 1) * MS)
    found = findings_of(builder.build(recorded=("ranges", "host_ops", "functions"), info=TORCH))
    return [one for one in found if one.rule == "input_bound"]


def test_a_function_of_a_run_without_a_gpu_is_named() -> None:
    (found,) = on_cpu(end=95)
    assert found.title == "Python function stack.py(5): tokenize_again takes 65.0% of step time"
    assert found.evidence == (
        "65.0 ms per step in stack.py(5): tokenize_again (mostly stack.py(3): split)",
    )
    assert found.kind == "bounded"
    assert found.saving_ns == 65 * MS


def test_a_short_function_of_a_run_without_a_gpu_is_not_the_cause() -> None:
    (found,) = on_cpu(end=35)
    assert found.title.startswith("Unnamed work before the forward pass")


@pytest.mark.parametrize("is_range", [True, False])
def test_work_before_a_forward_pass_has_the_name_of_its_range_or_function(is_range: bool) -> None:
    name = "tokenize" if is_range else "batches.py(6): tokenize"
    builder = TraceBuilder()
    for step in range(8):
        at = 100 * step * MS
        builder.step(at, at + 100 * MS, number=step)
        (builder.range if is_range else builder.function)(name, at, at + 60 * MS)
        builder.host_op("aten::to", at + 30 * MS, at + 31 * MS, source="cpu_op")
        builder.phase("forward", at + 60 * MS, at + 80 * MS)
        builder.phase("backward", at + 80 * MS, at + 100 * MS)
    trace = builder.build(info=TORCH, recorded={"host_ops", "ranges", "functions"})
    (found,) = [one for one in findings_of(trace) if one.rule == "input_bound"]
    assert found.title.startswith(f"{name}, before the forward pass, takes ")
    assert found.kind == "bounded"
