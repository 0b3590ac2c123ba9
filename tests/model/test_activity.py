"""What kernels do, by name: real names as profilers print them."""

from __future__ import annotations

import pandas as pd
import pytest

from traceprof.errors import UsageError
from traceprof.model.activity import Activity, Part, classify, parse_rules


@pytest.mark.parametrize(
    ("name", "activity"),
    [
        (
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            "communication",
        ),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "communication"),
        ("void sglang::cross_device_reduce_1stage<__half, 8>(sglang::RankData*)", "communication"),
        ("void deep_ep::internode::dispatch<false, 4>(int4*)", "communication"),
        ("two_shot_all_reduce_kernel", "communication"),
        ("void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>>", "attention"),
        ("fmha_cutlassF_f16_aligned_64x64_rf_sm80", "attention"),
        ("ampere_sgemm_128x64_tn", "gemm"),
        ("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_bias_TNN", "gemm"),
        ("Cijk_Ailk_Bljk_HHS_BH_MT128x128x16_SE", "gemm"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_s16816gemm>", "gemm"),
        ("sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32", "convolution"),
        ("void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>", "convolution"),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512>", "normalisation"),
        ("void at::native::<unnamed>::vectorized_layer_norm_kernel<float, float>", "normalisation"),
        ("void (anonymous namespace)::softmax_warp_forward<float, float, float, 8>", "softmax"),
        ("void at::native::multi_tensor_apply_kernel<TensorListMetadata<4>>", "optimizer"),
        ("void cudnn::ops::nchwToNhwcKernel<__half, __half, float>", "layout"),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>", "reduction"),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor>",
            "elementwise",
        ),
        ("triton_poi_fused_add_mul_3", "elementwise"),
        ("my_kernel(float*)", "other_compute"),
    ],
)
def test_real_names(name: str, activity: str) -> None:
    assert classify(pd.Categorical([name])).tolist() == [activity]


def test_every_activity_has_a_part() -> None:
    communication = [a for a in Activity if a.part is Part.COMMUNICATION]
    assert communication == [Activity.COMMUNICATION]
    assert Activity.GEMM.part is Part.COMPUTE


def test_rows_share_the_activity_of_their_name() -> None:
    names = pd.Categorical(["sgemm", "nccl", "sgemm"])
    assert classify(names).tolist() == ["gemm", "communication", "gemm"]


def test_no_kernels_have_no_activities() -> None:
    assert classify(pd.Categorical([])).tolist() == []


def test_rules_of_the_user_come_first() -> None:
    rules = parse_rules('[[rule]]\nactivity = "communication"\npattern = "^my_ring"')
    assert classify(pd.Categorical(["my_ring_gemm", "gemm"]), rules).tolist() == [
        "communication",
        "gemm",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[rule", "not a TOML file"),
        ('[[rule]]\npattern = "x"', "needs an activity and a pattern"),
        ('[[rule]]\nactivity = "fun"\npattern = "x"', "unknown activity 'fun'"),
        ('[[rule]]\nactivity = "gemm"\npattern = "("', "pattern"),
    ],
)
def test_rules_that_make_no_sense_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_rules(text)
