"""Precision, matrix units and direction, as the conventions of libraries tell them."""

from __future__ import annotations

import pytest

from traceprof.model.activity import Activity
from traceprof.names.classes import class_of
from traceprof.names.kernels import direction_of, matrix_units_of, precision_of


@pytest.mark.parametrize(
    ("name", "precision", "units"),
    [
        ("ampere_sgemm_128x64_tn", "fp32", "no"),
        ("volta_gcgemm_32x32_nt", "fp32", "no"),
        ("volta_scudnn_128x64_relu_small_nn_v1", "fp32", "no"),
        ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn", "bf16", "yes"),
        ("volta_fp16_s884gemm_fp16_256x128_ldg8_f2f_tn", "fp16", "yes"),
        ("ampere_h16816gemm_256x128_ldg8_stages_32x3_tn", "fp16", "yes"),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_nt_align1>(X)", "fp32", "no"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_nt>(X)", "tf32", "yes"),
        ("nvjet_tst_128x64_64x6_2x1_v_bz_TNT", "bf16", "yes"),
        ("nvjet_sm103_hsh_64x8_64x16_1x1_h_bz_NNT", "fp16", "yes"),
        ("Volta_hmma_implicit_gemm_fprop_fp32_nhwc_128x128x64x1", "fp16", "yes"),
        (
            "void xmma_cudnn::ext::implicit_gemm::kernel<xmma_cudnn::ext::implicit_gemm::wgrad::"
            "Kernel_traits<xmma_cudnn::Ampere_hmma_tf32_traits<unsigned int, float>>>(X)",
            "tf32",
            "yes",
        ),
        ("nvjet_sm100_qqtst_128x64_64x6", "fp8", "yes"),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x256x8_ffma_cublas", "fp32", "no"),
        (
            "sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize64x64x128_warpgroupsize1x",
            "fp8",
            "yes",
        ),
        ("sm80_xmma_wgrad_implicit_gemm_tf32f32_tf32f32_f32_tensor16x8x8_cudnn", "tf32", "yes"),
        ("Cijk_Ailk_Bljk_BBS_BH_MT64x64x64_MI16x16x16x1_SN_1LDSB0", "bf16", "yes"),
        ("Custom_Cijk_Ailk_Bljk_HHS_BH_MT64x32x64_MI16x16x1", "fp16", "yes"),
        ("Cijk_Ailk_Bljk_SB_MT64x64x16_SE_K1", "fp32", "no"),
        ("Cijk_Ailk_Bljk_DB_MT64x64x16_MI16x16x4x1", "fp64", "yes"),
        ("igemm_fwd_gtcx3_nhwc_fp16_bx0_ex1_bt128x128x32", "fp16", "yes"),
        ("igemm_fwd_gtcn_nhwc_fp32_bx0", "fp32", "no"),
        ("miopenSp3AsmConv_v30_3_1_gfx9_fp32_f2x3_stride1", "fp32", "no"),
        ("void ck::tensor_operation::device::kernel_grouped_conv_fwd_xdl<X>(X)", "", "yes"),
        ("void flash_fwd_kernel<Flash_fwd_kernel_traits<64, cutlass::half_t>>(X)", "fp16", "yes"),
        ("void flash::flash_fwd_splitkv_combine_kernel<X, cutlass::half_t>(X)", "fp16", "no"),
        ("fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKv", "fp8", "yes"),
        ("bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256", "fp4", "yes"),
        ("void splitKreduce_kernel<32, 16, int, __half, __half, float>(X)", "fp16", "no"),
        (
            "void dot_kernel<float, 128, 0, cublasDotParams<X<__nv_bfloat16 const>>>(X)",
            "bf16",
            "no",
        ),
        ("_attn_fwd", "", "unknown"),
        # Attention of a BF16 program: h100/graphs-embedded of the shared traces.
        (
            "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64_4x1x1",
            "",
            "yes",
        ),
        ("void layer_norm_kernel<c10::BFloat16, float>(X)", "bf16", "no"),
        ("void index_kernel<long>(long*)", "", "no"),
        ("void opaque(void const*, float*)", "", "no"),
        ("ncclKernel_Broadcast_RING_LL_Sum_int8_t(X)", "", "no"),
    ],
)
def test_precision_and_matrix_units(name: str, precision: str, units: str) -> None:
    assert precision_of(name) == precision
    assert matrix_units_of(name, class_of(name)).value == units


@pytest.mark.parametrize(
    ("name", "direction"),
    [
        ("void flash_bwd_dq_dk_dv_kernel<X>(X)", "backward"),
        ("sm80_xmma_wgrad_implicit_gemm_f16", "backward"),
        ("igemm_wrw_gtcx3_nhwc_bf16", "backward"),
        ("void xmma_cudnn::gemm::kernel<xmma_cudnn::implicit_gemm::dgrad::Traits>(X)", "backward"),
        ("void at::native::GammaBetaBackwardCUDAKernel<float>(X)", "backward"),
        (
            "void vectorized_elementwise_kernel<4, GeluBackwardCUDAKernelImpl(X)::{lambda()#1}>(X)",
            "backward",
        ),
        ("void cunn_SoftMaxForward<4, float>(X)", "forward"),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float>(X)", "forward"),
        ("volta_scudnn_128x64_relu_small_nn_v1", "forward"),
        ("ampere_sgemm_128x64_tn", ""),
    ],
)
def test_direction(name: str, direction: str) -> None:
    assert direction_of(name) == direction


def test_a_class_of_the_user_decides_on_matrix_units() -> None:
    assert matrix_units_of("my_wmma_kernel", Activity.OTHER).value == "no"
    assert matrix_units_of("my_wmma_kernel", Activity.GEMM).value == "yes"
