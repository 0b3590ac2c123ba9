"""GPUs whose copies are slower than those of other GPUs are named."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.builders import TraceBuilder
from tests.findings.found import Found, findings_of
from traceprof.model.trace import Trace

MS, US = 1_000_000, 1_000


def job(rate: Callable[[int], float], *, kind: str = "pinned", n: int = 10) -> Trace:
    """Return 4 GPUs that copy 100 MB and compute 10 ms in turn; ``rate`` of each GPU in GB/s."""
    builder = TraceBuilder()
    for device in range(4):
        place = {"device": device, "process": device + 1}
        builder.device(device, "NVIDIA H100 80GB HBM3").process(device + 1, rank=device)
        for i in range(n):
            at, length = 20 * MS * i, round(100e6 / rate(device))
            end = at + length
            builder.copy(*("h2d", at, end), n_bytes=100_000_000, src_kind=kind, **place)
            builder.kernel("gemm", end, at + 20 * MS, **place)
    return builder.build()


def finding(trace: Trace) -> Found | None:
    found = [one for one in findings_of(trace) if one.rule == "uneven_links"]
    return found[0] if found else None


def test_two_of_four_gpus_are_behind_the_other_socket() -> None:
    found = finding(job(lambda device: 50 if device < 2 else 25))
    assert found is not None
    assert found.title == (
        "Slower copies on GPU 2, 3: h2d at 25.0 GB/s, on the other GPUs at 50.0 GB/s"
    )
    # 2 of 4 ms per 20 ms, on half of the GPUs.
    assert found.saving_ratio == pytest.approx(0.05, rel=0.01)
    assert "numactl" in found.action


@pytest.mark.parametrize(
    "trace",
    [
        job(lambda _: 50),
        job(lambda device: 50 - 3 * device),
        job(lambda device: 50 if device < 2 else 25, kind="pageable"),
        job(lambda device: 50 if device < 2 else 25, n=2),
    ],
    ids=["equal", "nearly equal", "pageable memory", "few copies"],
)
def test_other_copies_are_not(trace: Trace) -> None:
    assert finding(trace) is None
