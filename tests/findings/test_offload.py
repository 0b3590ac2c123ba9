"""An optimizer on the CPU is named with the time that the GPU waits for it."""

from __future__ import annotations

import pytest

from tests.builders import TraceBuilder
from tests.findings.found import Found, findings_of, in_default_window
from traceprof.model.trace import Trace

MS, US = 1_000_000, 1_000
MB = 1_000_000


def training(
    *,
    saved: int = 200 * MB,
    sent: int = 200 * MB,
    in_backward: bool = False,
    activations: bool = False,
    has_gloo: bool = False,
    steps: tuple[int, ...] = tuple(range(10)),
) -> Trace:
    """Return 10 steps: 50 ms GEMMs, 10 ms copies to the CPU, 40 ms Adam there, 10 ms back.

    If ``in_backward``, the copies to the CPU run during the GEMMs. ``activations`` go to the CPU
    in the forward pass, and return during the backward pass, one GEMM after the other.
    """
    builder, now = TraceBuilder().device(0, "NVIDIA H100"), 0

    def copy(way: str, start: int, length: int, n_bytes: int, called: int) -> None:
        kinds = {"dst_kind" if way == "d2h" else "src_kind": "pinned"}
        launched = (called, called + 5 * US)
        builder.copy(
            way, start, start + length, n_bytes=n_bytes, launched_ns=launched, stream=20, **kinds
        )

    for number in range(10):
        start = now
        for i in range(10):
            builder.kernel(
                "bf16_gemm", now + 10 * US, now + 5 * MS, launched_ns=(now, now + 5 * US)
            )
            if in_backward and i > 4 and number in steps:
                copy("d2h", now + 2 * MS, 2 * MS, saved // 5, now + 20 * US)
            if activations:
                copy("d2h" if i < 5 else "h2d", now + 2 * MS, 2 * MS, 50 * MB, now + 20 * US)
            now += 5 * MS
        if number in steps and not activations:
            size = 10 * US if in_backward else 10 * MS
            copy("d2h", now + 20 * US, size, 1000 if in_backward else saved, now + 6 * US)
            now += 20 * US + size
            builder.host_op("DeepSpeedCPUAdam.step", now, now + 40 * MS)
            if has_gloo:
                builder.collective("all_reduce", now, now + 30 * MS, n_bytes=saved, backend="gloo")
            now += 40 * MS
            copy("h2d", now + 10 * US, 10 * MS, sent, now)
            now += 10 * MS + 10 * US
        at = now
        builder.kernel(
            "multi_tensor_apply_kernel", at + 10 * US, at + 50 * US, launched_ns=(at, at + 1)
        )
        now += 60 * US
        builder.phase("optimizer", at - 1, at + 5)
        builder.step(start, now, number)
    return builder.build()


def finding(trace: Trace) -> Found | None:
    ranks = in_default_window(trace)
    found = [one for one in findings_of(ranks) if one.rule == "offloaded_optimizer"]
    return found[0] if found else None


@pytest.mark.parametrize(("in_backward", "waits_ms"), [(False, 60), (True, 50)])
def test_the_gpu_waits_for_the_cpu(in_backward: bool, waits_ms: float) -> None:
    found = finding(training(in_backward=in_backward))
    assert found is not None
    assert found.title.startswith("Offloaded optimizer: the GPU waits for 4")
    # The last of 10 waits has no matrix product after it.
    assert found.saving_ns == pytest.approx(0.9 * waits_ms * MS, rel=0.03)
    assert found.kind == "bounded"
    assert any("DeepSpeedCPUAdam.step" in note for note in found.evidence)
    assert found.evidence[0].endswith("200 MB return to the GPU")


@pytest.mark.parametrize(
    "trace",
    [
        training(saved=0),
        training(sent=1 * MB),
        training(sent=50 * MB),
        training(activations=True),
        training(steps=(3, 7)),
        training(has_gloo=True),
    ],
    ids=["large batches", "nothing returns", "metrics", "activations", "in few steps", "gloo"],
)
def test_other_copies_are_no_optimizer(trace: Trace) -> None:
    assert finding(trace) is None
