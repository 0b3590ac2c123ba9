"""What kernels do, by name: real names as profilers print them."""

from __future__ import annotations

import re

import pytest

from tests.names.examples import EXAMPLES
from traceprof.model.activity import Activity, Part
from traceprof.model.table import Names
from traceprof.names.classes import _class_of as whole_name_class
from traceprof.names.classes import class_of, classify, parse_rules
from traceprof.names.kernels import _precision_of as whole_name_precision
from traceprof.names.kernels import precision_of
from traceprof.names.parsing import shortened_numbers

_NOT_BY_NAME = {"cuda_graph", "transfer"}


@pytest.mark.parametrize(
    ("activity", "name"),
    [(activity, name) for activity, names in EXAMPLES.items() for name in names],
)
def test_public_names(activity: str, name: str) -> None:
    assert class_of(name).value == activity


@pytest.mark.parametrize("name", [name for names in EXAMPLES.values() for name in names])
def test_long_numbers_tell_no_more_than_short_ones(name: str) -> None:
    numbered = re.sub(r"(?<=[^A-Za-z0-9])(\d\d)", r"\g<1>4816", f"{name}_17")
    short = shortened_numbers(numbered)
    assert len(short) < len(numbered) or name.startswith("_Z")
    assert whole_name_class(numbered) == class_of(numbered)
    assert whole_name_precision(numbered) == precision_of(numbered)


def test_every_class_that_names_can_tell_has_examples() -> None:
    assert set(EXAMPLES) == {activity.value for activity in Activity} - _NOT_BY_NAME


@pytest.mark.parametrize(
    ("name", "activity"),
    [
        # What a word would say that stands in arguments, in a namespace, or across two words.
        ("void fft2d_r2c_32x32<float, true>(float2*, cudnn::reduced_divisor)", "fft"),
        ("void fbgemm_gpu::permute_2D_lengths_kernel<int>(int)", "layout"),
        (
            "void Eigen::internal::EigenMetaKernel<TensorEvaluator<TensorAssignOp<X>>>(X)",
            "elementwise",
        ),
        ("void tensorTransformGeneric<float, float>(cudnnTensorTransformStruct)", "layout"),
        ("bmm_MxE4m3_MxE2m1MxE4m3_Fp32_biasM_bN_t128x16x256_dynBatch_sm100f", "gemm"),
        ("void permute_pooled_embs_kernel<float>(float const*)", "layout"),
        ("void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*)", "elementwise"),
        ("void flashinfer::norm::RMSNormKernel<8u, __half>(__half*)", "normalization"),
        ("void vllm::reshape_and_cache_flash_kernel<unsigned short>(X)", "layout"),
        ("void moe::dev::routing::routingMainKernel<routingRenormalize::P<float>>(P)", "moe"),
        (
            "void xmma_cudnn::gemm::split_k_kernel<xmma_cudnn::implicit_gemm::wgrad::T>(X)",
            "convolution",
        ),
        ("MIOpenBatchNormFwdTrainSpatial.kd", "normalization"),
        ("_combined_routing_memset", "moe"),
        ("volta_s884cudnn_fp16_256x64_ldg8_relu_exp_small_nhwc_tn_v1", "convolution"),
        ("triton_poi_fused_addmm_gelu_view_19", "elementwise"),
        ("triton_red_fused_add_mean_mul_pow_rsqrt_0", "normalization"),
        ("triton_poi_fused__to_copy_cat_slice_1", "layout"),
    ],
)
def test_words_that_mislead(name: str, activity: str) -> None:
    assert class_of(name).value == activity


@pytest.mark.parametrize(
    ("functor", "activity"),
    [
        ("at::native::CUDAFunctor_add<float>", "elementwise"),
        (
            "at::native::gpu_kernel_impl<at::native::direct_copy_kernel_cuda(X&)::{lambda()#3}>",
            "layout",
        ),
        ("at::native::mse_kernel_cuda(at::TensorIteratorBase&)::{lambda()#1}", "loss"),
        ("at::native::(anonymous namespace)::masked_scale_kernel<bool, float>(X)", "rng_dropout"),
        ("at::native::FillFunctor<float>", "elementwise"),
    ],
)
def test_the_functor_of_an_elementwise_kernel_decides(functor: str, activity: str) -> None:
    name = f"void at::native::vectorized_elementwise_kernel<4, {functor}, std::array<char*> >(int)"
    assert class_of(name).value == activity


@pytest.mark.parametrize(
    ("mangled", "activity"),
    [
        ("_Z23ncclDevKernel_Broadcast24ncclDevKernelArgsStorageILm4096EE", "communication"),
        (
            "_ZN5flash16flash_fwd_kernelI23Flash_fwd_kernel_traitsILi128EEEEvNS_16Flash_fwd_paramsE",
            "attention",
        ),
        ("_ZN7cutlass7Kernel2I36cutlass_80_simt_sgemm_128x64_8x5_ntXEEvNT_6ParamsE", "gemm"),
        ("_Z17my_softmax_kernelPf", "softmax"),
    ],
)
def test_mangled_names(mangled: str, activity: str) -> None:
    assert class_of(mangled).value == activity


def test_parts() -> None:
    assert [a for a in Activity if a.part is Part.COMMUNICATION] == [Activity.COMMUNICATION]
    assert [a for a in Activity if a.part is Part.DEVICE_MEMORY] == [Activity.MEMORY]
    assert Activity.GEMM.part is Part.COMPUTE


def test_rows_share_the_class_of_their_name() -> None:
    names = _names("sgemm_x", "ncclKernel", "sgemm_x")
    assert classify(names).tolist() == ["gemm", "communication", "gemm"]


def test_no_kernels_have_no_classes() -> None:
    assert classify(_names()).tolist() == []


def test_rules_of_the_user_come_first() -> None:
    rules = parse_rules('[[rule]]\nactivity = "communication"\npattern = "^my_ring"')
    assert classify(_names("my_ring_gemm", "gemm"), rules).tolist() == [
        "communication",
        "gemm",
    ]


def _names(*names: str) -> Names:
    return Names.of(names)
