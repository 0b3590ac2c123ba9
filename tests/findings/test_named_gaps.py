"""The evidence of findings on idle time: what the host was in, by overlap."""

import pytest

from tests.builders import TraceBuilder, plain
from tests.findings.found import Found, findings_of
from traceprof.findings.context import Context
from traceprof.findings.gaps import names_of_gaps
from traceprof.model.intervals import Intervals
from traceprof.model.ranks import Ranks
from traceprof.model.trace import Trace, TraceInfo

US = 1000
MS = 1000 * US


def working() -> Trace:
    """A gap of 100 ms that opens in ``short``, while other threads run for 80 ms of it."""
    return (
        TraceBuilder()
        .kernel("first", 0, 10 * MS, launched_ns=(0, 10 * US))
        .range("short", 9 * MS, 12 * MS)
        .range("worker, op_id = 1", 20 * MS, 90 * MS, thread=2)
        .range("worker, op_id = 2", 30 * MS, 100 * MS, thread=3)
        .kernel("second", 110 * MS, 120 * MS, launched_ns=(109 * MS, 110 * MS))
        .build(span=(0, 120 * MS))
    )


def test_a_range_is_told_with_its_overlap_and_what_ran_meanwhile() -> None:
    host = next(own for own in findings_of(working()) if own.rule == "host_code")
    assert host.evidence == (
        "80.0 ms while a thread that does not launch work is in worker",
        "17.0 ms without recorded CPU activity",
    )
    assert host.ranges == ("worker",)


def test_what_compiles_in_other_threads_is_told_as_compiling() -> None:
    builder = TraceBuilder().kernel("first", 0, 10 * MS, launched_ns=(0, 10 * US))
    for thread in (2, 3):
        at = 10 * MS * thread
        builder.range("Nvrtc::CompileProgram", at, at + 60 * MS, thread=thread)
    builder.kernel("second", 110 * MS, 120 * MS, launched_ns=(109 * MS, 110 * MS))
    findings = {own.rule: own for own in findings_of(builder.build(span=(0, 120 * MS)))}
    # The two threads compile from 20 to 90 ms; the other 29 ms of the gap are the host's.
    assert findings["loading"].one_time_ns == 70 * MS
    assert findings["loading"].evidence == ("2 calls to Nvrtc::CompileProgram",)
    assert findings["host_code"].one_time_ns == 29 * MS


