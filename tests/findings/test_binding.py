"""Savings of GPU time that other work hides are bounds with the reason."""

from __future__ import annotations

import pytest

from tests.builders import TraceBuilder
from tests.findings.found import Found, findings_of, in_default_window
from traceprof.model.trace import Trace

MS, US = 1_000_000, 1_000
CONVERT = "void cudnn::ops::nchwToNhwcKernel<float>"
WORKERS = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
IN_PROCESS = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def training(*, fetch: str = WORKERS, wait_ms: int = 30, syncs: bool = True) -> Trace:
    """Return 10 steps: wait for a batch, launch 10 ms of conversions and 10 ms of convolutions.

    If ``syncs``, the host waits for the GPU at the end of each step.
    """
    builder, host, device = TraceBuilder().device(0, "NVIDIA H100 80GB HBM3"), 0, 0
    for number in range(10):
        start = host
        builder.range(fetch, host, host + wait_ms * MS)
        host += wait_ms * MS
        for name in (CONVERT, "cudnn::cnn::implicit_convolve_bf16"):
            at = max(device, host + 10 * US)
            builder.kernel(name, at, at + 10 * MS, launched_ns=(host, host + 5 * US))
            host, device = host + 10 * US, at + 10 * MS
        if syncs:
            builder.api_call("cudaStreamSynchronize", host, device + 5 * US)
            host = device + 5 * US
        builder.step(start, host, number)
    return builder.build()


def conversion(trace: Trace) -> tuple[Found, int]:
    """Return the finding on conversions and its place on the page, from 0."""
    found = findings_of(in_default_window(trace))
    (place,) = [i for i, one in enumerate(found) if one.rule == "layout_conversion"]
    return found[place], place


def test_workers_of_a_loader_hide_other_savings() -> None:
    found, place = conversion(training())
    assert found.kind == "bounded"
    assert found.saving_ns == pytest.approx(10 * MS, rel=0.01)
    assert found.evidence[0].startswith("the loop waits for the DataLoader workers (60.0%")
    assert place == 1


def test_other_processes_may_load_the_data() -> None:
    found, _ = conversion(training(fetch="data loading"))
    assert found.kind == "bounded"
    assert "if other processes load the data" in found.evidence[0]


def test_a_loader_that_keeps_up_hides_nothing() -> None:
    found, place = conversion(training(wait_ms=0))
    assert (found.kind, place) == ("measured", 0)
    assert not any("critical path" in note or "workers" in note for note in found.evidence)


def test_a_batch_made_in_the_loop_adds_up_with_the_work_of_the_gpu() -> None:
    found, _ = conversion(training(fetch=IN_PROCESS))
    assert found.kind == "measured"


def test_a_loop_that_does_not_wait_for_the_gpu_gains_nothing_from_shorter_kernels() -> None:
    found, _ = conversion(training(fetch=IN_PROCESS, syncs=False))
    assert found.kind == "bounded"
    assert "the CPU determines the step time" in found.evidence[0]


@pytest.mark.parametrize(("name", "is_compiled"), [("triton_poi_fused_add_0", True), ("x", False)])
def test_what_is_compiled_is_not_advised_to_be_compiled(name: str, is_compiled: bool) -> None:
    builder = TraceBuilder().kernel("gemm", 0, 50 * US).kernel(name, 100 * US, 101 * US)
    for start in (50, 60, 70, 80):
        name = f"void at::native::elementwise_kernel<{start}>"
        builder.kernel(name, start * US, (start + 10) * US)
    (found,) = [one for one in findings_of(builder.build()) if one.rule == "fusable_kernels"]
    assert ("graph breaks" in found.action) == is_compiled
    assert ("Fuse them with `torch.compile`" in found.action) != is_compiled
