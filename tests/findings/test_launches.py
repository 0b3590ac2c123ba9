"""Launch-bound: slow calls are a problem of the CPU, many calls are a problem of the program."""

import pytest

from tests.builders import TraceBuilder
from tests.findings.found import Found, findings_of
from tests.training import US
from traceprof.measures.idle.gaps import find_gaps

SLOW = "Slow launch calls leave the GPU idle"
MANY = "Launch-bound: the GPU is idle between kernel launches"


def launch_bound_in(
    call_ns: int, *, starts_ns: int, kernel_ns: int, api: str = "cudaLaunchKernel"
) -> Found:
    """Return the finding on 100 kernels; each starts ``starts_ns`` after the start of its call."""
    builder = TraceBuilder().device(0, "NVIDIA H100")
    iteration_ns = max(call_ns, starts_ns + kernel_ns) + 30 * US
    for i in range(100):
        at, start = iteration_ns * i, iteration_ns * i + starts_ns
        called = at, at + call_ns
        builder.kernel("k", start, start + kernel_ns, launched_ns=called, api=api)
    (found,) = [own for own in findings_of(builder.build()) if own.rule == "launch_bound"]
    return found


def test_slow_calls_are_a_problem_of_the_cpu() -> None:
    found = launch_bound_in(55 * US, starts_ns=55 * US, kernel_ns=20 * US)
    assert found.title.startswith(SLOW)
    assert found.evidence[1] == "median launch call: 55.0 µs (usual: 4–10 µs)"
    places = [found.action.index(word) for word in ("OMP_NUM_THREADS", "cgroup", "Reduce launches")]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("call_us", "starts_us", "kernel_us", "api"),
    [
        (5, 6, 6, "cudaLaunchKernel"),
        # An old profiler.
        (20, 20, 20, "cudaLaunchKernel"),
        # CUDA_LAUNCH_BLOCKING=1: the call returns after the kernel.
        (60, 8, 50, "cudaLaunchKernel"),
        # A graph takes longer to launch than a kernel.
        (60, 60, 20, "cudaGraphLaunch"),
    ],
)
def test_other_calls_are_not(call_us: int, starts_us: int, kernel_us: int, api: str) -> None:
    lengths = {"starts_ns": starts_us * US, "kernel_ns": kernel_us * US}
    found = launch_bound_in(call_us * US, **lengths, api=api)
    assert found.title.startswith(MANY)
    assert "usual" not in found.evidence[1]
    assert found.action.startswith("Reduce launches")


def test_idle_periods_are_counted() -> None:
    builder = TraceBuilder()
    for i in range(101):
        at = 65 * US * i
        # The next call begins during the kernel: no call finds an idle GPU at its start.
        builder.kernel("k", at + 55 * US, at + 75 * US, launched_ns=(at, at + 55 * US))
    trace = builder.build()
    (found,) = [own for own in findings_of(trace) if own.rule == "launch_bound"]
    assert found.evidence[2] == "1 idle period per iteration (mean 45.0 µs)"
    assert len(find_gaps(trace)) == 101  # and the time before the first kernel


@pytest.mark.parametrize(
    ("name", "title", "part"),
    [
        ("tokenize", "Short CPU work between launches", "other code"),
        ("aten::mul", MANY, "operators"),
        ("", MANY, "not recorded"),
    ],
)
def test_the_cpu_work_between_launches_is_named(name: str, title: str, part: str) -> None:
    builder = TraceBuilder().device(0, "NVIDIA H100")
    for i in range(100):
        at = 100 * US * i
        if name.startswith("aten"):
            builder.host_op(name, at, at + 90 * US)
        elif name:
            builder.range(name, at, at + 80 * US)
        called = (at + 81 * US, at + 86 * US)
        builder.kernel("k", at + 88 * US, at + 98 * US, launched_ns=called)
    (found,) = [one for one in findings_of(builder.build()) if one.rule == "launch_bound"]
    assert found.title.startswith(title)
    work = [note for note in found.evidence if note.startswith("CPU meanwhile")]
    assert bool(work) == bool(name) or "launch calls" in work[0]
    if name:
        assert any(f"{part} 9" in note or f"{part} 8" in note for note in work)
    assert any("tokenize" in note for note in found.evidence) == (name == "tokenize")
    assert found.action.startswith("Move the code") == (name == "tokenize")
