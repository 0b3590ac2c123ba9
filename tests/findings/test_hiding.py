"""Exposed communication saves no more than what compute could hide of it."""

import pytest

from tests.builders import TraceBuilder
from tests.findings.found import findings_of
from tests.running import run
from traceprof.model.trace import Trace

MS = 1_000_000


def turns(*, compute: int, communication: int, hidden: int = 0) -> Trace:
    """Ten times compute, then communication that begins ``hidden`` ms before compute ends."""
    builder, at = TraceBuilder(), 0
    for _ in range(10):
        builder.kernel("gemm", at, at + compute * MS)
        begin = at + (compute - hidden) * MS
        at = begin + communication * MS
        builder.kernel("ncclDevKernel_AllReduce", begin, at, stream=20)
    return builder.build(span=(0, at))


@pytest.mark.parametrize(
    ("compute", "communication", "hidden", "saved"),
    [
        (80, 20, 0, 0.2),  # all of it can hide
        (20, 80, 0, 0.2),  # behind 20 ms, no more
        (40, 80, 20, 0.2),  # half of the compute hides some already
    ],
)
def test_overlap_saves_no_more_than_there_is_compute(
    compute: int, communication: int, hidden: int, saved: float
) -> None:
    trace = turns(compute=compute, communication=communication, hidden=hidden)
    (finding,) = [own for own in findings_of(trace) if own.rule == "exposed_communication"]
    exposed = (communication - hidden) / (compute + communication - hidden)
    assert finding.claimed_ratio == pytest.approx(exposed)
    assert finding.saving_ratio == pytest.approx(saved, rel=1e-6)
    is_told = any("only sending less data saves the rest" in text for text in finding.evidence)
    assert is_told == (saved < exposed - 1e-9)
    case = run("whatif", trace).table.to_frame().set_index("case").loc["communication fully hidden"]
    assert case["gain_ratio"] <= saved + 1e-9


def test_compute_of_another_step_hides_nothing() -> None:
    builder = TraceBuilder()
    for i in range(8):
        at = 20 * MS * i
        builder.step(at, at + 20 * MS, number=i)
        name = "gemm" if i % 2 else "ncclDevKernel_AllReduce"
        builder.kernel(name, at, at + 20 * MS, launched_ns=(at, at + 10))
    (finding,) = [
        own for own in findings_of(builder.build()) if own.rule == "exposed_communication"
    ]
    assert (finding.kind, finding.saving_ratio) == ("none", 0)
    assert finding.claimed_ratio == pytest.approx(0.5, rel=0.2)


def test_matrix_kernels_that_are_short_gain_nothing_by_fewer_bits() -> None:
    builder, at = TraceBuilder().device(0, "NVIDIA A100-SXM4-80GB"), 0
    for length in (30_000, 5_000, 5_000) * 20:
        builder.kernel("ampere_sgemm_128x128_tn", at, at + length)
        at += length
    (finding,) = [own for own in findings_of(builder.build()) if own.rule == "precision"]
    assert finding.claimed_ratio == pytest.approx(1)
    factor = 312 / 19.5
    assert finding.saving_ratio == pytest.approx(0.75 * (1 - 1 / (0.8 * factor)))


def test_the_evidence_on_copies_is_of_what_is_exposed() -> None:
    """Of the copies to the device all is hidden, of those from it nothing."""
    builder = TraceBuilder()
    for i in range(10):
        at = 10 * MS * i
        builder.kernel("gemm", at, at + 8 * MS, launched_ns=(at, at + 10))
        for direction, begin in (("h2d", at), ("d2h", at + 8 * MS)):
            builder.copy(
                direction,
                begin,
                begin + 2 * MS,
                n_bytes=40_000_000,
                launched_ns=(at + 20, at + 30),
            )
    (finding,) = [own for own in findings_of(builder.build()) if own.rule == "exposed_copies"]
    assert finding.evidence[1:] == ("d2h: 20.0 ms",)
    builder.host_op("aten::mm", 0, 10)
    (finding,) = [own for own in findings_of(builder.build()) if own.rule == "exposed_copies"]
    assert finding.action.startswith("Copy results to pinned memory")
