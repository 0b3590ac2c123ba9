import pytest

from tests.builders import TraceBuilder
from traceprof.names.kernels import directions, matrix_units, precisions, wide_precision_of


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


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("ampere_sgemm_128x64_tn", "fp32"),
        ("void wgrad_alg0_engine<float, 128, 5, 5, 3, 3, 3, false, 512>(int)", "fp32"),
        ("void precomputed_scudnn<float, 128>(int)", "fp32"),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize64x64x8", "fp32"),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x16", "tf32"),
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_nt_align4>(P)", "tf32"),
        ("fmha_cutlassF_f32_aligned_64x64_rf_sm80(P)", "3xtf32"),
        ("fmha_cutlassF_f32_aligned_64x64_rf_sm75(P)", "fp32"),  # no TF32 before Ampere
        # A narrower type, in the name or as the first template argument, has the last word.
        ("ampere_fp16_s1688gemm_fp16_128x128_ldg8_f2f_stages_32x1_nn", ""),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128>(P)", ""),
        ("void wgrad_alg0_engine<__half, 512, 6, 5, 3, 3, 3, false, 512>(int)", ""),
        ("void precomputed_scudnn<__half, 128>(int)", ""),
        ("fmha_cutlassF_f16_aligned_64x64_rf_sm80(P)", ""),
        ("void vectorized_elementwise_kernel<4, float>(int)", ""),
    ],
)
def test_products_in_fp32_and_tf32_are_known_by_name(name: str, precision: str) -> None:
    assert wide_precision_of(name) == precision