def host_code_in(*names: str, n: int = 4, profiler: str = "") -> Found:
    """Return what is found where kernels of 1 ms come every 10 ms, the host in ``names`` between.

    Each begins with the one before, which it lies in, and takes three quarters of its time.
    """
    builder = TraceBuilder()
    for i in range(n):
        at = 10 * MS * i
        builder.kernel("k", at, at + MS, launched_ns=(at, at + 1000 + i))
        for place, name in enumerate(names):
            builder.host_op(name, at + 2 * MS, at + (2 + 8 * 3**place // 4**place) * MS)
    info = TraceInfo(format="xplane" if "jax" in profiler else "built", profiler=profiler)
    (host,) = [own for own in findings_of(builder.build(info=info)) if own.rule == "host_code"]
    return host


JAX = "jax.profiler 0.8"
EITHER = "jax.profiler or TensorFlow"
FEWER = "Reduce the CPU work per kernel"


@pytest.mark.parametrize(
    ("profiler", "name", "what", "action"),
    [
        ("", "cudaLaunchKernel", "slow launch calls", "the first launch of a kernel"),
        ("", "cudaStreamCreateWithFlags", "driver and library calls", "Create"),
        ("", "aten::normal_", "operators that compute on the CPU", "(the argument `device`)"),
        ("", "autograd::engine::evaluate_function: AccumulateGrad", "operators", FEWER),
        ("", "torch::autograd::CopySlices", "operators", FEWER),
        ("", "fread", "reading, writing, and sending data", "data in another thread"),
        ("", "my loop", "", "Find the CPU code"),
        (JAX, "BufferSequencingEvent::Execute", "the XLA runtime", "(jax.device_put)"),
        (JAX, "[0] GpuExecutable::ExecuteThunks", "the XLA runtime", "(jax.lax.scan)"),
        (JAX, "Build buffer allocations", "the XLA runtime", "(donate_argnums)"),
        (JAX, "write checkpoint", "", "Find the Python code"),
        (JAX, "$loop.py:7 log", "", "Find the Python code"),
        (EITHER, "Thunks::Initialize", "the XLA runtime", "into one function, move inputs"),
        (EITHER, "Iterator::Prefetch::Map", "", "Find the CPU code"),
        ("torch.profiler", "BufferSequencingEvent::Execute", "", "Find the CPU code"),
    ],
)
def test_what_helps_depends_on_what_the_host_does(
    profiler: str, name: str, what: str, action: str
) -> None:
    host = host_code_in(name, profiler=profiler)
    mostly = f", mostly {what}" if what else ""
    assert host.title.startswith(f"CPU work between launches{mostly}: the GPU is idle")
    assert action in host.action
    assert host.kind == ("bounded" if "operators" in what else "measured")


@pytest.mark.parametrize("has_calls", [True, False])
def test_an_operator_that_calls_cuda_does_not_compute_on_the_cpu(*, has_calls: bool) -> None:
    builder = TraceBuilder()
    for i in range(4):
        at = 10 * MS * i
        builder.kernel("k", at, at + MS, launched_ns=(at, at + 1000))
        builder.host_op("aten::conv2d", at + 2 * MS, at + 9 * MS)
        if has_calls:
            builder.api_call("cudaGetLastError", at + 3 * MS, at + 3 * MS + 500)
    host = next(own for own in findings_of(builder.build()) if own.rule == "host_code")
    assert ("compute on the CPU" in host.title) != has_calls
    assert (FEWER in host.action) == has_calls


def test_what_the_runtime_of_xla_does_once_is_left_out() -> None:
    builder = TraceBuilder().kernel("k", 0, 10 * MS, launched_ns=(0, 10 * US))
    builder.host_op("Build buffer allocations", 10 * MS, 100 * MS)
    builder.kernel("k", 110 * MS, 120 * MS, launched_ns=(109 * MS, 110 * MS))
    info = TraceInfo(format="xplane", profiler="jax.profiler 0.8")
    found = findings_of(builder.build(span=(0, 120 * MS), info=info))
    (host,) = [own for own in found if own.rule == "host_code"]
    assert host.title.startswith("One long gap, mostly the XLA runtime:")
    assert host.action.endswith("the runtime does this work once.")


@pytest.mark.parametrize(
    ("format_name", "device", "action"),
    [
        ("nsys", "NVIDIA H100", "put repeated work into a CUDA graph"),
        ("rocpd", "AMD Instinct MI300X", "put repeated work into a HIP graph"),
        ("kineto", "Intel(R) Max 1550", "Reduce launches: use `torch.compile`, fused"),
        ("xplane", "NVIDIA H100", "compile larger functions (the whole step in one jax.jit"),
        ("xplane", "AMD Instinct MI300X", "compile larger functions (the whole step in one"),
    ],
)
def test_who_launches_too_little_is_told_what_the_device_and_its_framework_have(
    format_name: str, device: str, action: str
) -> None:
    builder = TraceBuilder().device(0, device)
    call = "urEnqueueKernelLaunch" if device.startswith("Intel") else "cudaLaunchKernel"
    for i in range(20):
        at = 100 * US * i
        called = (at + 80 * US, at + 89 * US)
        builder.kernel("k", at + 90 * US, at + 99 * US, launched_ns=called, api=call)
    profiler = "jax.profiler 0.8" if format_name == "xplane" else ""
    trace = builder.build(info=TraceInfo(format=format_name, profiler=profiler))
    (own,) = [one for one in findings_of(trace) if one.rule == "launch_bound"]
    assert action in own.action
    assert "CUDA" not in own.action + own.caveat or device.startswith("NVIDIA")


@pytest.mark.parametrize(
    ("n_idle", "whose"),
    [(1, "GPU 1, 90.0% of its analyzed time"), (2, "all 2 GPUs, 81.0% of the analyzed time")],
)
def test_idle_devices_are_told_by_their_own_time(n_idle: int, whose: str) -> None:
    builder = TraceBuilder()
    for i in range(10):
        for device in (0, 1):
            is_idle = device >= 2 - n_idle
            end = 10 * MS * i + (MS if is_idle else 10 * MS)
            builder.kernel("k", 10 * MS * i, end, device=device, correlation=-1)
    trace = builder.build(span=(0, 100 * MS), info=TraceInfo(format="nsys"))
    (idle,) = [own for own in findings_of(trace) if own.rule == "low_utilization"]
    assert whose in idle.title


@pytest.mark.parametrize(
    ("format_name", "profiler", "how"),
    [
        ("nsys", "NVIDIA Nsight Systems", "(nsys: --trace=cuda, plus openacc or openmp if"),
        ("nsys", "traceprof", "(`traceprof record --with cupti`)"),
        ("kineto", "", "(torch.profiler: ProfilerActivity.CUDA)"),
        ("rocpd", "", "(rocprofv3: --hip-trace)"),
        # This profiler has no option for launch calls.
        ("xplane", "jax.profiler 0.8", "Check what the program does between these kernels"),
    ],
)
def test_the_calls_are_recorded_by_the_same(format_name: str, profiler: str, how: str) -> None:
    idle = idle_without_launches({"kernels", "copies"}, format_name, profiler)
    assert idle.title.startswith("Idle for an unknown reason")
    assert how in idle.action


@pytest.mark.parametrize("format_name", ["nsys", "kineto", "rocpd"])
def test_recorded_calls_are_not_recorded_again(format_name: str) -> None:
    idle = idle_without_launches({"kernels", "copies", "api_calls"}, format_name)
    assert idle.action.startswith("Check what the program does between these kernels")
    assert idle.evidence == (
        "100.0% of this time: the trace contains no launch call of the next work",
        "18.0 ms between gemm and softmax",
        "9.00 ms between softmax and gemm",
    )


def idle_without_launches(recorded: set[str], format_name: str, profiler: str = "") -> Found:
    """Return the finding on four kernels of 1 ms, one every 10 ms."""
    builder = TraceBuilder()
    for i in range(4):
        name = "softmax" if i % 2 else "gemm"
        builder.kernel(name, 10 * MS * i, 10 * MS * i + MS, correlation=-1)
    info = TraceInfo(format=format_name, profiler=profiler)
    trace = builder.build(span=(0, 31 * MS), info=info, recorded=recorded)
    (idle,) = [own for own in findings_of(trace) if own.rule == "low_utilization"]
    return idle


def test_only_the_time_asked_about_is_told() -> None:
    context = Context(Ranks.of(working()))
    times = {0: Intervals.union_of([0, 95 * MS], [25 * MS, 200 * MS]), 7: Intervals.single(0, MS)}
    charged, beside = names_of_gaps(context, times)
    assert plain(charged, "name", "by", "ns") == [
        ("(nothing recorded)", "", (20 - 12 + 109 - 100) * MS),
        ("worker", "other", (5 + 5) * MS),
        ("short", "launching", 2 * MS),
        ("cudaLaunchKernel", "launching", MS),
    ]
    assert beside == {"worker": 10 * MS}


@pytest.mark.parametrize("devices", [(0, 0), (0, 1)])
def test_what_several_devices_wait_for_counts_for_each(devices: tuple[int, int]) -> None:
    builder = TraceBuilder().range("save", MS, 9 * MS)
    for device in devices:
        builder.kernel("a", 0, MS, launched_ns=(0, 10), device=device)
        builder.kernel("b", 10 * MS, 11 * MS, launched_ns=(9 * MS, 10 * MS), device=device)
    everything = dict.fromkeys(set(devices), Intervals.single(0, 11 * MS))
    charged, _ = names_of_gaps(Context(Ranks.of(builder.build())), everything)
    assert dict(plain(charged, "name", "ns"))["save"] == 8 * MS * len(set(devices))


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (("aten::split", "aten::as_strided"), "aten::split (mostly aten::as_strided)"),
        (("aten::split", "aten::view", "aten::as_strided"), "aten::split"),
    ],
)
def test_evidence_names_what_was_called_and_what_has_most_of_it(
    names: tuple[str, ...], told: str
) -> None:
    host = host_code_in(*names)
    assert host.evidence[1] == f"24.0 ms while the CPU is in {told}"
    assert host.ranges == ("aten::split",)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("ProfilerStep#{}", "ProfilerStep, outside any operator"),
        ("train step {}", "train step"),
    ],
)
def test_what_only_the_range_of_a_step_is_around_lies_outside_of_its_operators(
    name: str, told: str
) -> None:
    builder = TraceBuilder()
    for i in range(6):
        at = 10 * MS * i
        builder.range(name.format(i), at, at + 10 * MS)
        builder.kernel("k", at, at + MS, launched_ns=(at, at + 1000 + i))
    (host,) = [own for own in findings_of(builder.build()) if own.rule == "host_code"]
    assert any(note.endswith(f" per step while the CPU is in {told}") for note in host.evidence)


def test_calls_of_the_driver_in_operators_are_work_of_operators() -> None:
    """No kind of call takes most of the gap, but all of them are made in one operator."""
    builder = TraceBuilder()
    for i in range(4):
        at = 10 * MS * i
        builder.kernel("k", at, at + MS, launched_ns=(at - 10, at))
        builder.host_op("aten::linear", at + MS, at + 10 * MS - 20)
        builder.api_call("cudaOccupancyMaxActiveBlocks", at + 2 * MS, at + 5 * MS)
        builder.api_call("cudaFuncSetAttribute", at + 5 * MS, at + 6 * MS)
        builder.host_op("aten::t", at + 6 * MS, at + 8 * MS)
        builder.range("weights", at + 8 * MS, at + 10 * MS - 30)
    (own,) = [one for one in findings_of(builder.build()) if one.rule == "host_code"]
    assert own.title.startswith("CPU work between launches, mostly operators")
    assert "Python code" not in own.action
