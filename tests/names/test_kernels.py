from tests.builders import TraceBuilder
from traceprof.names.kernels import directions, matrix_units, precisions


def test_what_names_of_kernels_tell() -> None:
    trace = (
        TraceBuilder()
        .kernel("ampere_sgemm_128x64_tn", 0, 10)
        .kernel("void flash_bwd_kernel<cutlass::half_t>(int)", 10, 20)
        .kernel("ampere_sgemm_128x64_tn", 20, 30)
        .kernel("_attn_fwd", 30, 40)
        .build()
    )
    assert matrix_units(trace.kernels).tolist() == ["no", "yes", "no", "unknown"]
    assert precisions(trace.kernels).tolist() == ["fp32", "fp16", "fp32", ""]
    assert directions(trace.kernels).tolist() == ["", "backward", "", "forward"]


def test_no_kernels_tell_nothing() -> None:
    kernels = TraceBuilder().build(recorded=["kernels"]).kernels
    assert matrix_units(kernels).tolist() == []
