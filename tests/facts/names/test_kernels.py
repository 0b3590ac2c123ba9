import pandas as pd
import pytest

from traceprof.facts.names.kernels import uses_tensor_cores


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
