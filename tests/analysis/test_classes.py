import pandas as pd
import pytest

from tests.builders import TraceBuilder, plain
from traceprof.analysis.training.classes import measure_classes, uses_tensor_cores


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ampere_sgemm_128x64_tn", False),
        ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn", True),
        ("volta_fp16_s884gemm_fp16_256x128_ldg8_f2f_tn", True),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_nt_align1>", False),
        ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128>", True),
        ("nvjet_tst_128x64_64x6", True),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", True),
        ("void flash_fwd_kernel<Flash_fwd_kernel_traits>", True),
    ],
)
def test_kernels_named_after_tensor_cores(name: str, expected: bool) -> None:
    assert uses_tensor_cores(pd.Series(pd.Categorical([name]))).tolist() == [expected]


def test_classes_by_phase() -> None:
    trace = (
        TraceBuilder()
        .range("forward", 0, 100)
        .kernel("s16816gemm", 1000, 61_000, launched_ns=(10, 14))
        .kernel("sgemm", 61_000, 81_000, launched_ns=(20, 26))
        .kernel("relu_elementwise", 81_000, 85_000, launched_ns=(200, 202))
        .build()
    )
    classes = measure_classes(trace)
    columns = ("activity", "phase", "count", "total_ns", "short_ratio", "launch_ns")
    assert plain(classes.table, *columns) == [
        ("gemm", "forward", 2, 80_000, 0.0, 10),
        ("elementwise", "outside any phase", 1, 4000, 1.0, 2),
    ]
    assert classes.table["share_ratio"].tolist() == [80 / 84, 4 / 84]
    assert classes.table["tensor_core_ratio"][0] == 0.75
    assert pd.isna(classes.table["tensor_core_ratio"][1])
    assert classes.notes == (
        "33.3 % of the kernels are shorter than 10.00 µs; the calls that launched them all took "
        "12 ns of host time",
        "75.0 % of the matrix work (GEMM, convolution, attention) ran in kernels named after "
        "tensor cores",
    )


def test_without_phases_there_is_no_phase() -> None:
    trace = TraceBuilder().kernel("sgemm", 0, 10).build()
    assert measure_classes(trace).table["phase"].tolist() == [""]


def test_no_kernels_make_no_classes() -> None:
    trace = TraceBuilder().build(recorded=["kernels"])
    classes = measure_classes(trace)
    assert (len(classes.table), classes.notes) == (0, ())
